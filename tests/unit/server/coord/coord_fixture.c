#include "tests/unit/server/coord/coord_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/test.h"

#define WALL_MS 1800000000000

/* ---- ports ---- */

static int64_t mono_ms(void *self)
{
    return ((struct coord_world *)self)->now;
}

static int64_t wall_ms(void *self)
{
    const struct coord_world *w = self;
    return WALL_MS + w->now + w->wall_step;
}

static void random_bytes(void *arg, void *out, size_t size)
{
    static unsigned char next;
    (void)arg;
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)out)[i] = next++;
}

/* Only the question whether it takes a file is answered, by coord_pass: the rest stays open. */
static void submit(void *self, struct store_task *task)
{
    struct coord_world *w = self;
    w->tasks++;
    if (task->kind == FSM_TASK_PROBE && w->probe == NULL) {
        w->probe = task;
        return;
    }
    store_task_free(task);
}

static void note_loading(void *arg)
{
    struct coord_world *w = arg;
    w->beats++;
    w->now += w->load_ms;
}

/* ---- life ---- */

void coord_start(struct coord_world *w)
{
    assert_int_equal(journal_open(w->path, &w->journal), ST_OK);
    struct coord_options options = { .clock = &w->clock,
                                     .log = &w->log,
                                     .journal = w->journal,
                                     .store = { .self = w, .submit = submit },
                                     .random = random_bytes,
                                     .descriptors = w->descriptors,
                                     .hang_ms = w->hang_ms,
                                     .ended_max = w->ended_max,
                                     .summary = w->summary,
                                     .loading = note_loading,
                                     .loading_arg = w };
    assert_int_equal(coord_new(&options, &w->coord), ST_OK);
}

void coord_stop(struct coord_world *w)
{
    store_task_free(w->probe);
    w->probe = NULL;
    coord_free(w->coord);
    w->coord = NULL;
    journal_close(w->journal);
    w->journal = NULL;
}

void coord_restart(struct coord_world *w)
{
    coord_stop(w);
    coord_start(w);
}

int coord_setup(void **state)
{
    struct coord_world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->now = 1000000;
    w->clock = (struct clock){ .self = w, .mono_ms = mono_ms, .wall_ms = wall_ms };
    w->log = (struct log){ .fd = -1, .program = "cairnd", .rank = -1, .generation = -1 };
    (void)snprintf(w->dir, sizeof(w->dir), "/tmp/cairn-core-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    (void)snprintf(w->path, sizeof(w->path), "%s/cairnd.db", w->dir);
    coord_start(w);
    *state = w;
    return 0;
}

int coord_teardown(void **state)
{
    struct coord_world *w = *state;
    coord_stop(w);
    static const char *const ends[] = { "", "-wal", "-shm", ".lock" };
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char name[160];
        (void)snprintf(name, sizeof(name), "%s%s", w->path, ends[i]);
        (void)unlink(name);
    }
    (void)rmdir(w->dir);
    free(w);
    return 0;
}

static void answer_probe(struct coord_world *w)
{
    struct store_task *task = w->probe;
    if (task == NULL)
        return;
    w->probe = NULL;
    task->status = task->refused;
    coord_store_done(w->coord, task);
    coord_end_group(w);
}

void coord_end_group(struct coord_world *w)
{
    if (!w->open)
        assert_int_equal(coord_commit(w->coord), ST_OK);
}

void coord_pass(struct coord_world *w, int64_t ms)
{
    const int64_t until = w->now + ms;
    for (;;) {
        answer_probe(w);
        coord_check(w->coord);
        int64_t at = coord_deadline(w->coord);
        if (at > until)
            break;
        w->now = at > w->now ? at : w->now + 1;
        coord_wake(w->coord);
        coord_tick(w->coord);
        coord_end_group(w);
    }
    w->now = until;
    coord_wake(w->coord);
}

/* ---- streams ---- */

static void take_trainer_order(struct far_end *far, const Cairn__V1__TrainerOrder *order)
{
    far->sent[order->body_case]++;
    if (order->body_case == CAIRN__V1__TRAINER_ORDER__BODY_OVER)
        (void)snprintf(far->text, sizeof(far->text), "%s", order->over->reason);
}

static void take_agent_order(struct far_end *far, const Cairn__V1__AgentOrder *order)
{
    far->sent[order->body_case]++;
    if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_NOTICE) {
        (void)snprintf(far->text, sizeof(far->text), "%s", order->notice->message);
    } else if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_END) {
        (void)snprintf(far->ended, sizeof(far->ended), "%s g%u r%u", order->end->ref->job,
                       order->end->ref->generation, order->end->ref->rank);
    } else if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_PROBE) {
        far->probe = order->probe->id;
    }
}

static void far_send(struct coord_conn *conn, const struct coord_message *message)
{
    struct far_end *far = (struct far_end *)conn;
    assert_false(far->closed);
    assert_true(message->size <= LIMIT_MESSAGE_BYTES);
    ProtobufCMessage *order =
        protobuf_c_message_unpack(message->type, NULL, message->size, message->data);
    assert_non_null(order);
    if (message->type == &cairn__v1__trainer_order__descriptor) {
        take_trainer_order(far, (const Cairn__V1__TrainerOrder *)order);
    } else {
        take_agent_order(far, (const Cairn__V1__AgentOrder *)order);
    }
    protobuf_c_message_free_unpacked(order, NULL);
}

static void far_finish(struct coord_conn *conn, enum rpc_code code, const char *detail)
{
    struct far_end *far = (struct far_end *)conn;
    assert_false(far->closed);
    if (far->finished)
        return;
    far->finished = true;
    far->code = code;
    (void)snprintf(far->detail, sizeof(far->detail), "%s", detail);
}

void far_open(struct far_end *far, const char *token)
{
    static const struct coord_conn_ops ops = { .send = far_send, .finish = far_finish };
    *far = (struct far_end){ .conn = { .ops = &ops, .local = true } };
    (void)snprintf(far->conn.token, sizeof(far->conn.token), "%s", token);
}

void far_close_agent(struct coord_world *w, struct far_end *far)
{
    coord_agent_closed(w->coord, &far->conn);
    coord_end_group(w);
    far->closed = true;
}

void far_close_trainer(struct coord_world *w, struct far_end *far)
{
    coord_trainer_closed(w->coord, &far->conn);
    coord_end_group(w);
    far->closed = true;
}

Cairn__V1__AgentHello far_agent_hello(const char *node, const char *boot)
{
    Cairn__V1__AgentHello hello = CAIRN__V1__AGENT_HELLO__INIT;
    hello.node = (char *)node;
    hello.boot_id = (char *)boot;
    hello.slots = 4;
    hello.device = "cpu";
    hello.version = CAIRN_VERSION;
    return hello;
}

void far_say_hello(struct coord_world *w, struct far_end *far, Cairn__V1__AgentHello *hello)
{
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_HELLO;
    message.hello = hello;
    coord_agent_message(w->coord, &far->conn, &message);
    coord_end_group(w);
}

void far_join(struct coord_world *w, struct far_end *far, const char *node, const char *boot)
{
    far_open(far, "");
    Cairn__V1__AgentHello hello = far_agent_hello(node, boot);
    far_say_hello(w, far, &hello);
}

void far_say_exited(struct coord_world *w, struct far_end *far, const char *job,
                    uint32_t generation, uint32_t number, Cairn__V1__TrainerExited *exited)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = (char *)job;
    ref.generation = generation;
    ref.rank = number;
    exited->ref = &ref;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    message.exited = exited;
    coord_agent_message(w->coord, &far->conn, &message);
    exited->ref = NULL;
}

void far_say_killed(struct coord_world *w, struct far_end *far, const char *job,
                    uint32_t generation, uint32_t number)
{
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL;
    exited.signal = 9;
    far_say_exited(w, far, job, generation, number, &exited);
}

void far_beat(struct coord_world *w, struct far_end *far)
{
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT;
    message.beat = &beat;
    coord_agent_message(w->coord, &far->conn, &message);
    coord_end_group(w);
}

void far_say_probed(struct coord_world *w, struct far_end *far, Cairn__V1__ProbeResult *result)
{
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    result->id = far->probe;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_PROBED;
    message.probed = result;
    coord_agent_message(w->coord, &far->conn, &message);
    coord_end_group(w);
}

void far_probed(struct coord_world *w, struct far_end *far, bool reached)
{
    Cairn__V1__ProbeResult result = CAIRN__V1__PROBE_RESULT__INIT;
    result.reached = reached;
    result.saw = reached ? "reached" : "no answer";
    far_say_probed(w, far, &result);
}

void far_attach(struct coord_world *w, struct far_end *far, const struct coord_job *job,
                uint32_t rank)
{
    Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
    hello.job = (char *)job->id;
    hello.generation = job->m.generation;
    hello.rank = rank;
    hello.version = CAIRN_VERSION;
    far_trainer_hello(w, far, &hello);
}

void far_trainer_hello(struct coord_world *w, struct far_end *far, Cairn__V1__TrainerHello *hello)
{
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO;
    message.hello = hello;
    coord_trainer_message(w->coord, &far->conn, &message);
    coord_end_group(w);
}

/* ---- jobs ---- */

static const char job_text[] =
    "name: %s\n"
    "model: {arch: mlp, classes: 10}\n"
    "data: {train: {format: synthetic, samples: 100}}\n"
    "train: {duration: 50 steps, global_batch: 8, optimizer: {name: sgd, lr: 0.1}, seed: 1}\n"
    "workers: {count: 2}\n"
    "checkpoint: {every: 5 steps, store: /store}\n";

enum status coord_submit_text(struct coord_world *w, const char *text, struct coord_job **out,
                              struct reason *reason)
{
    struct jobspec *spec = calloc(1, sizeof(*spec));
    assert_non_null(spec);
    auto_buf struct buf errors, normal;
    buf_init(&errors, 65536);
    buf_init(&normal, 65536);
    enum status st = jobspec_parse(text, strlen(text), "job.yaml", "/", NULL, 0, spec, &errors);
    if (st != ST_OK)
        fail_msg("%s", errors.data);
    assert_int_equal(jobspec_print(spec, &normal), ST_OK);
    *reason = (struct reason){ "" };
    st = coord_submit(w->coord, spec, normal.data, "", w->by, out, reason);
    coord_end_group(w);
    free(spec);
    return st;
}

struct coord_job *coord_submit_one(struct coord_world *w, const char *name)
{
    char text[1024];
    struct reason reason;
    struct coord_job *job = NULL;
    (void)snprintf(text, sizeof(text), job_text, name);
    assert_int_equal(coord_submit_text(w, text, &job, &reason), ST_OK);
    coord_pass(w, 1);
    return job;
}

void coord_is_blocked(struct coord_world *w, const struct coord_job *job, enum fsm_block by,
                      const char *part)
{
    struct fsm_blocked blocked;
    coord_blocked(w->coord, job, &blocked);
    if (blocked.by != by || strstr(blocked.text, part) == NULL)
        fail_msg("%s: \"%s\", not %s: \"%s\"", fsm_block_name(blocked.by), blocked.text,
                 fsm_block_name(by), part);
}
