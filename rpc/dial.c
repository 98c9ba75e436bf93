#include "rpc/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/own/private.h"
#include "rpc/core.h"

#define SOCKET_PATH_MAX 100 /* of the 108 bytes of sockaddr_un */
#define TOKEN_BYTES_MAX 4096
#define WAIT_MS         50
#define HEX_DIGITS      "0123456789abcdefABCDEF"
#define LISTENS         0x0A /* TCP_LISTEN, as /proc/net/tcp writes it */

/* ---- a socket of the file system ---- */

/* gRPC takes a path for a part of an address: '%', '?' and '#' mean something there, and ',' ends
 * it. */
static bool is_plain(const char *path)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@~:";
    return strlen(path) <= SOCKET_PATH_MAX && path[strspn(path, plain)] == '\0';
}

static bool split(struct rpc_dial *dial, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL || strlen(slash + 1) >= sizeof(dial->name) ||
        (size_t)(slash - path) + 2 > sizeof(dial->folder))
        return false;
    (void)snprintf(dial->folder, sizeof(dial->folder), "%.*s",
                   slash == path ? 1 : (int)(slash - path), path);
    (void)snprintf(dial->name, sizeof(dial->name), "%s", slash + 1);
    return true;
}

static void open_socket(struct rpc_dial *dial, const char *path)
{
    while (path[0] == '/' && path[1] == '/') /* "unix:///run/x.sock" */
        path++;
    if (!split(dial, path) || is_plain(path))
        return;
    dial->folder_fd = open(dial->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dial->folder_fd >= 0) {
        (void)snprintf(dial->target, sizeof(dial->target), "unix:/proc/self/fd/%d/%s",
                       dial->folder_fd, dial->name);
    } else { /* it isn't there: nor is a socket */
        (void)snprintf(dial->target, sizeof(dial->target), "unix:/proc/self/fd/none");
    }
}

/* Judges who owns the socket. In a folder where everybody may make files, such as /tmp, the socket
 * has to exist: anybody could take its place. */
static enum rpc_code judge_socket(const struct rpc_dial *dial, struct reason *why)
{
    const unsigned flags = PRIVATE_ROOTS | PRIVATE_READABLE;
    char path[LIMIT_PATH + LIMIT_NAME];
    struct stat folder, info;
    auto_close int fd = dial->folder_fd >= 0
                            ? openat(dial->folder_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC)
                            : open(dial->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    (void)snprintf(path, sizeof(path), "%s/%s", dial->folder, dial->name);
    if (fd < 0 || fstat(fd, &folder) != 0)
        return RPC_OK; /* gRPC says what there is to say: nobody answers there */
    const bool shared = (folder.st_mode & S_ISVTX) != 0;
    if (shared)
        folder.st_mode &= ~(mode_t)(S_IWGRP | S_IWOTH);
    if (private_judge(dial->folder, &folder, flags, why) != ST_OK)
        return RPC_PERMISSION_DENIED;
    if (fstatat(fd, dial->name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        reason_set(why, "%s isn't there", path);
        return shared ? RPC_UNAVAILABLE : RPC_OK;
    }
    const bool link = S_ISLNK(info.st_mode);
    info.st_mode &= ~(mode_t)(S_IRWXG | S_IRWXO); /* who may connect is the server's to say */
    if (private_judge(path, &info, flags, why) != ST_OK)
        return RPC_PERMISSION_DENIED;
    if (!link || fstatat(fd, dial->name, &info, 0) != 0)
        return RPC_OK;
    info.st_mode &= ~(mode_t)(S_IRWXG | S_IRWXO);
    return private_judge(path, &info, flags, why) == ST_OK ? RPC_OK : RPC_PERMISSION_DENIED;
}

/* ---- who listens on loopback ---- */

struct wanted {
    bool any;            /* a name: each address of loopback counts */
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
    unsigned port;
};

struct listeners {
    unsigned ours, others;
    uid_t other;
    bool known; /* the system says who listens */
};

static const uint8_t mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

/* false: not an address of the form HOST:PORT. */
static bool parse_target(const char *target, struct wanted *out)
{
    char host[LIMIT_NAME];
    if (strncmp(target, "ipv4:", 5) == 0 || strncmp(target, "ipv6:", 5) == 0)
        target += 5;
    if (strncmp(target, "dns:", 4) == 0)
        target += 4 + strspn(target + 4, "/");
    const char *colon = strrchr(target, ':');
    if (colon == NULL || colon == target || (size_t)(colon - target) >= sizeof(host))
        return false;
    const bool six = target[0] == '[' && colon[-1] == ']';
    *out = (struct wanted){ .port = (unsigned)strtoul(colon + 1, NULL, 10) };
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - target) - 2 * six, target + six);
    memcpy(out->address, mapped, sizeof(mapped));
    out->any = inet_pton(AF_INET, host, out->address + 12) != 1 &&
               inet_pton(AF_INET6, host, out->address) != 1;
    return true;
}

/* Would a connection to what is wanted come to a listener at this address? */
static bool reaches(const struct wanted *wanted, const uint8_t address[16], bool six)
{
    static const uint8_t none[16] = { 0 }, one[16] = { [15] = 1 };
    const bool four = memcmp(address, mapped, sizeof(mapped)) == 0;
    const bool wildcard =
        four ? memcmp(address + 12, none, 4) == 0 : memcmp(address, none, 16) == 0;
    if (wanted->any)
        return wildcard || (four ? address[12] == 127 : memcmp(address, one, 16) == 0);
    const bool wants_four = memcmp(wanted->address, mapped, sizeof(mapped)) == 0;
    return memcmp(address, wanted->address, 16) == 0 || (wildcard && (six || wants_four));
}

/* Reads an address of 8 or 32 digits: words in the machine's byte order. */
static bool read_address(const char *text, uint8_t out[16])
{
    const size_t digits = strlen(text);
    memcpy(out, mapped, sizeof(mapped));
    if ((digits != 8 && digits != 32) || text[strspn(text, HEX_DIGITS)] != '\0')
        return false;
    for (size_t at = 0; at < digits; at += 8) {
        char word_text[9];
        memcpy(word_text, text + at, 8);
        word_text[8] = '\0';
        const uint32_t word = (uint32_t)strtoul(word_text, NULL, 16);
        memcpy(out + (digits == 8 ? 12 : at / 2), &word, sizeof(word));
    }
    return true;
}

/* A line of /proc/net/tcp or tcp6 (proc_net(5)) that tells of somebody who listens there. */
static bool is_listener(char *line, bool six, const struct wanted *wanted, uid_t *out_uid)
{
    enum { NUMBER, LOCAL, REMOTE, STATE, QUEUES, TIMER, RESENT, UID, WORDS };
    char *words[WORDS], *rest = NULL;
    uint8_t address[16];
    size_t count = 0;
    for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < WORDS;
         word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    char *colon = count == WORDS ? strchr(words[LOCAL], ':') : NULL;
    if (colon == NULL || strtoul(words[STATE], NULL, 16) != LISTENS ||
        strtoul(colon + 1, NULL, 16) != wanted->port)
        return false;
    *colon = '\0';
    *out_uid = (uid_t)strtoul(words[UID], NULL, 10);
    return read_address(words[LOCAL], address) && reaches(wanted, address, six);
}

static void look_through(const char *file, bool six, const struct wanted *wanted,
                         struct listeners *out)
{
    char line[512];
    uid_t uid = 0;
    FILE *rows = fopen(file, "re");
    if (rows == NULL)
        return;
    out->known = true;
    while (fgets(line, sizeof(line), rows) != NULL) {
        if (!is_listener(line, six, wanted, &uid))
            continue;
        if (uid == geteuid() || uid == 0) {
            out->ours++;
        } else {
            out->others++;
            out->other = uid;
        }
    }
    (void)fclose(rows);
}

/* A token is for whoever listens as us or as root. */
static enum rpc_code judge_listener(const struct rpc_dial *dial, struct reason *why)
{
    struct wanted wanted;
    struct listeners listeners = { 0 };
    char user[PRIVATE_USER];
    if (!rpc_address_is_loopback(dial->target) || !parse_target(dial->target, &wanted))
        return RPC_OK; /* the caller's business (client.h) */
    look_through("/proc/net/tcp", false, &wanted, &listeners);
    look_through("/proc/net/tcp6", true, &wanted, &listeners);
    if (listeners.others > 0) {
        reason_set(why, "%s listens at %s, not the coordinator of this user: it gets no token",
                   private_user(listeners.other, user), dial->target);
        return RPC_PERMISSION_DENIED;
    }
    if (listeners.ours > 0 || !listeners.known)
        return RPC_OK;
    reason_set(why, "nobody listens at %s", dial->target);
    return RPC_UNAVAILABLE;
}

/* ---- all of it ---- */

void rpc_dial_open(struct rpc_dial *dial, const struct rpc_channel_options *options)
{
    *dial = (struct rpc_dial){ .folder_fd = -1 };
    (void)snprintf(dial->target, sizeof(dial->target), "%s", options->target);
    const bool local = strncmp(options->target, "unix:", 5) == 0;
    if (local)
        open_socket(dial, options->target + 5);
    dial->bare = !local && options->tls == NULL;
    dial->token = options->token != NULL ? rpc_copy_text(options->token) : NULL;
    dial->token_file = options->token_file != NULL ? rpc_copy_text(options->token_file) : NULL;
}

void rpc_dial_close(struct rpc_dial *dial)
{
    if (dial->folder_fd >= 0)
        (void)close(dial->folder_fd);
    if (dial->token != NULL)
        explicit_bzero(dial->token, strlen(dial->token));
    free(dial->token);
    free(dial->token_file);
    *dial = (struct rpc_dial){ .folder_fd = -1 };
}

/* Takes the token that the call carries. If there is no file, the call is made without one, and the
 * server says what it lacks. */
static enum rpc_code take_token(const struct rpc_dial *dial, char **out, struct reason *why)
{
    auto_free char *read = NULL;
    const char *token = dial->token;
    size_t size = 0;
    if (dial->token_file != NULL) {
        const enum status st = private_read(dial->token_file, TOKEN_BYTES_MAX, &read, &size, why);
        if (st != ST_OK && st != ST_NOT_FOUND)
            return RPC_UNAUTHENTICATED;
        if (st == ST_OK)
            read[strcspn(read, "\r\n")] = '\0';
        token = read;
    }
    if (token == NULL)
        return RPC_OK;
    const size_t capacity = strlen(token) + sizeof("Bearer ");
    *out = rpc_alloc(capacity);
    (void)snprintf(*out, capacity, "Bearer %s", token);
    if (read != NULL)
        explicit_bzero(read, size);
    return RPC_OK;
}

static enum rpc_code admit(const struct rpc_dial *dial, char **out_authorization,
                           struct reason *why)
{
    enum rpc_code code = dial->folder[0] != '\0' ? judge_socket(dial, why) : RPC_OK;
    if (code == RPC_OK && dial->bare && (dial->token != NULL || dial->token_file != NULL))
        code = judge_listener(dial, why);
    return code == RPC_OK ? take_token(dial, out_authorization, why) : code;
}

enum rpc_code rpc_dial_admit(const struct rpc_dial *dial, int64_t wait_ms, char **out_authorization,
                             struct rpc_result *result)
{
    struct reason why = { "" };
    const int64_t until = clock_mono_ms(clock_system()) + wait_ms;
    *out_authorization = NULL;
    enum rpc_code code = admit(dial, out_authorization, &why);
    while (code == RPC_UNAVAILABLE && clock_mono_ms(clock_system()) < until) {
        (void)poll(NULL, 0, WAIT_MS);
        code = admit(dial, out_authorization, &why);
    }
    if (code != RPC_OK)
        (void)snprintf(result->detail, sizeof(result->detail), "%s", why.text);
    result->code = code;
    return code;
}
