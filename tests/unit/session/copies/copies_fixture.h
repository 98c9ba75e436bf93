/*
 * A small state of a rank, and its copy in files of a folder of its own.
 *
 * What isn't expected to fail here is asserted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "session/copies/copy_folder.h"

#define COPIES_JOB   "j-0123456789"
#define COPIES_COUNT (3 * PIECE_ELEMENTS + 777)
#define COPIES_SMALL 50
#define COPIES_PATH  160

struct copies {
    char dir[64];
    size_t count; /* of values */
    float *values;
    float small[COPIES_SMALL];
    struct ckpt_buffer buffers[2]; /* parameters: values, statistics: small */
    struct ckpt_blob blob;
    uint64_t skip[2];
    struct ckpt_state state; /* of step 7 and generation 4 */
};
struct copies *copies_new(size_t count);
void copies_free(struct copies *s);
/* What it holds after that step. */
void copies_fill(struct copies *s, uint64_t step);

void copies_path(const struct copies *s, uint32_t generation, uint32_t rank, int number,
                 char out[COPIES_PATH]);
size_t copies_share_bytes(const struct copies *s, uint32_t rank, uint32_t size);
/* A complete copy at path, of the state as it is. */
void copies_write(const struct copies *s, const char *path, uint32_t rank, uint32_t size);
/* Asserts that it is of the state as it is, and that its hashes are right. */
void copies_check(const struct copies *s, const struct copy_view *view);
/* Whether a reader that checks all that it uses finds something wrong. */
bool copies_damaged(const char *path);
/* Turns bits of a byte over. */
void copies_flip(const char *path, size_t at, uint8_t bits);
