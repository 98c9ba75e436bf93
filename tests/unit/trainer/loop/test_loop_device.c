/*
 * Whole small jobs on a device that isn't the host's: threads for streams, memory that the host
 * can't touch, NCCL's host side between ranks (tests/gpu). It computes with the CPU's kernels, so
 * the digests are the CPU's.
 */
#include <math.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/nccl.h"
#include "common/check.h"
#include "tests/gpu/async_device.h"
#include "tests/gpu/fake_nccl.h"
#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"
#include "trainer/device/staging.h"

static const struct ranks_job mlp = { tiny_mlp,
                                      { "train.lanes=4", "train.accumulate=2",
                                        "train.duration=7 steps", "eval.every=3 steps" } };
static const struct ranks_job lenet = { tiny_lenet, { NULL } };
static const struct ranks_job resnet = {
    tiny_resnet,
    { "train.duration=2 steps", "train.optimizer={name: sgd, lr: 0.01, momentum: 0.9}" }
};
static const struct ranks_job gpt2 = { tiny_gpt2,
                                       { "model.heads=2", "model.width=32", "model.context=16",
                                         "train.global_batch=8", "train.lanes=4",
                                         "eval.every=4 steps" } };

static struct ranks_result *run_well(const struct ranks_options *options)
{
    struct ranks_result *result = ranks_new_well(options);
    assert_int_equal(fake_nccl_counts().live, 0);
    return result;
}

static struct ranks_options on_device(const struct ranks_job *job, const char *const *sets,
                                      uint32_t size, const uint32_t *shares)
{
    struct ranks_options options = {
        .job = job, .sets = sets, .size = size, .table = async_device(), .comm = comm_nccl()
    };
    memcpy(options.shares, shares, size * sizeof(*shares));
    return options;
}

/* Same end as on the CPU, with one rank and with two; same rows, evaluations among them. */
static void check_job(const struct ranks_job *job, const char *const *sets, uint32_t lanes)
{
    const uint32_t one[] = { lanes }, two[] = { lanes - 1, 1 };
    struct ranks_options options = { .job = job, .sets = sets, .size = 1, .shares = { lanes } };
    struct ranks_result *cpu = run_well(&options);
    for (uint32_t size = 1; size <= 2; size++) {
        options = on_device(job, sets, size, size == 1 ? one : two);
        struct ranks_result *device = run_well(&options);
        assert_string_equal(device->digest, cpu->digest);
        assert_int_equal(device->row_count, cpu->row_count);
        assert_true(cpu->lanes_us > 0 && device->lanes_us > 0);
        for (size_t i = 0; i < cpu->row_count; i++) {
            const struct session_row *a = &cpu->rows[i], *b = &device->rows[i];
            assert_memory_equal(&a->loss, &b->loss, sizeof(a->loss));
            assert_memory_equal(&a->grad_norm, &b->grad_norm, sizeof(a->grad_norm));
            assert_memory_equal(&a->eval_loss, &b->eval_loss, sizeof(a->eval_loss));
            assert_int_equal(a->eval_correct, b->eval_correct);
        }
        free(device);
    }
    free(cpu);
}

static void an_mlp_ends_as_on_the_cpu(void **state)
{
    (void)state;
    check_job(&mlp, NULL, 4);
}

static void a_lenet_ends_as_on_the_cpu(void **state)
{
    (void)state;
    check_job(&lenet, NULL, 4);
}

static void a_resnet_with_its_statistics_ends_as_on_the_cpu(void **state)
{
    (void)state;
    check_job(&resnet, NULL, 3);
}

static void a_gpt2_with_dropout_ends_as_on_the_cpu(void **state)
{
    (void)state;
    check_job(&gpt2, NULL, 4);
}

static void half_precision_with_a_loss_scale_ends_as_on_the_cpu(void **state)
{
    (void)state;
    const char *const sets[] = { "train.precision=bf16", "train.loss_scale=128", NULL };
    check_job(&gpt2, sets, 4);
}

static void collectives_that_stay_in_progress_change_nothing(void **state)
{
    (void)state;
    fake_nccl_progress(20);
    check_job(&mlp, NULL, 4);
    fake_nccl_progress(0);
}

static void a_checkpoint_goes_from_device_to_cpu_and_back(void **state)
{
    static const uint32_t one[] = { 4 }, two[] = { 1, 3 };
    struct ranks_options quiet = { .job = &gpt2, .size = 1, .shares = { 4 } };
    struct ranks_result *want = run_well(&quiet);
    for (int i = 0; i < 3; i++) {
        char dir[256];
        (void)snprintf(dir, sizeof(dir), "%s/step-%d", (char *)*state, i);
        struct ranks_options before = on_device(&gpt2, NULL, 2, two), after;
        struct ranks_options cpu = { .job = &gpt2, .size = 2, .shares = { 1, 3 } };
        if (i == 2)
            before = cpu;
        before.stop_at = 2;
        before.save = dir;
        free(run_well(&before));
        after = i == 1 ? quiet : on_device(&gpt2, NULL, 1, one);
        after.restore = dir;
        after.restore_step = 2;
        struct ranks_result *end = run_well(&after);
        assert_string_equal(end->digest, want->digest);
        free(end);
    }
    free(want);
}

static void skipped_steps_drop_what_was_already_on_its_way(void **state)
{
    (void)state;
    static const uint64_t skip[] = { 2, 5 };
    static const uint32_t shares[] = { 2, 2 };
    struct ranks_options options = { .job = &mlp, .size = 1, .shares = { 4 } };
    options.skip = skip;
    options.skip_count = 2;
    struct ranks_result *cpu = run_well(&options);
    options = on_device(&mlp, NULL, 2, shares);
    options.skip = skip;
    options.skip_count = 2;
    struct ranks_result *device = run_well(&options);
    assert_string_equal(device->digest, cpu->digest);
    assert_true(isnan(device->rows[2].loss));
    free(cpu);
    free(device);
}

static void a_fast_reduction_comes_close(void **state)
{
    (void)state;
    const char *const sets[] = { "workers.device=cuda", "parallel.reduction=fast", NULL };
    static const uint32_t shares[] = { 3, 1 };
    struct ranks_options options = { .job = &mlp, .size = 1, .shares = { 4 } };
    struct ranks_result *reducer = run_well(&options);
    options = on_device(&mlp, sets, 2, shares);
    struct ranks_result *fast = run_well(&options);
    assert_int_equal(fast->row_count, reducer->row_count);
    for (size_t i = 0; i < reducer->row_count; i++)
        assert_float_equal(fast->rows[i].loss, reducer->rows[i].loss, 1e-4);
    free(reducer);
    free(fast);
}

/* A share that is copied while the compute stream still writes it. */
/* ---- a device that stands still ---- */

static struct {
    struct backend_table table;
    sem_t go;
    bool blocks, blocked; /* rank 1's thread alone looks at these, but for go */
    uint64_t collective;
    int polls;
    atomic_bool gave_up;
} still;

static enum status stand_still(struct stream *stream, void *arg)
{
    struct timespec until;
    (void)stream;
    (void)arg;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 20;
    atomic_store(&still.gave_up, sem_timedwait(&still.go, &until) != 0);
    return ST_OK;
}

/* In the forward pass. */
static enum status still_fill(struct backend *b, float *out, float value, size_t n,
                              struct stream *s)
{
    if (ranks_progress() != NULL && ranks_progress()->rank == 1 && still.blocks) {
        still.blocks = false;
        still.blocked = true;
        still.collective = ranks_progress()->collective;
        async_device_enqueue(s, stand_still, NULL, 0);
    }
    return async_device()->vector.fill(b, out, value, n, s);
}

static enum status still_query(struct backend *b, struct event *e)
{
    const struct progress *progress = ranks_progress();
    const enum status st = async_device()->event_query(b, e);
    if (st != ST_AGAIN || progress == NULL || progress->rank != 1 || !still.blocked ||
        progress->phase != PHASE_BACKWARD)
        return st;
    CHECK(progress->collective == still.collective);
    if (++still.polls < 20)
        return st;
    still.blocked = false;
    CHECK(sem_post(&still.go) == 0);
    return st;
}

static void block_in_the_next_step(void *arg, uint32_t rank, const struct session_row *row)
{
    (void)arg;
    if (rank == 1 && row->step == 2)
        still.blocks = true;
}

/* So who is to blame for a device that hangs is told by where the ranks are. */
static void a_rank_whose_device_stands_still_has_not_come_to_the_reduction(void **state)
{
    (void)state;
    static const uint32_t two[] = { 1, 1 };
    /* A micro-batch of each rank: its host doesn't wait for data in the middle of a step. */
    const char *const sets[] = { "train.lanes=2", "train.accumulate=1", NULL };
    struct ranks_options options = on_device(&mlp, sets, 2, two);
    still.table = *async_device();
    still.table.vector.fill = still_fill;
    still.table.event_query = still_query;
    assert_int_equal(sem_init(&still.go, 0, 0), 0);
    options.table = &still.table;
    options.row = block_in_the_next_step;
    free(run_well(&options));
    assert_false(atomic_load(&still.gave_up));
    assert_int_equal(still.polls, 20);
    assert_int_equal(sem_destroy(&still.go), 0);
}

static void a_snapshot_waits_for_what_was_enqueued_before(void **state)
{
    (void)state;
    enum { COUNT = 12 * 65536, FILLS = 50 };
    struct jobspec *job = calloc(1, sizeof(*job));
    assert_non_null(job);
    job->workers.threads = 1;
    const struct device_options options = { .job = job, .table = async_device() };
    struct device device;
    struct reason reason;
    assert_int_equal(device_open(&options, &device, &reason), ST_OK);
    void *data = NULL;
    assert_int_equal(device.table->alloc(device.backend, COUNT * sizeof(float), &data), ST_OK);
    struct ckpt_buffer buffer = { .name = "parameters", .dtype = CKPT_F32, .count = COUNT };
    buffer.data = data;
    const struct ckpt_state described = { .buffers = &buffer, .buffer_count = 1 };
    struct staging *staging = NULL;
    assert_int_equal(staging_open(&device, &described, 1, 2, &staging), ST_OK);
    for (int round = 1; round <= 3; round++) {
        for (int i = 1; i <= FILLS; i++) {
            const float value = (float)(i == FILLS ? round : -1);
            assert_int_equal(
                device.table->vector.fill(device.backend, data, value, COUNT, device.compute),
                ST_OK);
        }
        assert_int_equal(staging_begin(staging), ST_OK);
        assert_int_equal(staging_wait(staging), ST_OK);
        const struct ckpt_buffer *copy = staging_buffers(staging);
        const struct ckpt_share *share = staging_share(staging);
        assert_int_equal(share->count, 1);
        assert_true(share->extent[0].first > 0 && copy->packed);
        for (uint64_t i = 0; i < share->extent[0].count; i++)
            assert_true(((const float *)copy->data)[i] == (float)round);
    }
    staging_close(staging);
    device.table->free(device.backend, data);
    device_close(&device);
    free(job);
}

/* Only the runs of a share are copied, and they lie one after the other. */
static void a_snapshot_of_many_runs_is_packed(void **state)
{
    (void)state;
    enum { CHUNK = 4 * 65536, COUNT = 5 * CHUNK + 7 };
    static const uint64_t runs[][2] = { { CHUNK, CHUNK }, { 3 * CHUNK, 2 * CHUNK + 7 } };
    static float values[COUNT];
    struct jobspec *job = calloc(1, sizeof(*job));
    assert_non_null(job);
    job->workers.threads = 1;
    const struct device_options options = { .job = job, .table = async_device() };
    struct device device;
    struct reason reason;
    assert_int_equal(device_open(&options, &device, &reason), ST_OK);
    void *data = NULL;
    assert_int_equal(device.table->alloc(device.backend, sizeof(values), &data), ST_OK);
    for (size_t i = 0; i < COUNT; i++)
        values[i] = (float)i;
    struct ckpt_buffer buffer = { .name = "momentum", .dtype = CKPT_F32, .count = COUNT };
    struct ckpt_share share = { .count = 0 };
    buffer.data = data;
    struct ckpt_state described = { .buffers = &buffer, .buffer_count = 1 };
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(ckpt_share_add(&described, 0, runs[i][0], runs[i][1], &share), ST_OK);
    described.share = &share;
    struct staging *staging = NULL;
    assert_int_equal(
        device.table->vector.copy(device.backend, data, values, sizeof(values), device.compute),
        ST_OK);
    assert_int_equal(staging_open(&device, &described, 1, 2, &staging), ST_OK);
    assert_int_equal(staging_begin(staging), ST_OK);
    assert_int_equal(staging_wait(staging), ST_OK);
    const float *copy = staging_buffers(staging)->data;
    assert_memory_equal(copy, values + CHUNK, CHUNK * sizeof(float));
    assert_memory_equal(copy + CHUNK, values + 3 * CHUNK, (2 * CHUNK + 7) * sizeof(float));
    staging_close(staging);
    device.table->free(device.backend, data);
    device_close(&device);
    free(job);
}

static void memory_that_runs_out_is_told_by_what_it_is_for(void **state)
{
    (void)state;
    static const uint32_t shares[] = { 4 };
    static const struct {
        size_t bytes;
        const char *says;
    } rows[] = { { 64 * 1024, "not enough memory for the model (activations" },
                 { 640 * 1024, "not enough memory for the gradient copies of the reduction" } };
    struct ranks_options options = on_device(&mlp, NULL, 1, shares);
    for (size_t i = 0; i < 2; i++) {
        async_device_limit(rows[i].bytes);
        struct ranks_result *result = ranks_new(&options);
        async_device_limit(0);
        assert_int_equal(result->st, ST_NO_MEMORY);
        if (strstr(result->reason.text, rows[i].says) == NULL)
            fail_msg("%s", result->reason.text);
        assert_non_null(strstr(result->reason.text, "make train.micro_batch smaller"));
        assert_non_null(strstr(result->reason.text, "workers.memory: managed"));
        free(result);
    }
}

static void count_allocations(void *arg, uint32_t rank, const struct session_row *row)
{
    uint64_t *allocations = arg;
    (void)rank;
    if (row->step == 1)
        *allocations = async_device_allocations();
}

static void steps_allocate_nothing_on_the_device(void **state)
{
    (void)state;
    static const uint32_t shares[] = { 4 };
    uint64_t after_first = 0;
    struct ranks_options options = on_device(&gpt2, NULL, 1, shares);
    options.row = count_allocations;
    options.row_arg = &after_first;
    free(run_well(&options));
    assert_true(after_first > 0);
    assert_int_equal(async_device_allocations(), after_first);
}

#define IN_FOLDER(name)                                                                            \
    cmocka_unit_test_setup_teardown(name, ranks_make_folder, ranks_remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_mlp_ends_as_on_the_cpu),
        cmocka_unit_test(a_lenet_ends_as_on_the_cpu),
        cmocka_unit_test(a_resnet_with_its_statistics_ends_as_on_the_cpu),
        cmocka_unit_test(a_gpt2_with_dropout_ends_as_on_the_cpu),
        cmocka_unit_test(half_precision_with_a_loss_scale_ends_as_on_the_cpu),
        cmocka_unit_test(collectives_that_stay_in_progress_change_nothing),
        IN_FOLDER(a_checkpoint_goes_from_device_to_cpu_and_back),
        cmocka_unit_test(skipped_steps_drop_what_was_already_on_its_way),
        cmocka_unit_test(a_fast_reduction_comes_close),
        cmocka_unit_test(a_rank_whose_device_stands_still_has_not_come_to_the_reduction),
        cmocka_unit_test(a_snapshot_waits_for_what_was_enqueued_before),
        cmocka_unit_test(a_snapshot_of_many_runs_is_packed),
        cmocka_unit_test(memory_that_runs_out_is_told_by_what_it_is_for),
        cmocka_unit_test(steps_allocate_nothing_on_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
