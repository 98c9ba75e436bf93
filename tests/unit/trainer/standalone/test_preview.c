/* What `cairn plan` says of a pipeline. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"
#include "trainer/standalone/preview.h"
#include "trainer/standalone/preview_pipeline.h"

#define NODES 8

static const char file[] =
    "name: a\n"
    "model: {arch: gpt2, layers: 2, heads: 2, width: 32, context: 16, vocab: 64}\n"
    "data: {train: {format: synthetic, samples: 256}}\n"
    "train: {duration: 10 steps, global_batch: 64, lanes: 8, optimizer: {lr: 0.1}}\n";

static struct jobspec *parse(const char *const *sets)
{
    struct jobspec *job = calloc(1, sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    size_t count = 0;
    while (sets[count] != NULL)
        count++;
    assert_non_null(job);
    if (jobspec_parse(file, strlen(file), "job.yaml", "/base", sets, count, job, &errors) != ST_OK)
        fail_msg("%s", errors.data);
    return job;
}

/* Products in a row, cut anywhere but before node 4: what node 2 makes is added there, too. */
static struct tape *chain(void)
{
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 2, (int64_t[]){ 1, 4 }), early = TAPE_NO_RESIDUAL;
    const int labels = tape_input(tape, DTYPE_I32, 1, (int64_t[]){ 1 });
    for (int i = 0; i + 1 < NODES; i++) {
        const char name[] = { (char)('a' + i), 0 };
        const struct tape_linear linear = { .out = 4, .residual = i == 4 ? early : 0 };
        x = tape_linear(tape, name, x, &linear);
        early = i == 2 ? x : early;
    }
    (void)tape_loss(tape, x, labels, 0);
    assert_int_equal(tape_finish(tape), ST_OK);
    assert_int_equal(tape->node_count, NODES);
    return tape;
}

static enum status print(const char *const *sets, const double *cost, uint32_t accumulate,
                         struct buf *out, struct reason *reason)
{
    struct jobspec *job auto_free = parse(sets);
    struct tape *tape = chain();
    const struct preview_pipeline preview = {
        .job = job, .tape = tape, .cost = cost, .accumulate = accumulate
    };
    buf_clear(out);
    const enum status st = preview_pipeline_print(&preview, out, reason);
    tape_free(tape);
    return st;
}

/* Two stages are alike if the second begins at node 3. */
static const double costs[NODES] = { 1, 1, 2, 1, 1, 1, 1, 0 };

static void a_pipeline_is_told_with_what_it_waits(void **state)
{
    (void)state;
    static const struct {
        const char *sets[5];
        uint32_t accumulate;
        const char *text;
    } cases[] = {
        { { "parallel.pipeline=1" }, 1, "" },
        { { "parallel.pipeline=2" }, /* (p - 1) / m */
          4,
          "pipeline   2 stages x 1 worker, 1f1b, 32 micro-batches each: bubble 0.03; workers wait "
          "3 "
          "% of the time\n"
          "stages     begin at nodes 0, 3 and take 50, 50 % of a step\n" },
        { { "parallel={pipeline: 2, schedule: gpipe}", "workers.count=8" },
          1,
          "pipeline   2 stages x 4 workers, gpipe, 2 micro-batches each: bubble 0.50; workers wait "
          "33 % of the time\n"
          "stages     begin at nodes 0, 3 and take 50, 50 % of a step\n"
          "warning    a bubble of 0.50: who computes longest waits 33 % of the time; with "
          "train.accumulate: 2 the bubble is 0.25, with train.lanes: 16 0.25; with "
          "parallel.schedule: zb-h1, for more memory, 0.17\n" },
        /* NCCL's sends are met: splitting backwards gains nothing there. */
        { { "parallel.pipeline=4", "train.lanes=8", "train.global_batch=8", "workers.device=cuda" },
          1,
          "pipeline   4 stages x 1 worker, 1f1b, 8 micro-batches each: bubble 0.37; workers wait "
          "27 % of the time\n"
          "stages     begin at nodes 0, 2, 3, 5 and take 25, 25, 25, 25 % of a step\n"
          "warning    a bubble of 0.37: who computes longest waits 27 % of the time; use fewer "
          "stages, or a larger train.global_batch\n" },
        { { "parallel.pipeline=2", "train.lanes=1", "train.global_batch=1" },
          1,
          "pipeline   2 stages x 1 worker, 1f1b, 1 micro-batch each: bubble 1.00; workers wait 50 "
          "% of the time\n"
          "stages     begin at nodes 0, 3 and take 50, 50 % of a step\n"
          "warning    a bubble of 1.00: who computes longest waits 50 % of the time; use fewer "
          "stages, or a larger train.global_batch; with parallel.schedule: zb-h1, for more memory, "
          "0.67\n" },
        { { "parallel={pipeline: 2, schedule: zb-h1}", "workers.count=8" },
          1,
          "pipeline   2 stages x 4 workers, zb-h1, 2 micro-batches each: bubble 0.17; workers wait "
          "14 % of the time\n"
          "stages     begin at nodes 0, 3 and take 50, 50 % of a step\n" },
        { { "parallel={pipeline: 2, schedule: interleaved}", "workers.count=8" },
          1,
          "pipeline   2 stages x 4 workers, interleaved, 2 micro-batches each: bubble 0.25; "
          "workers "
          "wait 20 % of the time\n"
          "stages     begin at nodes 0 and 3, 2 and 5 and take 50, 50 % of a step\n" },
        { { "parallel.pipeline=[1]" },
          4,
          "pipeline   2 stages x 1 worker, 1f1b, 32 micro-batches each: bubble 0.00; workers wait "
          "43 % of the time\n"
          "stages     begin at nodes 0, 1 and take 12, 88 % of a step\n"
          "warning    workers wait 43 % of the time, as a stage takes longer than the others; "
          "parallel.pipeline with a number of stages cuts where they take alike\n" },
        { { "parallel={pipeline: [3, 6], stages: [{workers: 1}, {workers: 2}, {workers: 1}]}" },
          0,
          "pipeline   3 stages of 1, 2, 1 workers, 1f1b: how many micro-batches isn't known "
          "without the device\n" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        auto_buf struct buf out;
        struct reason reason = { "" };
        buf_init(&out, 1 << 20);
        assert_int_equal(print(cases[i].sets, costs, cases[i].accumulate, &out, &reason), ST_OK);
        assert_string_equal(out.size > 0 ? out.data : "", cases[i].text);
    }
}

/* On a GPU rounds come one after the other, as sends are met; so does their bubble. */
static void interleaved_rounds_wait_on_a_gpu(void **state)
{
    (void)state;
    static const char *const sets[] = { "parallel={pipeline: 2, schedule: interleaved}",
                                        "workers.device=cuda", NULL };
    auto_buf struct buf out;
    struct reason reason = { "" };
    buf_init(&out, 1 << 20);
    assert_int_equal(print(sets, costs, 2, &out, &reason), ST_OK);
    assert_non_null(strstr(out.data,
                           "interleaved, 16 micro-batches each: bubble 0.25; workers wait "
                           "20 % of the time\n"
                           "stages     begin at nodes 0 and 3, 2 and 5 and take 50, 50 "
                           "% of a step\n"));
}

/* Each node counts for one then. */
static void without_the_device_nodes_are_alike(void **state)
{
    (void)state;
    static const char *const sets[] = { "parallel.pipeline=2", NULL };
    auto_buf struct buf out;
    struct reason reason = { "" };
    buf_init(&out, 1 << 20);
    assert_int_equal(print(sets, NULL, 1, &out, &reason), ST_OK);
    assert_string_equal(
        out.data,
        "pipeline   2 stages x 1 worker, 1f1b, 8 micro-batches each: bubble 0.12; workers wait 11 "
        "% "
        "of the time\n"
        "stages     begin at nodes 0, 3, if nodes take alike, which isn't known without the "
        "device\n");
}

static void what_can_not_be_cut_is_refused_with_what_can(void **state)
{
    (void)state;
    static const struct {
        const char *set, *reason;
    } cases[] = {
        { "parallel.pipeline=8",
          "parallel.pipeline: the model can't be cut into 8 stages; into 7 or fewer it can" },
        { "parallel={pipeline: 4, schedule: interleaved}",
          "parallel.schedule: interleaved cuts 4 stages into 8 parts, but the model can be cut "
          "into 7 at most: use 3 stages or fewer, or 1f1b" },
        { "parallel.pipeline=[2, 4]",
          "parallel.pipeline: the model can't be cut before node 4; it can before 3 and 5" },
        { "parallel.pipeline=[8]",
          "parallel.pipeline: the model can't be cut before node 8; the last place is before 7" },
        { "parallel.pipeline=[4000000000]",
          "parallel.pipeline: the model can't be cut before node 4000000000; the last place is "
          "before 7" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const sets[] = { cases[i].set, NULL };
        auto_buf struct buf out;
        struct reason reason = { "" };
        buf_init(&out, 1 << 20);
        assert_int_equal(print(sets, costs, 1, &out, &reason), ST_CONFIG);
        assert_string_equal(reason.text, cases[i].reason);
    }
}

/* The plan is of a whole job, with what its nodes take on this machine. */
static void a_plan_has_the_pipeline(void **state)
{
    (void)state;
    static const char *const sets[] = { "parallel.pipeline=2", "workers.count=4", NULL };
    struct jobspec *job auto_free = parse(sets);
    auto_buf struct buf out;
    struct reason reason = { "" };
    buf_init(&out, 1 << 20);
    assert_int_equal(preview_print(job, &out, &reason), ST_OK);
    assert_non_null(
        strstr(out.data, "\npipeline   2 stages x 2 workers, 1f1b, 4 micro-batches each: bubble "));
    assert_non_null(strstr(out.data, "\nstages     begin at nodes 0, "));
}

/* The number of MiB behind `line`, the start of one. */
static double told(const struct buf *out, const char *line)
{
    const char *at = strstr(out->data, line);
    assert_non_null(at);
    return at != NULL ? strtod(at + strlen(line), NULL) : 0;
}

static void a_plan_has_what_stages_take(void **state)
{
    (void)state;
    static const char *const all[] = { "parallel.pipeline=[8]", "workers={count: 4, min: 4}",
                                       "model.width=256", NULL };
    static const char *const fewer[] = { "parallel.pipeline=2", "workers={count: 4, min: 1}",
                                         "model.width=256", NULL };
    struct jobspec *job auto_free = parse(all);
    struct jobspec *elastic auto_free = parse(fewer);
    auto_buf struct buf out;
    struct reason reason = { "" };
    buf_init(&out, 1 << 20);
    if (preview_print(job, &out, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    const double first = told(&out, "\nstage 0    nodes 0 to 7: ");
    const double second = told(&out, "\nstage 1    nodes 8 to ");
    assert_true(second > 5);
    assert_true(first > 1);
    const double most = told(&out, "\nworker     ");
    assert_non_null(strstr(out.data, " MiB at most: stage "));
    buf_clear(&out);
    assert_int_equal(preview_print(elastic, &out, &reason), ST_OK);
    assert_true(told(&out, "\nworker     ") > most);
    assert_non_null(strstr(out.data, " MiB at most, one of 1 worker: activations "));
}

/* With four there are two micro-batches for each, with two there are more at once than the first
 * stage could have then; one alone has all of the state, which is little here. */
static void and_what_one_takes_where_each_stage_has_one(void **state)
{
    (void)state;
    static const char *const sets[] = { "parallel.pipeline=2",
                                        "workers={count: 4, min: 1}",
                                        "model.context=256",
                                        "train.lanes=4",
                                        "train.global_batch=32",
                                        "train.micro_batch=8",
                                        NULL };
    struct jobspec *job auto_free = parse(sets);
    auto_buf struct buf out;
    struct reason reason = { "" };
    buf_init(&out, 1 << 20);
    assert_int_equal(preview_print(job, &out, &reason), ST_OK);
    assert_non_null(strstr(out.data, " MiB at most, one of 2 workers: activations "));
}

static void tokens_are_shown_and_checked(void **state)
{
    (void)state;
    char path[] = "/tmp/test_preview_XXXXXX", set[96];
    uint16_t tokens[200];
    for (size_t i = 0; i < 200; i++)
        tokens[i] = (uint16_t)(i * 37 % 61);
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, tokens, sizeof(tokens)), sizeof(tokens));
    (void)snprintf(set, sizeof(set), "data.train={format: tokens, path: %s}", path);
    const char *sets[] = { set, "train.global_batch=8", NULL };
    auto_buf struct buf out;
    buf_init(&out, 1 << 20);
    struct reason reason = { "" };
    struct jobspec *job auto_free = parse(sets);
    assert_int_equal(preview_print(job, &out, &reason), ST_OK);
    if (strstr(out.data, "tokens     begin with 0 37 13 50 26 2 39 15 52 28 4 41; the largest of "
                         "the first 193 is 60\n") == NULL)
        fail_msg("%s", out.data);
    tokens[50] = 64; /* model.vocab */
    assert_int_equal(pwrite(fd, tokens, sizeof(tokens), 0), sizeof(tokens));
    assert_int_equal(preview_print(job, &out, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, "token 64 at position 50"));
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_shown_and_checked),
        cmocka_unit_test(a_pipeline_is_told_with_what_it_waits),
        cmocka_unit_test(interleaved_rounds_wait_on_a_gpu),
        cmocka_unit_test(without_the_device_nodes_are_alike),
        cmocka_unit_test(what_can_not_be_cut_is_refused_with_what_can),
        cmocka_unit_test(a_plan_has_the_pipeline),
        cmocka_unit_test(a_plan_has_what_stages_take),
        cmocka_unit_test(and_what_one_takes_where_each_stage_has_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
