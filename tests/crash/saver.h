/*
 * What tests/crash/saver_main.c and the test that kills it have in common.
 */
#pragma once

#include "tests/crash/ckpt_sample.h"

enum saver_kind {
    SAVER_READY = 'r', /* what the last life left is settled; step: the newest that is committed */
    SAVER_SAVED = 's', /* acknowledged */
    SAVER_FULL = 'f',  /* the store is; the save was given up, or its publication waits */
};

struct saver_message {
    uint64_t step, generation;
    char kind;
};

/* The state of a step, so that another process knows its every byte. */
static inline void saver_sample(struct sample *sample, uint64_t step, uint64_t generation)
{
    sample_init(sample, 1500, step, generation);
}
