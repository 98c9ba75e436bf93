/* Messages are built on the stack, of pointers to what the agent owns; the link packs them. */
#include "agent/messages.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/last_words.h"
#include "agent/logs/tail.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/port_range.h"
#include "common/unconst.h"

static void send_message(struct agent *agent, Cairn__V1__AgentMessage *message)
{
    if (agent->epoch == 0)
        return;
    enum status st = link_send(agent->link, agent->epoch, message);
    if (st != ST_OK)
        LOG_DEBUG(&agent->log, "message to the coordinator: %s", status_string(st));
}

struct gpu_list {
    struct gpu_state states[LIMIT_GPUS];
    Cairn__V1__Gpu rows[LIMIT_GPUS];
    Cairn__V1__Gpu *links[LIMIT_GPUS];
    size_t count;
};

/* The GPUs as a message has them, pointing into `list`. */
static void list_gpus(struct agent *agent, struct gpu_list *list)
{
    list->count = gpu_read(agent->gpus, list->states, LIMIT_GPUS);
    for (size_t i = 0; i < list->count; i++) {
        struct gpu_state *from = &list->states[i];
        Cairn__V1__Gpu *to = &list->rows[i];
        cairn__v1__gpu__init(to);
        to->name = from->name;
        to->uuid = from->uuid;
        to->driver = from->driver;
        to->capability = from->capability;
        to->memory_bytes = from->memory_bytes;
        to->memory_used_bytes = from->memory_used_bytes;
        to->temperature = from->temperature;
        to->ecc_errors = from->ecc_errors;
        to->throttled = from->throttled;
        if (!isnan(from->utilization)) {
            to->utilization__case = CAIRN__V1__GPU__UTILIZATION__UTILIZATION;
            to->utilization = from->utilization;
        }
        if (!isnan(from->power_watts)) {
            to->power__case = CAIRN__V1__GPU__POWER__POWER_WATTS;
            to->power_watts = from->power_watts;
        }
        to->problem = from->problem;
        list->links[i] = to;
    }
}

static Cairn__V1__AgentLeaving leaving_of(const struct agent *agent)
{
    Cairn__V1__AgentLeaving leaving = CAIRN__V1__AGENT_LEAVING__INIT;
    const int64_t left_ms = agent->leave.until - clock_mono_ms(clock_system());
    leaving.grace_ms = agent->leave.state == LEAVE_WAITS && left_ms > 0 ? (uint32_t)left_ms : 0;
    leaving.reason = unconst(agent->leave.reason != NULL ? agent->leave.reason : "");
    return leaving;
}

static uint64_t wall_ms(void)
{
    return (uint64_t)clock_wall_ms(clock_system());
}

void agent_send_hello(struct agent *agent)
{
    Cairn__V1__AgentHello hello = CAIRN__V1__AGENT_HELLO__INIT;
    hello.node = unconst(agent->options.node);
    hello.boot_id = agent->boot_id;
    hello.pid = (uint32_t)getpid();
    hello.started_ms = agent->started_ms;
    hello.slots = agent->options.slots;
    hello.device = unconst("cpu");
    hello.version = unconst(CAIRN_VERSION);
    struct port_range ports;
    hello.host = agent->host;
    if (port_range_parse(agent->options.ports, &ports) == ST_OK) /* main saw to that */
        hello.ports = port_range_count(ports) - (ports.last != 0 && agent->probes != NULL);
    hello.probe_port = probes_port(agent->probes);
    hello.wall_ms = wall_ms();
    hello.cores = proc_cores();
    hello.memory_bytes = proc_memory_total();
    Cairn__V1__AgentLeaving leaving = leaving_of(agent);
    hello.leaving = agent->leave.state != LEAVE_NOT ? &leaving : NULL;
    struct gpu_list gpus;
    list_gpus(agent, &gpus);
    hello.gpus = gpus.links;
    hello.n_gpus = gpus.count;
    auto_free char **jobs = NULL; /* one block with the names */
    hello.n_copies = copies_jobs(&agent->copies, &jobs);
    hello.copies = jobs;
    hello.trouble = agent->copies.trouble.text;
    char *formerly[FORMERLY_MAX];
    for (size_t i = 0; i < agent->formerly_count; i++)
        formerly[i] = agent->formerly[i];
    hello.formerly = formerly;
    hello.n_formerly = agent->formerly_count;

    size_t capacity = agent->trainer_count + 1;
    auto_free Cairn__V1__RunningTrainer *rows = calloc(capacity, sizeof(*rows));
    auto_free Cairn__V1__RunningTrainer **links =
        calloc(capacity, sizeof(*links)); /* NOLINT(bugprone-sizeof-expression): of pointers */
    auto_free Cairn__V1__TrainerRef *refs = calloc(capacity, sizeof(*refs));
    if (rows == NULL || links == NULL || refs == NULL)
        return; /* the stream without a hello ends at the coordinator's patience */
    /* Trainers whose exit follows at once are listed, too: without that they would be taken for
     * gone before their cause of exit came. */
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        size_t i = hello.n_running++;
        ref_to_wire(&t->record.ref, &refs[i]);
        cairn__v1__running_trainer__init(&rows[i]);
        rows[i].ref = &refs[i];
        rows[i].pid = (uint32_t)t->record.pid;
        rows[i].slot = t->record.slot;
        links[i] = &rows[i];
    }
    hello.running = links;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_HELLO;
    message.hello = &hello;
    send_message(agent, &message);
}

/* The usage of a trainer, as a message has it; its pointers point into the struct itself. */
struct usage_row {
    Cairn__V1__TrainerUsage row;
    Cairn__V1__TrainerRef ref;
    Cairn__V1__WorkerUsage usage;
};

static void usage_to_wire(struct trainer *trainer, struct usage_row *out)
{
    const struct usage_process *usage = &trainer->usage;
    cairn__v1__trainer_usage__init(&out->row);
    cairn__v1__worker_usage__init(&out->usage);
    ref_to_wire(&trainer->record.ref, &out->ref);
    out->usage.cpu_seconds = usage->cpu_seconds;
    out->usage.cores = usage->cores;
    out->usage.memory_bytes = usage->memory_bytes;
    out->usage.threads = usage->threads;
    if (usage->memory_limit_bytes > 0) {
        out->usage.memory_limit__case = CAIRN__V1__WORKER_USAGE__MEMORY_LIMIT__MEMORY_LIMIT_BYTES;
        out->usage.memory_limit_bytes = usage->memory_limit_bytes;
    }
    out->row.ref = &out->ref;
    out->row.usage = &out->usage;
}

static void machine_to_wire(const struct usage_machine *from, Cairn__V1__NodeUsage *to)
{
    cairn__v1__node_usage__init(to);
    to->cpu_seconds = from->cpu_seconds;
    to->cores = from->cores;
    to->cores_count = from->cores_count;
    to->memory_bytes = from->memory_bytes;
    to->memory_available_bytes = from->memory_available_bytes;
    to->received_bytes = from->received_bytes;
    to->sent_bytes = from->sent_bytes;
    to->received_bytes_per_s = from->received_bytes_per_s;
    to->sent_bytes_per_s = from->sent_bytes_per_s;
}

void agent_send_beat(struct agent *agent)
{
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    Cairn__V1__NodeUsage machine;
    const size_t capacity = agent->trainer_count + 1;
    auto_free struct usage_row *rows = calloc(capacity, sizeof(*rows));
    auto_free Cairn__V1__TrainerUsage **links =
        calloc(capacity, sizeof(*links)); /* NOLINT(bugprone-sizeof-expression): of pointers */
    if (agent->usage_new && rows != NULL && links != NULL) {
        machine_to_wire(&agent->usage, &machine);
        beat.usage = &machine;
        for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
            if (t->usage.samples == 0)
                continue;
            usage_to_wire(t, &rows[beat.n_trainers]);
            links[beat.n_trainers] = &rows[beat.n_trainers].row;
            beat.n_trainers++;
        }
        beat.trainers = links;
        agent->usage_new = false;
    }
    beat.load1 = proc_load1();
    beat.trouble = agent->copies.trouble.text;
    beat.wall_ms = wall_ms();
    beat.memory_available_bytes = proc_memory_available();
    struct gpu_list gpus;
    list_gpus(agent, &gpus);
    beat.gpus = gpus.links;
    beat.n_gpus = gpus.count;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT;
    message.beat = &beat;
    send_message(agent, &message);
}

void agent_send_leaving(struct agent *agent)
{
    Cairn__V1__AgentLeaving leaving = leaving_of(agent);
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING;
    message.leaving = &leaving;
    send_message(agent, &message);
}

void agent_send_left(struct agent *agent)
{
    Cairn__V1__AgentLeft left = CAIRN__V1__AGENT_LEFT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEFT;
    message.left = &left;
    send_message(agent, &message);
}

void agent_send_started(struct agent *agent, struct trainer *trainer)
{
    Cairn__V1__TrainerRef ref;
    ref_to_wire(&trainer->record.ref, &ref);
    Cairn__V1__TrainerStarted started = CAIRN__V1__TRAINER_STARTED__INIT;
    started.ref = &ref;
    started.pid = (uint32_t)trainer->record.pid;
    started.slot = trainer->record.slot;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_STARTED;
    message.started = &started;
    send_message(agent, &message);
}

static void send_exited(struct agent *agent, Cairn__V1__TrainerExited *exited)
{
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    message.exited = exited;
    send_message(agent, &message);
}

void agent_send_exited(struct agent *agent, struct trainer *trainer)
{
    if (agent->epoch == 0)
        return; /* it is said after the next hello */
    const struct record *record = &trainer->record;
    Cairn__V1__TrainerRef ref;
    ref_to_wire(&trainer->record.ref, &ref);
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = &ref;
    exited.pid = (uint32_t)record->pid;
    exited.cause = record->exit.cause;
    exited.code = record->exit.code;
    exited.signal = record->exit.signal;
    exited.message = unconst(record->exit.message.text);
    exited.marked_step = last_mark_step(agent->io, trainer->files.flight);
    struct log_tail lines = { .count = 0 };
    if (log_tail_read(agent->io, trainer->files.log, &lines) == ST_OK) {
        exited.last_lines = lines.lines;
        exited.n_last_lines = lines.count;
    }
    Cairn__V1__LastWords *words =
        last_words_read(agent->io, trainer->files.words, &trainer->record.ref);
    if (words != NULL) {
        exited.words__case = CAIRN__V1__TRAINER_EXITED__WORDS__WORDS;
        exited.words = words;
    }
    send_exited(agent, &exited);
    last_words_free(words);
    log_tail_release(&lines);
}

void agent_send_no_trainer(struct agent *agent, struct ref *ref,
                           Cairn__V1__TrainerExited__Cause cause, const char *message)
{
    Cairn__V1__TrainerRef wire;
    ref_to_wire(ref, &wire);
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = &wire;
    exited.cause = cause;
    exited.message = unconst(message);
    send_exited(agent, &exited);
}

void agent_send_log(struct agent *agent, const Cairn__V1__LogRequest *request)
{
    struct ref ref;
    struct ref_files files;
    struct log_piece piece = { .missing = true };
    enum status st = ref_from_wire(request->ref, &ref);
    if (st == ST_OK) {
        ref = ref_born(&ref, &agent->paths);
        st = ref_files(&ref, &agent->paths, &files);
    }
    if (st == ST_OK) {
        st = log_piece_read(agent->io, files.log, request->offset, request->size_max, &piece);
        if (st != ST_OK)
            LOG_WARN(&agent->log, "%s: %s, ignoring", files.log, status_string(st));
    }
    Cairn__V1__LogChunk chunk = CAIRN__V1__LOG_CHUNK__INIT;
    chunk.id = request->id;
    chunk.data = (ProtobufCBinaryData){ .len = piece.size, .data = piece.data };
    chunk.offset = piece.offset;
    chunk.size = piece.file_size;
    chunk.missing = piece.missing;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LOG;
    message.log = &chunk;
    send_message(agent, &message);
    free(piece.data);
}

void agent_send_probed(struct agent *agent, const struct probe_result *result)
{
    Cairn__V1__ProbeResult probed = CAIRN__V1__PROBE_RESULT__INIT;
    probed.id = result->id;
    probed.reached = result->reached;
    probed.saw = unconst(result->saw);
    probed.reach_us = result->reach_us;
    probed.bytes = result->bytes;
    probed.took_us = result->took_us;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_PROBED;
    message.probed = &probed;
    send_message(agent, &message);
}

/* ---- the stream ---- */

static void wake_loop(void *arg)
{
    struct agent *agent = arg;
    (void)uv_async_send(&agent->wake);
}

enum status agent_connect(struct agent *agent)
{
    const struct agent_options *options = &agent->options;
    const struct link_options link = { .target = options->coordinator,
                                       .token_file = options->token_file,
                                       .tls = options->tls,
                                       .wake = wake_loop,
                                       .wake_arg = agent,
                                       .log = &agent->log };
    enum status st = link_start(&link, &agent->link);
    if (st != ST_OK)
        LOG_ERROR(&agent->log, "coordinator %s: %s", options->coordinator, status_string(st));
    return st;
}

void agent_disconnect(struct agent *agent)
{
    link_stop(agent->link);
    agent->link = NULL;
    agent->epoch = 0;
}
