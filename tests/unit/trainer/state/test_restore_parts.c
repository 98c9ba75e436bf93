/*
 * Ranks that restore together: the store is read once by all of them, whatever each holds, and the
 * job ends as one does that had no failure.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"

#define RESTORED 2 /* finished steps that the checkpoint has */
#define LANES    8
#define CHUNK    ((uint64_t)1 << 20) /* bytes */

/* 11 MB of parameters, and twice that of moments: chunks for everybody. */
static const struct ranks_job job = { tiny_gpt2,
                                      { "model.width=192", "model.heads=4", "model.layers=6",
                                        "train.duration=3 steps", "train.lanes=8",
                                        "train.global_batch=16", NULL } };

static atomic_uint_fast64_t bytes_read;

static enum status counted_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                                 size_t *out_size)
{
    const enum status st = io_system()->pread(self, fd, data, size, at, out_size);
    if (st == ST_OK)
        bytes_read += *out_size;
    return st;
}

static struct io counted(void)
{
    struct io io = *io_system();
    io.pread = counted_pread;
    return io;
}

struct world {
    char *folder, checkpoint[128];
    char quiet[33];   /* the digest in the end of a run in which nothing failed */
    uint64_t tables;  /* bytes that opening the checkpoint reads */
    uint64_t content; /* and those of all its chunks */
};

static struct ranks_options all_lanes(uint32_t size)
{
    struct ranks_options options = { .job = &job, .size = size };
    for (uint32_t r = 0; r < size; r++)
        options.shares[r] = LANES / size + (r < LANES % size);
    return options;
}

/* What ranks read that restore and train the last step; its digest is that of the quiet run. */
static uint64_t restore(const struct world *w, struct ranks_options *options, const char *digest)
{
    const struct io io = counted();
    options->io = &io;
    options->restore = w->checkpoint;
    options->restore_step = RESTORED;
    bytes_read = 0;
    struct ranks_result *result = ranks_new_well(options);
    const uint64_t read = bytes_read;
    assert_string_equal(result->digest, digest);
    free(result);
    return read;
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    void *folder = NULL;
    assert_non_null(w);
    if (ranks_make_folder(&folder) != 0)
        return -1;
    w->folder = folder;
    *state = w;
    (void)snprintf(w->checkpoint, sizeof(w->checkpoint), "%s/checkpoint", w->folder);
    struct ranks_options quiet = all_lanes(1);
    struct ranks_result *result = ranks_new_well(&quiet);
    (void)snprintf(w->quiet, sizeof(w->quiet), "%s", result->digest);
    free(result);
    struct ranks_options before = all_lanes(3);
    before.stop_at = RESTORED;
    before.save = w->checkpoint;
    free(ranks_new_well(&before));

    const struct io io = counted();
    struct ckpt_reader *reader = NULL;
    assert_int_equal(ckpt_open(&io, w->checkpoint, NULL, NULL, &reader), ST_OK);
    ckpt_close(reader);
    w->tables = bytes_read;
    struct ranks_options alone = all_lanes(1);
    w->content = restore(w, &alone, w->quiet) - w->tables;
    assert_true(w->content > 20 * CHUNK);
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    void *folder = w->folder;
    free(w);
    return ranks_remove_folder(&folder);
}

static void apart_each_rank_reads_all(void **state)
{
    const struct world *w = *state;
    struct ranks_options options = all_lanes(4);
    assert_int_equal(restore(w, &options, w->quiet), 4 * (w->tables + w->content));
}

static void together_they_read_each_byte_once(void **state)
{
    const struct world *w = *state;
    for (uint32_t size = 2; size <= 5; size++) {
        struct ranks_options options = all_lanes(size);
        options.parts = true;
        assert_int_equal(restore(w, &options, w->quiet), size * w->tables + w->content);
    }
}

static void what_a_rank_owns_it_reads_itself(void **state)
{
    static const char *const owns[] = { "parallel.zero=1", NULL };
    const struct world *w = *state;
    struct ranks_options options = all_lanes(3);
    char dir[160];
    (void)snprintf(dir, sizeof(dir), "%s/owned", w->folder);
    options.sets = owns;
    options.parts = true;
    options.save = dir; /* which says the digest */
    assert_int_equal(restore(w, &options, w->quiet), 3 * w->tables + w->content);
}

/* If two stages share a chunk, both read the part that they hold. */
static void ranks_of_a_stage_share_what_it_holds(void **state)
{
    for (int owns = 0; owns < 2; owns++) {
        const struct world *w = *state;
        const char *const sets[] = { owns == 1 ? "parallel.zero=1" : "parallel.zero=0", NULL };
        struct ranks_options options = { .job = &job,
                                         .sets = sets,
                                         .size = 5,
                                         .shares = { 5, 3, 4, 3, 1 },
                                         .parts = true,
                                         .stages = { .count = 2, .of = { { 2, 0 }, { 3, 0 } } } };
        char dir[160];
        (void)snprintf(dir, sizeof(dir), "%s/stages-%d", w->folder, owns);
        options.save = dir;
        const uint64_t read = restore(w, &options, w->quiet), once = 5 * w->tables + w->content;
        assert_true(read >= once);
        assert_true(read <= once + 3 * 4 * CHUNK); /* of each buffer: the border, and a tie */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(apart_each_rank_reads_all),
        cmocka_unit_test(together_they_read_each_byte_once),
        cmocka_unit_test(what_a_rank_owns_it_reads_itself),
        cmocka_unit_test(ranks_of_a_stage_share_what_it_holds),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
