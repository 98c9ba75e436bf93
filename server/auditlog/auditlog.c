/*
 * The audit log (auditlog.h). Lines are put into a buffer under the mutex, and a thread writes
 * them, all that came together at once. What it has of the file (descriptor, size) is its own.
 */
#include "server/auditlog/auditlog.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/limits.h"

#define TEXT_MAX     300 /* bytes of a text in a line */
#define SOURCE_BYTES 160

/* The number of somebody's calls in the current period. */
struct source {
    char key[SOURCE_BYTES];
    int64_t since_ms;
    uint32_t count; /* 0: nobody's */
};

/* One file with its thread; the log of calls has the one of refusals. */
struct auditlog {
    struct log log;
    struct auditlog *refused; /* NULL in that one */
    char path[LIMIT_PATH];
    int64_t file_bytes;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond; /* a line came, the end has come, the thread ends */
    /* under the mutex */
    struct buf lines;
    uint32_t line_count; /* in them */
    uint64_t lost;       /* since it was last told */
    bool closing, ended;
    int64_t refusals_since_ms, logged_since_ms;
    uint32_t refusals, logged;
    uint64_t unlogged; /* since a refusal was told in the process's log */
    struct source sources[AUDITLOG_SOURCES];
    /* the thread's */
    int fd; /* or -1 */
    int64_t size;
    bool unsynced;
    int64_t synced_ms, warned_ms; /* warned 0: never */
};

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* ---- lines ---- */

/* Bytes beyond ASCII may be no UTF-8, from somebody who wants to spoil this file. */
static json_t *text_of(const char *text)
{
    char copy[TEXT_MAX + 1];
    (void)snprintf(copy, sizeof(copy), "%s", text);
    json_t *value = json_string(copy);
    for (char *c = copy; value == NULL && *c != '\0'; c++)
        *c = (char)((unsigned char)*c > 126 ? '?' : *c);
    return value != NULL ? value : json_string(copy);
}

static json_t *time_text(void)
{
    const int64_t ms = clock_wall_ms(clock_system());
    const time_t seconds = (time_t)(ms / 1000);
    struct tm utc;
    char date[32] = "", text[48];
    if (gmtime_r(&seconds, &utc) != NULL)
        (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text, sizeof(text), "%s.%03dZ", date, (int)(ms % 1000));
    return json_string(text);
}

/* Returns the line of a call, on the heap, with its newline; NULL: no memory. */
static char *line_of(const struct auditlog_call *call)
{
    json_t *object = json_object();
    int rc = json_object_set_new(object, "time", time_text());
    rc |= json_object_set_new(object, "actor", text_of(call->actor));
    rc |= json_object_set_new(object, "peer", text_of(call->peer));
    rc |= json_object_set_new(object, "method", text_of(call->method));
    rc |= json_object_set_new(object, "about", text_of(call->about));
    rc |= json_object_set_new(object, "code", text_of(call->code));
    if (call->why != NULL)
        rc |= json_object_set_new(object, "why", text_of(call->why));
    char *text = rc == 0 ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    return text;
}

/* Under the mutex. */
static void put_line(struct auditlog *auditlog, const char *line)
{
    const size_t size = auditlog->lines.size;
    enum status st = line != NULL ? buf_append_text(&auditlog->lines, line) : ST_NO_MEMORY;
    if (st == ST_OK)
        st = buf_append_text(&auditlog->lines, "\n");
    if (st == ST_OK) {
        auditlog->line_count++;
        pthread_cond_broadcast(&auditlog->cond);
        return;
    }
    auditlog->lost++;
    if (auditlog->lines.size > size) { /* the newline had no room */
        auditlog->lines.size = size;
        auditlog->lines.data[size] = '\0';
    }
}

/* ---- who calls too often ---- */

/* Under the mutex. */
static void tell_more(struct auditlog *auditlog, struct source *source, uint32_t most)
{
    if (source->count > most) {
        json_t *object = json_pack("{s:o,s:o,s:I}", "time", time_text(), "of", text_of(source->key),
                                   "more", (json_int_t)(source->count - most));
        char *line = object != NULL ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
        put_line(auditlog, line);
        free(line);
        json_decref(object);
    }
    source->count = 0;
}

/* Under the mutex. Those whose hour is over, or, at the end, all. */
static void tell_sources(struct auditlog *auditlog, int64_t now, bool all)
{
    const uint32_t most = auditlog->refused != NULL ? AUDITLOG_EACH_CALLS : AUDITLOG_EACH;
    for (size_t i = 0; i < AUDITLOG_SOURCES; i++) {
        if (all || now - auditlog->sources[i].since_ms >= AUDITLOG_EACH_MS)
            tell_more(auditlog, &auditlog->sources[i], most);
    }
}

/* Under the mutex. Is this one of the first of an hour? */
static bool is_early(struct auditlog *auditlog, const char *key, int64_t now)
{
    const uint32_t most = auditlog->refused != NULL ? AUDITLOG_EACH_CALLS : AUDITLOG_EACH;
    struct source *at = NULL, *oldest = &auditlog->sources[0];
    tell_sources(auditlog, now, false);
    for (size_t i = 0; i < AUDITLOG_SOURCES && at == NULL; i++) {
        struct source *source = &auditlog->sources[i];
        if (source->count > 0 && strcmp(source->key, key) == 0)
            at = source;
        if (source->count == 0 || (oldest->count > 0 && source->since_ms < oldest->since_ms))
            oldest = source;
    }
    if (at == NULL) {
        at = oldest;
        tell_more(auditlog, at, most);
        *at = (struct source){ .since_ms = now };
        (void)snprintf(at->key, sizeof(at->key), "%s", key);
    }
    return ++at->count <= most;
}

/* Writes the caller's address, without what changes from one connection to the next, and its
 * name. */
static void key_of(const struct auditlog_call *call, char out[SOURCE_BYTES])
{
    const char *end =
        strncmp(call->peer, "unix:", 5) == 0 ? strchr(call->peer, ',') : strrchr(call->peer, ':');
    const int size = end != NULL ? (int)(end - call->peer) : (int)strlen(call->peer);
    (void)snprintf(out, SOURCE_BYTES, "%.*s %.80s", size < 70 ? size : 70, call->peer, call->actor);
}

/* The rate of `most` in `ms`; both are under the mutex. */
static bool take(uint32_t *count, int64_t *since_ms, uint32_t most, int64_t ms, int64_t now)
{
    if (*count == 0 || now - *since_ms >= ms) {
        *since_ms = now;
        *count = 0;
    }
    const bool may = *count < most;
    *count += may;
    return may;
}

void auditlog_note(struct auditlog *auditlog, const struct auditlog_call *call)
{
    char key[SOURCE_BYTES];
    if (auditlog == NULL)
        return;
    char *line = line_of(call);
    key_of(call, key);
    pthread_mutex_lock(&auditlog->mutex);
    if (!call->often || is_early(auditlog, key, now_ms()))
        put_line(auditlog, line);
    pthread_mutex_unlock(&auditlog->mutex);
    free(line);
}

/* Under the mutex. *out_unlogged: how many weren't told in the process's log before this one. */
static bool may_log(struct auditlog *auditlog, int64_t now, uint64_t *out_unlogged)
{
    const bool may = take(&auditlog->logged, &auditlog->logged_since_ms, AUDITLOG_LOGGED,
                          AUDITLOG_LOGGED_MS, now);
    *out_unlogged = auditlog->unlogged;
    auditlog->unlogged = may ? 0 : auditlog->unlogged + 1;
    return may;
}

void auditlog_refusal(struct auditlog *auditlog, const struct auditlog_call *call)
{
    char key[SOURCE_BYTES], more[64] = "";
    if (auditlog == NULL)
        return;
    struct auditlog *to = auditlog->refused;
    const int64_t now = now_ms();
    uint64_t unlogged = 0;
    char *line = line_of(call);
    key_of(call, key);
    pthread_mutex_lock(&to->mutex);
    const bool logs = may_log(to, now, &unlogged);
    if (is_early(to, key, now)) {
        if (take(&to->refusals, &to->refusals_since_ms, AUDITLOG_REFUSALS, AUDITLOG_REFUSALS_MS,
                 now)) {
            put_line(to, line);
        } else {
            to->lost++;
        }
    }
    pthread_mutex_unlock(&to->mutex);
    free(line);
    if (unlogged > 0) {
        (void)snprintf(more, sizeof(more), " (%llu more refusals were not told here)",
                       (unsigned long long)unlogged);
    }
    if (logs) {
        LOG_WARN(&auditlog->log, "%s at %s may not call %s: %.*s%s", call->actor, call->peer,
                 call->method, TEXT_MAX, call->why, more);
    }
}

/* ---- the file; on the thread ---- */

static void warn(struct auditlog *auditlog, const char *what)
{
    const int error = errno;
    if (auditlog->warned_ms != 0 && now_ms() - auditlog->warned_ms < AUDITLOG_WARN_MS)
        return;
    auditlog->warned_ms = now_ms();
    LOG_WARN(&auditlog->log, "%s: %s failed (%s), ignoring: lines of the audit log are lost",
             auditlog->path, what, strerrordesc_np(error));
}

static void open_file(struct auditlog *auditlog)
{
    struct stat stat;
    char last = '\n';
    auditlog->fd = open(auditlog->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (auditlog->fd < 0 || fchmod(auditlog->fd, 0600) != 0 || fstat(auditlog->fd, &stat) != 0) {
        warn(auditlog, "opening");
        if (auditlog->fd >= 0)
            (void)close(auditlog->fd);
        auditlog->fd = -1;
        return;
    }
    auditlog->size = stat.st_size;
    /* The machine died in the midst of a line. */
    if (auditlog->size > 0 && pread(auditlog->fd, &last, 1, auditlog->size - 1) == 1 &&
        last != '\n')
        auditlog->size += write(auditlog->fd, "\n", 1) == 1;
}

static void sync_file(struct auditlog *auditlog)
{
    if (auditlog->unsynced && fdatasync(auditlog->fd) != 0)
        warn(auditlog, "fdatasync");
    auditlog->unsynced = false;
    auditlog->synced_ms = now_ms();
}

static void rotate(struct auditlog *auditlog)
{
    char from[LIMIT_PATH + 16], to[LIMIT_PATH + 16];
    sync_file(auditlog);
    (void)close(auditlog->fd);
    for (int i = AUDITLOG_FILES - 1; i > 0; i--) {
        (void)snprintf(from, sizeof(from), i == 1 ? "%s" : "%s.%d", auditlog->path, i - 1);
        (void)snprintf(to, sizeof(to), "%s.%d", auditlog->path, i);
        if (rename(from, to) != 0 && errno != ENOENT)
            warn(auditlog, "rename");
    }
    open_file(auditlog);
}

static bool write_all(struct auditlog *auditlog, const char *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t wrote = write(auditlog->fd, data + done, size - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            warn(auditlog, "writing");
            if (ftruncate(auditlog->fd, auditlog->size) != 0) /* no half of a line stays */
                warn(auditlog, "ftruncate");
            return false;
        }
        done += (size_t)wrote;
    }
    auditlog->size += (int64_t)size;
    auditlog->unsynced = true;
    return true;
}

/* People move it away, too. */
static bool is_there(const struct auditlog *auditlog)
{
    struct stat at, ours;
    return stat(auditlog->path, &at) == 0 && fstat(auditlog->fd, &ours) == 0 &&
           at.st_ino == ours.st_ino && at.st_dev == ours.st_dev;
}

/* False: none of it is in the file. */
static bool write_lines(struct auditlog *auditlog, const char *data, size_t size)
{
    if (auditlog->fd >= 0 && !is_there(auditlog)) {
        (void)close(auditlog->fd);
        auditlog->fd = -1;
    }
    if (auditlog->fd < 0) {
        open_file(auditlog);
    } else if (auditlog->size > 0 && auditlog->size + (int64_t)size > auditlog->file_bytes) {
        rotate(auditlog);
    }
    return auditlog->fd >= 0 && write_all(auditlog, data, size);
}

/* ---- the thread ---- */

/* Under the mutex. Lines that are missing are told before those that came after. */
static void tell_lost(struct auditlog *auditlog, struct buf *out)
{
    if (auditlog->lost == 0)
        return;
    json_t *object =
        json_pack("{s:o,s:I}", "time", time_text(), "lost", (json_int_t)auditlog->lost);
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    if (text != NULL && buf_printf(out, "%s\n", text) == ST_OK)
        auditlog->lost = 0;
    free(text);
    json_decref(object);
}

/* Under the mutex, which it leaves meanwhile. */
static void write_out(struct auditlog *auditlog)
{
    struct buf lines = auditlog->lines, head;
    const uint32_t count = auditlog->line_count;
    const uint64_t lost = auditlog->lost;
    buf_init(&auditlog->lines, AUDITLOG_QUEUE_BYTES);
    buf_init(&head, TEXT_MAX);
    auditlog->line_count = 0;
    tell_lost(auditlog, &head);
    const bool told = auditlog->lost != lost;
    pthread_mutex_unlock(&auditlog->mutex);
    bool written = !told || write_lines(auditlog, head.data, head.size);
    const bool head_written = told && written;
    written = written && write_lines(auditlog, lines.data, lines.size);
    buf_release(&head);
    buf_release(&lines);
    pthread_mutex_lock(&auditlog->mutex);
    auditlog->lost += (written ? 0 : count) + (told && !head_written ? lost : 0);
}

static void *run(void *arg)
{
    struct auditlog *auditlog = arg;
    pthread_mutex_lock(&auditlog->mutex);
    while (!auditlog->closing || auditlog->lines.size > 0) {
        if (auditlog->lines.size > 0) {
            write_out(auditlog);
        } else if (!auditlog->unsynced) {
            pthread_cond_wait(&auditlog->cond, &auditlog->mutex);
        } else if (!clock_cond_wait(&auditlog->cond, &auditlog->mutex,
                                    (auditlog->synced_ms + AUDITLOG_SYNC_MS) * 1000000)) {
            pthread_mutex_unlock(&auditlog->mutex);
            sync_file(auditlog);
            pthread_mutex_lock(&auditlog->mutex);
        }
    }
    pthread_mutex_unlock(&auditlog->mutex);
    if (auditlog->fd >= 0) {
        sync_file(auditlog);
        (void)close(auditlog->fd);
    }
    pthread_mutex_lock(&auditlog->mutex);
    auditlog->ended = true;
    pthread_cond_broadcast(&auditlog->cond);
    pthread_mutex_unlock(&auditlog->mutex);
    return NULL;
}

/* Opens the log of one file. */
static enum status open_one(const struct auditlog_options *options, const char *path,
                            struct auditlog **out)
{
    struct auditlog *auditlog = calloc(1, sizeof(*auditlog));
    if (auditlog == NULL)
        return ST_NO_MEMORY;
    auditlog->log = *options->log;
    (void)snprintf(auditlog->path, sizeof(auditlog->path), "%s", path);
    auditlog->file_bytes = options->file_bytes > 0 ? options->file_bytes : AUDITLOG_FILE_BYTES;
    auditlog->fd = -1;
    buf_init(&auditlog->lines, AUDITLOG_QUEUE_BYTES);
    pthread_mutex_init(&auditlog->mutex, NULL);
    clock_cond_init(&auditlog->cond);
    const int rc = pthread_create(&auditlog->thread, NULL, run, auditlog);
    if (rc != 0) {
        free(auditlog);
        return status_from_errno(rc);
    }
    *out = auditlog;
    return ST_OK;
}

enum status auditlog_open(const struct auditlog_options *options, struct auditlog **out)
{
    struct auditlog *refused = NULL;
    enum status st = open_one(options, options->refused, &refused);
    if (st != ST_OK)
        return st;
    st = open_one(options, options->path, out);
    if (st == ST_OK) {
        (*out)->refused = refused;
    } else {
        auditlog_close(refused);
    }
    return st;
}

void auditlog_close(struct auditlog *auditlog)
{
    if (auditlog == NULL)
        return;
    auditlog_close(auditlog->refused);
    const int64_t until_ns = clock_mono_ns() + INT64_C(1000000) * AUDITLOG_CLOSE_MS;
    pthread_mutex_lock(&auditlog->mutex);
    tell_sources(auditlog, now_ms(), true);
    auditlog->closing = true;
    pthread_cond_broadcast(&auditlog->cond);
    while (!auditlog->ended && clock_cond_wait(&auditlog->cond, &auditlog->mutex, until_ns)) {
    }
    const bool ended = auditlog->ended;
    pthread_mutex_unlock(&auditlog->mutex);
    if (!ended) { /* its disk hangs: the process's end cleans up */
        (void)pthread_detach(auditlog->thread);
        return;
    }
    (void)pthread_join(auditlog->thread, NULL);
    pthread_cond_destroy(&auditlog->cond);
    pthread_mutex_destroy(&auditlog->mutex);
    buf_release(&auditlog->lines);
    free(auditlog);
}
