/* The antialiased bilinear filter, in the integers that torch uses for uint8: first along rows, then along columns. */

#ifndef FOREBAY_RESIZE_H
#define FOREBAY_RESIZE_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_AVX2 1
#endif

typedef struct {
    int size; /* taps an output */
    int count;
    int precision;
    int base;        /* the input that `starts` count from */
    int *starts;     /* of each output, first input */
    int16_t *values; /* (count, size), zero where there is no tap */
    Block block;
} Taps;

/* How many inputs an output looks at, from `begin` on. */
static int reach(double centre, double support, int from, int *begin) {
    int end = (int)(centre + support + 0.5);
    *begin = (int)(centre - support + 0.5);
    if (*begin < 0)
        *begin = 0;
    return (end > from ? from : end) - *begin;
}

/* Taps of outputs [first, first + count) when the pixels [window, window + length) become `to`, and the inputs are
 * averages of `divisor` pixels each: a triangle as wide as the scale, at least 1, cut at the ends and normalised, then
 * rounded to 16 bits. The precision is torch's choice, by the largest weight of all outputs. */
static int make_taps(Taps *taps, int window, int length, int divisor, int to, int first, int count) {
    double scale = (double)length / divisor / to, largest = 0;
    double support = scale < 1.0 ? 1.0 : scale, inverse = scale < 1.0 ? 1.0 : 1.0 / scale;
    taps->base = window / divisor;
    double offset = (double)(window % divisor) / divisor;
    int from = (window + length + divisor - 1) / divisor - taps->base, widest = 1;
    for (int i = 0; i < to; i++) {
        int begin, n = reach(offset + scale * (i + 0.5), support, from, &begin);
        widest = n > widest ? n : widest;
    }
    taps->size = (widest + 3) & ~3;
    taps->count = count;
    size_t size = (size_t)taps->size, doubles = ((size_t)count + 1) * size * sizeof(double);
    size_t starts = (size_t)count * sizeof(int), values = (size_t)count * size;
    if (!reserve(&taps->block, doubles + starts + values * sizeof(int16_t)))
        return 0;
    double *weights = (double *)taps->block.data, *unused = weights + values;
    taps->starts = (int *)(taps->block.data + doubles);
    taps->values = (int16_t *)(taps->block.data + doubles + starts);
    for (int i = 0; i < to; i++) {
        int wanted = i >= first && i < first + count;
        double centre = offset + scale * (i + 0.5), total = 0, *w = wanted ? weights + (size_t)(i - first) * size : unused;
        int begin, n = reach(centre, support, from, &begin);
        for (int k = 0; k < n; k++) {
            double x = fabs((begin + k - centre + 0.5) * inverse);
            w[k] = x < 1.0 ? 1.0 - x : 0.0;
            total += w[k];
        }
        for (int k = 0; k < n; k++) {
            w[k] = total != 0 ? w[k] / total : 0;
            largest = w[k] > largest ? w[k] : largest;
        }
        if (wanted) {
            taps->starts[i - first] = begin;
            for (int k = n; k < taps->size; k++)
                w[k] = 0;
        }
    }
    int precision = 0;
    while (precision < 22 && (int)(0.5 + largest * (1 << (precision + 1))) < (1 << 15))
        precision++;
    taps->precision = precision;
    for (size_t k = 0; k < values; k++)
        taps->values[k] = (int16_t)(0.5 + weights[k] * (1 << precision));
    return 1;
}

/* The first input that is needed, and the one after the last, counted from the picture's edge. */
static int first_input(const Taps *taps) { return taps->base + taps->starts[0]; }

static int last_input(const Taps *taps) {
    int end = 0;
    for (int i = 0; i < taps->count; i++) {
        int n = taps->size;
        while (n > 1 && taps->values[(size_t)i * taps->size + n - 1] == 0)
            n--;
        end = taps->starts[i] + n > end ? taps->starts[i] + n : end;
    }
    return taps->base + end;
}

/* ---- resizing ------------------------------------------------------------------------------------------------------ */

static inline u8 clip(int value) { return (u8)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* One row of pixels to one of another width, from output `i` on. `in` begins at input `origin` of `base`; `mirror` reverses the
 * outputs. */
static void across_plain(const u8 *in, u8 *out, const Taps *t, int origin, int mirror, int i) {
    for (; i < t->count; i++) {
        int k = mirror ? t->count - 1 - i : i;
        const int16_t *w = t->values + (size_t)k * t->size;
        const u8 *p = in + 3 * (t->starts[k] - origin);
        int r = 1 << (t->precision - 1), g = r, b = r;
        for (int j = 0; j < t->size; j++) {
            r += w[j] * p[3 * j];
            g += w[j] * p[3 * j + 1];
            b += w[j] * p[3 * j + 2];
        }
        out[3 * i] = clip(r >> t->precision);
        out[3 * i + 1] = clip(g >> t->precision);
        out[3 * i + 2] = clip(b >> t->precision);
    }
}

static void down_plain(const u8 *in, size_t stride, const int16_t *w, int size, int precision, u8 *out, int n) {
    for (int x = 0; x < n; x++) {
        int sum = 1 << (precision - 1);
        for (int k = 0; k < size; k++)
            if (w[k])
                sum += w[k] * in[k * stride + x];
        out[x] = clip(sum >> precision);
    }
}

#ifdef HAVE_AVX2
/* From 16 bytes, five pixels: the first and the second two of four taps, each colour's pair as 16-bit neighbours. */
#define TAPS_01 _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1)
#define TAPS_23 _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1)
#define DENSE _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)

static inline int32_t pair_of(const int16_t *w) {
    int32_t pair;
    memcpy(&pair, w, 4);
    return pair;
}

#define INLINE static inline __attribute__((always_inline))

/* One output of two rows, one in each half of the register. */
INLINE __attribute__((target("avx2"))) __m256i tap_avx2(const u8 *p, size_t stride, const int16_t *w, int size,
                                                        __m256i first, __m256i second, __m256i sum) {
    for (int j = 0; j < size; j += 4, p += 12) {
        __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)),
                                                 _mm_loadu_si128((const __m128i *)(p + stride)), 1);
        __m256i low = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, first), _mm256_set1_epi32(pair_of(w + j)));
        __m256i high = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, second), _mm256_set1_epi32(pair_of(w + j + 2)));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(low, high));
    }
    return sum;
}

INLINE __attribute__((target("avx2"))) int sweep_avx2(const u8 *in, size_t in_stride, u8 *out, size_t out_stride,
                                                      const Taps *t, int size, int origin, int mirror) {
    const __m256i first = _mm256_broadcastsi128_si256(TAPS_01), second = _mm256_broadcastsi128_si256(TAPS_23);
    const __m256i dense = _mm256_broadcastsi128_si256(DENSE), half = _mm256_set1_epi32(1 << (t->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(t->precision);
    const int count = t->count, step = mirror ? -1 : 1, *start = t->starts + (mirror ? count - 1 : 0);
    const int16_t *w = t->values + (mirror ? (size_t)(count - 1) * (size_t)size : 0);
    int i = 0;
    in -= 3 * (ptrdiff_t)origin;
    for (; i + 4 <= count; i += 4) {
        __m256i sums[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++, start += step, w += step * size)
            sums[n] = _mm256_sra_epi32(tap_avx2(in + 3 * (ptrdiff_t)*start, in_stride, w, size, first, second, half), shift);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
        bytes = _mm256_shuffle_epi8(bytes, dense);
        /* The last four of the 16 bytes are overwritten by the next outputs, or lie in the padding. */
        _mm_storeu_si128((__m128i *)(out + 3 * i), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(out + out_stride + 3 * i), _mm256_extracti128_si256(bytes, 1));
    }
    return i;
}

/* Two rows at a time, from the first output on; returns how many outputs are done: all but three at most. */
__attribute__((target("avx2"))) static int across_avx2(const u8 *in, size_t in_stride, u8 *out, size_t out_stride,
                                                       const Taps *t, int origin, int mirror) {
    if (t->size == 4) /* without a loop over the taps */
        return sweep_avx2(in, in_stride, out, out_stride, t, 4, origin, mirror);
    return sweep_avx2(in, in_stride, out, out_stride, t, t->size, origin, mirror);
}

/* The same for four rows. */
#define AVX512 __attribute__((target("avx512f,avx512bw")))

INLINE AVX512 __m512i tap_avx512(const u8 *p, size_t stride, const int16_t *w, int size, __m512i first, __m512i second,
                                 __m512i sum) {
    for (int j = 0; j < size; j += 4, p += 12) {
        __m512i pixels = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
        pixels = _mm512_inserti32x4(pixels, _mm_loadu_si128((const __m128i *)(p + stride)), 1);
        pixels = _mm512_inserti32x4(pixels, _mm_loadu_si128((const __m128i *)(p + 2 * stride)), 2);
        pixels = _mm512_inserti32x4(pixels, _mm_loadu_si128((const __m128i *)(p + 3 * stride)), 3);
        __m512i low = _mm512_madd_epi16(_mm512_shuffle_epi8(pixels, first), _mm512_set1_epi32(pair_of(w + j)));
        __m512i high = _mm512_madd_epi16(_mm512_shuffle_epi8(pixels, second), _mm512_set1_epi32(pair_of(w + j + 2)));
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(low, high));
    }
    return sum;
}

INLINE AVX512 int sweep_avx512(const u8 *in, size_t in_stride, u8 *out, size_t out_stride, const Taps *t, int size,
                               int origin, int mirror) {
    const __m512i first = _mm512_broadcast_i32x4(TAPS_01), second = _mm512_broadcast_i32x4(TAPS_23);
    const __m512i dense = _mm512_broadcast_i32x4(DENSE), half = _mm512_set1_epi32(1 << (t->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(t->precision);
    const int count = t->count, step = mirror ? -1 : 1, *start = t->starts + (mirror ? count - 1 : 0);
    const int16_t *w = t->values + (mirror ? (size_t)(count - 1) * (size_t)size : 0);
    int i = 0;
    in -= 3 * (ptrdiff_t)origin;
    for (; i + 4 <= count; i += 4) {
        __m512i sums[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++, start += step, w += step * size)
            sums[n] =
                _mm512_sra_epi32(tap_avx512(in + 3 * (ptrdiff_t)*start, in_stride, w, size, first, second, half), shift);
        __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(sums[0], sums[1]), _mm512_packs_epi32(sums[2], sums[3]));
        bytes = _mm512_shuffle_epi8(bytes, dense);
        u8 *to = out + 3 * i;
        _mm_storeu_si128((__m128i *)to, _mm512_castsi512_si128(bytes));
        _mm_storeu_si128((__m128i *)(to + out_stride), _mm512_extracti32x4_epi32(bytes, 1));
        _mm_storeu_si128((__m128i *)(to + 2 * out_stride), _mm512_extracti32x4_epi32(bytes, 2));
        _mm_storeu_si128((__m128i *)(to + 3 * out_stride), _mm512_extracti32x4_epi32(bytes, 3));
    }
    return i;
}

AVX512 static int across_avx512(const u8 *in, size_t in_stride, u8 *out, size_t out_stride, const Taps *t, int origin,
                                int mirror) {
    if (t->size == 4)
        return sweep_avx512(in, in_stride, out, out_stride, t, 4, origin, mirror);
    return sweep_avx512(in, in_stride, out, out_stride, t, t->size, origin, mirror);
}

__attribute__((target("avx2"))) static void down_avx2(const u8 *in, size_t stride, const int16_t *w, int size,
                                                      int precision, u8 *out, int n) {
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(precision);
    int x = 0;
    for (; x + 32 <= n; x += 32) {
        __m256i a = half, b = half, c = half, d = half;
        for (int k = 0; k < size; k += 2) {
            int32_t pair;
            memcpy(&pair, w + k, 4);
            if (!pair)
                continue;
            __m256i ww = _mm256_set1_epi32(pair);
            const u8 *p = in + k * stride + x;
            __m256i upper = _mm256_loadu_si256((const __m256i *)p);
            __m256i lower = w[k + 1] ? _mm256_loadu_si256((const __m256i *)(p + stride)) : zero;
            __m256i low = _mm256_unpacklo_epi8(upper, lower), high = _mm256_unpackhi_epi8(upper, lower);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), ww));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), ww));
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), ww));
            d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), ww));
        }
        __m256i ab = _mm256_packs_epi32(_mm256_sra_epi32(a, shift), _mm256_sra_epi32(b, shift));
        __m256i cd = _mm256_packs_epi32(_mm256_sra_epi32(c, shift), _mm256_sra_epi32(d, shift));
        _mm256_storeu_si256((__m256i *)(out + x), _mm256_packus_epi16(ab, cd));
    }
    down_plain(in + x, stride, w, size, precision, out + x, n - x);
}
#endif

static int vectors; /* how many rows the processor takes at a time: 1, 2 (AVX2) or 4 (AVX-512) */

static void across(const u8 *in, size_t in_stride, int rows, u8 *out, size_t out_stride, const Taps *t, int origin,
                   int mirror) {
    for (int row = 0, done; row < rows; row += done) {
        int i = 0;
        done = 1;
#ifdef HAVE_AVX2
        if (vectors >= 4 && rows - row >= 4) {
            i = across_avx512(in, in_stride, out, out_stride, t, origin, mirror);
            done = 4;
        } else if (vectors >= 2 && rows - row >= 2) {
            i = across_avx2(in, in_stride, out, out_stride, t, origin, mirror);
            done = 2;
        }
#endif
        for (int k = 0; k < done; k++, in += in_stride, out += out_stride)
            across_plain(in, out, t, origin, mirror, i);
    }
}

static void down(const u8 *in, size_t stride, const int16_t *w, int size, int precision, u8 *out, int n) {
#ifdef HAVE_AVX2
    if (vectors >= 2) {
        down_avx2(in, stride, w, size, precision, out, n);
        return;
    }
#endif
    down_plain(in, stride, w, size, precision, out, n);
}

#endif
