/* What a JPEG says of itself before its first scan. ITU-T T.81 (1992), annex B. */

#ifndef FOREBAY_HEADER_H
#define FOREBAY_HEADER_H

#include <stddef.h>
#include <string.h>

#include "memory.h"

typedef struct {
    int sof, precision, height, width, components;
    int max_h, max_v;          /* largest sampling factors */
    int interval;              /* MCUs between restart markers, 0 for none */
    int scan_components;       /* of the first scan */
    int has_app1;
    size_t sof_at, data_at;    /* where the frame header and the entropy-coded data begin */
} Header;

static int u16(const u8 *p) { return p[0] << 8 | p[1]; }

/* Walk over the markers up to the first scan. 0: damaged, or no JPEG. */
static int read_header(const u8 *p, size_t size, Header *h) {
    memset(h, 0, sizeof *h);
    h->sof = -1;
    if (size < 4 || p[0] != 0xFF || p[1] != 0xD8)
        return 0;
    size_t at = 2;
    for (;;) {
        if (size - at < 4 || p[at] != 0xFF)
            return 0;
        int marker = p[at + 1];
        if (marker == 0xFF) {
            at += 1;
            continue;
        }
        if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) {
            at += 2;
            continue;
        }
        size_t length = (size_t)u16(p + at + 2);
        if (length < 2 || length > size - at - 2)
            return 0;
        const u8 *s = p + at + 4; /* the segment's content */
        if (marker == 0xDA) {
            if (h->sof < 0 || length < 6)
                return 0;
            h->scan_components = s[0];
            h->data_at = at + 2 + length;
            return 1;
        }
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
            if (h->sof >= 0 || length < 8)
                return 0;
            h->sof = marker - 0xC0;
            h->sof_at = at;
            h->precision = s[0];
            h->height = u16(s + 1);
            h->width = u16(s + 3);
            h->components = s[5];
            if (h->components < 1 || h->components > 4 || length < 8 + 3 * (size_t)h->components)
                return 0;
            for (int k = 0; k < h->components; k++) {
                int across = s[7 + 3 * k] >> 4, down = s[7 + 3 * k] & 15;
                if (across < 1 || across > 4 || down < 1 || down > 4)
                    return 0;
                h->max_h = across > h->max_h ? across : h->max_h;
                h->max_v = down > h->max_v ? down : h->max_v;
            }
        } else if (marker == 0xDD) {
            if (length < 4)
                return 0;
            h->interval = u16(s);
        } else if (marker == 0xE1) {
            h->has_app1 = 1;
        }
        at += 2 + length;
    }
}

/* Whether our pixels are surely those of every decoder: 8 bits, Huffman-coded, grey or three colours. */
static int is_plain(const Header *h, int64_t max_pixels) {
    return h->sof >= 0 && h->sof <= 2 && h->precision == 8 && (h->components == 1 || h->components == 3) &&
           h->height > 0 && h->width > 0 && (int64_t)h->height * h->width <= max_pixels;
}

#endif
