#include "client/print/job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/print/format.h"
#include "common/clock.h"

#define SHOW_BYTES_MAX ((size_t)16 << 20)

const char *job_state_name(Cairn__V1__JobState state)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&cairn__v1__job_state__descriptor, (int)state);
    return value == NULL ? "?" : value->name;
}

bool job_is_over(Cairn__V1__JobState state)
{
    return state == CAIRN__V1__JOB_STATE__SUCCEEDED || state == CAIRN__V1__JOB_STATE__FAILED ||
           state == CAIRN__V1__JOB_STATE__STOPPED || state == CAIRN__V1__JOB_STATE__KILLED;
}

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

/* ---- jobs in a table ---- */

static const Cairn__V1__Job *as_job(const ProtobufCMessage *row)
{
    return (const Cairn__V1__Job *)row;
}

static void job_id(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_job(row)->id);
}

static void job_name(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_job(row)->name);
}

static void job_state(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", job_state_name(as_job(row)->state));
}

static void job_health(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const char *health = as_job(row)->health;
    (void)snprintf(out, capacity, "%s", health[0] == '\0' ? "-" : health);
}

static void job_step(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const Cairn__V1__Job *job = as_job(row);
    if (job->total_steps > 0) {
        (void)snprintf(out, capacity, "%llu/%llu", (unsigned long long)job->step,
                       (unsigned long long)job->total_steps);
    } else {
        (void)snprintf(out, capacity, "%llu", (unsigned long long)job->step);
    }
}

static void job_loss(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_number(as_job(row)->loss, out, capacity);
}

static void job_eta(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const Cairn__V1__Job *job = as_job(row);
    (void)format_seconds(job->state == CAIRN__V1__JOB_STATE__RUNNING ? job->eta_s : NAN, out,
                         capacity);
}

static void job_workers(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%zu", as_job(row)->n_workers);
}

static void job_restarts(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u", as_job(row)->restarts);
}

static void job_age(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_age(as_job(row)->submitted_at, clock_wall_ms(clock_system()), out, capacity);
}

static void job_model(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_job(row)->model);
}

static void job_accuracy(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_number(as_job(row)->accuracy, out, capacity);
}

static void job_reason(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_job(row)->reason);
}

const struct listing job_listing = {
    .columns =
        (const struct column[]){
            { "ID", .cell = job_id },
            { "NAME", .cell = job_name },
            { "STATE", .cell = job_state },
            { "HEALTH", .cell = job_health, .wide = true },
            { "STEP", .cell = job_step, .right = true },
            { "LOSS", .cell = job_loss, .right = true },
            { "ACCURACY", .cell = job_accuracy, .right = true, .wide = true },
            { "ETA", .cell = job_eta, .right = true },
            { "WORKERS", .cell = job_workers, .right = true },
            { "RESTARTS", .cell = job_restarts, .right = true },
            { "AGE", .cell = job_age, .right = true },
            { "MODEL", .cell = job_model, .wide = true },
            { "REASON", .cell = job_reason },
            { 0 },
        },
    .name = job_id,
};

/* ---- checkpoints in a table ---- */

static const Cairn__V1__Checkpoint *as_checkpoint(const ProtobufCMessage *row)
{
    return (const Cairn__V1__Checkpoint *)row;
}

static void ckpt_step(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%llu", (unsigned long long)as_checkpoint(row)->step);
}

static void ckpt_generation(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u", as_checkpoint(row)->generation);
}

static void ckpt_age(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_age(as_checkpoint(row)->committed_at, clock_wall_ms(clock_system()), out,
                     capacity);
}

static void ckpt_size(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_bytes(as_checkpoint(row)->bytes, out, capacity);
}

static void ckpt_ratio(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const Cairn__V1__Checkpoint *ckpt = as_checkpoint(row);
    if (ckpt->bytes == 0 || ckpt->raw_bytes == 0) {
        (void)snprintf(out, capacity, "-");
    } else {
        (void)snprintf(out, capacity, "%.3f", (double)ckpt->raw_bytes / (double)ckpt->bytes);
    }
}

static void ckpt_parent_step(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const Cairn__V1__Checkpoint *ckpt = as_checkpoint(row);
    if (ckpt->parent_generation == 0) {
        (void)snprintf(out, capacity, "-");
    } else {
        (void)snprintf(out, capacity, "%llu", (unsigned long long)ckpt->parent_step);
    }
}

static void ckpt_loss(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_number(as_checkpoint(row)->loss, out, capacity);
}

static void ckpt_eval_loss(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_number(as_checkpoint(row)->eval_loss, out, capacity);
}

static void ckpt_eval_accuracy(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)format_number(as_checkpoint(row)->eval_accuracy, out, capacity);
}

static void ckpt_verified(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const Cairn__V1__Checkpoint *ckpt = as_checkpoint(row);
    bool known = ckpt->verified__case == CAIRN__V1__CHECKPOINT__VERIFIED__VERIFIED;
    (void)snprintf(out, capacity, "%s", !known ? "-" : ckpt->verified ? "yes" : "no");
}

/* One of what the save took, by its place in the message. */
static void ckpt_time(const ProtobufCMessage *row, size_t offset, char *out, size_t capacity)
{
    const Cairn__V1__SaveTimes *times = as_checkpoint(row)->times;
    uint64_t us = 0;
    (void)snprintf(out, capacity, "-");
    if (times == NULL)
        return;
    memcpy(&us, (const char *)times + offset, sizeof(us));
    (void)format_us(us, out, capacity);
}

static void ckpt_stall(const ProtobufCMessage *row, char *out, size_t capacity)
{
    ckpt_time(row, offsetof(Cairn__V1__SaveTimes, stall_us), out, capacity);
}

static void ckpt_encode(const ProtobufCMessage *row, char *out, size_t capacity)
{
    ckpt_time(row, offsetof(Cairn__V1__SaveTimes, encode_us), out, capacity);
}

static void ckpt_write(const ProtobufCMessage *row, char *out, size_t capacity)
{
    ckpt_time(row, offsetof(Cairn__V1__SaveTimes, write_us), out, capacity);
}

static void ckpt_sync(const ProtobufCMessage *row, char *out, size_t capacity)
{
    ckpt_time(row, offsetof(Cairn__V1__SaveTimes, sync_us), out, capacity);
}

static void ckpt_save(const ProtobufCMessage *row, char *out, size_t capacity)
{
    ckpt_time(row, offsetof(Cairn__V1__SaveTimes, save_us), out, capacity);
}

static void ckpt_commit(const ProtobufCMessage *row, char *out, size_t capacity)
{
    ckpt_time(row, offsetof(Cairn__V1__SaveTimes, commit_us), out, capacity);
}

static void ckpt_shards(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u", as_checkpoint(row)->shards);
}

static void ckpt_status(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_checkpoint(row)->status);
}

static void ckpt_digest_text(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const char *digest = as_checkpoint(row)->digest;
    (void)snprintf(out, capacity, "%s", digest[0] == '\0' ? "-" : digest);
}

static void ckpt_path(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_checkpoint(row)->path);
}

const struct listing checkpoint_listing = {
    .columns =
        (const struct column[]){
            { "STEP", .cell = ckpt_step, .right = true },
            { "ATTEMPT", .cell = ckpt_generation, .right = true },
            { "AGE", .cell = ckpt_age, .right = true },
            { "SIZE", .cell = ckpt_size, .right = true },
            { "RATIO", .cell = ckpt_ratio, .right = true },
            { "PARENT", .cell = ckpt_parent_step, .right = true },
            { "SHARDS", .cell = ckpt_shards, .right = true },
            { "STATUS", .cell = ckpt_status },
            { "VERIFIED", .cell = ckpt_verified, .wide = true },
            { "LOSS", .cell = ckpt_loss, .right = true, .wide = true },
            { "EVAL LOSS", .cell = ckpt_eval_loss, .right = true, .wide = true },
            { "ACCURACY", .cell = ckpt_eval_accuracy, .right = true, .wide = true },
            { "STALL", .cell = ckpt_stall, .right = true, .wide = true },
            { "CPU", .cell = ckpt_encode, .right = true, .wide = true },
            { "WRITE", .cell = ckpt_write, .right = true, .wide = true },
            { "SYNC", .cell = ckpt_sync, .right = true, .wide = true },
            { "SAVE", .cell = ckpt_save, .right = true, .wide = true },
            { "COMMIT", .cell = ckpt_commit, .right = true, .wide = true },
            { "DIGEST", .cell = ckpt_digest_text },
            { "PATH", .cell = ckpt_path, .wide = true },
            { 0 },
        },
    .name = ckpt_step,
};

/* ---- workers in a table ---- */

static const Cairn__V1__Worker *as_worker(const ProtobufCMessage *row)
{
    return (const Cairn__V1__Worker *)row;
}

static void worker_rank(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u", as_worker(row)->rank);
}

static void worker_node(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_worker(row)->node);
}

static void worker_pid(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u", as_worker(row)->pid);
}

static void worker_share(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u", as_worker(row)->share);
}

static void worker_step(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%llu", (unsigned long long)as_worker(row)->step);
}

static void worker_phase(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_worker(row)->phase);
}

static void worker_state(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_worker(row)->state);
}

const struct listing worker_listing = {
    .columns =
        (const struct column[]){
            { "RANK", .cell = worker_rank, .right = true },
            { "NODE", .cell = worker_node },
            { "PID", .cell = worker_pid, .right = true },
            { "LANES", .cell = worker_share, .right = true },
            { "STEP", .cell = worker_step, .right = true },
            { "STATE", .cell = worker_state },
            { "PHASE", .cell = worker_phase },
            { 0 },
        },
    .name = worker_rank,
};

/* ---- one job ---- */

static enum status show_line(struct buf *out, const char *title, const char *text)
{
    if (text[0] == '\0' || strcmp(text, "-") == 0)
        return ST_OK;
    return buf_printf(out, "%-12s %s\n", title, text);
}

static enum status show_lost(const Cairn__V1__Job *job, struct buf *out)
{
    char text[CELL_BYTES];
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

static enum status show_facts(const struct client *client, const Cairn__V1__Job *job,
                              struct buf *out)
{
    char text[CELL_BYTES];
    const char *state = job_state_name(job->state);
    enum status st =
        buf_printf(out, "%-12s %s%s%s%s%s\n", job->name, output_color(client, state), state,
                   output_color_off(client), job->health[0] == '\0' ? "" : "  ", job->health);
    if (st == ST_OK)
        st = show_line(out, "id", job->id);
    if (st == ST_OK)
        st = show_line(out, "reason", job->reason);
    if (st == ST_OK)
        st = show_line(out, "model", job->model);
    job_step(&job->base, text, sizeof(text));
    if (st == ST_OK)
        st = show_line(out, "step", text);
    if (st == ST_OK)
        st = show_line(out, "loss", format_number(job->loss, text, sizeof(text)));
    if (st == ST_OK)
        st = show_line(out, "accuracy", format_number(job->accuracy, text, sizeof(text)));
    job_eta(&job->base, text, sizeof(text));
    if (st == ST_OK)
        st = show_line(out, "left", text);
    if (st == ST_OK && job->samples_per_s > 0)
        st = buf_printf(out, "%-12s %.0f samples/s\n", "speed", job->samples_per_s);
    if (st == ST_OK)
        st = buf_printf(out, "%-12s %u, %u restarts\n", "attempt", job->generation, job->restarts);
    if (st == ST_OK)
        st = show_lost(job, out);
    if (st == ST_OK)
        st = show_line(out, "submitted", job->submitted_at);
    if (st == ST_OK)
        st = show_line(out, "ended", job->ended_at);
    if (st == ST_OK)
        st = show_line(out, "store", job->store);
    return st == ST_OK ? show_line(out, "digest", job->final_digest) : st;
}

static enum status show_events(const Cairn__V1__Job *job, size_t count_max, struct buf *out)
{
    enum status st = ST_OK;
    size_t first = job->n_events > count_max ? job->n_events - count_max : 0;
    if (job->n_events > 0)
        st = buf_append_text(out, "\n");
    for (size_t i = first; st == ST_OK && i < job->n_events; i++) {
        st = buf_printf(out, "%s  %-11s %s\n", job->events[i]->time, job->events[i]->kind,
                        job->events[i]->message);
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
    enum status st = show_facts(client, job, &out);
    if (st == ST_OK && job->n_workers > 0)
        st = buf_append_text(&out, "\n");
    if (st == ST_OK && job->n_workers > 0) {
        st = output_table(&worker_listing, wide, true, (ProtobufCMessage *const *)job->workers,
                          job->n_workers, &out);
    }
    if (st == ST_OK && job->n_checkpoints > 0)
        st = buf_append_text(&out, "\n");
    if (st == ST_OK && job->n_checkpoints > 0) {
        st = output_table(&checkpoint_listing, wide, true,
                          (ProtobufCMessage *const *)job->checkpoints, job->n_checkpoints, &out);
    }
    if (st == ST_OK)
        st = show_events(job, wide ? SIZE_MAX : 10, &out);
    if (st == ST_OK)
        return output_text(out.data);
    client_error("can't print: %s", status_string(st));
    return EXIT_INTERNAL;
}
