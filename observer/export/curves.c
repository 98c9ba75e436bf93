#include "observer/export/curves.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "observer/tensorboard/tensorboard.h"
#include "proto/text/job_state.h"

#define ID_BYTES   32
#define PAGES_MAX  256 /* of one look at a job; the rest comes with the next */
#define OVER_MAX   8   /* jobs that ended, in one look: opening one reads up to 16 MB */
#define BACK_STEPS 512 /* a page of rows */

/* A job whose files are written. */
struct written {
    char id[ID_BYTES];      /* "": free */
    struct tensorboard *tb; /* NULL: to be opened */
    int64_t looked_ms;
    bool complete; /* all rows there were at the last look are in */
};

struct curves {
    struct coordinator *coordinator;
    const struct paths *paths;
    const struct log *log;
    struct written jobs[CURVES_JOBS_MAX];
    char (*done)[ID_BYTES]; /* those that ended and are written; of this many */
    size_t done_count, done_capacity;
};

enum status curves_new(struct coordinator *coordinator, const struct paths *paths,
                       const struct log *log, struct curves **out)
{
    struct curves *curves = calloc(1, sizeof(*curves));
    if (curves == NULL)
        return ST_NO_MEMORY;
    curves->coordinator = coordinator;
    curves->paths = paths;
    curves->log = log;
    *out = curves;
    return ST_OK;
}

static void forget(struct written *job)
{
    tensorboard_close(job->tb);
    *job = (struct written){ .tb = NULL };
}

void curves_free(struct curves *curves)
{
    if (curves == NULL)
        return;
    for (size_t i = 0; i < CURVES_JOBS_MAX; i++)
        forget(&curves->jobs[i]);
    free(curves->done);
    free(curves);
}

static bool is_done(const struct curves *curves, const char *id)
{
    for (size_t i = 0; i < curves->done_count; i++) {
        if (strcmp(curves->done[i], id) == 0)
            return true;
    }
    return false;
}

/* Notes that the files of a job that has ended are complete, so that it isn't looked at again.
 * Without memory it is looked at again, and nothing new is found. */
static void add_done(struct curves *curves, const char *id)
{
    if (curves->done_count == curves->done_capacity) {
        const size_t capacity = 2 * curves->done_capacity + 64;
        char(*more)[ID_BYTES] = realloc(curves->done, capacity * ID_BYTES);
        if (more == NULL)
            return;
        curves->done = more;
        curves->done_capacity = capacity;
    }
    (void)snprintf(curves->done[curves->done_count++], ID_BYTES, "%s", id);
}

/* Forgets that a job was complete: it was stopped, and resumed since. */
static void drop_done(struct curves *curves, const char *id)
{
    for (size_t i = 0; i < curves->done_count; i++) {
        if (strcmp(curves->done[i], id) == 0)
            memcpy(curves->done[i], curves->done[--curves->done_count], ID_BYTES);
    }
}

/* Jobs that the coordinator lists no more are not remembered either. */
static void drop_unlisted(struct curves *curves, const struct snapshot *snapshot)
{
    size_t kept = 0;
    for (size_t i = 0; i < curves->done_count; i++) {
        if (snapshot_job(snapshot, curves->done[i]) != NULL)
            memmove(curves->done[kept++], curves->done[i], ID_BYTES);
    }
    curves->done_count = kept;
    for (size_t i = 0; i < CURVES_JOBS_MAX; i++) {
        struct written *job = &curves->jobs[i];
        if (job->id[0] != '\0' && snapshot_job(snapshot, job->id) == NULL)
            forget(job);
    }
}

/* ---- one job ---- */

/* HOME/tensorboard/NAME-ID; what a file's name can't hold is a '_'. */
static enum status folder_of(const struct curves *curves, const Cairn__V1__Job *job,
                             char out[LIMIT_PATH])
{
    char name[LIMIT_NAME];
    (void)snprintf(name, sizeof(name), "%s", job->name);
    for (char *c = name; *c != '\0'; c++)
        *c = (char)(*c == '/' || *c < ' ' || (c == name && *c == '.') ? '_' : *c);
    return paths_join(curves->paths, out, LIMIT_PATH, "tensorboard/%s-%s", name, job->id);
}

/* How a look asks for rows. A later generation makes some anew; and one that began and ended since
 * the last look may have made others: as in observer/curves/history.h, a row that isn't of a later
 * generation than what was written last proves those before it. */
struct asked {
    uint64_t from, back; /* steps */
    uint32_t generation; /* of the job, in the last answer; 0: none */
    bool proved;
};

/* True: rows before this page are to be read first. */
static bool go_back(const struct tensorboard *tb, const Cairn__V1__ReadMetricsReply *reply,
                    struct asked *asked)
{
    const uint32_t written = tensorboard_generation(tb);
    if (asked->generation != reply->generation) { /* the first page, or it changed meanwhile */
        asked->generation = reply->generation;
        asked->proved = written == 0 || written >= reply->generation;
        asked->back = BACK_STEPS;
        if (!asked->proved && reply->base_step + 1 < asked->from) {
            asked->from = reply->base_step + 1;
            return true;
        }
    }
    asked->proved = asked->proved || asked->from <= 1 || reply->n_rows == 0 ||
                    reply->rows[0]->generation <= written;
    if (asked->proved)
        return false;
    asked->from = asked->from > asked->back ? asked->from - asked->back : 1;
    asked->back *= 2;
    return true;
}

/* The rows of the generation that makes them: of the ones before it those that are beyond its
 * beginning may be made anew, and wait for that. */
static enum status add_rows(struct tensorboard *tb, const Cairn__V1__ReadMetricsReply *reply,
                            bool over)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < reply->n_rows; i++) {
        const Cairn__V1__MetricRow *row = reply->rows[i];
        if (!over && row->generation < reply->generation && row->step > reply->base_step)
            continue;
        if (row->step < tensorboard_next_step(tb) && row->generation <= tensorboard_generation(tb))
            continue; /* it is there */
        st = tensorboard_add(tb, row);
    }
    return st;
}

static enum status read_rows(struct curves *curves, struct written *job, bool over)
{
    Cairn__V1__ReadMetricsRequest request = CAIRN__V1__READ_METRICS_REQUEST__INIT;
    struct rpc_result result = { .code = RPC_INTERNAL };
    bool more = true;
    enum status st = ST_OK;
    struct asked asked = { .from = tensorboard_next_step(job->tb) };
    request.job = job->id;
    for (size_t i = 0; st == ST_OK && more && i < PAGES_MAX; i++) {
        ProtobufCMessage *message = NULL;
        request.from_step = asked.from;
        st = coordinator_call(curves->coordinator, "ReadMetrics", &request.base, &message, &result);
        if (st != ST_OK)
            break;
        const Cairn__V1__ReadMetricsReply *reply = (const Cairn__V1__ReadMetricsReply *)message;
        if (!go_back(job->tb, reply, &asked)) {
            st = add_rows(job->tb, reply, over);
            more = reply->more;
            asked.from = reply->next_step;
        }
        protobuf_c_message_free_unpacked(message, NULL);
    }
    job->complete = st == ST_OK && !more;
    return st;
}

static enum status write_job(struct curves *curves, struct written *job,
                             const Cairn__V1__Job *shown)
{
    char folder[LIMIT_PATH];
    enum status st = ST_OK;
    if (job->tb == NULL) {
        st = folder_of(curves, shown, folder);
        if (st == ST_OK)
            st = tensorboard_open(folder, curves->log, &job->tb);
    }
    if (st == ST_OK)
        st = read_rows(curves, job, job_is_over(shown->state));
    if (job->tb == NULL)
        return st;
    const enum status flushed = tensorboard_flush(job->tb);
    if (flushed == ST_CLOSED || st == ST_CLOSED) { /* somebody removed them: they are made anew */
        tensorboard_close(job->tb);
        job->tb = NULL;
    }
    job->complete = job->complete && flushed == ST_OK;
    return st == ST_OK ? flushed : st;
}

/* ---- all of them ---- */

static struct written *find(struct curves *curves, const char *id)
{
    struct written *free_one = NULL;
    for (size_t i = 0; i < CURVES_JOBS_MAX; i++) {
        if (strcmp(curves->jobs[i].id, id) == 0)
            return &curves->jobs[i];
        if (curves->jobs[i].id[0] == '\0')
            free_one = &curves->jobs[i];
    }
    return free_one;
}

/* True if a job has rows that may not be written yet. since: RFC 3339. */
static bool is_wanted(struct curves *curves, const Cairn__V1__Job *job, const char *since)
{
    if (job->step == 0 || strlen(job->id) >= ID_BYTES)
        return false;
    if (!job_is_over(job->state)) {
        drop_done(curves, job->id);
        return true;
    }
    return strcmp(job->ended_at, since) >= 0 && !is_done(curves, job->id);
}

bool curves_look(struct curves *curves, const struct snapshot *snapshot, bool all)
{
    const int64_t now = clock_mono_ms(clock_system());
    const time_t late = (time_t)(clock_wall_ms(clock_system()) / 1000 - CURVES_LATE_S);
    struct tm parts;
    char since[32] = "";
    if (gmtime_r(&late, &parts) != NULL)
        (void)strftime(since, sizeof(since), "%Y-%m-%dT%H:%M:%SZ", &parts);
    bool more = false;
    if (!snapshot->up)
        return false;
    drop_unlisted(curves, snapshot);
    size_t over = 0;
    for (size_t i = 0; i < snapshot->job_count; i++) {
        const Cairn__V1__Job *shown = snapshot->jobs[i];
        struct written *job = is_wanted(curves, shown, since) ? find(curves, shown->id) : NULL;
        if (job == NULL || (!all && job->id[0] != '\0' && now - job->looked_ms < CURVES_EVERY_MS))
            continue;
        if (job_is_over(shown->state) && ++over > OVER_MAX) {
            more = true;
            continue;
        }
        (void)snprintf(job->id, sizeof(job->id), "%s", shown->id);
        job->looked_ms = now;
        const enum status st = write_job(curves, job, shown);
        if (st != ST_OK && st != ST_UNREACHABLE)
            LOG_DEBUG(curves->log, "event files of %s: %s", shown->id, status_string(st));
        more = more || (st == ST_OK && !job->complete);
        if (job_is_over(shown->state) && job->complete) {
            add_done(curves, shown->id);
            forget(job);
        }
    }
    return more;
}
