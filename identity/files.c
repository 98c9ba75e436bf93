#include "identity/files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/own/private.h"

enum { FILES = 3 };

struct identity_watch {
    char *paths[FILES];
    struct identity_files files; /* the same */
    struct io_stat accepted[FILES];
    struct io_stat found[FILES]; /* zero: not there */
    int64_t next_look_ms;
};

static void wipe(char *text)
{
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    free(text);
}

static const char *or_variable(const char *path, const char *name)
{
    const char *value = path != NULL ? path : getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

bool identity_files_named(struct identity_files *files)
{
    files->cert = or_variable(files->cert, "CAIRN_TLS_CERT");
    files->key = or_variable(files->key, "CAIRN_TLS_KEY");
    files->ca = or_variable(files->ca, "CAIRN_TLS_CA");
    return files->cert != NULL || files->key != NULL || files->ca != NULL;
}

void identity_texts_release(struct identity_texts *texts)
{
    free(texts->cert);
    wipe(texts->key);
    free(texts->ca);
    *texts = (struct identity_texts){ 0 };
}

static enum status read_text(const char *path, char **out, struct reason *reason)
{
    size_t size = 0;
    if (path == NULL)
        return ST_OK;
    enum status st = io_read_file(io_system(), path, IDENTITY_FILE_BYTES, out, &size);
    if (st == ST_NOT_FOUND) {
        reason_set(reason, "%s isn't there", path);
    } else if (st != ST_OK) {
        reason_set(reason, "%s can't be read: %s", path, status_string(st));
    }
    return st;
}

enum status identity_texts_read(const struct identity_files *files, struct identity_texts *out,
                                struct reason *reason)
{
    *out = (struct identity_texts){ 0 };
    enum status st = read_text(files->cert, &out->cert, reason);
    if (st == ST_OK)
        st = read_text(files->key, &out->key, reason);
    if (st == ST_OK)
        st = read_text(files->ca, &out->ca, reason);
    if (st != ST_OK)
        identity_texts_release(out);
    return st;
}

bool identity_key_exposed(const char *key, struct reason *reason)
{
    struct stat info;
    if (key == NULL || stat(key, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    return private_judge(key, &info, PRIVATE_ROOTS, reason) != ST_OK;
}

static void look(struct identity_watch *watch)
{
    const struct io *io = io_system();
    for (size_t i = 0; i < FILES; i++) {
        struct io_stat *found = &watch->found[i];
        if (watch->paths[i] == NULL || io->stat(io->self, watch->paths[i], found) != ST_OK)
            *found = (struct io_stat){ 0 };
    }
}

enum status identity_watch_new(const struct identity_files *files, struct identity_watch **out)
{
    const char *const paths[FILES] = { files->cert, files->key, files->ca };
    struct identity_watch *watch = calloc(1, sizeof(*watch));
    if (watch == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < FILES; i++) {
        watch->paths[i] = paths[i] == NULL ? NULL : strdup(paths[i]);
        if (paths[i] != NULL && watch->paths[i] == NULL) {
            identity_watch_free(watch);
            return ST_NO_MEMORY;
        }
    }
    watch->files = (struct identity_files){ watch->paths[0], watch->paths[1], watch->paths[2] };
    look(watch);
    identity_watch_accept(watch);
    *out = watch;
    return ST_OK;
}

void identity_watch_free(struct identity_watch *watch)
{
    if (watch == NULL)
        return;
    for (size_t i = 0; i < FILES; i++)
        free(watch->paths[i]);
    free(watch);
}

const struct identity_files *identity_watch_files(const struct identity_watch *watch)
{
    return &watch->files;
}

bool identity_watch_changed(struct identity_watch *watch, int64_t now_ms)
{
    if (now_ms < watch->next_look_ms)
        return false;
    watch->next_look_ms = now_ms + IDENTITY_LOOK_MS;
    look(watch);
    for (size_t i = 0; i < FILES; i++) {
        const struct io_stat *was = &watch->accepted[i], *is = &watch->found[i];
        if (was->inode != is->inode || was->size != is->size || was->changed_ns != is->changed_ns)
            return true;
    }
    return false;
}

void identity_watch_accept(struct identity_watch *watch)
{
    memcpy(watch->accepted, watch->found, sizeof(watch->found));
}
