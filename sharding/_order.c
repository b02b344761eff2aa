/* The inner loops of the epoch's order: keyed permutations, and which interval holds a number. Each call releases the GIL
 * once.
 *
 * What a permutation is, permutation.py says, and intervals.py what is found; without this file numpy does the same. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define LANES 8 /* indices that go through the network side by side: one alone waits for each of its products */
#define STEPS 3 /* ends that are looked at from a guess on, before the search by halves */
#define MOST 5  /* arrays a call takes */
#define STIR UINT64_C(0xD6E8FEB86659FD93)

typedef uint64_t u64;

typedef struct {
    u64 size, key, a, b, rounds;
} Member;

typedef struct {
    Py_buffer held[MOST];
    int count;
} Arrays;

static void release(Arrays *arrays) {
    for (int k = 0; k < arrays->count; k++)
        PyBuffer_Release(&arrays->held[k]);
    arrays->count = 0;
}

/* Take the memory of `count` arrays, and that of the ones from `written` on to write to. */
static int hold(Arrays *arrays, PyObject **objects, int count, int written) {
    for (int k = 0; k < count; k++) {
        if (PyObject_GetBuffer(objects[k], &arrays->held[k], k >= written ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            return 0;
        arrays->count++;
    }
    return 1;
}

static Py_ssize_t count_of(const Arrays *arrays, int k, size_t itemsize) {
    return arrays->held[k].len / (Py_ssize_t)itemsize;
}

/* `half` plus the hash of `other` scaled to range(size), modulo size: numbers of 33 bits at most. */
static u64 add_hash(u64 half, u64 other, u64 key, u64 size, u64 multiplier) {
    u64 hashed = (other + key) * multiplier;
    hashed = (hashed ^ hashed >> 32) * STIR >> 32;
    half += hashed * size >> 32;
    return half < size ? half : half - size;
}

static u64 divide(u64 index, u64 b) {
    return (index | b) >> 32 ? index / b : (uint32_t)index / (uint32_t)b; /* the short division takes half the time */
}

static u64 encipher(u64 index, const Member *m, const u64 *multipliers) {
    u64 left = divide(index, m->b), right = index - left * m->b;
    for (u64 r = 0; r < m->rounds; r += 2) {
        left = add_hash(left, right, m->key, m->a, multipliers[r]);
        right = add_hash(right, left, m->key, m->b, multipliers[r + 1]);
    }
    return left * m->b + right;
}

/* `encipher` for `LANES` indices in place, whose permutations have equally many rounds. */
static void encipher_lanes(u64 *indices, const Member *const *members, const u64 *multipliers) {
    u64 left[LANES], right[LANES], key[LANES], a[LANES], b[LANES], rounds = members[0]->rounds;
    for (int k = 0; k < LANES; k++) {
        key[k] = members[k]->key, a[k] = members[k]->a, b[k] = members[k]->b;
        left[k] = divide(indices[k], b[k]);
        right[k] = indices[k] - left[k] * b[k];
    }
    for (u64 r = 0; r < rounds; r += 2) {
        for (int k = 0; k < LANES; k++)
            left[k] = add_hash(left[k], right[k], key[k], a[k], multipliers[r]);
        for (int k = 0; k < LANES; k++)
            right[k] = add_hash(right[k], left[k], key[k], b[k], multipliers[r + 1]);
    }
    for (int k = 0; k < LANES; k++)
        indices[k] = left[k] * b[k] + right[k];
}

typedef struct {
    const Member *members;
    u64 count, most_rounds;
    const u64 *multipliers;
    const int64_t *which; /* NULL: the first member's, all of them */
} Family;

/* The member of index i; NULL: there is none, or the index is not in its range. */
static const Member *member_of(const Family *family, const u64 *indices, Py_ssize_t i) {
    u64 which = family->which ? (u64)family->which[i] : 0;
    if (which >= family->count)
        return NULL;
    const Member *m = &family->members[which];
    return indices[i] < m->size && m->b && m->rounds <= family->most_rounds && m->rounds % 2 == 0 ? m : NULL;
}

/* Whether all indices, to which `out` is a place each, were in range. */
static int permute(const Family *family, const u64 *indices, Py_ssize_t count, u64 *out) {
    for (Py_ssize_t i = 0; i < count; i += LANES) {
        int lanes = count - i < LANES ? (int)(count - i) : LANES, alike = lanes == LANES;
        const Member *members[LANES];
        for (int k = 0; k < lanes; k++) {
            members[k] = member_of(family, indices, i + k);
            if (!members[k])
                return 0;
            alike &= members[k]->rounds == members[0]->rounds;
            out[i + k] = indices[i + k];
        }
        if (alike)
            encipher_lanes(out + i, members, family->multipliers);
        for (int k = 0; k < lanes; k++) {
            u64 moved = alike ? out[i + k] : encipher(out[i + k], members[k], family->multipliers);
            while (moved >= members[k]->size)
                moved = encipher(moved, members[k], family->multipliers);
            out[i + k] = moved;
        }
    }
    return 1;
}

static PyObject *py_permute(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects[5], *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4]))
        return NULL;
    Arrays a = {.count = 0};
    if (!hold(&a, objects, 5, 4))
        goto done;
    Py_ssize_t count = count_of(&a, 2, sizeof(u64)), chosen = count_of(&a, 3, sizeof(int64_t));
    Family family = {a.held[0].buf, (u64)count_of(&a, 0, sizeof(Member)), (u64)count_of(&a, 1, sizeof(u64)),
                     a.held[1].buf, chosen ? a.held[3].buf : NULL};
    if ((chosen && chosen != count) || count_of(&a, 4, sizeof(u64)) != count) {
        PyErr_SetString(PyExc_ValueError, "indices, which and out are of lengths that do not agree");
        goto done;
    }
    int inside;
    Py_BEGIN_ALLOW_THREADS
    inside = permute(&family, a.held[2].buf, count, a.held[4].buf);
    Py_END_ALLOW_THREADS
    if (inside)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_IndexError, "an index outside of the range that its permutation is of");
done:
    release(&a);
    return result;
}

/* The first of `count` ends that is above `number`, from `low` on. */
static Py_ssize_t first_above(const int64_t *ends, Py_ssize_t low, Py_ssize_t count, int64_t number) {
    while (low < count) {
        Py_ssize_t middle = low + (count - low) / 2;
        if (ends[middle] > number)
            count = middle;
        else
            low = middle + 1;
    }
    return low;
}

static PyObject *py_find(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects[5], *result = NULL;
    int shift;
    if (!PyArg_ParseTuple(args, "OOiOOO", &objects[0], &objects[1], &shift, &objects[2], &objects[3], &objects[4]))
        return NULL;
    Arrays a = {.count = 0};
    if (!hold(&a, objects, 5, 3))
        goto done;
    const int64_t *ends = a.held[0].buf, *numbers = a.held[2].buf;
    const int32_t *guesses = a.held[1].buf;
    int64_t *found = a.held[3].buf, *inside = a.held[4].buf;
    Py_ssize_t intervals = count_of(&a, 0, sizeof *ends), num_guesses = count_of(&a, 1, sizeof *guesses);
    Py_ssize_t count = count_of(&a, 2, sizeof *numbers);
    if (count_of(&a, 3, sizeof *found) != count || count_of(&a, 4, sizeof *inside) != count || shift < 0 || shift > 62) {
        PyErr_SetString(PyExc_ValueError, "numbers, found and inside are of lengths that do not agree, or a wrong shift");
        goto done;
    }
    int within = 1;
    Py_BEGIN_ALLOW_THREADS
    int64_t end = intervals ? ends[intervals - 1] : 0;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t number = numbers[i];
        if (number < 0 || number >= end) {
            within = 0;
            break;
        }
        Py_ssize_t guess = number >> shift;
        if (guess < num_guesses)
            at = guesses[guess]; /* else the interval before is the guess */
        if (at < 0 || at >= intervals || (at > 0 && number < ends[at - 1]))
            at = 0;
        for (int step = 0; step < STEPS && at < intervals && ends[at] <= number; step++)
            at++;
        if (at >= intervals || ends[at] <= number)
            at = first_above(ends, at, intervals, number);
        found[i] = at;
        inside[i] = number - (at ? ends[at - 1] : 0);
    }
    Py_END_ALLOW_THREADS
    if (within)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_IndexError, "a number in none of the intervals");
done:
    release(&a);
    return result;
}

static PyMethodDef methods[] = {
    {"permute", py_permute, METH_VARARGS,
     "permute(members, multipliers, indices, which, out)\n\nWhere indices go; see permutation.py."},
    {"find", py_find, METH_VARARGS,
     "find(ends, guesses, shift, numbers, found, inside)\n\nIntervals of numbers, and places there; see intervals.py."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    PyObject *names = Py_BuildValue("[ss]", "find", "permute");
    int failed = !names || PyModule_AddObjectRef(module, "__all__", names) < 0;
    Py_XDECREF(names);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_order", "Inner loops of the epoch's order.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__order(void) { return PyModuleDef_Init(&definition); }
