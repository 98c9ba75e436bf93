#include "tests/fuzz/http/http_world.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "proto/descriptors.h"
#include "rpc/server.h"

/* SLACK: gRPC has some threads and files more or fewer, by the time of day. */
enum { ANSWER_BYTES = 65536, SLACK = 16, LAST_STEP = 8, GONE_MS = 10000 };

static struct {
    bool made;
    struct world face;
    char home[64];
    struct paths paths;
    struct log log;
    struct rpc_descdb *db;
    struct rpc_server *server;
    struct coordinator *coordinator;
    struct poll *poll;
    struct cache *cache;
    struct http *http;
    size_t fds, threads; /* without a server of HTTP; 0: not known yet */
} world;

/* ---- the coordinator ---- */

static struct {
    pthread_mutex_t lock;
    enum rpc_code code;
    size_t size;
    uint8_t data[ANSWER_BYTES];
    atomic_ullong acts;
} said = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

/* Only these are any business of a page. */
static void count_call(const char *method)
{
    static const char *const acts[] = { "PauseJob",       "ResumeJob", "StopJob",
                                        "SaveCheckpoint", "DrainNode", "UndrainNode" };
    static const char *const looks[] = { "ListJobs",        "GetJob",      "ExplainJob",
                                         "ListCheckpoints", "ReadMetrics", "StreamLogs",
                                         "ListNodes",       "GetVersion" };
    if (is_among(method, acts, sizeof(acts) / sizeof(acts[0]))) {
        (void)atomic_fetch_add(&said.acts, 1);
    } else {
        CHECK(is_among(method, looks, sizeof(looks) / sizeof(looks[0])));
    }
}

/* NULL: it says the error *code. */
static ProtobufCMessage *make_answer(const ProtobufCMessageDescriptor *type, enum rpc_code *code)
{
    ProtobufCMessage *made = NULL;
    (void)pthread_mutex_lock(&said.lock);
    *code = said.code;
    if (said.code == RPC_OK && said.size > 0)
        made = protobuf_c_message_unpack(type, NULL, said.size, said.data);
    const bool plain = said.code == RPC_OK && made == NULL;
    (void)pthread_mutex_unlock(&said.lock);
    if (!plain)
        return made;
    made = protobuf_c_message_unpack(type, NULL, 0, (const uint8_t *)"");
    CHECK(made != NULL);
    if (type == &cairn__v1__job__descriptor) {
        ((Cairn__V1__Job *)made)->state = CAIRN__V1__JOB_STATE__SUCCEEDED;
        ((Cairn__V1__Job *)made)->id = strdup("j-1");
    }
    return made;
}

/* A job's rows have an end, whatever the bytes say. */
static void bound_rows(Cairn__V1__ReadMetricsReply *reply, uint64_t from_step)
{
    reply->next_step = reply->next_step > from_step ? reply->next_step : from_step + 1;
    reply->more = reply->more && from_step < LAST_STEP;
}

static void answer(ProtobufCService *service, unsigned index, const ProtobufCMessage *in,
                   ProtobufCClosure reply, void *call)
{
    const ProtobufCMethodDescriptor *method = &service->descriptor->methods[index];
    enum rpc_code code = RPC_OK;
    (void)reply;
    count_call(method->name);
    ProtobufCMessage *out = make_answer(method->output, &code);
    if (out == NULL) {
        rpc_call_finish(call, code, "the coordinator's \"words\"\r\nX-Evil: 1");
        return;
    }
    if (strcmp(method->name, "ReadMetrics") == 0) {
        bound_rows((Cairn__V1__ReadMetricsReply *)out,
                   ((const Cairn__V1__ReadMetricsRequest *)in)->from_step);
    }
    if (out->descriptor == &cairn__v1__list_jobs_reply__descriptor) {
        char *token = ((Cairn__V1__ListJobsReply *)out)->next_page_token;
        if (token[0] != '\0') /* else it is nobody's to write */
            token[0] = '\0';
    }
    (void)rpc_call_send(call, out);
    protobuf_c_message_free_unpacked(out, NULL);
    const bool follows = strcmp(method->name, "StreamLogs") == 0 &&
                         ((const Cairn__V1__StreamLogsRequest *)in)->follow;
    if (strcmp(method->name, "StreamLogs") == 0 && !follows)
        rpc_call_finish(call, RPC_OK, NULL);
}

static void start_coordinator(void)
{
    static ProtobufCService control = { &cairn__v1__control__descriptor, answer, NULL };
    char address[LIMIT_PATH];
    size_t size = 0;
    const uint8_t *descriptors = proto_descriptors(&size);
    world.db = rpc_descdb_new();
    CHECK(rpc_descdb_add(world.db, descriptors, size) == ST_OK);
    const struct rpc_server_options options = { .descdb = world.db };
    world.server = rpc_server_new(&options);
    CHECK(rpc_server_add_service(world.server, &control, NULL) == ST_OK);
    CHECK(paths_socket(&world.paths, address, sizeof(address)) == ST_OK);
    CHECK(rpc_server_listen_unix(world.server, address + strlen("unix:")) == ST_OK);
    rpc_server_start(world.server);
    CHECK(coordinator_open(&world.paths, &world.coordinator) == ST_OK);
}

void world_says(enum rpc_code code, const uint8_t *data, size_t size)
{
    (void)pthread_mutex_lock(&said.lock);
    said.code = code;
    said.size = size < ANSWER_BYTES ? size : ANSWER_BYTES;
    if (size > 0)
        memcpy(said.data, data, said.size);
    (void)pthread_mutex_unlock(&said.lock);
}

uint64_t world_acts(void)
{
    return atomic_load(&said.acts);
}

/* ---- the server ---- */

static int listen_somewhere(uint16_t *port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof(at);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(bind(fd, (const struct sockaddr *)&at, size) == 0);
    CHECK(listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static void start_http(void)
{
    CHECK(cache_new(world.coordinator, &world.cache) == ST_OK);
    CHECK(poll_start(world.coordinator, &world.log, &world.poll) == ST_OK);
    const int fd = listen_somewhere(&world.face.port);
    const struct http_parts parts = { .coordinator = world.coordinator,
                                      .poll = world.poll,
                                      .cache = world.cache,
                                      .sessions = &world.face.sessions,
                                      .log = &world.log };
    CHECK(http_start(&parts, fd, world.face.port, &world.http) == ST_OK);
}

static void stop_http(void)
{
    poll_stop(world.poll);
    http_stop(world.http);
    poll_free(world.poll);
    cache_free(world.cache);
}

static size_t count_entries(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static int remove_file(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    return kind == FTW_F ? remove_one(path, info, kind, at) : 0;
}

void world_again(void)
{
    stop_http();
    if (world.fds == 0) {
        world.fds = count_entries("/proc/self/fd");
        world.threads = count_entries("/proc/self/task");
    }
    for (int i = 0; count_entries("/proc/self/task") > world.threads + SLACK; i++) {
        CHECK(i < GONE_MS); /* one that was joined is listed for some moments more */
        (void)usleep(1000);
    }
    CHECK(count_entries("/proc/self/fd") <= world.fds + SLACK);
    (void)nftw(world.face.sessions.links, remove_file, 4, FTW_PHYS); /* nobody used them */
    start_http();
}

/* ---- all of it ---- */

/*
 * At the process's end, and before the end of what was used first: a thread of the server that is
 * still on its way would ask for what the TLS library has just put away.
 */
static void end_world(void)
{
    stop_http();
    coordinator_close(world.coordinator);
    rpc_server_stop_begin(world.server, 0);
    rpc_server_free(world.server);
    rpc_descdb_free(world.db);
    rpc_shutdown();
    (void)nftw(world.home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_sessions(void)
{
    const int64_t now_s = (int64_t)time(NULL);
    struct sessions other;
    CHECK(sessions_open(&world.face.sessions, &world.paths) == ST_OK);
    other = world.face.sessions;
    other.key[0] = (char)(other.key[0] == '0' ? '1' : '0');
    session_make(&world.face.sessions, IDENTITY_OPERATOR, now_s + 86400, world.face.operator);
    session_make(&world.face.sessions, IDENTITY_VIEWER, now_s + 86400, world.face.viewer);
    session_make(&world.face.sessions, IDENTITY_OPERATOR, now_s - 1, world.face.expired);
    session_make(&other, IDENTITY_OPERATOR, now_s + 86400, world.face.foreign);
}

struct world *world_get(void)
{
    if (world.made)
        return &world.face;
    (void)snprintf(world.home, sizeof(world.home), "%s/cairn-fuzz-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    CHECK(mkdtemp(world.home) != NULL);
    CHECK(setenv("CAIRN_HOME", world.home, 1) == 0);
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    CHECK(paths_open(&world.paths) == ST_OK);
    world.log = (struct log){ .fd = -1, .rank = -1, .generation = -1 };
    make_sessions();
    rpc_init();
    start_coordinator();
    start_http();
    CHECK(atexit(end_world) == 0);
    world.made = true;
    return &world.face;
}

void world_link(const char *role, char code[33])
{
    static uint64_t count;
    char path[LIMIT_PATH + 64];
    (void)snprintf(code, 33, "%032llx", (unsigned long long)++count);
    (void)snprintf(path, sizeof(path), "%s/%s", world.face.sessions.links, code);
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK(write(fd, role, strlen(role)) == (ssize_t)strlen(role));
    (void)close(fd);
}
