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

#define CODE_DIGITS 32
#define FOR_EVER    0xffffffffLL
#define RANDOM_AT   9 /* of a token */

void session_make(const struct sessions *sessions, enum identity_role role, int64_t until_unix_s,
                  char out[IDENTITY_TOKEN])
{
    uint8_t random[12];
    CHECK(getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random));
    (void)snprintf(out, IDENTITY_TOKEN, "%c%08" PRIx32, role == IDENTITY_OPERATOR ? 'a' : 'b',
                   (uint32_t)until_unix_s);
    for (size_t i = 0; i < sizeof(random); i++)
        (void)snprintf(out + RANDOM_AT + 2 * i, 3, "%02x", random[i]);
    identity_seal(sessions->key, out);
}

enum identity_role session_role(const struct sessions *sessions, const char *token,
                                int64_t now_unix_s)
{
    if (token == NULL || !identity_sealed(sessions->key, token) ||
        session_until_s(token) <= now_unix_s)
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

/* One that is there and good stays: who reads it meanwhile gets it whole, and a full disk is no
 * trouble. */
static enum status write_token(const struct sessions *sessions, const struct paths *paths,
                               enum identity_role role, const char *name)
{
    char path[LIMIT_PATH], token[IDENTITY_TOKEN + 1] = "";
    const enum status st = paths_join(paths, path, sizeof(path), "observer/%s", name);
    if (st != ST_OK)
        return st;
    auto_close int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fchmod(fd, 0600) != 0)
        return status_from_errno(errno);
    const ssize_t there = pread(fd, token, IDENTITY_TOKEN, 0);
    if (there == IDENTITY_TOKEN && token[IDENTITY_TOKEN - 1] == '\n') {
        token[IDENTITY_TOKEN - 1] = '\0';
        if (session_role(sessions, token, FOR_EVER - 1) == role)
            return ST_OK;
    }
    session_make(sessions, role, FOR_EVER, token);
    token[IDENTITY_TOKEN - 1] = '\n';
    token[IDENTITY_TOKEN] = '\0';
    const ssize_t size = (ssize_t)strlen(token);
    const ssize_t written = pwrite(fd, token, (size_t)size, 0);
    if (written == size)
        return ftruncate(fd, size) == 0 ? ST_OK : status_from_errno(errno);
    return written < 0 ? status_from_errno(errno) : ST_FULL;
}

enum status sessions_open(struct sessions *sessions, const struct paths *paths)
{
    char path[LIMIT_PATH];
    enum status st = make_folder(paths, "observer", path);
    if (st == ST_OK)
        st = make_folder(paths, "observer/links", sessions->links);
    if (st == ST_OK)
        st = paths_join(paths, path, sizeof(path), "observer/key");
    if (st == ST_OK)
        st = identity_key_at(path, sessions->key);
    if (st == ST_OK)
        st = write_token(sessions, paths, IDENTITY_OPERATOR, "token");
    if (st == ST_OK)
        st = write_token(sessions, paths, IDENTITY_VIEWER, "viewer-token");
    if (st == ST_OK)
        drop_links(sessions);
    return st;
}
