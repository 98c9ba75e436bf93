/*
 * Workers that compute wrongly, in some of the worlds. What is wrong in a state is its taint: 0 is
 * the state that job and step decide, and with a taint every copy of it and every gradient that is
 * computed from it is wrong, too. Lanes and states are compared by the rule and the judges of the
 * trainer (trainer/audit).
 *
 *   LANES  a node computes every lane wrongly, from some time on; each of its workers otherwise
 *   ONCE   a worker of it computes one lane wrongly, in one step
 *   STATE  a bit of a worker's state flips
 *
 * Promised: who is right is never called wrong, but by a majority that took over a state which
 * flipped meanwhile; LANES are found within a round of audits of one generation, STATE at the next
 * comparison; and what the coordinator trusts then has no taint. That can't be known where a taint
 * was the same for all before anybody looked (laundered): of ONCE in a lane that isn't audited in
 * that step; of a state that all restored, or had from one worker, or with which one went on alone;
 * of lanes whose worker went before its audit, once others trained on for two rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "session/fsm.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/worker/sim_trainer.h"
#include "trainer/audit/audit_judge.h"

#define WORLDS   400 /* per mille of those that may have them */
#define EVERY    200 /* the defaults */
#define CHECKSUM 100

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t z = (a ^ b * 0x9e3779b97f4a7c15u ^ c * 0xbf58476d1ce4e5b9u) + 0x94d049bb133111ebu;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (z ^ (z >> 27)) | 1;
}

/* A step of a generation, as all of its ranks compute it; or the comparison before its first. */
struct sim_round {
    uint32_t job, generation, size;
    uint64_t step; /* finished after it */
    bool first, audited;
    struct sim_trainer_view *ranks[SIM_RANKS];
    uint64_t taint[SIM_RANKS]; /* of their states after it */
    struct audit_verdict lanes, replicas;
};

/* ---- the world ---- */

static const char *const names[] = { "nothing", "every lane", "one lane", "a state" };

const char *sim_audit_kind(const struct sim *sim)
{
    return names[sim->wrong];
}

/* Where one trains alone that others are to join, if there is such a one. */
static void choose_node(struct sim *sim)
{
    bool found = false;
    for (size_t i = 0; i < sim->trainer_count && !found; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        found = view->exit == SIM_RUNS && view->ready && view->size == 1 &&
                sim->jobs[view->start.job].is_set;
        sim->wrong_node = found ? sim_node_index(view->node) : sim->wrong_node;
    }
}

static void go_wrong(struct sim *sim, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (sim->now >= sim->options.chaos_ms)
        return;
    if (sim->wrong == SIM_WRONG_STATE) {
        for (size_t i = 0; i < sim->trainer_count && !sim->wrong_now; i++) {
            struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
            if (view->exit != SIM_RUNS || !view->ready || view->size < 2 ||
                view->step >= sim->jobs[view->start.job].total || /* nobody looks at it again */
                sim_node_index(view->node) != sim->wrong_node)
                continue;
            view->taint ^= mix(sim->options.seed, view->step, 1);
            view->is_wrong = sim->wrong_now = true;
        }
        if (!sim->wrong_now) /* nobody trains there */
            sim_at(sim, 1000, go_wrong, NULL, 0);
    }
    if (sim->wrong == SIM_WRONG_LANES)
        choose_node(sim);
    sim->wrong_now = sim->wrong_now || sim->wrong != SIM_WRONG_STATE;
    if (sim->wrong_now)
        sim_say(sim, "node%u computes %s wrongly", sim->wrong_node, sim_audit_kind(sim));
}

/* Some jobs save every few steps and look at lanes rarely: what is wrong is in checkpoints before
 * it is found, and generations end before they have looked at all. Where numbers of workers change,
 * others begin alone, so that nobody looks at their lanes, and once they are joined what is wrong
 * is found while they have checkpoints of long before. Of the seed alone. */
static void save_unseen(const struct sim *sim, struct sim_job *job, uint32_t index)
{
    const uint64_t chance = sim_state(50 + index, sim->options.seed);
    if (chance % 4 == 0)
        return;
    job->every_ms = 0;
    if (chance % 4 != 3 && sim->resizes) {
        job->ranks = job->min = 1;
        job->floor = 0;
        job->is_set = true;
        job->total = 4 * job->total;
        job->every = 6 + chance / 4 % 12;
        job->audit_every = 4 + chance / 48 % 6;
    } else {
        job->every = 2 + chance / 4 % 6;
        job->audit_every = 40 + chance / 24 % 120;
    }
}

void sim_audit_begin(struct sim *sim)
{
    const uint64_t chance = sim_state(8, sim->options.seed);
    const bool may = !sim->options.calm && sim->flaw == SIM_NO_FLAW && sim->slots == SIM_SLOTS;
    sim->rounds = calloc((size_t)2 * SIM_JOBS, sizeof(*sim->rounds));
    CHECK(sim->rounds != NULL);
    for (uint32_t i = 0; i < sim->job_count; i++) {
        sim->jobs[i].audit_every = EVERY;
        sim->jobs[i].checksum_every = CHECKSUM;
    }
    if (!may || (!sim->options.once && chance % 1000 >= WORLDS))
        return;
    static const enum sim_wrong kinds[] = { SIM_WRONG_LANES, SIM_WRONG_ONCE, SIM_WRONG_STATE,
                                            SIM_WRONG_LANES };
    sim->wrong = sim->options.once ? SIM_WRONG_ONCE : kinds[chance / 1000 % 4];
    sim->wrong_node = (uint32_t)(chance / 3000 % sim->node_count);
    for (uint32_t i = 0; i < sim->job_count; i++) {
        sim->jobs[i].audit_every = 4 + sim_state(9 + i, sim->options.seed) % 40;
        sim->jobs[i].checksum_every = 3 + sim_state(20 + i, sim->options.seed) % 30;
        if (!sim->options.once)
            save_unseen(sim, &sim->jobs[i], i);
    }
    sim_at(sim, (int64_t)sim_below(sim, (uint64_t)sim->options.chaos_ms / 2), go_wrong, NULL, 0);
}

bool sim_audit_drained(const struct sim *sim, uint32_t node)
{
    struct coord *fsm = sim->coordinator->coord;
    if (sim->wrong == SIM_WRONG_NOTHING || node != sim->wrong_node || fsm == NULL)
        return false;
    const struct coord_node *of = coord_node_at(fsm, sim_node_name(sim->nodes[node]));
    return of != NULL && of->drains;
}

/* ---- a step ---- */

/* Dead or alive: all of them have come to this step. */
static struct sim_trainer_view *rank_at(const struct sim *sim, uint32_t job, uint32_t generation,
                                        uint32_t rank)
{
    struct sim_trainer_view *found = NULL;
    for (size_t i = 0; i < sim->trainer_count && found == NULL; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job == job && view->start.generation == generation && view->rank == rank &&
            !view->start.spare)
            found = view;
    }
    CHECK(found != NULL);
    return found;
}

static bool computes_wrongly(const struct sim *sim, const struct sim_trainer_view *view)
{
    return sim->wrong == SIM_WRONG_LANES && sim->wrong_now &&
           sim_node_index(view->node) == sim->wrong_node;
}

/* What is wrong in the gradient of that lane, as this worker computes it. */
static uint64_t compute(const struct sim *sim, const struct sim_trainer_view *view, uint64_t step,
                        uint32_t lane)
{
    const uint64_t inherited = view->taint != 0 ? mix(view->taint, step, lane) : 0;
    return inherited ^
           (computes_wrongly(sim, view) ? mix(2 + view->start.number, step, 100 + lane) : 0);
}

/* What is wrong in the sum of all lanes; words: of the audit. once: this lane is, by its owner. */
static uint64_t compute_all(const struct sim *sim, const struct audit_rule *rule,
                            struct sim_trainer_view *const *ranks, uint64_t step, uint32_t once,
                            struct rank_words *words)
{
    uint64_t sum = 0;
    uint32_t lane = 0;
    for (uint32_t r = 0; r < rule->size; r++) {
        const uint32_t own = audit_rule_own(rule, step, r, NULL);
        const uint32_t foreign = audit_rule_foreign(rule, step, r, NULL);
        words[r] = (struct rank_words){ { 0 } };
        for (uint32_t i = 0; i < rule->shares[r]; i++, lane++) {
            uint64_t value = compute(sim, ranks[r], step, lane);
            value ^= lane == once ? mix(3, step, lane) : 0;
            sum ^= value;
            words[r].word[0] = lane == own ? value : words[r].word[0];
        }
        if (foreign != AUDIT_NO_LANE)
            words[r].word[1] = compute(sim, ranks[r], step, foreign);
    }
    return sum;
}

static void judge_again(const struct sim *sim, const struct audit_rule *rule,
                        struct sim_trainer_view *const *ranks, uint64_t step,
                        const struct rank_words *words, struct audit_verdict *verdict)
{
    const uint32_t owner = verdict->ranks[0], auditor = verdict->ranks[1];
    const uint32_t third = audit_third(verdict, rule->size);
    const uint32_t lane = audit_rule_own(rule, step, owner, NULL);
    const uint64_t said[2] = { words[owner].word[0], words[auditor].word[1] };
    if (third != AUDIT_NOBODY) {
        verdict->wrong = audit_judge_third(verdict, said, compute(sim, ranks[third], step, lane));
        return;
    }
    const uint64_t again[2] = { compute(sim, ranks[owner], step, lane),
                                compute(sim, ranks[auditor], step, lane) };
    verdict->wrong = audit_judge_again(verdict, said, again);
}

/* A lane of a worker on the wrong node, in one of as many steps of its job as audits take to come
 * to the same lane again: each is as likely, though a job begins with steps without an audit. */
static uint32_t take_once(struct sim *sim, uint32_t job, const struct audit_rule *rule,
                          struct sim_trainer_view *const *ranks)
{
    uint32_t first = 0;
    if (sim->wrong != SIM_WRONG_ONCE || !sim->wrong_now || sim->wrong_done || rule->size < 2)
        return AUDIT_NO_LANE;
    for (uint32_t r = 0; r < rule->size; first += rule->shares[r++]) {
        const uint64_t round = audit_rule_interval(rule) * rule->shares[r];
        if (sim_node_index(ranks[r]->node) != sim->wrong_node)
            continue;
        if (sim->once_job == 0) {
            sim->once_job = job + 1;
            sim->once_wait = sim_below(sim, round);
        }
        if (sim->once_job != job + 1 || sim->once_wait-- > 0)
            return AUDIT_NO_LANE;
        sim->wrong_done = ranks[r]->is_wrong = true;
        sim->once_chance = 1.0 / (double)round;
        return first + (uint32_t)sim_below(sim, rule->shares[r]);
    }
    return AUDIT_NO_LANE;
}

/* The taint was there before this generation, and nobody in it computes wrongly. */
static void note_laundered(struct sim *sim, struct sim_job *known, const struct sim_round *round)
{
    bool wrong = false;
    for (uint32_t r = 0; r < round->size; r++)
        wrong = wrong || computes_wrongly(sim, round->ranks[r]);
    if (!wrong && known->began_tainted && known->began_in == round->generation &&
        round->step >= known->began_at + 2 * known->audit_every)
        known->laundered = true;
}

/* How long a worker of this generation has computed wrongly, and no lane of it was found so. */
static void check_missed(struct sim *sim, struct sim_job *known, const struct sim_round *round)
{
    bool wrong = false;
    for (uint32_t r = 0; r < round->size; r++)
        wrong = wrong || computes_wrongly(sim, round->ranks[r]);
    if (!wrong)
        return;
    if (known->wrong_in != round->generation) {
        known->wrong_in = round->generation;
        known->wrong_at = round->step;
    }
    if (round->size > 1 && !round->lanes.differ &&
        round->step > known->wrong_at + known->audit_every)
        sim_fail(sim,
                 "%s: generation %u computes wrongly since step %llu, and at step %llu nobody "
                 "has found out",
                 known->id, round->generation, (unsigned long long)known->wrong_at,
                 (unsigned long long)round->step);
}

static void compute_round(struct sim *sim, struct sim_round *round, const uint32_t *shares)
{
    struct sim_job *known = &sim->jobs[round->job];
    uint32_t order[LIMIT_LANES];
    for (uint32_t i = 0; i < sim->lanes; i++)
        order[i] = i;
    const struct audit_rule rule = { known->audit_every, round->size, shares, order };
    const uint64_t step = round->step - 1;
    struct rank_words words[SIM_RANKS];
    const uint32_t once = take_once(sim, round->job, &rule, round->ranks);
    const uint64_t sum = compute_all(sim, &rule, round->ranks, step, once, words);
    round->audited = audit_rule_own(&rule, step, 0, NULL) != AUDIT_NO_LANE;
    round->lanes = (struct audit_verdict){ .wrong = AUDIT_NOBODY };
    if (round->audited)
        audit_judge_lanes(&rule, step, words, &round->lanes);
    if (round->lanes.differ)
        judge_again(sim, &rule, round->ranks, step, words, &round->lanes);
    sim->once_found = sim->once_found || (once != AUDIT_NO_LANE && round->lanes.differ);
    for (uint32_t r = 0; r < round->size; r++)
        round->taint[r] = round->ranks[r]->taint ^ sum;
    known->laundered = known->laundered || (once != AUDIT_NO_LANE && !round->lanes.differ) ||
                       (sim->wrong == SIM_WRONG_STATE && round->size == 1 && round->taint[0] != 0);
    check_missed(sim, known, round);
    note_laundered(sim, known, round);
}

static void compare_round(struct sim *sim, struct sim_round *round)
{
    struct sim_job *known = &sim->jobs[round->job];
    struct rank_words words[SIM_RANKS];
    for (uint32_t r = 0; r < round->size; r++)
        words[r] = (struct rank_words){ { round->taint[r] } };
    audit_judge_replicas(words, round->size, &round->replicas);
    if (!round->first)
        return;
    known->began_in = round->generation;
    known->began_at = round->step;
    known->began_tainted = round->taint[0] != 0;
    /* A state that flipped is the same for all now: no comparison will tell. */
    if (!round->replicas.differ && known->began_tainted && sim->wrong == SIM_WRONG_STATE)
        known->laundered = true;
}

static bool is_of(const struct sim_round *round, const struct sim_trainer_view *view, uint64_t step,
                  bool first)
{
    return round->generation == view->start.generation && round->step == step &&
           round->first == first;
}

/* What comes of the step, for all ranks: found out when the first of them comes to it. Who stood
 * still meanwhile is told the same, though others have another state since (77099639). */
static const struct sim_round *round_of(struct sim *sim, const struct sim_trainer *t, uint64_t step,
                                        bool first)
{
    const struct sim_trainer_view *view = &t->view;
    struct sim_round *round = &sim->rounds[view->start.job], *before = round + SIM_JOBS;
    if (is_of(round, view, step, first))
        return round;
    if (is_of(before, view, step, first))
        return before;
    *before = *round;
    *round = (struct sim_round){ .job = view->start.job,
                                 .generation = view->start.generation,
                                 .size = view->size,
                                 .step = step,
                                 .first = first };
    for (uint32_t r = 0; r < round->size; r++) {
        round->ranks[r] = rank_at(sim, round->job, round->generation, r);
        round->taint[r] = round->ranks[r]->taint;
    }
    if (!first)
        compute_round(sim, round, t->fsm.assigned->plan->shares);
    compare_round(sim, round);
    return round;
}

/* ---- what the workers do about it ---- */

static void report(struct sim *sim, struct sim_trainer *t, const struct audit_verdict *verdict,
                   uint64_t within, const char *what)
{
    const uint64_t good = t->view.step > within ? t->view.step - within : 0;
    struct session_fault_record record = { .kind = CAIRN__V1__FAULT_KIND__WRONG,
                                           .step = t->view.step,
                                           .good_step = good };
    if (verdict->wrong != AUDIT_NOBODY)
        record.ranks[record.rank_count++] = verdict->wrong;
    reason_set(&record.why, "%s of ranks %u and %u differ", what, verdict->ranks[0],
               verdict->ranks[1]);
    (void)snprintf(record.phase, sizeof(record.phase), "audit");
    session_fsm_fault(&t->fsm, &record);
    t->stage = WAITING_OVER;
    t->stage_since = sim->now;
    sim_say(sim, "trainer %s g%u w%u reports: %s, rank %d is wrong", t->id,
            t->view.start.generation, t->view.start.number, record.why.text, (int)verdict->wrong);
}

bool sim_audit_step(struct sim *sim, struct sim_trainer *t)
{
    const struct sim_job *known = &sim->jobs[t->view.start.job];
    const struct sim_round *round = round_of(sim, t, t->view.step + 1, false);
    if (round->lanes.differ) {
        report(sim, t, &round->lanes, 2 * known->audit_every, "lanes");
        return false;
    }
    t->view.taint = round->taint[t->view.rank];
    if (round->audited)
        t->fsm.audited = round->step;
    return true;
}

bool sim_audit_compares(const struct sim *sim, const struct sim_trainer *t)
{
    const struct sim_job *known = &sim->jobs[t->view.start.job];
    return t->view.size > 1 &&
           (t->view.step % known->checksum_every == 0 || t->view.step == t->total);
}

bool sim_audit_compare(struct sim *sim, struct sim_trainer *t, bool first)
{
    const struct sim_job *known = &sim->jobs[t->view.start.job];
    const struct sim_round *round = round_of(sim, t, t->view.step, first);
    if (round->replicas.differ) {
        report(sim, t, &round->replicas, known->checksum_every + 1, "states");
        return false;
    }
    t->fsm.audited = round->step;
    return true;
}

/* ---- states that move ---- */

uint64_t sim_audit_blend(const uint64_t *taints, uint32_t count)
{
    uint64_t blend = count > 0 ? taints[0] : 0;
    bool same = true;
    for (uint32_t i = 1; i < count; i++) {
        same = same && taints[i] == taints[0];
        blend = mix(blend, taints[i], i);
    }
    return same && count > 0 ? taints[0] : blend;
}

void sim_audit_from_peers(struct sim *sim, struct sim_trainer *t,
                          const struct session_assignment *plan)
{
    uint64_t taints[SIM_RANKS];
    uint32_t count = 0;
    for (size_t i = 0; i < plan->live_source_count; i++) {
        const uint32_t rank = plan->live_sources[i];
        if (rank == t->view.rank)
            return; /* it has it */
        taints[count++] = rank_at(sim, t->view.start.job, t->view.start.generation, rank)->taint;
    }
    t->view.taint = sim_audit_blend(taints, count);
}

void sim_audit_restored(struct sim *sim, struct sim_trainer *t, uint64_t step, uint32_t made_by,
                        uint64_t taint)
{
    struct sim_job *known = &sim->jobs[t->view.start.job];
    t->view.taint = taint;
    if (taint == 0)
        return;
    if (made_by <= known->distrusted && !known->laundered)
        sim_fail(sim,
                 "%s: generation %u goes on from step %llu, which generation %u computed "
                 "wrongly, as is known",
                 known->id, t->view.start.generation, (unsigned long long)step, made_by);
    /* All have the same now. */
    known->laundered = known->laundered || sim->wrong == SIM_WRONG_STATE;
}

/* ---- what is promised ---- */

/* Checkpoints that it goes on from, or may, hold nothing wrong. */
static void check_trusted(struct sim *sim, const struct sim_job *known, uint32_t index,
                          const struct fsm *m)
{
    for (size_t i = 0; i < m->catalog_count && !known->laundered; i++) {
        const struct fsm_ckpt *ckpt = &m->catalog[i];
        if (ckpt->state != FSM_CKPT_GOOD || ckpt->generation > m->audit.generation ||
            ckpt->step > m->audit.good_step)
            continue;
        const struct sim_folder *folder = sim_folder_of(sim, index, ckpt->step, ckpt->generation);
        if (sim_audit_blend(folder->taint, folder->shards) != 0)
            sim_fail(sim,
                     "%s: the checkpoint of step %llu was computed wrongly, and is trusted: "
                     "good is what was before step %llu",
                     known->id, (unsigned long long)ckpt->step,
                     (unsigned long long)m->audit.good_step);
    }
}

/* Before the first step: who had it whole sent some its state before a bit of it flipped, and
 * others after. */
static bool is_outvoted(const struct sim *sim, uint32_t index, const struct fsm *m)
{
    const struct sim_round *round = &sim->rounds[index];
    bool flipped = false;
    for (uint32_t r = 0; round->generation == m->generation && r < round->size; r++)
        flipped = flipped || round->ranks[r]->is_wrong;
    return sim->wrong == SIM_WRONG_STATE && round->first && flipped;
}

static void check_accused(struct sim *sim, const struct sim_job *known, uint32_t index,
                          const struct fsm *m)
{
    if (m->cause.kind != FSM_FAULT_WRONG || m->cause.rank >= m->size)
        return;
    const struct sim_trainer_view *view = rank_at(sim, index, m->generation, m->cause.rank);
    if (!view->is_wrong && !computes_wrongly(sim, view) && !is_outvoted(sim, index, m))
        sim_fail(sim, "%s: rank %u of generation %u is called wrong, and is not: %s", known->id,
                 m->cause.rank, m->generation, m->cause.message);
}

void sim_audit_look(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    struct sim_job *known = &sim->jobs[index];
    const struct fsm *m = &of->m;
    if (sim->wrong == SIM_WRONG_NOTHING) {
        if (m->audit.generation != 0)
            sim_fail(sim, "%s: %s, and nobody computes wrongly", known->id, m->cause.message);
        return;
    }
    if (m->audit.generation == known->distrusted)
        return;
    known->distrusted = m->audit.generation;
    known->good_step = m->audit.good_step;
    known->acked = 0; /* what was saved after it is gone */
    known->stop_step = 0;
    sim->wrong_found++;
    check_accused(sim, known, index, m);
    check_trusted(sim, known, index, m);
}

/* The digest of a job that succeeded. */
void sim_audit_end(struct sim *sim, uint32_t index, const struct fsm *m)
{
    const struct sim_job *known = &sim->jobs[index];
    unsigned long long digest = 0;
    CHECK(sscanf(m->final_digest, "%llx", &digest) == 1);
    const bool right = digest == sim_state(index, known->total);
    const bool again = known->distrusted == 0 || known->wrong_in > known->distrusted;
    const bool unseen = known->laundered || (sim->wrong == SIM_WRONG_LANES && again);
    if (!right && !unseen)
        sim_fail(sim, "%s: final digest %s, should be %032llx", known->id, m->final_digest,
                 (unsigned long long)sim_state(index, known->total));
    sim->wrong_unseen += !right;
}
