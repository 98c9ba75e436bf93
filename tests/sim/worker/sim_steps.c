/*
 * A worker of a generation, from its state to its last save: training is counting. All ranks step
 * together, as the reduction makes them.
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "tests/sim/worker/sim_trainer.h"

#define MEET_MS 45000 /* that a rank waits for the others, as comm_table.open does */
#define JOIN_MS 15000 /* that connections between ranks take to fail */

static bool begin_save(struct sim_trainer *t)
{
    int index;
    const bool last = t->leave || t->view.step >= t->total;
    enum status st = session_fsm_save_begin(&t->fsm, t->view.step, last, &index);
    if (st == ST_OK) {
        t->save_taint[index] = t->view.taint;
        session_fsm_save_copied(&t->fsm, index, true);
    }
    if (st == ST_REFUSED)
        session_fsm_save_late(&t->fsm, t->view.step);
    return st == ST_OK || st == ST_EXISTS || st == ST_REFUSED;
}

/* The other ranks of the generation: how many are ready at least as far, and whether one is gone.
 */
static uint32_t peers(struct sim *sim, const struct sim_trainer *t, bool *out_gone)
{
    uint32_t level = 0;
    *out_gone = false;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer *other = sim->trainers[i];
        if (other->view.start.job != t->view.start.job || other->view.rank == SIM_NO_RANK ||
            other->view.start.generation != t->view.start.generation)
            continue;
        if (other->view.exit != SIM_RUNS && !other->view.finished)
            *out_gone = true;
        if (other->view.ready && other->view.step + !other->view.stalls > t->view.step)
            level++;
    }
    return level;
}

/* From workers, copies or the store; false: that failed, and was reported. */
static bool take_state(struct sim *sim, struct sim_trainer *t,
                       const struct session_assignment *plan)
{
    const bool live = plan->live_source_count > 0;
    if (live && !sim_live_restore(sim, &t->view, plan)) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__COMMUNICATION, "a peer is gone");
        return false;
    }
    uint64_t taint = 0;
    if (!live && plan->memory.generation > 0 &&
        !sim_memory_restore(sim, t->view.start.job, plan, &taint)) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT,
                          "copy in memory is damaged");
        return false;
    }
    if (!live && plan->restore[0]) {
        const struct sim_folder *folder = sim_folder_at(sim, plan->restore);
        t->restored_shards = folder != NULL ? folder->shards : 0;
        if (folder == NULL || folder->step != plan->restore_step)
            sim_fail(sim, "%s: the plan restores something strange: %s", t->id, plan->restore);
        if (!folder->there || !folder->manifest || sim_folder_damaged(sim, folder)) {
            sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT, SIM_DAMAGE);
            return false;
        }
        taint = sim_audit_blend(folder->taint, folder->shards);
        sim_audit_restored(sim, t, folder->step, folder->generation, taint);
        sim->restores++;
    } else if (live) {
        sim_audit_from_peers(sim, t, plan);
    } else {
        sim_audit_restored(sim, t, plan->memory.step, plan->memory.generation, taint);
    }
    const uint64_t start = live ? plan->live_step : plan->restore_step;
    if (!t->view.complete || t->view.step != start || !live)
        t->view.computed_by = t->view.start.generation;
    t->view.step = start;
    t->progress.step = start;
    t->view.complete = true;
    const bool owns = sim->jobs[t->view.start.job].owns && t->view.size > 1;
    t->view.part = owns ? t->view.rank : 0;
    t->view.parts = owns ? t->view.size : 0;
    if (plan->stage_count > 0)
        sim_stages_take(&t->view, plan);
    return true;
}

void sim_trainer_pins(struct sim *sim, struct sim_trainer *t, char *out)
{
    t->view.data = sim->jobs[t->view.start.job].ran ? sim_node_data(sim, t->view.node) : 0;
    (void)snprintf(out, SIM_PINS_BYTES,
                   "{\"cpu\":1,\"data\":{\"train\":{\"files\":[\"/t.bin %u\"]}}}", t->view.data);
}

static void tell_row(struct sim *sim, struct sim_trainer *t, uint64_t step)
{
    struct session_row row = { .step = step, .loss = sim_loss(step) };
    session_fsm_row(&t->fsm, &row, sim->now);
}

/* Every rank keeps rows, so where workers go on, the coordinator gets those that it lacks. */
static void tell_rows(struct sim *sim, struct sim_trainer *t,
                      const struct session_assignment *assignment)
{
    if (t->view.rank != 0 || assignment->live_source_count == 0)
        return;
    for (uint64_t step = assignment->metric_step + 1; step <= t->view.step; step++)
        tell_row(sim, t, step);
}

/* The save of the step that a generation before finished. */
static void save_again(struct sim *sim, struct sim_trainer *t)
{
    if (t->goes_on && session_fsm_due(&t->fsm, t->view.step) != SESSION_DUE_NOTHING &&
        !begin_save(t))
        t->retry_at = sim->now + 100;
}

void sim_form(struct sim *sim, struct sim_trainer *t)
{
    if (sim->now - t->stage_since < (int64_t)(300 + t->view.rank * 10))
        return;
    struct session_assignment assignment;
    CHECK(session_fsm_assignment(&t->fsm, &assignment) == ST_OK);
    const struct sim_job *job = &sim->jobs[t->view.start.job];
    if (job->user_error) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__USER, "job.yaml:3:1: this can't run");
        return;
    }
    if (sim_node_flaw(sim, t->view.node) == SIM_HAS_NO_DATA) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__USER, SIM_FLAW);
        return;
    }
    if (!sim_meets(sim, t, "workers")) {
        if (sim->now - t->stage_since > MEET_MS)
            sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__FORMATION,
                              "the workers did not find each other");
        return;
    }
    if (sim_netpaths_hold_up(sim, t->view.start.job, t->view.start.generation)) {
        if (sim->now - t->stage_since > JOIN_MS)
            sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__COMMUNICATION,
                              "no connection to a peer");
        return;
    }
    if (!take_state(sim, t, &assignment))
        return;
    t->total = job->promised > 0 ? job->promised : job->total;
    t->lasts = false; /* said in a generation before */
    t->every = job->every;
    char pins[SIM_PINS_BYTES] = SIM_PLAIN_PINS;
    if (!job->program)
        sim_trainer_pins(sim, t, pins);
    struct session_ready ready = { .total_steps = t->total,
                                   .steps_per_epoch = 10,
                                   .step = t->view.step,
                                   .save_every = t->every,
                                   .pins = pins };
    CHECK(session_fsm_ready(&t->fsm, &ready) == ST_OK);
    t->view.ready = true;
    tell_rows(sim, t, &assignment);
    t->stored = assignment.restore_step;
    t->goes_on = t->view.step > t->stored && assignment.live_source_count > 0;
    t->begins = t->compares = t->view.size > 1 && !job->program;
    if (!t->compares)
        save_again(sim, t);
    t->stage = TRAINING;
    t->stage_since = sim->now;
    t->peers_at = sim->now + (int64_t)sim_below(sim, 4000);
    t->progress.phase = "forward";
    t->progress.collective = "reduce";
}

/* Once it is finished, and states were compared if they are. */
static void follow_step(struct sim *sim, struct sim_trainer *t)
{
    if (sim_memory_used(t->view.start.job))
        sim_memory_put(sim, &t->view);
    enum session_due due = session_fsm_due(&t->fsm, t->view.step);
    t->leave = due == SESSION_DUE_SAVE_AND_EXIT;
    if (!t->leave && sim_program_leaves_early(sim, t)) {
        t->leave = true;
        due = SESSION_DUE_SAVE_AND_EXIT;
    }
    if (due != SESSION_DUE_NOTHING && !begin_save(t)) {
        t->retry_at = sim->now + 100; /* the snapshot is in use: the step thread waits */
        t->stage = t->stage == TRAINING ? TRAINING : t->stage;
    } else {
        t->retry_at = 0;
    }
    if (t->leave || t->view.step >= t->total)
        t->stage = SETTLING;
    sim_hang_stepped(sim, &t->view, &t->progress, t->stage == TRAINING && t->retry_at == 0);
}

static void finish_step(struct sim *sim, struct sim_trainer *t)
{
    const struct sim_trainer_view *v = &t->view;
    if (sim_member(sim, v->start.job, v->start.generation, v->rank) != v)
        sim_fail(sim, "%s g%u r%u is computed twice", t->id, v->start.generation, v->rank);
    sim_lanes_stepped(sim, v, &t->fsm);
    const bool program = sim->jobs[v->start.job].program;
    if (!program && !sim_audit_step(sim, t))
        return;
    t->view.step++;
    t->view.computed_by = t->view.start.generation;
    t->progress.step = t->view.step;
    t->stage_since = sim->now;
    if (t->view.rank == 0)
        tell_row(sim, t, t->view.step);
    t->compares = !program && sim_audit_compares(sim, t);
    t->lasts = program && sim_program_ends(sim, t);
    if (!t->compares && !t->lasts)
        follow_step(sim, t);
}

static void compare(struct sim *sim, struct sim_trainer *t)
{
    bool gone;
    const bool first = t->begins, all = peers(sim, t, &gone) == t->view.size;
    if (gone && sim->now - t->stage_since > 100) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__COMMUNICATION, "a peer is gone");
        return;
    }
    if (!all) {
        t->progress.counter -= sim->now - t->stage_since > 200; /* waiting is no progress */
        return;
    }
    t->begins = t->compares = false;
    if (!sim_audit_compare(sim, t, first))
        return;
    if (first)
        save_again(sim, t);
    else
        follow_step(sim, t);
}

void sim_train(struct sim *sim, struct sim_trainer *t)
{
    bool gone;
    if (t->retry_at == 0 && !sim_hang_computes(&t->view, &t->progress, sim->now - t->stage_since))
        return;
    if (sim_netpaths_hold_up(sim, t->view.start.job, t->view.start.generation))
        return;
    t->progress.counter++;
    if (t->peers_at != 0 && sim->now >= t->peers_at && sim_meets(sim, t, "peers"))
        t->peers_at = 0;
    if (t->compares) {
        compare(sim, t);
        return;
    }
    if (t->lasts) {
        if (!sim_meets(sim, t, "last"))
            return;
        t->lasts = false;
        t->total = t->view.step;
        follow_step(sim, t);
        return;
    }
    if (t->retry_at != 0) { /* waits for the snapshot of the save before */
        if (sim->now >= t->retry_at)
            t->retry_at = begin_save(t) ? 0 : sim->now + 100;
        return;
    }
    if (t->view.step >= t->total) { /* the restored checkpoint is the last */
        t->stage = SETTLING;
        return;
    }
    uint32_t level = peers(sim, t, &gone);
    if (gone && sim->now - t->stage_since > 100) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__COMMUNICATION, "a peer is gone");
        return;
    }
    if (level > t->view.size)
        sim_fail(sim, "%s g%u: %u workers compute, of %u", t->id, t->view.start.generation, level,
                 t->view.size);
    if (sim_program_fails(sim, t))
        return;
    if (level == t->view.size && sim->now - t->stage_since >= 40 + (int64_t)sim_below(sim, 40))
        finish_step(sim, t);
    else if (sim->now - t->stage_since > 200)
        t->progress.counter--; /* waiting is no progress */
}

void sim_settle(struct sim *sim, struct sim_trainer *t)
{
    if (session_fsm_at_store(&t->fsm))
        t->progress.counter++; /* as session_wait_at_store does it */
    if (t->fsm.stays) {        /* a peer passed that step, and waits for this one in the next */
        t->leave = false;
        t->retry_at = 0;
        t->stage = TRAINING;
        t->stage_since = sim->now;
        return;
    }
    if (t->retry_at != 0) {
        if (sim->now >= t->retry_at)
            t->retry_at = begin_save(t) ? 0 : sim->now + 100;
        return;
    }
    if (!session_fsm_settled(&t->fsm))
        return;
    bool restored = t->fsm.committed_step == 0 && t->view.step == t->stored;
    if (t->fsm.committed_step < t->view.step && !restored) {
        t->retry_at = sim->now + 500; /* dropped: again */
        return;
    }
    if (!t->fsm.finished) {
        session_fsm_finished(&t->fsm, t->view.step);
        t->view.finished = true;
        t->stage_since = sim->now;
    }
    if (sim->now - t->stage_since > 100)
        sim_trainer_leave(sim, t, SIM_EXIT, 0);
}
