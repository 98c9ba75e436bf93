/*
 * A store for one test, with a sample to save in it: on files in memory, which are for one thread
 * at a time and can be made to fail, or in a folder of its own on the machine's.
 *
 * What isn't expected to fail here is asserted.
 */
#pragma once

#include "tests/crash/ckpt_sample.h"
#include "tests/crash/memory_io.h"

struct store_fixture {
    struct memory_io *memory; /* NULL: the store is a folder */
    const struct io *io;
    char store[64];
    struct sample sample;
    char dir[LIMIT_PATH]; /* of what was saved last */
    char lines[8192];     /* findings, noted by store_fixture_note */
};

enum store_fixture_place { STORE_IN_MEMORY, STORE_IN_FOLDER };

/* Makes a fixture of an empty store, and a sample with that many elements, of step 40 and
 * generation 2. */
struct store_fixture *store_fixture_new(enum store_fixture_place place, uint64_t elements);
/* No file in memory may be open any more. */
void store_fixture_free(struct store_fixture *f);
/* store_fixture_free as a cmocka test's teardown. */
int store_fixture_tear_down(void **state);

/* Saves the sample by so many ranks. options: as sample_save's; NULL for none. */
void store_fixture_save(struct store_fixture *f, uint32_t ranks,
                        const struct sample_options *options);
/* Asserts that dir holds the fixture's sample, and that verify finds nothing. */
void store_fixture_assert_saved(struct store_fixture *f, const char *dir);

/* A ckpt_finding_fn that adds a line to those of the fixture. */
void store_fixture_note(void *fixture, const char *line);
/* Verifies dir; lines: what was found. options: or NULL */
enum status store_fixture_verify(struct store_fixture *f, const char *dir,
                                 const struct ckpt_read_options *options);

/* The path of a file in dir, or of rank's shard file. */
void store_fixture_path(const char *dir, const char *name, char out[LIMIT_PATH]);
void store_fixture_shard(const char *dir, uint32_t rank, uint32_t ranks, char out[LIMIT_PATH]);
/* Turns bits of a byte of a file over, as a medium may. */
void store_fixture_flip(struct store_fixture *f, const char *path, uint64_t at, uint8_t mask);

/* Memory that this process has right now. */
size_t resident_bytes(void);
/* Removes a folder of the machine with all that it holds. */
void remove_tree(const char *path);
