/*
 * A state to save, and a save of it by several ranks, for the tests of checkpoints.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"

#define SAMPLE_JOB     "j-0123456789"
#define SAMPLE_STORE   "/store"
#define SAMPLE_BUFFERS 6
#define SAMPLE_TENSORS 7

/* Owns everything that state points to. */
struct sample {
    struct ckpt_state state;
    struct ckpt_buffer buffers[SAMPLE_BUFFERS];
    struct ckpt_tensor tensors[SAMPLE_TENSORS];
    struct ckpt_blob blobs[3];
    uint64_t skip[2];
    char *large; /* the largest blob */
};

/*
 * parameters and momentum (signed), adam.v (never negative), half (bf16), counts (i64), mask (u8);
 * of `elements` elements each, give or take; values follow from step.
 */
void sample_init(struct sample *sample, uint64_t elements, uint64_t step, uint64_t generation);
/* A later state that differs little from `before`: some low bits of some words. */
void sample_init_near(struct sample *sample, const struct sample *before, uint64_t step,
                      uint64_t generation);
void sample_release(struct sample *sample);

/*
 * What a coordinator and `size` ranks do: folder, shards, check, manifest. Everything is released;
 * the first error is returned. If out_dir is not NULL it gets the folder's path (LIMIT_PATH).
 */
MUST_CHECK enum status sample_save(const struct io *io, const struct sample *sample, uint32_t size,
                                   char *out_dir);
/* The same with options for every rank's file; a base is then what all differ from. */
MUST_CHECK enum status sample_save_with(const struct io *io, const struct sample *sample,
                                        uint32_t size, const struct ckpt_write_options *options,
                                        char *out_dir);
/* The same without the publication: out gets the manifest's bytes. */
MUST_CHECK enum status sample_write(const struct io *io, const struct sample *sample, uint32_t size,
                                    const char *dir, struct buf *out);
/* Reads everything back: ST_OK and equal, ST_OK and *out_equal false, or the error. */
MUST_CHECK enum status sample_compare(const struct io *io, const char *dir,
                                      const struct sample *sample, bool *out_equal);
