/* Smaller JPEGs of the segments that windows need, put together from headers and bands: a batch in one call.
 *
 * ITU-T T.81 (1992): restart markers RST0 to RST7 follow each other in turn (B.2.1); FF 00 is a byte of data. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MARKER 2

typedef uint8_t u8;

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

/* Where the first frame header's marker stands, by the rules of jpeg_header.py; 0: damaged before the first scan. */
static size_t find_frame(const u8 *p, size_t size) {
    size_t at = MARKER, frame = 0;
    if (size < 4 || p[0] != 0xFF || p[1] != 0xD8)
        return 0;
    while (size - at >= 4 && p[at] == 0xFF) {
        u8 marker = p[at + 1];
        size_t length = (size_t)(p[at + 2] << 8 | p[at + 3]);
        if (marker == 0xFF || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) {
            at += marker == 0xFF ? 1 : MARKER; /* fill bytes, and markers without a segment */
            continue;
        }
        if (marker == 0xDA)
            return frame;
        if (length < MARKER || length > size - at - MARKER)
            return 0;
        if (!frame && marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
            if (length < 8)
                return 0;
            frame = at;
        }
        at += MARKER + length;
    }
    return 0;
}

/* Write a smaller JPEG to `out`, which has room for both parts and a marker. Its size; 0: they do not hold the window. */
static size_t put_together(Bytes head, Bytes bands, const Job *job, u8 *out) {
    size_t frame = find_frame(head.data, head.size);
    if (!frame || job->height > 0xFFFF || job->width > 0xFFFF)
        return 0;
    memcpy(out, head.data, head.size);
    u8 *size = out + frame + 5;
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
