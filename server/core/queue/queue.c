/*
 * The order in which jobs get slots.
 *
 * First come jobs that have some slots, or need none: their workers wait for the others. Then jobs
 * that have just lost all: their slots were their own a moment ago. Then those that ran, then the
 * rest, each in order of submission.
 *
 * So nothing that happens to a running job gives its slots to one that waits. And as no job gets to
 * run past one that waits and could run later, those that ran are ever fewer.
 *
 * A job that has to wait keeps slots that may come free for itself (board.h), so that large jobs
 * don't starve. Slots that can't come free, on nodes that are lost or in broken GPUs, it keeps from
 * nobody.
 */
#include <stdlib.h>
#include <string.h>

#include "server/core/queue/board.h"

enum standing {
    STANDING_HOLDS, /* the job has workers, or needs none */
    STANDING_ENDS,  /* it still has workers, which leave or can't go on yet */
    STANDING_RAN,   /* it ran until a moment ago */
    STANDING_RUNS,  /* it ran, and is to go on */
    STANDING_WAITS,
    STANDINGS,
};

static bool ran_lately(const struct core *core, const struct core_job *job)
{
    return core_now(core) - job->recovers_at < CORE_REACH_MS;
}

static enum standing standing_of(const struct core *core, const struct core_job *job)
{
    const struct machine *m = &job->m;
    if (m->state != MACHINE_RECOVERING)
        return STANDING_WAITS;
    if (machine_ends(m) || machine_holds(m) || machine_vacant(m) == 0)
        return machine_wants_slots(m, core_now(core)) ? STANDING_HOLDS : STANDING_ENDS;
    return ran_lately(core, job) ? STANDING_RAN : STANDING_RUNS;
}

/* Notes that the job keeps slots. If all in reach are kept, jobs behind get nothing, and need no
 * look. */
static void keeps(struct core *core, const struct core_job *job)
{
    struct board *board = core->board;
    const enum job_device kind = job->spec->workers.device;
    const char *device = job_device_word(kind);
    bool closed = true;
    for (size_t i = 0; i < board->count && closed; i++) {
        const struct place_node *node = &board->nodes[i];
        closed = !node->ready || node->leaving || board->kept[i] == PLACE_ALL ||
                 strcmp(node->device, device) != 0;
    }
    board->closed[kind] = closed;
    if (!board->keeps[kind])
        board->keeps[kind] = job;
}

static void set_behind(struct core_job *job, const struct core_job *other)
{
    const int64_t seq = other ? other->seq : 0;
    job->version += job->behind != seq; /* the job says something else to people that look at it */
    job->behind = seq;
}

/* Looks at one job. false: all is to be looked at anew. */
static bool look_at(struct core *core, struct core_job *job, enum standing standing)
{
    struct board *board = core->board;
    const struct core_job *first = board->keeps[job->spec->workers.device];
    enum core_tried tried = CORE_TRIED_WAITS;
    board->heeds = standing != STANDING_HOLDS;
    if (board->heeds && board->closed[job->spec->workers.device]) {
        set_behind(job, first);
        return true;
    }
    if (machine_wants_slots(&job->m, core_now(core))) {
        tried = core_try_place(core, job);
    } else if (standing != STANDING_WAITS && ran_lately(core, job) && core_keep_place(core, job)) {
        tried = CORE_TRIED_KEEPS;
    }
    /* The try may have ended the job's waiting: it must still be queued. */
    if (tried == CORE_TRIED_KEEPS && core_job_queues(job))
        keeps(core, job);
    set_behind(job, tried == CORE_TRIED_BEHIND ? first : NULL);
    return tried != CORE_TRIED_CHANGED;
}

/* Looks at all jobs of one standing. */
static bool look_at_all(struct core *core, enum standing standing)
{
    bool goes_on = true;
    for (size_t i = 0; i < core->queue.count && goes_on;) {
        struct core_job *job = core->queue.list[i].value;
        if (standing_of(core, job) == standing)
            goes_on = look_at(core, job, standing) && core->failed == ST_OK;
        i += i < core->queue.count && core->queue.list[i].value == job; /* else the job is placed */
    }
    return goes_on;
}

/*
 * Places one worker more for each job that wants some, if a slot is left. What a job is short of
 * comes before the jobs that were submitted later, spares after all that wait for that kind of
 * slots.
 */
static void place_spares(struct core *core)
{
    struct board *board = core->board;
    for (size_t i = 0; i < core->hungry.count && core->failed == ST_OK;) {
        struct core_job *job = core->hungry.list[i].value;
        const struct core_job *first = board->keeps[job->spec->workers.device];
        const bool earlier = first && machine_is_short(&job->m) && job->seq < first->seq &&
                             standing_of(core, first) == STANDING_WAITS;
        struct place_slot slot;
        struct reason unsaid;
        if ((first && !earlier) || !machine_wants_spare(&job->m, core_now(core)) ||
            core_paths_open(core, job)) {
            i++;
            continue;
        }
        if (!core_board_fill(core))
            return;
        board->heeds = false;
        if (core_find_slots(core, job, 1, &slot, &unsaid) == ST_OK) {
            core_place(core, job, MACHINE_EV_SPARE, &slot, 1);
            core->schedule_needed = true; /* the job may want another one */
        }
        i += i < core->hungry.count && core->hungry.list[i].value == job;
    }
}

/* Called after a start, until the grace is over, or all nodes are back that jobs ran on. */
static void look_for_nodes(struct core *core)
{
    bool all = true;
    for (size_t i = 0; i < core->live.count && core->awaits_nodes && all; i++) {
        const struct machine *m = &((const struct core_job *)core->live.list[i].value)->m;
        for (uint32_t r = 0; r < m->size && m->generation > 0 && all; r++) {
            const struct core_node *node = core_node_at(core, m->ranks[r].node);
            all = m->ranks[r].node[0] == '\0' || (node && node->known);
        }
    }
    if (all || core->grace_until == 0)
        core->awaits_nodes = false;
}

static bool clear_board(struct core *core)
{
    if (!core->board)
        core->board = malloc(sizeof *core->board);
    if (!core->board) {
        core_fail(core, ST_NO_MEMORY, "placing");
        return false;
    }
    struct board *board = core->board;
    board->filled = false;
    memset(board->kept, 0, sizeof board->kept);
    memset(board->keeps, 0, sizeof board->keeps);
    memset(board->closed, 0, sizeof board->closed);
    return true;
}

static void schedule_jobs(struct core *core)
{
    bool goes_on = true;
    core->looked_at = core_now(core);
    if (core->draining_until != 0 || !clear_board(core))
        return;
    look_for_nodes(core);
    for (int i = 0; i < STANDINGS && goes_on; i++)
        goes_on = look_at_all(core, (enum standing)i);
    if (goes_on)
        place_spares(core);
}

/* The job that was the last to fail there; not within the turn that found it out. */
static void tell_drained(struct core *core)
{
    if (!core->drained_untold)
        return;
    core->drained_untold = false;
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        const struct fleet_record *record = &node->record;
        if (!record->drained || node->drain_told)
            continue;
        node->drain_told = true;
        struct core_job *job = core_job_at(core, record->faults[record->count - 1].job);
        struct reason text;
        reason_set(&text,
                   "node %s is drained: this is one of %u jobs that failed there; it takes jobs "
                   "again when that is %d minutes ago, or its machine was started anew",
                   node->name, record->count, (int)(FLEET_FORGET_MS / 60000));
        if (job)
            core_note(core, job, "node", text.text);
    }
}

void core_schedule(struct core *core)
{
    tell_drained(core);
    for (int i = 0; i < 8 && core->schedule_needed && core->failed == ST_OK; i++) {
        core->schedule_needed = false;
        schedule_jobs(core);
    }
}
