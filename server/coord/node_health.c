/* Verdicts on nodes: what they say of their GPUs and clocks, and failures of jobs by their fault
 * (server/fleet/record.h). It also decides which nodes are not judged, and which paths between them
 * are suspected (server/fleet/netpaths.h). */
#include "server/coord/node_health.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"

#define ALL_PAIRS_MAX 8 /* nodes of a generation; of more not every pair is tried */

/* ---- GPUs ---- */

static void take_gpu(struct coord *coord, struct coord_node *node, size_t i,
                     const Cairn__V1__Gpu *from)
{
    struct coord_gpu *to = &node->gpus[i];
    bool failed = from->problem[0] && !to->problem[0];
    const bool served = coord_gpu_serves(to) && !to->problem[0];
    (void)snprintf(to->name, sizeof(to->name), "%.63s", from->name);
    (void)snprintf(to->uuid, sizeof(to->uuid), "%.63s", from->uuid);
    (void)snprintf(to->driver, sizeof(to->driver), "%.31s", from->driver);
    (void)snprintf(to->problem, sizeof(to->problem), "%.127s", from->problem);
    to->capability = from->capability;
    to->temperature = from->temperature;
    to->memory_bytes = from->memory_bytes;
    to->memory_used_bytes = from->memory_used_bytes;
    to->ecc_errors = from->ecc_errors;
    to->throttled = from->throttled;
    to->utilization = from->utilization__case == CAIRN__V1__GPU__UTILIZATION__UTILIZATION
                          ? from->utilization
                          : (double)NAN;
    to->power_watts =
        from->power__case == CAIRN__V1__GPU__POWER__POWER_WATTS ? from->power_watts : (double)NAN;
    if (served != (coord_gpu_serves(to) && !to->problem[0])) {
        node->counted = false;
        coord->schedule_needed = true;
    }
    if (failed) {
        LOG_WARN(coord->options.log, "node %s: GPU %zu takes no more workers: %s", node->name, i,
                 to->problem);
    }
}

void coord_take_gpus(struct coord *coord, struct coord_node *node, Cairn__V1__Gpu *const *gpus,
                     size_t count)
{
    if (count > LIMIT_GPUS)
        count = LIMIT_GPUS;
    if (count != node->gpu_count) {
        struct coord_gpu *more = calloc(count ? count : 1, sizeof(*more));
        if (more == NULL)
            return; /* the next beat tells it again */
        free(node->gpus);
        node->gpus = more;
        node->gpu_count = (uint32_t)count;
        node->counted = false;
        coord->schedule_needed = true;
    }
    for (size_t i = 0; i < count; i++)
        take_gpu(coord, node, i, gpus[i]);
}

/* ---- clocks ---- */

void coord_node_clock(const struct coord_node *node, struct reason *out)
{
    const double off_s = (double)node->clock_off_ms / 1000.0;
    out->text[0] = '\0';
    if (node->clock_off_ms != 0) {
        reason_set(out,
                   "its clock is %.0f s %s the coordinator's: set both by NTP, certificates and S3 "
                   "depend on it",
                   off_s < 0 ? -off_s : off_s, off_s < 0 ? "behind" : "ahead of");
    }
}

/* Takes the clock of a message that travelled for a moment, so that a second or two are nothing. It
 * is said once, and once more when the clock is right again. */
void coord_take_clock(struct coord *coord, struct coord_node *node, uint64_t wall_ms)
{
    const int64_t off = (int64_t)wall_ms - clock_wall_ms(coord->options.clock);
    const bool was_off = node->clock_off_ms != 0;
    const bool is_off = off > COORD_CLOCK_OFF_MS || off < -COORD_CLOCK_OFF_MS;
    struct reason text;
    if (wall_ms == 0 || wall_ms > INT64_MAX)
        return; /* the clock isn't said */
    node->clock_off_ms = is_off ? off : 0;
    coord_node_clock(node, &text);
    if (is_off && !was_off)
        LOG_WARN(coord->options.log, "node %s: %s", node->name, text.text);
    if (was_off && !is_off)
        LOG_INFO(coord->options.log, "node %s: its clock is right again", node->name);
}

/* ---- failures ---- */

bool coord_node_in_reach(const struct coord *coord, const struct coord_node *node)
{
    return node->known && coord_now(coord) - node->heard_at < COORD_REACH_MS;
}

/* True if another node of a device that this one has takes jobs: this one isn't the last of its
 * kind. */
static bool has_another(const struct coord *coord, const struct coord_node *node)
{
    for (size_t i = 0; i < coord->node_count; i++) {
        const struct coord_node *other = coord->nodes[i];
        bool takes = other != node && other->known && !other->silent && coord_node_takes(other) &&
                     !other->record.drained;
        bool same = coord_node_has(other, node->device) ||
                    (node->gpu_count > 0 && coord_node_has(other, COORD_GPU_DEVICE));
        if (takes && same)
            return true;
    }
    return false;
}

bool coord_node_drained(struct coord *coord, const struct coord_node *node)
{
    return node->record.drained && has_another(coord, node);
}

void coord_blame_node(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    struct coord_node *node = coord_node_at(coord, job->m.ranks[rank].node);
    if (node == NULL)
        return;
    bool due = fleet_blame(&node->record, job->id, coord_now(coord));
    coord_node_moved(coord, node);
    LOG_WARN(coord->options.log, "%s failed on node %s, which may be the cause", job->id,
             node->name);
    if (!due || !has_another(coord, node))
        return;
    node->record.drained = true;
    node->drain_told = false;
    coord->drained_untold = true;
    LOG_WARN(coord->options.log, "node %s is drained: %u different jobs failed there", node->name,
             node->record.count);
}

void coord_accuse_node(struct coord *coord, const struct coord_job *job,
                       const struct fsm_action *act)
{
    struct coord_node *node = coord_node_at(coord, job->m.ranks[act->rank].node);
    if (node == NULL)
        return;
    LOG_WARN(coord->options.log, "node %s computes wrongly: %.400s", node->name, act->message);
    if (!has_another(coord, node))
        return; /* there is no other node to compute */
    (void)snprintf(node->accused, sizeof(node->accused), "it computes wrongly: %.440s",
                   act->message);
    coord->accused = true;
    coord->schedule_needed = true;
}

void coord_clear_nodes(struct coord *coord, struct coord_job *job)
{
    for (size_t i = 0; i < coord->node_count; i++) {
        fleet_clear(&coord->nodes[i]->record, job->id);
        coord_node_moved(coord, coord->nodes[i]);
    }
    coord->schedule_needed = true;
}

void coord_verdicts_tick(struct coord *coord, struct coord_node *node)
{
    if (!fleet_age(&node->record, coord_now(coord)))
        return;
    LOG_INFO(coord->options.log, "node %s takes jobs again", node->name);
    coord->schedule_needed = true;
}

/* ---- paths between nodes ---- */

static void suspect(struct coord *coord, const char *a, const char *b)
{
    const struct coord_node *one = coord_node_at(coord, a), *other = coord_node_at(coord, b);
    if (one != NULL && other != NULL && one->probe_port != 0 && other->probe_port != 0)
        netpaths_suspect(&coord->netpaths, a, b);
}

/* Lists the different nodes of the job's ranks: at most ALL_PAIRS_MAX, and one more if there are
 * more. */
static size_t list_nodes(const struct coord_job *job, const char *out[ALL_PAIRS_MAX + 1])
{
    size_t count = 0;
    for (uint32_t r = 0; r < job->m.size && count <= ALL_PAIRS_MAX; r++) {
        const char *node = job->m.ranks[r].node;
        bool listed = false;
        for (size_t i = 0; i < count && !listed; i++)
            listed = strcmp(out[i], node) == 0;
        if (!listed)
            out[count++] = node;
    }
    return count;
}

/* Suspects the paths of the blamed rank to each, then a ring of all, from another begin each time:
 * of so many not all have room. */
static void suspect_some(struct coord *coord, const struct coord_job *job)
{
    const struct fsm *m = &job->m;
    const uint32_t ranks = m->size;
    const uint32_t blamed = m->cause.kind == FSM_FAULT_NONE ? ranks : m->cause.rank;
    for (uint32_t r = 0; r < ranks && blamed < ranks; r++)
        suspect(coord, m->ranks[blamed].node, m->ranks[r].node);
    for (uint32_t i = 0; i < ranks; i++) {
        const uint32_t r = (i + m->generation) % ranks;
        suspect(coord, m->ranks[r].node, m->ranks[(r + 1) % ranks].node);
    }
}

void coord_netpaths_suspect(struct coord *coord, const struct coord_job *job)
{
    const char *nodes[ALL_PAIRS_MAX + 1];
    const size_t count = list_nodes(job, nodes);
    if (count > ALL_PAIRS_MAX) {
        suspect_some(coord, job);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = i + 1; j < count; j++)
            suspect(coord, nodes[i], nodes[j]);
    }
}

bool coord_has_node(const struct coord_job *job, const char *node)
{
    bool has = false;
    for (uint32_t r = 0; r < job->m.size && !has; r++)
        has = strcmp(job->m.ranks[r].node, node) == 0;
    return has;
}

bool coord_netpaths_open(const struct coord *coord, const struct coord_job *job)
{
    bool open = false;
    for (size_t i = 0; i < coord->netpaths.count && !open; i++) {
        const struct netpath *path = &coord->netpaths.list[i];
        open =
            !path->cut && coord_has_node(job, path->node[0]) && coord_has_node(job, path->node[1]);
    }
    return open;
}

bool coord_nodes_apart(const struct coord *coord, const char *a, const char *b)
{
    return netpaths_is_cut(&coord->netpaths, a, b);
}

/* ---- time in which this process did not run ---- */

/* Reasons may be SIGSTOP, a starved machine, a suspended laptop, or a disk that holds a commit up:
 * what happened meanwhile waits in the mailbox. */
void coord_excuse(struct coord *coord)
{
    int64_t now = coord_now(coord);
    if (coord->promised_at == INT64_MAX || now - coord->promised_at < COORD_LATE_MS)
        return;
    int64_t late = now - coord->promised_at;
    coord->promised_at = now;
    LOG_WARN(coord->options.log, "did not run for %.1f s; nobody is judged by that time",
             (double)late / 1000.0);
    /* Nodes can't have come meanwhile, and those that tried in vain do so again. */
    coord->expects_until += late;
    if (coord->expects_until < now + COORD_GRACE_MS)
        coord->expects_until = now + COORD_GRACE_MS;
    coord->grace_until += coord->grace_until != 0 ? late : 0;
    if (coord->isolation.since != 0) { /* else held time would be counted once more */
        coord->isolation.since += late;
        coord->isolation.looked_at += late;
    }
    for (size_t i = 0; i < coord->node_count; i++) {
        coord->nodes[i]->heard_at += late;
        coord->nodes[i]->suspicion.asked_at += late;
        coord_node_moved(coord, coord->nodes[i]);
    }
    for (size_t i = 0; i < coord->live.count; i++) {
        struct coord_job *job = coord->live.list[i].value;
        fsm_excuse(&job->m, late);
        coord_job_moved(coord, job);
    }
}

/* ---- beats ---- */

static size_t count_agents(const struct coord *coord)
{
    size_t count = 0;
    for (size_t i = 0; i < coord->node_count; i++)
        count += coord->nodes[i]->conn != NULL;
    return count;
}

void coord_beat_interval_set(struct coord *coord)
{
    const struct coord_options *options = &coord->options;
    const int64_t beat_ms = options->beat_ms ? options->beat_ms : COORD_BEAT_MS;
    const int64_t lost_ms = options->lost_ms ? options->lost_ms : COORD_LOST_MS;
    const int64_t times =
        (int64_t)((count_agents(coord) + COORD_BEAT_NODES - 1) / COORD_BEAT_NODES);
    const int64_t most = (options->hang_ms - 1) / COORD_BEATS; /* lost before it is a hang */
    const int64_t thin_ms = beat_ms * times < most ? beat_ms * times : most;
    coord->beat_ms = thin_ms > beat_ms ? thin_ms : beat_ms;
    coord->lost_ms = COORD_BEATS * coord->beat_ms;
    if (thin_ms <= beat_ms || coord->lost_ms < lost_ms)
        coord->lost_ms = lost_ms;
}

int64_t coord_quiet_ms(const struct coord *coord)
{
    const int64_t quiet_ms = 3 * coord->beat_ms;
    return quiet_ms > ISOLATION_QUIET_MS ? quiet_ms : ISOLATION_QUIET_MS;
}

static uint32_t spread_ms(const struct coord *coord)
{
    size_t count = count_agents(coord);
    for (size_t i = 0; i < coord->live.count; i++) {
        const struct coord_job *job = coord->live.list[i].value;
        count += fsm_alive_rank(&job->m, FSM_ALL_RANKS) ? job->m.size : 0;
    }
    const size_t ms = count * 1000 / COORD_SPREAD_RATE;
    if (ms < COORD_SPREAD_MS)
        return COORD_SPREAD_MS;
    return ms < COORD_SPREAD_MAX_MS ? (uint32_t)ms : COORD_SPREAD_MAX_MS;
}

/* core->spread_ms grows with the fleet, by whole seconds, and never shrinks: agents and trainers go
 * by what they were told once. */
uint32_t coord_update_spread(struct coord *coord)
{
    const uint32_t ms = spread_ms(coord);
    if (ms <= COORD_SPREAD_MS || ms <= coord->spread_ms)
        return ms;
    coord->spread_ms = (int64_t)1000 * ((ms + 999) / 1000);
    for (size_t i = 0; i < coord->node_count; i++)
        coord_node_moved(coord, coord->nodes[i]);
    for (size_t i = 0; i < coord->live.count; i++) {
        struct coord_job *job = coord->live.list[i].value;
        job->m.config.spread_ms = coord->spread_ms;
    }
    return ms;
}
