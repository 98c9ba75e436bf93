#include "observer/http/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "identity/invite.h"

#define CODE_DIGITS    32
#define FOR_EVER       0xffffffffLL
#define SESSION_HEADER (IDENTITY_TOKEN + 32) /* bytes of a file with a token, at most */
#define RANDOM_AT      9                     /* of a token */

/* The key may change while it is used. */
static void copy_key(struct sessions *sessions, char out[IDENTITY_TOKEN])
{
    (void)pthread_mutex_lock(&sessions->mutex);
    memcpy(out, sessions->key, IDENTITY_TOKEN);
    (void)pthread_mutex_unlock(&sessions->mutex);
}

uint32_t sessions_keys(struct sessions *sessions)
{
    (void)pthread_mutex_lock(&sessions->mutex);
    const uint32_t keys = sessions->keys;
    (void)pthread_mutex_unlock(&sessions->mutex);
    return keys;
}

void session_make(struct sessions *sessions, enum identity_role role, int64_t until_unix_s,
                  char out[IDENTITY_TOKEN])
{
    char key[IDENTITY_TOKEN];
    uint8_t random[12];
    copy_key(sessions, key);
    CHECK(getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random));
    (void)snprintf(out, IDENTITY_TOKEN, "%c%08" PRIx32, role == IDENTITY_OPERATOR ? 'a' : 'b',
                   (uint32_t)until_unix_s);
    for (size_t i = 0; i < sizeof(random); i++)
        (void)snprintf(out + RANDOM_AT + 2 * i, 3, "%02x", random[i]);
    identity_seal(key, out);
}

enum identity_role session_role(struct sessions *sessions, const char *token, int64_t now_unix_s)
{
    char key[IDENTITY_TOKEN];
    copy_key(sessions, key);
    if (token == NULL || !identity_sealed(key, token) || session_until_s(token) <= now_unix_s)
        return IDENTITY_NOBODY;
    return token[0] == 'a' ? IDENTITY_OPERATOR : IDENTITY_VIEWER;
}

int64_t session_until_s(const char *token)
{
    char until[9];
    (void)snprintf(until, sizeof(until), "%.8s", token + 1);
    return (int64_t)strtoull(until, NULL, 16);
}

void session_who(const char *token, char out[SESSION_WHO])
{
    const bool ends = session_until_s(token) != FOR_EVER;
    (void)snprintf(out, SESSION_WHO, "%s:%.6s", ends ? "session" : "token", token + RANDOM_AT);
}

/* ---- links ---- */

enum identity_role session_link(const struct sessions *sessions, const char *code,
                                int64_t now_unix_s)
{
    char path[LIMIT_PATH + CODE_DIGITS + 2], role[16] = "";
    if (code == NULL || strlen(code) != CODE_DIGITS ||
        strspn(code, "0123456789abcdef") != CODE_DIGITS)
        return IDENTITY_NOBODY;
    (void)snprintf(path, sizeof(path), "%s/%s", sessions->links, code);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat info;
    if (fd < 0 || unlink(path) != 0) /* of two who have it one removes it */
        return IDENTITY_NOBODY;
    if (fstat(fd, &info) != 0 || info.st_uid != geteuid() ||
        info.st_mtime + SESSION_LINK_S < now_unix_s ||
        info.st_mtime > now_unix_s + SESSION_LINK_S || /* the clock was set back meanwhile */
        read(fd, role, sizeof(role) - 1) <= 0)
        return IDENTITY_NOBODY;
    if (strcmp(role, "operator") == 0)
        return IDENTITY_OPERATOR;
    return strcmp(role, "viewer") == 0 ? IDENTITY_VIEWER : IDENTITY_NOBODY;
}

/* Links that nobody used. */
static void drop_links(const struct sessions *sessions)
{
    DIR *folder = opendir(sessions->links);
    const struct dirent *one;
    while (folder != NULL && (one = readdir(folder)) != NULL) {
        if (strlen(one->d_name) == CODE_DIGITS)
            (void)unlinkat(dirfd(folder), one->d_name, 0);
    }
    if (folder != NULL)
        (void)closedir(folder);
}

/* ---- opening ---- */

static enum status make_folder(const struct paths *paths, const char *name, char out[LIMIT_PATH])
{
    const enum status st = paths_join(paths, out, LIMIT_PATH, "%s", name);
    if (st != ST_OK)
        return st;
    if (mkdir(out, 0700) != 0 && errno != EEXIST)
        return status_from_errno(errno);
    return chmod(out, 0700) == 0 ? ST_OK : status_from_errno(errno);
}

/* Writes a private file. A file that has the text already is left alone, so that readers get it
 * whole meanwhile, and a full disk is no trouble. */
static enum status write_private(const char *path, const char *text)
{
    char there[SESSION_HEADER + 1] = "";
    const ssize_t size = (ssize_t)strlen(text);
    auto_close int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fchmod(fd, 0600) != 0)
        return status_from_errno(errno);
    if (pread(fd, there, sizeof(there) - 1, 0) == size && memcmp(there, text, (size_t)size) == 0)
        return ST_OK;
    const ssize_t written = pwrite(fd, text, (size_t)size, 0);
    if (written == size)
        return ftruncate(fd, size) == 0 ? ST_OK : status_from_errno(errno);
    return written < 0 ? status_from_errno(errno) : ST_FULL;
}

/* The token that a file holds, if it is this role's under this key. */
static bool read_token(struct sessions *sessions, const char *path, enum identity_role role,
                       char token[IDENTITY_TOKEN])
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || pread(fd, token, IDENTITY_TOKEN, 0) != IDENTITY_TOKEN ||
        token[IDENTITY_TOKEN - 1] != '\n')
        return false;
    token[IDENTITY_TOKEN - 1] = '\0';
    return session_role(sessions, token, FOR_EVER - 1) == role;
}

/* A token, and the line of HTTP that shows it. */
static enum status write_token(struct sessions *sessions, const struct paths *paths,
                               enum identity_role role, const char *prefix)
{
    char path[LIMIT_PATH], header[LIMIT_PATH], token[IDENTITY_TOKEN], text[SESSION_HEADER];
    enum status st = paths_join(paths, path, sizeof(path), "observer/%stoken", prefix);
    if (st == ST_OK)
        st = paths_join(paths, header, sizeof(header), "observer/%sheader", prefix);
    if (st != ST_OK)
        return st;
    if (!read_token(sessions, path, role, token))
        session_make(sessions, role, FOR_EVER, token);
    (void)snprintf(text, sizeof(text), "%s\n", token);
    st = write_private(path, text);
    (void)snprintf(text, sizeof(text), "Authorization: Bearer %s\n", token);
    return st == ST_OK ? write_private(header, text) : st;
}

static struct session_file file_at(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return (struct session_file){ 0 };
    return (struct session_file){ .inode = info.st_ino,
                                  .size = (uint64_t)info.st_size,
                                  .changed = info.st_ctim };
}

static bool same_file(const struct session_file *a, const struct session_file *b)
{
    return a->inode == b->inode && a->size == b->size && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

/* The key in the file, or one that nobody has where there can be none. *out_changed: it is another
 * one than before. */
static enum status take_key(struct sessions *sessions, const char *path, bool *out_changed)
{
    char key[IDENTITY_TOKEN];
    struct reason why;
    const enum status st = identity_key_at(path, key, &why);
    if (st != ST_OK) {
        uint8_t bytes[(IDENTITY_TOKEN - 1) / 2];
        CHECK(getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
        identity_secret_make(bytes, key);
    }
    (void)pthread_mutex_lock(&sessions->mutex);
    *out_changed = memcmp(key, sessions->key, sizeof(key)) != 0;
    memcpy(sessions->key, key, sizeof(key));
    sessions->keys += *out_changed ? 1 : 0;
    (void)pthread_mutex_unlock(&sessions->mutex);
    explicit_bzero(key, sizeof(key));
    sessions->of_key = st == ST_OK ? file_at(path) : (struct session_file){ 0 };
    return st;
}

static enum status write_tokens(struct sessions *sessions, const struct paths *paths)
{
    enum status st = write_token(sessions, paths, IDENTITY_OPERATOR, "");
    if (st == ST_OK)
        st = write_token(sessions, paths, IDENTITY_VIEWER, "viewer-");
    if (st == ST_OK)
        drop_links(sessions);
    return st;
}

enum status sessions_open(struct sessions *sessions, const struct paths *paths)
{
    char path[LIMIT_PATH];
    bool changed = false;
    CHECK(pthread_mutex_init(&sessions->mutex, NULL) == 0);
    enum status st = make_folder(paths, "observer", path);
    if (st == ST_OK)
        st = make_folder(paths, "observer/links", sessions->links);
    if (st == ST_OK)
        st = paths_join(paths, path, sizeof(path), "observer/key");
    if (st == ST_OK)
        st = take_key(sessions, path, &changed);
    return st == ST_OK ? write_tokens(sessions, paths) : st;
}

enum status sessions_look(struct sessions *sessions, const struct paths *paths, bool *out_changed)
{
    char path[LIMIT_PATH];
    *out_changed = false;
    enum status st = paths_join(paths, path, sizeof(path), "observer/key");
    if (st != ST_OK)
        return st;
    const struct session_file there = file_at(path);
    if (there.inode != 0 && same_file(&there, &sessions->of_key))
        return ST_OK;
    st = take_key(sessions, path, out_changed);
    if (st == ST_OK)
        st = write_tokens(sessions, paths);
    if (st != ST_OK)
        sessions->of_key = (struct session_file){ 0 }; /* the next look tries again */
    return st;
}
