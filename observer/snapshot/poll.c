#include "observer/snapshot/poll.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"

#define PAGES_MAX 64
#define SHARE     20  /* of the time goes into asking, at most: one in so many parts */
#define DOWN_MS   500 /* to the next try, while it doesn't answer */

struct poll {
    struct coordinator *coordinator;
    const struct log *log;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed, ended; /* another snapshot; `stopped` */
    const struct snapshot *latest;
    bool stopped;
    bool done; /* the last answer is there */
};

/* ---- asking ---- */

struct answer {
    Cairn__V1__ListJobsReply *pages[PAGES_MAX];
    size_t page_count, job_count;
    bool truncated;
    ProtobufCMessage *nodes, *version;
};

static void release_answer(struct answer *answer)
{
    for (size_t i = 0; i < answer->page_count; i++)
        cairn__v1__list_jobs_reply__free_unpacked(answer->pages[i], NULL);
    if (answer->nodes != NULL)
        protobuf_c_message_free_unpacked(answer->nodes, NULL);
    if (answer->version != NULL)
        protobuf_c_message_free_unpacked(answer->version, NULL);
}

static enum status ask_jobs(struct poll *poll, struct answer *answer, struct rpc_result *result)
{
    const char *token = "";
    do {
        Cairn__V1__ListJobsRequest request = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
        ProtobufCMessage *reply = NULL;
        request.page_size = POLL_JOBS_MAX;
        request.page_token = (char *)token;
        const enum status st =
            coordinator_call(poll->coordinator, "ListJobs", &request.base, &reply, result);
        if (st != ST_OK)
            return st;
        Cairn__V1__ListJobsReply *page = (Cairn__V1__ListJobsReply *)reply;
        answer->pages[answer->page_count++] = page;
        answer->job_count += page->n_jobs;
        token = page->next_page_token;
    } while (token[0] != '\0' && answer->page_count < PAGES_MAX &&
             answer->job_count < POLL_JOBS_MAX);
    answer->truncated = token[0] != '\0';
    return ST_OK;
}

static enum status ask(struct poll *poll, struct answer *answer, struct rpc_result *result)
{
    Cairn__V1__GetVersionRequest version = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    Cairn__V1__ListNodesRequest nodes = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    enum status st = ask_jobs(poll, answer, result);
    if (st == ST_OK) {
        st = coordinator_call(poll->coordinator, "GetVersion", &version.base, &answer->version,
                              result);
    }
    if (st == ST_OK)
        st = coordinator_call(poll->coordinator, "ListNodes", &nodes.base, &answer->nodes, result);
    return st;
}

/* NULL: no memory. */
static struct snapshot *look(struct poll *poll)
{
    struct answer answer = { .page_count = 0 };
    struct rpc_result result = { .code = RPC_INTERNAL };
    if (ask(poll, &answer, &result) != ST_OK) {
        release_answer(&answer);
        return snapshot_stale(poll->latest,
                              result.detail[0] != '\0' ? result.detail : "no coordinator answers");
    }
    struct snapshot *made =
        snapshot_new(answer.pages, answer.page_count, (Cairn__V1__ListNodesReply *)answer.nodes,
                     (Cairn__V1__GetVersionReply *)answer.version, poll->latest);
    if (made == NULL) {
        release_answer(&answer);
        return NULL;
    }
    made->seen_unix_s = (double)clock_wall_ms(clock_system()) / 1e3;
    made->truncated = answer.truncated;
    return made;
}

/* ---- the thread ---- */

/* A moment of clock_mono_ms. */
static struct timespec time_of(int64_t ms)
{
    return (struct timespec){ .tv_sec = (time_t)(ms / 1000),
                              .tv_nsec = (long)(ms % 1000) * 1000000 };
}

static void publish(struct poll *poll, struct snapshot *made)
{
    const struct snapshot *last = poll->latest;
    if (made->up != last->up && made->up)
        LOG_INFO(poll->log, "the coordinator answers");
    if (made->up != last->up && !made->up)
        LOG_WARN(poll->log, "the coordinator doesn't answer: %s", made->error);
    (void)pthread_mutex_lock(&poll->lock);
    poll->latest = made;
    (void)pthread_cond_broadcast(&poll->changed);
    (void)pthread_mutex_unlock(&poll->lock);
    snapshot_unref(last);
}

static void *run(void *arg)
{
    struct poll *poll = arg;
    bool stopped = false;
    while (!stopped) {
        const int64_t begun = clock_mono_ms(clock_system());
        struct snapshot *made = look(poll);
        int64_t wait = (clock_mono_ms(clock_system()) - begun) * SHARE;
        wait = wait < POLL_MS ? POLL_MS : wait > POLL_MOST_MS ? POLL_MOST_MS : wait;
        if (made != NULL && !made->up)
            wait = DOWN_MS;
        if (made != NULL)
            publish(poll, made);
        poll_nap(poll, clock_mono_ms(clock_system()) + wait);
        stopped = poll_stopped(poll);
    }
    struct snapshot *last = poll->latest->up ? look(poll) : NULL; /* what came since */
    if (last != NULL)
        publish(poll, last);
    (void)pthread_mutex_lock(&poll->lock);
    poll->done = true;
    (void)pthread_cond_broadcast(&poll->changed);
    (void)pthread_mutex_unlock(&poll->lock);
    return NULL;
}

/* ---- the face ---- */

static enum status prepare(struct poll *poll)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return ST_NO_MEMORY;
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&poll->lock, NULL);
    (void)pthread_cond_init(&poll->changed, &attributes);
    (void)pthread_cond_init(&poll->ended, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    poll->latest = snapshot_stale(NULL, "the coordinator wasn't asked yet");
    return poll->latest != NULL ? ST_OK : ST_NO_MEMORY;
}

enum status poll_start(struct coordinator *coordinator, const struct log *log, struct poll **out)
{
    struct poll *poll = calloc(1, sizeof(*poll));
    if (poll == NULL)
        return ST_NO_MEMORY;
    poll->coordinator = coordinator;
    poll->log = log;
    enum status st = prepare(poll);
    if (st == ST_OK)
        st = status_from_errno(pthread_create(&poll->thread, NULL, run, poll));
    if (st != ST_OK) {
        snapshot_unref(poll->latest);
        free(poll);
        return st;
    }
    *out = poll;
    return ST_OK;
}

void poll_stop(struct poll *poll)
{
    (void)pthread_mutex_lock(&poll->lock);
    poll->stopped = true;
    (void)pthread_cond_broadcast(&poll->changed);
    (void)pthread_cond_broadcast(&poll->ended);
    (void)pthread_mutex_unlock(&poll->lock);
}

void poll_free(struct poll *poll)
{
    (void)pthread_join(poll->thread, NULL);
    snapshot_unref(poll->latest);
    (void)pthread_cond_destroy(&poll->changed);
    (void)pthread_cond_destroy(&poll->ended);
    (void)pthread_mutex_destroy(&poll->lock);
    free(poll);
}

const struct snapshot *poll_latest(struct poll *poll)
{
    (void)pthread_mutex_lock(&poll->lock);
    const struct snapshot *latest = snapshot_ref(poll->latest);
    (void)pthread_mutex_unlock(&poll->lock);
    return latest;
}

const struct snapshot *poll_wait(struct poll *poll, const struct snapshot *last, int32_t timeout_ms)
{
    const struct timespec until = time_of(clock_mono_ms(clock_system()) + timeout_ms);
    int rc = 0;
    (void)pthread_mutex_lock(&poll->lock);
    while (!poll->stopped && poll->latest == last && rc == 0)
        rc = pthread_cond_timedwait(&poll->changed, &poll->lock, &until);
    const bool other = !poll->stopped && poll->latest != last;
    const struct snapshot *latest = other ? snapshot_ref(poll->latest) : NULL;
    (void)pthread_mutex_unlock(&poll->lock);
    return latest;
}

const struct snapshot *poll_last(struct poll *poll, int64_t until_ms)
{
    const struct timespec until = time_of(until_ms);
    int rc = 0;
    (void)pthread_mutex_lock(&poll->lock);
    while (!poll->done && rc == 0)
        rc = pthread_cond_timedwait(&poll->changed, &poll->lock, &until);
    const struct snapshot *latest = snapshot_ref(poll->latest);
    (void)pthread_mutex_unlock(&poll->lock);
    return latest;
}

void poll_nap(struct poll *poll, int64_t until_ms)
{
    const struct timespec until = time_of(until_ms);
    int rc = 0;
    (void)pthread_mutex_lock(&poll->lock);
    while (!poll->stopped && rc == 0)
        rc = pthread_cond_timedwait(&poll->ended, &poll->lock, &until);
    (void)pthread_mutex_unlock(&poll->lock);
}

bool poll_stopped(struct poll *poll)
{
    (void)pthread_mutex_lock(&poll->lock);
    const bool stopped = poll->stopped;
    (void)pthread_mutex_unlock(&poll->lock);
    return stopped;
}
