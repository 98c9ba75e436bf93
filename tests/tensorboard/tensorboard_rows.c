/*
 * tensorboard_rows FOLDER: event files from rows on stdin, which are lines as `cairn metrics JOB
 * -o jsonl` prints them. {"flush": true} writes them. Prints "STATUS NEXT_STEP GENERATION" when it
 * begins and after each flush; a row that isn't taken makes the next of these fail.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/unconst.h"
#include "observer/tensorboard/tensorboard.h"

#define LINE_BYTES 4096
#define PHASES     6

static const char *const phases[PHASES] = { "data",          "forward",   "backward",
                                            "communication", "optimizer", "snapshot" };

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static uint64_t whole(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static enum status add(struct tensorboard *tb, const json_t *line)
{
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
    Cairn__V1__Eval eval = CAIRN__V1__EVAL__INIT;
    Cairn__V1__Phase phase[PHASES], *list[PHASES];
    row.step = whole(line, "step");
    row.generation = (uint32_t)whole(line, "generation");
    row.loss = (float)number(line, "loss");
    row.lr = (float)number(line, "lr");
    row.grad_norm = (float)number(line, "grad_norm");
    row.samples_per_s = number(line, "samples_per_second");
    row.step_ms = number(line, "seconds") * 1e3;
    row.wall_ms = (int64_t)(number(line, "unix_seconds") * 1e3);
    eval.loss = number(line, "eval_loss");
    eval.accuracy = number(line, "eval_accuracy");
    if (!isnan(eval.loss) || !isnan(eval.accuracy)) {
        row.eval__case = CAIRN__V1__METRIC_ROW__EVAL__EVAL;
        row.eval = &eval;
    }
    row.phases = list;
    for (; row.n_phases < PHASES; row.n_phases++) {
        char key[64];
        Cairn__V1__Phase *at = &phase[row.n_phases];
        (void)snprintf(key, sizeof(key), "%s_seconds", phases[row.n_phases]);
        cairn__v1__phase__init(at);
        at->name = unconst(phases[row.n_phases]);
        at->ms = number(line, key) * 1e3;
        list[row.n_phases] = at;
    }
    return tensorboard_add(tb, &row);
}

static void say(const struct tensorboard *tb, enum status st)
{
    (void)printf("%d %" PRIu64 " %" PRIu32 "\n", st, tensorboard_next_step(tb),
                 tensorboard_generation(tb));
    (void)fflush(stdout);
}

static enum status serve(struct tensorboard *tb)
{
    char text[LINE_BYTES];
    enum status added = ST_OK;
    say(tb, ST_OK);
    while (fgets(text, sizeof(text), stdin) != NULL) {
        json_t *line = json_loads(text, 0, NULL);
        if (line == NULL)
            return ST_INVALID;
        if (json_object_get(line, "flush") != NULL) {
            const enum status st = tensorboard_flush(tb);
            say(tb, st != ST_OK ? st : added);
            added = ST_OK;
        } else if (added == ST_OK) {
            added = add(tb, line);
        }
        json_decref(line);
    }
    return ST_OK;
}

int main(int argc, char **argv)
{
    const struct log log = log_open("tensorboard_rows");
    struct tensorboard *tb = NULL;
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is how a disk gets full here */
    enum status st = argc == 2 ? tensorboard_open(argv[1], &log, &tb) : ST_INVALID;
    if (st == ST_OK)
        st = serve(tb);
    tensorboard_close(tb);
    return st == ST_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
