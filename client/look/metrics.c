/* metrics: a job's rows, one for each step, and with -f what comes. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/look/commands.h"
#include "client/print/format.h"
#include "client/print/json.h"
#include "client/print/output.h"
#include "common/cleanup.h"
#include "common/clock.h"

#define RECEIVE_MS 100
#define LINE_BYTES 4096

/* As they are written. Scripts rely on names and order: new ones come last. */
enum fact {
    STEP,
    GENERATION,
    LOSS,
    LR,
    GRAD_NORM,
    EVAL_LOSS,
    EVAL_ACCURACY,
    SAMPLES_PER_SECOND,
    SECONDS,
    EPOCH,
    UNIX_SECONDS,
    DATA,
    FORWARD,
    BACKWARD,
    COMMUNICATION,
    OPTIMIZER,
    SNAPSHOT,
    FACTS
};

static const char *const names[FACTS] = {
    [STEP] = "step",
    [GENERATION] = "generation",
    [LOSS] = "loss",
    [LR] = "lr",
    [GRAD_NORM] = "grad_norm",
    [EVAL_LOSS] = "eval_loss",
    [EVAL_ACCURACY] = "eval_accuracy",
    [SAMPLES_PER_SECOND] = "samples_per_second",
    [SECONDS] = "seconds",
    [EPOCH] = "epoch",
    [UNIX_SECONDS] = "unix_seconds",
    [DATA] = "data_seconds",
    [FORWARD] = "forward_seconds",
    [BACKWARD] = "backward_seconds",
    [COMMUNICATION] = "communication_seconds",
    [OPTIMIZER] = "optimizer_seconds",
    [SNAPSHOT] = "snapshot_seconds",
};

struct since {
    uint64_t step;   /* rows of later ones */
    int64_t wall_ms; /* made from then on */
};

/* "100": after that step; "10m": the last so many minutes. NULL: all. */
static bool parse_since(const char *word, struct since *out)
{
    int64_t ms = 0;
    char *end = NULL;
    *out = (struct since){ 0 };
    if (word == NULL)
        return true;
    errno = 0;
    out->step = strtoull(word, &end, 10);
    if (isdigit((unsigned char)word[0]) && errno == 0 && *end == '\0')
        return true;
    out->step = 0;
    if (!option_duration_parse(word, &ms))
        return false;
    out->wall_ms = clock_wall_ms(clock_system()) - ms;
    return true;
}

/* In whole nanoseconds. */
static double seconds_of(double ms)
{
    return round(ms * 1e6) / 1e9;
}

static double phase_seconds(const Cairn__V1__MetricRow *row, const char *name)
{
    for (size_t i = 0; i < row->n_phases; i++) {
        const char *phase = row->phases[i]->name;
        const size_t size = strlen(phase);
        if (strncmp(name, phase, size) == 0 && strcmp(name + size, "_seconds") == 0)
            return seconds_of(row->phases[i]->ms);
    }
    return (double)NAN;
}

static double value_of(const Cairn__V1__MetricRow *row, enum fact fact)
{
    const bool evaluated = row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    switch (fact) {
    case STEP:
        return (double)row->step;
    case GENERATION:
        return (double)row->generation;
    case LOSS:
        return json_shortest(row->loss);
    case LR:
        return json_shortest(row->lr);
    case GRAD_NORM:
        return json_shortest(row->grad_norm);
    case EVAL_LOSS:
        return evaluated ? row->eval->loss : (double)NAN;
    case EVAL_ACCURACY:
        return evaluated ? row->eval->accuracy : (double)NAN;
    case SAMPLES_PER_SECOND:
        return json_shortest((float)row->samples_per_s);
    case SECONDS:
        return seconds_of(row->step_ms);
    case EPOCH:
        return row->epoch;
    case UNIX_SECONDS:
        return (double)row->wall_ms / 1e3;
    case DATA:
    case FORWARD:
    case BACKWARD:
    case COMMUNICATION:
    case OPTIMIZER:
    case SNAPSHOT:
        return phase_seconds(row, names[fact]);
    case FACTS:
        break;
    }
    return (double)NAN;
}

/* NULL: no memory. */
static json_t *value_json(const Cairn__V1__MetricRow *row, enum fact fact)
{
    const double value = value_of(row, fact);
    if (fact == STEP || fact == GENERATION)
        return json_integer((json_int_t)value);
    return isfinite(value) ? json_real(value) : json_null();
}

/* What isn't known is empty. */
static enum status put_csv(const Cairn__V1__MetricRow *row, struct buf *out)
{
    enum status st = ST_OK;
    for (enum fact i = STEP; st == ST_OK && i < FACTS; i++) {
        json_t *value = value_json(row, i);
        if (i > STEP)
            st = buf_append_text(out, ",");
        if (st == ST_OK && !json_is_null(value)) {
            st = json_print(value, true, out);
            if (st == ST_OK)
                out->size--; /* its newline */
        }
        json_decref(value);
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

static enum status put_json(const Cairn__V1__MetricRow *row, struct buf *out)
{
    json_t *object = json_object();
    bool made = object != NULL;
    for (enum fact i = STEP; made && i < FACTS; i++)
        made = json_object_set_new(object, names[i], value_json(row, i)) == 0;
    const enum status st = made ? json_print(object, true, out) : ST_NO_MEMORY;
    json_decref(object);
    return st;
}

static enum status put_line(const Cairn__V1__MetricRow *row, struct buf *out)
{
    char loss[32], lr[32], norm[32], eval[32], accuracy[32];
    return buf_printf(out, "%9" PRIu64 " %7" PRIu32 " %10s %10s %9s %10s %9s %10.1f %9.1f\n",
                      row->step, row->generation,
                      format_number(value_of(row, LOSS), loss, sizeof(loss)),
                      format_number(value_of(row, LR), lr, sizeof(lr)),
                      format_number(value_of(row, GRAD_NORM), norm, sizeof(norm)),
                      format_number(value_of(row, EVAL_LOSS), eval, sizeof(eval)),
                      format_number(value_of(row, EVAL_ACCURACY), accuracy, sizeof(accuracy)),
                      row->samples_per_s, row->step_ms);
}

static enum status put_head(const struct client *client, struct buf *out)
{
    if (client->args.output == OUTPUT_TABLE || client->args.output == OUTPUT_WIDE) {
        return buf_printf(out, "%9s %7s %10s %10s %9s %10s %9s %10s %9s\n", "STEP", "ATTEMPT",
                          "LOSS", "LR", "NORM", "EVAL LOSS", "ACCURACY", "SAMPLES/S", "MS");
    }
    enum status st = ST_OK;
    for (enum fact i = STEP; client->args.output == OUTPUT_CSV && st == ST_OK && i < FACTS; i++)
        st = buf_printf(out, "%s%s", names[i], i + 1 < FACTS ? "," : "\n");
    return st;
}

static enum status put_row(const struct client *client, const Cairn__V1__MetricRow *row,
                           struct buf *out)
{
    if (client->args.output == OUTPUT_CSV)
        return put_csv(row, out);
    return output_is_json(client) ? put_json(row, out) : put_line(row, out);
}

static bool write_out(struct buf *out)
{
    const bool written = out->size == 0 || fwrite(out->data, 1, out->size, stdout) == out->size;
    out->size = 0;
    return written;
}

static enum exit_code print_rows(struct client *client, struct rpc_stream *stream,
                                 const struct since *since)
{
    auto_buf struct buf out;
    buf_init(&out, LINE_BYTES);
    enum status st = ST_OK;
    struct rpc_result result = { .code = RPC_OK };
    enum exit_code code =
        put_head(client, &out) == ST_OK && write_out(&out) ? EXIT_DONE : EXIT_INTERNAL;
    while (code == EXIT_DONE && st != ST_CLOSED) {
        ProtobufCMessage *message = NULL;
        st = rpc_stream_recv(stream, RECEIVE_MS, &message);
        const Cairn__V1__MetricRow *row = (const Cairn__V1__MetricRow *)message;
        if (st != ST_OK) {
            code = fflush(stdout) == 0 ? code : EXIT_INTERNAL;
        } else if (row->wall_ms >= since->wall_ms &&
                   (put_row(client, row, &out) != ST_OK || !write_out(&out))) {
            code = EXIT_INTERNAL;
        }
        if (message != NULL)
            protobuf_c_message_free_unpacked(message, NULL);
        if (code == EXIT_DONE && interrupt_came(client))
            code = EXIT_DETACHED;
    }
    rpc_stream_close(stream, &result);
    (void)fflush(stdout);
    return code == EXIT_DONE && result.code != RPC_OK ? client_report(client, &result) : code;
}

enum exit_code cmd_metrics(struct client *client)
{
    struct since since;
    if (!parse_since(client->args.since, &since)) {
        client_error("--since takes a step, or a time like 10m, not '%s'", client->args.since);
        return EXIT_USAGE;
    }
    if (!interrupt_catch(client))
        return EXIT_INTERNAL;
    Cairn__V1__StreamMetricsRequest request = CAIRN__V1__STREAM_METRICS_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    request.follow = client->args.follow;
    request.from_step = since.step + (since.step > 0);
    struct rpc_stream *stream = NULL;
    struct rpc_result result;
    if (client_stream(client, "StreamMetrics", &request.base, 0, &stream, &result) != RPC_OK)
        return client_report(client, &result);
    return print_rows(client, stream, &since);
}
