/*
 * Ranks that hold a part of the state: what they restore from copies and from checkpoints that
 * others cut otherwise, and that nothing else of their buffers is touched.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "session/copies/copy_folder.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"
#include "trainer/state/copy_restore.h"
#include "trainer/state/state.h"

#define JOB    "j-0123456789"
#define STEP   5
#define FLOATS ((uint64_t)1 << 18) /* of a chunk */
#define RANKS  2
#define SHARES 3
#define NOBODY 0xa5 /* bytes of what a rank doesn't hold */

enum { PARAMETERS, MOMENTUM, BUFFERS }; /* in the order of the state */

/* A worker of the job, and what it has of the state. */
struct one {
    struct jobspec job;
    struct progress progress;
    struct worker *worker;
    struct state_view view;
    struct ckpt_share held;
    uint32_t rank;
    struct reason reason;
    enum status st;
};

/* The state as one rank has all of it, its copies, and two ranks that want a part each. */
struct world {
    char dir[64], checkpoint[LIMIT_PATH];
    struct one whole, part[RANKS];
    struct session_assignment assignment;
    char *nodes[RANKS];
    uint32_t holders[SHARES];
    struct local_hub hub;
};

static void open_one(struct one *one, uint32_t rank)
{
    static const char *const sets[] = { "model.hidden=1800", "train.lanes=1" };
    static const uint32_t lanes[] = { 1 };
    auto_buf struct buf errors;
    buf_init(&errors, 65536);
    one->rank = rank;
    if (jobspec_parse(tiny_mlp, strlen(tiny_mlp), "test.yaml", "/", sets, 2, &one->job, &errors) !=
        ST_OK)
        fail_msg("%s", errors.data);
    progress_init(&one->progress, NULL, NULL, 0, 1);
    const struct worker_options options = {
        .job = &one->job, .io = io_system(), .progress = &one->progress, .size = 1, .shares = lanes
    };
    if (worker_open(&options, &one->worker, &one->reason) != ST_OK)
        fail_msg("%s", one->reason.text);
    assert_int_equal(state_seed(one->worker, &one->reason), ST_OK);
    state_describe(one->worker, STEP, NULL, &one->view);
    assert_int_equal(one->view.state.buffer_count, BUFFERS);
    assert_true(one->view.state.buffers[MOMENTUM].count > 4 * FLOATS);
}

static float *values_of(const struct one *one, uint32_t buffer)
{
    return optimizer_buffer(one->worker->optimizer, one->view.state.buffers[buffer].name);
}

/* Deals chunk c of momentum to part c % parts; of the parameters an even part, or all. */
static void deal(const struct ckpt_state *state, uint32_t part, uint32_t parts, bool all,
                 struct ckpt_share *out)
{
    const uint64_t count = state->buffers[MOMENTUM].count;
    out->count = 0;
    assert_int_equal(ckpt_share_even(state, 1u << PARAMETERS, all ? 0 : part, all ? 1 : parts, out),
                     ST_OK);
    for (uint64_t at = part * FLOATS; at < count; at += parts * FLOATS) {
        const uint64_t left = count - at;
        assert_int_equal(ckpt_share_add(state, MOMENTUM, at, left < FLOATS ? left : FLOATS, out),
                         ST_OK);
    }
}

static void copy_path(const struct world *w, uint32_t share, char out[LIMIT_PATH])
{
    (void)snprintf(out, LIMIT_PATH, "%s/g1-r%u-0.copy", w->dir, share);
}

/* A copy of what `share` has, as that of share number `number`. */
static void write_copy(const struct world *w, uint32_t number, const struct ckpt_share *share)
{
    char path[LIMIT_PATH];
    struct copy_file file;
    struct ckpt_state state = w->whole.view.state;
    (void)snprintf(state.job, sizeof(state.job), JOB);
    state.generation = 1;
    state.share = share;
    copy_path(w, number, path);
    assert_int_equal(copy_file_open(path, (size_t)ckpt_share_bytes(&state, share), &file), ST_OK);
    assert_int_equal(copy_file_begin(&file, &state, number, SHARES), ST_OK);
    copy_file_fill(&file);
    copy_file_seal(&file);
    copy_file_close(&file);
}

/* even: each has one stretch of the state, of which ranks want every second chunk of momentum. */
static void write_copies(const struct world *w, bool even)
{
    const struct ckpt_state *state = &w->whole.view.state;
    for (uint32_t i = 0; i < SHARES; i++) {
        struct ckpt_share share = { .count = 0 };
        if (even) {
            assert_int_equal(ckpt_share_even(state, CKPT_ALL_BUFFERS, i, SHARES, &share), ST_OK);
        } else {
            deal(state, i, SHARES, false, &share);
        }
        write_copy(w, i, &share);
    }
}

static void write_checkpoint(struct world *w)
{
    struct ckpt_report reports[SHARES] = { 0 };
    struct ckpt_hash digest, whole;
    auto_buf struct buf bytes;
    buf_init(&bytes, LIMIT_MANIFEST_BYTES);
    const struct io *io = io_system();
    assert_true((size_t)snprintf(w->checkpoint, LIMIT_PATH, "%s/checkpoint", w->dir) < LIMIT_PATH);
    assert_int_equal(ckpt_folder_create(io, w->checkpoint), ST_OK);
    for (uint32_t i = 0; i < SHARES; i++) {
        struct ckpt_share share;
        struct ckpt_state state = w->whole.view.state;
        (void)snprintf(state.job, sizeof(state.job), JOB);
        state.generation = 1;
        deal(&state, i, SHARES, false, &share);
        state.share = &share;
        assert_int_equal(ckpt_shard_write(io, w->checkpoint, &state, i, SHARES, NULL, &reports[i]),
                         ST_OK);
    }
    assert_int_equal(ckpt_manifest_make(reports, SHARES, JOB, "now", &bytes, &digest), ST_OK);
    assert_int_equal(ckpt_manifest_publish(io, w->checkpoint, bytes.data, bytes.size), ST_OK);
    assert_int_equal(state_digest(w->whole.worker, STEP, &whole), ST_OK);
    assert_memory_equal(digest.byte, whole.byte, sizeof(digest.byte));
    for (uint32_t i = 0; i < SHARES; i++)
        ckpt_report_release(&reports[i]);
}

/* Rank r holds all parameters and of momentum every second chunk. */
static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    CHECK(w != NULL);
    (void)snprintf(w->dir, sizeof(w->dir), "/tmp/cairn-held-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    open_one(&w->whole, 0);
    float *momentum = values_of(&w->whole, MOMENTUM);
    for (uint64_t i = 0; i < w->whole.view.state.buffers[MOMENTUM].count; i++)
        momentum[i] = (float)i + 0.5f;
    for (uint32_t r = 0; r < RANKS; r++) {
        struct one *one = &w->part[r];
        open_one(one, r);
        deal(&one->view.state, r, RANKS, true, &one->held);
        one->worker->held = &one->held;
        w->nodes[r] = r == 0 ? "a" : "b";
    }
    w->assignment = (struct session_assignment){
        .job = JOB,
        .generation = 2,
        .size = RANKS,
        .nodes = w->nodes,
        .holders = w->holders,
        .memory = { .generation = 1, .size = SHARES, .step = STEP },
    };
    local_hub_init(&w->hub, RANKS);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    char command[128];
    local_hub_release(&w->hub);
    worker_close(w->whole.worker);
    for (uint32_t r = 0; r < RANKS; r++)
        worker_close(w->part[r].worker);
    (void)snprintf(command, sizeof(command), "rm -r %s", w->dir);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): our own folder */
    free(w);
    return 0;
}

static void forget(struct one *one)
{
    for (uint32_t b = 0; b < BUFFERS; b++)
        memset(values_of(one, b), NOBODY, (size_t)one->view.state.buffers[b].count * sizeof(float));
}

static bool is_held(const struct one *one, uint32_t buffer, uint64_t element)
{
    uint64_t first = 0, count = 0;
    return ckpt_share_part(&one->held, buffer, element, 1, &first, &count);
}

/* What it holds is the state's, or zero; all else is as before. */
static void assert_restored(const struct world *w, const struct one *one, bool zero)
{
    uint8_t nobody[sizeof(float)];
    memset(nobody, NOBODY, sizeof(nobody));
    for (uint32_t b = 0; b < BUFFERS; b++) {
        const float *is = values_of(one, b), *was = values_of(&w->whole, b);
        for (uint64_t i = 0; i < one->view.state.buffers[b].count; i++) {
            const float nothing = 0;
            const void *want = is_held(one, b, i) ? (const void *)(zero ? &nothing : &was[i])
                                                  : (const void *)nobody;
            if (memcmp(&is[i], want, sizeof(float)) != 0)
                fail_msg("rank %u, buffer %u, element %llu", one->rank, b, (unsigned long long)i);
        }
    }
}

/* On one node: nothing is sent. */
static enum status restore_here(struct world *w, struct one *one)
{
    struct session_assignment alone = w->assignment;
    char *nodes[] = { "a", "a" };
    alone.nodes = nodes;
    alone.rank = one->rank;
    const struct copy_source from = { .dir = w->dir, .assignment = &alone };
    assert_false(copy_restore_travels(&alone));
    forget(one);
    return copy_restore(one->worker, &from, &one->reason);
}

static void copies_on_the_node_fill_what_is_held(void **state)
{
    struct world *w = *state;
    for (int even = 0; even < 2; even++) {
        write_copies(w, even == 1);
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(restore_here(w, &w->part[r]), ST_OK);
            assert_restored(w, &w->part[r], false);
        }
    }
}

struct travel {
    struct world *w;
    struct one *one;
    pthread_t thread;
};

static void *restore_there(void *arg)
{
    const struct travel *t = arg;
    struct session_assignment mine = t->w->assignment;
    struct comm *comm = local_comm_new(&t->w->hub, (int)t->one->rank);
    mine.rank = t->one->rank;
    const struct copy_source from = {
        .dir = t->w->dir, .assignment = &mine, .table = local_comm_table(), .comm = comm
    };
    t->one->st = copy_restore(t->one->worker, &from, &t->one->reason);
    local_comm_free(comm);
    return NULL;
}

/* Each rank sends what it has on its node, and gets what it wants of the others'. */
static void restore_all(struct world *w)
{
    struct travel travels[RANKS];
    assert_true(copy_restore_travels(&w->assignment));
    for (uint32_t r = 0; r < RANKS; r++) {
        travels[r] = (struct travel){ .w = w, .one = &w->part[r] };
        forget(travels[r].one);
        assert_int_equal(pthread_create(&travels[r].thread, NULL, restore_there, &travels[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(travels[r].thread, NULL), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (w->part[r].st != ST_OK)
            fail_msg("%s", w->part[r].reason.text);
        assert_restored(w, &w->part[r], false);
    }
}

static void copies_of_other_nodes_fill_what_is_held(void **state)
{
    struct world *w = *state;
    w->holders[1] = 1;
    for (int even = 0; even < 2; even++) {
        write_copies(w, even == 1);
        restore_all(w);
    }
}

static void shares_that_are_not_the_state_are_refused(void **state)
{
    struct world *w = *state;
    struct ckpt_share share;
    write_copies(w, false);
    deal(&w->whole.view.state, 2, SHARES, false, &share);
    share.count--; /* of momentum */
    write_copy(w, 2, &share);
    assert_int_equal(restore_here(w, &w->part[0]), ST_CORRUPT);
    assert_non_null(strstr(w->part[0].reason.text, "are not the whole state"));
    deal(&w->whole.view.state, 2, SHARES, false, &share);
    assert_int_equal(ckpt_share_add(&w->whole.view.state, MOMENTUM, 0, FLOATS, &share), ST_OK);
    write_copy(w, 2, &share);
    assert_int_equal(restore_here(w, &w->part[0]), ST_CORRUPT);
    assert_non_null(strstr(w->part[0].reason.text, "share 2 of 3: has what another one has"));
}

/* Chunk 0 of momentum is rank 0's, and in share 0. */
static void damage_is_found_by_who_holds_it(void **state)
{
    struct world *w = *state;
    char path[LIMIT_PATH];
    struct copy_view view;
    write_copies(w, false);
    copy_path(w, 0, path);
    assert_int_equal(copy_view_map(path, &view), ST_OK);
    long at = -1;
    for (uint32_t i = 0; i < view.head->extent_count; i++) {
        const struct copy_extent *extent = &copy_view_extents(&view)[i];
        if (extent->buffer == MOMENTUM && extent->first == 0)
            at = (long)(extent->data + FLOATS * sizeof(float) - 1);
    }
    copy_view_unmap(&view);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 4, file), EOF);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(restore_here(w, &w->part[0]), ST_CORRUPT);
    assert_int_equal(restore_here(w, &w->part[1]), ST_OK);
    assert_restored(w, &w->part[1], false);
}

static void a_checkpoint_fills_what_is_held(void **state)
{
    struct world *w = *state;
    struct ckpt_hash digest;
    write_checkpoint(w);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct one *one = &w->part[r];
        forget(one);
        const struct state_source from = { .dir = w->checkpoint, .step = STEP };
        if (state_restore(one->worker, &from, NULL, &one->reason) != ST_OK)
            fail_msg("%s", one->reason.text);
        assert_restored(w, one, false);
        assert_int_equal(state_digest(one->worker, STEP, &digest), ST_INVALID);
    }
}

static void only_what_is_held_is_cleared(void **state)
{
    struct world *w = *state;
    forget(&w->part[1]);
    assert_int_equal(state_clear(w->part[1].worker), ST_OK);
    assert_restored(w, &w->part[1], true);
}

static void a_share_that_is_given_is_what_a_rank_saves(void **state)
{
    struct world *w = *state;
    struct one *one = &w->part[1];
    struct state_view view;
    struct ckpt_share share;
    one->worker->held = NULL;
    size_t all = 0, part = 0;
    assert_int_equal(state_share_bytes(one->worker, &all, &one->reason), ST_OK);
    assert_int_equal(all, state_bytes(one->worker)); /* of one rank */
    one->worker->held = &one->held;
    deal(&one->view.state, 1, RANKS, false, &share);
    one->worker->share = &share;
    assert_int_equal(state_share_bytes(one->worker, &part, &one->reason), ST_OK);
    assert_int_equal(part, ckpt_share_bytes(&one->view.state, &share));
    assert_in_range(part, all / 3, all * 2 / 3);
    state_describe(one->worker, STEP, NULL, &view);
    assert_ptr_equal(view.state.share, &share);
    assert_ptr_equal(view.state.held, &one->held);
}

static void a_share_that_cannot_be_saved_is_an_error_with_a_reason(void **state)
{
    struct world *w = *state;
    struct one *one = &w->part[1];
    struct ckpt_share share = { .count = CKPT_EXTENTS_MAX + 1 };
    size_t bytes = 0;
    one->worker->share = &share;
    assert_int_equal(state_share_bytes(one->worker, &bytes, &one->reason), ST_INVALID);
    assert_non_null(strstr(one->reason.text, "can't be saved"));
}

#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(copies_on_the_node_fill_what_is_held),
        IN_WORLD(copies_of_other_nodes_fill_what_is_held),
        IN_WORLD(shares_that_are_not_the_state_are_refused),
        IN_WORLD(damage_is_found_by_who_holds_it),
        IN_WORLD(a_checkpoint_fills_what_is_held),
        IN_WORLD(only_what_is_held_is_cleared),
        IN_WORLD(a_share_that_is_given_is_what_a_rank_saves),
        IN_WORLD(a_share_that_cannot_be_saved_is_an_error_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
