/* watch, and the following that submit --watch and --wait do. */
#include "client/query/watch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/home/home.h"
#include "client/print/format.h"
#include "client/print/job.h"
#include "client/print/job_columns.h"
#include "client/print/loss_course.h"
#include "client/print/moment.h"
#include "client/print/screen.h"
#include "client/print/usage.h"
#include "client/query/commands.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "proto/text/json.h"

#define RECEIVE_MS   100   /* between two looks at Ctrl-C and the timeout */
#define REDRAW_MS    100   /* between two blocks on a terminal */
#define LINE_MS      2000  /* between two lines of progress in plain output */
#define REOPEN_MS    500   /* one try to reach it again */
#define STAY_MS      1000  /* one wait for a key, of a job that is over */
#define RECONNECT_MS 60000 /* a coordinator that is away longer is given up */
#define BLOCK_BYTES  65536
#define SPARK_CELLS  40
#define NARROW       72 /* columns; below them there is no bar */

struct watch {
    struct client *client;
    const char *id;
    enum watch_show show;
    Cairn__V1__Job *job;       /* as last seen; NULL before the first update */
    Cairn__V1__MetricRow *row; /* the newest; NULL: none yet */
    struct loss_course *course;
    struct screen *screen;
    bool left; /* by a key */
    int64_t drawn_ms;
    /* Plain lines: what was said last. */
    char said[LIMIT_REASON + 64];
    uint64_t said_step;
    bool broken;     /* standard output is gone */
    int64_t lost_ms; /* when the coordinator went away; 0: it is there */
};

/* ---- the block on a terminal ---- */

static enum status draw_head(const struct watch *watch, size_t width, struct buf *out)
{
    const Cairn__V1__Job *job = watch->job;
    const char *state = job_state_name(job->state);
    if (width < NARROW) { /* the state first: a name can be long */
        return buf_printf(out, "%s%s%s  %s  %s\n", output_color(watch->client, state), state,
                          output_color_off(watch->client), job->name, job->reason);
    }
    return buf_printf(out, "%s  %s  %s%s%s  %s  %zu worker%s  attempt %u%s%s\n", job->name, job->id,
                      output_color(watch->client, state), state, output_color_off(watch->client),
                      job->health, job->n_workers, job->n_workers == 1 ? "" : "s", job->generation,
                      job->reason[0] == '\0' ? "" : "  ", job->reason);
}

/* What matters most comes first: the end of a narrow line is cut. */
static enum status draw_bar(const struct watch *watch, size_t width, struct buf *out)
{
    const Cairn__V1__Job *job = watch->job;
    char bar[512];
    char left[32], step[48];
    char clock[MOMENT_BYTES + 8] = "";
    const bool known = job->total_steps > 0;
    const bool endless = job->command[0] != '\0' && !known; /* nobody knows when it is done */
    double fraction = known ? (double)job->step / (double)job->total_steps : 0;
    const double eta = job->eta_seconds;
    if (isfinite(eta)) {
        const int64_t now = clock_wall_ms(clock_system());
        char at[MOMENT_BYTES];
        (void)snprintf(clock, sizeof(clock), " (%s)",
                       moment_text(now + (int64_t)(eta * 1e3), MOMENT_LOCAL, false, now, at));
    }
    enum status st = ST_OK;
    if (endless) {
        job_cell_step(job, step, sizeof(step));
        return buf_printf(out, "step %s\n", step);
    }
    if (width >= NARROW) {
        st =
            buf_printf(out, "%s ", format_bar(fraction, 32, watch->client->utf8, bar, sizeof(bar)));
    }
    if (st == ST_OK)
        st = buf_printf(out, "%5.1f %%", 100 * fraction);
    if (st == ST_OK && !job_is_over(job->state)) {
        st = buf_printf(out, "  left %s%s", format_seconds(eta, left, sizeof(left)),
                        width < NARROW ? "" : clock);
    }
    if (st == ST_OK) {
        job_cell_step(job, step, sizeof(step));
        st = buf_printf(out, "  step %s", step);
    }
    if (st == ST_OK && watch->row != NULL)
        st = buf_printf(out, "  epoch %.2f", watch->row->epoch);
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

/* Draws the speed, a mean of many steps: one tells little. */
static enum status draw_throughput(const Cairn__V1__Job *job, size_t width, struct buf *out)
{
    char speed[128], mfu[32];
    if (!isfinite(job->throughput) || !isfinite(job->step_ms))
        return ST_OK;
    (void)format_mfu(job, mfu, sizeof(mfu));
    (void)snprintf(speed, sizeof(speed), "%.0f %.32s  %s%sstep ", job->throughput,
                   job->throughput_unit, mfu, mfu[0] == '\0' ? "" : "  ");
    return job_step_parts(job, speed, width, out);
}

static enum status draw_numbers(const struct watch *watch, size_t width, struct buf *out)
{
    const Cairn__V1__MetricRow *row = watch->row;
    char spark[SPARK_CELLS * 4 + 1];
    char loss[32];
    char lr[32];
    if (row == NULL)
        return ST_OK;
    size_t count = watch->course->loss_count;
    enum status st =
        buf_printf(out, "loss %-9s %s  lr %s", format_number((double)row->loss, loss, sizeof(loss)),
                   format_sparkline(watch->course->losses, count, SPARK_CELLS, watch->client->utf8,
                                    spark, sizeof(spark)),
                   format_number((double)row->lr, lr, sizeof(lr)));
    if (st == ST_OK && isfinite(row->grad_norm))
        st = buf_printf(out, "  norm %.3g", (double)row->grad_norm);
    if (st == ST_OK && isfinite(watch->job->accuracy))
        st = buf_printf(out, "  accuracy %.4f", watch->job->accuracy);
    if (st == ST_OK)
        st = buf_append_text(out, "\n");
    return st == ST_OK ? draw_throughput(watch->job, width, out) : st;
}

static enum status draw_saves(const struct watch *watch, struct buf *out)
{
    const Cairn__V1__Job *job = watch->job;
    char bytes[32];
    char age[32];
    char seconds[32];
    enum status st = ST_OK;
    if (job->n_checkpoints > 0) {
        const Cairn__V1__Checkpoint *ckpt = job->checkpoints[0];
        st = buf_printf(
            out, "checkpoint step %llu  %s  %s ago\n", (unsigned long long)ckpt->step,
            format_bytes(ckpt->bytes, bytes, sizeof(bytes)),
            format_age(ckpt->committed_at, clock_wall_ms(clock_system()), age, sizeof(age)));
    }
    double total = 0;
    for (size_t i = 0; i < job->n_lost_seconds; i++)
        total += job->lost_seconds[i]->seconds;
    if (st == ST_OK && job->recovery_count > 0) {
        st = buf_printf(out, "recoveries %u  lost %s\n", job->recovery_count,
                        format_seconds(total, seconds, sizeof(seconds)));
    }
    return st;
}

/* What can be done now. */
static const char *hint_of(const struct watch *watch)
{
    if (watch->screen->full)
        return "q goes back to the list\n";
    return job_is_over(watch->job->state) ? "" : "Ctrl-C leaves; the job goes on\n";
}

static void draw_block(struct watch *watch)
{
    auto_buf struct buf text;
    buf_init(&text, BLOCK_BYTES);
    size_t width = 0, height = 0;
    screen_size(&width, &height);
    enum status st = draw_head(watch, width, &text);
    if (st == ST_OK)
        st = draw_bar(watch, width, &text);
    if (st == ST_OK)
        st = draw_numbers(watch, width, &text);
    size_t ranks = watch->job->n_workers < 16 ? watch->job->n_workers : 16;
    if (st == ST_OK && ranks > 0) {
        st = output_table(worker_columns, false, true,
                          (ProtobufCMessage *const *)watch->job->workers, ranks, &text);
    }
    if (st == ST_OK)
        st = draw_saves(watch, &text);
    if (st == ST_OK && watch->lost_ms != 0)
        st = buf_append_text(&text, "the coordinator is away; trying to reach it\n");
    if (st == ST_OK)
        st = buf_append_text(&text, hint_of(watch));
    if (st == ST_OK)
        screen_paint(watch->screen, text.data);
}

/* ---- plain lines ---- */

static void write_line(struct watch *watch, const char *state)
{
    const Cairn__V1__Job *job = watch->job;
    char clock[MOMENT_BYTES], loss[32], step[48];
    const int64_t now = clock_wall_ms(clock_system());
    (void)moment_text(now, moment_form_of(watch->client), false, now, clock);
    job_cell_step(job, step, sizeof(step));
    (void)printf("%s  %-10s  step %s  loss %s", clock, state, step,
                 format_number(job->loss, loss, sizeof(loss)));
    if (isfinite(job->accuracy))
        (void)printf("  accuracy %.4f", job->accuracy);
    if (job->recovery_count > 0)
        (void)printf("  recoveries %u", job->recovery_count);
    (void)printf("%s%s\n", job->reason[0] == '\0' ? "" : "  ", job->reason);
    watch->broken = fflush(stdout) != 0;
}

static void draw_line(struct watch *watch, int64_t now)
{
    const Cairn__V1__Job *job = watch->job;
    char said[sizeof(watch->said)];
    const char *state = job_state_name(job->state);
    (void)snprintf(said, sizeof(said), "%s %u %s", state, job->generation, job->reason);
    bool changed = strcmp(said, watch->said) != 0;
    if (!changed && (job->step == watch->said_step || now - watch->drawn_ms < LINE_MS))
        return;
    (void)snprintf(watch->said, sizeof(watch->said), "%s", said);
    watch->said_step = job->step;
    watch->drawn_ms = now;
    write_line(watch, state);
}

static void draw_watch(struct watch *watch, bool now_or_never)
{
    int64_t now = clock_mono_ms(clock_system());
    if (watch->show == WATCH_SILENT || watch->job == NULL || output_is_json(watch->client))
        return;
    if (!watch->client->terminal && !watch->screen->full) {
        draw_line(watch, now);
        return;
    }
    if (!now_or_never && watch->drawn_ms != 0 && now - watch->drawn_ms < REDRAW_MS)
        return;
    watch->drawn_ms = now;
    draw_block(watch);
}

/* ---- following ---- */

/* Takes over the update. */
static void take_update(struct watch *watch, Cairn__V1__JobUpdate *update)
{
    for (size_t i = 0; i < update->n_rows; i++) {
        const Cairn__V1__MetricRow *row = update->rows[i];
        loss_course_add(watch->course, row->generation, row->step, row->loss);
    }
    if (watch->show == WATCH_SHOWN && output_is_json(watch->client))
        watch->broken = json_write_message(&update->base) != ST_OK;
    if (update->job != NULL) {
        cairn__v1__job__free_unpacked(watch->job, NULL);
        watch->job = TAKE_PTR(update->job);
    }
    if (update->n_rows > 0) {
        cairn__v1__metric_row__free_unpacked(watch->row, NULL);
        watch->row = update->rows[--update->n_rows];
    }
    cairn__v1__job_update__free_unpacked(update, NULL);
}

/* On a screen that was entered: did somebody want to leave? */
static bool looked_away(struct watch *watch, int64_t ms)
{
    char letter = '\0';
    if (!watch->screen->full)
        return false;
    const enum screen_key key = screen_wait(watch->screen, ms, &letter);
    if (key == SCREEN_AGAIN)
        draw_watch(watch, true);
    if (key == SCREEN_LEAVE || key == SCREEN_ESCAPE || key == SCREEN_LEFT || letter == 'q' ||
        letter == 'Q')
        watch->left = true;
    return watch->left;
}

/* The stream until it ends. EXIT_DONE: the job is over; EXIT_UNREACHABLE: open a new one. */
static enum exit_code follow_stream(struct watch *watch, struct rpc_stream *stream, int64_t until,
                                    struct rpc_result *result)
{
    for (;;) {
        ProtobufCMessage *message = NULL;
        enum status st = client_recv(watch->client, stream, RECEIVE_MS, &message);
        if (st == ST_OK) {
            watch->lost_ms = 0;
            take_update(watch, (Cairn__V1__JobUpdate *)message);
        }
        draw_watch(watch, false);
        if (watch->job != NULL && job_is_over(watch->job->state)) {
            rpc_stream_close(stream, NULL);
            return EXIT_DONE;
        }
        enum exit_code code = EXIT_DONE;
        if (watch->broken || (watch->show == WATCH_SHOWN && output_unread())) {
            code = EXIT_INTERNAL;
        } else if (looked_away(watch, 0) || interrupt_came(watch->client)) {
            code = EXIT_DETACHED;
        } else if (clock_mono_ms(clock_system()) >= until) {
            code = EXIT_TIMED_OUT;
        } else if (st == ST_CLOSED) {
            code = EXIT_UNREACHABLE;
        }
        if (code != EXIT_DONE) {
            rpc_stream_close(stream, result);
            return code;
        }
    }
}

static bool may_retry(struct watch *watch, const struct rpc_result *result)
{
    int64_t now = clock_mono_ms(clock_system());
    bool away = result->code == RPC_UNAVAILABLE || result->code == RPC_OK ||
                result->code == RPC_DEADLINE_EXCEEDED || result->code == RPC_CANCELLED ||
                result->code == RPC_UNKNOWN;
    if (watch->job == NULL && home_supervisor(&watch->client->paths) == 0)
        return false; /* never reached, and nobody restarts it */
    if (watch->lost_ms == 0)
        watch->lost_ms = now;
    return away && now - watch->lost_ms < RECONNECT_MS;
}

static enum exit_code watch_streams(struct watch *watch)
{
    int64_t timeout = watch->client->args.timeout_ms;
    int64_t until = timeout < 0 ? INT64_MAX : clock_mono_ms(clock_system()) + timeout;
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = (char *)watch->id;
    for (;;) {
        struct rpc_stream *stream = NULL;
        struct rpc_result result;
        int32_t wait = watch->lost_ms != 0 ? REOPEN_MS : 0;
        if (client_stream(watch->client, "WatchJob", &request.base, wait, &stream, &result) ==
            RPC_OK) {
            enum exit_code code = follow_stream(watch, stream, until, &result);
            if (code != EXIT_UNREACHABLE)
                return code;
        }
        if (!may_retry(watch, &result))
            return watch->screen->full ? EXIT_UNREACHABLE : client_report(watch->client, &result);
        if (clock_mono_ms(clock_system()) >= until)
            return EXIT_TIMED_OUT;
        draw_watch(watch, false);
        if (looked_away(watch, 0) || interrupt_came(watch->client))
            return EXIT_DETACHED;
    }
}

static enum exit_code say_end(struct watch *watch, enum exit_code code)
{
    const Cairn__V1__Job *job = watch->job;
    const char *name = job == NULL ? watch->id : job->name;
    if (code == EXIT_DONE && job != NULL) {
        draw_watch(watch, true);
        if (watch->show == WATCH_SHOWN && job->final_digest[0] != '\0')
            client_note(watch->client, "digest %s\n", job->final_digest);
        if (job->state == CAIRN__V1__JOB_STATE__FAILED) {
            client_error("%s FAILED: %s\n  cairn why %s says more", job->name, job->reason,
                         job->id);
        }
        return job_exit(job->state);
    }
    if (code == EXIT_DETACHED)
        client_note(watch->client, "left; %s goes on. Again: cairn watch %s\n", name, watch->id);
    if (code == EXIT_TIMED_OUT) {
        client_error("%s is not over yet: %s. Again: cairn watch %s", name,
                     job == NULL ? "not seen" : job_state_name(job->state), watch->id);
    }
    return code;
}

static enum exit_code watch_with(struct watch *watch)
{
    watch->course = malloc(sizeof(*watch->course));
    if (watch->course == NULL)
        return EXIT_INTERNAL;
    loss_course_init(watch->course);
    return watch_streams(watch);
}

static void watch_release(struct watch *watch)
{
    cairn__v1__job__free_unpacked(watch->job, NULL);
    cairn__v1__metric_row__free_unpacked(watch->row, NULL);
    free(watch->course);
}

enum exit_code watch_job(struct client *client, const char *id, enum watch_show show,
                         Cairn__V1__Job **out_job)
{
    struct screen screen = { .client = client };
    struct watch watch = { .client = client, .id = id, .show = show, .screen = &screen };
    enum exit_code code = say_end(&watch, watch_with(&watch));
    if (out_job != NULL)
        *out_job = TAKE_PTR(watch.job);
    watch_release(&watch);
    return code;
}

enum exit_code watch_on_screen(struct client *client, const char *id, struct screen *screen)
{
    struct watch watch = { .client = client, .id = id, .show = WATCH_SHOWN, .screen = screen };
    enum exit_code code = watch_with(&watch);
    if (code == EXIT_DONE)
        draw_watch(&watch, true);
    while (code == EXIT_DONE && !looked_away(&watch, STAY_MS)) {
        if (interrupt_came(client))
            code = EXIT_DETACHED;
    }
    const bool left = watch.left;
    watch_release(&watch);
    return code == EXIT_DETACHED && left ? EXIT_DONE : code;
}

enum exit_code cmd_watch(struct client *client)
{
    if (!interrupt_catch(client))
        return EXIT_INTERNAL;
    return watch_job(client, client->args.operands[0], WATCH_SHOWN, NULL);
}
