/* Models written as graphs: the same tapes as the models of this version, shape by shape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "tests/test.h"
#include "trainer/worker/build.h"

/* Parses a text and makes its tape, as if the data were what the model takes. */
static struct tape *build(const char *text, const char *const *sets, size_t set_count,
                          struct jobspec *job)
{
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    if (jobspec_parse(text, strlen(text), "job.yaml", "/base", sets, set_count, job, &errors) !=
        ST_OK)
        fail_msg("%s", errors.data);
    const struct build_options options = { .job = job, .io = io_system() };
    struct reason reason = { "" };
    struct dataset *data = NULL;
    struct tape *tape = NULL;
    if (build_dataset(&options, &data, &reason) != ST_OK ||
        build_tape(job, data, &tape, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    dataset_close(data);
    return tape;
}

static struct tape *build_example(const char *name, struct jobspec *job)
{
    char path[512];
    auto_free char *text = NULL;
    size_t size = 0;
    (void)snprintf(path, sizeof(path), SOURCE_DIR "/examples/model/%s.yaml", name);
    assert_int_equal(io_read_file(io_system(), path, 1 << 20, &text, &size), ST_OK);
    return build(text, NULL, 0, job);
}

static void assert_tapes_equal(const struct tape *a, const struct tape *b)
{
    assert_int_equal(a->node_count, b->node_count);
    assert_int_equal(a->value_count, b->value_count);
    assert_int_equal(a->param_count, b->param_count);
    assert_int_equal(a->stat_count, b->stat_count);
    assert_int_equal(a->tie_count, b->tie_count);
    assert_int_equal(a->param_elements, b->param_elements);
    assert_memory_equal(a->nodes, b->nodes, (size_t)a->node_count * sizeof(*a->nodes));
    assert_memory_equal(a->values, b->values, (size_t)a->value_count * sizeof(*a->values));
    assert_memory_equal(a->params, b->params, (size_t)a->param_count * sizeof(*a->params));
    assert_memory_equal(a->stats, b->stats, (size_t)a->stat_count * sizeof(*a->stats));
    assert_memory_equal(a->ties, b->ties, sizeof(a->ties));
}

static void every_model_is_the_same_as_a_graph(void **state)
{
    (void)state;
    static const char *const names[] = {
        "mlp", "lenet", "resnet18", "resnet50", "resnet152", "gpt2"
    };
    static const char form[] =
        "name: a\n"
        "model: {arch: %s}\n"
        "data: {train: {format: synthetic, samples: 1024}}\n"
        "train: {duration: 1 steps, global_batch: 16, optimizer: {lr: 0.1}}\n";
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    auto_free struct jobspec *graph = calloc(1, sizeof(*graph));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), form, names[i]);
        struct tape *ours = build(text, NULL, 0, job);
        struct tape *theirs = build_example(names[i], graph);
        assert_tapes_equal(ours, theirs);
        assert_int_equal(jobspec_parameters(&graph->model), ours->param_elements);
        assert_int_equal(graph->model.classes, job->model.classes);
        assert_int_equal(graph->model.vocab, job->model.vocab);
        tape_free(ours);
        tape_free(theirs);
    }
}

/* Other names of parameters, of which the models have several for one matrix. */
static void assert_ops_equal(const struct tape *a, const struct tape *b)
{
    assert_int_equal(a->node_count, b->node_count);
    assert_int_equal(a->value_count, b->value_count);
    assert_int_equal(a->param_elements, b->param_elements);
    assert_memory_equal(a->values, b->values, (size_t)a->value_count * sizeof(*a->values));
    for (int n = 0; n < a->node_count; n++) {
        const struct tape_node *x = &a->nodes[n], *y = &b->nodes[n];
        assert_int_equal(x->op, y->op);
        assert_memory_equal(&x->attr, &y->attr, sizeof(x->attr));
        assert_memory_equal(x->in, y->in, sizeof(x->in));
    }
}

static void llama_and_vit_have_the_ops_of_graphs(void **state)
{
    (void)state;
    static const struct {
        const char *name, *model;
    } rows[] = {
        { "llama", "{arch: llama, layers: 1, heads: 4, kv_heads: 2, width: 48, intermediate: 64, "
                   "context: 64, vocab: 256}" },
        { "vit", "{arch: vit, layers: 1, heads: 4, width: 32, patch: 7}" },
    };
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    auto_free struct jobspec *graph = calloc(1, sizeof(*graph));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text),
                       "name: a\n"
                       "model: %s\n"
                       "data: {train: {format: synthetic, samples: 1024}}\n"
                       "train: {duration: 1 steps, global_batch: 16, optimizer: {lr: 0.1}}\n",
                       rows[i].model);
        struct tape *ours = build(text, NULL, 0, job);
        struct tape *theirs = build_example(rows[i].name, graph);
        assert_ops_equal(ours, theirs);
        assert_int_equal(jobspec_parameters(&graph->model), theirs->param_elements);
        tape_free(ours);
        tape_free(theirs);
    }
}

/* A node of each op, each key with a value that isn't its default. */
static const char every_op[] =
    "name: a\n"
    "model:\n"
    "  input: [2, 9, 12]\n"
    "  graph:\n"
    "    - {name: c, op: conv2d, out: 6, kernel: 3, stride: 2, pad: 1, bias: false}\n"
    "    - {name: n, op: batch_norm, relu: true}\n"
    "    - {name: d, op: conv2d, out: 6, kernel: 1, from: c}\n"
    "    - {name: m, op: batch_norm, residual: n}\n"
    "    - {op: relu}\n"
    "    - {op: max_pool, kernel: 3, stride: 1, pad: 1}\n"
    "    - {name: pool, op: global_avg_pool}\n"
    "    - {name: drop, op: dropout, p: 0.25}\n"
    "    - {op: dropout, p: 0.125, residual: pool}\n"
    "    - {name: l, op: linear, out: 6, activation: gelu_erf, std: 0.5}\n"
    "    - {name: k, op: linear, out: 6, residual: pool, bias: false}\n"
    "    - {name: t, op: linear, out: 6, tied: l}\n"
    "    - {name: ln, op: layer_norm}\n"
    "    - {name: seq, op: sequence, from: m, std: 0.5}\n"
    "    - {op: select, row: 3}\n"
    "    - {name: chosen, op: linear, out: 6, residual: ln}\n"
    "    - {name: flat, op: flatten, from: input}\n"
    "    - {name: from_flat, op: linear, out: 6, residual: chosen}\n"
    "    - {name: last, op: linear, out: 12}\n"
    "data: {train: {format: synthetic, samples: 1024}}\n"
    "train: {duration: 1 steps, global_batch: 16, optimizer: {lr: 0.1}}\n";

static const char every_text_op[] =
    "name: a\n"
    "model:\n"
    "  context: 8\n"
    "  graph:\n"
    "    - {name: e, op: embedding, rows: 50, out: 12, position: p, std: 0.25}\n"
    "    - {name: q, op: linear, out: 36}\n"
    "    - {name: att, op: attention, heads: 3}\n"
    "    - {name: o, op: linear, out: 12, residual: e}\n"
    "    - {name: r, op: rms_norm, eps: 0.5}\n"
    "    - {name: shared, op: linear, out: 24}\n"
    "    - {op: rotary, heads: 4, kv_heads: 1, rope_theta: 500}\n"
    "    - {op: attention, heads: 4, bidirectional: true}\n"
    "    - {name: wide, op: linear, out: 22}\n"
    "    - {op: gated}\n"
    "    - {name: f, op: linear, out: 12, activation: relu}\n"
    "    - {name: head, op: linear, out: 50, bias: false, tied: e}\n"
    "data: {train: {format: synthetic, samples: 1024}}\n"
    "train: {duration: 1 steps, global_batch: 16, optimizer: {lr: 0.1}}\n";

/* The shapes that the job file is checked with are those of the tape. */
static void assert_shapes(const struct jobspec *job, const struct tape *tape)
{
    auto_free struct graph_sizes *sizes = calloc(1, sizeof(*sizes));
    auto_free struct jobspec_graph *graph = calloc(1, sizeof(*graph));
    auto_buf struct buf text;
    buf_init(&text, 1 << 20);
    for (int64_t n = 0; n < job->graph.count; n++) {
        assert_int_equal(buf_append_text(&text, "- "), ST_OK);
        assert_int_equal(graph_print_node(&job->graph, n, &text), ST_OK);
        assert_int_equal(buf_append_text(&text, "\n"), ST_OK);
    }
    const bool is_text = jobspec_is_text(&job->model);
    sizes->input = (struct graph_shape){ .ndim = is_text ? 1 : 3, .is_tokens = is_text };
    memcpy(sizes->input.dims, is_text ? &job->model.context : job->model.input,
           (is_text ? 1 : 3) * sizeof(int64_t));
    struct reason reason = { "" };
    if (graph_read_text(text.data, text.size, false, graph, sizes, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    assert_memory_equal(graph, &job->graph, sizeof(*graph));
    assert_int_equal(sizes->parameters, tape->param_elements);
    for (int64_t n = 0; n < graph->count; n++) {
        const struct tensor *made = &tape->values[tape->nodes[n].out].tensor;
        assert_int_equal(sizes->shapes[n].ndim, made->ndim - 1);
        for (int d = 1; d < made->ndim; d++)
            assert_int_equal(sizes->shapes[n].dims[d - 1], made->dims[d]);
    }
}

static void shapes_are_those_of_the_tape(void **state)
{
    (void)state;
    const char *const jobs[] = { every_op, every_text_op };
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    bool seen[GRAPH_OP_COUNT] = { false };
    for (size_t i = 0; i < 2; i++) {
        struct tape *tape = build(jobs[i], NULL, 0, job);
        assert_int_equal(tape->node_count, job->graph.count + 1);
        assert_shapes(job, tape);
        for (int64_t n = 0; n < job->graph.count; n++)
            seen[job->graph.nodes[n].op] = true;
        tape_free(tape);
    }
    for (unsigned op = GRAPH_OP_NONE + 1; op < GRAPH_OP_COUNT; op++) {
        if (!seen[op])
            fail_msg("no node with op: %s", graph_op_name((enum graph_op)op));
    }
}

static void other_images_are_refused(void **state)
{
    (void)state;
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    struct tape *tape = build(every_op, NULL, 0, job);
    tape_free(tape);
    const struct dataset data = { .shape = { .channels = 1, .height = 28, .width = 28 } };
    struct reason reason = { "" };
    assert_int_equal(build_tape(job, &data, &tape, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, "set model.input to [1, 28, 28]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_is_the_same_as_a_graph),
        cmocka_unit_test(llama_and_vit_have_the_ops_of_graphs),
        cmocka_unit_test(shapes_are_those_of_the_tape),
        cmocka_unit_test(other_images_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
