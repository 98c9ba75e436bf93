/*
 * What remote calls cost: the layer that all of Cairn's programs speak through, with and without
 * TLS, a server and its callers as two processes on this machine.
 *
 *   rpc [--seconds N] [--rounds N] [--connections N]
 *
 *   call/1, call/6   small calls, one at a time and from six threads over one connection, per
 *                    second
 *   beats            messages of agents over 64 streams, each a connection of its own, as many as
 *                    go through
 *   connection       a new connection with its first call, from four threads
 *   held             what one that stands costs the server
 *
 * of each: the rate, and the server's processor time a piece. Both servers stand side by side and
 * their rounds alternate; the best counts. The yardstick of a row with TLS is the one without; that
 * of the others, where there is one, a prototype of this layer on another machine with two cores.
 * With few cores the callers are a part of every rate; the server's processor time isn't theirs.
 */
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "cairn/v1/control.pb-c.h"
#include "cairn/v1/fleet.pb-c.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/io.h"
#include "identity/make.h"
#include "proto/descriptors.h"
#include "rpc/client.h"
#include "rpc/server.h"

enum { STREAMS = 64, CALLERS = 6, OPENERS = 4, QUEUED_MAX = 32, OPEN_MS = 30000, PATH = 128 };

/* What the server's process reports. */
struct shared {
    _Atomic int port; /* 0: not yet */
    _Atomic uint64_t beats;
};

struct place {
    const char *name;
    bool tls;
    pid_t pid;
    struct shared *shared;
    char target[64];
};

struct bench {
    double seconds;
    uint32_t rounds, connections;
    char dir[64], paths[5][PATH];
    struct identity_files server, caller; /* with one authority */
    struct place places[2];               /* without, with */
};

/* ---- the server ---- */

static struct shared *counted;

static void get_version(Cairn__V1__Control_Service *service, const Cairn__V1__GetVersionRequest *in,
                        Cairn__V1__GetVersionReply_Closure reply, void *call)
{
    Cairn__V1__GetVersionReply out = CAIRN__V1__GET_VERSION_REPLY__INIT;
    (void)service;
    (void)in;
    reply(&out, call);
}

static void session(Cairn__V1__Fleet_Service *service, const Cairn__V1__AgentMessage *in,
                    Cairn__V1__AgentOrder_Closure reply, void *call)
{
    (void)service;
    (void)reply;
    if (in == NULL) {
        rpc_call_finish(call, RPC_OK, NULL);
    } else {
        atomic_fetch_add(&counted->beats, 1);
    }
}

static void serve(const struct bench *bench, const struct place *place)
{
    static Cairn__V1__Control_Service control = { .base = CAIRN__V1__CONTROL__BASE_INIT,
                                                  .get_version = get_version };
    static Cairn__V1__Fleet_Service fleet = { .base = CAIRN__V1__FLEET__BASE_INIT,
                                              .session = session };
    int port = 0;
    size_t size = 0;
    const uint8_t *descriptors = proto_descriptors(&size);
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    counted = place->shared;
    (void)io_descriptors_raise();
    rpc_init();
    struct rpc_descdb *db = rpc_descdb_new();
    CHECK(rpc_descdb_add(db, descriptors, size) == ST_OK);
    const struct rpc_server_options options = { .descdb = db };
    struct rpc_server *server = rpc_server_new(&options);
    CHECK(rpc_server_add_service(server, &control.base, NULL) == ST_OK);
    CHECK(rpc_server_add_service(server, &fleet.base, NULL) == ST_OK);
    CHECK(rpc_server_listen(server, "127.0.0.1:0", place->tls ? &bench->server : NULL, &port) ==
          ST_OK);
    rpc_server_start(server);
    atomic_store(&place->shared->port, port);
    for (;;)
        (void)pause();
}

static void begin_place(const struct bench *bench, struct place *place)
{
    place->shared = mmap(NULL, sizeof(*place->shared), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(place->shared != MAP_FAILED);
    place->pid = fork(); /* before gRPC is started here */
    CHECK(place->pid >= 0);
    if (place->pid == 0)
        serve(bench, place);
    while (atomic_load(&place->shared->port) == 0)
        (void)poll(NULL, 0, 1);
    (void)snprintf(place->target, sizeof(place->target), "ipv4:127.0.0.1:%d",
                   atomic_load(&place->shared->port));
}

static double cpu_s(const struct place *place)
{
    clockid_t clock;
    struct timespec time;
    CHECK(clock_getcpuclockid(place->pid, &clock) == 0);
    CHECK(clock_gettime(clock, &time) == 0);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double resident_kib(const struct place *place)
{
    char path[64], line[256];
    double kib = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)place->pid);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtod(line + 6, NULL);
    }
    (void)fclose(file);
    return kib;
}

/* ---- callers ---- */

static double now_s(void)
{
    return (double)clock_mono_ns() / 1e9;
}

static struct rpc_channel *dial(const struct bench *bench, const struct place *place)
{
    const struct rpc_channel_options options = { .target = place->target,
                                                 .tls = place->tls ? &bench->caller : NULL,
                                                 .tls_name = IDENTITY_SERVER };
    struct rpc_channel *channel = NULL;
    CHECK(rpc_channel_new(&options, &channel) == ST_OK);
    return channel;
}

static void call_once(struct rpc_channel *channel)
{
    const Cairn__V1__GetVersionRequest request = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    const struct rpc_call_options options = { .timeout_ms = OPEN_MS, .wait_for_ready = true };
    ProtobufCMessage *reply = NULL;
    CHECK(rpc_unary(channel, &cairn__v1__control__descriptor, "GetVersion", &request.base, &options,
                    &reply, NULL) == ST_OK);
    protobuf_c_message_free_unpacked(reply, NULL);
}

/* One of several threads that share a task. */
struct worker {
    const struct bench *bench;
    const struct place *place;
    struct rpc_channel **channels; /* of calls: one; of connections: where they go */
    double until_s;
    uint64_t done;
    uint32_t first, step, end;
    pthread_t thread;
};

/* Runs count of them side by side; how much was done. */
static uint64_t run_workers(struct worker *workers, uint32_t count, void *(*body)(void *))
{
    uint64_t done = 0;
    for (uint32_t i = 0; i < count; i++)
        CHECK(pthread_create(&workers[i].thread, NULL, body, &workers[i]) == 0);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
        done += workers[i].done;
    }
    return done;
}

/* The results of a round: a rate, and the processor time of the server for one item. */
struct found {
    double rate, cpu_us, kib;
};

static struct found found_of(const struct place *place, uint64_t done, double since_s,
                             double cpu_before_s)
{
    return (struct found){ .rate = (double)done / (now_s() - since_s),
                           .cpu_us = (cpu_s(place) - cpu_before_s) * 1e6 / (double)done };
}

static void *call_main(void *arg)
{
    struct worker *worker = arg;
    while (now_s() < worker->until_s) {
        call_once(worker->channels[0]);
        worker->done++;
    }
    return NULL;
}

static struct found run_calls(const struct bench *bench, const struct place *place, uint32_t count)
{
    struct worker workers[CALLERS] = { 0 };
    struct rpc_channel *channel = dial(bench, place);
    call_once(channel);
    const double since_s = now_s(), cpu_before_s = cpu_s(place);
    for (uint32_t i = 0; i < count; i++)
        workers[i] = (struct worker){ .channels = &channel, .until_s = since_s + bench->seconds };
    const uint64_t done = run_workers(workers, count, call_main);
    const struct found found = found_of(place, done, since_s, cpu_before_s);
    rpc_channel_free(channel);
    return found;
}

/* ---- beats ---- */

static struct rpc_stream *open_stream(struct rpc_channel *channel)
{
    const struct rpc_stream_options options = { .open_timeout_ms = OPEN_MS,
                                                .wait_for_ready = true,
                                                .send_queue_max = QUEUED_MAX };
    struct rpc_stream *stream = NULL;
    CHECK(rpc_stream_open(channel, &cairn__v1__fleet__descriptor, "Session", &options, &stream,
                          NULL) == ST_OK);
    return stream;
}

static void send_beats(struct rpc_stream *const *streams, double until_s)
{
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    beat.load1 = 1;
    beat.memory_available_bytes = UINT64_C(32) << 30;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT;
    message.beat = &beat;
    while (now_s() < until_s) {
        bool any = false;
        for (uint32_t i = 0; i < STREAMS; i++)
            any = rpc_stream_send(streams[i], &message.base) == ST_OK || any;
        if (!any)
            (void)poll(NULL, 0, 1);
    }
}

static struct found run_beats(const struct bench *bench, const struct place *place, uint32_t count)
{
    struct rpc_channel *channels[STREAMS];
    struct rpc_stream *streams[STREAMS];
    (void)count;
    for (uint32_t i = 0; i < STREAMS; i++) {
        channels[i] = dial(bench, place);
        streams[i] = open_stream(channels[i]);
    }
    const uint64_t before = atomic_load(&place->shared->beats);
    const double since_s = now_s(), cpu_before_s = cpu_s(place);
    send_beats(streams, since_s + bench->seconds);
    const uint64_t done = atomic_load(&place->shared->beats) - before;
    const struct found found = found_of(place, done, since_s, cpu_before_s);
    for (uint32_t i = 0; i < STREAMS; i++) {
        rpc_stream_close(streams[i], NULL);
        rpc_channel_free(channels[i]);
    }
    return found;
}

/* ---- connections ---- */

static void *connect_main(void *arg)
{
    struct worker *worker = arg;
    for (uint32_t i = worker->first; i < worker->end; i += worker->step) {
        worker->channels[i] = dial(worker->bench, worker->place);
        call_once(worker->channels[i]);
        worker->done++;
    }
    return NULL;
}

static struct found run_connections(const struct bench *bench, const struct place *place,
                                    uint32_t count)
{
    struct worker workers[OPENERS] = { 0 };
    struct rpc_channel **channels = calloc(bench->connections, sizeof(*channels));
    CHECK(channels != NULL);
    const double since_s = now_s(), cpu_before_s = cpu_s(place), kib = resident_kib(place);
    for (uint32_t i = 0; i < count; i++) {
        workers[i] = (struct worker){ .bench = bench,
                                      .place = place,
                                      .channels = channels,
                                      .first = i,
                                      .step = count,
                                      .end = bench->connections };
    }
    const uint64_t done = run_workers(workers, count, connect_main);
    struct found found = found_of(place, done, since_s, cpu_before_s);
    found.kib = (resident_kib(place) - kib) / (double)done;
    for (uint32_t i = 0; i < bench->connections; i++)
        rpc_channel_free(channels[i]);
    free(channels);
    return found;
}

/* ---- rows ---- */

struct row {
    const char *name;
    struct found (*run)(const struct bench *bench, const struct place *place, uint32_t count);
    uint32_t count;      /* threads */
    struct found before; /* of the prototype, without TLS; 0: not measured */
};

static void tell(const char *name, const char *place, double value, const char *unit,
                 const char *yardstick, double yardstick_value)
{
    (void)printf("{\"bench\": \"rpc\", \"case\": \"%s/%s\", \"value\": %.4g, \"unit\": \"%s\", "
                 "\"yardstick\": \"%s\", \"yardstick_value\": %.4g, \"ratio\": %.4g}\n",
                 name, place, value, unit, yardstick, yardstick_value, value / yardstick_value);
    (void)fprintf(stderr, "%-12s %-6s %10.4g %-26s %-12s %10.4g %8.3f\n", name, place, value, unit,
                  yardstick, yardstick_value, value / yardstick_value);
    (void)fflush(stdout);
}

/* The first connections of a server bring things that stay; the memory of the first round counts.
 */
static void run_row(struct bench *bench, const struct row *row)
{
    struct found best[2] = { 0 };
    for (uint32_t round = 0; round < bench->rounds; round++) {
        for (int i = 0; i < 2; i++) {
            const struct found found = row->run(bench, &bench->places[i], row->count);
            if (round == 0)
                best[i] = found;
            best[i].rate = found.rate > best[i].rate ? found.rate : best[i].rate;
            best[i].cpu_us = found.cpu_us < best[i].cpu_us ? found.cpu_us : best[i].cpu_us;
        }
    }
    for (int i = 0; i < 2; i++) {
        const bool known = i == 0 && row->before.rate > 0;
        const struct found *than = known ? &row->before : &best[0];
        const char *of = known ? "prototype" : "without TLS";
        const char *place = bench->places[i].name;
        tell(row->name, place, best[i].rate, "1/s", of, than->rate);
        tell(row->name, place, best[i].cpu_us, "us of the server", of, than->cpu_us);
        if (best[i].kib > 0)
            tell("held", place, best[i].kib, "KiB of the server", "prototype", i == 0 ? 28 : 106);
    }
}

static void put_pair(const struct identity_pem *ca, enum identity_role role,
                     const struct identity_files *files)
{
    struct identity_pem own;
    struct reason reason;
    const int64_t now = clock_wall_ms(clock_system()) / 1000;
    CHECK(identity_make(ca, role, "a", NULL, now, &own, &reason) == ST_OK);
    CHECK(io_replace(io_system(), files->cert, own.cert, strlen(own.cert)) == ST_OK);
    CHECK(io_replace(io_system(), files->key, own.key, strlen(own.key)) == ST_OK);
    identity_pem_release(&own);
}

static void make_files(struct bench *bench)
{
    static const char *const names[] = { "server.crt", "server.key", "a.crt", "a.key", "ca.crt" };
    struct identity_pem ca;
    struct reason reason;
    (void)snprintf(bench->dir, sizeof(bench->dir), "/tmp/cairn-bench-XXXXXX");
    CHECK(mkdtemp(bench->dir) != NULL);
    for (int i = 0; i < 5; i++)
        (void)snprintf(bench->paths[i], PATH, "%s/%s", bench->dir, names[i]);
    bench->server = (struct identity_files){ bench->paths[0], bench->paths[1], bench->paths[4] };
    bench->caller = (struct identity_files){ bench->paths[2], bench->paths[3], bench->paths[4] };
    const int64_t now = clock_wall_ms(clock_system()) / 1000;
    CHECK(identity_make_ca("bench", now, &ca, &reason) == ST_OK);
    CHECK(io_replace(io_system(), bench->server.ca, ca.cert, strlen(ca.cert)) == ST_OK);
    put_pair(&ca, IDENTITY_COORDINATOR, &bench->server);
    put_pair(&ca, IDENTITY_NODE, &bench->caller);
    identity_pem_release(&ca);
}

static void remove_files(const struct bench *bench)
{
    for (int i = 0; i < 5; i++)
        (void)unlink(bench->paths[i]);
    (void)rmdir(bench->dir);
}

static void take_arguments(struct bench *bench, int argc, char **argv)
{
    static const struct option names[] = { { "seconds", required_argument, NULL, 's' },
                                           { "rounds", required_argument, NULL, 'r' },
                                           { "connections", required_argument, NULL, 'c' },
                                           { NULL, 0, NULL, 0 } };
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (option == 's') {
            bench->seconds = strtod(optarg, NULL);
        } else if (option == 'r') {
            bench->rounds = (uint32_t)strtoul(optarg, NULL, 10);
        } else if (option == 'c') {
            bench->connections = (uint32_t)strtoul(optarg, NULL, 10);
        } else {
            (void)fprintf(stderr, "usage: rpc [--seconds N] [--rounds N] [--connections N]\n");
            exit(2);
        }
    }
    CHECK(bench->seconds > 0 && bench->rounds > 0 && bench->connections > 0);
}

int main(int argc, char **argv)
{
    static const struct row rows[] = {
        { "call/1", run_calls, 1, { .rate = 34900, .cpu_us = 15 } },
        { "call/6", run_calls, CALLERS, { .rate = 48400, .cpu_us = 15 } },
        { "beats", run_beats, 1, { .rate = 46200, .cpu_us = 20 } },
        { "connection", run_connections, OPENERS, { .rate = 0 } },
    };
    struct bench bench = { .seconds = 2,
                           .rounds = 3,
                           .connections = 500,
                           .places = { { .name = "plain" }, { .name = "tls", .tls = true } } };
    take_arguments(&bench, argc, argv);
    make_files(&bench);
    for (int i = 0; i < 2; i++)
        begin_place(&bench, &bench.places[i]);
    (void)io_descriptors_raise();
    rpc_init();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        run_row(&bench, &rows[i]);
    for (int i = 0; i < 2; i++)
        (void)kill(bench.places[i].pid, SIGKILL);
    rpc_shutdown();
    remove_files(&bench);
    return EXIT_SUCCESS;
}
