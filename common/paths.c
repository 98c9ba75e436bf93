#include "common/paths.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The home: an absolute folder, with rest appended. */
static enum status set_home(struct paths *paths, const char *folder, const char *rest)
{
    int length = snprintf(paths->home, sizeof(paths->home), "%s%s", folder, rest);
    if (length < 0 || (size_t)length >= sizeof(paths->home))
        return ST_FULL;
    return ST_OK;
}

enum status paths_open(struct paths *paths)
{
    *paths = (struct paths){ .home = "" };
    const char *home = getenv("CAIRN_HOME");
    if (home != NULL && home[0] == '/')
        return set_home(paths, home, "");
    if (home != NULL && home[0] != '\0') {
        char here[512];
        if (getcwd(here, sizeof(here)) == NULL)
            return ST_FULL;
        char rest[512];
        int length = snprintf(rest, sizeof(rest), "/%s", home);
        if (length < 0 || (size_t)length >= sizeof(rest))
            return ST_FULL;
        return set_home(paths, here, rest);
    }
    const char *state = getenv("XDG_STATE_HOME");
    if (state != NULL && state[0] == '/')
        return set_home(paths, state, "/cairn");
    if (geteuid() == 0)
        return set_home(paths, "/var/lib", "/cairn");
    const char *user = getenv("HOME");
    if (user == NULL || user[0] != '/')
        return ST_NOT_FOUND;
    return set_home(paths, user, "/.local/state/cairn");
}

enum status paths_join(const struct paths *paths, char *out, size_t capacity, const char *format,
                       ...)
{
    int head = snprintf(out, capacity, "%s/", paths->home);
    if (head < 0 || (size_t)head >= capacity)
        return ST_FULL;
    va_list list;
    va_start(list, format);
    int tail = vsnprintf(out + head, capacity - (size_t)head, format, list);
    va_end(list);
    if (tail < 0 || (size_t)tail >= capacity - (size_t)head)
        return ST_FULL;
    return ST_OK;
}

/* FNV-1a, only to name a home. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

enum status paths_socket(const struct paths *paths, char *out, size_t capacity)
{
    const int length = snprintf(out, capacity, "unix:%s/cairnd.sock", paths->home);
    return length > 0 && (size_t)length < capacity ? ST_OK : ST_FULL;
}

enum status paths_copies(const struct paths *paths, char *out, size_t capacity)
{
    const char *given = getenv("CAIRN_COPIES");
    int length = given != NULL && given[0] == '/'
                     ? snprintf(out, capacity, "%s", given)
                     : snprintf(out, capacity, "/dev/shm/cairn-%u-%016llx", (unsigned)geteuid(),
                                (unsigned long long)hash_text(paths->home));
    return length > 0 && (size_t)length < capacity ? ST_OK : ST_FULL;
}
