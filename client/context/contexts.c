#include "client/context/contexts.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/base/client.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"
#include "common/own/private.h"
#include "jobspec/text/suggest.h"

#define VERSION 1
#define LOCK_MS 5000 /* others hold it for the time of a write */
#define LOOK_MS 20   /* between two tries */

struct contexts {
    json_t *root;
};

static const struct {
    const char *key, *variable;
} keys[CONTEXT_KEYS] = {
    [CONTEXT_ADDR] = { "addr", "CAIRN_ADDR" },
    [CONTEXT_HOME] = { "home", "CAIRN_HOME" },
    [CONTEXT_TLS_CERT] = { "tls_cert", "CAIRN_TLS_CERT" },
    [CONTEXT_TLS_KEY] = { "tls_key", "CAIRN_TLS_KEY" },
    [CONTEXT_TLS_CA] = { "tls_ca", "CAIRN_TLS_CA" },
    [CONTEXT_TOKEN_FILE] = { "token_file", "CAIRN_TOKEN_FILE" },
};

const char *context_variable(enum context_key key)
{
    return keys[key].variable;
}

bool context_name_is_good(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t size = strlen(name);
    return size > 0 && size < CLIENT_CONTEXT && name[0] != '-' && strspn(name, good) == size;
}

enum status contexts_path(char out[LIMIT_PATH])
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    const bool xdg = config != NULL && config[0] == '/';
    if (!xdg && (home == NULL || home[0] != '/'))
        return ST_NOT_FOUND;
    const int size = snprintf(out, LIMIT_PATH, "%s%s/cairn/contexts.json", xdg ? config : home,
                              xdg ? "" : "/.config");
    return size > 0 && size < LIMIT_PATH ? ST_OK : ST_FULL;
}

/* ---- reading ---- */

static json_t *list_of(const struct contexts *contexts)
{
    return json_object_get(contexts->root, "contexts");
}

static bool is_text(const json_t *value)
{
    const size_t size = json_string_length(value);
    return json_is_string(value) && size > 0 && size < LIMIT_PATH;
}

static enum status refuse(const char *path, struct reason *reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum status refuse(const char *path, struct reason *reason, const char *format, ...)
{
    char text[LIMIT_REASON];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    reason_set(reason, "%s: %s; mend the file, or remove it", path, text);
    return ST_CONFIG;
}

static size_t key_of(const char *word)
{
    size_t key = 0;
    while (key < CONTEXT_KEYS && strcmp(keys[key].key, word) != 0)
        key++;
    return key;
}

static enum status check_context(const char *path, const char *name, json_t *context,
                                 struct reason *reason)
{
    const char *word;
    json_t *value;
    if (!context_name_is_good(name))
        return refuse(path, reason, "contexts: '%s' can't be a context's name", name);
    if (!json_is_object(context))
        return refuse(path, reason, "contexts.%s is no object", name);
    json_object_foreach(context, word, value)
    {
        if (key_of(word) == CONTEXT_KEYS) {
            return refuse(path, reason, "contexts.%s.%s: this version knows no such key", name,
                          word);
        }
        if (!is_text(value))
            return refuse(path, reason, "contexts.%s.%s is no text", name, word);
    }
    if (json_object_get(context, "addr") == NULL && json_object_get(context, "home") == NULL)
        return refuse(path, reason, "contexts.%s has neither addr nor home", name);
    return ST_OK;
}

/* Whatever is read later is there, and of its type. */
static enum status check(const char *path, json_t *root, struct reason *reason)
{
    const char *word;
    json_t *value;
    if (!json_is_object(root))
        return refuse(path, reason, "it is no JSON object");
    json_object_foreach(root, word, value)
    {
        if (strcmp(word, "cairn_contexts") != 0 && strcmp(word, "current") != 0 &&
            strcmp(word, "contexts") != 0)
            return refuse(path, reason, "%s: this version knows no such key", word);
    }
    if (json_integer_value(json_object_get(root, "cairn_contexts")) != VERSION)
        return refuse(path, reason, "cairn_contexts isn't %d", VERSION);
    json_t *list = json_object_get(root, "contexts"), *current = json_object_get(root, "current");
    if (!json_is_object(list) || json_object_size(list) > CONTEXTS_MAX)
        return refuse(path, reason, "contexts is no object of at most %d", CONTEXTS_MAX);
    if (current != NULL && !json_is_null(current) && !is_text(current))
        return refuse(path, reason, "current is no text");
    json_object_foreach(list, word, value)
    {
        const enum status st = check_context(path, word, value, reason);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status read_json(const char *path, json_t **out, struct reason *reason)
{
    struct stat info;
    json_error_t error;
    auto_close int fd = -1;
    enum status st =
        private_file(AT_FDCWD, path, O_RDONLY, PRIVATE_READABLE | PRIVATE_LINKS | PRIVATE_ROOTS,
                     &fd, NULL, reason);
    if (st != ST_OK)
        return st;
    if (fstat(fd, &info) != 0 || info.st_size > (off_t)CONTEXTS_BYTES)
        return refuse(path, reason, "it has more than %zu KiB", CONTEXTS_BYTES >> 10);
    *out = json_loadfd(fd, JSON_REJECT_DUPLICATES, &error);
    return *out != NULL ? ST_OK
                        : refuse(path, reason, "line %d, column %d: %s", error.line, error.column,
                                 error.text);
}

enum status contexts_read(const char *path, struct contexts **out, struct reason *reason)
{
    struct contexts *contexts = calloc(1, sizeof(*contexts));
    if (contexts == NULL)
        return ST_NO_MEMORY;
    enum status st = ST_OK;
    if (access(path, F_OK) == 0) {
        st = read_json(path, &contexts->root, reason);
        if (st == ST_OK)
            st = check(path, contexts->root, reason);
    } else {
        contexts->root =
            json_pack("{s:i, s:n, s:{}}", "cairn_contexts", VERSION, "current", "contexts");
        st = contexts->root == NULL ? ST_NO_MEMORY : ST_OK;
    }
    if (st != ST_OK) {
        contexts_free(contexts);
        return st;
    }
    *out = contexts;
    return ST_OK;
}

void contexts_free(struct contexts *contexts)
{
    if (contexts == NULL)
        return;
    json_decref(contexts->root);
    free(contexts);
}

/* ---- looking ---- */

const char *contexts_current(const struct contexts *contexts)
{
    return json_string_value(json_object_get(contexts->root, "current"));
}

size_t contexts_count(const struct contexts *contexts)
{
    return json_object_size(list_of(contexts));
}

static void fill(const char *name, json_t *value, struct context *out)
{
    out->name = name;
    for (size_t key = 0; key < CONTEXT_KEYS; key++)
        out->values[key] = json_string_value(json_object_get(value, keys[key].key));
}

void contexts_at(const struct contexts *contexts, size_t index, struct context *out)
{
    const char *name;
    json_t *value;
    size_t at = 0;
    json_object_foreach(list_of(contexts), name, value)
    {
        if (at++ == index)
            fill(name, value, out);
    }
}

bool contexts_find(const struct contexts *contexts, const char *name, struct context *out)
{
    const char *word;
    json_t *value;
    json_object_foreach(list_of(contexts), word, value)
    {
        if (strcmp(word, name) == 0) {
            fill(word, value, out);
            return true;
        }
    }
    return false;
}

const char *contexts_like(const struct contexts *contexts, const char *name)
{
    const char *word, *best = NULL;
    json_t *value;
    size_t distance = suggest_limit(name) + 1;
    json_object_foreach(list_of(contexts), word, value)
    {
        const size_t d = suggest_distance(word, name);
        if (d < distance) {
            distance = d;
            best = word;
        }
    }
    return best;
}

/* ---- changing ---- */

enum status contexts_put(struct contexts *contexts, const struct context *context)
{
    json_t *list = list_of(contexts);
    if (json_object_get(list, context->name) == NULL && json_object_size(list) == CONTEXTS_MAX)
        return ST_FULL;
    json_t *value = json_object();
    bool made = value != NULL;
    for (size_t key = 0; made && key < CONTEXT_KEYS; key++) {
        if (context->values[key] != NULL) {
            made =
                json_object_set_new(value, keys[key].key, json_string(context->values[key])) == 0;
        }
    }
    made = made && json_object_set(list, context->name, value) == 0;
    json_decref(value);
    return made ? ST_OK : ST_NO_MEMORY;
}

enum status contexts_remove(struct contexts *contexts, const char *name)
{
    const char *current = contexts_current(contexts);
    if (current != NULL && strcmp(current, name) == 0 &&
        json_object_set_new(contexts->root, "current", json_null()) != 0)
        return ST_NO_MEMORY;
    return json_object_del(list_of(contexts), name) == 0 ? ST_OK : ST_NOT_FOUND;
}

enum status contexts_use(struct contexts *contexts, const char *name)
{
    if (name != NULL && json_object_get(list_of(contexts), name) == NULL)
        return ST_NOT_FOUND;
    json_t *value = name == NULL ? json_null() : json_string(name);
    return json_object_set_new(contexts->root, "current", value) == 0 ? ST_OK : ST_NO_MEMORY;
}

/* Makes the folder of the file, and takes the lock in it. */
static enum status take_lock(const char *path, int *out_fd, struct reason *reason)
{
    char folder[LIMIT_PATH], lock[LIMIT_PATH + 16];
    auto_close int dir = -1;
    const int size = (int)(strrchr(path, '/') - path);
    const int64_t until = clock_mono_ms(clock_system()) + LOCK_MS;
    (void)snprintf(folder, sizeof(folder), "%.*s", size, path);
    *strrchr(folder, '/') = '\0';
    enum status st = folder[0] == '\0' ? ST_OK : io_mkdir_all(io_system(), folder);
    if (st != ST_OK) {
        reason_set(reason, "%s can't be made: %s", folder, client_file_status(st));
        return st;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s", size, path);
    st = private_folder(AT_FDCWD, folder, PRIVATE_MAKE | PRIVATE_LINKS | PRIVATE_READABLE, &dir,
                        NULL, reason);
    if (st != ST_OK)
        return st;
    (void)snprintf(lock, sizeof(lock), "%s/contexts.lock", folder);
    st =
        private_file(AT_FDCWD, lock, O_RDWR, PRIVATE_MAKE | PRIVATE_READABLE, out_fd, NULL, reason);
    while (st == ST_OK && flock(*out_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            st = status_from_errno(errno);
            reason_set(reason, "%s can't be locked: %s", lock, status_string(st));
        } else if (clock_mono_ms(clock_system()) >= until) {
            reason_set(reason, "another process has held %s for %d s: try again", lock,
                       LOCK_MS / 1000);
            st = ST_TIMED_OUT;
        } else {
            (void)poll(NULL, 0, LOOK_MS);
        }
    }
    return st;
}

static enum status write_json(const char *path, const struct contexts *contexts,
                              struct reason *reason)
{
    auto_free char *text = json_dumps(contexts->root, JSON_INDENT(2));
    char *lines = NULL;
    const int size = text == NULL ? -1 : asprintf(&lines, "%s\n", text);
    if (size < 0)
        return ST_NO_MEMORY;
    auto_free char *owned = lines;
    if ((size_t)size > CONTEXTS_BYTES) {
        reason_set(reason, "%s would have more than %zu KiB", path, CONTEXTS_BYTES >> 10);
        return ST_FULL;
    }
    const enum status st = io_replace_private(io_system(), path, owned, (size_t)size);
    if (st != ST_OK)
        reason_set(reason, "%s can't be written: %s", path, client_file_status(st));
    return st;
}

enum status contexts_change(const char *path, contexts_change_fn change, const void *arg,
                            struct reason *reason)
{
    struct contexts *contexts = NULL;
    auto_close int fd = -1; /* closing gives the lock back */
    enum status st = take_lock(path, &fd, reason);
    if (st == ST_OK)
        st = contexts_read(path, &contexts, reason);
    if (st == ST_OK)
        st = change(contexts, arg, reason);
    if (st == ST_OK)
        st = write_json(path, contexts, reason);
    contexts_free(contexts);
    return st;
}
