/*
 * Training speed of a model on one core, against PyTorch on the same core in the same run.
 *
 *   train [--model NAME] [--batch N] [--lanes N,N] [--steps N] [--rounds N] [--cpu N] [--peer DIR]
 *
 * DIR holds the peer's environment and script (DIR/bin/python, DIR/torch_step.py); its modes
 * (eager, channels-last, compiled) run as processes of their own between our rounds, since a
 * machine's speed moves from minute to minute. Everything is pinned to one core. Values are medians
 * over all steps of all rounds; "fastest" compares the fastest step of each side, which others on
 * the machine disturb less. The yardstick is PyTorch's best mode with the whole batch in one lane.
 *
 * A step here is what a job with one worker does: each lane forward and backward, the exact sum
 * over lanes, norm, update, refresh of the kernels' copies.
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
#define MODES_MAX   3
#define SAMPLES_MAX 4096

struct options {
    const char *model, *peer;
    int64_t batch;
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
    const char *flags[2];           /* of torch_step.py */
    struct series medians, fastest; /* one per round */
};

struct results {
    struct series ours[LANES_MAX];
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

static struct options parse(int argc, char **argv)
{
    static const struct option known[] = {
        { "model", required_argument, NULL, 'm' },  { "batch", required_argument, NULL, 'b' },
        { "lanes", required_argument, NULL, 'l' },  { "steps", required_argument, NULL, 's' },
        { "rounds", required_argument, NULL, 'r' }, { "cpu", required_argument, NULL, 'c' },
        { "peer", required_argument, NULL, 'p' },   { 0 },
    };
    struct options options = {
        .model = "resnet18", .batch = 128, .steps = 5, .rounds = 3, .cpu = -1
    };
    parse_lanes("1,4", &options);
    int key;
    while ((key = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (key) {
        case 'm':
            options.model = optarg;
            break;
        case 'b':
            options.batch = number(optarg, 1);
            break;
        case 'l':
            parse_lanes(optarg, &options);
            break;
        case 's':
            options.steps = number(optarg, 1);
            break;
        case 'r':
            options.rounds = number(optarg, 1);
            break;
        case 'c':
            options.cpu = number(optarg, 0);
            break;
        case 'p':
            options.peer = optarg;
            break;
        default:
            fail("usage: train [--model NAME] [--batch N] [--lanes N,N] [--steps N] [--rounds N] "
                 "[--cpu N] [--peer DIR]");
        }
    }
    return options;
}

/* One core for us and for every process that we start: the one asked for, else the last allowed. */
static void pin(int cpu)
{
    cpu_set_t set;
    if (cpu < 0) {
        if (sched_getaffinity(0, sizeof set, &set) != 0)
            fail("cannot read the allowed cores");
        for (int i = 0; i < CPU_SETSIZE; i++) {
            if (CPU_ISSET((size_t)i, &set))
                cpu = i;
        }
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail("cannot pin to that core");
    (void)setenv("OMP_NUM_THREADS", "1", 1);
}

static bool readable(const char *dir, const char *name)
{
    char path[1024];
    int length = snprintf(path, sizeof path, "%s/%s", dir, name);
    return length > 0 && (size_t)length < sizeof path && access(path, R_OK) == 0;
}

/* The last line that starts a JSON object in the peer's output. */
static json_t *read_json(FILE *from)
{
    char line[4096];
    json_t *found = NULL;
    while (fgets(line, sizeof line, from) != NULL) {
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
    int length = snprintf(command, sizeof command,
                          "exec '%s/bin/python' '%s/torch_step.py' %s --threads 1 --batch %d "
                          "--steps %d --warmup 2 %s %s",
                          options->peer, options->peer, options->model, (int)options->batch,
                          options->steps, mode->flags[0], mode->flags[1]);
    if (length < 0 || (size_t)length >= sizeof command)
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

static void choose_modes(const struct options *options, struct results *results)
{
    static const struct mode modes[MODES_MAX] = {
        { .name = "eager", .flags = { "", "" } },
        { .name = "channels-last", .flags = { "--channels-last", "" } },
        { .name = "compiled", .flags = { "--mode compile", "" } },
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
    memcpy(results->modes, modes, sizeof modes);
    results->mode_count = MODES_MAX;
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
    for (int i = 0; i < options->lane_count; i++)
        models[i] = train_model_new(options->model, options->batch, options->lanes[i]);
    for (int round = 0; round < options->rounds; round++) {
        (void)fprintf(stderr, "round %d of %d\n", round + 1, options->rounds);
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
            (void)snprintf(best.name, sizeof best.name, "PyTorch %s", mode->name);
        }
    }
    return best;
}

/* What notes on this backend's convolutions allow for ResNet-18, as a multiple of PyTorch's best
 * mode: all parts of a step at the speed of each alone. */
static double bound_of(const struct options *options, int lanes)
{
    if (strcmp(options->model, "resnet18") != 0 || options->batch != 128)
        return 0;
    return lanes == 1 ? 1.76 : lanes == 4 ? 1.5 : 0;
}

static void report_all(const struct options *options, struct results *results)
{
    double batch = (double)options->batch;
    (void)fprintf(stderr, "\n%-44s %9s  %-26s %9s  %6s\n", "case", "samples/s", "yardstick",
                  "samples/s", "ratio");
    for (int i = 0; i < results->mode_count; i++) {
        struct mode *mode = &results->modes[i];
        char name[128];
        (void)snprintf(name, sizeof name, "%s batch %d, PyTorch %s", options->model,
                       (int)options->batch, mode->name);
        if (mode->medians.count > 0)
            report(name, batch / median(&mode->medians), NULL, 0);
    }
    struct best best = best_mode(results, false);
    struct best fast = best_mode(results, true);
    for (int i = 0; i < options->lane_count; i++) {
        char name[128];
        int lanes = options->lanes[i];
        (void)snprintf(name, sizeof name, "%s batch %d, lanes %d", options->model,
                       (int)options->batch, lanes);
        double ours = batch / median(&results->ours[i]);
        double theirs = best.seconds > 0 ? batch / best.seconds : 0;
        report(name, ours, best.name, theirs);
        double bound = theirs * bound_of(options, lanes);
        if (bound > 0) {
            (void)snprintf(name, sizeof name, "%s batch %d, lanes %d, of the bound", options->model,
                           (int)options->batch, lanes);
            report(name, ours, "sum of best parts", bound);
        }
        (void)snprintf(name, sizeof name, "%s batch %d, lanes %d, fastest", options->model,
                       (int)options->batch, lanes);
        report(name, batch / fastest(&results->ours[i]), fast.name,
               fast.seconds > 0 ? batch / fast.seconds : 0);
    }
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
