#include "observer/export/notices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/clock.h"
#include "observer/webhook/webhook.h"
#include "proto/text/job_state.h"

#define ID_BYTES 32

/* A job as it was handed over. */
struct handed {
    char id[ID_BYTES];
    uint64_t mark; /* of what lists show of it */
    int64_t at_ms;
};

struct notices {
    struct coordinator *coordinator;
    struct webhooks *webhooks;
    struct handed *jobs; /* in the order of the newest snapshot */
    size_t count;
};

enum status notices_new(struct coordinator *coordinator, const struct paths *paths,
                        const struct log *log, struct notices **out)
{
    struct notices *notices = calloc(1, sizeof(*notices));
    if (notices == NULL)
        return ST_NO_MEMORY;
    notices->coordinator = coordinator;
    const struct webhook_options options = { .paths = paths, .log = log };
    const enum status st = webhook_open(&options, &notices->webhooks);
    if (st != ST_OK) {
        free(notices);
        return st;
    }
    *out = notices;
    return ST_OK;
}

size_t notices_waiting(struct notices *notices)
{
    return webhook_waiting(notices->webhooks);
}

void notices_free(struct notices *notices)
{
    if (notices == NULL)
        return;
    webhook_close(notices->webhooks);
    free(notices->jobs);
    free(notices);
}

/* Whatever an event goes with changes it. */
static uint64_t mark_of(const Cairn__V1__Job *job)
{
    const uint64_t refused = job->checkpoint_plan != NULL ? job->checkpoint_plan->refused : 0;
    const uint64_t numbers[] = { (uint64_t)job->state, job->generation, job->recovery_count,
                                 job->restarts, refused };
    const uint64_t health = XXH3_64bits(job->health, strlen(job->health));
    const uint64_t reason = XXH3_64bits_withSeed(job->reason, strlen(job->reason), health);
    return XXH3_64bits_withSeed(numbers, sizeof(numbers), reason);
}

/* NULL: it is new. at: where it is, most probably. */
static const struct handed *find(const struct notices *notices, const char *id, size_t at)
{
    for (size_t i = 0; i < notices->count; i++) {
        const struct handed *one = &notices->jobs[(at + i) % notices->count];
        if (strcmp(one->id, id) == 0)
            return one;
    }
    return NULL;
}

static bool hand_over(struct notices *notices, const Cairn__V1__Job *job)
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    struct rpc_result result;
    ProtobufCMessage *reply = NULL;
    request.job = job->id;
    if (coordinator_call(notices->coordinator, "GetJob", &request.base, &reply, &result) != ST_OK)
        return false;
    webhook_job(notices->webhooks, (const Cairn__V1__Job *)reply);
    protobuf_c_message_free_unpacked(reply, NULL);
    return true;
}

void notices_look(struct notices *notices, const struct snapshot *snapshot)
{
    if (!snapshot->up || !webhook_wanted(notices->webhooks))
        return;
    struct handed *next = calloc(snapshot->job_count + 1, sizeof(*next));
    if (next == NULL)
        return;
    const int64_t now = clock_mono_ms(clock_system());
    size_t asked = 0, fresh = 0;
    for (size_t i = 0; i < snapshot->job_count; i++) {
        const Cairn__V1__Job *job = snapshot->jobs[i];
        const struct handed *before = find(notices, job->id, i - fresh);
        struct handed *after = &next[i];
        fresh += before == NULL; /* new ones come first */
        *after = before != NULL ? *before : (struct handed){ .at_ms = 0 };
        (void)snprintf(after->id, ID_BYTES, "%s", job->id);
        const uint64_t mark = mark_of(job);
        const bool due = !job_is_over(job->state) && now - after->at_ms >= NOTICES_EVERY_MS;
        if ((after->mark == mark && !due) || asked == NOTICES_ONCE_MAX)
            continue;
        asked++;
        if (hand_over(notices, job)) {
            after->mark = mark;
            after->at_ms = now;
        }
    }
    free(notices->jobs);
    notices->jobs = next;
    notices->count = snapshot->job_count;
}
