/*
 * The saver: a thread of lower priority that writes a snapshot's shard file and unlinks files of
 * dropped saves.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint/names.h"
#include "common/check.h"
#include "session/session_internal.h"

#define NICE 10

static void chunk_stored(void *arg, uint64_t done)
{
    (void)done;
    session_tick(arg);
}

static void write_shard(struct session *session, int index, int slot, const char *dir)
{
    const struct ckpt_state *state = slot_state(&session->copies.slots[slot]);
    const struct session_options *o = &session->options;
    const struct ckpt_write_options options = { .progress = chunk_stored, .progress_arg = session };
    const int64_t begin_ms = session_now(session);
    struct ckpt_report report;
    enum status st = ckpt_shard_write(o->io, dir, state, o->rank, session->size, &options, &report);
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
                 (unsigned long long)state->scalars.step, status_string(st));
    }
    (void)pthread_mutex_lock(&session->mutex);
    if (st == ST_OK) {
        message->stall_us = session->core.saves[index].stall_us;
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
        const int slot = save->slot;
        char dir[LIMIT_PATH];
        memcpy(dir, save->dir, sizeof(dir));
        (void)pthread_mutex_unlock(&session->mutex);
        if (writes) {
            write_shard(session, index, slot, dir);
        } else {
            remove_shard(session, index, dir);
        }
        (void)pthread_mutex_lock(&session->mutex);
        session_wake(session);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return NULL;
}
