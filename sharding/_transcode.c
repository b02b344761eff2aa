/* Lossless transcoding of a JPEG to one scan with restart markers: forebay.sharding._transcode.

   Reads the quantised coefficients with libjpeg-turbo and codes the same numbers again, so that every decoder gives the
   same pixels. Whatever libjpeg doubts is refused: what it repairs on its own, another decoder may repair otherwise. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* A picture of many scans takes time for each that its bytes do not tell; encoders write up to a dozen. */
#define MAX_SCANS 256

/* Every block has a DC coefficient of at least one bit, in whatever scan it stands. */
#define BLOCKS_PER_BYTE 8

typedef struct {
    struct jpeg_error_mgr errors; /* first, since libjpeg hands back a pointer to it */
    jmp_buf give_up;
    char reason[JMSG_LENGTH_MAX];
    int out_of_memory;
} Faults;

typedef struct {
    struct jpeg_destination_mgr manager; /* first, likewise */
    unsigned char *bytes;
    size_t capacity;
    size_t nbytes;
} Sink;

typedef struct {
    const unsigned char *data;
    size_t data_nbytes;
    size_t segment_mcus;
    size_t max_pixels;
    struct jpeg_decompress_struct reader;
    struct jpeg_compress_struct writer;
    struct jpeg_progress_mgr progress;
    Faults faults;
    Sink sink;
} Job;

static void refuse(j_common_ptr jpeg, const char *reason) {
    Faults *faults = (Faults *)jpeg->err;
    snprintf(faults->reason, sizeof faults->reason, "%s", reason);
    longjmp(faults->give_up, 1);
}

static void on_error(j_common_ptr jpeg) {
    Faults *faults = (Faults *)jpeg->err;
    faults->out_of_memory = faults->errors.msg_code == JERR_OUT_OF_MEMORY;
    faults->errors.format_message(jpeg, faults->reason);
    longjmp(faults->give_up, 1);
}

static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0) { /* a warning: the data is damaged */
        on_error(jpeg);
    }
}

static void say_nothing(j_common_ptr jpeg) {
    (void)jpeg;
}

static void count_scans(j_common_ptr jpeg) {
    if (((j_decompress_ptr)jpeg)->input_scan_number > MAX_SCANS) {
        refuse(jpeg, "it has more scans than any encoder writes");
    }
}

static void sink_open(j_compress_ptr writer) {
    Sink *sink = (Sink *)writer->dest;
    sink->manager.next_output_byte = sink->bytes;
    sink->manager.free_in_buffer = sink->capacity;
}

static boolean sink_grow(j_compress_ptr writer) { /* libjpeg calls it when the buffer is full to its end */
    Sink *sink = (Sink *)writer->dest;
    unsigned char *larger = sink->capacity <= SIZE_MAX / 2 ? realloc(sink->bytes, 2 * sink->capacity) : NULL;
    if (larger == NULL) {
        ERREXIT1(writer, JERR_OUT_OF_MEMORY, 0);
    }
    sink->bytes = larger;
    sink->manager.next_output_byte = larger + sink->capacity;
    sink->manager.free_in_buffer = sink->capacity;
    sink->capacity *= 2;
    return TRUE;
}

static void sink_close(j_compress_ptr writer) {
    Sink *sink = (Sink *)writer->dest;
    sink->nbytes = sink->capacity - sink->manager.free_in_buffer;
}

static void check_frame(const Job *job) {
    j_decompress_ptr reader = (j_decompress_ptr)&job->reader;
    j_common_ptr jpeg = (j_common_ptr)reader;
    if (reader->num_components != 1 && reader->num_components != 3) {
        refuse(jpeg, "it has neither 1 nor 3 components");
    }
    if (reader->arith_code) {
        refuse(jpeg, "its coding is arithmetic");
    }
    if ((size_t)reader->image_width * reader->image_height > job->max_pixels) {
        refuse(jpeg, "it claims more pixels than allowed");
    }
    size_t blocks = 0;
    for (int c = 0; c < reader->num_components; c++) {
        blocks += (size_t)reader->comp_info[c].width_in_blocks * reader->comp_info[c].height_in_blocks;
    }
    if (blocks / BLOCKS_PER_BYTE > job->data_nbytes) { /* so memory is bounded by the file: 1 KiB a byte at most */
        refuse(jpeg, "it claims more pixels than its bytes can hold");
    }
    size_t mcu_width = DCTSIZE * (size_t)(reader->num_components == 1 ? 1 : reader->max_h_samp_factor);
    size_t mcus_per_row = (reader->image_width + mcu_width - 1) / mcu_width;
    if (job->segment_mcus < 1 || mcus_per_row % job->segment_mcus != 0) {
        refuse(jpeg, "the segment does not divide a row of MCUs");
    }
}

/* A decoder smooths the blocks of a progressive picture that lacks some of its scans; it would not do so afterwards. */
static void check_complete(const Job *job) {
    j_decompress_ptr reader = (j_decompress_ptr)&job->reader;
    if (!reader->progressive_mode || reader->coef_bits == NULL) {
        return;
    }
    for (int c = 0; c < reader->num_components; c++) {
        for (int k = 0; k < DCTSIZE2; k++) {
            if (reader->coef_bits[c][k] != 0) {
                refuse((j_common_ptr)reader, "it is progressive and lacks some of its scans");
            }
        }
    }
}

/* Later pictures in one file are found by their offsets, which a new length of the first makes wrong. */
static void check_alone(const Job *job, const struct jpeg_marker_struct *markers) {
    if (job->reader.src->bytes_in_buffer == 0) {
        return;
    }
    for (const struct jpeg_marker_struct *m = markers; m != NULL; m = m->next) {
        if (m->marker == JPEG_APP0 + 2 && m->data_length >= 4 && memcmp(m->data, "MPF", 4) == 0) {
            refuse((j_common_ptr)&job->reader, "another picture follows it in the file (MPO)");
        }
    }
}

/* Fills the sink; 0, or -1 with the reason in `faults`. Leaves the sink's bytes to the caller, and nothing else. */
static int run(Job *job) {
    j_decompress_ptr reader = &job->reader;
    j_compress_ptr writer = &job->writer;
    reader->err = writer->err = jpeg_std_error(&job->faults.errors);
    job->faults.errors.error_exit = on_error;
    job->faults.errors.emit_message = on_message;
    job->faults.errors.output_message = say_nothing;
    if (setjmp(job->faults.give_up)) {
        jpeg_destroy_compress(writer); /* both do nothing to what is still all zeros */
        jpeg_destroy_decompress(reader);
        return -1;
    }
    jpeg_create_decompress(reader);
    job->progress.progress_monitor = count_scans;
    reader->progress = &job->progress;
    jpeg_mem_src(reader, job->data, job->data_nbytes);
    for (int n = 0; n < 16; n++) {
        jpeg_save_markers(reader, JPEG_APP0 + n, 0xFFFF);
    }
    jpeg_save_markers(reader, JPEG_COM, 0xFFFF);
    jpeg_read_header(reader, TRUE);
    check_frame(job);
    const struct jpeg_marker_struct *last = reader->marker_list; /* those between scans say nothing to a decoder */
    while (last != NULL && last->next != NULL) {
        last = last->next;
    }
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(reader);
    check_complete(job);
    check_alone(job, reader->marker_list);

    job->sink.manager.init_destination = sink_open;
    job->sink.manager.empty_output_buffer = sink_grow;
    job->sink.manager.term_destination = sink_close;
    job->sink.capacity = job->data_nbytes + job->data_nbytes / 8 + 4096;
    job->sink.bytes = malloc(job->sink.capacity);
    if (job->sink.bytes == NULL) {
        ERREXIT1(reader, JERR_OUT_OF_MEMORY, 0);
    }
    jpeg_create_compress(writer);
    writer->dest = &job->sink.manager;
    jpeg_copy_critical_parameters(reader, writer);
    writer->optimize_coding = TRUE;
    writer->restart_interval = (unsigned int)job->segment_mcus;
    writer->write_JFIF_header = FALSE; /* every marker comes from the source, in its order and byte for byte: so a */
    writer->write_Adobe_marker = FALSE; /* decoder learns the same of colours, density, orientation and profile */
    jpeg_write_coefficients(writer, coefficients);
    for (const struct jpeg_marker_struct *m = last == NULL ? NULL : reader->marker_list; m != NULL; m = m->next) {
        jpeg_write_marker(writer, m->marker, m->data, m->data_length);
        if (m == last) {
            break;
        }
    }
    jpeg_finish_compress(writer);
    jpeg_destroy_compress(writer);
    jpeg_destroy_decompress(reader);
    return 0;
}

static PyObject *transcode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    Py_ssize_t segment_mcus, max_pixels;
    if (!PyArg_ParseTuple(args, "y*nn:transcode", &data, &segment_mcus, &max_pixels)) {
        return NULL;
    }
    PyObject *result = NULL;
    Job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    job->data = data.buf;
    job->data_nbytes = (size_t)data.len;
    job->segment_mcus = segment_mcus < 0 ? 0 : (size_t)segment_mcus;
    job->max_pixels = max_pixels < 0 ? 0 : (size_t)max_pixels;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = run(job);
    Py_END_ALLOW_THREADS
    if (!failed) {
        result = PyBytes_FromStringAndSize((const char *)job->sink.bytes, (Py_ssize_t)job->sink.nbytes);
    } else if (job->faults.out_of_memory) {
        PyErr_NoMemory();
    } else {
        PyErr_SetString(PyExc_ValueError, job->faults.reason);
    }
    free(job->sink.bytes);
    free(job);
done:
    PyBuffer_Release(&data);
    return result;
}

PyDoc_STRVAR(transcode_doc,
             "transcode(data, segment_mcus, max_pixels)\n--\n\n"
             "Code a JPEG's coefficients again, as one sequential Huffman-coded scan with optimal tables.\n\n"
             "Args:\n"
             "    data: the file's bytes, not to be changed meanwhile: the GIL is released.\n"
             "    segment_mcus: MCUs between restart markers; divides those of a row.\n"
             "    max_pixels: a picture that claims more is refused before memory is taken for it.\n\n"
             "Returns:\n"
             "    bytes of a JPEG with the same markers of applications and comments.\n\n"
             "Raises:\n"
             "    ValueError: it cannot be done without a change, or the file is damaged; says why.\n"
             "    MemoryError: the coefficients do not fit.\n");

static PyMethodDef methods[] = {
    {"transcode", transcode, METH_VARARGS, transcode_doc},
    {NULL, NULL, 0, NULL},
};

static int add_names(PyObject *module) {
    PyObject *names = Py_BuildValue("[s]", methods[0].ml_name);
    int failed = names == NULL ? -1 : PyModule_AddObjectRef(module, "__all__", names);
    Py_XDECREF(names);
    return failed;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_names},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "forebay.sharding._transcode",
    .m_doc = "Lossless transcoding of JPEG, on libjpeg-turbo.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__transcode(void) {
    return PyModuleDef_Init(&definition);
}
