/* The state: from other workers, from copies, a checkpoint or the seed. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/fault.h"
#include "trainer/program/rank_parts.h"
#include "trainer/program/store_check.h"
#include "trainer/state/copy_restore.h"
#include "trainer/state/live_sync.h"
#include "trainer/state/state.h"

/* Opens a communicator of host memory for moving a state, unless the worker's communicator is
 * one. */
static enum status open_state_comm(struct rank *r, const char *round_name,
                                   const struct comm_table **out_table, struct comm **out)
{
    const struct comm_table *table = r->worker->device.comm;
    *out_table = table;
    *out = r->comms[RANK_COMM_WORLD].comm;
    if (table == NULL || !table->on_stream || r->assignment.size == 1)
        return ST_OK;
    *out_table = comm_gloo();
    return rank_open_host_comm(r, round_name, out);
}

static enum status restore_copies(struct rank *r)
{
    struct copy_source from = { .dir = r->options->copies, .assignment = &r->assignment };
    enum status st = ST_OK;
    if (copy_restore_travels(&r->assignment)) {
        st = open_state_comm(r, "restore", &from.table, &from.comm);
        if (st != ST_OK)
            return st;
    }
    st = copy_restore(r->worker, &from, &r->reason);
    rank_close_host_comm(r, st);
    return st;
}

/* ---- from other workers ---- */

/* Notes that this rank has the state of that step now. */
static void note_kept(struct rank *r, uint64_t step)
{
    const struct worker *w = r->worker;
    const bool shared = ownership_is_shared(&w->ownership);
    r->kept = (struct session_parked){ .step = step,
                                       .complete = rank_may_keep(r),
                                       .computed_by = r->assignment.generation,
                                       .part = shared ? r->assignment.rank : 0,
                                       .parts = shared ? r->assignment.size : 0 };
    if (w->stage != NULL) {
        r->kept.part = w->stage->box.stage;
        r->kept.parts = w->stage->layout.stage_count;
    }
}

/* False if ranks of a stage own parts: no rank has the whole stage's state. False, too, for a stage
 * on a device, which has no way to send its state. */
bool rank_may_keep(const struct rank *r)
{
    const struct stage *stage = r->worker->stage;
    return stage == NULL || (!stage->options.owns && r->worker->device.table->host_memory);
}

/* Merges the sources' notes: work is left of the step if any of them lacks it. */
static void merge_resume_points(struct rank *r, const struct loop_resume_point *points)
{
    const struct session_assignment *a = &r->assignment;
    r->resume = points[a->live_sources[0]];
    for (size_t i = 1; i < a->live_source_count; i++)
        loop_resume_point_merge(&r->resume, &points[a->live_sources[i]]);
    r->resume.step = a->live_step;
    r->resume.complete = true;
}

static enum status sync_live(struct rank *r)
{
    const struct session_assignment *a = &r->assignment;
    const bool source = live_sync_is_source(a, a->rank);
    auto_free struct loop_resume_point *points = calloc(a->size, sizeof(*points));
    if (points == NULL)
        return ST_NO_MEMORY;
    const struct session_parked kept = r->kept;
    struct live_sync_options options = { .assignment = a,
                                         .kept = &kept,
                                         .note = &r->resume,
                                         .note_size = sizeof(r->resume),
                                         .notes = points,
                                         .tail = &r->rows,
                                         .tail_size = sizeof(r->rows) };
    uint32_t blamed = 0;
    enum status st = ST_OK;
    if (a->size == 1) { /* this rank goes on alone */
        points[0] = r->resume;
        st = source && r->kept.complete && r->kept.step == a->live_step ? ST_OK : ST_INVALID;
    } else {
        st = open_state_comm(r, "live", &options.table, &options.comm);
        if (st != ST_OK)
            return st;
        if (!source || r->worker->ownership.options.owns)
            r->kept.complete = false; /* until all is there; owners give some of theirs away */
        progress_collective_begin(&r->progress, "live");
        st = live_sync(r->worker, &options, &blamed, &r->reason);
        rank_close_host_comm(r, st);
    }
    if (st == ST_CORRUPT) { /* of that worker, and of no checkpoint */
        r->blamed = 1 + blamed;
        return ST_PEER;
    }
    if (st != ST_OK)
        return st;
    progress_collective_end(&r->progress, "live");
    merge_resume_points(r, points);
    note_kept(r, a->live_step);
    if (source)
        r->kept.computed_by = kept.computed_by;
    if (!source) {
        LOG_INFO(r->log, "has the state of step %llu from %zu workers",
                 (unsigned long long)a->live_step, a->live_source_count);
    }
    return ST_OK;
}

/* ---- from a checkpoint ---- */

/*
 * Ranks that have the same of the state read a part each. Not where the file system's cache serves
 * all of them: on one node reading again costs less than sending. Not within a stage on a device:
 * what its ranks share is no host memory's communicator.
 */
static bool reads_a_part(const struct rank *r)
{
    const struct worker *w = r->worker;
    const struct session_assignment *a = &r->assignment;
    const struct worker_group *group = &w->group;
    if (group->size == 1 || w->device.comm == NULL || a->nodes == NULL ||
        (w->stage != NULL && w->device.comm->on_stream))
        return false;
    bool apart = io_is_object(w->options.io, a->restore);
    for (uint32_t i = 1; !apart && i < group->size; i++)
        apart = strcmp(a->nodes[group->first + i], a->nodes[group->first]) != 0;
    return apart;
}

static enum status check_store(struct rank *r)
{
    r->at_store = true;
    return store_check(r->worker->options.io, r->job->checkpoint.store, &r->assignment, &r->of_node,
                       &r->reason);
}

/* Ranks that share the reading meet before any of them goes to the store, which may take long. */
static enum status restore_checkpoint(struct rank *r)
{
    const struct session_assignment *a = &r->assignment;
    struct state_source from = { .dir = a->restore, .step = a->restore_step };
    struct state_blame blame = { .file = 0 };
    enum status st = ST_OK;
    fault_point("trainer.restore");
    if (reads_a_part(r))
        st = open_state_comm(r, "restore", &from.table, &from.comm);
    if (st != ST_OK)
        return st;
    st = check_store(r);
    if (st == ST_OK)
        st = state_restore(r->worker, &from, &blame, &r->reason);
    r->damaged = blame.file;
    r->blamed = blame.rank;
    rank_close_host_comm(r, st);
    return st;
}

static enum status seed(struct rank *r)
{
    enum status st = check_store(r);
    if (st != ST_OK)
        return st;
    r->at_store = false;
    progress_phase(&r->progress, PHASE_FORMING); /* imported weights are not the store's */
    st = state_seed(r->worker, &r->reason);
    const char *weights = r->job->model.weights;
    r->of_node = st != ST_OK && weights[0] != '\0' && access(weights, R_OK) != 0;
    return st;
}

/* Loads the state from the copies or the checkpoint that the assignment names, or from the seed.
 * Where there are copies, the store isn't needed. */
static enum status load_state(struct rank *r)
{
    if (r->assignment.memory.generation > 0) {
        fault_point("trainer.restore");
        return restore_copies(r);
    }
    if (r->assignment.restore[0] == '\0')
        return seed(r);
    enum status st = restore_checkpoint(r);
    if (st == ST_OK)
        r->at_store = false;
    return st;
}

enum status rank_fill_state(struct rank *r)
{
    const struct session_assignment *a = &r->assignment;
    progress_phase(&r->progress, PHASE_RESTORE);
    enum status st = ST_OK;
    if (rank_is_live(r)) {
        st = sync_live(r);
    } else {
        r->kept.complete = false;
        worker_skip_clear(r->worker);
        st = load_state(r);
        if (st == ST_OK) {
            note_kept(r, rank_first_step(r));
            r->resume = (struct loop_resume_point){ .step = r->kept.step, .complete = true };
            r->rows.count = 0; /* rows after that step are computed again */
        }
    }
    return st == ST_OK ? worker_skip_add(r->worker, a->skip, a->skip_count) : st;
}
