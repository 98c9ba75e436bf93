/*
 * The threads that run the coordinator's store tasks. A task may hang: it is given up, answered
 * with ST_TIMED_OUT, and the next one begins; its effect comes later all the same, or never, or
 * came before. So it is with the tasks of a coordinator that died: what it had sent to the store
 * may happen long after its successor began.
 *
 * What a late task does is more than it can: all of its effect happens at once, though only the
 * call that it hangs in can still happen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/store/task.h"
#include "tests/sim/sim_coordinator.h"

#define HANGS       15    /* per mille */
#define HANGS_MS    10000 /* at most, until it is given up */
#define LATE_MS     60000 /* at most, from then to its effect */
#define LATE_NEVER  300   /* per mille of those that hang, as the next */
#define LATE_BEFORE 200   /* only the answer is lost */
#define LATE_DEAD   200   /* of those under way in a coordinator that died */

struct task_run {
    struct store_task *task;
    uint64_t epoch;
};

static void free_run(struct task_run *run)
{
    store_task_free(run->task);
    free(run);
}

static void comes_late(struct sim *sim, void *arg, uint64_t number)
{
    struct task_run *run = arg;
    (void)number;
    sim_store_late(sim, run->task);
    free_run(run);
}

static bool lives(const struct sim *sim, const struct task_run *run)
{
    return sim->coordinator->coord != NULL && sim->coordinator->epoch == run->epoch;
}

/* The task has hung long enough: it is answered as late, and may be carried out later. */
static void hangs(struct sim *sim, void *arg, uint64_t number)
{
    struct task_run *run = arg;
    if (sim_has_to_wait(sim, hangs, arg, number))
        return;
    if (lives(sim, run)) {
        sim_say(sim, "%s: the store hangs: task %d of %s", run->task->job, (int)run->task->kind,
                run->task->dir);
        struct store_task *answer = store_task_late_answer(run->task);
        CHECK(answer != NULL);
        coord_store_done(sim->coordinator->coord, answer);
        sim_poll_core(sim);
    }
    if (number != 0 && !sim_chance(sim, LATE_NEVER)) {
        sim_at(sim, (int64_t)sim_below(sim, LATE_MS), comes_late, run, 0);
    } else {
        free_run(run);
    }
}

static void runs(struct sim *sim, void *arg, uint64_t number)
{
    struct task_run *run = arg;
    struct coordinator *c = sim->coordinator;
    if (sim_has_to_wait(sim, runs, arg, number))
        return;
    if (lives(sim, run)) {
        sim_store_run(sim, run->task);
        coord_store_done(c->coord, run->task);
        sim_poll_core(sim);
        free(run);
        return;
    }
    if (sim_chance(sim, 500)) { /* its thread died with the process before it began */
        free_run(run);
    } else if (sim_chance(sim, LATE_DEAD)) {
        sim_store_begin(sim, run->task);
        sim_at(sim, (int64_t)sim_below(sim, LATE_MS), comes_late, run, 0);
    } else {
        sim_store_begin(sim, run->task);
        comes_late(sim, run, 0);
    }
}

/* The task's thread takes it. What the task looks at before it changes anything, it sees now. */
static void begins_to_hang(struct sim *sim, void *arg, uint64_t number)
{
    struct task_run *run = arg;
    (void)number;
    if (!lives(sim, run) && sim_chance(sim, 500)) {
        free_run(run);
        return;
    }
    bool before = sim_chance(sim, LATE_BEFORE);
    sim_store_begin(sim, run->task);
    if (before)
        sim_store_late(sim, run->task);
    sim_at(sim, 1 + (int64_t)sim_below(sim, HANGS_MS), hangs, run, !before);
}

void sim_task_submit(void *self, struct store_task *task)
{
    struct sim *sim = self;
    sim_plain_check_task(sim, task->job);
    if (!sim_may_leave(sim)) {
        store_task_free(task);
        return;
    }
    struct task_run *run = malloc(sizeof(*run));
    CHECK(run != NULL);
    *run = (struct task_run){ task, sim->coordinator->epoch };
    int64_t *last = &sim->coordinator->store_at; /* its tasks come one after the other */
    int64_t delay = (int64_t)sim_below(sim, sim_chance(sim, 30) ? 3000 : 30);
    bool hang = sim->chaos && !sim->options.calm && sim_chance(sim, HANGS);
    sim_at(sim, sim_in_order(sim, last, delay), hang ? begins_to_hang : runs, run, 0);
}

void sim_task_drop(sim_fn fn, void *arg)
{
    if (fn == runs || fn == hangs || fn == begins_to_hang || fn == comes_late)
        free_run(arg);
}
