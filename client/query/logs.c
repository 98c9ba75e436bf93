/*
 * logs: what the workers of a job wrote, one line each; with -f what comes, and between it how far
 * the job is.
 *
 * A worker's line is a JSON object (common/log.h), shown in words, or as it is with -o jsonl. What
 * else it wrote (a library's last words) has no time and no level: it counts as an error of the
 * time of the line before it.
 */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/print/format.h"
#include "client/print/moment.h"
#include "client/print/output.h"
#include "client/query/commands.h"
#include "common/clock.h"
#include "proto/text/json.h"

#define RECEIVE_MS  100
#define PROGRESS_MS 5000 /* between two lines of it */

static const char *const levels[] = { "debug", "info", "warn", "error" };

#define LEVELS (sizeof(levels) / sizeof(levels[0]))

struct logs {
    struct client *client;
    size_t level;     /* lines of that one, and higher */
    int64_t since_ms; /* written from then on */
    regex_t pattern;  /* with args.grep */
    int64_t line_ms;  /* of the newest line that says it */
    int64_t told_ms;  /* of the newest line of progress */
    bool watches;     /* rows that come are new */
    bool broken;      /* standard output is gone */
};

/* ---- which lines ---- */

static size_t level_of(const char *word)
{
    size_t level = 0;
    while (level < LEVELS && strcmp(levels[level], word) != 0)
        level++;
    return level;
}

/* false: what is wrong was said. */
static bool parse(struct logs *logs)
{
    const struct arguments *args = &logs->client->args;
    int64_t ms = 0;
    logs->level = args->level == NULL ? 0 : level_of(args->level);
    if (logs->level == LEVELS) {
        client_error("--level takes debug, info, warn or error, not '%s'", args->level);
        return false;
    }
    if (args->since != NULL && !option_duration_parse(args->since, &ms)) {
        client_error("--since takes a time like 10m, not '%s'", args->since);
        return false;
    }
    logs->since_ms = args->since == NULL ? 0 : clock_wall_ms(clock_system()) - ms;
    const int wrong =
        args->grep == NULL ? 0 : regcomp(&logs->pattern, args->grep, REG_EXTENDED | REG_NOSUB);
    if (wrong != 0) {
        char why[128];
        (void)regerror(wrong, &logs->pattern, why, sizeof(why));
        client_error("--grep '%s': %s", args->grep, why);
        return false;
    }
    return true;
}

/* The line as the workers' own JSON object; NULL: it is something else. */
static json_t *read_entry(const Cairn__V1__LogLine *line)
{
    json_t *entry = line->line[0] == '{' ? json_loads(line->line, 0, NULL) : NULL;
    if (json_is_string(json_object_get(entry, "msg")) &&
        json_is_string(json_object_get(entry, "ts")))
        return entry;
    json_decref(entry);
    return NULL;
}

static bool is_wanted(struct logs *logs, const Cairn__V1__LogLine *line, const json_t *entry)
{
    const char *level = json_string_value(json_object_get(entry, "level"));
    const char *time = json_string_value(json_object_get(entry, "ts"));
    const char *text =
        entry == NULL ? line->line : json_string_value(json_object_get(entry, "msg"));
    if (time != NULL)
        (void)format_read_time(time, &logs->line_ms);
    if (logs->line_ms < logs->since_ms || (level != NULL && level_of(level) < logs->level))
        return false;
    return logs->client->args.grep == NULL || regexec(&logs->pattern, text, 0, NULL, 0) == 0;
}

/* ---- lines ---- */

/* Prints a line as it was written; what isn't JSON becomes the message of an object with the same
 * names. */
static bool print_json(const Cairn__V1__LogLine *line, const json_t *entry)
{
    if (entry != NULL)
        return json_write(entry, true) == ST_OK;
    json_t *object = json_pack("{s:i, s:i, s:o}", "rank", (int)line->rank, "generation",
                               (int)line->attempt, "msg", json_from_text(line->line));
    const bool made = json_write(object, true) == ST_OK;
    json_decref(object);
    return made;
}

/* "17:40:55.065+01:00  training from step 0" (client/print/moment.h); what is no news of everyday
 * has its level before it. */
static bool print_entry(const struct logs *logs, const json_t *entry)
{
    const char *time = json_string_value(json_object_get(entry, "ts"));
    const char *level = json_string_value(json_object_get(entry, "level"));
    char clock[MOMENT_BYTES];
    int64_t ms = 0;
    if (format_read_time(time, &ms)) {
        time = moment_text(ms, moment_form_of(logs->client), true, clock_wall_ms(clock_system()),
                           clock);
    }
    bool shown = level != NULL && strcmp(level, "info") != 0;
    return output_printf(logs->client, "%s  %s%s%s\n", time, shown ? level : "", shown ? ": " : "",
                         json_string_value(json_object_get(entry, "msg"))) >= 0;
}

static bool print_words(const struct logs *logs, const Cairn__V1__LogLine *line,
                        const json_t *entry)
{
    if (logs->client->args.rank < 0 && printf("r%u  ", line->rank) < 0)
        return false;
    if (entry != NULL)
        return print_entry(logs, entry);
    const size_t size = strlen(line->line);
    return printf("%s%s", line->line, size > 0 && line->line[size - 1] == '\n' ? "" : "\n") >= 0;
}

static void take_line(struct logs *logs, const Cairn__V1__LogLine *line)
{
    json_t *entry = read_entry(line);
    if (is_wanted(logs, line, entry)) {
        logs->broken = output_is_json(logs->client) ? !print_json(line, entry)
                                                    : !print_words(logs, line, entry);
    }
    json_decref(entry);
}

/* ---- how far it is ---- */

static bool print_row(const struct logs *logs, const Cairn__V1__MetricRow *row, bool evaluated)
{
    char loss[32], time[MOMENT_BYTES];
    (void)moment_text(row->wall_ms, moment_form_of(logs->client), true,
                      clock_wall_ms(clock_system()), time);
    if (printf("--  %s  step %llu  loss %s", time, (unsigned long long)row->step,
               format_number((double)row->loss, loss, sizeof(loss))) < 0)
        return false;
    if (evaluated &&
        printf("  evaluation: loss %s, accuracy %.4f",
               format_number(row->eval->loss, loss, sizeof(loss)), row->eval->accuracy) < 0)
        return false;
    return printf("\n") >= 0;
}

/* Prints what is new in the rows: each evaluation, and else the newest one every few seconds. */
static void take_update(struct logs *logs, const Cairn__V1__JobUpdate *update)
{
    const int64_t now = clock_mono_ms(clock_system());
    for (size_t i = 0; logs->watches && !logs->broken && i < update->n_rows; i++) {
        const Cairn__V1__MetricRow *row = update->rows[i];
        const bool evaluated = row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL;
        const bool due = i + 1 == update->n_rows && now - logs->told_ms >= PROGRESS_MS;
        if (!evaluated && !due)
            continue;
        logs->told_ms = now;
        logs->broken = !print_row(logs, row, evaluated);
    }
    logs->watches = true; /* the first update has what was before */
}

/* NULL: nobody wants to know. */
static struct rpc_stream *open_progress(struct client *client)
{
    const struct arguments *args = &client->args;
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    struct rpc_stream *stream = NULL;
    struct rpc_result result;
    if (!args->follow || args->quiet || output_is_json(client) || args->attempt >= 0 ||
        args->rank > 0 || args->level != NULL || args->grep != NULL)
        return NULL;
    request.job = (char *)args->operands[0];
    return client_stream(client, "WatchJob", &request.base, 0, &stream, &result) == RPC_OK ? stream
                                                                                           : NULL;
}

/* ---- following ---- */

static enum exit_code print_streams(struct logs *logs, struct rpc_stream *lines,
                                    struct rpc_stream *updates)
{
    struct client *client = logs->client;
    enum status st = ST_OK;
    struct rpc_result result = { .code = RPC_OK };
    bool detached = false;
    while (!logs->broken && !detached && st != ST_CLOSED) {
        ProtobufCMessage *message = NULL;
        st = client_recv(client, lines, RECEIVE_MS, &message);
        if (st == ST_OK) {
            take_line(logs, (const Cairn__V1__LogLine *)message);
        } else {
            logs->broken = fflush(stdout) != 0;
        }
        if (message != NULL)
            protobuf_c_message_free_unpacked(message, NULL);
        if (updates != NULL && client_recv(client, updates, 0, &message) == ST_OK) {
            take_update(logs, (const Cairn__V1__JobUpdate *)message);
            protobuf_c_message_free_unpacked(message, NULL);
        }
        detached = interrupt_came(client);
    }
    if (updates != NULL)
        rpc_stream_close(updates, &result);
    rpc_stream_close(lines, &result);
    (void)fflush(stdout);
    if (logs->broken)
        return EXIT_INTERNAL;
    if (detached)
        return EXIT_DETACHED;
    return result.code == RPC_OK ? EXIT_DONE : client_report(client, &result);
}

enum exit_code cmd_logs(struct client *client)
{
    struct logs logs = { .client = client };
    if (!parse(&logs))
        return EXIT_USAGE;
    if (!interrupt_catch(client))
        return EXIT_INTERNAL;
    Cairn__V1__StreamLogsRequest request = CAIRN__V1__STREAM_LOGS_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    request.follow = client->args.follow;
    if (client->args.rank >= 0) {
        request.rank__case = CAIRN__V1__STREAM_LOGS_REQUEST__RANK__RANK;
        request.rank = (uint32_t)client->args.rank;
    }
    if (client->args.attempt >= 0) {
        request.attempt__case = CAIRN__V1__STREAM_LOGS_REQUEST__ATTEMPT__ATTEMPT;
        request.attempt = (uint32_t)client->args.attempt;
    }
    struct rpc_stream *stream = NULL;
    struct rpc_result result;
    enum exit_code code = EXIT_DONE;
    if (client_stream(client, "StreamLogs", &request.base, 0, &stream, &result) != RPC_OK) {
        code = client_report(client, &result);
    } else {
        code = print_streams(&logs, stream, open_progress(client));
    }
    if (client->args.grep != NULL)
        regfree(&logs.pattern);
    return code;
}
