/*
 * Workers of one job on changing sizes, as threads of one process: two, one, three, two. Who goes
 * on keeps its worker; others get the state from it; the bits are those of one worker alone.
 *
 *     generation   0       1     2            3
 *     workers      0 1     1     2 3 1        3 2      (in the order of their ranks)
 *
 * Worker 2 is a spare while 1 is alone: it is open, and has rehearsed a step, before it has a seat.
 *
 * With MODULE the same on a device: a real one, or the CUDA backend over the fakes of its libraries
 * (tests/gpu/fake), where what is enqueued runs when somebody waits for it. Between ranks Gloo
 * carries what its memory holds.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/limits.h"
#include "kernels/module.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "tests/unit/trainer/counted_allocations.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/staged_gloo.h"
#include "tests/unit/trainer/tiny_jobs.h"
#include "trainer/loop/step.h"
#include "trainer/state/live_sync.h"
#include "trainer/state/state.h"

#define GENERATIONS 4
#define WORKERS     4
#define STEPS       3 /* of a generation */
#define MOST        3 /* ranks */

static const uint32_t seats[GENERATIONS][MOST] = { { 0, 1 }, { 1 }, { 2, 3, 1 }, { 3, 2 } };
static const uint32_t sizes[GENERATIONS] = { 2, 1, 3, 2 };

struct story {
    struct ranks_job job;
    uint32_t shares[GENERATIONS][MOST];
};

struct one {
    struct jobspec job;
    struct progress progress;
    struct worker *worker;
    uint32_t generation, rank;
    const struct story *story;
    struct shared_rendezvous *shared;
    pthread_t thread;
    struct reason reason;
    struct ckpt_hash digest;
    float loss[GENERATIONS * STEPS + 1]; /* by step */
    bool has_state;
};

/* Both NULL: those of the job's device. */
static const struct backend_table *table;
static const struct comm_table *comm_table;

/* On the CPU steps allocate nothing. */
#if defined(MODULE)
static void count(bool on)
{
    (void)on;
}

static uint64_t counted(void)
{
    return 0;
}
#else
static void count(bool on)
{
    count_allocations(on);
}

static uint64_t counted(void)
{
    return (uint64_t)counted_allocations();
}
#endif

/* Counts the ranks of the running generation that are past its first step. */
static atomic_uint counting;

static void must(const struct one *one, enum status st)
{
    if (st != ST_OK)
        (void)fprintf(stderr, "generation %u, rank %u: %s: %s\n", one->generation, one->rank,
                      status_string(st), one->reason.text);
    CHECK(st == ST_OK);
}

static void after_row(void *arg, const struct session_row *row)
{
    struct one *one = arg;
    const uint64_t first = (uint64_t)one->generation * STEPS;
    one->loss[row->step] = row->loss;
    if (row->step == first + 1 && atomic_fetch_add(&counting, 1) + 1 == sizes[one->generation])
        count(true);
    if (row->step == first + STEPS)
        count(false);
}

static void open_worker(struct one *one, uint32_t generation, uint32_t rank)
{
    const struct worker_options options = { .job = &one->job,
                                            .io = io_system(),
                                            .progress = &one->progress,
                                            .table = table,
                                            .comm = comm_table,
                                            .rank = rank,
                                            .size = sizes[generation],
                                            .shares = one->story->shares[generation] };
    progress_init(&one->progress, NULL, NULL, rank, 1 + generation);
    must(one, worker_open(&options, &one->worker, &one->reason));
}

/* NULL where there is one rank. */
static struct comm *join(const struct one *one, const struct comm_table *with,
                         const char *round_name)
{
    const struct rendezvous rendezvous = shared_rendezvous_of(one->shared, (int)one->rank);
    const struct device *d = &one->worker->device;
    const struct comm_options options = {
        .rendezvous = &rendezvous,
        .round_name = round_name,
        .rank = (int)one->rank,
        .size = (int)sizes[one->generation],
        .host = "127.0.0.1",
        .secret = "of a test",
        .timeout_ms = 60000,
        .device = { .table = d->table,
                    .backend = d->backend,
                    .stream = d->communication,
                    .compute = d->compute },
    };
    struct comm *comm = NULL;
    if (options.size > 1)
        must(one, with->open(&options, &comm));
    return comm;
}

static void connect_worker(struct one *one)
{
    struct comm *comm = join(one, one->worker->device.comm, "workers");
    const struct worker_comms comms = { .world = comm, .group = comm };
    must(one, worker_connect(one->worker, &comms, &one->reason));
}

/* From the ranks that were in the generation before, or from the seed. */
static void get_state(struct one *one)
{
    uint32_t sources[MOST];
    struct session_assignment assignment = { .generation = 1 + one->generation,
                                             .size = sizes[one->generation],
                                             .rank = one->rank,
                                             .live_step = (uint64_t)one->generation * STEPS,
                                             .live_sources = sources };
    const struct session_parked kept = { .step = assignment.live_step,
                                         .complete = one->has_state,
                                         .computed_by = one->generation };
    const uint32_t before = one->generation - 1;
    for (uint32_t r = 0; one->generation > 0 && r < assignment.size; r++) {
        bool source = false;
        for (uint32_t b = 0; b < sizes[before]; b++)
            source = source || seats[before][b] == seats[one->generation][r];
        if (source)
            sources[assignment.live_source_count++] = r;
    }
    struct comm *live = one->generation > 0 ? join(one, comm_gloo(), "live") : NULL;
    const struct live_sync_options options = {
        .assignment = &assignment, .table = comm_gloo(), .comm = live, .kept = &kept
    };
    uint32_t blamed = 0;
    if (one->generation == 0)
        must(one, state_seed(one->worker, &one->reason));
    else if (assignment.size > 1)
        must(one, live_sync(one->worker, &options, &blamed, &one->reason));
    one->has_state = true;
    comm_gloo()->close(live);
}

static void *run_generation(void *arg)
{
    struct one *one = arg;
    const uint32_t *shares = one->story->shares[one->generation];
    const uint64_t step = (uint64_t)one->generation * STEPS;
    struct loop_options loop = {
        .step = step, .stop_at = step + STEPS, .row = after_row, .row_arg = one
    };
    enum loop_end end = LOOP_LEFT;
    if (one->worker == NULL) {
        open_worker(one, one->generation, one->rank);
    } else {
        progress_init(&one->progress, NULL, NULL, one->rank, 1 + one->generation);
        worker_disconnect(one->worker);
        must(one,
             worker_regroup(one->worker, one->rank, sizes[one->generation], shares, &one->reason));
    }
    loop.worker = one->worker;
    connect_worker(one);
    get_state(one);
    must(one, worker_start(one->worker, step, &one->reason));
    must(one, loop_run(&loop, &end, &one->reason));
    must(one, state_digest(one->worker, step + STEPS, &one->digest));
    return NULL;
}

/* The spare rehearses with other shares than those that it will get. */
static void *be_a_spare(void *arg)
{
    struct one *one = arg;
    open_worker(one, 2, 1);
    must(one, worker_warm(one->worker, &one->reason));
    must(one, worker_connect(one->worker, NULL, &one->reason));
    must(one, step_rehearse(one->worker));
    worker_disconnect(one->worker);
    return NULL;
}

static void parse(const struct ranks_job *from, struct jobspec *out)
{
    auto_buf struct buf errors;
    size_t count = 0;
    buf_init(&errors, 65536);
    while (from->sets[count] != NULL)
        count++;
    CHECK(jobspec_parse(from->yaml, strlen(from->yaml), "test.yaml", "/", from->sets, count, out,
                        &errors) == ST_OK);
}

static void live_through(uint32_t generation, struct one *ones)
{
    struct shared_rendezvous *shared = shared_rendezvous_new();
    const bool with_spare = generation == 1;
    atomic_store(&counting, 0);
    for (uint32_t r = 0; r < sizes[generation]; r++) {
        struct one *one = &ones[seats[generation][r]];
        one->generation = generation;
        one->rank = r;
        one->shared = shared;
        CHECK(pthread_create(&one->thread, NULL, run_generation, one) == 0);
    }
    for (uint32_t r = 0; r < sizes[generation]; r++)
        CHECK(pthread_join(ones[seats[generation][r]].thread, NULL) == 0);
    if (with_spare) { /* not beside it: what it allocates would count */
        CHECK(pthread_create(&ones[2].thread, NULL, be_a_spare, &ones[2]) == 0);
        CHECK(pthread_join(ones[2].thread, NULL) == 0);
    }
    assert_int_equal(atomic_load(&counting), sizes[generation]); /* it did count */
    assert_int_equal(counted(), 0);
    shared_rendezvous_free(shared);
}

static void end_as_one(const struct story *story)
{
    const struct ranks_options alone = { .job = &story->job,
                                         .size = 1,
                                         .table = table,
                                         .comm = comm_table,
                                         .shares = { story->shares[1][0] } };
    struct ranks_result *wanted = ranks_new_well(&alone);
    struct one *ones = calloc(WORKERS, sizeof(*ones));
    assert_non_null(ones);
    for (int i = 0; i < WORKERS; i++) {
        ones[i].story = story;
        parse(&story->job, &ones[i].job);
    }
    for (uint32_t g = 0; g < GENERATIONS; g++) {
        live_through(g, ones);
        for (uint32_t r = 0; r < sizes[g]; r++) {
            for (uint64_t step = g * STEPS + 1; step <= (g + 1) * STEPS; step++)
                assert_memory_equal(&ones[seats[g][r]].loss[step], &wanted->rows[step - 1].loss,
                                    sizeof(float));
        }
    }
    for (uint32_t r = 0; r < sizes[GENERATIONS - 1]; r++) {
        char digest[33];
        ckpt_hash_text(&ones[seats[GENERATIONS - 1][r]].digest, digest);
        assert_string_equal(digest, wanted->digest);
    }
    for (int i = 0; i < WORKERS; i++)
        worker_close(ones[i].worker);
    free(ones);
    free(wanted);
}

#define LENGTH "train.duration=12 steps"

#if !defined(MODULE)

/* Both say that they have the state, but each left out a step of its own. */
static void *disagree(void *arg)
{
    struct one *one = arg;
    static uint32_t sources[] = { 0, 1 };
    const uint64_t skipped = one->rank;
    const struct session_assignment assignment = { .generation = 1,
                                                   .size = 2,
                                                   .rank = one->rank,
                                                   .live_step = STEPS,
                                                   .live_sources = sources,
                                                   .live_source_count = 2 };
    const struct session_parked kept = { .step = STEPS, .complete = true };
    uint32_t blamed = 0;
    open_worker(one, 0, one->rank);
    struct comm *live = join(one, comm_gloo(), "live");
    const struct live_sync_options options = {
        .assignment = &assignment, .table = comm_gloo(), .comm = live, .kept = &kept
    };
    must(one, state_seed(one->worker, &one->reason));
    must(one, worker_skip_add(one->worker, &skipped, 1));
    const enum status st = live_sync(one->worker, &options, &blamed, &one->reason);
    one->has_state = st == ST_OK;
    comm_gloo()->close(live);
    worker_close(one->worker);
    return NULL;
}

static void sources_that_left_out_other_steps_are_told_apart(void **state)
{
    (void)state;
    const struct story story = { .job = { tiny_mlp, { LENGTH } }, .shares = { { 4, 4 } } };
    struct one *ones = calloc(2, sizeof(*ones));
    assert_non_null(ones);
    struct shared_rendezvous *shared = shared_rendezvous_new();
    for (uint32_t r = 0; r < 2; r++) {
        ones[r].story = &story;
        ones[r].rank = r;
        ones[r].shared = shared;
        parse(&story.job, &ones[r].job);
        assert_int_equal(pthread_create(&ones[r].thread, NULL, disagree, &ones[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(pthread_join(ones[r].thread, NULL), 0);
        assert_false(ones[r].has_state);
        assert_non_null(strstr(ones[r].reason.text, "rank 1 has another loss scale or other"));
    }
    shared_rendezvous_free(shared);
    free(ones);
}

#endif

#if defined(MODULE)

#define SKIPPED 77

/* Emulated kernels are slow. */
#define LITTLE                                                                                     \
    "workers.device=cuda", "data.train.samples=60", "data.eval.samples=5", "model.layers=1",       \
        "model.heads=2", "model.width=32", "model.context=8", "model.vocab=33",                    \
        "train.global_batch=6", "train.lanes=3", "train.accumulate=2"

static void end_as_one_on_a_device(const char *precision, const char *more)
{
    const struct story story = { .job = { tiny_gpt2, { LENGTH, LITTLE, precision, more } },
                                 .shares = { { 2, 1 }, { 3 }, { 1, 1, 1 }, { 1, 2 } } };
    end_as_one(&story);
}

/* Kernels' copies of parameters come from updates, and of a newcomer from a refresh. */
static void a_gpt2_in_half_precision_on_changing_sizes_ends_as_on_one(void **state)
{
    (void)state;
    end_as_one_on_a_device("train.precision=bf16", "eval.every=2 steps");
    end_as_one_on_a_device("train.precision=fp16", "eval.every=5 steps");
}

static void lanes_that_are_audited_are_those_of_one(void **state)
{
    (void)state;
    end_as_one_on_a_device("train.precision=fp32", "audit.every=1 steps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt2_in_half_precision_on_changing_sizes_ends_as_on_one),
        cmocka_unit_test(lanes_that_are_audited_are_those_of_one),
    };
    const struct module *module = NULL;
    struct reason reason = { .text = "" };
    if (setenv("CAIRN_CUDA_MODULE", MODULE, 0) != 0)
        return 1;
    if (module_load("cuda", 0, &module, &reason) != ST_OK) {
        (void)printf("no device: %s\n", reason.text);
        return SKIPPED;
    }
    table = module->backend;
    comm_table = staged_gloo();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void an_mlp_on_changing_sizes_ends_as_on_one(void **state)
{
    (void)state;
    static const struct story story = { .job = { tiny_mlp, { LENGTH, "eval.every=2 steps" } },
                                        .shares = { { 5, 3 }, { 8 }, { 1, 2, 5 }, { 7, 1 } } };
    end_as_one(&story);
}

static void a_lenet_on_changing_sizes_ends_as_on_one(void **state)
{
    (void)state;
    static const struct story story = {
        .job = { tiny_lenet, { LENGTH, "train.clip_norm=1", "eval.every=2 steps" } },
        .shares = { { 3, 1 }, { 4 }, { 1, 1, 2 }, { 1, 3 } }
    };
    end_as_one(&story);
}

static void a_gpt2_on_changing_sizes_ends_as_on_one(void **state)
{
    (void)state;
    static const struct story story = {
        .job = { tiny_gpt2, { LENGTH, "train.lanes=6", "train.accumulate=2" } },
        .shares = { { 1, 5 }, { 6 }, { 4, 1, 1 }, { 3, 3 } }
    };
    end_as_one(&story);
}

static void statistics_of_batch_norm_on_changing_sizes_are_those_of_one(void **state)
{
    (void)state;
    static const struct story story = { .job = { tiny_resnet, { LENGTH, "eval.every=5 steps" } },
                                        .shares = { { 2, 1 }, { 3 }, { 1, 1, 1 }, { 1, 2 } } };
    end_as_one(&story);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_that_left_out_other_steps_are_told_apart),
        cmocka_unit_test(an_mlp_on_changing_sizes_ends_as_on_one),
        cmocka_unit_test(a_lenet_on_changing_sizes_ends_as_on_one),
        cmocka_unit_test(a_gpt2_on_changing_sizes_ends_as_on_one),
        cmocka_unit_test(statistics_of_batch_norm_on_changing_sizes_are_those_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
