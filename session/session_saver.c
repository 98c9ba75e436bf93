/*
 * The saver: a thread of lower priority that writes the snapshot's shard file and unlinks files of
 * dropped saves; and the snapshot itself.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint/names.h"
#include "common/check.h"
#include "session/session_internal.h"

#define ALIGNMENT  64
#define NICE       10
#define BESIDE_MAX ((size_t)64 * 1024 * 1024)

/* ---- snapshot ---- */

static size_t aligned(size_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* This rank's share of each buffer, one after the other; or, without room for it, where it is. */
static enum status copy_buffers(struct session_snapshot *snapshot, const struct ckpt_state *state,
                                uint32_t rank, uint32_t size)
{
    size_t at = 0;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *from = &state->buffers[i];
        struct ckpt_buffer *to = &snapshot->buffers[i];
        const uint64_t width = ckpt_dtype_size(from->dtype);
        uint64_t first = 0, count = 0;
        if (snapshot->memory == NULL) {
            *to = *from;
            continue;
        }
        ckpt_share_elements(state, i, rank, size, &first, &count);
        const size_t bytes = (size_t)(count * width);
        if (at > snapshot->capacity || bytes > snapshot->capacity - at)
            return ST_FULL;
        const uint8_t *source = (const uint8_t *)from->data + (first - from->data_first) * width;
        if (bytes > 0)
            memcpy(snapshot->memory + at, source, bytes);
        *to = *from;
        to->data = snapshot->memory + at;
        to->data_first = first;
        at += aligned(bytes);
    }
    snapshot->state.buffers = snapshot->buffers;
    return ST_OK;
}

/* Small things that the caller may change or free: the skip list and the blobs (rank 0 writes
 * them). */
static enum status copy_beside(struct session_snapshot *snapshot, const struct ckpt_state *state,
                               uint32_t rank)
{
    const uint32_t blob_count = rank == 0 ? state->blob_count : 0;
    size_t skip_bytes = (size_t)state->scalars.skip_count * sizeof(uint64_t), need = skip_bytes;
    for (uint32_t i = 0; i < blob_count; i++)
        need += (size_t)state->blobs[i].size;
    if (blob_count > SESSION_BLOBS_MAX || need > BESIDE_MAX)
        return ST_FULL;
    if (need > snapshot->beside_capacity) {
        uint8_t *memory = malloc(2 * need);
        if (memory == NULL)
            return ST_NO_MEMORY;
        free(snapshot->beside);
        snapshot->beside = memory;
        snapshot->beside_capacity = 2 * need;
    }
    if (skip_bytes > 0)
        memcpy(snapshot->beside, state->scalars.skip, skip_bytes);
    snapshot->state.scalars.skip = (const uint64_t *)(void *)snapshot->beside;
    size_t at = skip_bytes;
    for (uint32_t i = 0; i < blob_count; i++) {
        snapshot->blobs[i] = state->blobs[i];
        snapshot->blobs[i].data = snapshot->beside + at;
        if (state->blobs[i].size > 0)
            memcpy(snapshot->beside + at, state->blobs[i].data, (size_t)state->blobs[i].size);
        at += (size_t)state->blobs[i].size;
    }
    snapshot->state.blobs = snapshot->blobs;
    snapshot->state.blob_count = blob_count;
    return ST_OK;
}

enum status session_snapshot_take(struct session_snapshot *snapshot, const struct ckpt_state *state,
                                  uint32_t rank, uint32_t size)
{
    CHECK(state->buffer_count <= CKPT_BUFFERS_MAX);
    snapshot->state = *state;
    enum status st = copy_buffers(snapshot, state, rank, size);
    if (st == ST_OK)
        st = copy_beside(snapshot, state, rank);
    return st;
}

/* ---- the thread ---- */

static void chunk_stored(void *arg, uint64_t done)
{
    (void)done;
    session_tick(arg);
}

static void write_shard(struct session *session, int index, const char *dir)
{
    const struct session_options *o = &session->options;
    const struct ckpt_write_options options = { .progress = chunk_stored, .progress_arg = session };
    const int64_t begin_ms = session_now(session);
    struct ckpt_report report;
    enum status st = ckpt_shard_write(o->io, dir, &session->snapshot.state, o->rank, session->size,
                                      &options, &report);
    bool removed = st != ST_EXISTS; /* the writer unlinks what it made itself */
    Cairn__V1__SaveReport *message = NULL;
    if (st == ST_OK) {
        message = session_report_new(&report, session_now(session) - begin_ms);
        ckpt_report_release(&report);
        if (message == NULL) {
            st = ST_NO_MEMORY;
            removed = false;
        }
    }
    if (st != ST_OK) {
        LOG_WARN(o->log, "save of step %llu failed, ignoring: %s",
                 (unsigned long long)session->snapshot.state.scalars.step, status_string(st));
    }
    (void)pthread_mutex_lock(&session->mutex);
    if (st == ST_OK) {
        session_core_save_written(&session->core, index, message);
    } else {
        session_core_save_failed(&session->core, index, st, removed);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    session_write_words(session); /* before anybody is told: it must be known if this dies now */
}

static void remove_shard(struct session *session, int index, const char *dir)
{
    const struct session_options *o = &session->options;
    char name[64], path[LIMIT_PATH];
    ckpt_shard_name(o->rank, session->size, name);
    enum status st = ckpt_path(dir, name, path);
    if (st == ST_OK)
        st = o->io->unlink(o->io->self, path);
    if (st != ST_OK && st != ST_NOT_FOUND)
        LOG_WARN(o->log, "%s: not removed, ignoring: %s", path, status_string(st));
    (void)pthread_mutex_lock(&session->mutex);
    session_core_save_removed(&session->core, index);
    (void)pthread_mutex_unlock(&session->mutex);
}

/* Training comes first: this thread takes what is left of the processor. */
static void lower_priority(void)
{
    const struct sched_param param = { 0 };
    (void)sched_setscheduler(0, SCHED_BATCH, &param);
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
}

void *session_saver_run(void *arg)
{
    struct session *session = arg;
    lower_priority();
    (void)pthread_mutex_lock(&session->mutex);
    while (!session->closing) {
        const int index = session->core.over ? -1 : session_core_saver_work(&session->core);
        if (index < 0) {
            (void)pthread_cond_wait(&session->changed, &session->mutex);
            continue;
        }
        const struct session_save_record *save = &session->core.saves[index];
        const bool writes = save->state == SAVE_WRITING;
        char dir[LIMIT_PATH];
        memcpy(dir, save->dir, sizeof(dir));
        (void)pthread_mutex_unlock(&session->mutex);
        if (writes) {
            write_shard(session, index, dir);
        } else {
            remove_shard(session, index, dir);
        }
        (void)pthread_mutex_lock(&session->mutex);
        session_wake(session);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return NULL;
}
