/*
 * Any messages of an agent and of two trainers, to a coordinator with a job that forms: nothing
 * that they say may crash it, and what it journals must be readable again.
 *
 * The input is a list of frames: kind, size (one byte each), then that many bytes.
 *   0 agent's message · 1, 2 message of rank 0, 1 · 3 time passes · 4 somebody asks something
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "tests/fuzz/fuzz.h"

struct world {
    struct clock clock;
    struct log log;
    int64_t now;
    struct journal *journal;
    struct coord *coord;
    struct coord_job *job;
    struct coord_conn agent, trainer[2];
    struct store_task *first;
    char path[64];
};

static int64_t now_ms(void *self)
{
    return ((struct world *)self)->now;
}

static void same_bytes(void *arg, void *out, size_t size)
{
    (void)arg;
    memset(out, 7, size);
}

static void submit(void *self, struct store_task *task)
{
    struct world *w = self;
    task->next = w->first;
    w->first = task;
}

/* Every second task fails, so that both ways are walked. */
static void answer_all(struct world *w)
{
    CHECK(coord_commit(w->coord) == ST_OK);
    for (int i = 0; w->first != NULL && i < 64; i++) {
        struct store_task *task = w->first;
        w->first = task->next;
        task->status = task->kind == FSM_TASK_PROBE || i % 2 == 0 ? ST_OK : ST_FULL;
        (void)snprintf(task->message, sizeof(task->message), "%s", status_string(task->status));
        coord_store_done(w->coord, task);
        if (w->first == NULL || i % 3 == 0)
            CHECK(coord_commit(w->coord) == ST_OK);
    }
}

static void ignore_message(struct coord_conn *conn, const struct coord_message *message)
{
    CHECK(conn != NULL);
    CHECK(message->size < LIMIT_MESSAGE_BYTES);
}

static void ignore_end(struct coord_conn *conn, enum rpc_code code, const char *detail)
{
    CHECK(conn != NULL);
    CHECK(detail != NULL);
    (void)code;
}

static const struct coord_conn_ops ops = { .send = ignore_message, .finish = ignore_end };

static void open_core(struct world *w)
{
    struct coord_options options = { .clock = &w->clock,
                                     .log = &w->log,
                                     .journal = w->journal,
                                     .store = { .self = w, .submit = submit },
                                     .random = same_bytes };
    CHECK(coord_new(&options, &w->coord) == ST_OK);
}

static void open_world(struct world *w)
{
    static const char text[] = "name: a\nmodel: {arch: mlp, classes: 10}\n"
                               "data: {train: {format: synthetic, samples: 100}}\n"
                               "train: {duration: 50 steps, global_batch: 8, "
                               "optimizer: {name: sgd, lr: 0.1}, seed: 1}\n"
                               "workers: {count: 2}\n"
                               "checkpoint: {every: 5 steps, store: /store}\n";
    static struct jobspec spec;
    struct reason reason;
    struct buf errors;
    buf_init(&errors, 4096);
    *w = (struct world){ .now = 1000, .log = { .fd = -1, .rank = -1, .generation = -1 } };
    w->clock = (struct clock){ .self = w, .mono_ms = now_ms, .wall_ms = now_ms };
    (void)snprintf(w->path, sizeof(w->path), "%s/cairn-fuzz-%ld.db",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    (void)unlink(w->path);
    CHECK(journal_open(w->path, &w->journal) == ST_OK);
    open_core(w);
    CHECK(jobspec_parse(text, sizeof(text) - 1, "fuzz", "/", NULL, 0, &spec, &errors) == ST_OK);
    CHECK(coord_submit(w->coord, &spec, text, "", NULL, &w->job, &reason) == ST_OK);
    w->agent.ops = &ops;
    for (int i = 0; i < 2; i++)
        w->trainer[i].ops = &ops;
}

/* Up to the plan. */
static void form_generation(struct world *w)
{
    Cairn__V1__AgentHello hello = CAIRN__V1__AGENT_HELLO__INIT;
    hello.node = "n";
    hello.slots = 2;
    hello.version = CAIRN_VERSION;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_HELLO;
    message.hello = &hello;
    coord_agent_message(w->coord, &w->agent, &message);
    answer_all(w);
    for (uint32_t i = 0; i < 2; i++) {
        Cairn__V1__TrainerHello said = CAIRN__V1__TRAINER_HELLO__INIT;
        said.version = CAIRN_VERSION;
        said.job = w->job->id;
        said.generation = 1;
        said.rank = i;
        Cairn__V1__TrainerMessage first = CAIRN__V1__TRAINER_MESSAGE__INIT;
        first.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO;
        first.hello = &said;
        (void)snprintf(w->trainer[i].token, sizeof(w->trainer[i].token), "%s", w->job->m.token);
        coord_trainer_message(w->coord, &w->trainer[i], &first);
    }
    CHECK(w->job->m.generation == 1);
}

/* A hello is the first message of a stream: this is the next one. */
static struct coord_conn hung_up(struct world *w, struct coord_conn *conn,
                                 void (*closed)(struct coord *coord, struct coord_conn *conn))
{
    closed(w->coord, conn);
    struct coord_conn next = { .ops = &ops };
    memcpy(next.token, conn->token, sizeof(next.token));
    return next;
}

static void play_frame(struct world *w, uint8_t kind, const uint8_t *data, size_t size)
{
    if (kind % 5 == 0) {
        Cairn__V1__AgentMessage *message = cairn__v1__agent_message__unpack(NULL, size, data);
        if (message != NULL && message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_HELLO)
            w->agent = hung_up(w, &w->agent, coord_agent_closed);
        if (message != NULL)
            coord_agent_message(w->coord, &w->agent, message);
        if (message != NULL)
            cairn__v1__agent_message__free_unpacked(message, NULL);
    } else if (kind % 5 <= 2) {
        Cairn__V1__TrainerMessage *message = cairn__v1__trainer_message__unpack(NULL, size, data);
        struct coord_conn *conn = &w->trainer[kind % 5 - 1];
        if (message != NULL && message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO)
            *conn = hung_up(w, conn, coord_trainer_closed);
        if (message != NULL)
            coord_trainer_message(w->coord, conn, message);
        if (message != NULL)
            cairn__v1__trainer_message__free_unpacked(message, NULL);
    } else if (kind % 5 == 3) {
        w->now += 1 + (size > 0 ? data[0] * 100 : 0);
        coord_tick(w->coord);
    } else {
        static const enum fsm_event_kind kinds[] = { FSM_EV_PAUSE,    FSM_EV_RESUME, FSM_EV_STOP,
                                                     FSM_EV_KILL,     FSM_EV_SAVE,   FSM_EV_DRAIN,
                                                     FSM_EV_DRAIN_NOW };
        enum status st = coord_ask(w->coord, w->job, kinds[size > 0 ? data[0] % 7 : 0], NULL);
        CHECK(st == ST_OK || st == ST_REFUSED);
    }
    answer_all(w);
}

static void close_core(struct world *w)
{
    while (w->first != NULL) {
        struct store_task *task = w->first;
        w->first = task->next;
        store_task_free(task);
    }
    coord_free(w->coord);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world w;
    open_world(&w);
    form_generation(&w);
    for (size_t at = 0; at + 2 <= size;) {
        size_t length = data[at + 1];
        if (length > size - at - 2)
            length = size - at - 2;
        play_frame(&w, data[at], data + at + 2, length);
        at += 2 + length;
    }
    CHECK(coord_failed(w.coord) == ST_OK);
    close_core(&w);
    open_core(&w); /* what was journalled is read again */
    close_core(&w);
    journal_close(w.journal);
    static const char *const ends[] = { "", "-wal", "-shm", ".lock" };
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char name[80];
        (void)snprintf(name, sizeof(name), "%s%s", w.path, ends[i]);
        (void)unlink(name);
    }
    return 0;
}
