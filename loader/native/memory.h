/* Memory that grows and lives on: first touch of fresh pages costs more than most of the work done in them. */

#ifndef FOREBAY_MEMORY_H
#define FOREBAY_MEMORY_H

#include <stdint.h>
#include <stdlib.h>

#define PAD 64 /* bytes that vector loads and stores may pass the end by */

typedef uint8_t u8;

typedef struct {
    u8 *data;
    size_t size;
} Block;

/* Make room for `size` bytes and the padding; what was there is lost. 0: there is no such room. */
static int reserve(Block *block, size_t size) {
    if (size + PAD <= block->size)
        return 1;
    size_t grown = size + PAD + size / 4;
    free(block->data);
    block->data = calloc(1, grown);
    block->size = block->data ? grown : 0;
    return block->data != NULL;
}

static void release(Block *block) {
    free(block->data);
    block->data = NULL;
    block->size = 0;
}

#endif
