/* Rows of many units into one batch, and hashes of many values: a batch in one call, with the GIL released once.
 *
 * Units are told by addresses, since a batch of hundreds of columns and units would spend its time on buffer objects;
 * row_kernel.py holds the arrays behind them for as long as a call takes. xxh3-64:
 * https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md */

#define PY_SSIZE_T_CLEAN
#define XXH_INLINE_ALL
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>

#define AHEAD 16 /* rows that memory is asked for before they are copied */
#define MOST 8   /* arrays a call takes */

typedef struct {
    const int64_t *which, *rows;
    Py_ssize_t count;
    const int64_t *sizes;
    Py_ssize_t units;
} Choice;

typedef struct {
    Py_buffer held[MOST];
    int count;
} Arrays;

static void release(Arrays *arrays) {
    for (int k = 0; k < arrays->count; k++)
        PyBuffer_Release(&arrays->held[k]);
    arrays->count = 0;
}

static int hold(Arrays *arrays, PyObject **objects, int count, int writable) {
    for (int k = 0; k < count; k++) {
        if (PyObject_GetBuffer(objects[k], &arrays->held[k], k == writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            return 0;
        arrays->count++;
    }
    return 1;
}

static Py_ssize_t numbers(const Arrays *arrays, int k) { return arrays->held[k].len / (Py_ssize_t)sizeof(int64_t); }

/* Whether each row is one that its unit has: nothing outside of the units is ever read. */
static int is_inside(const Choice *c) {
    for (Py_ssize_t i = 0; i < c->count; i++) {
        int64_t unit = c->which[i];
        if (unit < 0 || unit >= c->units || c->rows[i] < 0 || c->rows[i] >= c->sizes[unit])
            return 0;
    }
    return 1;
}

#define COPY_AS(type)                                                                                                  \
    for (Py_ssize_t i = 0; i < c->count; i++) {                                                                        \
        if (i + AHEAD < c->count)                                                                                      \
            __builtin_prefetch((const type *)bases[c->which[i + AHEAD]] + c->rows[i + AHEAD]);                         \
        ((type *)out)[i] = ((const type *)bases[c->which[i]])[c->rows[i]];                                             \
    }

static void take_column(const Choice *c, const uint64_t *bases, int64_t width, char *out) {
    int aligned = 1;
    for (Py_ssize_t u = 0; u < c->units; u++)
        aligned &= bases[u] % 8 == 0;
    if (aligned && (uintptr_t)out % 8 == 0) {
        switch (width) {
        case 1: COPY_AS(uint8_t) return;
        case 2: COPY_AS(uint16_t) return;
        case 4: COPY_AS(uint32_t) return;
        case 8: COPY_AS(uint64_t) return;
        default: break;
        }
    }
    for (Py_ssize_t i = 0; i < c->count; i++) {
        if (i + AHEAD < c->count) {
            const char *next = (const char *)bases[c->which[i + AHEAD]] + c->rows[i + AHEAD] * width;
            __builtin_prefetch(next);
            __builtin_prefetch(next + width - 1);
        }
        memcpy(out + i * width, (const char *)bases[c->which[i]] + c->rows[i] * width, (size_t)width);
    }
}

static PyObject *py_take(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects[6], *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4], &objects[5]))
        return NULL;
    Arrays a = {.count = 0};
    if (!hold(&a, objects, 6, -1))
        goto done;
    const uint64_t *bases = a.held[0].buf, *outs = a.held[3].buf;
    const int64_t *widths = a.held[2].buf;
    Choice c = {a.held[4].buf, a.held[5].buf, numbers(&a, 4), a.held[1].buf, numbers(&a, 1)};
    Py_ssize_t columns = numbers(&a, 2);
    if (numbers(&a, 0) != columns * c.units || numbers(&a, 3) != columns || numbers(&a, 5) != c.count) {
        PyErr_SetString(PyExc_ValueError, "addresses, sizes, widths, outs, which and rows are of lengths that do not agree");
        goto done;
    }
    int inside;
    Py_BEGIN_ALLOW_THREADS
    inside = is_inside(&c);
    for (Py_ssize_t k = 0; inside && k < columns; k++)
        take_column(&c, bases + k * c.units, widths[k], (char *)outs[k]);
    Py_END_ALLOW_THREADS
    if (inside)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_IndexError, "a row that its unit does not have");
done:
    release(&a);
    return result;
}

static PyObject *py_lengths(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects[5], *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4]))
        return NULL;
    Arrays a = {.count = 0};
    if (!hold(&a, objects, 5, 4))
        goto done;
    const uint64_t *offsets = a.held[0].buf;
    Choice c = {a.held[2].buf, a.held[3].buf, numbers(&a, 2), a.held[1].buf, numbers(&a, 1)};
    int64_t *out = a.held[4].buf;
    if (numbers(&a, 0) != c.units || numbers(&a, 3) != c.count || numbers(&a, 4) != c.count) {
        PyErr_SetString(PyExc_ValueError, "offsets, sizes, which, rows and out are of lengths that do not agree");
        goto done;
    }
    int inside;
    Py_BEGIN_ALLOW_THREADS
    inside = is_inside(&c);
    for (Py_ssize_t i = 0; inside && i < c.count; i++) {
        const int64_t *at = (const int64_t *)offsets[c.which[i]] + c.rows[i];
        out[i] = at[1] - at[0];
    }
    Py_END_ALLOW_THREADS
    if (inside)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_IndexError, "a row that its unit does not have");
done:
    release(&a);
    return result;
}

/* Of each list `counts[i]` elements, its first ones or its last ones, to element `begins[i]` of `out`. */
static PyObject *py_take_lists(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects[8], *result = NULL;
    long long width;
    int from_end;
    if (!PyArg_ParseTuple(args, "OOOOOOOOLp", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4], &objects[5],
                          &objects[6], &objects[7], &width, &from_end))
        return NULL;
    Arrays a = {.count = 0};
    if (!hold(&a, objects, 8, 7))
        goto done;
    const uint64_t *offsets = a.held[0].buf, *values = a.held[1].buf;
    Choice c = {a.held[3].buf, a.held[4].buf, numbers(&a, 3), a.held[2].buf, numbers(&a, 2)};
    const int64_t *begins = a.held[5].buf, *counts = a.held[6].buf;
    char *out = a.held[7].buf;
    int64_t room = width > 0 ? a.held[7].len / width : -1;
    if (room < 0 || numbers(&a, 0) != c.units || numbers(&a, 1) != c.units || numbers(&a, 4) != c.count ||
        numbers(&a, 5) != c.count || numbers(&a, 6) != c.count) {
        PyErr_SetString(PyExc_ValueError, "arrays of lengths that do not agree");
        goto done;
    }
    int inside;
    Py_BEGIN_ALLOW_THREADS
    inside = is_inside(&c);
    for (Py_ssize_t i = 0; inside && i < c.count; i++) {
        const int64_t *at = (const int64_t *)offsets[c.which[i]] + c.rows[i];
        if (counts[i] < 0 || counts[i] > at[1] - at[0] || begins[i] < 0 || counts[i] > room - begins[i]) {
            inside = 0;
            break;
        }
        int64_t from = from_end ? at[1] - counts[i] : at[0];
        memcpy(out + begins[i] * width, (const char *)values[c.which[i]] + from * width, (size_t)(counts[i] * width));
    }
    Py_END_ALLOW_THREADS
    if (inside)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_IndexError, "a row that its unit does not have, or a list that has no room");
done:
    release(&a);
    return result;
}

static PyObject *py_hash(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects[3], *result = NULL;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "OOOK", &objects[0], &objects[1], &objects[2], &seed))
        return NULL;
    Arrays a = {.count = 0};
    if (!hold(&a, objects, 3, 2))
        goto done;
    const char *data = a.held[0].buf;
    const int64_t *offsets = a.held[1].buf;
    uint64_t *out = a.held[2].buf;
    Py_ssize_t count = numbers(&a, 2);
    int inside = numbers(&a, 1) == count + 1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; inside && i < count; i++) {
        inside = offsets[i] >= 0 && offsets[i] <= offsets[i + 1] && offsets[i + 1] <= a.held[0].len;
        if (inside)
            out[i] = XXH3_64bits_withSeed(data + offsets[i], (size_t)(offsets[i + 1] - offsets[i]), seed);
    }
    Py_END_ALLOW_THREADS
    if (inside)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_ValueError, "offsets that do not rise, or end outside of the data");
done:
    release(&a);
    return result;
}

static PyMethodDef methods[] = {
    {"hash", py_hash, METH_VARARGS, "hash(data, offsets, out, seed)\n\nxxh3-64 of each piece."},
    {"lengths", py_lengths, METH_VARARGS, "lengths(offsets, sizes, which, rows, out)\n\nOf lists, by row."},
    {"take", py_take, METH_VARARGS,
     "take(addresses, sizes, widths, outs, which, rows)\n\nRows of columns of fixed width; see row_kernel.py."},
    {"take_lists", py_take_lists, METH_VARARGS,
     "take_lists(offsets, values, sizes, which, rows, begins, counts, out, width, from_end)\n\nElements of lists."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    PyObject *names = Py_BuildValue("[ssss]", "hash", "lengths", "take", "take_lists");
    int failed = !names || PyModule_AddObjectRef(module, "__all__", names) < 0;
    Py_XDECREF(names);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rows", "Rows of many units into one batch.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&definition); }
