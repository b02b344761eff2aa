/* Decoded samples of the cache: read and verified, or decoded whole and written there; then finished as any other.
 *
 * All of it for one picture while it is in the processor's cache. The checksum is that of `cache/decoded_file.py`. */

#ifndef FOREBAY_DECODED_H
#define FOREBAY_DECODED_H

enum origin { NOWHERE = 0, STORED = 1, ENCODED = 2, TO_STORE = 3, IN_MEMORY = 4 };

/* Where a picture's pixels are, or go; decoded_kernel.py names the same fields. */
typedef struct Stored {
    int32_t origin;
    int32_t fd;
    int64_t offset;
    uint64_t checksum; /* of what is stored; of an encoded one it is told here */
    int64_t written;   /* told: 1 if the pixels were written, or minus the error's number */
} Stored;

static uint64_t checksum_of(const u8 *pixels, size_t size, int height, int width) {
    return XXH3_64bits_withSeed(pixels, size, (XXH64_hash_t)height << 32 | (XXH64_hash_t)width);
}

static int64_t write_fully(int fd, const u8 *data, size_t size, int64_t offset) {
    while (size > 0) {
        ssize_t put = pwrite(fd, data, size, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? -errno : -EIO;
        data += put;
        size -= (size_t)put;
        offset += put;
    }
    return 1;
}

static int read_fully(int fd, u8 *data, size_t size, int64_t offset) {
    while (size > 0) {
        ssize_t got = pread(fd, data, size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        data += got;
        size -= (size_t)got;
        offset += got;
    }
    return 1;
}

/* Have the pixels in memory: uint8, height by width by 3, and padding after them. */
static enum status load_pixels(Context *c, const Batch *b, int i, int height, int width, const u8 **found) {
    Stored *s = &b->stored[i];
    size_t size = 3 * (size_t)height * (size_t)width;
    if (s->origin == IN_MEMORY) {
        *found = b->sources[i].head;
        return *found && b->sources[i].head_size >= size + PAD ? OK : CAREFUL;
    }
    if (!reserve(&c->pixels, size))
        return OUT_OF_MEMORY;
    u8 *pixels = c->pixels.data;
    *found = pixels;
    if (s->origin == STORED)
        return read_fully(s->fd, pixels, size, s->offset) && checksum_of(pixels, size, height, width) == s->checksum
                   ? OK
                   : CAREFUL;
    Batch one = {.sources = b->sources + i, .jobs = b->head_jobs + i, .out = pixels, .count = 1, .height = height,
                 .width = width, .itemsize = 1, .max_pixels = b->max_pixels, .exact = 1};
    enum status status = make_one(c, &one, 0);
    if (status == OK && s->origin == TO_STORE) {
        s->checksum = checksum_of(pixels, size, height, width);
        s->written = write_fully(s->fd, pixels, size, s->offset);
    }
    return status;
}

static enum status make_decoded(Context *c, const Batch *b, int i) {
    const Job *job = &b->jobs[i];
    int height = job->frame_height, width = job->frame_width;
    Axis y, x;
    if (b->stored[i].origin == NOWHERE || height < 1 || width < 1 || (int64_t)height * width > b->max_pixels ||
        job->orientation != 1 || !stored_axes(b, job, &y, &x))
        return CAREFUL;
    const u8 *pixels;
    enum status status = load_pixels(c, b, i, height, width, &pixels); /* uses all of the context */
    if (status != OK)
        return status;
    if (!make_taps(&c->across, x.window, x.length, 1, x.scaled, x.crop, x.out) ||
        !make_taps(&c->down, y.window, y.length, 1, y.scaled, y.crop, y.out))
        return OUT_OF_MEMORY;
    int top = first_input(&c->down), bottom = last_input(&c->down);
    size_t stride = 3 * (size_t)x.out + PAD, row_nbytes = 3 * (size_t)width, line = 3 * (size_t)b->itemsize * (size_t)x.out;
    if (!reserve(&c->narrow, stride * (size_t)(bottom - top + c->down.size)) || !reserve(&c->upright, row_nbytes + stride))
        return OUT_OF_MEMORY;
    across(pixels + (size_t)top * row_nbytes, row_nbytes, bottom - top, c->narrow.data, stride, &c->across,
           -c->across.base, x.mirrored);
    u8 *out = b->out + (size_t)i * line * (size_t)y.out;
    for (int k = 0; k < y.out; k++) {
        const u8 *in = c->narrow.data + (size_t)(c->down.starts[k] - c->down.starts[0]) * stride;
        u8 *row = b->table ? c->upright.data : out + (size_t)k * line;
        down(in, stride, c->down.values + (size_t)k * c->down.size, c->down.size, c->down.precision, row, 3 * x.out);
        if (b->table)
            store_row(b, row, out + (size_t)k * line);
    }
    return OK;
}

#endif
