#include "server/store/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/fault.h"
#include "server/store/reports.h"

#define SWEEP_MAX        64 /* folders of one task */
#define READERS_MAX      3  /* threads beside the task's own */
#define CORES_PER_READER 4

int64_t store_task_deadline_ms(enum fsm_task kind)
{
    static const int64_t deadlines[FSM_TASK_COUNT] = {
#define DEADLINE(name, ms, text) [FSM_TASK_##name] = (ms),
        FSM_TASKS(DEADLINE)
#undef DEADLINE
    };
    return deadlines[kind];
}

struct store_task *store_task_new(enum fsm_task kind)
{
    struct store_task *task = calloc(1, sizeof(*task));
    if (task == NULL)
        return NULL;
    task->kind = kind;
    buf_init(&task->manifest, (size_t)LIMIT_MANIFEST_BYTES);
    return task;
}

struct store_task *store_task_late_answer(const struct store_task *task)
{
    struct store_task *answer = store_task_new(task->kind);
    if (answer == NULL)
        return NULL;
    memcpy(answer->job, task->job, sizeof(answer->job));
    answer->step = task->step;
    answer->shard = task->shard;
    answer->generation = task->generation;
    answer->try_number = task->try_number;
    answer->status = ST_TIMED_OUT;
    (void)snprintf(answer->message, sizeof(answer->message),
                   "the checkpoint store does not answer: %.400s",
                   task->dir[0] ? task->dir : task->store);
    return answer;
}

void store_task_free(struct store_task *task)
{
    if (task == NULL)
        return;
    for (uint32_t i = 0; i < task->report_count; i++)
        ckpt_report_release(&task->reports[i]);
    free(task->reports);
    free(task->kept);
    buf_release(&task->manifest);
    free(task);
}

/* ---- whose store it is ---- */

/* Answers that the place of the job's checkpoints has nothing of the job, or something else: nobody
 * may take that for damage, nor begin anew there. */
static enum status answer_away(struct store_task *task)
{
    task->mark_mismatch = true;
    (void)snprintf(task->message, sizeof(task->message),
                   "%.240s/%s is not where the checkpoints of this job are (its %s is missing, or "
                   "another's): mount that again, or give them up with `cairn ckpt rm`",
                   task->store, task->job, CKPT_MARK_NAME);
    return ST_UNREACHABLE;
}

static enum status check_id(struct store_task *task, const struct io *io)
{
    char mark[CKPT_MARK];
    if (task->mark[0] == '\0') /* the next probe makes it known */
        return ST_OK;
    enum status st = ckpt_store_id_read(io, task->store, task->job, mark);
    if (st == ST_NOT_FOUND || st == ST_CORRUPT)
        return answer_away(task);
    return st == ST_OK && strcmp(mark, task->mark) != 0 ? answer_away(task) : st;
}

static bool note_name(void *arg, const char *name)
{
    (void)name;
    *(bool *)arg = true;
    return false;
}

/* The mark that is there; where nothing can be lost by it, a new one. */
static enum status settle_id(struct store_task *task, const struct io *io, const char *dir)
{
    char mark[CKPT_MARK];
    bool known = task->mark[0] != '\0', something = false;
    enum status st = ckpt_store_id_read(io, task->store, task->job, mark);
    if (st == ST_NOT_FOUND && task->holds) {
        /* Jobs of before there were marks: their folder is there. */
        enum status listed = known ? ST_NOT_FOUND : io->list(io->self, dir, note_name, &something);
        if (listed != ST_OK && listed != ST_NOT_FOUND)
            return listed;
        if (!something)
            return answer_away(task);
    }
    if (st == ST_NOT_FOUND) {
        st = ckpt_store_id_write(io, task->store, task->job, task->nonce);
        if (st == ST_OK || st == ST_EXISTS)
            st = ckpt_store_id_read(io, task->store, task->job, mark);
    }
    if (st == ST_CORRUPT || (st == ST_OK && known && task->holds && strcmp(mark, task->mark) != 0))
        return answer_away(task);
    if (st == ST_OK)
        memcpy(task->mark, mark, sizeof(mark));
    return st;
}

/* Notes the explanation before another call takes its place. */
static void note_cause(struct store_task *task, const struct io *io, enum status st)
{
    struct reason why;
    io_explain(io, st, &why);
    (void)snprintf(task->message, sizeof(task->message), "%.300s: %.160s", why.text, task->store);
}

/* Checks that the store is the job's, and that a file comes and goes: it takes what we write. */
static enum status probe_store(struct store_task *task, const struct io *io)
{
    char dir[LIMIT_PATH], base[LIMIT_PATH], probe[LIMIT_PATH];
    enum status st = ckpt_path(task->store, task->job, dir);
    if (st == ST_OK)
        st = ckpt_path(dir, CKPT_PROBE, base);
    if (st == ST_OK)
        st = io_temporary(io, base, probe);
    if (st == ST_OK)
        st = settle_id(task, io, dir);
    if (st == ST_OK)
        st = io_publish(io, probe, "cairn\n", 6);
    if (st != ST_OK)
        return st;
    /* Commits stand on this: a store that writes over what is there can't be used. */
    enum status again = io_publish(io, probe, "cairn\n", 6);
    enum status tried =
        again == ST_EXISTS && io->probe != NULL ? io->probe(io->self, probe) : ST_OK;
    if (tried != ST_OK) {
        note_cause(task, io, tried);
        (void)!io->unlink(io->self, probe);
        return tried;
    }
    st = io->unlink(io->self, probe);
    if (again == ST_OK) {
        (void)snprintf(task->message, sizeof(task->message),
                       "the store writes over files that are there (of S3: it ignores "
                       "If-None-Match): %.360s",
                       task->store);
        return ST_CONFIG;
    }
    return again == ST_EXISTS ? st : again;
}

enum status store_task_read_reports(struct store_task *task)
{
    const struct store_reports of = { .journal = task->journal,
                                      .job = task->job,
                                      .step = task->step,
                                      .generation = task->generation,
                                      .ranks = task->ranks };
    if (task->reports != NULL)
        return ST_OK;
    enum status st = store_reports_read(&of, &task->reports, &task->report_count);
    if (st != ST_OK) {
        (void)snprintf(task->message, sizeof(task->message),
                       "the reports of the workers can't be read from the journal: %s",
                       status_string(st));
    }
    return st;
}

static enum status prepare_commit(struct store_task *task, const struct io *io)
{
    enum status st = store_task_read_reports(task);
    if (st == ST_OK)
        st = ckpt_commit_check(io, task->dir, task->reports, task->report_count);
    if (st != ST_OK)
        return st;
    char wall[32];
    time_t seconds = (time_t)(task->wall_ms / 1000);
    struct tm tm;
    if (gmtime_r(&seconds, &tm) == NULL ||
        strftime(wall, sizeof(wall), "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        return ST_INVALID;
    struct ckpt_hash digest;
    st = ckpt_manifest_make(task->reports, task->report_count, task->job, wall, &task->manifest,
                            &digest);
    if (st != ST_OK)
        return st;
    ckpt_hash_text(&digest, task->digest);
    task->shards = task->report_count;
    task->parent = task->reports[0].parent;
    for (uint32_t i = 0; i < task->report_count; i++) {
        task->bytes += task->reports[i].size;
        task->raw_bytes += task->reports[i].raw_bytes;
    }
    return ST_OK;
}

/* A save that can't fit is refused before anybody writes. */
static enum status make_folder(struct store_task *task, const struct io *io)
{
    uint64_t room = UINT64_MAX;
    if (io_space(io, task->store, &room) == ST_OK && room < task->need_bytes) {
        (void)snprintf(task->message, sizeof(task->message),
                       "the checkpoint store has room for %.1f MB, about %.1f MB are needed: "
                       "%.360s",
                       (double)room / 1e6, (double)task->need_bytes / 1e6, task->store);
        return ST_FULL;
    }
    return ckpt_folder_create(io, task->dir);
}

static void note_finding(void *arg, const char *line)
{
    struct store_task *task = arg;
    if (task->message[0] == '\0')
        (void)snprintf(task->message, sizeof(task->message), "%s", line);
}

/* Reads a checkpoint back. On a machine with few cores training needs them all: there the task
 * reads alone. Otherwise its readers have the priority of this thread, which is low (run_line in
 * queue.c). */
static enum status read_back(struct store_task *task, const struct io *io)
{
    long readers = sysconf(_SC_NPROCESSORS_ONLN) / CORES_PER_READER;
    if (readers < 0)
        readers = 0;
    struct ckpt_read_options options = {
        .threads = readers < READERS_MAX ? (uint32_t)readers : READERS_MAX,
    };
    ckpt_await(io, task->dir); /* the file may be of a coordinator on another machine */
    if (task->shard > 0)
        return ckpt_verify_file(io, task->dir, task->shard - 1, &options, note_finding, task);
    return ckpt_verify(io, task->dir, &options, note_finding, task);
}

/* Bytes that are not there, or bad ones, are the checkpoint's fault only in the job's store. */
static enum status verify_bytes(struct store_task *task, const struct io *io)
{
    enum status st = read_back(task, io);
    if (status_scope(st) != SCOPE_CHECKPOINT && st != ST_VERSION)
        task->message[0] = '\0'; /* a remark at most */
    if (status_scope(st) != SCOPE_CHECKPOINT && st != ST_NOT_FOUND)
        return st;
    enum status marked = check_id(task, io);
    if (marked != ST_OK && !task->mark_mismatch)
        task->message[0] = '\0'; /* what was found says nothing */
    return marked == ST_OK ? st : marked;
}

/* ---- leftovers ---- */

static bool is_leftover(const struct store_task *task, const struct ckpt_entry *entry)
{
    if (entry->quarantined || entry->manifest != ST_NOT_FOUND ||
        entry->generation >= task->generation)
        return false;
    for (uint32_t i = 0; i < task->kept_count; i++) {
        if (task->kept[i].step == entry->step && task->kept[i].generation == entry->generation &&
            task->kept[i].try_number == entry->try_number)
            return false;
    }
    return true;
}

/* ST_AGAIN: there are more. */
static enum status sweep_folders(struct store_task *task, const struct io *io)
{
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    uint32_t tried = 0;
    char dir[LIMIT_PATH];
    enum status st = ckpt_path(task->store, task->job, dir);
    if (st == ST_OK)
        st = ckpt_list(io, task->store, task->job, &entries, &count);
    if (st == ST_OK)
        st = ckpt_sweep_temporaries(io, dir, task->generation);
    for (size_t i = 0; i < count && tried < SWEEP_MAX && st != ST_AGAIN; i++) {
        /* A later publication has given the manifest its name; objects have no other one. */
        if (st == ST_OK && entries[i].committed && !io_is_object(io, entries[i].dir))
            st = ckpt_sweep_temporaries(io, entries[i].dir, task->generation);
        if (!is_leftover(task, &entries[i]))
            continue;
        struct io_stat info;
        enum status removed = ckpt_folder_drop(io, entries[i].dir);
        if (removed == ST_AGAIN && !atomic_load(&task->watch.yielded))
            removed = ST_OK; /* open on an NFS client: for another sweep */
        tried++;             /* a folder with somebody else's files stays */
        task->swept +=
            removed == ST_OK && io->stat(io->self, entries[i].dir, &info) == ST_NOT_FOUND;
        st = st == ST_OK ? removed : st;
    }
    free(entries);
    return st == ST_OK && tried == SWEEP_MAX ? ST_AGAIN : st;
}

/* True of a task that makes, decides or removes something. */
static bool needs_id(const struct store_task *task)
{
    return task->kind == FSM_TASK_FOLDER || task->kind == FSM_TASK_PUBLISH ||
           task->kind == FSM_TASK_SWEEP ||
           ((task->kind == FSM_TASK_DROP || task->kind == FSM_TASK_REMOVE) && !task->given_up);
}

/* True of a task that may take long without being waited for. */
static bool yields(enum fsm_task kind)
{
    return kind == FSM_TASK_REMOVE || kind == FSM_TASK_DROP || kind == FSM_TASK_SWEEP;
}

static enum status do_task(struct store_task *task, const struct io *io)
{
    char moved[LIMIT_PATH];
    enum status st = needs_id(task) ? check_id(task, io) : ST_OK;
    if (st != ST_OK)
        return st;
    switch (task->kind) {
    case FSM_TASK_PROBE:
        return probe_store(task, io);
    case FSM_TASK_FOLDER:
        return make_folder(task, io);
    case FSM_TASK_CHECK:
        return prepare_commit(task, io);
    case FSM_TASK_PUBLISH:
        fault_point("coordinator.publish");
        return ckpt_manifest_publish(io, task->dir, task->manifest.data, task->manifest.size);
    case FSM_TASK_DROP:
        return ckpt_folder_drop(io, task->dir);
    case FSM_TASK_REMOVE:
        return ckpt_remove(io, task->dir);
    case FSM_TASK_VERIFY:
        return verify_bytes(task, io);
    case FSM_TASK_SWEEP:
        return sweep_folders(task, io);
    case FSM_TASK_QUARANTINE:
        return ckpt_quarantine(io, task->dir, moved, sizeof(moved));
    }
    return ST_INVALID;
}

void store_task_run(struct store_task *task, const struct io *real)
{
    static const char *const doing[FSM_TASK_COUNT] = {
#define DOING(name, ms, text) [FSM_TASK_##name] = (text),
        FSM_TASKS(DOING)
#undef DOING
    };
    const struct io *io = &task->watch.io;
    if (task->refused != ST_OK) {
        task->status = task->refused;
        return;
    }
    store_watch_init(&task->watch, real, yields(task->kind));
    task->watch.io.call = task->call;
    task->message[0] = '\0';
    task->mark_mismatch = false;
    task->status = do_task(task, io);
    const bool held = task->status == ST_AGAIN && !atomic_load(&task->watch.yielded);
    if (task->status == ST_OK) {
        task->message[0] = '\0';
    } else if (held && (task->kind == FSM_TASK_REMOVE || task->kind == FSM_TASK_DROP)) {
        (void)snprintf(task->message, sizeof(task->message),
                       "%s: a removed file is still open on an NFS client (.nfs...): %.300s",
                       doing[task->kind], task->dir);
    } else if (task->message[0] == '\0') {
        bool all = task->kind == FSM_TASK_PROBE || task->kind == FSM_TASK_SWEEP;
        const char *where = all ? task->store : task->dir;
        struct reason why;
        io_explain(io, task->status, &why);
        (void)snprintf(task->message, sizeof(task->message), "%s: %.300s: %.160s",
                       doing[task->kind], why.text, where);
    }
}
