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
#include "server/coord/queue/queue.h"

#include <stdlib.h>
#include <string.h>

#include "server/coord/apply.h"
#include "server/coord/base.h"
#include "server/coord/index.h"
#include "server/coord/node_health.h"
#include "server/coord/queue/place.h"

enum standing {
    STANDING_HOLDS, /* the job has workers, or needs none */
    STANDING_ENDS,  /* it still has workers, which leave or can't go on yet */
    STANDING_RAN,   /* it ran until a moment ago */
    STANDING_RUNS,  /* it ran, and is to go on */
    STANDING_WAITS,
    STANDINGS,
};

static bool ran_lately(const struct coord *coord, const struct coord_job *job)
{
    return coord_now(coord) - job->recovers_at < COORD_REACH_MS;
}

static enum standing standing_of(const struct coord *coord, const struct coord_job *job)
{
    const struct fsm *m = &job->m;
    if (m->state != FSM_RECOVERING)
        return STANDING_WAITS;
    if (fsm_ends(m) || fsm_has_waiting(m) || fsm_vacant_ranks(m) == 0)
        return fsm_wants_slots(m, coord_now(coord)) ? STANDING_HOLDS : STANDING_ENDS;
    return ran_lately(coord, job) ? STANDING_RAN : STANDING_RUNS;
}

/* Notes that the job keeps slots. If all in reach are kept, jobs behind get nothing, and need no
 * look. */
static void keeps(struct coord *coord, const struct coord_job *job)
{
    struct board *board = coord->board;
    const enum jobspec_device kind = job->spec->workers.device;
    const char *device = jobspec_device_word(kind);
    bool closed = true;
    for (size_t i = 0; i < board->count && closed; i++) {
        const struct place_node *node = &board->nodes[i];
        closed = !node->ready || node->leaving || board->kept[i] == PLACE_ALL ||
                 strcmp(node->device, device) != 0;
    }
    board->closed[kind] = closed;
    if (board->keeps[kind] == NULL)
        board->keeps[kind] = job;
}

static void set_behind(struct coord_job *job, const struct coord_job *other)
{
    const int64_t seq = other != NULL ? other->seq : 0;
    job->version += job->behind != seq; /* the job says something else to people that look at it */
    job->behind = seq;
}

/* Looks at one job. false: all is to be looked at anew. */
static bool look_at(struct coord *coord, struct coord_job *job, enum standing standing)
{
    struct board *board = coord->board;
    const struct coord_job *first = board->keeps[job->spec->workers.device];
    enum coord_tried tried = COORD_TRIED_WAITS;
    board->heeds = standing != STANDING_HOLDS;
    if (board->heeds && board->closed[job->spec->workers.device]) {
        set_behind(job, first);
        return true;
    }
    if (fsm_wants_slots(&job->m, coord_now(coord))) {
        tried = coord_try_place(coord, job);
    } else if (standing != STANDING_WAITS && ran_lately(coord, job) &&
               coord_keep_place(coord, job)) {
        tried = COORD_TRIED_KEEPS;
    }
    /* The try may have ended the job's waiting: it must still be queued. */
    if (tried == COORD_TRIED_KEEPS && coord_job_queues(job))
        keeps(coord, job);
    set_behind(job, tried == COORD_TRIED_BEHIND ? first : NULL);
    return tried != COORD_TRIED_CHANGED;
}

/* Looks at all jobs of one standing. */
static bool look_at_all(struct coord *coord, enum standing standing)
{
    bool goes_on = true;
    for (size_t i = 0; i < coord->queue.count && goes_on;) {
        struct coord_job *job = coord->queue.list[i].value;
        if (standing_of(coord, job) == standing)
            goes_on = look_at(coord, job, standing) && coord->failed == ST_OK;
        i += i < coord->queue.count &&
             coord->queue.list[i].value == job; /* else the job is placed */
    }
    return goes_on;
}

/*
 * Places one worker more for each job that wants some, if a slot is left. What a job is short of
 * comes before the jobs that were submitted later, spares after all that wait for that kind of
 * slots.
 */
static void place_spares(struct coord *coord)
{
    struct board *board = coord->board;
    for (size_t i = 0; i < coord->lacking.count && coord->failed == ST_OK;) {
        struct coord_job *job = coord->lacking.list[i].value;
        const struct coord_job *first = board->keeps[job->spec->workers.device];
        const bool earlier = first != NULL && fsm_lacks_workers(&job->m) && job->seq < first->seq &&
                             standing_of(coord, first) == STANDING_WAITS;
        struct place_slot slot;
        struct reason unsaid;
        if ((first != NULL && !earlier) || !fsm_wants_spare(&job->m, coord_now(coord)) ||
            coord_netpaths_open(coord, job)) {
            i++;
            continue;
        }
        if (!coord_board_fill(coord))
            return;
        board->heeds = false;
        if (coord_find_slots(coord, job, 1, &slot, &unsaid) == ST_OK) {
            coord_place(coord, job, FSM_EV_SPARE, &slot, 1);
            coord->schedule_needed = true; /* the job may want another one */
        }
        i += i < coord->lacking.count && coord->lacking.list[i].value == job;
    }
}

/* True if a worker may come back with a node that isn't back yet. Within the grace that is any of
 * the last generation's workers, and a newcomer; afterwards one that isn't judged yet. */
static bool awaits_node(struct coord *coord, const struct fsm *m, uint32_t index)
{
    const struct fsm_rank *rank = &m->ranks[index];
    const struct coord_node *node = coord_node_at(coord, rank->node);
    const bool counts = !rank->gone || (index < m->size && coord->grace_until != 0);
    return counts && rank->node[0] != '\0' && !(node != NULL && node->known);
}

/* Called after a start, until all nodes are back that jobs have workers on, or these are judged. */
static void look_for_nodes(struct coord *coord)
{
    bool all = true;
    for (size_t i = 0; i < coord->live.count && coord->awaits_nodes && all; i++) {
        const struct fsm *m = &((const struct coord_job *)coord->live.list[i].value)->m;
        for (uint32_t r = 0; r < m->count && m->generation > 0 && all; r++)
            all = !awaits_node(coord, m, r);
    }
    if (all ||
        (coord->grace_until == 0 && coord_now(coord) >= coord->expects_until + COORD_JUDGED_MS))
        coord->awaits_nodes = false;
}

static bool clear_board(struct coord *coord)
{
    if (coord->board == NULL)
        coord->board = malloc(sizeof(*coord->board));
    if (coord->board == NULL) {
        coord_fail(coord, ST_NO_MEMORY, "placing");
        return false;
    }
    struct board *board = coord->board;
    board->filled = false;
    memset(board->kept, 0, sizeof(board->kept));
    memset(board->keeps, 0, sizeof(board->keeps));
    memset(board->closed, 0, sizeof(board->closed));
    return true;
}

static void schedule_jobs(struct coord *coord)
{
    bool goes_on = true;
    coord->looked_at = coord_now(coord);
    if (coord->draining_until != 0 || !clear_board(coord))
        return;
    look_for_nodes(coord);
    for (int i = 0; i < STANDINGS && goes_on; i++)
        goes_on = look_at_all(coord, (enum standing)i);
    if (goes_on)
        place_spares(coord);
}

/* The job that was the last to fail there; not within the turn that found it out. */
static void tell_drained(struct coord *coord)
{
    if (!coord->drained_untold)
        return;
    coord->drained_untold = false;
    for (size_t i = 0; i < coord->node_count; i++) {
        struct coord_node *node = coord->nodes[i];
        const struct fleet_record *record = &node->record;
        if (!record->drained || node->drain_told)
            continue;
        node->drain_told = true;
        struct coord_job *job = coord_job_at(coord, record->faults[record->count - 1].job);
        struct reason text;
        reason_set(&text,
                   "node %s is drained: this is one of %u jobs that failed there; it takes jobs "
                   "again when that is %d minutes ago, or its machine was started anew",
                   node->name, record->count, (int)(FLEET_FORGET_MS / 60000));
        if (job != NULL)
            coord_note(coord, job, "node", text.text);
    }
}

void coord_schedule(struct coord *coord)
{
    tell_drained(coord);
    for (int i = 0; i < 8 && coord->schedule_needed && coord->failed == ST_OK; i++) {
        coord->schedule_needed = false;
        schedule_jobs(coord);
    }
}
