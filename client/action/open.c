/* open: lets a browser in to the page, by a link that works once (observer/http/session.h). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/action/commands.h"
#include "client/home/home.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"

#define CODE_BYTES     33
#define PAGE_BYTES     512 /* of the file with its address */
#define LINK_BYTES     (PAGE_BYTES + 64)
#define REVOKE_MS      10000
#define REVOKE_LOOK_MS 100

extern char **environ;

/* The observer takes it as proof: only the home's owner can make this file. */
static enum status make_link(const struct client *client, const char *role, char code[CODE_BYTES])
{
    uint8_t random[16];
    char path[LIMIT_PATH];
    CHECK(getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random));
    for (size_t i = 0; i < sizeof(random); i++)
        (void)snprintf(code + 2 * i, 3, "%02x", random[i]);
    enum status st = paths_join(&client->paths, path, sizeof(path), "observer/links/%s", code);
    if (st != ST_OK)
        return st;
    auto_close int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    const ssize_t size = (ssize_t)strlen(role);
    return fd >= 0 && write(fd, role, (size_t)size) == size ? ST_OK : status_from_errno(errno);
}

/* A file of the home's owner that leads to the link: everybody on the machine sees the command
 * lines of browsers. */
static bool write_leader(const struct client *client, const char *link, char path[LIMIT_PATH])
{
    char text[2 * LINK_BYTES + 256];
    if (paths_join(&client->paths, path, LIMIT_PATH, "observer/open.html") != ST_OK)
        return false;
    const int size = snprintf(text, sizeof(text),
                              "<!doctype html><title>cairn</title>\n"
                              "<meta http-equiv=\"refresh\" content=\"0; url=%s\">\n"
                              "<a href=\"%s\">the page</a>\n",
                              link, link);
    (void)unlink(path);
    auto_close int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd >= 0 && size < (int)sizeof(text) && write(fd, text, (size_t)size) == size;
}

/* Where there is a screen; the link is printed in any case. */
static void start_browser(const struct client *client, const char *link)
{
    char path[LIMIT_PATH];
    char *argv[] = { "xdg-open", path, NULL };
    posix_spawn_file_actions_t files;
    pid_t pid;
    if ((getenv("DISPLAY") == NULL && getenv("WAYLAND_DISPLAY") == NULL) ||
        !write_leader(client, link, path) || posix_spawn_file_actions_init(&files) != 0)
        return;
    if (posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0) == 0 &&
        posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0) == 0)
        (void)posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
}

/* ---- the end of all sessions ---- */

/* Whether the observer has a key and an operator's token that aren't those of before. */
static bool is_renewed(const char *key, const char *token, const char *before)
{
    auto_free char *now = NULL;
    size_t size = 0;
    return access(key, F_OK) == 0 &&
           io_read_file(io_system(), token, PAGE_BYTES, &now, &size) == ST_OK && size > 0 &&
           strcmp(now, before) != 0;
}

static enum exit_code tell_revoked(struct client *client, const char *rest)
{
    client_note(client,
                "sessions, links and tokens of the page that were made so far are worthless%s\n",
                rest);
    return EXIT_DONE;
}

/* The observer looks at its key once a second (observer/http/session.h). */
static enum exit_code revoke_all(struct client *client)
{
    char key[LIMIT_PATH], token[LIMIT_PATH];
    auto_free char *before = NULL;
    size_t size = 0;
    pid_t pid;
    enum status st = paths_join(&client->paths, key, sizeof(key), "observer/key");
    if (st == ST_OK)
        st = paths_join(&client->paths, token, sizeof(token), "observer/token");
    if (st == ST_OK)
        st = io_read_file(io_system(), token, PAGE_BYTES, &before, &size);
    if (st == ST_NOT_FOUND)
        return tell_revoked(client, ": there are none");
    if (st == ST_OK && unlink(key) != 0 && errno != ENOENT)
        st = status_from_errno(errno);
    if (st != ST_OK) {
        client_error("%s/observer: %s", client->paths.home, status_string(st));
        return exit_of_status(st);
    }
    if (home_processes(&client->paths, HOME_OBSERVER, &pid, 1) == 0)
        return tell_revoked(client, "; 'cairn up' makes new ones");
    for (int64_t end = clock_mono_ms(clock_system()) + REVOKE_MS;
         clock_mono_ms(clock_system()) < end; (void)poll(NULL, 0, REVOKE_LOOK_MS)) {
        if (is_renewed(key, token, before))
            return tell_revoked(client, "");
    }
    client_error("the page's server (process %d) hasn't taken the key back within %d s: end it by "
                 "'kill -KILL %d', 'cairn up' has it again; then 'cairn open --revoke' once more",
                 (int)pid, REVOKE_MS / 1000, (int)pid);
    return EXIT_UNREACHABLE;
}

enum exit_code cmd_open(struct client *client)
{
    if (client_needs_home(client) != EXIT_DONE)
        return EXIT_REFUSED;
    if (client->args.revoke)
        return revoke_all(client);
    char path[LIMIT_PATH], code[CODE_BYTES], link[LINK_BYTES];
    auto_free char *url = NULL;
    size_t size = 0;
    enum status st = paths_join(&client->paths, path, sizeof(path), "page");
    if (st == ST_OK)
        st = io_read_file(io_system(), path, PAGE_BYTES, &url, &size);
    pid_t pid;
    if (st != ST_OK || home_processes(&client->paths, HOME_OBSERVER, &pid, 1) == 0) {
        client_error("no page is served for %s\n  start it with: cairn up; of another machine's "
                     "home ask there: ssh HOST cairn open",
                     client->paths.home);
        return EXIT_UNREACHABLE;
    }
    st = make_link(client, client->args.viewer ? "viewer" : "operator", code);
    if (st != ST_OK) {
        client_error("%s/observer/links: %s", client->paths.home, status_string(st));
        return exit_of_status(st);
    }
    (void)snprintf(link, sizeof(link), "%sopen?code=%s", url, code);
    (void)puts(link);
    client_note(client, "works once, within a minute\n");
    start_browser(client, link);
    return EXIT_DONE;
}
