/* Ranges of files into memory, each piece verified by its checksum: a batch in one call, with the GIL released once.
 *
 * xxh3-64: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md; the header has the whole algorithm. */

#define PY_SSIZE_T_CLEAN
#define XXH_INLINE_ALL
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct {
    char *data;
    Py_ssize_t size;
} Memory;

typedef struct {
    int64_t view, begin, end;
} Piece;

/* The system hands out at most 2 GiB at once. */
static int read_fully(int fd, char *data, Py_ssize_t size, int64_t offset) {
    while (size > 0) {
        ssize_t got = pread(fd, data, (size_t)size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        data += got;
        size -= got;
        offset += got;
    }
    return 1;
}

/* Views one after the other, so that what was read is hashed while it is in the processor's cache. */
static void load(const Memory *views, Py_ssize_t count, const int32_t *fds, const int64_t *offsets, const Piece *pieces,
                 const uint64_t *checksums, Py_ssize_t piece_count, uint8_t *sound) {
    Py_ssize_t k = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        sound[i] = fds[i] < 0 || read_fully(fds[i], views[i].data, views[i].size, offsets[i]);
        for (; k < piece_count && pieces[k].view == i; k++)
            if (sound[i])
                sound[i] = XXH3_64bits(views[i].data + pieces[k].begin, (size_t)(pieces[k].end - pieces[k].begin)) ==
                           checksums[k];
    }
}

static int are_in_order(const Piece *pieces, Py_ssize_t piece_count, const Memory *views, Py_ssize_t count) {
    for (Py_ssize_t k = 0; k < piece_count; k++) {
        const Piece *p = &pieces[k];
        if (p->view < (k ? pieces[k - 1].view : 0) || p->view >= count)
            return 0;
        if (p->begin < 0 || p->begin > p->end || p->end > views[p->view].size)
            return 0;
    }
    return 1;
}

static PyObject *py_load(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *list, *arrays[5], *result = NULL;
    if (!PyArg_ParseTuple(args, "O!OOOOO", &PyList_Type, &list, &arrays[0], &arrays[1], &arrays[2], &arrays[3], &arrays[4]))
        return NULL;
    Py_ssize_t count = PyList_Size(list), held = 0;
    Py_buffer given[5] = {{0}};
    Py_buffer *buffers = PyMem_Calloc((size_t)count + 1, sizeof *buffers);
    Memory *views = PyMem_Calloc((size_t)count + 1, sizeof *views);
    if (!buffers || !views) {
        PyErr_NoMemory();
        goto done;
    }
    for (int k = 0; k < 5; k++)
        if (PyObject_GetBuffer(arrays[k], &given[k], k == 4 ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            goto done;
    Py_ssize_t piece_count = given[3].len / (Py_ssize_t)sizeof(uint64_t);
    if (given[0].len != count * (Py_ssize_t)sizeof(int32_t) || given[1].len != count * (Py_ssize_t)sizeof(int64_t) ||
        given[2].len != piece_count * (Py_ssize_t)sizeof(Piece) || given[4].len != count) {
        PyErr_SetString(PyExc_ValueError, "fds, offsets, pieces, checksums and sound are of other lengths than views");
        goto done;
    }
    const int32_t *fds = given[0].buf;
    for (; held < count; held++) {
        PyObject *view = PyList_GetItem(list, held);
        if (!view || PyObject_GetBuffer(view, &buffers[held], fds[held] < 0 ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0)
            goto done;
        views[held].data = buffers[held].buf;
        views[held].size = buffers[held].len;
    }
    if (!are_in_order(given[2].buf, piece_count, views, count)) {
        PyErr_SetString(PyExc_ValueError, "pieces that are out of order, or outside their views");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    load(views, count, fds, given[1].buf, given[2].buf, given[3].buf, piece_count, given[4].buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    for (Py_ssize_t k = 0; k < held; k++)
        PyBuffer_Release(&buffers[k]);
    for (int k = 0; k < 5; k++)
        if (given[k].obj)
            PyBuffer_Release(&given[k]);
    PyMem_Free(buffers);
    PyMem_Free(views);
    return result;
}

static PyMethodDef methods[] = {
    {"load", py_load, METH_VARARGS,
     "load(views, fds, offsets, pieces, checksums, sound)\n\nFill and verify; see ranges.py. Releases the GIL once."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    PyObject *names = Py_BuildValue("[s]", "load");
    int failed = !names || PyModule_AddObjectRef(module, "__all__", names) < 0;
    Py_XDECREF(names);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_ranges", "Ranges of files, verified.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ranges(void) { return PyModuleDef_Init(&definition); }
