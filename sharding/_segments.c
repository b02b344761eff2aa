/* Smaller JPEGs of the segments that windows need, put together from headers and bands: a batch in one call.
 *
 * ITU-T T.81 (1992): restart markers RST0 to RST7 follow each other in turn (B.2.1); FF 00 is a byte of data. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../loader/native/header.h"

#define MARKER 2

typedef struct {
    int64_t skip;         /* rows of MCUs in the bands before the first one wanted */
    int64_t rows, a_row;  /* rows that are wanted, and segments of each row */
    int64_t begin, end;   /* segments of a row that are wanted */
    int64_t height, width; /* of the smaller picture */
} Job;

typedef struct {
    const u8 *data;
    size_t size;
} Bytes;

/* The end of the segment that begins at p, behind its marker; that of the last one may be missing. NULL: there is none, or
 * one with fill bytes, which nobody writes. */
static const u8 *segment_end(const u8 *p, const u8 *end) {
    for (const u8 *at = p; at < end;) {
        const u8 *found = memchr(at, 0xFF, (size_t)(end - at));
        if (!found || end - found < MARKER)
            break;
        if (found[1])
            return found[1] == 0xFF ? NULL : found + MARKER;
        at = found + MARKER;
    }
    return p <= end ? end + MARKER : NULL;
}

/* Write a smaller JPEG to `out`, which has room for both parts and a marker. Its size; 0: they do not hold the window. */
static size_t put_together(Bytes head, Bytes bands, const Job *job, u8 *out) {
    Header header;
    if (!read_header(head.data, head.size, &header) || job->height > 0xFFFF || job->width > 0xFFFF)
        return 0;
    memcpy(out, head.data, head.size);
    u8 *size = out + header.sof_at + 5;
    size[0] = (u8)(job->height >> 8), size[1] = (u8)job->height;
    size[2] = (u8)(job->width >> 8), size[3] = (u8)job->width;
    u8 *to = out + head.size;
    const u8 *p = bands.data, *end = bands.data + bands.size;
    unsigned marker = 0;
    for (int64_t row = 0; row < job->skip + job->rows; row++)
        for (int64_t n = 0; n < job->a_row; n++) {
            const u8 *next = segment_end(p, end);
            if (!next)
                return 0;
            if (row >= job->skip && n >= job->begin && n < job->end) {
                size_t length = (size_t)(next - p), there = next > end ? (size_t)(end - p) : length;
                memcpy(to, p, there);
                to += length;
                to[-2] = 0xFF, to[-1] = (u8)(0xD0 + (marker++ & 7));
            }
            p = next;
        }
    to[-1] = 0xD9;
    return (size_t)(to - out);
}

static int is_possible(const Job *job) {
    return job->skip >= 0 && job->rows > 0 && job->begin >= 0 && job->begin < job->end && job->end <= job->a_row &&
           job->height > 0 && job->width > 0;
}

static int take(PyObject *list, Py_ssize_t k, Py_buffer *buffer, Bytes *bytes) {
    PyObject *item = PyList_GetItem(list, k);
    if (!item || PyObject_GetBuffer(item, buffer, PyBUF_SIMPLE) < 0)
        return 0;
    *bytes = (Bytes){buffer->buf, (size_t)buffer->len};
    return 1;
}

static PyObject *py_cut(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *lists[2], *given, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyList_Type, &lists[0], &PyList_Type, &lists[1], &given))
        return NULL;
    Py_buffer numbers;
    if (PyObject_GetBuffer(given, &numbers, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t count = PyList_Size(lists[0]), held = 0;
    const Job *jobs = numbers.buf;
    Py_buffer *buffers = PyMem_Calloc(2 * (size_t)count + 1, sizeof *buffers);
    Bytes *parts = PyMem_Calloc(2 * (size_t)count + 1, sizeof *parts);
    size_t *sizes = PyMem_Calloc((size_t)count + 1, sizeof *sizes);
    u8 *memory = NULL;
    if (!buffers || !parts || !sizes) {
        PyErr_NoMemory();
        goto done;
    }
    if (PyList_Size(lists[1]) != count || numbers.len != count * (Py_ssize_t)sizeof(Job)) {
        PyErr_SetString(PyExc_ValueError, "bands or jobs are of another number than headers");
        goto done;
    }
    size_t room = 0;
    for (; held < 2 * count; held++) {
        if (!take(lists[held % 2], held / 2, &buffers[held], &parts[held]))
            goto done;
        room += parts[held].size + MARKER;
    }
    for (Py_ssize_t k = 0; k < count; k++)
        if (!is_possible(&jobs[k])) {
            PyErr_SetString(PyExc_ValueError, "a job of no rows or segments, or of some beside a row");
            goto done;
        }
    memory = PyMem_Malloc(room + 1);
    if (!memory) {
        PyErr_NoMemory();
        goto done;
    }
    u8 *at = memory;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t k = 0; k < count; k++) {
        sizes[k] = put_together(parts[2 * k], parts[2 * k + 1], &jobs[k], at);
        at += sizes[k];
    }
    Py_END_ALLOW_THREADS
    result = PyList_New(count);
    at = memory;
    for (Py_ssize_t k = 0; result && k < count; k++) {
        PyObject *item = sizes[k] ? PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)sizes[k]) : Py_NewRef(Py_None);
        if (!item || PyList_SetItem(result, k, item) < 0)
            Py_CLEAR(result);
        at += sizes[k];
    }
done:
    for (Py_ssize_t k = 0; k < held; k++)
        PyBuffer_Release(&buffers[k]);
    PyBuffer_Release(&numbers);
    PyMem_Free(memory);
    PyMem_Free(sizes);
    PyMem_Free(parts);
    PyMem_Free(buffers);
    return result;
}

static PyMethodDef methods[] = {
    {"cut", py_cut, METH_VARARGS, "cut(headers, bands, jobs)\n\nSmaller JPEGs; see smaller_jpegs.py. Releases the GIL once."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    PyObject *names = Py_BuildValue("[s]", "cut");
    int failed = !names || PyModule_AddObjectRef(module, "__all__", names) < 0;
    Py_XDECREF(names);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_segments", "Smaller JPEGs of segments.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__segments(void) { return PyModuleDef_Init(&definition); }
