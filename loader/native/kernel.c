/* Windows of JPEGs to finished pixels in a batch's memory: the native kernel of the CPU backend.
 *
 * For each image it decodes only the rows and columns that the output needs, resizes them with the antialiased bilinear
 * filter (Pillow's and torchvision's; the integer arithmetic is torch's for uint8, so that both backends agree), turns
 * and flips, and writes uint8 or table values, height by width by channel. Of a JPEG with restart markers only the
 * segments that are needed are looked at. libjpeg-turbo does all but the entropy decoding of sequential JPEGs (scan.h).
 *
 * What it does not take with certainty (other formats, CMYK, arithmetic coding, anything that libjpeg warns of) it leaves
 * alone and says so: the caller's careful decoder has the last word. It trusts no byte: every read is bounded, and the
 * number of pixels too. ITU-T T.81 (1992), annex B. */

#define PY_SSIZE_T_CLEAN
#define XXH_INLINE_ALL
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jpeglib.h>
#include <xxhash.h>

#include "header.h"
#include "memory.h"
#include "resize.h"
#include "scan.h"

#define KEPT_NBYTES (64u << 20) /* a thread's memory above this is given back after each call */
#define MAX_THREADS 256
#define MAX_SCALED (1 << 20) /* pixels along a side that a window is enlarged to */
#define MAX_SCANS 200 /* of a progressive JPEG: a hostile one has thousands, each as slow as a whole image */

/* ---- what a call is about ------------------------------------------------------------------------------------------ */

enum status { OK = 0, CAREFUL = 1, OUT_OF_MEMORY = 2 };

/* One image's work, int32 each; kernel.py names the same fields. Coordinates are upright, after EXIF orientation. */
typedef struct {
    int32_t top, left, height, width; /* the window of the picture */
    int32_t scaled_height, scaled_width; /* the size that the window becomes */
    int32_t crop_top, crop_left;         /* where the output lies in that */
    int32_t flip;                        /* left to right, last of all */
    int32_t orientation;                 /* Exif, 1 to 8 */
    int32_t frame_height, frame_width;   /* as stored; what the header must say */
    int32_t first_row;                   /* the row of MCUs that the body begins with; -1: the source is a whole file */
} Job;

typedef struct {
    const u8 *head; /* a whole file, or its bytes up to the entropy-coded data */
    size_t head_size;
    const u8 *body; /* whole rows of MCUs, when the head is no whole file */
    size_t body_size;
} Source;

typedef struct {
    const Source *sources;
    const Job *jobs;
    int32_t *status;
    u8 *out;
    int count, height, width; /* of the output */
    const u8 *table;          /* NULL: uint8 as it is; else 3 x 256 values of `itemsize` bytes */
    int itemsize;
    int64_t max_pixels;
    int exact;                /* pixels are those of a whole decoded picture, never of one that was decoded smaller */
    const Job *head_jobs;     /* of decoded samples that are not stored: from the encoded picture to their pixels */
    struct Stored *stored;    /* or NULL: sources are encoded, else see decoded.h */
    struct Gate *gate;        /* or NULL */
    atomic_int next, has_left; /* the next image, and whether the gate is open again */
} Batch;

/* ---- memory that lives on ------------------------------------------------------------------------------------------ */

struct error_state {
    struct jpeg_error_mgr base;
    jmp_buf escape;
};

/* All that one thread needs, kept between calls: first touch of fresh memory costs more than the work in it. */
typedef struct Context {
    struct jpeg_decompress_struct jpeg;
    struct error_state errors;
    struct jpeg_progress_mgr progress;
    int made;
    Block head, rows, narrow, upright, pixels;
    Taps across, down;
    Scan scan;
    struct Context *below;
} Context;

static Context *idle_contexts; /* guarded by the GIL */

/* ---- libjpeg, without its exits and prints ------------------------------------------------------------------------- */

static void on_error(j_common_ptr jpeg) {
    struct error_state *state = (struct error_state *)jpeg->err;
    longjmp(state->escape, 1);
}

static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0) /* a warning: the careful decoder knows which are harmless */
        on_error(jpeg);
}

static void on_output(j_common_ptr jpeg) { (void)jpeg; }

static void on_progress(j_common_ptr jpeg) {
    if (jpeg->is_decompressor && ((j_decompress_ptr)jpeg)->input_scan_number > MAX_SCANS)
        on_error(jpeg);
}

static void destroy_decoder(Context *c) {
    if (c->made)
        jpeg_destroy_decompress(&c->jpeg);
    c->made = 0;
}

static void free_context(Context *c) {
    destroy_decoder(c);
    release(&c->head);
    release(&c->scan.bytes);
    release(&c->scan.list);
    release(&c->rows);
    release(&c->narrow);
    release(&c->upright);
    release(&c->pixels);
    release(&c->across.block);
    release(&c->down.block);
    free(c);
}

/* A new one for each image: an old one remembers tables, and would decode with them a file that has lost its own. */
static int create_decoder(Context *c) {
    destroy_decoder(c);
    c->jpeg.err = jpeg_std_error(&c->errors.base);
    c->errors.base.error_exit = on_error;
    c->errors.base.emit_message = on_message;
    c->errors.base.output_message = on_output;
    c->progress.progress_monitor = on_progress;
    if (setjmp(c->errors.escape))
        return 0;
    jpeg_create_decompress(&c->jpeg);
    c->jpeg.progress = &c->progress;
    c->made = 1;
    return 1;
}

static size_t context_nbytes(const Context *c) {
    return c->head.size + c->scan.bytes.size + c->scan.list.size + c->rows.size + c->narrow.size + c->upright.size + c->pixels.size + c->across.block.size + c->down.block.size;
}

/* ---- one image ----------------------------------------------------------------------------------------------------- */

static void store_row(const Batch *b, const u8 *row, u8 *out) {
    if (!b->table) {
        memcpy(out, row, 3 * (size_t)b->width);
        return;
    }
#define LOOK_UP(type)                                                                                                  \
    {                                                                                                                  \
        const type *t = (const type *)b->table;                                                                        \
        type *o = (type *)out;                                                                                         \
        for (int x = 0; x < b->width; x++) {                                                                           \
            o[3 * x] = t[row[3 * x]];                                                                                  \
            o[3 * x + 1] = t[256 + row[3 * x + 1]];                                                                    \
            o[3 * x + 2] = t[512 + row[3 * x + 2]];                                                                    \
        }                                                                                                              \
    }
    switch (b->itemsize) {
    case 1: LOOK_UP(uint8_t) break;
    case 2: LOOK_UP(uint16_t) break;
    case 4: LOOK_UP(uint32_t) break;
    case 8: LOOK_UP(uint64_t) break;
    }
#undef LOOK_UP
}

/* A window of one axis, as stored. */
typedef struct {
    int window, length; /* where it begins, pixels */
    int scaled, crop, out;
    int mirrored;
} Axis;

static void mirror(Axis *axis, int picture) {
    axis->window = picture - axis->window - axis->length;
    axis->crop = axis->scaled - axis->crop - axis->out;
    axis->mirrored = !axis->mirrored;
}

/* From upright to stored: which axis of the picture is which of the output, and which runs backwards. */
static int stored_axes(const Batch *b, const Job *j, Axis *y, Axis *x) {
    Axis upright_y = {j->top, j->height, j->scaled_height, j->crop_top, b->height, 0};
    Axis upright_x = {j->left, j->width, j->scaled_width, j->crop_left, b->width, 0};
    int o = j->orientation, turned = o >= 5;
    if (o < 1 || o > 8 || j->first_row < -1)
        return 0;
    int height = turned ? j->frame_width : j->frame_height, width = turned ? j->frame_height : j->frame_width;
    if (upright_y.window < 0 || upright_y.length < 1 || upright_y.window > height - upright_y.length ||
        upright_x.window < 0 || upright_x.length < 1 || upright_x.window > width - upright_x.length ||
        upright_y.crop < 0 || upright_y.scaled < 1 || upright_y.crop > upright_y.scaled - b->height ||
        upright_x.crop < 0 || upright_x.scaled < 1 || upright_x.crop > upright_x.scaled - b->width ||
        upright_y.scaled > MAX_SCALED || upright_x.scaled > MAX_SCALED)
        return 0;
    if (o == 3 || o == 4 || o == 7 || o == 8)
        mirror(&upright_y, height);
    if (o == 2 || o == 3 || o == 6 || o == 7)
        mirror(&upright_x, width);
    if (j->flip)
        upright_x.mirrored = !upright_x.mirrored;
    *y = turned ? upright_x : upright_y;
    *x = turned ? upright_y : upright_x;
    return 1;
}

/* The picture that libjpeg is told of: all of it, or the rectangle of MCUs that was collected. */
typedef struct {
    const u8 *data;
    size_t size;
    int top, left; /* of its first pixel, in the stored picture */
    int collected; /* the scan is in the context */
} Piece;

/* Copy the segments of the header that decoding needs, with another height and width in the frame header. */
static size_t copy_head(u8 *to, const u8 *p, const Header *h, int height, int width) {
    const u8 *begin = to;
    *to++ = 0xFF;
    *to++ = 0xD8;
    for (size_t at = 2; at < h->data_at;) {
        int marker = p[at + 1];
        if (marker == 0xFF || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) {
            at += marker == 0xFF ? 1 : 2;
            continue;
        }
        size_t length = 2 + (size_t)u16(p + at + 2);
        int is_metadata = (marker >= 0xE1 && marker <= 0xEF && marker != 0xEE) || marker == 0xFE;
        if (!is_metadata) {
            memcpy(to, p + at, length);
            if (at == h->sof_at) {
                to[5] = (u8)(height >> 8);
                to[6] = (u8)height;
                to[7] = (u8)(width >> 8);
                to[8] = (u8)width;
            }
            to += length;
        }
        at += length;
    }
    return (size_t)(to - begin);
}

/* Choose and collect what holds the pixels [top, bottom) x [left, right), neighbours included, of a sequential JPEG of
 * one scan; any other is libjpeg's as it is. */
static enum status choose_piece(Context *c, const Source *s, const Job *job, const Header *h, int top, int bottom,
                                int left, int right, Piece *piece) {
    int partial = job->first_row >= 0;
    *piece = (Piece){s->head, s->head_size, 0, 0, 0};
    if (h->sof > 1 || h->scan_components != h->components)
        return partial ? CAREFUL : OK;
    /* A scan of one component is not interleaved: its MCU is a block (T.81, A.2.2). */
    int mcu_h = h->components == 1 ? 8 : 8 * h->max_v, mcu_w = h->components == 1 ? 8 : 8 * h->max_h;
    int64_t columns = (h->width + mcu_w - 1) / mcu_w, rows = (h->height + mcu_h - 1) / mcu_h;
    int64_t row0 = top / mcu_h, row1 = (bottom + mcu_h - 1) / mcu_h, seg0 = 0, seg1 = 1, a_row = 1;
    int64_t first = partial ? job->first_row : 0, all = rows;
    const u8 *p = partial ? s->body : s->head + h->data_at;
    const u8 *end = partial ? s->body + s->body_size : s->head + s->head_size;
    int cut = h->interval && columns % h->interval == 0;
    if (partial && (!cut || row0 < first))
        return CAREFUL;
    if (cut) { /* segments do not cross rows */
        int segment = mcu_w * h->interval;
        a_row = columns / h->interval;
        all = rows * a_row;
        seg0 = left / segment;
        seg1 = (right + segment - 1) / segment;
        piece->top = (int)row0 * mcu_h;
        piece->left = (int)seg0 * segment;
        int lower = row1 == rows ? h->height : (int)row1 * mcu_h;
        int edge = seg1 == a_row ? h->width : (int)seg1 * segment;
        if (!reserve(&c->head, h->data_at + 16))
            return OUT_OF_MEMORY;
        piece->data = c->head.data;
        piece->size = copy_head(c->head.data, s->head, h, lower - piece->top, edge - piece->left);
        c->scan.interval = h->interval;
    } else { /* "rows" of one segment each, from the first on, which need not end where rows of MCUs do */
        int64_t interval = h->interval ? h->interval : columns * rows;
        all = (columns * rows + interval - 1) / interval;
        row0 = 0;
        row1 = (row1 * columns + interval - 1) / interval;
        c->scan.interval = (int)(interval > INT_MAX ? INT_MAX : interval);
    }
    switch (collect(&c->scan, p, end, first, row0, row1, seg0, seg1, a_row, all)) {
    case NO_ROOM: return OUT_OF_MEMORY;
    case DAMAGED: return CAREFUL;
    case COLLECTED: break;
    }
    piece->collected = 1;
    return OK;
}

/* A whole file must have its end: what was cut short is damaged, wherever the window lies. */
static int has_end(const u8 *p, size_t size, size_t from) {
    for (size_t at = size; at >= from + 2; at--)
        if (p[at - 1] == 0xD9 && p[at - 2] == 0xFF)
            return 1;
    return 0;
}

/* Whether scans of a progressive JPEG are missing: decoders then smooth over the edges of blocks, and of what is cut. */
static int lacks_scans(j_decompress_ptr jpeg) {
    if (!jpeg->progressive_mode || !jpeg->coef_bits)
        return 0;
    for (int n = 0; n < jpeg->num_components; n++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (jpeg->coef_bits[n][k])
                return 1;
    return 0;
}

/* Decode rows [top, bottom) and columns [left, right) of the picture at 1/divisor of its stored size, and narrow each
 * row on the way. */
static enum status decode_narrowed(Context *c, Piece piece, int divisor, int top, int bottom, int left, int right,
                                   int margin, int mirrored, size_t stride) {
    struct jpeg_decompress_struct *jpeg = &c->jpeg;
    u8 *volatile narrow = c->narrow.data;
    volatile int done = top;
    if (!create_decoder(c))
        return OUT_OF_MEMORY;
    if (setjmp(c->errors.escape)) {
        jpeg_abort_decompress(jpeg);
        return CAREFUL;
    }
    jpeg_mem_src(jpeg, piece.data, piece.size);
    jpeg_read_header(jpeg, TRUE);
    jpeg->out_color_space = JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_fancy_upsampling = TRUE;
    jpeg->scale_num = 1;
    jpeg->scale_denom = (unsigned)divisor;
    jpeg_start_decompress(jpeg);
    if (piece.collected)
        take_over(jpeg, &c->scan);
    else if (lacks_scans(jpeg))
        on_error((j_common_ptr)jpeg);
    int above = piece.top / divisor, before = piece.left / divisor; /* whole MCUs, so nothing is rounded */
    int y0 = top - above, y1 = bottom - above, x0 = left - before, x1 = right - before;
    JDIMENSION offset = x0 > margin ? (JDIMENSION)(x0 - margin) : 0;
    JDIMENSION to = (JDIMENSION)(x1 + margin) < jpeg->output_width ? (JDIMENSION)(x1 + margin) : jpeg->output_width;
    JDIMENSION width = to - offset;
    if (y1 > (int)jpeg->output_height || x1 > (int)jpeg->output_width || y0 < 0 || x0 < 0) {
        jpeg_abort_decompress(jpeg);
        return CAREFUL;
    }
    if (offset > 0 || width < jpeg->output_width)
        jpeg_crop_scanline(jpeg, &offset, &width);
    if (y0 > 0)
        jpeg_skip_scanlines(jpeg, (JDIMENSION)y0);
    size_t row_nbytes = 3 * (size_t)width + PAD;
    u8 *lines = c->rows.data;
    JSAMPROW pointers[16];
    for (int k = 0; k < 16; k++)
        pointers[k] = lines + k * row_nbytes;
    while (done < bottom) {
        int wanted = bottom - done < 16 ? bottom - done : 16, have = 0;
        while (have < wanted) {
            int got = (int)jpeg_read_scanlines(jpeg, pointers + have, (JDIMENSION)(wanted - have));
            if (got == 0)
                on_error((j_common_ptr)jpeg);
            have += got;
        }
        /* Pixel 0 of a line is column before + offset of the picture. */
        across(lines, row_nbytes, have, narrow + (size_t)(done - top) * stride, stride, &c->across,
               before + (int)offset - c->across.base, mirrored);
        done += have;
    }
    jpeg_abort_decompress(jpeg);
    return OK;
}

/* By how much the inverse transform may shrink the picture: 1, 2, 4 or 8, so that the filter still has two pixels or more
 * for each output. On photographs that differs by 0.2 grey levels on average from filtering the whole, and by 2 to 4 in
 * one pixel of a thousand. Not where colours are sampled unevenly: there it differs by four times as much. */
static int choose_divisor(const Header *h, const Axis *y, const Axis *x) {
    int divisor = 1;
    if (h->max_h != h->max_v || h->max_h > 2)
        return 1;
    while (divisor < 8 && y->length / (4.0 * divisor) >= y->scaled && x->length / (4.0 * divisor) >= x->scaled)
        divisor *= 2;
    return divisor;
}

static enum status make_one(Context *c, const Batch *b, int i) {
    const Source *s = &b->sources[i];
    const Job *job = &b->jobs[i];
    Header h;
    if (!s->head || !read_header(s->head, s->head_size, &h) || !is_plain(&h, b->max_pixels))
        return CAREFUL;
    if (h.height != job->frame_height || h.width != job->frame_width)
        return CAREFUL;
    if (job->first_row < 0 ? !has_end(s->head, s->head_size, h.data_at) : h.data_at != s->head_size || !s->body)
        return CAREFUL;
    Axis y, x;
    if (!stored_axes(b, job, &y, &x))
        return CAREFUL;
    int divisor = b->exact ? 1 : choose_divisor(&h, &y, &x);
    if (!make_taps(&c->across, x.window, x.length, divisor, x.scaled, x.crop, x.out) ||
        !make_taps(&c->down, y.window, y.length, divisor, y.scaled, y.crop, y.out))
        return OUT_OF_MEMORY;
    int top = first_input(&c->down), bottom = last_input(&c->down);
    int left = first_input(&c->across), right = last_input(&c->across);
    int smooth = divisor == 1; /* else colours are as large as the picture, and nothing is upsampled */
    int room_x = smooth && h.max_h > 1 ? h.max_h : 0, room_y = smooth && h.max_v > 1 ? h.max_v : 0;
    int y0 = top * divisor > room_y ? top * divisor - room_y : 0;
    int x0 = left * divisor > room_x ? left * divisor - room_x : 0;
    int y1 = bottom * divisor + room_y < h.height ? bottom * divisor + room_y : h.height;
    int x1 = right * divisor + room_x < h.width ? right * divisor + room_x : h.width;
    if (room_x && x0 > h.width - 2 * room_x - 1) /* which libjpeg does from 3 samples a row on (jdsample.c) */
        x0 = h.width > 2 * room_x + 1 ? h.width - 2 * room_x - 1 : 0;
    Piece piece;
    enum status status = choose_piece(c, s, job, &h, y0, y1, x0, x1, &piece);
    if (status != OK)
        return status;
    size_t stride = 3 * (size_t)x.out + PAD;
    if (!reserve(&c->rows, 16 * (3 * (size_t)h.width + PAD)) ||
        !reserve(&c->narrow, stride * (size_t)(bottom - top + c->down.size)))
        return OUT_OF_MEMORY;
    status = decode_narrowed(c, piece, divisor, top, bottom, left, right, room_x, x.mirrored, stride);
    if (status != OK)
        return status;
    int turned = job->orientation >= 5;
    size_t pixel = 3 * (size_t)b->itemsize, line = pixel * (size_t)b->width;
    u8 *out = b->out + (size_t)i * line * (size_t)b->height;
    if (!reserve(&c->upright, 3 * (size_t)b->height * (size_t)b->width + PAD))
        return OUT_OF_MEMORY;
    for (int k = 0; k < y.out; k++) {
        const u8 *in = c->narrow.data + (size_t)(c->down.starts[k] - c->down.starts[0]) * stride;
        int at = y.mirrored ? y.out - 1 - k : k;
        u8 *row = c->upright.data + (turned ? (size_t)at * 3 * (size_t)x.out : 0);
        if (!turned && !b->table)
            row = out + (size_t)at * line;
        down(in, stride, c->down.values + (size_t)k * c->down.size, c->down.size, c->down.precision, row, 3 * x.out);
        if (!turned && b->table)
            store_row(b, row, out + (size_t)at * line);
    }
    if (turned) { /* x of the stored picture runs down the output */
        u8 *row = c->narrow.data; /* done with; at least 3 x.out long, and output rows are y.out pixels */
        if (!reserve(&c->narrow, 3 * (size_t)b->width + PAD))
            return OUT_OF_MEMORY;
        row = c->narrow.data;
        for (int at = 0; at < b->height; at++) {
            for (int k = 0; k < b->width; k++)
                memcpy(row + 3 * k, c->upright.data + 3 * ((size_t)k * (size_t)x.out + (size_t)at), 3);
            store_row(b, row, out + (size_t)at * line);
        }
    }
    return OK;
}

#include "decoded.h"

/* ---- a batch, by several threads ----------------------------------------------------------------------------------- */

typedef struct {
    Batch *batch;
    Context *context;
    pthread_t thread;
} Worker;

/* Lets the batches of one loader through one after the other. The next caller waits here without the GIL, and begins
 * while the one before waits to get it back; it begins when no image of the one before is left to be taken. */
typedef struct Gate {
    sem_t free;
    atomic_int cancelled;
} Gate;

static void *work(void *argument) {
    Worker *worker = argument;
    Batch *batch = worker->batch;
    Gate *gate = batch->gate;
    int i;
    while (!(gate && atomic_load(&gate->cancelled)) && (i = atomic_fetch_add(&batch->next, 1)) < batch->count)
        batch->status[i] = (int32_t)(batch->stored ? make_decoded : make_one)(worker->context, batch, i);
    if (gate && !atomic_exchange(&batch->has_left, 1))
        sem_post(&gate->free);
    return NULL;
}

/* Run on this thread and on as many more as can be had. Signals stay with the threads that Python knows. */
static void run_batch(Worker *workers, int threads) {
    Gate *gate = workers[0].batch->gate;
    sigset_t all, before;
    while (gate && sem_wait(&gate->free) < 0 && errno == EINTR)
        ;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 1;
    while (started < threads && pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work(&workers[0]);
    for (int k = 1; k < started; k++)
        pthread_join(workers[k].thread, NULL);
}

/* ---- Python -------------------------------------------------------------------------------------------------------- */

static int get_buffer(PyObject *object, Py_buffer *view, int flags, Py_ssize_t nbytes, const char *name) {
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return 0;
    if (nbytes >= 0 && view->len != nbytes) {
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes, and %zd are due", name, view->len, nbytes);
        PyBuffer_Release(view);
        return 0;
    }
    return 1;
}

#define GATE "forebay.loader._kernel.gate"

static void free_gate(PyObject *capsule) {
    Gate *gate = PyCapsule_GetPointer(capsule, GATE);
    sem_destroy(&gate->free);
    free(gate);
}

static PyObject *py_gate(PyObject *module, PyObject *args) {
    (void)module;
    (void)args;
    Gate *gate = calloc(1, sizeof *gate);
    if (!gate || sem_init(&gate->free, 0, 1) < 0) {
        free(gate);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(gate, GATE, free_gate);
    if (!capsule) {
        sem_destroy(&gate->free);
        free(gate);
    }
    return capsule;
}

static PyObject *py_cancel(PyObject *module, PyObject *capsule) {
    (void)module;
    Gate *gate = PyCapsule_GetPointer(capsule, GATE);
    if (!gate)
        return NULL;
    atomic_store(&gate->cancelled, 1);
    Py_RETURN_NONE;
}

static PyObject *py_decode(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *heads, *bodies, *jobs_object, *out_object, *table_object, *status_object, *gate_object, *head_jobs_object,
        *stored_object;
    head_jobs_object = stored_object = Py_None;
    Batch batch = {0};
    int threads;
    long long max_pixels;
    if (!PyArg_ParseTuple(args, "OOOOiiOiOLiO|pOO", &heads, &bodies, &jobs_object, &out_object, &batch.height, &batch.width,
                          &table_object, &batch.itemsize, &status_object, &max_pixels, &threads,
                          &gate_object, &batch.exact, &head_jobs_object, &stored_object))
        return NULL;
    Py_ssize_t count = PySequence_Size(heads);
    if (count < 0)
        return NULL;
    if (count > INT_MAX / 2 || PySequence_Size(bodies) != count || batch.height < 1 || batch.width < 1 ||
        batch.height > 65535 || batch.width > 65535 || threads < 1 ||
        (batch.itemsize != 1 && batch.itemsize != 2 && batch.itemsize != 4 && batch.itemsize != 8)) {
        PyErr_SetString(PyExc_ValueError, "heads, bodies, sizes, itemsize or threads out of range");
        return NULL;
    }
    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    if (threads > count)
        threads = count ? (int)count : 1;
    PyObject *result = NULL;
    Py_buffer jobs = {0}, out = {0}, table = {0}, status = {0}, head_jobs = {0}, stored = {0};
    Py_buffer *views = PyMem_Calloc(2 * (size_t)count + 1, sizeof *views);
    Source *sources = PyMem_Calloc((size_t)count + 1, sizeof *sources);
    Worker *workers = PyMem_Calloc((size_t)threads, sizeof *workers);
    Py_ssize_t held = 0;
    int contexts = 0;
    if (!views || !sources || !workers) {
        PyErr_NoMemory();
        goto done;
    }
    Py_ssize_t image = (Py_ssize_t)batch.height * batch.width * 3 * batch.itemsize;
    if (!get_buffer(jobs_object, &jobs, PyBUF_SIMPLE, count * (Py_ssize_t)sizeof(Job), "jobs") ||
        !get_buffer(out_object, &out, PyBUF_WRITABLE, count * image, "out") ||
        !get_buffer(status_object, &status, PyBUF_WRITABLE, count * (Py_ssize_t)sizeof(int32_t), "status") ||
        (table_object != Py_None &&
         !get_buffer(table_object, &table, PyBUF_SIMPLE, 768 * (Py_ssize_t)batch.itemsize, "table")) ||
        (stored_object != Py_None &&
         (!get_buffer(stored_object, &stored, PyBUF_WRITABLE, count * (Py_ssize_t)sizeof(Stored), "stored") ||
          !get_buffer(head_jobs_object, &head_jobs, PyBUF_SIMPLE, count * (Py_ssize_t)sizeof(Job), "head_jobs"))) ||
        (gate_object != Py_None && !(batch.gate = PyCapsule_GetPointer(gate_object, GATE))))
        goto done;
    if (!table.obj && batch.itemsize != 1) {
        PyErr_SetString(PyExc_ValueError, "itemsize is 1 without a table");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        for (int part = 0; part < 2; part++) {
            PyObject *object = PySequence_GetItem(part ? bodies : heads, i);
            if (!object)
                goto done;
            if (object == Py_None) {
                Py_DECREF(object);
                continue;
            }
            int got = PyObject_GetBuffer(object, &views[held], PyBUF_SIMPLE);
            Py_DECREF(object);
            if (got < 0)
                goto done;
            const u8 *data = views[held].buf;
            size_t size = (size_t)views[held].len;
            held++;
            if (part) {
                sources[i].body = data;
                sources[i].body_size = size;
            } else {
                sources[i].head = data;
                sources[i].head_size = size;
            }
        }
    }
    while (contexts < threads) {
        Context *c = idle_contexts;
        if (c)
            idle_contexts = c->below;
        else if (!(c = calloc(1, sizeof *c))) {
            if (contexts)
                break;
            PyErr_NoMemory();
            goto done;
        }
        workers[contexts].context = c;
        workers[contexts].batch = &batch;
        contexts++;
    }
    batch.sources = sources;
    batch.jobs = jobs.buf;
    batch.status = status.buf;
    batch.out = out.buf;
    batch.count = (int)count;
    batch.table = table.obj ? table.buf : NULL;
    batch.head_jobs = head_jobs.buf;
    batch.stored = stored.obj ? stored.buf : NULL;
    batch.max_pixels = max_pixels;
    Py_BEGIN_ALLOW_THREADS
    run_batch(workers, contexts);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    for (int k = 0; k < contexts; k++) {
        Context *c = workers[k].context;
        if (context_nbytes(c) > KEPT_NBYTES) {
            free_context(c);
            continue;
        }
        c->below = idle_contexts;
        idle_contexts = c;
    }
    for (Py_ssize_t k = 0; k < held; k++)
        PyBuffer_Release(&views[k]);
    if (jobs.obj)
        PyBuffer_Release(&jobs);
    if (out.obj)
        PyBuffer_Release(&out);
    if (table.obj)
        PyBuffer_Release(&table);
    if (status.obj)
        PyBuffer_Release(&status);
    if (head_jobs.obj)
        PyBuffer_Release(&head_jobs);
    if (stored.obj)
        PyBuffer_Release(&stored);
    PyMem_Free(views);
    PyMem_Free(sources);
    PyMem_Free(workers);
    return result;
}

static PyObject *py_frames(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *pictures, *found_object, *result = NULL;
    long long max_pixels;
    Py_buffer found = {0};
    if (!PyArg_ParseTuple(args, "O!LO", &PyList_Type, &pictures, &max_pixels, &found_object))
        return NULL;
    Py_ssize_t count = PyList_Size(pictures);
    if (!get_buffer(found_object, &found, PyBUF_WRITABLE, count * 3 * (Py_ssize_t)sizeof(int64_t), "found"))
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *picture = PyList_GetItem(pictures, i);
        Py_buffer view;
        Header h;
        if (!picture)
            goto done;
        if (picture == Py_None)
            continue;
        if (PyObject_GetBuffer(picture, &view, PyBUF_SIMPLE) < 0)
            goto done;
        if (read_header(view.buf, (size_t)view.len, &h) && is_plain(&h, max_pixels)) {
            int64_t *of_picture = (int64_t *)found.buf + 3 * i;
            of_picture[0] = h.height;
            of_picture[1] = h.width;
            of_picture[2] = h.has_app1;
        }
        PyBuffer_Release(&view);
    }
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&found);
    return result;
}

static PyObject *py_version(PyObject *module, PyObject *args) {
    (void)module;
    (void)args;
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
    return PyUnicode_FromString("libjpeg-turbo " TEXT_OF(LIBJPEG_TURBO_VERSION));
}

static int best_vectors(void) {
#ifdef HAVE_AVX2
    if (__builtin_cpu_supports("avx512bw"))
        return 4;
    if (__builtin_cpu_supports("avx2"))
        return 2;
#endif
    return 1;
}

static PyObject *py_vectors(PyObject *module, PyObject *args) {
    (void)module;
    int most;
    if (!PyArg_ParseTuple(args, "i", &most))
        return NULL;
    vectors = best_vectors() < most ? best_vectors() : most;
    return PyLong_FromLong(vectors);
}

static PyMethodDef methods[] = {
    {"decode", py_decode, METH_VARARGS,
     "decode(heads, bodies, jobs, out, height, width, table, itemsize, status, max_pixels, threads, "
     "gate, exact, head_jobs, stored)\n\nMake a batch; see kernel.py. Releases the GIL once."},
    {"gate", py_gate, METH_NOARGS, "A gate that lets one batch at a time through."},
    {"cancel", py_cancel, METH_O, "cancel(gate)\n\nLet what is at the gate, or through it, take no further image."},
    {"frames", py_frames, METH_VARARGS,
     "frames(pictures, max_pixels, found)\n\nHeight, width and whether there is an APP1 segment of each JPEG that "
     "`decode` takes, as int64 (n, 3); the others are left as they are."},
    {"version", py_version, METH_NOARGS, "The library that it was built with."},
    {"use_vectors", py_vectors, METH_VARARGS,
     "use_vectors(most)\n\nRows of pixels to take at a time: 1 (plain C), 2 (AVX2) or 4 (AVX-512), at most what the "
     "processor can. Returns what it will be. The pixels are the same."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    vectors = best_vectors();
    PyObject *names = Py_BuildValue("[sssssss]", "JOB_FIELDS", "cancel", "decode", "frames", "gate", "use_vectors", "version");
    int failed = !names || PyModule_AddObjectRef(module, "__all__", names) < 0 ||
                 PyModule_AddIntConstant(module, "JOB_FIELDS", (long)(sizeof(Job) / sizeof(int32_t))) < 0;
    Py_XDECREF(names);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "Windows of JPEGs to finished pixels.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
