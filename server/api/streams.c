/* Calls that wait: watches, metrics, saves, checkpoints that are read, going down. */
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/api/api.h"
#include "server/render/render.h"

#define WATCH_ROWS_MAX 1000
#define HURRY_MS       5000 /* from ending the trainers to giving up on them */

/* ---- rows ---- */

struct row_batch {
    Cairn__V1__MetricRow *list[WATCH_ROWS_MAX];
    size_t count;
    uint64_t next_step;
};

static bool add_row(void *arg, uint64_t step, const void *data, size_t size)
{
    struct row_batch *rows = arg;
    Cairn__V1__MetricRow *row = cairn__v1__metric_row__unpack(NULL, size, data);
    if (row != NULL)
        rows->list[rows->count++] = row;
    rows->next_step = step + 1;
    return rows->count < WATCH_ROWS_MAX;
}

static void free_rows(struct row_batch *rows)
{
    for (size_t i = 0; i < rows->count; i++)
        cairn__v1__metric_row__free_unpacked(rows->list[i], NULL);
    free(rows);
}

/* Loads rows from step `from` on. NULL: no memory, or the journal failed. */
static struct row_batch *load_rows(struct api *api, const char *job, uint64_t from,
                                   uint32_t count_max)
{
    struct row_batch *rows = calloc(1, sizeof(*rows));
    if (rows == NULL)
        return NULL;
    rows->next_step = from;
    struct journal *journal = coord_options(api->coord)->journal;
    if (journal_each_metric(journal, job, from, count_max, add_row, rows) == ST_OK)
        return rows;
    free_rows(rows);
    return NULL;
}

/* ---- WatchJob ---- */

void api_watch_pump(struct api *api, struct api_stream *stream, int64_t now)
{
    struct coord_job *job = api_stream_job(api, stream);
    if (job == NULL || (stream->watch.begun && job->version == stream->watch.version))
        return;
    if (rpc_call_queued(stream->call) > 4) {
        stream->at = now + API_UPDATE_MS;
        return;
    }
    struct journal *journal = coord_options(api->coord)->journal;
    if (!stream->watch.begun &&
        journal_metric_back(journal, job->id, WATCH_ROWS_MAX, &stream->watch.next_step) != ST_OK)
        stream->watch.next_step = 0;
    Cairn__V1__JobUpdate update = CAIRN__V1__JOB_UPDATE__INIT;
    struct row_batch *rows = load_rows(api, job->id, stream->watch.next_step, WATCH_ROWS_MAX);
    update.job = render_job(api->coord, job, RENDER_CKPTS);
    if (rows == NULL || update.job == NULL) {
        rpc_call_finish(stream->call, RPC_INTERNAL, "no memory");
    } else {
        update.rows = rows->list;
        update.n_rows = rows->count;
        (void)rpc_call_send(stream->call, &update.base);
        stream->watch.version = rows->count < WATCH_ROWS_MAX ? job->version : job->version - 1;
        stream->watch.next_step = rows->next_step;
        stream->watch.begun = true;
        stream->at = now + API_UPDATE_MS;
        if (fsm_state_final(job->m.state) && rows->count < WATCH_ROWS_MAX)
            rpc_call_finish(stream->call, RPC_OK, NULL);
    }
    cairn__v1__job__free_unpacked(update.job, NULL);
    if (rows != NULL)
        free_rows(rows);
}

/* ---- StreamMetrics ---- */

void api_metrics_pump(struct api *api, struct api_stream *stream, int64_t now)
{
    struct coord_job *job = api_stream_job(api, stream);
    if (job == NULL ||
        (stream->metrics.caught_up && job->rows_version == stream->metrics.rows_version &&
         !fsm_state_final(job->m.state)))
        return;
    uint32_t queued = rpc_call_queued(stream->call);
    if (queued >= API_QUEUE_MAX) {
        stream->at = now + API_BACKLOG_MS;
        return;
    }
    uint32_t room = API_QUEUE_MAX - queued;
    struct row_batch *rows = load_rows(api, job->id, stream->metrics.next_step, room);
    if (rows == NULL) {
        rpc_call_finish(stream->call, RPC_INTERNAL, "no memory");
        return;
    }
    for (size_t i = 0; i < rows->count; i++)
        (void)rpc_call_send(stream->call, &rows->list[i]->base);
    stream->metrics.next_step = rows->next_step;
    if (rows->count == room) {
        stream->at = now + API_BACKLOG_MS;
    } else {
        stream->metrics.caught_up = true;
        stream->metrics.rows_version = job->rows_version;
        if (!stream->metrics.follow || fsm_state_final(job->m.state))
            rpc_call_finish(stream->call, RPC_OK, NULL);
    }
    free_rows(rows);
}

/* ---- SaveCheckpoint ---- */

static void send_saved(struct api_stream *stream, const struct coord_job *job)
{
    const struct fsm_ckpt *saved = fsm_saved(&job->m, &stream->save);
    Cairn__V1__SaveCheckpointReply reply = CAIRN__V1__SAVE_CHECKPOINT_REPLY__INIT;
    reply.step = saved->step;
    reply.checkpoint = render_ckpt(job, saved);
    (void)rpc_call_send(stream->call, &reply.base);
    cairn__v1__checkpoint__free_unpacked(reply.checkpoint, NULL);
}

void api_save_pump(struct api *api, struct api_stream *stream)
{
    struct coord_job *job = api_stream_job(api, stream);
    struct reason hint;
    if (job == NULL)
        return;
    switch (fsm_save_outcome(&job->m, &stream->save)) {
    case FSM_OUTCOME_OPEN:
        return;
    case FSM_OUTCOME_SAVED:
        send_saved(stream, job);
        break;
    case FSM_OUTCOME_REFUSED:
        render_space_hint(job, &hint);
        api_refuse(stream->call, RPC_RESOURCE_EXHAUSTED, "%s could not be saved: %s. %s", job->id,
                   job->m.store_full.reason, hint.text);
        break;
    case FSM_OUTCOME_ENDED:
        api_refuse(stream->call, RPC_UNAVAILABLE, "%s is %s: its workers ended before the save: %s",
                   job->id, fsm_state_name(job->m.state), job->m.reason);
        break;
    }
    stream->at = INT64_MAX;
}

/* ---- CheckCheckpoint ---- */

void api_check_pump(struct api *api, struct api_stream *stream)
{
    struct coord_job *job = api_stream_job(api, stream);
    const struct fsm_ckpt *ckpt =
        job != NULL ? fsm_find_ckpt(&job->m, stream->check.step, stream->check.generation) : NULL;
    if (job == NULL)
        return;
    if (ckpt == NULL || ckpt->state == FSM_CKPT_REMOVING) {
        api_refuse(stream->call, RPC_NOT_FOUND, "the checkpoint of step %llu was removed meanwhile",
                   (unsigned long long)stream->check.step);
        stream->at = INT64_MAX;
        return;
    }
    bool bad = ckpt->state == FSM_CKPT_BAD;
    if (ckpt->state == FSM_CKPT_QUARANTINING || (!bad && ckpt->reads == stream->check.reads))
        return; /* the store answers, or its deadline passes */
    bool good = !bad && ckpt->read_status == ST_OK;
    Cairn__V1__CheckCheckpointReply reply = CAIRN__V1__CHECK_CHECKPOINT_REPLY__INIT;
    reply.result = bad ? "bad" : good ? "good" : "unread";
    reply.message = bad || good ? "" : (char *)status_string(ckpt->read_status);
    reply.checkpoint = render_ckpt(job, ckpt);
    (void)rpc_call_send(stream->call, &reply.base);
    cairn__v1__checkpoint__free_unpacked(reply.checkpoint, NULL);
    stream->at = INT64_MAX;
}

/* ---- Drain ---- */

void api_drain_begin(struct api *api, struct rpc_call *call, uint32_t timeout_ms)
{
    struct api_stream *stream = api_stream_new(api, call, API_DRAIN, "");
    if (stream == NULL)
        return;
    size_t count = coord_jobs(api->coord, NULL, 0);
    struct coord_job **jobs = calloc(count ? count : 1, sizeof(void *));
    if (jobs == NULL) {
        api_refuse(call, RPC_INTERNAL, "no memory");
        return;
    }
    (void)coord_jobs(api->coord, jobs, count);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t r = 0; r < jobs[i]->m.count; r++)
            stream->drain.trainers += fsm_alive_rank(&jobs[i]->m, r);
    }
    free(jobs);
    const struct clock *clock = coord_options(api->coord)->clock;
    stream->drain.until = clock_mono_ms(clock) + timeout_ms;
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    coord_drain(api->coord, false, timeout_ms, actor);
}

static void drain_reply(struct api *api, struct api_stream *stream)
{
    Cairn__V1__DrainReply reply = CAIRN__V1__DRAIN_REPLY__INIT;
    reply.saved = coord_drain_saved(api->coord);
    size_t count = coord_jobs(api->coord, NULL, 0);
    struct coord_job **jobs = calloc(count ? count : 1, sizeof(void *));
    if (jobs != NULL)
        (void)coord_jobs(api->coord, jobs, count);
    uint32_t left = 0;
    for (size_t i = 0; jobs != NULL && i < count; i++) {
        for (uint32_t r = 0; r < jobs[i]->m.count; r++)
            left += fsm_alive_rank(&jobs[i]->m, r);
    }
    free(jobs);
    reply.ended = stream->drain.trainers > left ? stream->drain.trainers - left : 0;
    (void)rpc_call_send(stream->call, &reply.base);
    stream->at = INT64_MAX;
}

void api_drain_pump(struct api *api, struct api_stream *stream, int64_t now)
{
    bool late = now >= stream->drain.until;
    if (coord_draining(api->coord) == 0 || (late && stream->drain.hurried)) {
        drain_reply(api, stream);
    } else if (late) {
        stream->drain.hurried = true;
        stream->drain.until = now + HURRY_MS;
        coord_drain(api->coord, true, HURRY_MS, NULL);
        (void)coord_commit(api->coord); /* other streams are told of it in this very round */
    }
}
