/*
 * The journal made anew: all jobs into a file beside it, then that takes its place.
 *
 *     cairnd.db.new   made whole; one of a run that was cut off is thrown away
 *     cairnd.db       ─▶ cairnd.db.lost-20260102T030405Z, if there is one
 *     cairnd.db.new   ─▶ cairnd.db
 *
 * Cut off between the last two there is no journal, and cairnd refuses to start: run again.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/format/names.h"
#include "common/cleanup.h"
#include "server/jobfsm/persist.h"
#include "server/rebuild/internal.h"
#include "server/rebuild/rebuild.h"

#define LINES_BYTES ((size_t)64 << 20) /* of all jobs */
#define STATE_BYTES ((size_t)4 << 20)  /* of a job's machine as JSON */

struct rebuild {
    const struct rebuild_options *options;
    struct rebuild_list list;
    struct journal *journal; /* the new one */
    char path[LIMIT_PATH], part[LIMIT_PATH], aside[LIMIT_PATH];
    struct buf made, left, notes; /* lines */
    size_t made_count, left_count;
    int lock_fd;
};

/* ---- a job's rows ---- */

static enum status put_rows(struct journal *journal, const struct rebuild_job *job, int64_t wall_ms)
{
    const struct fsm *m = &job->m;
    auto_buf struct buf state;
    buf_init(&state, STATE_BYTES);
    enum status st = fsm_encode(m, &state);
    const struct journal_job row = { .id = job->found->id,
                                     .name = job->name,
                                     .seq = job->found->seq,
                                     .job_file = job->job_file,
                                     .pins = job->pins,
                                     .state = state.data };
    if (st == ST_OK)
        st = journal_put_job(journal, &row);
    for (size_t i = 0; st == ST_OK && i < m->catalog_count; i++)
        st = journal_put_ckpt(journal, job->found->id, &m->catalog[i]);
    struct reason told;
    reason_set(&told, "the journal was lost: made anew from %zu checkpoints in %.300s",
               m->catalog_count, job->found->store);
    const struct journal_event event = { .wall_ms = wall_ms,
                                         .generation = m->generation,
                                         .step = m->step_max,
                                         .kind = "rebuilt",
                                         .message = told.text };
    if (st == ST_OK)
        st = journal_put_event(journal, job->found->id, &event);
    /* Retention looks at it once more. */
    if (st == ST_OK && fsm_state_final(m->state))
        st = journal_put_ended(journal, job->found->id, JOURNAL_LEFT, NULL, 0);
    return st;
}

static enum status write_job(struct rebuild *r, const struct rebuild_job *job)
{
    enum status st = journal_begin(r->journal);
    if (st == ST_OK)
        st = put_rows(r->journal, job, r->options->wall_ms);
    return st == ST_OK ? journal_commit(r->journal) : st;
}

/* ---- what is told ---- */

static enum status tell_left(struct rebuild *r, const struct rebuild_found *found, const char *why)
{
    r->left_count++;
    return buf_printf(&r->left, "  %s/%s: %s\n", found->store, found->id, why);
}

static enum status tell_made(struct rebuild *r, const struct rebuild_job *job)
{
    const struct fsm *m = &job->m;
    const char *id = job->found->id;
    r->made_count++;
    enum status st = buf_printf(
        &r->made, "%-13s %-20.64s %-10s %8" PRIu64 " %12zu %13" PRIu32 "  %s\n", id, job->name,
        fsm_state_name(m->state), m->step_max, m->catalog_count, m->generation, job->found->store);
    if (st == ST_OK && job->passed > 0) {
        st = buf_printf(&r->notes, "  %s: %u checkpoints are not used; %s\n", id, job->passed,
                        job->passed_why.text);
    }
    if (st == ST_OK && job->store_before[0]) {
        st = buf_printf(&r->notes, "  %s: its checkpoints were in %s; it goes on in %s\n", id,
                        job->store_before, job->found->store);
    }
    return st;
}

static void print_all(const struct rebuild *r)
{
    FILE *out = r->options->out;
    if (r->made_count > 0) {
        (void)fprintf(out, "%-13s %-20s %-10s %8s %12s %13s  %s\n%s", "JOB", "NAME", "STATE",
                      "STEP", "CHECKPOINTS", "ATTEMPTS FROM", "STORE", r->made.data);
    }
    if (r->notes.size > 0)
        (void)fprintf(out, "\nTo know:\n%s", r->notes.data);
    if (r->left_count > 0)
        (void)fprintf(out, "\nNot made anew:\n%s", r->left.data);
    if (r->list.other.size > 0)
        (void)fprintf(out, "\nNot looked at:\n%s", r->list.other.data);
    (void)fflush(out);
}

/* ---- all jobs ---- */

/* Counts the folders with one id: if there are two, nobody can tell which of them is the job's. */
static size_t count_claims(const struct rebuild *r, size_t at)
{
    size_t end = at + 1;
    while (end < r->list.count && r->list.list[end].seq == r->list.list[at].seq)
        end++;
    return end - at;
}

static enum status make_job(struct rebuild *r, const struct rebuild_found *found,
                            struct reason *reason)
{
    struct rebuild_job job;
    enum status st = rebuild_read(r->options->io, found, r->options->wall_ms, &job, reason);
    if (st == ST_OK && job.left.text[0]) {
        st = tell_left(r, found, job.left.text);
    } else if (st == ST_OK) {
        st = write_job(r, &job);
        if (st == ST_OK) {
            st = tell_made(r, &job);
        } else {
            reason_set(reason, "%.200s: %s: %s", r->part, status_string(st),
                       journal_error(r->journal));
        }
    }
    rebuild_job_release(&job);
    return st;
}

static enum status make_jobs(struct rebuild *r, struct reason *reason)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < r->list.count;) {
        const size_t claims = count_claims(r, i);
        const struct rebuild_found *found = &r->list.list[i];
        i += claims;
        if (claims == 1 && r->made_count < JOURNAL_JOBS_MAX) {
            st = make_job(r, found, reason);
            continue;
        }
        for (size_t k = 0; st == ST_OK && k < claims; k++) {
            st = tell_left(r, &found[k],
                           claims > 1 ? "two of the stores have this job: name only one of them"
                                      : "a journal has no room for more jobs; it is an old one");
        }
    }
    return st;
}

/* ---- the file ---- */

static void remove_part(const struct rebuild *r)
{
    static const char *const ends[] = { "", "-wal", "-shm", ".lock" };
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char path[LIMIT_PATH + 8];
        (void)snprintf(path, sizeof(path), "%s%s", r->part, ends[i]);
        (void)unlink(path);
    }
}

static enum status name_files(struct rebuild *r, struct reason *reason)
{
    const time_t now = (time_t)(r->options->wall_ms / 1000);
    struct tm tm;
    char when[32] = "", name[64];
    if (gmtime_r(&now, &tm) != NULL)
        (void)strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", &tm);
    (void)snprintf(name, sizeof(name), REBUILD_JOURNAL ".lost-%s", when);
    enum status st = ckpt_path(r->options->state, REBUILD_JOURNAL, r->path);
    if (st == ST_OK)
        st = ckpt_path(r->options->state, REBUILD_JOURNAL ".new", r->part);
    if (st == ST_OK)
        st = ckpt_path(r->options->state, name, r->aside);
    if (st == ST_OK)
        st = io_mkdir_all(io_system(), r->options->state);
    if (st != ST_OK)
        reason_set(reason, "%.300s: %s", r->options->state, status_string(st));
    return st;
}

/* Checks that nobody has the journal that is there open, and that it is of no use. */
static enum status check_place(struct rebuild *r, struct reason *reason)
{
    const struct journal_watch watch = { NULL, NULL };
    struct reason why = { "" };
    enum status st = journal_lock(r->path, &r->lock_fd);
    if (st == ST_EXISTS) {
        reason_set(reason, "%.300s: a cairnd serves this home: 'cairn down' first", r->path);
        return st;
    }
    if (st == ST_OK)
        st = journal_look(r->path, true, &watch, &why);
    if (st == ST_OK) {
        reason_set(reason,
                   "%.200s is a good journal, and nothing is to be made anew. To do it all "
                   "the same, give that file another name first",
                   r->path);
        return ST_REFUSED;
    }
    if (st == ST_NOT_FOUND || st == ST_CORRUPT || st == ST_VERSION)
        return ST_OK;
    reason_set(reason, "%.200s: %.250s", r->path, why.text[0] ? why.text : status_string(st));
    return st;
}

static enum status take_place(struct rebuild *r, struct reason *reason)
{
    const bool there = access(r->path, F_OK) == 0;
    char ready[LIMIT_PATH + 8];
    (void)snprintf(ready, sizeof(ready), "%s.lock", r->part);
    (void)unlink(ready);
    enum status st = journal_set_aside(r->path, r->aside);
    if (st == ST_OK)
        st = journal_place(r->part, r->path);
    if (st != ST_OK) {
        reason_set(reason, "%.300s: %s", r->path, status_string(st));
        return st;
    }
    if (there)
        st = buf_printf(&r->notes, "  what was in the journal's place is now %s\n", r->aside);
    return st;
}

static enum status make_all(struct rebuild *r, struct reason *reason)
{
    enum status st = name_files(r, reason);
    if (st == ST_OK)
        st = check_place(r, reason);
    if (st == ST_OK)
        st = rebuild_find(r->options, &r->list, reason);
    if (st != ST_OK)
        return st;
    remove_part(r);
    st = journal_open(r->part, &r->journal);
    if (st == ST_OK) {
        st = make_jobs(r, reason);
    } else {
        reason_set(reason, "%.300s: %s", r->part, status_string(st));
    }
    journal_close(r->journal);
    r->journal = NULL;
    if (st == ST_OK && r->made_count == 0) {
        reason_set(reason, "no job in these stores can be made anew");
        st = ST_NOT_FOUND;
    }
    if (st == ST_OK)
        return take_place(r, reason);
    remove_part(r);
    return st;
}

enum status rebuild_run(const struct rebuild_options *options, struct reason *reason)
{
    struct rebuild r = { .options = options, .lock_fd = -1 };
    buf_init(&r.made, LINES_BYTES);
    buf_init(&r.left, LINES_BYTES);
    buf_init(&r.notes, LINES_BYTES);
    const enum status st = make_all(&r, reason);
    if (st == ST_OK || st == ST_NOT_FOUND)
        print_all(&r);
    if (r.lock_fd >= 0)
        (void)close(r.lock_fd);
    rebuild_list_release(&r.list);
    buf_release(&r.made);
    buf_release(&r.left);
    buf_release(&r.notes);
    return st;
}
