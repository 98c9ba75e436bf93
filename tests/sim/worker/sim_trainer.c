/*
 * A worker: the real session state machine, over a simulated stream; training is counting. All
 * ranks of a generation step together, as the reduction makes them.
 */
#include "tests/sim/worker/sim_trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define TICK_MS   20
#define OUT_TRIES 64

struct sim_trainer_view *sim_trainer_view(struct sim_trainer *trainer)
{
    return &trainer->view;
}

void sim_trainer_free(struct sim_trainer *trainer)
{
    session_fsm_release(&trainer->fsm);
    free(trainer);
}

void sim_trainer_words(struct sim_trainer *trainer, uint8_t **out, size_t *out_size)
{
    CHECK(session_fsm_last_words(&trainer->fsm, &trainer->progress, out, out_size) == ST_OK);
}

/* ---- ends ---- */

void sim_trainer_leave(struct sim *sim, struct sim_trainer *t, enum sim_exit how, int code)
{
    if (t->view.exit != SIM_RUNS)
        return;
    t->view.exit = how;
    t->view.code = code;
    t->stage = LEFT;
    if (t->conn != NULL)
        sim_hang_up(sim, t->conn);
    t->conn = NULL;
    sim_say(sim, "trainer %s g%u w%u ends: %s %d at step %llu", t->id, t->view.start.generation,
            t->view.start.number, how == SIM_EXIT ? "code" : "signal", code,
            (unsigned long long)t->view.step);
    sim_agent_exited(sim, t);
}

void sim_trainer_kill(struct sim *sim, struct sim_trainer *t, int signal)
{
    if (!t->view.unkillable)
        sim_trainer_leave(sim, t, SIM_SIGNAL, signal);
}

void sim_trainer_vanish(struct sim_trainer *t)
{
    if (t->conn != NULL)
        sim_vanish(t->conn);
    t->conn = NULL;
}

void sim_trainer_perish(struct sim *sim, struct sim_trainer *t)
{
    sim_trainer_leave(sim, t, SIM_SIGNAL, 9);
}

static void die(struct sim *sim, void *arg, uint64_t number)
{
    (void)number;
    sim_trainer_leave(sim, arg, SIM_SIGNAL, 9);
}

void sim_trainer_unkillable(struct sim *sim, struct sim_trainer *t)
{
    if (t->view.unkillable)
        return;
    sim_say(sim, "trainer %s g%u w%u waits in the kernel and can't die", t->id,
            t->view.start.generation, t->view.start.number);
    t->view.disturbed_at = INT64_MAX;
    t->view.unkillable = true;
    t->view.hung = true;
    sim_at(sim, 5000 + (int64_t)sim_below(sim, 120000), die, t, 0);
}

void sim_trainer_notice(struct sim *sim, struct sim_trainer *t, bool leaves)
{
    t->view.disturbed_at = sim->now;
    sim_say(sim, "trainer %s g%u w%u gets %s", t->id, t->view.start.generation,
            t->view.start.number, leaves ? "SIGTERM" : "SIGUSR1");
    session_fsm_wanted(&t->fsm, leaves, 5000, leaves ? "SIGTERM" : "SIGUSR1");
    if (leaves && t->die_at == 0)
        t->die_at = sim->now + 5000;
}

static void wake(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_trainer *t = arg;
    (void)number;
    if (t->view.exit != SIM_RUNS)
        return;
    if (t->view.unkillable)
        return;
    sim_say(sim, "trainer %s g%u w%u wakes", t->id, t->view.start.generation, t->view.start.number);
    t->view.hung = false;
    t->view.woke_at = sim->now;
    sim_trainer_cut(sim, t); /* what it was sent meanwhile is lost with its stream */
}

void sim_trainer_hang(struct sim *sim, struct sim_trainer *t)
{
    t->view.disturbed_at = INT64_MAX;
    if (!sim->jobs[t->view.start.job].plain && sim_chance(sim, 400)) {
        sim_hang_stall(sim, &t->view);
        return;
    }
    t->view.was_hung = true;
    sim_say(sim, "trainer %s g%u w%u hangs", t->id, t->view.start.generation, t->view.start.number);
    t->view.hung = true;
    if (sim_chance(sim, 500)) /* it comes back, perhaps into a world that went on without it */
        sim_at(sim, 2000 + (int64_t)sim_below(sim, 60000), wake, t, 0);
}

void sim_trainer_saver_hang(struct sim *sim, struct sim_trainer *t)
{
    t->view.saver_hangs_until = sim_chance(sim, 300) ? INT64_MAX : sim_hang_end(sim, 50000);
    sim_say(sim, "the saver of %s g%u w%u hangs until %lld", t->id, t->view.start.generation,
            t->view.start.number, (long long)t->view.saver_hangs_until);
}

/* ---- stream ---- */

static void on_order(struct sim *sim, void *far, const uint8_t *data, size_t size)
{
    struct sim_trainer *t = far;
    if (t->view.exit != SIM_RUNS || t->view.hung)
        return;
    Cairn__V1__TrainerOrder *order = cairn__v1__trainer_order__unpack(NULL, size, data);
    CHECK(order != NULL);
    session_fsm_order(&t->fsm, order, sim->now);
    if (t->fsm.over && t->view.exit == SIM_RUNS && t->stage != ENDING && !sim_plain_over(sim, t))
        sim_trainer_leave(sim, t, SIM_EXIT, 4);
}

static void on_closed(struct sim *sim, void *far)
{
    struct sim_trainer *t = far;
    t->conn = NULL;
    session_fsm_link_down(&t->fsm, sim->now);
    t->connect_at = sim->now + 100 + (int64_t)sim_below(sim, 900);
}

static const struct sim_far_ops OPS = { .order = on_order, .closed = on_closed };

void sim_trainer_cut(struct sim *sim, struct sim_trainer *t)
{
    if (t->conn != NULL)
        sim_cut(sim, t->conn);
}

static void talk(struct sim *sim, struct sim_trainer *t)
{
    static struct session_out out;
    if (t->conn == NULL && sim->now >= t->connect_at) {
        t->conn =
            sim_connect(sim, false, sim_node_index(t->view.node), t->view.start.token, &OPS, t);
        if (t->conn != NULL)
            session_fsm_link_up(&t->fsm);
        else
            t->connect_at = sim->now + 100 + (int64_t)sim_below(sim, 900);
    }
    for (int i = 0; t->conn != NULL && i < OUT_TRIES; i++) {
        if (!session_fsm_next(&t->fsm, &t->progress, sim->now, &out))
            break;
        sim_send(sim, t->conn, &out.message.base);
        session_fsm_sent(&t->fsm, &out, sim->now);
    }
}

void sim_trainer_fault(struct sim *sim, struct sim_trainer *t, Cairn__V1__FaultKind kind,
                       const char *message)
{
    /* Workers of before it could be said don't name the file. */
    const bool named = strcmp(message, SIM_DAMAGE) == 0 && t->view.start.generation % 2 == 1 &&
                       t->view.rank < t->restored_shards;
    struct session_fault_record record = { .of_node = strcmp(message, SIM_FLAW) == 0,
                                           .outside = strcmp(message, SIM_OUTSIDE) == 0,
                                           .stays = strcmp(message, SIM_STAYS) == 0,
                                           .kind = kind,
                                           .shard = named ? 1 + t->view.rank : 0,
                                           .step = t->view.step };
    reason_set(&record.why, "%s", message);
    (void)snprintf(record.phase, sizeof(record.phase), "%s", t->progress.phase);
    session_fsm_fault(&t->fsm, &record);
    t->stage = WAITING_OVER;
    t->stage_since = sim->now;
    sim_say(sim, "trainer %s g%u w%u reports: %s", t->id, t->view.start.generation,
            t->view.start.number, message);
}

static void join(struct sim *sim, struct sim_trainer *t)
{
    if (t->fsm.assigned == NULL)
        return;
    t->stage = FORMING;
    t->stage_since = sim->now;
    if (t->fsm.assigned->plan->spare)
        sim_fail(sim, "%s g%u w%u has the plan of a spare", t->id, t->view.start.generation,
                 t->view.start.number);
    t->view.rank = t->fsm.rank;
    t->view.size = t->fsm.assigned->plan->size;
    sim_parked_check_member(sim, &t->view);
}

/* ---- from one generation to the next ---- */

/* The step thread unwinds: at once, or when a collective has ended. In the middle of an update it
 * has nothing whole; so it is, too, while a state comes that it didn't have. */
static void begin_park(struct sim *sim, struct sim_trainer *t)
{
    const bool had = t->stage == TRAINING || t->stage == SETTLING || t->stage == WAITING_OVER;
    if (had && sim->chaos && sim_chance(sim, 50))
        t->view.complete = false;
    t->stage = PARKING;
    t->stage_since = sim->now + (int64_t)sim_below(sim, sim_chance(sim, 30) ? 8000 : 200);
    if (sim->jobs[t->view.start.job].program)
        t->view.complete = false; /* the state went with the program */
    if (sim->jobs[t->view.start.job].plain || sim->jobs[t->view.start.job].program)
        t->stage_since += sim_plain_end_ms(sim);
    t->view.ready = false;
    t->view.unwinds = true;
    t->saving = -1;
    t->read_until = t->retry_at = t->all_came_at = 0;
    t->leave = false;
    t->progress.phase = "parked";
}

static struct session_parked sim_kept(const struct sim_trainer_view *view)
{
    return (struct session_parked){ .step = view->step,
                                    .complete = view->complete,
                                    .computed_by = view->computed_by,
                                    .part = view->part,
                                    .parts = view->parts };
}

static void open_session(struct sim *sim, struct sim_trainer *t)
{
    const struct sim_start *start = &t->view.start;
    CHECK(session_fsm_init(&t->fsm, t->id, start->generation, start->number, t->view.pid,
                           sim->now) == ST_OK);
    const int slots = 1 + (int)((start->job + start->number) % 2);
    session_fsm_files(&t->fsm, slots, slots);
    struct session_copy copies[64];
    const size_t count = sim_memory_list(sim, t->view.node, start->job, copies, 64);
    CHECK(session_fsm_offer(&t->fsm, copies, count) == ST_OK);
    if (start->generation != t->view.birth) {
        const struct session_parked parked = sim_kept(&t->view);
        session_fsm_offer_state(&t->fsm, &parked);
    }
    CHECK(session_fsm_hello(&t->fsm, "") == ST_OK);
}

static void regroup(struct sim *sim, struct sim_trainer *t)
{
    struct sim_start next = t->view.start;
    if (!session_fsm_regrouped(&t->fsm, &next.generation, &next.number, next.token))
        return;
    if (next.number != t->view.start.number)
        sim_fail(sim, "%s g%u w%u is to be worker %u", t->id, t->view.start.generation,
                 t->view.start.number, next.number);
    sim->seats_taken += t->view.start.spare;
    next.spare = false;
    if (t->conn != NULL)
        sim_hang_up(sim, t->conn);
    t->conn = NULL;
    session_fsm_release(&t->fsm);
    t->view.start = next;
    t->view.rank = SIM_NO_RANK;
    t->view.parked = t->view.unwinds = false;
    sim_parked_check_member(sim, &t->view);
    t->view.finished = false;
    t->connect_at = 0;
    t->progress = (struct session_progress){ .phase = "forming" }; /* as progress_init does it */
    open_session(sim, t);
    t->stage = JOINING;
    t->stage_since = sim->now;
    sim_say(sim, "trainer %s w%u goes on in g%u, with step %llu%s", t->id, next.number,
            next.generation, (unsigned long long)t->view.step,
            t->view.complete ? "" : ", not whole");
}

/* false: it goes on in its generation. */
static bool parks(struct sim *sim, struct sim_trainer *t)
{
    if (!session_fsm_parks(&t->fsm))
        return false;
    if (t->stage != PARKING && t->stage != PARKED && !t->view.stalls) /* that one never unwinds */
        begin_park(sim, t);
    if (t->stage == PARKING && sim->now >= t->stage_since) {
        const struct session_parked kept = sim_kept(&t->view);
        session_fsm_parked(&t->fsm, &kept);
        t->stage = PARKED;
        t->view.parked = true;
    }
    if (t->stage == PARKED)
        regroup(sim, t);
    talk(sim, t);
    return true;
}

static void tick(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_trainer *t = arg;
    (void)number;
    if (t->view.exit != SIM_RUNS)
        return;
    sim_at(sim, TICK_MS, tick, t, 0);
    if (t->die_at != 0 && sim->now >= t->die_at && !t->view.unkillable) {
        sim_trainer_leave(sim, t, SIM_SIGNAL, 15);
        return;
    }
    if (t->view.hung)
        return;
    if (t->fsm.down_since_ms + 600000 < sim->now && !t->fsm.up) {
        sim_trainer_leave(sim, t, SIM_EXIT, 4); /* an orphan */
        return;
    }
    session_fsm_tick(&t->fsm, sim->now);
    if (sim_spare_run(sim, t)) {
        talk(sim, t);
        return;
    }
    if (t->stage != ENDING && parks(sim, t))
        return;
    if (sim_plain_run(sim, t)) {
        if (t->view.exit == SIM_RUNS && t->stage != ENDING)
            talk(sim, t);
        return;
    }
    if (t->stage == JOINING)
        join(sim, t);
    else if (t->stage == FORMING)
        sim_form(sim, t);
    else if (t->stage == TRAINING)
        sim_train(sim, t);
    else if (t->stage == SETTLING)
        sim_settle(sim, t);
    else if (sim->now - t->stage_since > 10000)
        sim_trainer_leave(sim, t, SIM_EXIT, 1);
    if (t->view.exit != SIM_RUNS)
        return;
    sim_saver_run(sim, t);
    sim_reader_run(sim, t);
    talk(sim, t);
}

struct sim_trainer *sim_trainer_new(struct sim *sim, struct sim_node *node,
                                    const struct sim_start *start)
{
    struct sim_trainer *t = calloc(1, sizeof(*t));
    CHECK(t != NULL);
    CHECK(sim->trainer_count < SIM_TRAINERS);
    t->view = (struct sim_trainer_view){ .node = node,
                                         .start = *start,
                                         .birth = start->generation,
                                         .rank = SIM_NO_RANK,
                                         .lane_us = sim_lanes_speed(),
                                         .pid = 1000 + (uint32_t)sim->trainer_count };
    t->saving = -1;
    t->progress.phase = "forming";
    (void)snprintf(t->id, sizeof(t->id), "%s", sim->jobs[start->job].id);
    open_session(sim, t);
    sim->trainers[sim->trainer_count++] = t;
    sim->spares_started += start->spare;
    sim_parked_check_member(sim, &t->view);
    sim_at(sim, 50 + (int64_t)sim_below(sim, 100), tick, t, 0);
    return t;
}
