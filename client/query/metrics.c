/* metrics: a job's rows, one for each step, and with -f what comes. */
#include "proto/text/metrics.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/print/format.h"
#include "client/print/output.h"
#include "client/query/commands.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "proto/text/json.h"

#define RECEIVE_MS 100
#define LINE_BYTES 4096

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

static enum status put_json(const Cairn__V1__MetricRow *row, struct buf *out)
{
    json_t *object = json_object();
    bool made = object != NULL;
    for (enum metric i = METRIC_STEP; made && i < METRICS; i++)
        made = json_object_set_new(object, metric_name(i), metric_json(row, i)) == 0;
    const enum status st = made ? json_print(object, true, out) : ST_NO_MEMORY;
    json_decref(object);
    return st;
}

static enum status put_line(const Cairn__V1__MetricRow *row, struct buf *out)
{
    char loss[32], lr[32], norm[32], eval[32], accuracy[32];
    return buf_printf(
        out, "%9" PRIu64 " %7" PRIu32 " %10s %10s %9s %10s %9s %10.1f %9.1f\n", row->step,
        row->generation, format_number(metric_value(row, METRIC_LOSS), loss, sizeof(loss)),
        format_number(metric_value(row, METRIC_LR), lr, sizeof(lr)),
        format_number(metric_value(row, METRIC_GRAD_NORM), norm, sizeof(norm)),
        format_number(metric_value(row, METRIC_EVAL_LOSS), eval, sizeof(eval)),
        format_number(metric_value(row, METRIC_EVAL_ACCURACY), accuracy, sizeof(accuracy)),
        row->samples_per_s, row->step_ms);
}

static enum status put_head(const struct client *client, struct buf *out)
{
    if (client->args.output == OUTPUT_TABLE || client->args.output == OUTPUT_WIDE) {
        return buf_printf(out, "%9s %7s %10s %10s %9s %10s %9s %10s %9s\n", "STEP", "ATTEMPT",
                          "LOSS", "LR", "NORM", "EVAL LOSS", "ACCURACY", "SAMPLES/S", "MS");
    }
    return client->args.output == OUTPUT_CSV ? metrics_csv_head(out) : ST_OK;
}

static enum status put_row(const struct client *client, const Cairn__V1__MetricRow *row,
                           struct buf *out)
{
    if (client->args.output == OUTPUT_CSV)
        return metrics_csv(row, out);
    return output_is_json(client) ? put_json(row, out) : put_line(row, out);
}

static bool write_out(struct buf *out)
{
    const bool written = out->size == 0 || fwrite(out->data, 1, out->size, stdout) == out->size;
    out->size = 0;
    return written;
}

static enum exit_code print_row(const struct client *client, const Cairn__V1__MetricRow *row,
                                const struct since *since, struct buf *out)
{
    const bool wanted = row->wall_ms >= since->wall_ms;
    return !wanted || (put_row(client, row, out) == ST_OK && write_out(out)) ? EXIT_DONE
                                                                             : EXIT_INTERNAL;
}

/* All there are; *next_step: of those that come. */
static enum exit_code print_pages(struct client *client, const struct since *since, struct buf *out,
                                  uint64_t *next_step)
{
    Cairn__V1__ReadMetricsRequest request = CAIRN__V1__READ_METRICS_REQUEST__INIT;
    bool begun = false, more = true;
    enum exit_code code = EXIT_DONE;
    request.job = (char *)client->args.operands[0];
    request.from_step = since->step + (since->step > 0);
    while (code == EXIT_DONE && more) {
        ProtobufCMessage *message = NULL;
        code = client_call(client, "ReadMetrics", &request.base, 0, &message);
        if (code != EXIT_DONE)
            break;
        const Cairn__V1__ReadMetricsReply *page = (const Cairn__V1__ReadMetricsReply *)message;
        if (!begun && (put_head(client, out) != ST_OK || !write_out(out)))
            code = EXIT_INTERNAL;
        begun = true;
        for (size_t i = 0; code == EXIT_DONE && i < page->n_rows; i++)
            code = print_row(client, page->rows[i], since, out);
        more = page->more;
        request.from_step = page->next_step;
        protobuf_c_message_free_unpacked(message, NULL);
        if (code == EXIT_DONE && interrupt_came(client))
            code = EXIT_DETACHED;
    }
    *next_step = request.from_step;
    return fflush(stdout) == 0 || code != EXIT_DONE ? code : EXIT_INTERNAL;
}

static enum exit_code print_stream(struct client *client, const struct since *since,
                                   uint64_t from_step, struct buf *out)
{
    Cairn__V1__StreamMetricsRequest request = CAIRN__V1__STREAM_METRICS_REQUEST__INIT;
    struct rpc_stream *stream = NULL;
    struct rpc_result result;
    enum status st = ST_OK;
    enum exit_code code = EXIT_DONE;
    request.job = (char *)client->args.operands[0];
    request.follow = true;
    request.from_step = from_step;
    if (client_stream(client, "StreamMetrics", &request.base, 0, &stream, &result) != RPC_OK)
        return client_report(client, &result);
    while (code == EXIT_DONE && st != ST_CLOSED) {
        ProtobufCMessage *message = NULL;
        st = client_recv(client, stream, RECEIVE_MS, &message);
        if (st == ST_OK) {
            code = print_row(client, (const Cairn__V1__MetricRow *)message, since, out);
        } else if (fflush(stdout) != 0) {
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
    uint64_t next_step = 0;
    auto_buf struct buf out;
    buf_init(&out, LINE_BYTES);
    if (!parse_since(client->args.since, &since)) {
        client_error("--since takes a step, or a time like 10m, not '%s'", client->args.since);
        return EXIT_USAGE;
    }
    if (!interrupt_catch(client))
        return EXIT_INTERNAL;
    const enum exit_code code = print_pages(client, &since, &out, &next_step);
    return code == EXIT_DONE && client->args.follow ? print_stream(client, &since, next_step, &out)
                                                    : code;
}
