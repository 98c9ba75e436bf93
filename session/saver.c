/*
 * The saver: a thread of lower priority that writes a snapshot's shard file and unlinks files of
 * dropped saves. Its writer, with the threads that encode, is made once, of the same priority.
 */
#include <linux/ioprio.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "checkpoint/format/names.h"
#include "common/check.h"
#include "session/internal.h"

#define NICE 10

struct saver {
    struct session *session;
    struct ckpt_writer *writer; /* NULL: not yet made */
    enum ckpt_level level;
    uint32_t threads;
};

/* A copy of the record that the saver works on. */
struct saver_task {
    int index;
    bool writes;
    int file;
    char dir[LIMIT_PATH], base_dir[LIMIT_PATH];
};

static void chunk_stored(void *arg, uint64_t done)
{
    (void)done;
    session_tick_saving(arg);
}

/* Opens the base checkpoint; NULL: none, or unreadable: the file then stands for itself. */
static struct ckpt_reader *open_base(const struct session_options *o, const char *dir)
{
    struct ckpt_reader *base = NULL;
    if (dir[0] == '\0')
        return NULL;
    enum status st = ckpt_open(o->io, dir, NULL, NULL, &base);
    if (st == ST_OK)
        return base;
    LOG_WARN(o->log, "%s: no difference to it is saved, ignoring: %s", dir, status_string(st));
    return NULL;
}

static enum status write_file(struct saver *saver, const struct saver_task *task,
                              const struct ckpt_state *state, struct ckpt_report *out)
{
    struct session *session = saver->session;
    const struct session_options *o = &session->options;
    struct ckpt_write_options options = { .progress = chunk_stored, .progress_arg = session };
    enum status st = ST_OK;
    if (saver->writer == NULL)
        st = ckpt_writer_new(saver->level, saver->threads, &saver->writer);
    if (st != ST_OK)
        return st;
    options.base = open_base(o, task->base_dir);
    st = ckpt_writer_write(saver->writer, o->io, task->dir, state, session->rank, session->size,
                           &options, out);
    ckpt_close(options.base);
    if (st == ST_OK && out->mistakes > 0) {
        LOG_ERROR(o->log,
                  "step %llu: %llu chunks could not be decoded after they were encoded and were "
                  "stored plain: this processor or this build is faulty",
                  (unsigned long long)state->scalars.step, (unsigned long long)out->mistakes);
    }
    return st;
}

static void write_shard(struct saver *saver, const struct saver_task *task)
{
    struct session *session = saver->session;
    const struct ckpt_state *state = copy_file_state(&session->copies.files[task->file]);
    const int64_t begin_ms = session_now(session);
    struct ckpt_report report;
    enum status st = write_file(saver, task, state, &report);
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
    struct reason why = { "" };
    if (st != ST_OK) {
        io_explain(session->options.io, st, &why);
        LOG_WARN(session->options.log, "save of step %llu failed, ignoring: %s",
                 (unsigned long long)state->scalars.step, why.text);
    }
    (void)pthread_mutex_lock(&session->mutex);
    if (st == ST_OK) {
        message->stall_us = session->fsm.saves[task->index].stall_us;
        session_fsm_save_written(&session->fsm, task->index, message);
    } else {
        session_fsm_save_failed(&session->fsm, task->index, st, why.text, removed);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    session_write_last_words(session); /* before it is said: it must be known if this dies now */
}

static void remove_shard(struct session *session, const struct saver_task *task)
{
    const struct session_options *o = &session->options;
    char name[64], path[LIMIT_PATH];
    ckpt_shard_name(session->rank, session->size, name);
    enum status st = ckpt_path(task->dir, name, path);
    if (st == ST_OK)
        st = o->io->unlink(o->io->self, path);
    if (st != ST_OK && st != ST_NOT_FOUND)
        LOG_WARN(o->log, "%s: not removed, ignoring: %s", path, status_string(st));
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_save_removed(&session->fsm, task->index);
    (void)pthread_mutex_unlock(&session->mutex);
}

/* Training comes first: this thread, and those it makes, take what is left of the processor. Not
 * SCHED_IDLE: with no processor left over, a save would never end, and its locks be held for ever.
 */
static void lower_priority(void)
{
    const struct sched_param param = { 0 };
    const id_t me = (id_t)gettid();
    (void)sched_setscheduler(0, SCHED_BATCH, &param);
    (void)setpriority(PRIO_PROCESS, me, NICE);
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, me,
                  IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, IOPRIO_BE_NR - 1));
    (void)pthread_setname_np(pthread_self(), "cairn-saver");
}

/* Takes the saver's next task; false: there is none. Under mutex. */
static bool saver_next(struct session *session, struct saver_task *out)
{
    const int index = session_fsm_ended(&session->fsm) ? -1 : session_fsm_saver_work(&session->fsm);
    if (index < 0)
        return false;
    const struct session_save_record *save = &session->fsm.saves[index];
    *out = (struct saver_task){
        .index = index,
        .writes = save->state == SESSION_SAVE_WRITING,
        .file = save->file,
    };
    memcpy(out->dir, save->dir, sizeof(out->dir));
    memcpy(out->base_dir, save->base_dir, sizeof(out->base_dir));
    return true;
}

/* Makes the writer before the first save, so that the save meets no new memory. Under mutex, which
 * is given up. */
static void make_writer(struct saver *saver)
{
    struct session *session = saver->session;
    saver->level = session->fsm.ready.level;
    saver->threads = session->fsm.ready.threads;
    (void)pthread_mutex_unlock(&session->mutex);
    enum status st = ckpt_writer_new(saver->level, saver->threads, &saver->writer);
    if (st != ST_OK)
        LOG_WARN(session->options.log, "no memory to save with yet: %s", status_string(st));
    (void)pthread_mutex_lock(&session->mutex);
}

void *session_saver_run(void *arg)
{
    struct session *session = arg;
    struct saver saver = { .session = session };
    bool prepared = false;
    lower_priority();
    (void)pthread_mutex_lock(&session->mutex);
    while (!session->closing) {
        struct saver_task task;
        if (!prepared && session->fsm.ready_known && !session_fsm_ended(&session->fsm)) {
            prepared = true;
            make_writer(&saver);
            continue; /* closing may have come meanwhile */
        }
        if (!saver_next(session, &task)) {
            (void)pthread_cond_wait(&session->changed, &session->mutex);
            continue;
        }
        (void)pthread_mutex_unlock(&session->mutex);
        if (task.writes) {
            write_shard(&saver, &task);
        } else {
            remove_shard(session, &task);
        }
        session_tick_saving(session);
        (void)pthread_mutex_lock(&session->mutex);
        session_wake(session);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    ckpt_writer_free(saver.writer);
    return NULL;
}
