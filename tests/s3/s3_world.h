/*
 * What the programs of these tests share: an S3 store at a place of its own (environment
 * CAIRN_TEST_S3), settings that suit a network full of faults, files to write.
 */
#pragma once

#include "checkpoint/s3/object.h"
#include "checkpoint/s3/s3.h"
#include "common/cleanup.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/test.h"

#define BIG         ((size_t)17 << 20) /* three parts of 5 MiB and a rest */
#define SAMPLE_SIZE 1400000            /* elements of each buffer: shards of several parts */

struct world {
    struct s3 *s3;
    const struct io *io;
    char store[LIMIT_PATH];
};

/* Small parts and pages; quick and stubborn, since the tests' faults come often. */
struct s3_options world_options(void);
/* cmocka's setup, with a place that no other test uses, and teardown. */
int world_set_up(void **state);
int world_tear_down(void **state);

/* Fails the test with what the store explains, unless both are the same. */
void world_check(struct world *w, enum status is, enum status should, const char *what);
/* The path of a file in the store, or of a step's folder, of generation 2. */
void world_path(const struct world *w, const char *name, char out[LIMIT_PATH]);
void world_step(const struct world *w, uint64_t step, char out[LIMIT_PATH]);
/* size bytes that don't repeat; free(). */
void *world_pattern(size_t size);
/* Writes a file, piece bytes at a time. */
void world_write(struct world *w, const char *path, const char *data, size_t size, size_t piece);
/* A ckpt_finding_fn. */
void world_print(void *arg, const char *line);
