/* Verdicts on nodes: what they say of their GPUs and clocks, and failures of jobs by their fault
 * (server/fleet/record.h). It also decides which nodes are not judged, and which paths between them
 * are suspected (server/fleet/paths.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/internal.h"

#define ALL_PAIRS_MAX 8 /* nodes of a generation; of more not every pair is tried */

/* ---- GPUs ---- */

static void take_gpu(struct core *core, struct core_node *node, size_t i,
                     const Cairn__V1__Gpu *from)
{
    struct core_gpu *to = &node->gpus[i];
    bool failed = from->problem[0] && !to->problem[0];
    const bool served = core_gpu_serves(to) && !to->problem[0];
    (void)snprintf(to->name, sizeof to->name, "%.63s", from->name);
    (void)snprintf(to->uuid, sizeof to->uuid, "%.63s", from->uuid);
    (void)snprintf(to->driver, sizeof to->driver, "%.31s", from->driver);
    (void)snprintf(to->problem, sizeof to->problem, "%.127s", from->problem);
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
    if (served != (core_gpu_serves(to) && !to->problem[0])) {
        node->counted = false;
        core->schedule_needed = true;
    }
    if (failed) {
        LOG_WARN(core->options.log, "node %s: GPU %zu takes no more workers: %s", node->name, i,
                 to->problem);
    }
}

void core_take_gpus(struct core *core, struct core_node *node, Cairn__V1__Gpu *const *gpus,
                    size_t count)
{
    if (count > LIMIT_GPUS)
        count = LIMIT_GPUS;
    if (count != node->gpu_count) {
        struct core_gpu *more = calloc(count ? count : 1, sizeof *more);
        if (!more)
            return; /* the next beat tells it again */
        free(node->gpus);
        node->gpus = more;
        node->gpu_count = (uint32_t)count;
        node->counted = false;
        core->schedule_needed = true;
    }
    for (size_t i = 0; i < count; i++)
        take_gpu(core, node, i, gpus[i]);
}

/* ---- clocks ---- */

void core_node_clock(const struct core_node *node, struct reason *out)
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
void core_take_clock(struct core *core, struct core_node *node, uint64_t wall_ms)
{
    const int64_t off = (int64_t)wall_ms - clock_wall_ms(core->options.clock);
    const bool was_off = node->clock_off_ms != 0;
    const bool is_off = off > CORE_CLOCK_OFF_MS || off < -CORE_CLOCK_OFF_MS;
    struct reason text;
    if (wall_ms == 0 || wall_ms > INT64_MAX)
        return; /* the clock isn't said */
    node->clock_off_ms = is_off ? off : 0;
    core_node_clock(node, &text);
    if (is_off && !was_off)
        LOG_WARN(core->options.log, "node %s: %s", node->name, text.text);
    if (was_off && !is_off)
        LOG_INFO(core->options.log, "node %s: its clock is right again", node->name);
}

/* ---- failures ---- */

bool core_node_in_reach(const struct core *core, const struct core_node *node)
{
    return node->known && core_now(core) - node->heard_at < CORE_REACH_MS;
}

/* True if another node of a device that this one has takes jobs: this one isn't the last of its
 * kind. */
static bool has_another(const struct core *core, const struct core_node *node)
{
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *other = core->nodes[i];
        bool takes = other != node && other->known && !other->silent && core_node_takes(other) &&
                     !other->record.drained;
        bool same = core_node_has(other, node->device) ||
                    (node->gpu_count > 0 && core_node_has(other, CORE_GPU_DEVICE));
        if (takes && same)
            return true;
    }
    return false;
}

bool core_node_drained(struct core *core, const struct core_node *node)
{
    return node->record.drained && has_another(core, node);
}

void core_blame_node(struct core *core, struct core_job *job, uint32_t rank)
{
    struct core_node *node = core_node_at(core, job->m.ranks[rank].node);
    if (!node)
        return;
    bool due = fleet_blame(&node->record, job->id, core_now(core));
    core_node_moved(core, node);
    LOG_WARN(core->options.log, "%s failed on node %s, which may be the cause", job->id,
             node->name);
    if (!due || !has_another(core, node))
        return;
    node->record.drained = true;
    node->drain_told = false;
    core->drained_untold = true;
    LOG_WARN(core->options.log, "node %s is drained: %u different jobs failed there", node->name,
             node->record.count);
}

void core_accuse_node(struct core *core, const struct core_job *job,
                      const struct machine_action *act)
{
    struct core_node *node = core_node_at(core, job->m.ranks[act->rank].node);
    if (!node)
        return;
    LOG_WARN(core->options.log, "node %s computes wrongly: %.400s", node->name, act->message);
    if (!has_another(core, node))
        return; /* there is no other node to compute */
    (void)snprintf(node->accused, sizeof node->accused, "it computes wrongly: %.440s",
                   act->message);
    core->accused = true;
    core->schedule_needed = true;
}

void core_clear_nodes(struct core *core, struct core_job *job)
{
    for (size_t i = 0; i < core->node_count; i++) {
        fleet_clear(&core->nodes[i]->record, job->id);
        core_node_moved(core, core->nodes[i]);
    }
    core->schedule_needed = true;
}

void core_verdicts_tick(struct core *core, struct core_node *node)
{
    if (!fleet_age(&node->record, core_now(core)))
        return;
    LOG_INFO(core->options.log, "node %s takes jobs again", node->name);
    core->schedule_needed = true;
}

/* ---- paths between nodes ---- */

static void suspect(struct core *core, const char *a, const char *b)
{
    const struct core_node *one = core_node_at(core, a), *other = core_node_at(core, b);
    if (one && other && one->probe_port != 0 && other->probe_port != 0)
        paths_suspect(&core->paths, a, b);
}

/* Lists the different nodes of the job's ranks: at most ALL_PAIRS_MAX, and one more if there are
 * more. */
static size_t list_nodes(const struct core_job *job, const char *out[ALL_PAIRS_MAX + 1])
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
static void suspect_some(struct core *core, const struct core_job *job)
{
    const struct machine *m = &job->m;
    const uint32_t ranks = m->size;
    const uint32_t blamed = m->cause.kind == MACHINE_FAULT_NONE ? ranks : m->cause.rank;
    for (uint32_t r = 0; r < ranks && blamed < ranks; r++)
        suspect(core, m->ranks[blamed].node, m->ranks[r].node);
    for (uint32_t i = 0; i < ranks; i++) {
        const uint32_t r = (i + m->generation) % ranks;
        suspect(core, m->ranks[r].node, m->ranks[(r + 1) % ranks].node);
    }
}

void core_paths_suspect(struct core *core, const struct core_job *job)
{
    const char *nodes[ALL_PAIRS_MAX + 1];
    const size_t count = list_nodes(job, nodes);
    if (count > ALL_PAIRS_MAX) {
        suspect_some(core, job);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = i + 1; j < count; j++)
            suspect(core, nodes[i], nodes[j]);
    }
}

bool core_has_node(const struct core_job *job, const char *node)
{
    bool has = false;
    for (uint32_t r = 0; r < job->m.size && !has; r++)
        has = strcmp(job->m.ranks[r].node, node) == 0;
    return has;
}

bool core_paths_open(const struct core *core, const struct core_job *job)
{
    bool open = false;
    for (size_t i = 0; i < core->paths.count && !open; i++) {
        const struct path *path = &core->paths.list[i];
        open = !path->cut && core_has_node(job, path->node[0]) && core_has_node(job, path->node[1]);
    }
    return open;
}

bool core_nodes_apart(const struct core *core, const char *a, const char *b)
{
    return paths_is_cut(&core->paths, a, b);
}

/* ---- time in which this process did not run ---- */

/* Reasons may be SIGSTOP, a starved machine, a suspended laptop, or a disk that holds a commit up:
 * what happened meanwhile waits in the mailbox. */
void core_excuse(struct core *core)
{
    int64_t now = core_now(core);
    if (core->promised_at == INT64_MAX || now - core->promised_at < CORE_LATE_MS)
        return;
    int64_t late = now - core->promised_at;
    core->promised_at = now;
    LOG_WARN(core->options.log, "did not run for %.1f s; nobody is judged by that time",
             (double)late / 1000.0);
    /* Nodes can't have come meanwhile, and those that tried in vain do so again. */
    core->expects_until += late;
    if (core->expects_until < now + CORE_GRACE_MS)
        core->expects_until = now + CORE_GRACE_MS;
    core->grace_until += core->grace_until != 0 ? late : 0;
    if (core->outage.since != 0) { /* else held time would be counted once more */
        core->outage.since += late;
        core->outage.looked_at += late;
    }
    for (size_t i = 0; i < core->node_count; i++) {
        core->nodes[i]->heard_at += late;
        core->nodes[i]->doubt.asked_at += late;
        core_node_moved(core, core->nodes[i]);
    }
    for (size_t i = 0; i < core->live.count; i++) {
        struct core_job *job = core->live.list[i].value;
        machine_excuse(&job->m, late);
        core_job_moved(core, job);
    }
}

/* ---- beats ---- */

static size_t count_agents(const struct core *core)
{
    size_t count = 0;
    for (size_t i = 0; i < core->node_count; i++)
        count += core->nodes[i]->conn != NULL;
    return count;
}

void core_pace_set(struct core *core)
{
    const struct core_options *options = &core->options;
    const int64_t beat_ms = options->beat_ms ? options->beat_ms : CORE_BEAT_MS;
    const int64_t lost_ms = options->lost_ms ? options->lost_ms : CORE_LOST_MS;
    const int64_t times = (int64_t)((count_agents(core) + CORE_BEAT_NODES - 1) / CORE_BEAT_NODES);
    const int64_t most = (options->hang_ms - 1) / CORE_BEATS; /* lost before it is a hang */
    const int64_t thin_ms = beat_ms * times < most ? beat_ms * times : most;
    core->beat_ms = thin_ms > beat_ms ? thin_ms : beat_ms;
    core->lost_ms = CORE_BEATS * core->beat_ms;
    if (thin_ms <= beat_ms || core->lost_ms < lost_ms)
        core->lost_ms = lost_ms;
}

int64_t core_quiet_ms(const struct core *core)
{
    const int64_t quiet_ms = 3 * core->beat_ms;
    return quiet_ms > OUTAGE_QUIET_MS ? quiet_ms : OUTAGE_QUIET_MS;
}

static uint32_t spread_ms(const struct core *core)
{
    size_t count = count_agents(core);
    for (size_t i = 0; i < core->live.count; i++) {
        const struct core_job *job = core->live.list[i].value;
        count += machine_alive_rank(&job->m, MACHINE_ALL_RANKS) ? job->m.size : 0;
    }
    const size_t ms = count * 1000 / CORE_SPREAD_RATE;
    if (ms < CORE_SPREAD_MS)
        return CORE_SPREAD_MS;
    return ms < CORE_SPREAD_MAX_MS ? (uint32_t)ms : CORE_SPREAD_MAX_MS;
}

/* core->spread_ms grows with the fleet, by whole seconds, and never shrinks: agents and trainers go
 * by what they were told once. */
uint32_t core_tell_spread(struct core *core)
{
    const uint32_t ms = spread_ms(core);
    if (ms <= CORE_SPREAD_MS || ms <= core->spread_ms)
        return ms;
    core->spread_ms = (int64_t)1000 * ((ms + 999) / 1000);
    for (size_t i = 0; i < core->node_count; i++)
        core_node_moved(core, core->nodes[i]);
    for (size_t i = 0; i < core->live.count; i++) {
        struct core_job *job = core->live.list[i].value;
        job->m.config.spread_ms = core->spread_ms;
    }
    return ms;
}
