/*
 * The audit log (audit.h). Lines are put into a buffer under the mutex, and a thread writes them,
 * all that came together at once. What it has of the file (descriptor, size) is its own.
 */
#include "server/audit/audit.h"

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
struct audit {
    struct log log;
    struct audit *refused; /* NULL in that one */
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
    struct source sources[AUDIT_SOURCES];
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
    for (char *c = copy; !value && *c != '\0'; c++)
        *c = (char)((unsigned char)*c > 126 ? '?' : *c);
    return value ? value : json_string(copy);
}

static json_t *time_text(void)
{
    const int64_t ms = clock_wall_ms(clock_system());
    const time_t seconds = (time_t)(ms / 1000);
    struct tm utc;
    char date[32] = "", text[48];
    if (gmtime_r(&seconds, &utc))
        (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text, sizeof(text), "%s.%03dZ", date, (int)(ms % 1000));
    return json_string(text);
}

/* Returns the line of a call, on the heap, with its newline; NULL: no memory. */
static char *line_of(const struct audit_call *call)
{
    json_t *object = json_object();
    int rc = json_object_set_new(object, "time", time_text());
    rc |= json_object_set_new(object, "actor", text_of(call->actor));
    rc |= json_object_set_new(object, "peer", text_of(call->peer));
    rc |= json_object_set_new(object, "method", text_of(call->method));
    rc |= json_object_set_new(object, "about", text_of(call->about));
    rc |= json_object_set_new(object, "code", text_of(call->code));
    if (call->why)
        rc |= json_object_set_new(object, "why", text_of(call->why));
    char *text = rc == 0 ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    return text;
}

/* Under the mutex. */
static void put_line(struct audit *audit, const char *line)
{
    const size_t size = audit->lines.size;
    enum status st = line ? buf_append_text(&audit->lines, line) : ST_NO_MEMORY;
    if (st == ST_OK)
        st = buf_append_text(&audit->lines, "\n");
    if (st == ST_OK) {
        audit->line_count++;
        pthread_cond_broadcast(&audit->cond);
        return;
    }
    audit->lost++;
    if (audit->lines.size > size) { /* the newline had no room */
        audit->lines.size = size;
        audit->lines.data[size] = '\0';
    }
}

/* ---- who calls too often ---- */

/* Under the mutex. */
static void tell_more(struct audit *audit, struct source *source, uint32_t most)
{
    if (source->count > most) {
        json_t *object = json_pack("{s:o,s:o,s:I}", "time", time_text(), "of", text_of(source->key),
                                   "more", (json_int_t)(source->count - most));
        char *line = object ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
        put_line(audit, line);
        free(line);
        json_decref(object);
    }
    source->count = 0;
}

/* Under the mutex. Those whose hour is over, or, at the end, all. */
static void tell_sources(struct audit *audit, int64_t now, bool all)
{
    const uint32_t most = audit->refused ? AUDIT_EACH_CALLS : AUDIT_EACH;
    for (size_t i = 0; i < AUDIT_SOURCES; i++) {
        if (all || now - audit->sources[i].since_ms >= AUDIT_EACH_MS)
            tell_more(audit, &audit->sources[i], most);
    }
}

/* Under the mutex. Is this one of the first of an hour? */
static bool is_early(struct audit *audit, const char *key, int64_t now)
{
    const uint32_t most = audit->refused ? AUDIT_EACH_CALLS : AUDIT_EACH;
    struct source *at = NULL, *oldest = &audit->sources[0];
    tell_sources(audit, now, false);
    for (size_t i = 0; i < AUDIT_SOURCES && !at; i++) {
        struct source *source = &audit->sources[i];
        if (source->count > 0 && strcmp(source->key, key) == 0)
            at = source;
        if (source->count == 0 || (oldest->count > 0 && source->since_ms < oldest->since_ms))
            oldest = source;
    }
    if (!at) {
        at = oldest;
        tell_more(audit, at, most);
        *at = (struct source){ .since_ms = now };
        (void)snprintf(at->key, sizeof(at->key), "%s", key);
    }
    return ++at->count <= most;
}

/* Writes the caller's address, without what changes from one connection to the next, and its
 * name. */
static void key_of(const struct audit_call *call, char out[SOURCE_BYTES])
{
    const char *end =
        strncmp(call->peer, "unix:", 5) == 0 ? strchr(call->peer, ',') : strrchr(call->peer, ':');
    const int size = end ? (int)(end - call->peer) : (int)strlen(call->peer);
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

void audit_note(struct audit *audit, const struct audit_call *call)
{
    char key[SOURCE_BYTES];
    if (!audit)
        return;
    char *line = line_of(call);
    key_of(call, key);
    pthread_mutex_lock(&audit->mutex);
    if (!call->often || is_early(audit, key, now_ms()))
        put_line(audit, line);
    pthread_mutex_unlock(&audit->mutex);
    free(line);
}

/* Under the mutex. *out_unlogged: how many weren't told in the process's log before this one. */
static bool may_log(struct audit *audit, int64_t now, uint64_t *out_unlogged)
{
    const bool may =
        take(&audit->logged, &audit->logged_since_ms, AUDIT_LOGGED, AUDIT_LOGGED_MS, now);
    *out_unlogged = audit->unlogged;
    audit->unlogged = may ? 0 : audit->unlogged + 1;
    return may;
}

void audit_refusal(struct audit *audit, const struct audit_call *call)
{
    char key[SOURCE_BYTES], more[64] = "";
    if (!audit)
        return;
    struct audit *to = audit->refused;
    const int64_t now = now_ms();
    uint64_t unlogged = 0;
    char *line = line_of(call);
    key_of(call, key);
    pthread_mutex_lock(&to->mutex);
    const bool logs = may_log(to, now, &unlogged);
    if (is_early(to, key, now)) {
        if (take(&to->refusals, &to->refusals_since_ms, AUDIT_REFUSALS, AUDIT_REFUSALS_MS, now)) {
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
        LOG_WARN(&audit->log, "%s at %s may not call %s: %.*s%s", call->actor, call->peer,
                 call->method, TEXT_MAX, call->why, more);
    }
}

/* ---- the file; on the thread ---- */

static void warn(struct audit *audit, const char *what)
{
    const int error = errno;
    if (audit->warned_ms != 0 && now_ms() - audit->warned_ms < AUDIT_WARN_MS)
        return;
    audit->warned_ms = now_ms();
    LOG_WARN(&audit->log, "%s: %s failed (%s), ignoring: lines of the audit log are lost",
             audit->path, what, strerrordesc_np(error));
}

static void open_file(struct audit *audit)
{
    struct stat stat;
    char last = '\n';
    audit->fd = open(audit->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (audit->fd < 0 || fchmod(audit->fd, 0600) != 0 || fstat(audit->fd, &stat) != 0) {
        warn(audit, "opening");
        if (audit->fd >= 0)
            (void)close(audit->fd);
        audit->fd = -1;
        return;
    }
    audit->size = stat.st_size;
    /* The machine died in the midst of a line. */
    if (audit->size > 0 && pread(audit->fd, &last, 1, audit->size - 1) == 1 && last != '\n')
        audit->size += write(audit->fd, "\n", 1) == 1;
}

static void sync_file(struct audit *audit)
{
    if (audit->unsynced && fdatasync(audit->fd) != 0)
        warn(audit, "fdatasync");
    audit->unsynced = false;
    audit->synced_ms = now_ms();
}

static void rotate(struct audit *audit)
{
    char from[LIMIT_PATH + 16], to[LIMIT_PATH + 16];
    sync_file(audit);
    (void)close(audit->fd);
    for (int i = AUDIT_FILES - 1; i > 0; i--) {
        (void)snprintf(from, sizeof(from), i == 1 ? "%s" : "%s.%d", audit->path, i - 1);
        (void)snprintf(to, sizeof(to), "%s.%d", audit->path, i);
        if (rename(from, to) != 0 && errno != ENOENT)
            warn(audit, "rename");
    }
    open_file(audit);
}

static bool write_all(struct audit *audit, const char *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t wrote = write(audit->fd, data + done, size - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            warn(audit, "writing");
            if (ftruncate(audit->fd, audit->size) != 0) /* no half of a line stays */
                warn(audit, "ftruncate");
            return false;
        }
        done += (size_t)wrote;
    }
    audit->size += (int64_t)size;
    audit->unsynced = true;
    return true;
}

/* People move it away, too. */
static bool is_there(const struct audit *audit)
{
    struct stat at, ours;
    return stat(audit->path, &at) == 0 && fstat(audit->fd, &ours) == 0 &&
           at.st_ino == ours.st_ino && at.st_dev == ours.st_dev;
}

/* False: none of it is in the file. */
static bool write_lines(struct audit *audit, const char *data, size_t size)
{
    if (audit->fd >= 0 && !is_there(audit)) {
        (void)close(audit->fd);
        audit->fd = -1;
    }
    if (audit->fd < 0) {
        open_file(audit);
    } else if (audit->size > 0 && audit->size + (int64_t)size > audit->file_bytes) {
        rotate(audit);
    }
    return audit->fd >= 0 && write_all(audit, data, size);
}

/* ---- the thread ---- */

/* Under the mutex. Lines that are missing are told before those that came after. */
static void tell_lost(struct audit *audit, struct buf *out)
{
    if (audit->lost == 0)
        return;
    json_t *object = json_pack("{s:o,s:I}", "time", time_text(), "lost", (json_int_t)audit->lost);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    if (text && buf_printf(out, "%s\n", text) == ST_OK)
        audit->lost = 0;
    free(text);
    json_decref(object);
}

/* Under the mutex, which it leaves meanwhile. */
static void write_out(struct audit *audit)
{
    struct buf lines = audit->lines, head;
    const uint32_t count = audit->line_count;
    const uint64_t lost = audit->lost;
    buf_init(&audit->lines, AUDIT_QUEUE_BYTES);
    buf_init(&head, TEXT_MAX);
    audit->line_count = 0;
    tell_lost(audit, &head);
    const bool told = audit->lost != lost;
    pthread_mutex_unlock(&audit->mutex);
    bool written = !told || write_lines(audit, head.data, head.size);
    const bool head_written = told && written;
    written = written && write_lines(audit, lines.data, lines.size);
    buf_release(&head);
    buf_release(&lines);
    pthread_mutex_lock(&audit->mutex);
    audit->lost += (written ? 0 : count) + (told && !head_written ? lost : 0);
}

static void *run(void *arg)
{
    struct audit *audit = arg;
    pthread_mutex_lock(&audit->mutex);
    while (!audit->closing || audit->lines.size > 0) {
        if (audit->lines.size > 0) {
            write_out(audit);
        } else if (!audit->unsynced) {
            pthread_cond_wait(&audit->cond, &audit->mutex);
        } else if (!clock_cond_wait(&audit->cond, &audit->mutex,
                                    (audit->synced_ms + AUDIT_SYNC_MS) * 1000000)) {
            pthread_mutex_unlock(&audit->mutex);
            sync_file(audit);
            pthread_mutex_lock(&audit->mutex);
        }
    }
    pthread_mutex_unlock(&audit->mutex);
    if (audit->fd >= 0) {
        sync_file(audit);
        (void)close(audit->fd);
    }
    pthread_mutex_lock(&audit->mutex);
    audit->ended = true;
    pthread_cond_broadcast(&audit->cond);
    pthread_mutex_unlock(&audit->mutex);
    return NULL;
}

/* Opens the log of one file. */
static enum status open_one(const struct audit_options *options, const char *path,
                            struct audit **out)
{
    struct audit *audit = calloc(1, sizeof(*audit));
    if (!audit)
        return ST_NO_MEMORY;
    audit->log = *options->log;
    (void)snprintf(audit->path, sizeof(audit->path), "%s", path);
    audit->file_bytes = options->file_bytes > 0 ? options->file_bytes : AUDIT_FILE_BYTES;
    audit->fd = -1;
    buf_init(&audit->lines, AUDIT_QUEUE_BYTES);
    pthread_mutex_init(&audit->mutex, NULL);
    clock_cond_init(&audit->cond);
    const int rc = pthread_create(&audit->thread, NULL, run, audit);
    if (rc != 0) {
        free(audit);
        return status_from_errno(rc);
    }
    *out = audit;
    return ST_OK;
}

enum status audit_open(const struct audit_options *options, struct audit **out)
{
    struct audit *refused = NULL;
    enum status st = open_one(options, options->refused, &refused);
    if (st != ST_OK)
        return st;
    st = open_one(options, options->path, out);
    if (st == ST_OK) {
        (*out)->refused = refused;
    } else {
        audit_close(refused);
    }
    return st;
}

void audit_close(struct audit *audit)
{
    if (!audit)
        return;
    audit_close(audit->refused);
    const int64_t until_ns = clock_mono_ns() + INT64_C(1000000) * AUDIT_CLOSE_MS;
    pthread_mutex_lock(&audit->mutex);
    tell_sources(audit, now_ms(), true);
    audit->closing = true;
    pthread_cond_broadcast(&audit->cond);
    while (!audit->ended && clock_cond_wait(&audit->cond, &audit->mutex, until_ns)) {
    }
    const bool ended = audit->ended;
    pthread_mutex_unlock(&audit->mutex);
    if (!ended) { /* its disk hangs: the process's end cleans up */
        (void)pthread_detach(audit->thread);
        return;
    }
    (void)pthread_join(audit->thread, NULL);
    pthread_cond_destroy(&audit->cond);
    pthread_mutex_destroy(&audit->mutex);
    buf_release(&audit->lines);
    free(audit);
}
