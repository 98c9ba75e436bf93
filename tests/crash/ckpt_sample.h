/*
 * A state to save, and a save of it by several ranks, for the tests of checkpoints.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"

#define SAMPLE_JOB     "j-0123456789"
#define SAMPLE_STORE   "/store"
#define SAMPLE_TIME    "2026-01-02T03:04:05Z" /* of every manifest */
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

/* How it is saved; all may be 0. */
struct sample_options {
    const char *store; /* NULL: SAMPLE_STORE */
    enum ckpt_level level;
    uint32_t threads;                /* that encode */
    struct ckpt_write_options write; /* of every rank's file: all differ from one base */
    /* Fills in what rank writes, of an empty share; NULL: the even ones. */
    void (*deal)(const struct ckpt_state *state, uint32_t rank, uint32_t size,
                 struct ckpt_share *out);
};

/* ckpt_shard_write, with options; they may be NULL here and below. */
MUST_CHECK enum status sample_shard_write(const struct io *io, const char *dir,
                                          const struct ckpt_state *state, uint32_t rank,
                                          uint32_t size, const struct sample_options *options,
                                          struct ckpt_report *out);
/*
 * Does what a coordinator and its ranks do: folder, shard files, check, manifest. Everything is
 * released; the first error is returned. If out_dir is not NULL it gets the folder's path
 * (LIMIT_PATH).
 */
MUST_CHECK enum status sample_save(const struct io *io, const struct sample *sample, uint32_t ranks,
                                   const struct sample_options *options, char *out_dir);
/* Like sample_save, without the publication: out gets the manifest's bytes. */
MUST_CHECK enum status sample_write(const struct io *io, const struct sample *sample,
                                    uint32_t ranks, const struct sample_options *options,
                                    const char *dir, struct buf *out);
/* Reads everything back: ST_OK and equal, ST_OK and *out_equal false, or the error. */
MUST_CHECK enum status sample_compare(const struct io *io, const char *dir,
                                      const struct sample *sample, bool *out_equal);

/* A number from the environment (CAIRN_TEST_FULL, …); `otherwise` if it isn't set. */
uint64_t sample_setting(const char *variable, uint64_t otherwise);
