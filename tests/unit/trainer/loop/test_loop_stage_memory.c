/* What a stage's worker has memory for: its own part of the state and a border of a chunk on each
 * side; and that memory_need says what is allocated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/check.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"
#include "tests/unit/trainer/tiny_jobs.h"
#include "trainer/worker/memory_need.h"
#include "trainer/worker/worker.h"
#include "trainer/worker/worker_internal.h"

#define CHUNK       (OPTIMIZER_CHUNK * sizeof(float))
#define STAGES_MAX  4
#define ALLOCATIONS 4096

/* ---- a table that counts ---- */

static struct backend_table table;
static struct {
    const void *memory;
    size_t bytes;
} allocations[ALLOCATIONS];
static size_t allocation_count, allocated;

static void note(const void *memory, size_t bytes)
{
    assert_true(allocation_count < ALLOCATIONS);
    allocations[allocation_count].memory = memory;
    allocations[allocation_count++].bytes = bytes;
    allocated += bytes;
}

static enum status note_alloc(struct backend *backend, size_t bytes, void **out)
{
    enum status st = backend_cpu()->alloc(backend, bytes, out);
    if (st == ST_OK)
        note(*out, bytes);
    return st;
}

static enum status note_alloc_parts(struct backend *backend, size_t bytes,
                                    const struct memory_part *parts, size_t count, void **out)
{
    size_t there = 0;
    enum status st = backend_cpu()->alloc_parts(backend, bytes, parts, count, out);
    for (size_t i = 0; i < count; i++)
        there += parts[i].bytes;
    if (st == ST_OK)
        note(*out, there);
    return st;
}

static size_t bytes_at(const void *memory)
{
    for (size_t i = allocation_count; memory != NULL && i-- > 0;) {
        if (allocations[i].memory == memory)
            return allocations[i].bytes;
    }
    return 0;
}

/* ---- workers ---- */

static void parse(const char *yaml, const char *const *sets, struct jobspec *out)
{
    auto_buf struct buf errors;
    buf_init(&errors, 65536);
    size_t count = 0;
    while (sets[count] != NULL)
        count++;
    if (jobspec_parse(yaml, strlen(yaml), "test.yaml", "/", sets, count, out, &errors) != ST_OK)
        fail_msg("%s", errors.data);
}

static struct worker *open_worker(const struct jobspec *job, struct progress *progress,
                                  const struct stage_plan *stages, uint32_t rank)
{
    static uint32_t shares[STAGES_MAX];
    struct worker *worker = NULL;
    struct reason reason = { "" };
    for (uint32_t i = 0; i < STAGES_MAX; i++)
        shares[i] = (uint32_t)job->train.lanes;
    table = *backend_cpu();
    table.alloc = note_alloc;
    table.alloc_parts = note_alloc_parts;
    allocation_count = allocated = 0;
    progress_init(progress, NULL, NULL, rank, 1);
    const struct worker_options options = { .job = job,
                                            .io = io_system(),
                                            .progress = progress,
                                            .rank = rank,
                                            .size = stages->count,
                                            .shares = shares,
                                            .stages = stages,
                                            .table = &table,
                                            .comm = comm_gloo() };
    if (worker_open(&options, &worker, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    return worker;
}

static size_t run_bytes(const struct lane_extent *extent)
{
    return (extent->end - extent->first) * sizeof(float);
}

static size_t up_to(size_t own)
{
    return own == 0 ? 0 : own + 2 * CHUNK;
}

/* Sums over all chunks: the stage's own bytes of a kind, and the most bytes that there is memory
 * for. */
static void own_bytes(const struct stage *s, enum lane_part part, size_t *least, size_t *most)
{
    *least = *most = 0;
    for (uint32_t c = 0; c < stage_chunks(s); c++) {
        const size_t bytes = run_bytes(&s->slice[stage_part(s, c)].part[part]);
        *least += bytes;
        *most += up_to(bytes);
    }
}

static bool is_own(const struct stage *s, const struct lane_extent *extent)
{
    bool own = false;
    for (uint32_t c = 0; c < stage_chunks(s); c++)
        own = own || extent->first == s->slice[stage_part(s, c)].part[LANE_PARAMS].first;
    return own;
}

/* What there is memory for, of each buffer, and that it is what the stage holds. Returns bytes. */
static size_t check_state(const struct worker *w)
{
    const struct stage *s = w->stage;
    const struct ckpt_buffer *buffers = NULL;
    const struct ckpt_tensor *tensors = NULL;
    uint32_t count = 0, tensor_count = 0;
    size_t total = 0, ties = 0;
    for (size_t i = 0; i < s->param_extents; i++) {
        if (!is_own(s, &s->params[i]))
            ties += up_to(run_bytes(&s->params[i]));
    }
    optimizer_describe(w->optimizer, &buffers, &count, &tensors, &tensor_count);
    assert_int_equal(count, 3 + (w->tape->stat_count > 0));
    for (uint32_t i = 0; i < count; i++) {
        const enum optimizer_buffer_kind kind = optimizer_buffer_kind(w->optimizer, i);
        const bool stats = kind == OPTIMIZER_STATISTICS;
        const size_t bytes = bytes_at(buffers[i].data);
        size_t least = 0, most = 0;
        own_bytes(s, stats ? LANE_STATS : LANE_PARAMS, &least, &most);
        assert_true(bytes <= most + (kind == OPTIMIZER_PARAMETERS ? ties : 0));
        assert_true(bytes >= least);
        total += bytes;
    }
    const struct ckpt_state state = { .buffers = buffers, .buffer_count = count };
    assert_int_equal(ckpt_share_bytes(&state, &s->held), total);
    return total;
}

static void within(size_t said, size_t is, const char *what)
{
    const double off = is > 0 ? (double)said / (double)is - 1 : (double)said;
    if (off > 0.01 || off < -0.01)
        fail_msg("%s: %zu said, %zu allocated", what, said, is);
}

static void check_need(const struct worker *w, size_t state)
{
    const struct memory_need_options options = worker_memory_options(w);
    const struct stage *s = w->stage;
    struct memory_need need;
    assert_int_equal(memory_need_measure(&options, w->settings.micro_batch, &need), ST_OK);
    const void *params = optimizer_params(w->optimizer), *stats = optimizer_stats(w->optimizer);
    const size_t had = bytes_at(params) + bytes_at(stats);
    assert_int_equal(need.parameters, had);
    assert_int_equal(need.moments, state - had);
    /* The reduction's buffers don't come from the table; sums of ties that arrive do. */
    size_t extents = 0, arriving = 0;
    for (size_t i = 0; i < s->extent_count; i++)
        extents += s->extents[i].count * sizeof(float);
    for (int t = 0; t < w->tape->tie_count; t++)
        arriving += bytes_at(s->arriving[t]);
    assert_int_equal(need.gradients, 2 * extents + arriving); /* of two or three lanes */
    within(need.activations + need.caches + need.under_way, allocated - state - arriving,
           "activations, caches and micro-batches under way");
}

/* Over each number of stages. */
static void check_stages(const char *yaml, const char *const *sets)
{
    struct jobspec *job = calloc(1, sizeof(*job));
    assert_non_null(job);
    parse(yaml, sets, job);
    for (uint32_t count = 2; count <= STAGES_MAX; count++) {
        struct stage_plan stages = { .count = count };
        size_t own = 0, all = 0, most = 0, parts = 0;
        for (uint32_t i = 0; i < count; i++)
            stages.of[i].workers = 1;
        for (uint32_t rank = 0; rank < count; rank++) {
            struct progress progress = { .session = NULL };
            struct worker *w = open_worker(job, &progress, &stages, rank);
            parts = w->stage->parts;
            for (uint32_t c = 0; c < stage_chunks(w->stage); c++) {
                const struct lane_extent *params =
                    &w->stage->slice[stage_part(w->stage, c)].part[LANE_PARAMS];
                own += params->end - params->first;
            }
            all = w->tape->param_elements;
            const size_t state = check_state(w);
            check_need(w, state);
            most = state > most ? state : most;
            worker_close(w);
        }
        assert_int_equal(own, all);
        const bool interleaved = job->parallel.schedule == JOBSPEC_PIPELINE_INTERLEAVED;
        assert_int_equal(parts, interleaved ? 2 * count : count);
        print_message("%u stages: %.1f MiB of %.1f at most\n", count, (double)most / 1048576.0,
                      (double)all * 3 * sizeof(float) / 1048576.0);
    }
    free(job);
}

static void a_stage_of_gpt2_has_its_own(void **state)
{
    static const char *const sets[] = { "model.layers=4",
                                        "model.width=256",
                                        "model.heads=4",
                                        "model.vocab=4000",
                                        "train.lanes=2",
                                        "train.micro_batch=1",
                                        NULL };
    (void)state;
    check_stages(tiny_gpt2, sets);
}

/* What second halves of backward need, too. */
static void a_stage_with_split_backwards_has_what_is_said(void **state)
{
    static const char *const sets[] = { "train.lanes=2",           "train.micro_batch=1",
                                        "parallel.pipeline=2",     "workers.count=2",
                                        "parallel.schedule=zb-h1", NULL };
    (void)state;
    check_stages(tiny_gpt2, sets);
}

/* Two parts of the model each, whose plans share their stashes. */
static void an_interleaved_stage_has_what_is_said(void **state)
{
    static const char *const sets[] = { "train.global_batch=24",
                                        "train.lanes=2",
                                        "train.micro_batch=1",
                                        "parallel.pipeline=2",
                                        "workers.count=2",
                                        "parallel.schedule=interleaved",
                                        NULL };
    (void)state;
    check_stages(tiny_gpt2, sets);
    check_stages(tiny_resnet, sets);
}

static void a_stage_of_resnet18_has_its_own(void **state)
{
    static const char *const sets[] = { "train.micro_batch=2", NULL };
    (void)state;
    check_stages(tiny_resnet, sets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_of_gpt2_has_its_own),
        cmocka_unit_test(a_stage_with_split_backwards_has_what_is_said),
        cmocka_unit_test(an_interleaved_stage_has_what_is_said),
        cmocka_unit_test(a_stage_of_resnet18_has_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
