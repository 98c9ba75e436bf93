/* The generation's map over the link: requests with ids; each caller waits for its own answer. */
#include <string.h>

#include "session/internal.h"

#define CALL_MS  10000 /* for an answer that needs no waiting */
#define GRACE_MS 1000  /* for the coordinator's own "timed out" to arrive */

static enum status kv_call(struct session *session, struct session_kv_call *one, const char *key,
                           int64_t wait_ms)
{
    if (strlen(key) >= sizeof(one->key) || one->value_size > LIMIT_KV_VALUE)
        return ST_FULL;
    memcpy(one->key, key, strlen(key) + 1);
    const int64_t deadline_ms = session_deadline(wait_ms);
    int index = -1;
    (void)pthread_mutex_lock(&session->mutex);
    enum status st = session_core_kv_begin(&session->core, one, &index);
    if (st == ST_OK) {
        session_wake(session);
        const struct session_kv_call *live = &session->core.kv[index];
        while (st == ST_OK && live->state != SESSION_KV_DONE) {
            if (!session_wait(session, deadline_ms))
                st = ST_TIMED_OUT;
        }
        *one = *live;
        session_core_kv_end(&session->core, index);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return st == ST_OK ? one->status : st;
}

static enum status kv_set(void *self, const char *key, const void *value, size_t size)
{
    struct session_kv_call one = { .op = CAIRN__V1__KV_REQUEST__OP__SET,
                                   .value = value,
                                   .value_size = size };
    return kv_call(self, &one, key, CALL_MS);
}

static enum status kv_get(void *self, const char *key, void *out, size_t capacity, size_t *out_size,
                          int64_t timeout_ms)
{
    const int64_t end_ms = session_deadline(timeout_ms);
    for (;;) {
        const int64_t left_ms = end_ms - session_deadline(0);
        struct session_kv_call one = { .op = CAIRN__V1__KV_REQUEST__OP__GET,
                                       .out = out,
                                       .capacity = capacity,
                                       .timeout_ms = left_ms > 0 ? left_ms : 0 };
        const enum status st =
            kv_call(self, &one, key, timeout_ms > 0 ? left_ms + GRACE_MS : CALL_MS);
        if (st == ST_OK)
            *out_size = one.out_size;
        /* The coordinator waits no longer than it likes to. */
        const bool again = st == ST_TIMED_OUT && end_ms > session_deadline(0);
        if (!again)
            return st;
    }
}

static enum status kv_add(void *self, const char *key, int64_t delta, int64_t *out_value)
{
    struct session_kv_call one = { .op = CAIRN__V1__KV_REQUEST__OP__ADD, .delta = delta };
    const enum status st = kv_call(self, &one, key, CALL_MS);
    if (st == ST_OK)
        *out_value = one.sum;
    return st;
}

static enum status kv_remove(void *self, const char *key)
{
    struct session_kv_call one = { .op = CAIRN__V1__KV_REQUEST__OP__REMOVE };
    return kv_call(self, &one, key, CALL_MS);
}

void session_kv_init(struct session *session)
{
    session->kv = (struct kv){
        .self = session, .set = kv_set, .get = kv_get, .add = kv_add, .remove = kv_remove
    };
}

const struct kv *session_kv(struct session *session)
{
    return &session->kv;
}
