/*
 * Training speed of a model on one core, against PyTorch on the same core in the same run.
 *
 *   train [--model NAME] [--precision fp32|bf16] [--batch N] [--seq N] [--lanes N,N] [--steps N]
 *         [--rounds N] [--cpu N] [--peer DIR] [--modes NAME,NAME]
 *
 * Models
 *   resnet18, lenet, mlp  28×28×1
 *   resnet50, resnet152   224×224×3
 *   vit                   ViT-B/16, 224×224×3
 *   gpt2, llama, bert     124M, 110M and 110M, --seq tokens per sample; a sample of the figures is
 *                         then a token
 *
 * A step here is what a job with one worker does: each lane forward and backward, the exact sum
 * over lanes, norm, update, refresh of the kernels' copies.
 *
 * PyTorch is not part of this repository: DIR is a Python environment that has it, with a script
 * that times steps of the same models and prints its figures as a JSON object (choose_modes has the
 * names of both). Its modes (eager, channels-last, fused, compiled; those in --modes, else all that
 * suit the model) run as processes of their own between our rounds, since a machine's speed moves
 * from minute to minute.
 *
 * Everything is pinned to one core. Values are medians over all steps of all rounds. The yardstick
 * is PyTorch's best mode with the whole batch in one lane.
 *   "fastest"       the fastest step of each side, which others on the machine disturb less
 *   "of the bound"  against the products of a step alone, each at the speed of a large product of
 *                   this precision, measured between the rounds. Winograd's convolutions need fewer
 *                   operations than the bound counts; what is not a product is not in it.
 */
#include <getopt.h>
#include <jansson.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/train_model.h"
#include "common/clock.h"

#define LANES_MAX   4
#define MODES_MAX   5
#define SAMPLES_MAX 4096

struct options {
    const char *model, *peer, *precision;
    const char *modes; /* of the peer; NULL: all that suit the model */
    bool text;
    int64_t batch, seq;
    int lanes[LANES_MAX];
    int lane_count;
    int steps, rounds, cpu;
};

/* Seconds of all steps of one side. */
struct series {
    double seconds[SAMPLES_MAX];
    int count;
};

struct mode {
    const char *name;
    const char *flags;              /* of the peer's script */
    bool text, images;              /* which models it suits */
    struct series medians, fastest; /* one per round */
};

struct results {
    struct series ours[LANES_MAX];
    struct series peak;      /* operations per second of a product */
    double flops[LANES_MAX]; /* of a step */
    double bytes[LANES_MAX];
    struct mode modes[MODES_MAX];
    int mode_count;
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "train: %s\n", what);
    exit(2);
}

static void add(struct series *series, double seconds)
{
    if (series->count < SAMPLES_MAX)
        series->seconds[series->count++] = seconds;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double median(struct series *series)
{
    qsort(series->seconds, (size_t)series->count, sizeof(double), ascending);
    return series->count > 0 ? series->seconds[series->count / 2] : 0;
}

static double fastest(struct series *series)
{
    qsort(series->seconds, (size_t)series->count, sizeof(double), ascending);
    return series->count > 0 ? series->seconds[0] : 0;
}

static int number(const char *text, int least)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != '\0' && *end != ',')
        fail("a number is malformed");
    if (value < least || value > 1 << 20)
        fail("a number is out of range");
    return (int)value;
}

static void parse_lanes(const char *text, struct options *options)
{
    options->lane_count = 0;
    for (const char *at = text; at != NULL; at = strchr(at, ',')) {
        if (*at == ',')
            at++;
        if (options->lane_count == LANES_MAX)
            fail("too many values in --lanes");
        options->lanes[options->lane_count++] = number(at, 1);
    }
}

static bool is_large(const char *model)
{
    return strcmp(model, "resnet50") == 0 || strcmp(model, "vit") == 0;
}

static void set_option(struct options *options, int key, const char *value)
{
    switch (key) {
    case 'm':
        options->model = value;
        break;
    case 'f':
        options->precision = value;
        break;
    case 'b':
        options->batch = number(value, 1);
        break;
    case 'q':
        options->seq = number(value, 1);
        break;
    case 'l':
        parse_lanes(value, options);
        break;
    case 's':
        options->steps = number(value, 1);
        break;
    case 'r':
        options->rounds = number(value, 1);
        break;
    case 'c':
        options->cpu = number(value, 0);
        break;
    case 'p':
        options->peer = value;
        break;
    case 'o':
        options->modes = value;
        break;
    default:
        fail("usage: train [--model NAME] [--precision fp32|bf16] [--batch N] [--seq N] "
             "[--lanes N,N] [--steps N] [--rounds N] [--cpu N] [--peer DIR] [--modes NAME,NAME]");
    }
}

static struct options parse(int argc, char **argv)
{
    static const struct option known[] = {
        { "model", required_argument, NULL, 'm' },
        { "precision", required_argument, NULL, 'f' },
        { "batch", required_argument, NULL, 'b' },
        { "seq", required_argument, NULL, 'q' },
        { "lanes", required_argument, NULL, 'l' },
        { "steps", required_argument, NULL, 's' },
        { "rounds", required_argument, NULL, 'r' },
        { "cpu", required_argument, NULL, 'c' },
        { "peer", required_argument, NULL, 'p' },
        { "modes", required_argument, NULL, 'o' },
        { 0 },
    };
    struct options options = { .model = "resnet18", .precision = "fp32", .steps = 5, .rounds = 3 };
    options.cpu = -1;
    int key;
    while ((key = getopt_long(argc, argv, "", known, NULL)) != -1)
        set_option(&options, key, optarg);
    options.text = strcmp(options.model, "gpt2") == 0 || strcmp(options.model, "llama") == 0 ||
                   strcmp(options.model, "bert") == 0;
    if (options.batch == 0)
        options.batch = options.text ? 4 : is_large(options.model) ? 8 : 128;
    if (options.seq == 0)
        options.seq = 64;
    if (options.lane_count == 0)
        parse_lanes(strcmp(options.model, "resnet18") == 0 ? "1,4" : "1", &options);
    if (strcmp(options.precision, "fp32") != 0 && strcmp(options.precision, "bf16") != 0)
        fail("--precision is fp32 or bf16");
    return options;
}

/* Pins us, and every process that we start, to one core: the given one, else the last allowed
 * one. */
static void pin(int cpu)
{
    cpu_set_t set;
    if (cpu < 0) {
        if (sched_getaffinity(0, sizeof(set), &set) != 0)
            fail("cannot read the allowed cores");
        for (int i = 0; i < CPU_SETSIZE; i++) {
            if (CPU_ISSET((size_t)i, &set))
                cpu = i;
        }
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        fail("cannot pin to that core");
    (void)setenv("OMP_NUM_THREADS", "1", 1);
}

static bool readable(const char *dir, const char *name)
{
    char path[1024];
    int length = snprintf(path, sizeof(path), "%s/%s", dir, name);
    return length > 0 && (size_t)length < sizeof(path) && access(path, R_OK) == 0;
}

/* The last line that starts a JSON object in the peer's output. */
static json_t *read_json(FILE *from)
{
    char line[4096];
    json_t *found = NULL;
    while (fgets(line, sizeof(line), from) != NULL) {
        json_t *value = line[0] == '{' ? json_loads(line, 0, NULL) : NULL;
        if (value == NULL)
            continue;
        json_decref(found);
        found = value;
    }
    return found;
}

static void run_mode(const struct options *options, struct mode *mode)
{
    char command[4096];
    int length = snprintf(command, sizeof(command),
                          "exec '%s/bin/python' '%s/torch_step.py' %s --threads 1 --batch %d "
                          "--seq %d --precision %s --steps %d --warmup 2 %s",
                          options->peer, options->peer, options->model, (int)options->batch,
                          (int)options->seq, options->precision, options->steps, mode->flags);
    if (length < 0 || (size_t)length >= sizeof(command))
        fail("the peer's path is too long");
    FILE *from = popen(command, "re");
    if (from == NULL)
        fail("cannot start the peer");
    json_t *value = read_json(from);
    if (pclose(from) != 0 || value == NULL) {
        (void)fprintf(stderr, "train: PyTorch %s failed, left out\n", mode->name);
    } else {
        add(&mode->medians, json_number_value(json_object_get(value, "step_s")));
        add(&mode->fastest, json_number_value(json_object_get(value, "min_s")));
    }
    json_decref(value);
}

/* Whether a comma-separated list has the name. */
static bool listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        if (*at == ',')
            at++;
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

static void choose_modes(const struct options *options, struct results *results)
{
    static const struct mode modes[MODES_MAX] = {
        { .name = "eager", .flags = "", .text = true, .images = true },
        { .name = "channels-last", .flags = "--channels-last", .images = true },
        { .name = "fused", .flags = "--fused", .text = true },
        { .name = "compiled", .flags = "--mode compile --fused", .text = true, .images = true },
        { .name = "compiled-channels-last",
          .flags = "--mode compile --channels-last",
          .images = true },
    };
    if (options->peer == NULL) {
        (void)fprintf(stderr, "train: no comparison: --peer DIR was not given\n");
        return;
    }
    if (!readable(options->peer, "bin/python") || !readable(options->peer, "torch_step.py")) {
        (void)fprintf(stderr, "train: no comparison: %s has no bin/python or no torch_step.py\n",
                      options->peer);
        return;
    }
    for (int i = 0; i < MODES_MAX; i++) {
        if ((options->text ? modes[i].text : modes[i].images) &&
            (options->modes == NULL || listed(options->modes, modes[i].name)))
            results->modes[results->mode_count++] = modes[i];
    }
}

static void run_ours(struct train_model *model, int steps, struct series *series)
{
    train_model_step(model); /* caches are cold after the other side's turn */
    for (int i = 0; i < steps; i++) {
        int64_t start = clock_mono_ns();
        train_model_step(model);
        add(series, 1e-9 * (double)(clock_mono_ns() - start));
    }
}

static void measure(const struct options *options, struct results *results)
{
    struct train_model *models[LANES_MAX];
    const enum math math = strcmp(options->precision, "bf16") == 0 ? MATH_BF16 : MATH_F32;
    for (int i = 0; i < options->lane_count; i++) {
        const struct train_model_options one = { .arch = options->model,
                                                 .batch = options->batch,
                                                 .lanes = options->lanes[i],
                                                 .seq = options->seq,
                                                 .math = math };
        models[i] = train_model_new(&one);
        results->flops[i] = train_model_flops(models[i]);
        results->bytes[i] = (double)train_model_bytes(models[i]);
    }
    for (int round = 0; round < options->rounds; round++) {
        (void)fprintf(stderr, "round %d of %d\n", round + 1, options->rounds);
        add(&results->peak, train_model_peak(math));
        for (int i = 0; i < options->lane_count; i++)
            run_ours(models[i], options->steps, &results->ours[i]);
        for (int i = 0; i < results->mode_count; i++)
            run_mode(options, &results->modes[i]);
    }
    for (int i = 0; i < options->lane_count; i++)
        train_model_free(models[i]);
}

static void report(const char *name, double value, const char *yardstick, double yardstick_value)
{
    json_t *line = json_pack("{s:s, s:s, s:f, s:s}", "bench", "train", "case", name, "value", value,
                             "unit", "samples/s");
    if (yardstick != NULL && yardstick_value > 0) {
        (void)json_object_set_new(line, "yardstick", json_string(yardstick));
        (void)json_object_set_new(line, "yardstick_value", json_real(yardstick_value));
        (void)json_object_set_new(line, "ratio", json_real(value / yardstick_value));
        (void)fprintf(stderr, "%-44s %9.2f  %-26s %9.2f  %6.3f\n", name, value, yardstick,
                      yardstick_value, value / yardstick_value);
    } else {
        const char *const absent[] = { "yardstick", "yardstick_value", "ratio" };
        for (int i = 0; i < 3; i++)
            (void)json_object_set_new(line, absent[i], json_null());
        (void)fprintf(stderr, "%-44s %9.2f\n", name, value);
    }
    char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    if (text != NULL)
        (void)printf("%s\n", text);
    free(text);
    json_decref(line);
}

struct best {
    double seconds;
    char name[64];
};

static struct best best_mode(struct results *results, bool by_fastest)
{
    struct best best = { 0 };
    for (int i = 0; i < results->mode_count; i++) {
        struct mode *mode = &results->modes[i];
        double seconds = by_fastest ? fastest(&mode->fastest) : median(&mode->medians);
        if (seconds > 0 && (best.seconds == 0 || seconds < best.seconds)) {
            best.seconds = seconds;
            (void)snprintf(best.name, sizeof(best.name), "PyTorch %s", mode->name);
        }
    }
    return best;
}

/* "resnet18 bf16 batch 128" and more. */
struct name {
    char text[128];
};

static struct name name_of(const struct options *options, const char *more)
{
    struct name name;
    (void)snprintf(name.text, sizeof(name.text), "%s %s batch %d%s", options->model,
                   options->precision, (int)options->batch, more);
    return name;
}

static void report_lanes(const struct options *options, struct results *results, int i)
{
    const double samples = (double)(options->batch * (options->text ? options->seq : 1));
    struct best best = best_mode(results, false), fast = best_mode(results, true);
    const double ours = samples / median(&results->ours[i]);
    char more[64];
    (void)snprintf(more, sizeof(more), ", lanes %d", options->lanes[i]);
    report(name_of(options, more).text, ours, best.name,
           best.seconds > 0 ? samples / best.seconds : 0);
    (void)snprintf(more, sizeof(more), ", lanes %d, fastest", options->lanes[i]);
    report(name_of(options, more).text, samples / fastest(&results->ours[i]), fast.name,
           fast.seconds > 0 ? samples / fast.seconds : 0);
    const double peak = median(&results->peak);
    char yardstick[64];
    (void)snprintf(yardstick, sizeof(yardstick), "products at %.0f GFLOP/s", peak / 1e9);
    (void)snprintf(more, sizeof(more), ", lanes %d, of the bound", options->lanes[i]);
    report(name_of(options, more).text, ours, yardstick, samples * peak / results->flops[i]);
    (void)fprintf(stderr, "%.0f MB of activations and copies of parameters\n",
                  results->bytes[i] / 1e6);
}

static void report_all(const struct options *options, struct results *results)
{
    const double samples = (double)(options->batch * (options->text ? options->seq : 1));
    (void)fprintf(stderr, "\n%-44s %9s  %-26s %9s  %6s\n", "case", "samples/s", "yardstick",
                  "samples/s", "ratio");
    for (int i = 0; i < results->mode_count; i++) {
        struct mode *mode = &results->modes[i];
        char more[64];
        (void)snprintf(more, sizeof(more), ", PyTorch %s", mode->name);
        if (mode->medians.count > 0)
            report(name_of(options, more).text, samples / median(&mode->medians), NULL, 0);
    }
    for (int i = 0; i < options->lane_count; i++)
        report_lanes(options, results, i);
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    static struct results results;
    pin(options.cpu);
    choose_modes(&options, &results);
    measure(&options, &results);
    report_all(&options, &results);
    return 0;
}
