/* Graphs in job files: the round trip of each example, their bounds, and garbage in place of them.
 * Mistakes with their places are in tests/golden/job/graph-*.yaml. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"

static const char *const examples[] = { "mlp",         "lenet", "resnet18", "resnet50",
                                        "resnet152",   "gpt2",  "cnn",      "library",
                                        "transformer", "llama", "vit" };

static enum status parse(const char *text, struct jobspec *out, struct buf *errors)
{
    buf_init(errors, 1 << 20);
    return jobspec_parse(text, strlen(text), "job.yaml", "/base", NULL, 0, out, errors);
}

static void parse_good(const char *text, struct jobspec *out)
{
    auto_buf struct buf errors;
    if (parse(text, out, &errors) != ST_OK)
        fail_msg("%s", errors.data);
}

static void graphs_survive_the_round_trip(void **state)
{
    (void)state;
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    auto_free struct jobspec *again = calloc(1, sizeof(*again));
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        char path[512];
        auto_free char *text = NULL;
        size_t size = 0;
        (void)snprintf(path, sizeof(path), SOURCE_DIR "/examples/model/%s.yaml", examples[i]);
        assert_int_equal(io_read_file(io_system(), path, 1 << 20, &text, &size), ST_OK);
        parse_good(text, job);
        auto_buf struct buf printed;
        buf_init(&printed, (size_t)LIMIT_JOB_FILE_BYTES);
        assert_int_equal(jobspec_print(job, &printed), ST_OK);
        parse_good(printed.data, again);
        assert_memory_equal(job, again, sizeof(*job));
    }
}

#define BEGINNING                                                                                  \
    "name: a\n"                                                                                    \
    "data: {train: {format: synthetic}}\n"                                                         \
    "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n"                        \
    "model:\n"                                                                                     \
    "  input: [1, 8, 8]\n"                                                                         \
    "  graph:\n"                                                                                   \
    "    - {op: flatten}\n"

/* A graph of `count` nodes with names as long as they may be. */
static void make_long(int count, struct buf *out)
{
    buf_init(out, 1 << 20);
    assert_int_equal(buf_append_text(out, BEGINNING), ST_OK);
    for (int n = 1; n < count; n++) {
        assert_int_equal(buf_printf(out,
                                    "    - {name: a-name-of-forty-seven-characters-in-a-node-%03d, "
                                    "op: linear, out: 64, activation: gelu_erf, std: "
                                    "0.012345678901234567, bias: false}\n",
                                    n),
                         ST_OK);
    }
}

static void a_graph_of_the_most_nodes_is_a_job_that_can_be_printed(void **state)
{
    (void)state;
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    auto_free struct jobspec *again = calloc(1, sizeof(*again));
    auto_buf struct buf text;
    make_long(GRAPH_NODES_MAX, &text);
    parse_good(text.data, job);
    assert_int_equal(job->graph.count, GRAPH_NODES_MAX);
    assert_int_equal(jobspec_bytes(job), sizeof(*job));
    auto_buf struct buf printed;
    buf_init(&printed, (size_t)LIMIT_JOB_FILE_BYTES);
    assert_int_equal(jobspec_print(job, &printed), ST_OK);
    parse_good(printed.data, again);
    assert_memory_equal(job, again, sizeof(*job));
}

static void a_graph_of_more_nodes_is_refused(void **state)
{
    (void)state;
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    auto_buf struct buf text;
    auto_buf struct buf errors;
    make_long(GRAPH_NODES_MAX + 1, &text);
    assert_int_equal(parse(text.data, job, &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "model.graph has more than 512 nodes"));
}

static void a_job_without_a_graph_takes_no_memory_for_nodes(void **state)
{
    (void)state;
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    parse_good("name: a\n"
               "model: {arch: mlp}\n"
               "data: {train: {format: synthetic}}\n"
               "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n",
               job);
    assert_int_equal(jobspec_bytes(job), offsetof(struct jobspec, graph.nodes));
    parse_good(BEGINNING "    - {name: fc, op: linear, out: 10}\n", job);
    assert_int_equal(jobspec_bytes(job),
                     offsetof(struct jobspec, graph.nodes) + 2 * sizeof(struct jobspec_node));
}

/* What a library writes is its own: each prefix and each change of a byte is read, or refused with
 * a reason. */
static void garbage_of_a_library_is_refused_with_a_reason(void **state)
{
    (void)state;
    static const char text[] = "- {op: \"conv2d\", name: \"a\", out: 6, kernel: 3, bias: false}\n"
                               "- {op: \"batch_norm\", name: \"b\", relu: true}\n"
                               "- {op: \"global_avg_pool\", name: \"c\"}\n"
                               "- {op: \"linear\", name: \"d\", out: 10, std: 0.5}\n";
    auto_free struct jobspec_graph *graph = calloc(1, sizeof(*graph));
    auto_free struct graph_sizes *sizes = calloc(1, sizeof(*sizes));
    char copy[sizeof(text)];
    size_t good = 0;
    for (size_t i = 0; i < sizeof(text); i++) {
        for (int change = 0; change < 4; change++) {
            struct reason reason = { "" };
            memcpy(copy, text, sizeof(text));
            if (change > 0 && i < sizeof(text) - 1)
                copy[i] = "x\"\xff"[change - 1];
            sizes->input = (struct graph_shape){ .ndim = 3, .dims = { 1, 8, 8 } };
            const enum status st = graph_read_text(copy, change == 0 ? i : sizeof(text) - 1, true,
                                                   graph, sizes, &reason);
            assert_true(st == ST_OK || (st == ST_CONFIG && reason.text[0] != '\0'));
            good += st == ST_OK;
        }
    }
    assert_true(good > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_survive_the_round_trip),
        cmocka_unit_test(a_graph_of_the_most_nodes_is_a_job_that_can_be_printed),
        cmocka_unit_test(a_graph_of_more_nodes_is_refused),
        cmocka_unit_test(a_job_without_a_graph_takes_no_memory_for_nodes),
        cmocka_unit_test(garbage_of_a_library_is_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
