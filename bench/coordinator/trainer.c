/*
 * Trainers: what session/ of a real one says.
 *
 *     HELLO  -> MEETS   the plan came
 *     MEETS  -> TRAINS  it has all addresses, and says that it is ready
 *     TRAINS -> LEAVES  the last step is saved, or one that it leaves after
 *     any    -> GONE    told to end, told that its generation is over, or it has left
 *
 * What a real one says again after a lost session, an unanswered report of a save, is not said.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/coordinator/fleet.h"
#include "common/check.h"
#include "common/unconst.h"
#include "jobspec/jobspec.h"

#define PINS                                                                                       \
    "{\"cairn\":\"" CAIRN_VERSION "\",\"isa\":\"none\",\"math\":\"none\",\"threads\":1,"           \
    "\"data\":{\"files\":[]}}"
#define ROWS_MAX 64
#define MS       INT64_C(1000000)

static struct trainer *trainer_of(struct peer *peer)
{
    return (struct trainer *)peer; /* its first member */
}

bool trainer_say(struct trainer *trainer, Cairn__V1__TrainerMessage__BodyCase body, void *what)
{
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = body;
    message.hello = what; /* a union of pointers */
    return peer_send(&trainer->peer, &message.base);
}

void trainer_exit(struct trainer *trainer, Cairn__V1__TrainerExited__Cause cause, int code)
{
    if (trainer->stage != TRAINER_GONE) {
        trainer->stage = TRAINER_GONE;
        trainer->cause = cause;
        trainer->code = code;
        peer_close(&trainer->peer);
    }
    fleet_trace(trainer->peer.fleet, "exited", trainer->job, trainer->rank, trainer->step);
    agent_send_exited(trainer);
}

/* ---- hello, plan, ready ---- */

static void on_opened(struct peer *peer)
{
    struct trainer *trainer = trainer_of(peer);
    Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
    hello.job = trainer->job;
    hello.generation = trainer->generation;
    hello.rank = trainer->rank;
    hello.pid = trainer->pid;
    hello.attached = trainer->stage > TRAINER_MEETS;
    hello.pins = unconst(PINS);
    hello.step = trainer->step;
    hello.node = trainer->agent->name;
    hello.version = unconst(CAIRN_VERSION);
    if (hello.attached)
        fleet_trace(peer->fleet, "back", trainer->job, trainer->rank, trainer->step);
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO, &hello);
    if (trainer->stage > TRAINER_HELLO)
        (void)rendezvous_say(trainer);
}

void trainer_say_ready(struct trainer *trainer)
{
    Cairn__V1__Ready ready = CAIRN__V1__READY__INIT;
    ready.total_steps = trainer->total_steps;
    ready.steps_per_epoch = trainer->total_steps;
    ready.parameters = UINT64_C(1) << 20;
    ready.pins = unconst(PINS);
    ready.step = trainer->step;
    trainer->stage = TRAINER_TRAINS;
    trainer->trains_ns =
        clock_mono_ns() - (int64_t)trainer->step * trainer->peer.fleet->options.step_ms * MS;
    trainer->beat_ns = clock_mono_ns() + (trainer->rank + trainer->agent->number) * INT64_C(7919) %
                                             trainer->peer.fleet->options.beat_ms * MS;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_READY, &ready);
    fleet_trace(trainer->peer.fleet, "ready", trainer->job, trainer->rank, trainer->step);
}

/* Reads the steps and saves of the job file, once for all ranks of a job. */
static void read_job(struct fleet *fleet, const Cairn__V1__Plan *plan)
{
    if (strcmp(fleet->known_job, plan->job) == 0)
        return;
    struct jobspec *job = malloc(sizeof(*job));
    struct buf errors;
    buf_init(&errors, (size_t)64 * 1024);
    CHECK(job != NULL);
    const enum status st = jobspec_parse(plan->job_file, strlen(plan->job_file), "job.yaml", "/",
                                         NULL, 0, job, &errors);
    if (st != ST_OK) {
        (void)fprintf(stderr, "job %s: %s\n", plan->job, errors.size > 0 ? errors.data : "?");
        exit(1);
    }
    (void)snprintf(fleet->known_job, sizeof(fleet->known_job), "%s", plan->job);
    fleet->total_steps = (uint64_t)job->train.duration.value;
    fleet->save_every =
        job->checkpoint.every.unit == JOBSPEC_STEPS ? (uint64_t)job->checkpoint.every.value : 0;
    buf_release(&errors);
    free(job);
}

static void take_plan(struct trainer *trainer, const Cairn__V1__Plan *plan)
{
    struct fleet *fleet = trainer->peer.fleet;
    if (trainer->stage != TRAINER_HELLO)
        return; /* said twice */
    read_job(fleet, plan);
    trainer->total_steps = fleet->total_steps;
    trainer->save_every = fleet->save_every;
    trainer->size = plan->size;
    trainer->step = plan->restore_step;
    trainer->stage = TRAINER_MEETS;
    fleet_trace(fleet, "plan", trainer->job, trainer->rank, trainer->step);
    if (!rendezvous_say(trainer))
        trainer_say_ready(trainer);
}

/* ---- orders ---- */

static void take_save_at(struct trainer *trainer, const Cairn__V1__SaveAt *order)
{
    if (order->then == CAIRN__V1__SAVE_AT__THEN__STAY) {
        trainer->announced = 0;
        return;
    }
    trainer->announced = order->step;
    trainer->leaves = order->then == CAIRN__V1__SAVE_AT__THEN__EXIT;
    if (order->step > trainer->step)
        return;
    Cairn__V1__SavePassed passed = CAIRN__V1__SAVE_PASSED__INIT;
    passed.step = order->step;
    passed.at = trainer->step;
    trainer->announced = 0;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_PASSED, &passed);
}

static void on_heard(struct peer *peer, const ProtobufCMessage *message)
{
    struct trainer *trainer = trainer_of(peer);
    const Cairn__V1__TrainerOrder *order = (const Cairn__V1__TrainerOrder *)(const void *)message;
    if (trainer->stage == TRAINER_MEETS && rendezvous_heard(trainer, order)) {
        trainer_say_ready(trainer);
        return;
    }
    switch ((int)order->body_case) {
    case CAIRN__V1__TRAINER_ORDER__BODY_PLAN:
        take_plan(trainer, order->plan);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_FOLDER:
        save_folder(trainer, order->save_folder);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE:
        save_done(trainer, order->save_done);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT:
        take_save_at(trainer, order->save_at);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_READ_BACK:
        save_read_back(trainer, order->read_back);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_OVER:
        (void)fprintf(stderr, "job %s, rank %u: over: %s\n", trainer->job, trainer->rank,
                      order->over->reason);
        trainer_exit(trainer, CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT, 0);
        break;
    }
}

static void on_lost(struct peer *peer, enum rpc_code code)
{
    struct trainer *trainer = trainer_of(peer);
    (void)fprintf(stderr, "job %s, rank %u: lost the coordinator: %s\n", trainer->job,
                  trainer->rank, rpc_code_name(code));
    if (code == RPC_FAILED_PRECONDITION || code == RPC_UNAUTHENTICATED)
        trainer_exit(trainer, CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT, 1);
}

/* ---- steps ---- */

static void say_progress(struct trainer *trainer)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    progress.step = trainer->step;
    progress.phase = unconst(trainer->stage < TRAINER_TRAINS ? "forming" : "step");
    progress.counter = ++trainer->counter;
    trainer->peer.fleet->beats++;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS, &progress);
}

/* Sends rows of the newest steps after `from`, as many as fit into one message. */
static void say_rows(struct trainer *trainer, uint64_t from)
{
    Cairn__V1__MetricRow rows[ROWS_MAX];
    Cairn__V1__MetricRow *links[ROWS_MAX];
    Cairn__V1__Phase phases[] = { CAIRN__V1__PHASE__INIT, CAIRN__V1__PHASE__INIT };
    Cairn__V1__Phase *phase_links[] = { &phases[0], &phases[1] };
    Cairn__V1__MetricRows message = CAIRN__V1__METRIC_ROWS__INIT;
    phases[0].name = unconst("compute");
    phases[1].name = unconst("exchange");
    if (trainer->step - from > ROWS_MAX)
        from = trainer->step - ROWS_MAX;
    for (uint64_t step = from + 1; step <= trainer->step; step++) {
        Cairn__V1__MetricRow *row = &rows[message.n_rows];
        cairn__v1__metric_row__init(row);
        row->step = step;
        row->epoch = 0.5;
        row->loss = 1.0F / (float)step;
        row->lr = 0.1F;
        row->grad_norm = 1.5F;
        row->samples_per_s = 1000;
        row->step_ms = trainer->peer.fleet->options.step_ms;
        row->generation = trainer->generation;
        row->wall_ms = clock_wall_ms(clock_system());
        row->phases = phase_links;
        row->n_phases = 2;
        links[message.n_rows++] = row;
    }
    message.rows = links;
    trainer->peer.fleet->rows += message.n_rows;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS, &message);
}

static bool saves_at(const struct trainer *trainer, uint64_t step)
{
    return step == trainer->total_steps || step == trainer->announced ||
           (trainer->save_every > 0 && step % trainer->save_every == 0);
}

/* The steps that have gone by since; a save begins with each that has one. */
static void take_steps(struct trainer *trainer, int64_t now_ns)
{
    const int64_t each_ns = trainer->peer.fleet->options.step_ms * MS;
    const uint64_t from = trainer->step;
    uint64_t step = (uint64_t)((now_ns - trainer->trains_ns) / each_ns);
    if (step > trainer->total_steps)
        step = trainer->total_steps;
    if (step <= from)
        return;
    trainer->step = step;
    if (trainer->rank == 0)
        say_rows(trainer, from);
    for (uint64_t at = from + 1; at <= step; at++) {
        if (saves_at(trainer, at))
            save_begin(trainer, at);
    }
}

static void on_tick(struct peer *peer, int64_t now_ns)
{
    struct trainer *trainer = trainer_of(peer);
    if (trainer->stage == TRAINER_TRAINS)
        take_steps(trainer, now_ns);
    if (trainer->stage == TRAINER_LEAVES && now_ns >= trainer->leave_ns) {
        trainer_exit(trainer, CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT, 0);
        return;
    }
    if (now_ns >= trainer->beat_ns) {
        trainer->beat_ns = now_ns + peer->fleet->options.beat_ms * MS;
        say_progress(trainer);
    }
}

static void on_release(struct peer *peer)
{
    free(peer);
}

static const struct peer_ops trainer_ops = {
    .opened = on_opened, .heard = on_heard, .lost = on_lost, .tick = on_tick, .release = on_release
};

struct trainer *trainer_new(struct agent *agent, const Cairn__V1__StartTrainer *order)
{
    struct fleet *fleet = agent->peer.fleet;
    struct trainer *trainer = calloc(1, sizeof(*trainer));
    CHECK(trainer != NULL);
    trainer->agent = agent;
    (void)snprintf(trainer->job, sizeof(trainer->job), "%s", order->ref->job);
    trainer->generation = order->ref->generation;
    trainer->rank = order->ref->rank;
    trainer->slot = order->slot;
    trainer->pid = 1000000 + ++fleet->pid_last;
    trainer->beat_ns = clock_mono_ns() + 1000 * MS;
    fleet->started++;
    fleet_trace(fleet, "start", trainer->job, trainer->rank, 0);
    peer_open(&trainer->peer, fleet, &trainer_ops, &cairn__v1__training__descriptor,
              fleet->options.tls != NULL ? &fleet->strangers : NULL, order->token);
    return trainer;
}
