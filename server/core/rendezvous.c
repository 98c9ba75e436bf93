/*
 * The rendezvous of a generation: its ranks set, add and get keys; a GET waits for its key. What is
 * set is journalled before it is answered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"

static void reply_kv(struct core *core, struct core_job *job, uint32_t rank, uint64_t id,
                     enum status st, const struct kv_entry *entry, int64_t sum)
{
    Cairn__V1__KvReply reply = CAIRN__V1__KV_REPLY__INIT;
    reply.id = id;
    reply.status = st;
    reply.sum = sum;
    if (entry) {
        reply.value.data = entry->value;
        reply.value.len = entry->size;
    }
    core_send_order(core, job, rank, CAIRN__V1__TRAINER_ORDER__BODY_KV, &reply);
}

/* A restart of the coordinator must not make a formation fail: the map is journalled. */
static enum status record_kv(struct core *core, struct core_job *job, const char *key)
{
    const struct kv_entry *entry = kv_map_get(&job->kv, key);
    struct journal *journal = core->options.journal;
    enum status st = core_begin(core);
    if (st == ST_OK && entry) {
        st = journal_put_kv(journal, job->id, job->m.generation, key, entry->value, entry->size);
    } else if (st == ST_OK) {
        st = journal_drop_kv(journal, job->id, key);
    }
    if (st != ST_OK)
        core_fail(core, st, "journalling the rendezvous");
    return st;
}

static void answer_waits(struct core *core, struct core_job *job, const char *key)
{
    const struct kv_entry *entry = kv_map_get(&job->kv, key);
    for (struct core_wait **at = &job->waits; entry && *at;) {
        struct core_wait *wait = *at;
        if (strcmp(wait->key, key) != 0) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        CHECK(job->wait_count > 0);
        job->wait_count--;
        reply_kv(core, job, wait->rank, wait->id, ST_OK, entry, 0);
        free(wait);
    }
}

static void wait_for_key(struct core *core, struct core_job *job, uint32_t rank,
                         const Cairn__V1__KvRequest *request)
{
    int64_t ms = request->timeout_ms < CORE_KV_MS_MAX ? request->timeout_ms : CORE_KV_MS_MAX;
    if (ms <= 0) {
        reply_kv(core, job, rank, request->id, ST_NOT_FOUND, NULL, 0);
        return;
    }
    for (struct core_wait *wait = job->waits; wait; wait = wait->next) {
        if (wait->rank == rank && wait->id == request->id)
            return; /* repeated after a lost session */
    }
    struct core_wait *wait = job->wait_count < CORE_WAITS_MAX ? calloc(1, sizeof *wait) : NULL;
    if (!wait) {
        reply_kv(core, job, rank, request->id, ST_FULL, NULL, 0);
        return;
    }
    *wait = (struct core_wait){
        .next = job->waits, .rank = rank, .id = request->id, .until = core_now(core) + ms
    };
    (void)snprintf(wait->key, sizeof wait->key, "%s", request->key);
    job->waits_at = job->waits && job->waits_at < wait->until ? job->waits_at : wait->until;
    job->waits = wait;
    job->wait_count++;
    core_job_moved(core, job);
}

void core_waits_tick(struct core *core, struct core_job *job)
{
    int64_t now = core_now(core);
    job->waits_at = INT64_MAX;
    for (struct core_wait **at = &job->waits; *at;) {
        struct core_wait *wait = *at;
        if (now < wait->until) {
            job->waits_at = wait->until < job->waits_at ? wait->until : job->waits_at;
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        CHECK(job->wait_count > 0);
        job->wait_count--;
        reply_kv(core, job, wait->rank, wait->id, ST_TIMED_OUT, NULL, 0);
        free(wait);
    }
}

void core_on_kv(struct core *core, struct core_job *job, uint32_t rank,
                const Cairn__V1__KvRequest *request)
{
    enum status st = ST_INVALID;
    int64_t sum = 0;
    if (strlen(request->key) >= LIMIT_KV_KEY) {
        reply_kv(core, job, rank, request->id, ST_FULL, NULL, 0);
        return;
    }
    if (request->op == CAIRN__V1__KV_REQUEST__OP__GET) {
        const struct kv_entry *entry = kv_map_get(&job->kv, request->key);
        if (entry) {
            reply_kv(core, job, rank, request->id, ST_OK, entry, 0);
        } else {
            wait_for_key(core, job, rank, request);
        }
        return;
    }
    if (request->op == CAIRN__V1__KV_REQUEST__OP__SET) {
        st = kv_map_set(&job->kv, request->key, request->value.data, request->value.len);
    } else if (request->op == CAIRN__V1__KV_REQUEST__OP__ADD) {
        st = kv_map_add(&job->kv, request->key, request->delta, &sum);
    } else if (request->op == CAIRN__V1__KV_REQUEST__OP__REMOVE) {
        kv_map_remove(&job->kv, request->key);
        st = ST_OK;
    }
    if (st == ST_OK && record_kv(core, job, request->key) != ST_OK)
        return;
    reply_kv(core, job, rank, request->id, st, NULL, sum);
    answer_waits(core, job, request->key);
    core_job_moved(core, job);
}
