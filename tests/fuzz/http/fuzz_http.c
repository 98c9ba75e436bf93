/*
 * Any requests to the observer, from anybody: a real server with what lies behind it, whose
 * coordinator counts what it is asked to do (http_world.h).
 *
 * The first byte of an input says what it is (enum mode, by remainder), the rest is a list of
 * records: kind, size, that many bytes.
 *   0 bytes as they are   1 a request: method, path, who, flags, Host, Origin, then the path's name
 *   2 a header: name, value   3 a piece of the body   4 what the coordinator says: code, message
 *   5 another connection   6 a link for a sign-in
 *
 * ASKED has no bytes as they are: of each request it is known whether it may act. BYTES has, and no
 * operator. PARTS is none of this: tokens, codes and rows go to what reads them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/clock.h"
#include "observer/curves/history.h"
#include "observer/curves/reduce.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/http/http_answers.h"
#include "tests/fuzz/http/http_world.h"

enum mode { ASKED, BYTES, PARTS, MODES };
enum { WIRE_MAX = 65536, HEAD_MAX = 16384, NAME_MAX_BYTES = 256, REQUESTS_MAX = 6 };
enum { QUIET_MS = 10, LONG_MS = 20000, AGAIN_STREAMS = 24, AGAIN_RUNS = 256 };

enum flag { ACTS = 1, OLD = 2, CLOSES = 4, CHUNKED = 8, EXPECTS = 16, ENCODED = 32 };

static const char *const methods[] = { "GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "get" };

static const char *const targets[] = {
    "/",
    "/open?code=*",
    "/healthz",
    "/metrics",
    "/api/v1/session",
    "/api/v1/jobs",
    "/api/v1/jobs/*",
    "/api/v1/jobs/*/why",
    "/api/v1/jobs/*/checkpoints",
    "/api/v1/jobs/*/curves",
    "/api/v1/jobs/j-1/curves?points=*",
    "/api/v1/jobs/*/metrics.csv",
    "/api/v1/jobs/*/live",
    "/api/v1/jobs/j-1/live?from=*",
    "/api/v1/jobs/*/logs",
    "/api/v1/jobs/j-1/logs?rank=*&follow=0",
    "/api/v1/jobs/j-1/logs?attempt=*&follow=1",
    "/api/v1/nodes",
    "/api/v1/system",
    "/api/v1/live",
    "/api/v1/jobs/*/pause",
    "/api/v1/jobs/*/resume",
    "/api/v1/jobs/*/stop",
    "/api/v1/jobs/*/save",
    "/api/v1/nodes/*/drain",
    "/api/v1/nodes/*/undrain",
    "/*",
    "*",
    "http://elsewhere.example/api/v1/jobs/*/stop",
};

static const char *const names[] = {
    "Authorization", "Cookie", "X-Cairn", "Origin", "Host",   "Referer",       "Accept-Encoding",
    "Range",         "Accept", "Upgrade", "X-Any",  "Pragma", "If-None-Match", "X-Forwarded-Host",
};

/* A dollar is the port. The first OWN of each are this server's own. */
enum { OWN_HOSTS = 5, OWN_ORIGINS = 4 };
static const char *const hosts[] = { "127.0.0.1:$",       "localhost:$",
                                     "[::1]:$",           "127.0.0.1",
                                     "localhost",         "elsewhere.example",
                                     "127.0.0.1:1",       "elsewhere.example:$",
                                     "127.0.0.1:$.other", "" };
static const char *const origins[] = { NULL,
                                       "http://127.0.0.1:$",
                                       "http://localhost:$",
                                       "http://[::1]:$",
                                       "http://127.0.0.1",
                                       "https://127.0.0.1:$",
                                       "null",
                                       "http://elsewhere.example",
                                       "http://elsewhere.example:$",
                                       "http://127.0.0.1:$/",
                                       "http://127.0.0.1:1" };

struct request {
    char head[HEAD_MAX];
    size_t head_size;
    uint8_t body[WIRE_MAX];
    size_t body_size;
    unsigned flags;
    bool begun, posts, acting, ours, own; /* own: each Host and Origin is */
    bool is_head;
};

struct game {
    struct world *world;
    enum mode mode;
    struct request request; /* the newest */
    uint8_t wire[WIRE_MAX];
    size_t wire_size;
    struct http_asked asked[REQUESTS_MAX];
    size_t asked_count;
    uint64_t may;           /* requests of this input that may act */
    uint64_t links, opened; /* made, and let in by them */
    bool cut;               /* an answer wasn't waited for */
    char code[33];
};

/* ---- what is sent ---- */

static void put(struct game *game, const void *data, size_t size)
{
    if (size == 0 || size > WIRE_MAX - game->wire_size)
        return;
    memcpy(game->wire + game->wire_size, data, size);
    game->wire_size += size;
}

static void put_head(struct request *request, const char *text, size_t size)
{
    if (size > HEAD_MAX - request->head_size)
        return;
    memcpy(request->head + request->head_size, text, size);
    request->head_size += size;
}

static void put_line(struct request *request, const char *name, const char *value)
{
    char line[1024];
    const int size = snprintf(line, sizeof(line), "%s: %s\r\n", name, value);
    CHECK(size > 0 && size < (int)sizeof(line));
    put_head(request, line, (size_t)size);
}

static void with_port(const struct game *game, const char *text, char out[64])
{
    const char *at = strchr(text, '$');
    if (at == NULL) {
        (void)snprintf(out, 64, "%s", text);
    } else {
        (void)snprintf(out, 64, "%.*s%u%s", (int)(at - text), text, (unsigned)game->world->port,
                       at + 1);
    }
}

static void put_who(struct game *game, uint8_t who)
{
    const struct world *world = game->world;
    struct request *request = &game->request;
    const char *tokens[] = { NULL, world->viewer, world->operator, world->operator, world->viewer,
                             world->expired, world->foreign, world->operator};
    char value[IDENTITY_TOKEN + 32];
    who %= 8;
    if (game->mode == BYTES && tokens[who] == world->operator)
        who = who == 2 ? 1 : 4;
    const bool cookie = who == 3 || who == 4 || who == 6;
    if (tokens[who] == NULL)
        return;
    if (cookie) {
        (void)snprintf(value, sizeof(value), "a=b; " HTTP_COOKIE_FORMAT "%s", (unsigned)world->port,
                       tokens[who]);
    } else {
        (void)snprintf(value, sizeof(value), "Bearer %s", tokens[who]);
    }
    if (who == 7)
        value[strlen(value) - 1] ^= 1; /* nearly one */
    put_line(request, cookie ? "Cookie" : "Authorization", value);
    request->acting = who == 2 || who == 3;
}

/* The request line, with the name in the star's place. */
static void put_target(struct game *game, uint8_t method, uint8_t target, const uint8_t *name,
                       size_t size)
{
    struct request *request = &game->request;
    const char *pattern = targets[target % (sizeof(targets) / sizeof(targets[0]))];
    const char *star = strchr(pattern, '*');
    char text[3 * NAME_MAX_BYTES + 1] = "";
    size = size < NAME_MAX_BYTES ? size : NAME_MAX_BYTES;
    for (size_t i = 0, at = 0; i < size; i++) {
        const bool plain = name[i] > ' ' && name[i] < 0x7f;
        at += (size_t)snprintf(text + at, sizeof(text) - at,
                               (request->flags & ENCODED) != 0 ? "%%%02x" : "%c",
                               plain || (request->flags & ENCODED) != 0 ? name[i] : '_');
    }
    const char *given = size > 0 ? text : strncmp(pattern, "/open", 5) == 0 ? game->code : "j-1";
    request->posts = strcmp(methods[method % 7], "POST") == 0;
    request->is_head = strcmp(methods[method % 7], "HEAD") == 0;
    put_head(request, methods[method % 7], strlen(methods[method % 7]));
    put_head(request, " ", 1);
    put_head(request, pattern, star != NULL ? (size_t)(star - pattern) : strlen(pattern));
    put_head(request, given, star != NULL ? strlen(given) : 0);
    if (star != NULL)
        put_head(request, star + 1, strlen(star + 1));
    put_head(request, (request->flags & OLD) != 0 ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n", 11);
}

/* The newest request is complete: it goes to the wire. */
static void end_request(struct game *game)
{
    struct request *request = &game->request;
    char line[64];
    if (!request->begun || game->asked_count == REQUESTS_MAX)
        return;
    request->begun = false;
    const bool chunked = (request->flags & CHUNKED) != 0 && request->body_size > 0;
    if (chunked) {
        put_line(request, "Transfer-Encoding", "chunked");
    } else if (request->body_size > 0 || request->posts) {
        (void)snprintf(line, sizeof(line), "%zu", request->body_size);
        put_line(request, "Content-Length", line);
    }
    if (HEAD_MAX - request->head_size < 2 || /* then it isn't what is asked for */
        request->head_size + request->body_size + 64 > WIRE_MAX - game->wire_size)
        return;
    put_head(request, "\r\n", 2);
    put(game, request->head, request->head_size);
    if (chunked) {
        (void)snprintf(line, sizeof(line), "%zx\r\n", request->body_size);
        put(game, line, strlen(line));
    }
    put(game, request->body, request->body_size);
    if (chunked)
        put(game, "\r\n0\r\n\r\n", 7);
    const bool may = request->posts && request->acting && request->ours && request->own;
    game->asked[game->asked_count++] =
        (struct http_asked){ .posts = request->posts, .may = may, .is_head = request->is_head };
    game->may += may;
}

static void begin_request(struct game *game, const uint8_t *data, size_t size)
{
    uint8_t given[6] = { 0 };
    char value[64];
    struct request *request = &game->request;
    end_request(game);
    memcpy(given, data, size < sizeof(given) ? size : sizeof(given));
    const size_t rest = size < sizeof(given) ? 0 : size - sizeof(given);
    request->head_size = request->body_size = 0;
    request->flags = given[3];
    request->begun = request->own = true;
    request->acting = request->ours = false;
    put_target(game, given[0], given[1], data + size - rest, rest);
    put_who(game, given[2]);
    const size_t host = given[4] % (sizeof(hosts) / sizeof(hosts[0]) + 1);
    if (host < sizeof(hosts) / sizeof(hosts[0])) { /* else there is none */
        with_port(game, hosts[host], value);
        put_line(request, "Host", value);
    }
    const size_t origin = given[5] % (sizeof(origins) / sizeof(origins[0]));
    if (origins[origin] != NULL) {
        with_port(game, origins[origin], value);
        put_line(request, "Origin", value);
    }
    request->own = host < OWN_HOSTS && origin < OWN_ORIGINS;
    if ((request->flags & ACTS) != 0)
        put_line(request, "X-Cairn", "1");
    request->ours = (request->flags & ACTS) != 0;
    if ((request->flags & CLOSES) != 0)
        put_line(request, "Connection", "close");
    if ((request->flags & EXPECTS) != 0)
        put_line(request, "Expect", "100-continue");
}

static void put_header(struct game *game, const uint8_t *data, size_t size)
{
    struct request *request = &game->request;
    char value[256];
    size_t length = 0;
    if (size == 0 || !request->begun)
        return;
    for (size_t i = 1; i < size; i++) {
        const bool plain = data[i] != '\r' && data[i] != '\n' && data[i] != '\0';
        value[length++] = (char)(plain ? data[i] : '_');
    }
    value[length] = '\0';
    const char *name = names[data[0] % (sizeof(names) / sizeof(names[0]))];
    put_line(request, name, value);
    const char *trimmed = value + strspn(value, " \t");
    const size_t left = strcspn(trimmed, " \t");
    if (strcmp(name, "X-Cairn") == 0 && left == 1 && trimmed[0] == '1')
        request->ours = true;
    if (strcmp(name, "Host") == 0 && strcmp(value, "localhost") != 0 &&
        strcmp(value, "127.0.0.1") != 0 && strcmp(value, "[::1]") != 0)
        request->own = false;
    if (strcmp(name, "Origin") == 0)
        request->own = false;
}

static void put_body(struct request *request, const uint8_t *data, size_t size)
{
    if (size > WIRE_MAX - request->body_size || size == 0)
        return;
    memcpy(request->body + request->body_size, data, size);
    request->body_size += size;
}

/* ---- to and fro ---- */

static int dial(const struct game *game)
{
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons(game->world->port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    const struct linger hard = { .l_onoff = 1 }; /* no port waits for what is over */
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)) == 0);
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0) {
        CHECK(errno == EINTR); /* the fuzzer's own clock; it goes on without us */
        struct pollfd out = { .fd = fd, .events = POLLOUT };
        while (poll(&out, 1, LONG_MS) < 0)
            CHECK(errno == EINTR);
        CHECK(out.revents == POLLOUT);
    }
    return fd;
}

/* By its hash: a comparison with a secret would show it to the fuzzer, which puts into its inputs
 * what it sees compared. */
static bool is_secret(const char *text, const char *secret)
{
    return XXH3_64bits(text, IDENTITY_TOKEN - 1) == XXH3_64bits(secret, IDENTITY_TOKEN - 1);
}

static void look_for_secrets(const struct game *game, const struct http_answers *answers)
{
    const struct world *world = game->world;
    const char *const secrets[] = { world->sessions.key, world->operator, world->viewer };
    size_t digits = 0;
    for (size_t at = 0; at < answers->text.size; at++) {
        const char c = answers->text.data[at];
        digits = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ? digits + 1 : 0;
        const char *last =
            digits >= IDENTITY_TOKEN - 1 ? answers->text.data + at + 2 - IDENTITY_TOKEN : NULL;
        for (size_t i = 0; last != NULL && i < 3; i++)
            CHECK(!is_secret(last, secrets[i]));
    }
}

/*
 * Nothing was done but what was allowed. What wasn't waited for may come as late as its
 * connection's thread: until that is gone, so much may still be done.
 */
static void count_acts(struct game *game, bool all_ended)
{
    static uint64_t allowed;
    static bool late;
    allowed += game->may;
    late = late || game->cut;
    game->may = 0;
    const uint64_t acts = world_acts();
    CHECK(acts <= allowed);
    if (all_ended)
        late = false;
    if (!late)
        allowed = acts;
}

static void start_again(struct game *game)
{
    world_again();
    count_acts(game, true);
}

/* Sends what is on the wire, and reads what is answered. */
static void exchange(struct game *game)
{
    static size_t streams;
    struct http_answers answers;
    end_request(game);
    if (game->wire_size == 0)
        return;
    const int fd = dial(game);
    (void)send(fd, game->wire, game->wire_size, MSG_NOSIGNAL);
    http_answers_read(&answers, fd, game->asked, game->mode == ASKED ? game->asked_count : 0,
                      game->mode == ASKED ? LONG_MS : QUIET_MS);
    (void)close(fd);
    look_for_secrets(game, &answers);
    game->opened += answers.opened;
    game->cut = game->cut || !answers.whole;
    if (game->mode == ASKED)
        CHECK(!answers.late);
    streams += answers.stream;
    http_answers_release(&answers);
    game->wire_size = game->asked_count = 0;
    if (streams >= AGAIN_STREAMS) {
        start_again(game);
        streams = 0;
    }
}

static void say(const uint8_t *data, size_t size)
{
    static const enum rpc_code codes[] = { RPC_OK,
                                           RPC_OK,
                                           RPC_NOT_FOUND,
                                           RPC_FAILED_PRECONDITION,
                                           RPC_INVALID_ARGUMENT,
                                           RPC_UNAVAILABLE,
                                           RPC_RESOURCE_EXHAUSTED,
                                           RPC_PERMISSION_DENIED };
    if (size > 0)
        world_says(codes[data[0] % 8], data + 1, size - 1);
}

static void play(struct game *game, uint8_t kind, const uint8_t *data, size_t size)
{
    switch (kind % 7) {
    case 0:
        end_request(game);
        if (game->mode == BYTES)
            put(game, data, size);
        break;
    case 1:
        begin_request(game, data, size);
        break;
    case 2:
        put_header(game, data, size);
        break;
    case 3:
        put_body(&game->request, data, size);
        break;
    case 4:
        exchange(game);
        say(data, size);
        break;
    case 5:
        exchange(game);
        break;
    default:
        world_link(size > 0 && data[0] % 2 == 1 ? "viewer" : "operator", game->code);
        game->links++;
        break;
    }
}

/* ---- parts ---- */

static void read_tokens(struct world *world, const uint8_t *data, size_t size)
{
    char token[IDENTITY_TOKEN], *text = malloc(size + 1);
    CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    CHECK(session_role(&world->sessions, text, 0) == IDENTITY_NOBODY);
    CHECK(session_link(&world->sessions, text, 0) == IDENTITY_NOBODY);
    free(text);
    memcpy(token, world->operator, sizeof(token));
    for (size_t i = 0; i + 1 < size; i += 2)
        token[data[i] % (IDENTITY_TOKEN - 1)] ^= (char)data[i + 1];
    const enum identity_role role = session_role(&world->sessions, token, 0);
    CHECK(role == IDENTITY_NOBODY || is_secret(token, world->operator));
}

static void read_rows(const uint8_t *data, size_t size)
{
    struct history history = { .rows = NULL };
    struct buf out;
    buf_init(&out, (size_t)16 << 20);
    for (size_t at = 0; at + 2 <= size;) {
        size_t length = (size_t)data[at] + 256 * (data[at + 1] % 16);
        length = length < size - at - 2 ? length : size - at - 2;
        Cairn__V1__ReadMetricsReply *page =
            cairn__v1__read_metrics_reply__unpack(NULL, length, data + at + 2);
        at += 2 + length;
        if (page == NULL)
            continue;
        CHECK(history_take(&history, page) != HISTORY_NO_MEMORY);
        cairn__v1__read_metrics_reply__free_unpacked(page, NULL);
        const size_t from = history.count / 3;
        buf_clear(&out);
        CHECK(reduce_json(&history, "j-1", from, history.count, at % 9, &out) == ST_OK);
        json_t *value = json_loadb(out.data, out.size, JSON_DECODE_INT_AS_REAL, NULL);
        CHECK(value != NULL);
        json_decref(value);
    }
    buf_release(&out);
    history_release(&history);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct game game;
    static uint64_t runs;
    game = (struct game){ .world = world_get() };
    if (size == 0)
        return 0;
    game.mode = data[0] % MODES;
    if (game.mode == PARTS) {
        read_tokens(game.world, data + 1, size - 1);
        read_rows(data + 1, size - 1);
        return 0;
    }
    memset(game.code, '0', sizeof(game.code) - 1);
    world_says(RPC_OK, NULL, 0);
    for (size_t at = 1; at + 2 <= size;) {
        size_t length = data[at + 1];
        if (length > size - at - 2)
            length = size - at - 2;
        play(&game, data[at], data + at + 2, length);
        at += 2 + length;
    }
    exchange(&game);
    count_acts(&game, false);
    CHECK(game.opened <= game.links);
    if (++runs % AGAIN_RUNS == 0)
        start_again(&game);
    return 0;
}
