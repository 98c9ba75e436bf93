/*
 * Speed on a GPU, against PyTorch on the same one in the same run.
 *
 *   gpu [--device cuda|cpu] [--peer PYTHON] [--script FILE] [--small] [CASE]...
 *
 * CASE: reduction kernels gpt2 resnet50; all without one. PYTHON runs bench/torch_gpu.py for the
 * yardsticks (eager and compiled, bfloat16); without --peer there are none. --small: shapes for
 * trying the program itself, with --device cpu where there is no GPU.
 *
 * reduction  step time of gpt2 with exact and with fast reduction, two ranks on the one device
 * kernels    copy, a large product, AdamW, layer norm, attention; fractions of copy and product
 * gpt2       124M, B 32, T 1024: tokens/s, model FLOPs per second over the product's (MFU: PaLM,
 *            arXiv 2204.02311, appendix B: 6·N + 12·L·C·T per token), the cost of a snapshot beside
 *            a step, and the time from the start of this process to the end of the first step
 * resnet50   batch 128, 224²: images/s
 *
 * What was computed is checked: samples of each kernel's result by float64, of models that the loss
 * falls. What is wrong ends the program with status 1.
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/gpu_ops.h"
#include "bench/gpu_rows.h"
#include "bench/train_model.h"
#include "common/clock.h"
#include "kernels/module.h"
#include "tests/unit/comm/comm_fixture.h"

#define WARM_UP 3
#define RANKS   2

struct options {
    const char *device, *peer, *script;
    bool small;
    int64_t start_ns;
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "gpu: %s\n", what);
    exit(2);
}

/* The device's tables; comm may come out NULL. */
static const struct backend_table *load(const struct options *o, const struct comm_table **comm)
{
    const struct module *module = NULL;
    struct reason reason;
    if (strcmp(o->device, "cpu") == 0) {
        *comm = comm_gloo();
        return backend_cpu();
    }
    if (module_load(o->device, 0, &module, &reason) != ST_OK)
        fail(reason.text);
    *comm = module->comm;
    return module->backend;
}

static double seconds_per_step(struct train_model *model, int steps, bool snapshots)
{
    train_model_wait(model);
    const int64_t start = clock_mono_ns();
    for (int i = 0; i < steps; i++) {
        train_model_step(model);
        if (snapshots)
            train_model_snapshot(model);
    }
    train_model_wait(model);
    return 1e-9 * (double)(clock_mono_ns() - start) / steps;
}

static void warm_up(struct train_model *model)
{
    for (int i = 0; i < WARM_UP; i++)
        train_model_step(model);
    train_model_wait(model);
}

/* Checks that the loss fell. The same samples come again and again, so a model that learns nothing
 * computes something else. */
static void check_loss(const struct train_model *model, const char *name, double first)
{
    const double loss = train_model_loss(model);
    if (loss < first)
        return;
    (void)fprintf(stderr, "gpu: %s: the loss went from %.6g to %.6g\n", name, first, loss);
    exit(1);
}

static struct train_model_options gpt2_options(const struct options *o, bool tiny)
{
    const struct comm_table *comm = NULL;
    struct train_model_options model = { .arch = "gpt2", .lanes = 1, .math = MATH_BF16 };
    model.batch = tiny ? 1 : 32;
    model.seq = tiny ? 8 : 1024;
    model.table = load(o, &comm);
    model.graphs = true;
    return model;
}

/* ---- cases ---- */

static void run_gpt2(const struct options *o, struct rows *rows)
{
    const struct train_model_options shape = gpt2_options(o, o->small);
    struct train_model *model = train_model_new(&shape);
    const int steps = o->small ? 2 : 20;
    const double tokens = (double)(shape.batch * shape.seq);
    train_model_step(model);
    train_model_wait(model);
    rows_add(rows, "gpt2/first_step", 1e-9 * (double)(clock_mono_ns() - o->start_ns), "s");
    const double first = train_model_loss(model);
    warm_up(model);
    const double step = seconds_per_step(model, steps, false);
    const double saved = seconds_per_step(model, steps, true);
    const double flops =
        6 * (double)train_model_params(model) + 12.0 * 12 * 768 * (double)shape.seq;
    rows_add(rows, "gpt2", tokens / step, "tokens/s");
    rows_add(rows, "gpt2/flops", tokens * flops / step / 1e12, "TFLOP/s");
    rows_add(rows, "gpt2/snapshot_stall", (saved - step) * 1e3, "ms");
    check_loss(model, "gpt2", first);
    train_model_free(model);
}

static void run_resnet50(const struct options *o, struct rows *rows)
{
    const struct comm_table *comm = NULL;
    struct train_model_options shape = { .arch = "resnet50", .lanes = 1, .math = MATH_BF16 };
    shape.batch = o->small ? 1 : 128;
    shape.table = load(o, &comm);
    shape.graphs = true;
    struct train_model *model = train_model_new(&shape);
    train_model_step(model);
    const double first = train_model_loss(model);
    warm_up(model);
    const double step = seconds_per_step(model, o->small ? 2 : 20, false);
    check_loss(model, "resnet50", first);
    rows_add(rows, "resnet50", (double)shape.batch / step, "images/s");
    train_model_free(model);
}

static void run_kernels(const struct options *o, struct rows *rows)
{
    const struct comm_table *comm = NULL;
    const struct gpu_ops_options options = { .table = load(o, &comm), .small = o->small };
    gpu_ops_run(&options, rows);
}

/* Runs one rank in a process of its own; rank 0 writes its seconds per step into the pipe. */
static int reduction_rank(const struct options *o, const struct rendezvous *rendezvous, int rank,
                          bool fast, int out)
{
    char host[16];
    (void)snprintf(host, sizeof(host), "rank%d", rank);
    (void)setenv("NCCL_HOSTID", host, 1); /* two ranks on one device pass for two hosts */
    struct train_model_options shape = gpt2_options(o, o->small);
    (void)load(o, &shape.comm);
    if (shape.comm == NULL)
        fail("the module was built without NCCL");
    shape.batch = o->small ? 1 : 8;
    shape.rendezvous = rendezvous;
    shape.rank = rank;
    shape.size = RANKS;
    shape.fast = fast;
    struct train_model *model = train_model_new(&shape);
    warm_up(model);
    const double seconds = seconds_per_step(model, o->small ? 2 : 10, false);
    train_model_free(model);
    return rank > 0 || write(out, &seconds, sizeof(seconds)) == (ssize_t)sizeof(seconds) ? 0 : 1;
}

/* Forks before this process has touched the device. */
static double measure_reduction(const struct options *o, bool fast)
{
    int ends[2];
    struct shared_rendezvous *shared = shared_rendezvous_new();
    double seconds = 0;
    int bad = 0;
    if (pipe(ends) != 0)
        fail("pipe");
    for (int rank = 0; rank < RANKS; rank++) {
        const pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        const struct rendezvous rendezvous = shared_rendezvous_of(shared, rank);
        if (pid == 0)
            _exit(reduction_rank(o, &rendezvous, rank, fast, ends[1]));
    }
    (void)close(ends[1]);
    if (read(ends[0], &seconds, sizeof(seconds)) != (ssize_t)sizeof(seconds))
        bad = 1;
    (void)close(ends[0]);
    for (int rank = 0; rank < RANKS; rank++) {
        int status = 0;
        (void)wait(&status);
        bad |= status;
    }
    shared_rendezvous_free(shared);
    return bad == 0 ? seconds : 0;
}

static void run_reduction(const struct options *o, struct rows *rows)
{
    const double exact = measure_reduction(o, false);
    const double fast = measure_reduction(o, true);
    if (exact == 0 || fast == 0) {
        (void)fprintf(stderr, "gpu: reduction: a rank failed, left out\n");
        return;
    }
    rows_add(rows, "reduction/fast", fast * 1e3, "ms");
    rows_add(rows, "reduction/exact", exact * 1e3, "ms");
    rows_against(rows, "reduction/exact", "reduction/fast", fast * 1e3);
}

/* ---- the whole ---- */

static const struct {
    const char *name, *peers; /* cases of the peer's script */
    void (*run)(const struct options *options, struct rows *rows);
} cases[] = {
    { "reduction", "", run_reduction }, /* first: it forks */
    { "gpt2", "gpt2 matmul", run_gpt2 },
    { "resnet50", "resnet50", run_resnet50 },
    { "kernels", "copy matmul adamw layer_norm attention", run_kernels },
};

static bool is_wanted(const char *name, int argc, char **argv, int first)
{
    for (int i = first; i < argc; i++) {
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return first == argc;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        { "device", required_argument, NULL, 'd' },
        { "peer", required_argument, NULL, 'p' },
        { "script", required_argument, NULL, 's' },
        { "small", no_argument, NULL, 'm' },
        { 0 },
    };
    struct options options = { .device = "cuda", .script = "bench/torch_gpu.py" };
    options.start_ns = clock_mono_ns();
    int option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'd') {
            options.device = optarg;
        } else if (option == 'p') {
            options.peer = optarg;
        } else if (option == 's') {
            options.script = optarg;
        } else if (option == 'm') {
            options.small = true;
        } else {
            fail("usage: gpu [--device D] [--peer PYTHON] [--script FILE] [--small] [CASE]...");
        }
    }
    static struct rows rows;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!is_wanted(cases[i].name, argc, argv, optind))
            continue;
        cases[i].run(&options, &rows);
        if (options.peer != NULL && cases[i].peers[0] != '\0')
            rows_read_peer(&rows, options.peer, options.script, cases[i].peers);
    }
    rows_print(&rows);
    return 0;
}
