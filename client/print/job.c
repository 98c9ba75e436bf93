#include "client/print/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/print/cell.h"
#include "client/print/format.h"
#include "client/print/job_columns.h"
#include "client/print/moment.h"
#include "client/print/usage.h"
#include "common/cleanup.h"
#include "common/clock.h"

#define SHOW_BYTES_MAX ((size_t)16 << 20)

enum exit_code job_exit(Cairn__V1__JobState state)
{
    if (state == CAIRN__V1__JOB_STATE__SUCCEEDED)
        return EXIT_DONE;
    if (state == CAIRN__V1__JOB_STATE__FAILED)
        return EXIT_FAILED;
    if (state == CAIRN__V1__JOB_STATE__STOPPED || state == CAIRN__V1__JOB_STATE__KILLED)
        return EXIT_STOPPED;
    return EXIT_INTERNAL;
}

/* ---- checkpoints in a table ---- */

#define CKPT(member) .offset = offsetof(Cairn__V1__Checkpoint, member)
#define TIME(member)                                                                               \
    .part = offsetof(Cairn__V1__Checkpoint, times), .offset = offsetof(Cairn__V1__SaveTimes, member)

static void ckpt_ratio(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Checkpoint *ckpt = row;
    if (ckpt->bytes == 0 || ckpt->raw_bytes == 0) {
        (void)snprintf(out, capacity, "-");
    } else {
        (void)snprintf(out, capacity, "%.3f", (double)ckpt->raw_bytes / (double)ckpt->bytes);
    }
}

/* The folder above its own. */
static void ckpt_job(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Checkpoint *ckpt = row;
    const char *end = strrchr(ckpt->path, '/');
    const char *from = end;
    while (from != NULL && from > ckpt->path && from[-1] != '/')
        from--;
    (void)snprintf(out, capacity, "%.*s", end == NULL ? 0 : (int)(end - from),
                   end == NULL ? "" : from);
}

static void ckpt_parent_step(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Checkpoint *ckpt = row;
    if (ckpt->parent_generation == 0) {
        (void)snprintf(out, capacity, "-");
    } else {
        (void)snprintf(out, capacity, "%llu", (unsigned long long)ckpt->parent_step);
    }
}

static void ckpt_verified(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Checkpoint *ckpt = row;
    bool known = ckpt->verified__case == CAIRN__V1__CHECKPOINT__VERIFIED__VERIFIED;
    (void)snprintf(out, capacity, "%s", !known ? "-" : ckpt->verified ? "yes" : "no");
}

const struct column checkpoint_columns[] = {
    { "STEP", CKPT(step), .cell = cell_u64, .right = true },
    { "ATTEMPT", CKPT(generation), .cell = cell_u32, .right = true },
    { "AGE", CKPT(committed_at), .cell = cell_age, .right = true },
    { "SIZE", CKPT(bytes), .cell = cell_bytes, .right = true },
    { "RATIO", .cell = ckpt_ratio, .right = true },
    { "PARENT", .cell = ckpt_parent_step, .right = true },
    { "SHARDS", CKPT(shards), .cell = cell_u32, .right = true },
    { "STATUS", CKPT(status), .cell = cell_text },
    { "VERIFIED", .cell = ckpt_verified, .wide = true },
    { "LOSS", CKPT(loss), .cell = cell_number, .right = true, .wide = true },
    { "EVAL LOSS", CKPT(eval_loss), .cell = cell_number, .right = true, .wide = true },
    { "ACCURACY", CKPT(eval_accuracy), .cell = cell_number, .right = true, .wide = true },
    { "STALL", TIME(stall_us), .cell = cell_us, .right = true, .wide = true },
    { "CPU", TIME(encode_us), .cell = cell_us, .right = true, .wide = true },
    { "WRITE", TIME(write_us), .cell = cell_us, .right = true, .wide = true },
    { "SYNC", TIME(sync_us), .cell = cell_us, .right = true, .wide = true },
    { "SAVE", TIME(save_us), .cell = cell_us, .right = true, .wide = true },
    { "COMMIT", TIME(commit_us), .cell = cell_us, .right = true, .wide = true },
    { "DIGEST", CKPT(digest), .cell = cell_optional_text },
    { "PATH", CKPT(path), .cell = cell_text, .wide = true },
    { 0 },
};

const struct column stored_checkpoint_columns[] = {
    { "JOB", .cell = ckpt_job },
    { "STEP", CKPT(step), .cell = cell_u64, .right = true },
    { "ATTEMPT", CKPT(generation), .cell = cell_u32, .right = true },
    { "AGE", CKPT(committed_at), .cell = cell_age, .right = true },
    { "SIZE", CKPT(bytes), .cell = cell_bytes, .right = true },
    { "STATUS", CKPT(status), .cell = cell_text },
    { "DIGEST", CKPT(digest), .cell = cell_optional_text },
    { "PATH", CKPT(path), .cell = cell_text, .wide = true },
    { 0 },
};

/* ---- workers in a table ---- */

#define WORKER(member) .offset = offsetof(Cairn__V1__Worker, member)

static void worker_stage(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Worker *worker = row;
    if (worker->stage__case == CAIRN__V1__WORKER__STAGE__STAGE) {
        (void)snprintf(out, capacity, "%u", worker->stage);
    } else {
        (void)snprintf(out, capacity, "-");
    }
}

const struct column worker_columns[] = {
    { "RANK", WORKER(rank), .cell = cell_u32, .right = true },
    { "NODE", WORKER(node), .cell = cell_text },
    { "PID", WORKER(pid), .cell = cell_u32, .right = true },
    { "STAGE", .cell = worker_stage, .right = true, .wide = true },
    { "LANES", WORKER(share), .cell = cell_u32, .right = true },
    { "STEP", WORKER(step), .cell = cell_u64, .right = true },
    { "STATE", WORKER(state), .cell = cell_text },
    { "PHASE", WORKER(phase), .cell = cell_text },
    { "CORES", .cell = cell_worker_cores, .right = true, .wide = true },
    { "MEMORY", .cell = cell_worker_memory, .right = true, .wide = true },
    { "SENT", .cell = cell_worker_sent, .right = true, .wide = true },
    { "RECEIVED", .cell = cell_worker_received, .right = true, .wide = true },
    { "PEAK", .cell = cell_worker_peak, .right = true, .wide = true },
    { 0 },
};

#define SPARE(member) .offset = offsetof(Cairn__V1__Spare, member)

const struct column spare_columns[] = {
    { "SPARE", SPARE(number), .cell = cell_u32, .right = true },
    { "NODE", SPARE(node), .cell = cell_text },
    { "PID", SPARE(pid), .cell = cell_u32, .right = true },
    { "SLOT", SPARE(slot), .cell = cell_u32, .right = true },
    { "STATE", SPARE(state), .cell = cell_text },
    { 0 },
};

/* " (1 warm, 1 starting, 1 waits for a slot)" */
static void put_spares(const Cairn__V1__Job *job, char *out, size_t capacity)
{
    const size_t asked = job->workers_spares;
    size_t warm = 0, starting = 0, used = 0;
    for (size_t i = 0; i < job->n_spares; i++) {
        warm += strcmp(job->spares[i]->state, "warm") == 0;
        starting += strcmp(job->spares[i]->state, "starting") == 0;
    }
    const size_t waits = asked > job->n_spares ? asked - job->n_spares : 0;
    const struct {
        size_t count;
        const char *one, *more;
    } parts[] = { { warm, "warm", "warm" },
                  { starting, "starting", "starting" },
                  { job->n_spares - warm - starting, "ending", "ending" },
                  { waits, "waits for a slot", "wait for slots" } };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && used < capacity; i++) {
        if (parts[i].count == 0)
            continue;
        const char *before = used == 0 ? " (" : ", ";
        const char *word = parts[i].count == 1 ? parts[i].one : parts[i].more;
        int size =
            asked == 1 && job->n_spares <= 1
                ? snprintf(out + used, capacity - used, "%s%s", before, word)
                : snprintf(out + used, capacity - used, "%s%zu %s", before, parts[i].count, word);
        used += size > 0 ? (size_t)size : 0;
    }
    if (used > 0 && used < capacity)
        (void)snprintf(out + used, capacity - used, ")");
}

void job_workers(const Cairn__V1__Job *job, char *out, size_t capacity)
{
    char of[32] = "", min[32] = "", spares[64] = "", states[96] = "";
    size_t there = 0;
    for (size_t i = 0; i < job->n_workers; i++)
        there += strcmp(job->workers[i]->state, "gone") != 0;
    const uint32_t count = job->workers_count, asked = job->workers_spares;
    out[0] = '\0';
    if (count == 0)
        return; /* a coordinator of before */
    if (there > 0 && there != count)
        (void)snprintf(of, sizeof(of), "%zu of ", there);
    if (job->workers_min < count)
        (void)snprintf(min, sizeof(min), " (min %u)", job->workers_min);
    if (asked > 0)
        (void)snprintf(spares, sizeof(spares), ", %u spare%s", asked, asked == 1 ? "" : "s");
    if (asked > 0 && there > 0)
        put_spares(job, states, sizeof(states));
    (void)snprintf(out, capacity, "%s%u%s%s%s", of, count, min, spares, states);
}

/* ---- one job ---- */

/* Appends one part, in the same line or, if that is full, in another one. */
static enum status put_part(const char *part, size_t indent, size_t width, size_t *used,
                            struct buf *out)
{
    const size_t cells = format_cells(part);
    if (*used + 1 + cells <= width || *used <= indent) {
        *used += 1 + cells;
        return buf_printf(out, " %s", part);
    }
    *used = indent + 1 + cells;
    return buf_printf(out, "\n%*s %s", (int)indent, "", part);
}

enum status job_step_parts(const Cairn__V1__Job *job, const char *before, size_t width,
                           struct buf *out)
{
    char part[64];
    int digits = 0;
    const double ms = job_step_ms(job, &digits);
    if (!isfinite(ms))
        return ST_OK;
    (void)snprintf(part, sizeof(part), "%.*f ms", digits, ms);
    size_t used = format_cells(before) + format_cells(part);
    const size_t indent = width == SIZE_MAX ? 0 : 4;
    enum status st = buf_printf(out, "%s%s", before, part);
    for (size_t i = 0; st == ST_OK && i < job->n_phases; i++) {
        (void)snprintf(part, sizeof(part), "%s %.32s %.*f", i == 0 ? "=" : "+",
                       job->phases[i]->name, digits, job->phases[i]->ms);
        st = put_part(part, indent, width, &used, out);
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

static enum status show_line(struct buf *out, const char *title, const char *text)
{
    if (text[0] == '\0' || strcmp(text, "-") == 0)
        return ST_OK;
    return buf_printf(out, "%-12s %s\n", title, text);
}

static enum status show_lost(const Cairn__V1__Job *job, struct buf *out)
{
    char text[OUTPUT_CELL_BYTES];
    double total = 0;
    size_t used = 0;
    for (size_t i = 0; i < job->n_lost_seconds; i++)
        total += job->lost_seconds[i]->seconds;
    if (!(total > 0))
        return ST_OK;
    char seconds[32];
    used = (size_t)snprintf(text, sizeof(text),
                            "%s:", format_seconds(total, seconds, sizeof(seconds)));
    for (size_t i = 0; i < job->n_lost_seconds && used + 64 < sizeof(text); i++) {
        const Cairn__V1__LostSeconds *lost = job->lost_seconds[i];
        if (lost->seconds > 0) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, " %.20s %s", lost->cause,
                                     format_seconds(lost->seconds, seconds, sizeof(seconds)));
        }
    }
    return show_line(out, "lost", text);
}

/* Shows how many recoveries there were, and what the newest one took. */
static enum status show_recoveries(const Cairn__V1__Job *job, struct buf *out)
{
    if (job->recovery_count == 0)
        return ST_OK;
    enum status st = buf_printf(out, "%-12s %u", "recoveries", job->recovery_count);
    if (st == ST_OK && job->n_recoveries > 0) {
        const Cairn__V1__Recovery *last = job->recoveries[job->n_recoveries - 1];
        char seconds[32];
        double total = 0;
        for (size_t i = 0; i < last->n_seconds; i++)
            total += last->seconds[i]->seconds;
        st = buf_printf(out, "; the newest: %s, from step %llu (%s), %llu step%s lost, %s",
                        last->cause, (unsigned long long)last->step, last->kind,
                        (unsigned long long)last->steps_lost, last->steps_lost == 1 ? "" : "s",
                        format_seconds(total, seconds, sizeof(seconds)));
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

/* Between saves. */
static enum status show_copies(const Cairn__V1__Job *job, struct buf *out)
{
    char often[48], each[32], all[32];
    if (job->memory_every == 0 && job->memory_reason[0] == '\0')
        return ST_OK;
    if (job->memory_every == 0)
        return buf_printf(out, "%-12s none in memory: %s\n", "copies", job->memory_reason);
    if (job->memory_every == 1) {
        (void)snprintf(often, sizeof(often), "after every step");
    } else {
        (void)snprintf(often, sizeof(often), "after every %llu steps",
                       (unsigned long long)job->memory_every);
    }
    return buf_printf(out, "%-12s in memory %s, %s per worker, %s in all%s%s\n", "copies", often,
                      format_bytes(job->memory_bytes, each, sizeof(each)),
                      format_bytes(job->memory_bytes * job->n_workers, all, sizeof(all)),
                      job->memory_reason[0] != '\0' ? "; " : "", job->memory_reason);
}

static enum status show_times(const Cairn__V1__Job *job, struct buf *out)
{
    enum status st = show_lost(job, out);
    if (st == ST_OK)
        st = show_recoveries(job, out);
    if (st == ST_OK && isfinite(job->goodput))
        st = buf_printf(out, "%-12s %.1f %%\n", "goodput", 100 * job->goodput);
    return st;
}

static enum status show_speed(const Cairn__V1__Job *job, struct buf *out)
{
    char mfu[32];
    if (!(job->throughput > 0))
        return ST_OK;
    (void)format_mfu(job, mfu, sizeof(mfu));
    return buf_printf(out, "%-12s %.0f %s%s%s\n", "speed", job->throughput, job->throughput_unit,
                      mfu[0] == '\0' ? "" : ", ", mfu);
}

static enum status show_facts(const struct client *client, const Cairn__V1__Job *job,
                              struct buf *out)
{
    char text[OUTPUT_CELL_BYTES];
    const char *state = job_state_name(job->state);
    enum status st =
        buf_printf(out, "%-12s %s%s%s%s%s\n", job->name, output_color(client, state), state,
                   output_color_off(client), job->health[0] == '\0' ? "" : "  ", job->health);
    if (st == ST_OK)
        st = show_line(out, "id", job->id);
    if (st == ST_OK)
        st = show_line(out, "reason", job->reason);
    if (st == ST_OK)
        st = show_line(out, "model", job->command[0] == '\0' ? job->model : "");
    if (st == ST_OK)
        st = show_line(out, "command", job->command);
    job_cell_step(job, text, sizeof(text));
    if (st == ST_OK)
        st = show_line(out, "step", text);
    if (st == ST_OK)
        st = show_line(out, "loss", format_number(job->loss, text, sizeof(text)));
    if (st == ST_OK)
        st = show_line(out, "accuracy", format_number(job->accuracy, text, sizeof(text)));
    job_cell_eta(job, text, sizeof(text));
    if (st == ST_OK)
        st = show_line(out, "left", text);
    if (st == ST_OK)
        st = show_speed(job, out);
    if (st == ST_OK)
        st = job_step_parts(job, "a step       ", SIZE_MAX, out);
    job_workers(job, text, sizeof(text));
    if (st == ST_OK)
        st = show_line(out, "workers", text);
    if (st == ST_OK)
        st = buf_printf(out, "%-12s %u\n", "attempt", job->generation);
    if (st == ST_OK)
        st = show_copies(job, out);
    if (st == ST_OK)
        st = show_times(job, out);
    if (st == ST_OK)
        st = show_line(out, "submitted", job->submitted_at);
    if (st == ST_OK)
        st = show_line(out, "ended", job->ended_at);
    if (st == ST_OK)
        st = show_line(out, "store", job->store);
    return st == ST_OK ? show_line(out, "digest", job->final_digest) : st;
}

static bool is_saved(const Cairn__V1__Event *event)
{
    return strcmp(event->kind, "saved") == 0;
}

/* Returns how many events from first on, before end, are one line: those "saved" in a row. */
static size_t events_of_line(const Cairn__V1__Job *job, size_t first)
{
    size_t end = first + 1;
    while (is_saved(job->events[first]) && end < job->n_events && is_saved(job->events[end]))
        end++;
    return end - first;
}

/* "steps 100, 200 ... 900 (9 checkpoints)" */
static enum status show_saved(const Cairn__V1__Job *job, size_t first, size_t count,
                              struct buf *out)
{
    const Cairn__V1__Event *last = job->events[first + count - 1];
    enum status st = buf_printf(out, "%s  %-11s steps %llu, %llu", last->time, last->kind,
                                (unsigned long long)job->events[first]->step,
                                (unsigned long long)job->events[first + 1]->step);
    if (st == ST_OK && count > 2) {
        st =
            buf_printf(out, " %s %llu", count == 3 ? "and" : "...", (unsigned long long)last->step);
    }
    return st == ST_OK ? buf_printf(out, " (%zu checkpoints)\n", count) : st;
}

/* The last lines, at most lines_max of them; with -o wide each event is one. */
static enum status show_events(const Cairn__V1__Job *job, bool wide, size_t lines_max,
                               struct buf *out)
{
    enum status st = ST_OK;
    size_t lines = 0;
    if (job->n_events > 0)
        st = buf_append_text(out, "\n");
    for (size_t i = 0; i < job->n_events; i += wide ? 1 : events_of_line(job, i))
        lines++;
    for (size_t i = 0, count; st == ST_OK && i < job->n_events; i += count) {
        const Cairn__V1__Event *event = job->events[i];
        count = wide ? 1 : events_of_line(job, i);
        if (lines-- > lines_max)
            continue;
        if (count > 1) {
            st = show_saved(job, i, count, out);
        } else {
            st = buf_printf(out, "%s  %-11s %s\n", event->time, event->kind, event->message);
        }
    }
    return st;
}

enum exit_code job_show(const struct client *client, const Cairn__V1__Job *job)
{
    if (output_is_json(client))
        return output_message(client, &job->base);
    if (client->args.output == OUTPUT_NAME)
        return printf("%s\n", job->id) < 0 ? EXIT_INTERNAL : output_text(NULL);
    bool wide = client->args.output == OUTPUT_WIDE;
    auto_buf struct buf out;
    buf_init(&out, SHOW_BYTES_MAX);
    const struct {
        const struct column *columns;
        size_t count;
        void *rows;
    } tables[] = {
        { worker_columns, job->n_workers, job->workers },
        { spare_columns, job->n_spares, job->spares },
        { checkpoint_columns, job->n_checkpoints, job->checkpoints },
    };
    enum status st = show_facts(client, job, &out);
    for (size_t i = 0; st == ST_OK && i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (tables[i].count == 0)
            continue;
        st = buf_append_text(&out, "\n");
        if (st == ST_OK) {
            st = output_table(tables[i].columns, wide, true,
                              (ProtobufCMessage *const *)tables[i].rows, tables[i].count, &out);
        }
    }
    if (st == ST_OK)
        st = show_events(job, wide, wide ? SIZE_MAX : 10, &out);
    auto_free char *text = st != ST_OK ? NULL
                                       : moment_rewrite(out.data, moment_form_of(client),
                                                        clock_wall_ms(clock_system()));
    if (text != NULL)
        return output_screen(client, text);
    client_error("can't print: %s", status_string(st));
    return EXIT_INTERNAL;
}
