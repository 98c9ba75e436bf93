/*
 * What the files of the session share: the object, its locks, its threads.
 *
 * Locks: words_mutex before mutex; neither is held while sending, receiving or writing a shard.
 * Threads: the step thread and others call session.h; the link thread (session_link.c) alone opens,
 *          sends and receives; the saver (session_saver.c) alone writes and unlinks in the store.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "session/session_core.h"

#define SESSION_BLOBS_MAX 16

/* The one copy of a state: this rank's share of the buffers, and what lies beside. */
struct session_snapshot {
    struct ckpt_state state; /* its pointers lead into the rest */
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    struct ckpt_blob blobs[SESSION_BLOBS_MAX];
    uint8_t *memory;
    size_t capacity;
    uint8_t *beside; /* blobs and the skip list */
    size_t beside_capacity;
};

struct session {
    struct session_options options;
    struct kv kv;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* of anything under mutex */
    struct session_core core;
    struct session_snapshot snapshot; /* whose it is says the record that is COPYING or WRITING */
    uint32_t size;                    /* ranks; known with the plan */
    bool closing;
    bool over_told;

    pthread_mutex_t words_mutex;
    uint64_t words_written; /* version */

    _Atomic uint64_t step, counter;
    _Atomic(const char *) phase;

    pthread_t link_thread, saver_thread;
    bool has_link_thread, has_saver_thread;
    struct session_out *out; /* the link thread's */
};

int64_t session_now(const struct session *session);
struct session_progress session_progress_of(struct session *session);

/* Under mutex: waits for changed, until deadline_ms of the machine's monotonic clock at most.
 * false: the deadline has passed. */
bool session_wait(struct session *session, int64_t deadline_ms);
int64_t session_deadline(int64_t timeout_ms);
/* Under mutex: something is to be sent; wakes everybody. */
void session_wake(struct session *session);

/* Writes the last words if they changed since. Not under mutex. */
void session_write_words(struct session *session);

void *session_link_run(void *arg);
void *session_saver_run(void *arg);

/* Copies state's share of this rank. ST_FULL: more than session_ready said. */
MUST_CHECK enum status session_snapshot_take(struct session_snapshot *snapshot,
                                             const struct ckpt_state *state, uint32_t rank,
                                             uint32_t size);

void session_kv_init(struct session *session);
