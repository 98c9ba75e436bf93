#include "tests/unit/agent/agent_world.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/telemetry/proc.h"
#include "common/clock.h"
#include "proto/descriptors.h"
#include "tests/test.h"

#define DEADLINE_MS 30000
#define JOB         "j-test"
#define HEARD_MAX   4096

struct world {
    struct paths paths;
    char socket[LIMIT_PATH];
    struct rpc_descdb *db;
    struct rpc_server *server;
    Cairn__V1__Fleet_Service service;
    pid_t agent;
    const char *grace; /* it leaves within so many seconds; NULL: it stays */
    char *log_text;
    uint64_t next_log;
    pthread_mutex_t mutex;
    /* under the mutex */
    struct rpc_call *call; /* the session, referenced; or NULL */
    bool ack;
    Cairn__V1__AgentMessage *heard[HEARD_MAX];
    size_t heard_count;
};

typedef bool condition_fn(struct world *world, const void *arg);

static void wait_for(struct world *world, condition_fn *condition, const void *arg,
                     const char *what)
{
    int64_t until = clock_mono_ms(clock_system()) + DEADLINE_MS;
    for (;;) {
        pthread_mutex_lock(&world->mutex);
        bool reached = condition(world, arg);
        pthread_mutex_unlock(&world->mutex);
        if (reached)
            return;
        if (clock_mono_ms(clock_system()) > until)
            fail_msg("waited in vain for %s", what);
        (void)poll(NULL, 0, 5);
    }
}

/* The coordinator's side of the session. */

static Cairn__V1__AgentMessage *copy_of(const Cairn__V1__AgentMessage *message)
{
    size_t size = cairn__v1__agent_message__get_packed_size(message);
    uint8_t *bytes = malloc(size + 1);
    if (bytes == NULL)
        abort();
    (void)cairn__v1__agent_message__pack(message, bytes);
    Cairn__V1__AgentMessage *copy = cairn__v1__agent_message__unpack(NULL, size, bytes);
    free(bytes);
    return copy;
}

static void session_done(struct rpc_call *call, void *data, bool cancelled)
{
    (void)cancelled;
    struct world *world = data;
    pthread_mutex_lock(&world->mutex);
    if (world->call == call) {
        rpc_call_unref(call);
        world->call = NULL;
    }
    pthread_mutex_unlock(&world->mutex);
}

static void answer_exit(struct rpc_call *call, const Cairn__V1__TrainerExited *exited)
{
    Cairn__V1__ExitAck ack = CAIRN__V1__EXIT_ACK__INIT;
    ack.ref = exited->ref;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK;
    order.exit_ack = &ack;
    (void)rpc_call_send(call, &order.base);
}

static void session(Cairn__V1__Fleet_Service *service, const Cairn__V1__AgentMessage *in,
                    Cairn__V1__AgentOrder_Closure reply, void *call)
{
    (void)reply;
    struct world *world =
        (struct world *)(void *)((char *)service - offsetof(struct world, service));
    if (in == NULL) {
        rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    pthread_mutex_lock(&world->mutex);
    if (rpc_call_data(call) == NULL) {
        rpc_call_set_data(call, world, session_done);
        rpc_call_ref(call);
        if (world->call != NULL)
            rpc_call_unref(world->call);
        world->call = call;
    }
    if (world->heard_count < HEARD_MAX)
        world->heard[world->heard_count++] = copy_of(in);
    bool ack = world->ack && in->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    pthread_mutex_unlock(&world->mutex);
    if (ack)
        answer_exit(call, in->exited);
}

static void say(struct world *world, Cairn__V1__AgentOrder *order)
{
    pthread_mutex_lock(&world->mutex);
    enum status st = world->call != NULL ? rpc_call_send(world->call, &order->base) : ST_CLOSED;
    pthread_mutex_unlock(&world->mutex);
    assert_int_equal(st, ST_OK);
}

static Cairn__V1__TrainerRef wire_ref(uint32_t generation, uint32_t rank)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = (char *)JOB;
    ref.generation = generation;
    ref.rank = rank;
    return ref;
}

static void order_start(struct world *world, Cairn__V1__TrainerRef *ref, uint32_t slot,
                        const char *mode)
{
    char variable[64];
    (void)snprintf(variable, sizeof(variable), "MODE=%s", mode != NULL ? mode : "");
    char *env[] = { variable };
    Cairn__V1__StartTrainer start = CAIRN__V1__START_TRAINER__INIT;
    start.ref = ref;
    start.token = (char *)"t0ken";
    start.threads = 3;
    start.slot = slot;
    start.env = env;
    start.n_env = 1;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_START;
    order.start = &start;
    say(world, &order);
}

void world_order_start(struct world *world, uint32_t generation, uint32_t rank, const char *mode)
{
    Cairn__V1__TrainerRef ref = wire_ref(generation, rank);
    order_start(world, &ref, 0, mode);
}

void world_order_start_in(struct world *world, uint32_t rank, uint32_t slot)
{
    Cairn__V1__TrainerRef ref = wire_ref(1, rank);
    order_start(world, &ref, slot, "hold");
}

void world_order_start_bad(struct world *world, const char *job)
{
    Cairn__V1__TrainerRef ref = wire_ref(1, 0);
    ref.job = (char *)job;
    order_start(world, &ref, 0, NULL);
}

void world_order_end(struct world *world, uint32_t generation, uint32_t rank, int signal_number,
                     uint32_t grace_ms)
{
    Cairn__V1__TrainerRef ref = wire_ref(generation, rank);
    Cairn__V1__EndTrainer end = CAIRN__V1__END_TRAINER__INIT;
    end.ref = &ref;
    end.signal = signal_number;
    end.grace_ms = grace_ms;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_END;
    order.end = &end;
    say(world, &order);
}

void world_order_log(struct world *world, uint64_t id, uint32_t rank, uint64_t offset,
                     uint32_t size_max)
{
    Cairn__V1__TrainerRef ref = wire_ref(1, rank);
    Cairn__V1__LogRequest request = CAIRN__V1__LOG_REQUEST__INIT;
    request.id = id;
    request.ref = &ref;
    request.offset = offset;
    request.size_max = size_max;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_LOG;
    order.log = &request;
    say(world, &order);
}

void world_ack_exits(struct world *world, bool on)
{
    pthread_mutex_lock(&world->mutex);
    world->ack = on;
    pthread_mutex_unlock(&world->mutex);
}

/* What was heard: the newest message that matches, and how many do. */

struct wanted {
    Cairn__V1__AgentMessage__BodyCase body;
    uint32_t generation, rank;
    uint64_t id;
    unsigned times;
};

static bool matches(const Cairn__V1__AgentMessage *m, const struct wanted *w)
{
    if (m->body_case != w->body)
        return false;
    const Cairn__V1__TrainerRef *ref = NULL;
    if (w->body == CAIRN__V1__AGENT_MESSAGE__BODY_STARTED)
        ref = m->started->ref;
    else if (w->body == CAIRN__V1__AGENT_MESSAGE__BODY_EXITED)
        ref = m->exited->ref;
    else if (w->body == CAIRN__V1__AGENT_MESSAGE__BODY_LOG)
        return m->log->id == w->id;
    return ref == NULL || (ref->generation == w->generation && ref->rank == w->rank);
}

static unsigned count_heard(struct world *world, const struct wanted *wanted,
                            Cairn__V1__AgentMessage **out)
{
    unsigned count = 0;
    for (size_t i = 0; i < world->heard_count; i++) {
        if (!matches(world->heard[i], wanted))
            continue;
        count++;
        if (out != NULL)
            *out = world->heard[i];
    }
    return count;
}

static bool heard_often_enough(struct world *world, const void *arg)
{
    const struct wanted *wanted = arg;
    return count_heard(world, wanted, NULL) >= wanted->times;
}

static Cairn__V1__AgentMessage *wait_heard(struct world *world, const struct wanted *wanted,
                                           const char *what)
{
    Cairn__V1__AgentMessage *message = NULL;
    wait_for(world, heard_often_enough, wanted, what);
    pthread_mutex_lock(&world->mutex);
    (void)count_heard(world, wanted, &message);
    pthread_mutex_unlock(&world->mutex);
    return message;
}

static unsigned count_now(struct world *world, Cairn__V1__AgentMessage__BodyCase body)
{
    const struct wanted wanted = { .body = body };
    pthread_mutex_lock(&world->mutex);
    unsigned count = count_heard(world, &wanted, NULL);
    pthread_mutex_unlock(&world->mutex);
    return count;
}

unsigned world_hellos(struct world *world)
{
    return count_now(world, CAIRN__V1__AGENT_MESSAGE__BODY_HELLO);
}

void world_wait_hellos(struct world *world, unsigned count)
{
    const struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_HELLO, .times = count };
    (void)wait_heard(world, &wanted, "a hello");
}

void world_wait_beats(struct world *world, unsigned more)
{
    struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT };
    wanted.times = count_now(world, wanted.body) + more;
    (void)wait_heard(world, &wanted, "a beat");
}

const Cairn__V1__AgentBeat *world_beat(struct world *world)
{
    const struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT, .times = 1 };
    return wait_heard(world, &wanted, "a beat")->beat;
}

const Cairn__V1__AgentHello *world_hello(struct world *world)
{
    const struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_HELLO, .times = 1 };
    return wait_heard(world, &wanted, "a hello")->hello;
}

pid_t world_wait_started(struct world *world, uint32_t generation, uint32_t rank, unsigned times)
{
    const struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_STARTED,
                                   .generation = generation,
                                   .rank = rank,
                                   .times = times };
    return (pid_t)wait_heard(world, &wanted, "the start of a trainer")->started->pid;
}

const Cairn__V1__TrainerExited *world_wait_exited(struct world *world, uint32_t generation,
                                                  uint32_t rank, unsigned times)
{
    const struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED,
                                   .generation = generation,
                                   .rank = rank,
                                   .times = times };
    return wait_heard(world, &wanted, "the exit of a trainer")->exited;
}

const Cairn__V1__AgentLeaving *world_wait_leaving(struct world *world)
{
    const struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING, .times = 1 };
    return wait_heard(world, &wanted, "that it leaves")->leaving;
}

bool world_heard_left(struct world *world)
{
    return count_now(world, CAIRN__V1__AGENT_MESSAGE__BODY_LEFT) > 0;
}

const Cairn__V1__LogChunk *world_wait_chunk(struct world *world, uint64_t id)
{
    const struct wanted wanted = { .body = CAIRN__V1__AGENT_MESSAGE__BODY_LOG,
                                   .id = id,
                                   .times = 1 };
    return wait_heard(world, &wanted, "a piece of a log")->log;
}

const char *world_wait_log(struct world *world, uint32_t rank, const char *text)
{
    int64_t until = clock_mono_ms(clock_system()) + DEADLINE_MS;
    for (;;) {
        uint64_t id = ++world->next_log;
        world_order_log(world, id, rank, 0, UINT32_MAX);
        const Cairn__V1__LogChunk *chunk = world_wait_chunk(world, id);
        free(world->log_text);
        const char *data = chunk->data.len > 0 ? (const char *)chunk->data.data : "";
        world->log_text = strndup(data, chunk->data.len);
        assert_non_null(world->log_text);
        if (strstr(world->log_text, text) != NULL)
            return world->log_text;
        if (clock_mono_ms(clock_system()) > until)
            fail_msg("the log never had \"%s\" but only: %s", text, world->log_text);
        (void)poll(NULL, 0, 10);
    }
}

/* Processes. */

bool process_lives(pid_t pid)
{
    struct proc_stat stat;
    return proc_stat_read(pid, &stat) == ST_OK && stat.state != 'Z' && stat.state != 'X';
}

static bool is_gone(struct world *world, const void *arg)
{
    (void)world;
    return !process_lives(*(const pid_t *)arg);
}

void wait_process_gone(pid_t pid)
{
    struct world none;
    pthread_mutex_init(&none.mutex, NULL);
    wait_for(&none, is_gone, &pid, "a process to be gone");
}

static bool is_of_home(const struct world *world, long pid)
{
    char path[64];
    char wanted[LIMIT_PATH];
    (void)snprintf(path, sizeof(path), "/proc/%ld/environ", pid);
    (void)snprintf(wanted, sizeof(wanted), "CAIRN_HOME=%s", world->paths.home);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return false;
    static char environment[256 * 1024];
    size_t size = fread(environment, 1, sizeof(environment), file);
    (void)fclose(file);
    return memmem(environment, size, wanted, strlen(wanted) + 1) != NULL;
}

unsigned world_processes(const struct world *world)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc");
    assert_non_null(folder);
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 0 && pid != world->agent && process_lives((pid_t)pid) && is_of_home(world, pid))
            count++;
    }
    (void)closedir(folder);
    return count;
}

static pid_t spawn_agent(struct world *world, const char *faults)
{
    static const char *const kept[] = { "PATH", "ASAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS",
                                        "UBSAN_OPTIONS" };
    char *env[16] = { (char *)"OMP_THREAD_LIMIT=1", (char *)"OF_A_SHELL=1" };
    size_t count = 2;
    char texts[10][LIMIT_PATH];
    (void)snprintf(texts[0], LIMIT_PATH, "CAIRN_HOME=%s", world->paths.home);
    (void)snprintf(texts[1], LIMIT_PATH, "CAIRN_FAULT=%s", faults != NULL ? faults : "");
    (void)snprintf(texts[2], LIMIT_PATH, "CAIRN_FAULT_DIR=%.900s/faults", world->paths.home);
    (void)snprintf(texts[3], LIMIT_PATH, "CAIRN_COPIES=%.900s/copies", world->paths.home);
    (void)snprintf(texts[4], LIMIT_PATH, "CAIRN_NVML=%s", FAKE_NVML);
    for (size_t i = 0; i < 5; i++)
        env[count++] = texts[i];
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        const char *value = getenv(kept[i]);
        if (value == NULL)
            continue;
        (void)snprintf(texts[5 + i], LIMIT_PATH, "%s=%.900s", kept[i], value);
        env[count++] = texts[5 + i];
    }
    env[count] = NULL;
    char *argv[] = { (char *)AGENT,
                     (char *)"--name",
                     (char *)"node-1",
                     (char *)"--slots",
                     (char *)"3",
                     (char *)"--trainer",
                     (char *)SOURCE_DIR "/tests/unit/agent/trainer.sh",
                     (char *)(world->grace != NULL ? "--leave-on-term" : "--stay-on-term"),
                     (char *)(world->grace != NULL ? "--grace" : NULL),
                     (char *)world->grace,
                     NULL };
    pid_t pid = 0;
    assert_int_equal(posix_spawn(&pid, AGENT, NULL, NULL, argv, env), 0);
    return pid;
}

void world_agent_start(struct world *world, const char *faults)
{
    world->agent = spawn_agent(world, faults);
}

void world_agent_kill(struct world *world)
{
    assert_int_equal(kill(world->agent, SIGKILL), 0);
    world_agent_wait_killed(world);
}

void world_agent_wait_killed(struct world *world)
{
    int status = 0;
    wait_process_gone(world->agent);
    assert_int_equal(waitpid(world->agent, &status, 0), world->agent);
    assert_true(WIFSIGNALED(status));
    world->agent = 0;
}

static int wait_code(pid_t pid)
{
    int status = 0;
    wait_process_gone(pid);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void world_agent_leaves(struct world *world, const char *grace)
{
    world->grace = grace;
}

void world_agent_term(struct world *world)
{
    assert_int_equal(kill(world->agent, SIGTERM), 0);
}

int world_agent_stop(struct world *world)
{
    world_agent_term(world);
    return world_agent_wait(world);
}

int world_agent_wait(struct world *world)
{
    int code = wait_code(world->agent);
    world->agent = 0;
    return code;
}

int world_second_agent(struct world *world)
{
    return wait_code(spawn_agent(world, NULL));
}

/* Set-up. */

void world_coordinator_start(struct world *world)
{
    const struct rpc_server_options options = { .descdb = world->db };
    world->server = rpc_server_new(&options);
    assert_int_equal(rpc_server_add_service(world->server, &world->service.base, NULL), ST_OK);
    assert_int_equal(rpc_server_listen_unix(world->server, world->socket), ST_OK);
    rpc_server_start(world->server);
}

void world_coordinator_stop(struct world *world)
{
    if (world->server == NULL)
        return;
    rpc_server_stop_begin(world->server, 0);
    rpc_server_free(world->server);
    world->server = NULL;
}

const struct paths *world_paths(const struct world *world)
{
    return &world->paths;
}

int world_set_up(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    assert_non_null(world);
    (void)snprintf(world->paths.home, sizeof(world->paths.home), "/tmp/cairn-world-XXXXXX");
    assert_non_null(mkdtemp(world->paths.home));
    char faults[LIMIT_PATH];
    assert_int_equal(paths_join(&world->paths, faults, sizeof(faults), "faults"), ST_OK);
    assert_int_equal(mkdir(faults, 0755), 0);
    assert_int_equal(paths_join(&world->paths, world->socket, sizeof(world->socket), "cairnd.sock"),
                     ST_OK);
    pthread_mutex_init(&world->mutex, NULL);
    world->ack = true;
    world->service =
        (Cairn__V1__Fleet_Service){ .base = CAIRN__V1__FLEET__BASE_INIT, .session = session };
    world->db = rpc_descdb_new();
    size_t size = 0;
    const uint8_t *data = proto_descriptors(&size);
    assert_int_equal(rpc_descdb_add(world->db, data, size), ST_OK);
    *state = world;
    return 0;
}

/* What a failed test left. */
static void kill_all(const struct world *world)
{
    DIR *folder = opendir("/proc");
    assert_non_null(folder);
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 0 && is_of_home(world, pid))
            (void)kill((pid_t)pid, SIGKILL);
    }
    (void)closedir(folder);
}

static bool nothing_lives(struct world *world, const void *arg)
{
    (void)arg;
    return world_processes(world) == 0;
}

int world_tear_down(void **state)
{
    struct world *world = *state;
    world_coordinator_stop(world);
    kill_all(world);
    if (world->agent > 0)
        (void)waitpid(world->agent, NULL, 0);
    world->agent = 0;
    wait_for(world, nothing_lives, NULL, "the processes of the test to be gone");
    for (size_t i = 0; i < world->heard_count; i++)
        cairn__v1__agent_message__free_unpacked(world->heard[i], NULL);
    rpc_descdb_free(world->db);
    pthread_mutex_destroy(&world->mutex);
    char command[LIMIT_PATH + 16];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", world->paths.home);
    assert_int_equal(system(command), 0);
    free(world->log_text);
    free(world);
    return 0;
}
