/*
 * Orders to agents and trainers. Nothing in here changes what is journalled: an order that is lost
 * with its connection is made again when the other side says hello.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/internal.h"

/* ---- to agents: trainers ---- */

/* Returns the agent's connection; NULL: the agent isn't there now, and gets what it misses when it
 * says hello. */
static struct core_conn *agent_of(struct core *core, const char *node_name)
{
    struct core_node *node = core_node_at(core, node_name);
    return node ? node->conn : NULL;
}

static Cairn__V1__TrainerRef ref_of(struct core_job *job, uint32_t rank)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = job->id;
    ref.generation = job->m.ranks[rank].birth; /* what its agent knows it by */
    ref.rank = job->m.ranks[rank].number;
    return ref;
}

void core_send_start(struct core *core, struct core_job *job, uint32_t rank)
{
    const bool spare = machine_is_spare(&job->m, rank);
    if (!spare && job->m.ranks[rank].birth != job->m.generation) {
        core_send_regroup(core, job, rank, job->ranks[rank].conn);
        return;
    }
    struct core_conn *conn = agent_of(core, job->m.ranks[rank].node);
    if (!conn)
        return;
    Cairn__V1__TrainerRef ref = ref_of(job, rank);
    Cairn__V1__StartTrainer start = CAIRN__V1__START_TRAINER__INIT;
    start.ref = &ref;
    start.slot = job->m.ranks[rank].slot;
    start.token = spare ? job->m.spares.token : job->m.token;
    start.threads = (uint32_t)job->spec->workers.threads;
    start.device = (char *)job_device_word(job->spec->workers.device);
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_START;
    order.start = &start;
    core_post(core, conn, CORE_AT_ONCE, &order.base);
}

void core_send_end_of(struct core *core, struct core_conn *conn, Cairn__V1__TrainerRef *ref)
{
    Cairn__V1__EndTrainer end = CAIRN__V1__END_TRAINER__INIT;
    end.ref = ref;
    end.signal = SIGKILL;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_END;
    order.end = &end;
    core_post(core, conn, CORE_AT_ONCE, &order.base);
}

void core_send_end(struct core *core, struct core_job *job, uint32_t rank)
{
    struct core_conn *conn = agent_of(core, job->m.ranks[rank].node);
    Cairn__V1__TrainerRef ref = ref_of(job, rank);
    if (conn && !job->m.ranks[rank].gone)
        core_send_end_of(core, conn, &ref);
}

void core_hold_slot(struct core *core, struct core_job *job, uint32_t rank)
{
    const struct machine_rank *of = &job->m.ranks[rank];
    struct core_node *node = core_node_at(core, of->node);
    Cairn__V1__TrainerRef ref = ref_of(job, rank);
    if (!node)
        return;
    const int64_t ended_at = job->m.ending.ended_at;
    core_stray_add(core, node, &ref, of->slot, ended_at > 0 ? ended_at : core_now(core));
    if (node->conn) /* the rank counts as gone, and MACHINE_ACT_END leaves it out */
        core_send_end_of(core, node->conn, &ref);
}

enum status core_log_request(struct core *core, const char *node_name,
                             const Cairn__V1__LogRequest *request)
{
    struct core_conn *conn = agent_of(core, node_name);
    if (!conn)
        return ST_NOT_FOUND;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_LOG;
    order.log = (Cairn__V1__LogRequest *)request;
    core_post(core, conn, CORE_AT_ONCE, &order.base);
    return ST_OK;
}

void core_send_pace(struct core *core, struct core_conn *conn, bool welcome)
{
    Cairn__V1__AgentPace pace = CAIRN__V1__AGENT_PACE__INIT;
    Cairn__V1__AgentWelcome text = CAIRN__V1__AGENT_WELCOME__INIT;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    pace.beat_ms = (uint32_t)core->beat_ms;
    pace.spread_ms = core_tell_spread(core);
    text.coordinator_version = CAIRN_VERSION;
    text.pace = &pace;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_PACE;
    order.pace = &pace;
    if (welcome) {
        order.body_case = CAIRN__V1__AGENT_ORDER__BODY_WELCOME;
        order.welcome = &text;
    }
    core_post(core, conn, CORE_AT_ONCE, &order.base);
}

void core_send_probe(struct core *core, const struct core_node *who, const struct core_node *whom,
                     Cairn__V1__Probe *probe)
{
    probe->host = (char *)whom->host;
    probe->port = whom->probe_port;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_PROBE;
    order.probe = probe;
    core_post(core, who->conn, CORE_AT_ONCE, &order.base);
}

void core_ask_probe(struct core *core, const struct core_node *who, const struct core_node *whom,
                    uint64_t round)
{
    Cairn__V1__Probe probe = CAIRN__V1__PROBE__INIT;
    probe.id = round;
    core_send_probe(core, who, whom, &probe);
}

/* ---- to agents: copies in memory ---- */

static void send_forget(struct core *core, const struct core_node *node, const char *job)
{
    Cairn__V1__ForgetCopies forget = CAIRN__V1__FORGET_COPIES__INIT;
    forget.job = (char *)job;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_FORGET;
    order.forget = &forget;
    if (node->conn)
        core_post(core, node->conn, CORE_AT_ONCE, &order.base);
}

/* True if copies are made there, or a generation that comes may start from those that are there. */
static bool needs_copies(const struct core_job *job, const struct core_node *node)
{
    const struct machine *m = &job->m;
    if (m->state == MACHINE_PLACING || m->state == MACHINE_RECOVERING)
        return true;
    if (!machine_alive_rank(m, MACHINE_ALL_RANKS))
        return false;
    bool needs = !m->committed;
    for (uint32_t r = 0; r < m->count && !needs; r++)
        needs = strcmp(m->ranks[r].node, node->name) == 0;
    return needs;
}

void core_send_forget(struct core *core, const struct core_job *job)
{
    for (size_t i = 0; i < core->node_count; i++) {
        if (!needs_copies(job, core->nodes[i]))
            send_forget(core, core->nodes[i], job->id);
    }
}

void core_check_copies(struct core *core, struct core_node *node,
                       const Cairn__V1__AgentHello *hello)
{
    for (size_t i = 0; i < hello->n_copies; i++) {
        const struct core_job *job = core_job_at(core, hello->copies[i]);
        if (!job || (!core_is_kept(job) && !needs_copies(job, node)))
            send_forget(core, node, hello->copies[i]);
    }
}

/* ---- to trainers ---- */

void core_send_order(struct core *core, struct core_job *job, uint32_t rank, enum core_haste haste,
                     Cairn__V1__TrainerOrder__BodyCase body, void *message)
{
    struct core_conn *conn = job->ranks[rank].conn;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = body;
    order.over = message; /* a union of pointers */
    if (conn)
        core_post(core, conn, haste, &order.base);
}

void core_send_over_to(struct core *core, struct core_conn *conn, const char *reason)
{
    Cairn__V1__Over over = CAIRN__V1__OVER__INIT;
    over.reason = (char *)reason;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_OVER;
    order.over = &over;
    core_post(core, conn, CORE_AT_ONCE, &order.base);
    core_hang_up(core, conn, RPC_FAILED_PRECONDITION, reason);
}

void core_send_park(struct core *core, struct core_job *job, uint32_t rank)
{
    const struct machine_rank *of = &job->m.ranks[rank];
    Cairn__V1__Park park = CAIRN__V1__PARK__INIT;
    park.reason = job->m.reason;
    if (of->gone || of->ended)
        return;
    core_send_order(core, job, rank, CORE_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_PARK, &park);
    core_post_point(core, "coordinator.park", rank, job->m.generation, -1);
}

void core_send_regroup(struct core *core, struct core_job *job, uint32_t rank,
                       struct core_conn *conn)
{
    Cairn__V1__Regroup regroup = CAIRN__V1__REGROUP__INIT;
    regroup.generation = job->m.generation;
    regroup.rank = job->m.ranks[rank].number;
    regroup.token = job->m.token;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_REGROUP;
    order.regroup = &regroup;
    if (!conn)
        return;
    core_post_point(core, "coordinator.regroup", rank, job->m.generation, -1);
    core_post(core, conn, CORE_AT_ONCE, &order.base);
    core_post_point(core, "coordinator.regrouped", rank, job->m.generation, -1);
}

void core_send_over(struct core *core, struct core_job *job, uint32_t rank, const char *reason)
{
    const uint32_t first = rank == MACHINE_ALL_RANKS ? 0 : rank;
    const uint32_t end = rank == MACHINE_ALL_RANKS ? job->m.size : rank + 1;
    for (uint32_t i = first; i < end; i++) {
        struct core_conn *conn = job->ranks[i].conn;
        if (!conn)
            continue;
        core_detach(conn);
        core_send_over_to(core, conn, reason);
    }
}

/* ---- to trainers: assignments ---- */

/* Returns the address for the data plane: loopback if all ranks share a machine. */
static const char *host_of(struct core *core, const struct core_job *job, uint32_t rank)
{
    const struct machine *m = &job->m;
    bool one = true;
    for (uint32_t i = 1; i < m->size && one; i++)
        one = strcmp(m->ranks[i].node, m->ranks[0].node) == 0;
    const struct core_node *node = core_node_at(core, m->ranks[rank].node);
    return one || !node || !node->host[0] ? "127.0.0.1" : node->host;
}

static Cairn__V1__SaveAt save_at_of(uint64_t step, bool exit)
{
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT;
    at.step = step;
    at.then = exit ? CAIRN__V1__SAVE_AT__THEN__EXIT : CAIRN__V1__SAVE_AT__THEN__CONTINUE;
    return at;
}

/* Lists the announced saves; returns how many. */
static size_t list_saves(const struct machine *m, Cairn__V1__SaveAt *saves,
                         Cairn__V1__SaveAt **list)
{
    size_t count = 0;
    for (int i = 0; i < MACHINE_ANNOUNCED_MAX; i++) {
        if (m->due.announced[i].step == 0)
            continue;
        saves[count] = save_at_of(m->due.announced[i].step, m->due.announced[i].exit);
        list[count] = &saves[count];
        count++;
    }
    return count;
}

/* The places of a generation: the nodes of its ranks, the holder of each share in memory, and the
 * ranks that have the state. */
struct places {
    char **nodes; /* names: the machine's */
    uint32_t *holders;
    uint32_t *sources;
    size_t source_count;
    Cairn__V1__Stage *stage_list, **stages;
    size_t stage_count; /* 0: there is one, and all have it */
};

static void release_places(struct places *places)
{
    free(places->nodes);
    free(places->holders);
    free(places->sources);
    free(places->stage_list);
    free(places->stages); /* NOLINT(bugprone-multi-level-implicit-pointer-conversion) */
}

static enum status list_stages(const struct job_layout *layout, struct places *out)
{
    const uint32_t count = layout->stage_count;
    if (count <= 1)
        return ST_OK;
    out->stage_list = calloc(count, sizeof *out->stage_list);
    out->stages = calloc(count, sizeof *out->stages); /* NOLINT(bugprone-sizeof-expression) */
    if (!out->stage_list || !out->stages)
        return ST_NO_MEMORY;
    for (uint32_t s = 0; s < count; s++) {
        out->stages[s] = &out->stage_list[s];
        cairn__v1__stage__init(out->stages[s]);
        out->stages[s]->workers = layout->workers[s];
        out->stages[s]->first_node = layout->first_node[s];
    }
    out->stage_count = count;
    return ST_OK;
}

/* Takes the lanes that were dealt by speed. Between two generations seats that are given anew have
 * none: spares rehearse with any. */
static void deal_by_speed(const struct machine *m, struct job_layout *out)
{
    uint64_t dealt = 0;
    for (uint32_t i = 0; i < m->size; i++)
        dealt += m->ranks[i].lanes;
    for (uint32_t i = 0; i < m->size && dealt == m->config.lanes; i++)
        out->shares[i] = m->ranks[i].lanes;
}

enum status core_layout(const struct core_job *job, struct job_layout *out)
{
    const struct machine *m = &job->m;
    uint32_t widths[LIMIT_STAGES];
    const uint32_t stages = machine_widths(m, widths);
    enum status st = job_layout_with(job->spec, widths, stages, out);
    if (st == ST_OK && m->balance.by_speed)
        deal_by_speed(m, out);
    return st;
}

/* Finds the layout, once for all ranks of a generation. */
static bool find_layout(struct core_job *job)
{
    const uint32_t generation = job->m.balance.by_speed ? 0 : job->m.generation;
    if ((generation == 0 || job->layout_of != generation) && core_layout(job, job->layout) != ST_OK)
        return false;
    job->layout_of = generation;
    return true;
}

static enum status list_places(struct core_job *job, struct places *out)
{
    struct machine *m = &job->m;
    const uint32_t ranks = m->size;
    struct places places = {
        .nodes = calloc(ranks, sizeof *places.nodes), /* NOLINT(bugprone-sizeof-expression) */
        .holders = calloc(machine_memory_size(m), sizeof *places.holders),
        .sources = calloc(ranks, sizeof *places.sources),
    };
    if (!places.nodes || !places.holders || !places.sources || !find_layout(job) ||
        list_stages(job->layout, &places) != ST_OK) {
        release_places(&places);
        return ST_NO_MEMORY;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        places.nodes[i] = m->ranks[i].node;
        if (m->restore.live && m->ranks[i].source)
            places.sources[places.source_count++] = i;
    }
    for (uint32_t share = 0; share < machine_memory_size(m); share++)
        places.holders[share] = machine_memory_holder(m, share);
    *out = places;
    return ST_OK;
}

static Cairn__V1__MemoryRestore restore_of(const struct machine *m, const struct places *places)
{
    Cairn__V1__MemoryRestore memory = CAIRN__V1__MEMORY_RESTORE__INIT;
    memory.generation = m->restore.memory_generation;
    memory.step = m->restore.memory_step;
    memory.size = machine_memory_size(m);
    memory.holders = places->holders;
    memory.n_holders = machine_memory_size(m);
    return memory;
}

static Cairn__V1__LiveRestore live_of(const struct machine *m, const struct places *places)
{
    Cairn__V1__LiveRestore live = CAIRN__V1__LIVE_RESTORE__INIT;
    live.step = m->restore.step;
    live.sources = places->sources;
    live.n_sources = places->source_count;
    return live;
}

/* Fills in what all ranks get alike. */
static void fill_plan(struct core *core, struct core_job *job, const struct places *places,
                      Cairn__V1__Plan *plan)
{
    const struct machine *m = &job->m;
    plan->job = job->id;
    plan->size = m->size;
    plan->shares = job->layout->shares;
    plan->n_shares = m->size;
    plan->stages = places->stages;
    plan->n_stages = places->stage_count;
    plan->job_file = job->job_file;
    plan->store_mark = (char *)m->store_mark;
    plan->data_known = m->started_wall != 0;
    plan->nodes = places->nodes;
    plan->n_nodes = m->size;
    plan->heartbeat_ms = (uint32_t)core->beat_ms;
    plan->spread_ms = core_tell_spread(core);
}

/* Sends a spare a plan by which it makes ready for a seat like the last one. A checkpoint tells it
 * which algorithms a device's libraries chose; a spare loads no state. */
static void send_spare_plan(struct core *core, struct core_job *job, uint32_t rank)
{
    const struct machine_ckpt *newest = machine_newest(&job->m);
    char dir[LIMIT_PATH] = "";
    struct places places;
    if (newest && core_ckpt_dir(job, newest->step, newest->generation, dir, sizeof dir) != ST_OK)
        return;
    if (list_places(job, &places) != ST_OK)
        return;
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    fill_plan(core, job, &places, &plan);
    plan.spare = true;
    plan.restore = dir;
    plan.restore_step = newest ? newest->step : 0;
    plan.generation = job->m.ranks[rank].birth;
    plan.rank = job->m.size - 1;
    plan.host = (char *)host_of(core, job, rank);
    core_send_order(core, job, rank, CORE_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_PLAN, &plan);
    release_places(&places);
}

void core_send_assignment(struct core *core, struct core_job *job, uint32_t rank)
{
    if (machine_is_spare(&job->m, rank)) {
        send_spare_plan(core, job, rank);
        return;
    }
    struct machine *m = &job->m;
    const struct machine_ckpt *newest = m->restore.live ? machine_newest(m) : NULL;
    char dir[LIMIT_PATH] = "";
    if (m->restore.generation > 0 &&
        core_ckpt_dir(job, m->restore.step, m->restore.generation, dir, sizeof dir) != ST_OK)
        return;
    if (newest && core_ckpt_dir(job, newest->step, newest->generation, dir, sizeof dir) != ST_OK)
        return;
    struct places places;
    if (list_places(job, &places) != ST_OK)
        return;
    Cairn__V1__SaveAt saves[MACHINE_ANNOUNCED_MAX];
    Cairn__V1__SaveAt *save_list[MACHINE_ANNOUNCED_MAX];
    Cairn__V1__MemoryRestore memory = restore_of(m, &places);
    Cairn__V1__LiveRestore live = live_of(m, &places);
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    fill_plan(core, job, &places, &plan);
    plan.generation = m->generation;
    plan.rank = rank;
    plan.restore = dir;
    plan.restore_step = m->restore.step;
    if (m->restore.live) /* what is in the store: saves of later steps are still to be made */
        plan.restore_step = newest ? newest->step : 0;
    plan.live = m->restore.live ? &live : NULL;
    plan.memory = m->restore.memory_generation > 0 ? &memory : NULL;
    plan.skip = m->numeric.skip;
    plan.n_skip = m->numeric.skip_count;
    plan.n_saves = list_saves(m, saves, save_list);
    plan.saves = save_list;
    plan.host = (char *)host_of(core, job, rank);
    plan.metric_step = job->metric_step;
    core_post_point(core, "coordinator.plan", rank, m->generation, (int64_t)m->restore.step);
    core_send_order(core, job, rank, CORE_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_PLAN, &plan);
    release_places(&places);
}

/* ---- to trainers: saves ---- */

static void send_at(struct core *core, struct core_job *job, uint32_t rank, Cairn__V1__SaveAt at)
{
    core_send_order(core, job, rank, CORE_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT, &at);
}

void core_send_save_at(struct core *core, struct core_job *job, uint32_t rank, uint64_t step,
                       bool exit)
{
    send_at(core, job, rank, save_at_of(step, exit));
}

void core_send_stay(struct core *core, struct core_job *job, uint32_t rank, uint64_t step)
{
    Cairn__V1__SaveAt at = save_at_of(step, false);
    at.then = CAIRN__V1__SAVE_AT__THEN__STAY;
    send_at(core, job, rank, at);
}

void core_send_done(struct core *core, struct core_job *job, uint32_t rank, uint64_t step,
                    bool committed)
{
    Cairn__V1__SaveDone done = CAIRN__V1__SAVE_DONE__INIT;
    done.step = step;
    done.committed = committed;
    core_send_order(core, job, rank, CORE_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE, &done);
}

void core_send_folder(struct core *core, struct core_job *job, uint32_t rank,
                      const struct machine_action *act)
{
    char dir[LIMIT_PATH] = "", base_dir[LIMIT_PATH] = "";
    const struct machine_save *save = machine_find_save(&job->m, act->step, act->generation);
    bool based = act->there && save && save->base_generation > 0;
    if (act->there && core_ckpt_dir(job, act->step, act->generation, dir, sizeof dir) != ST_OK)
        return;
    if (based && core_ckpt_dir(job, save->base_step, save->base_generation, base_dir,
                               sizeof base_dir) != ST_OK)
        return;
    /* A rank that begins later than others saves beside training, as all do. */
    const enum core_haste haste = act->rank == MACHINE_ALL_RANKS ? CORE_AT_ONCE : CORE_WITH_GROUP;
    Cairn__V1__SaveFolder folder = CAIRN__V1__SAVE_FOLDER__INIT;
    folder.step = act->step;
    folder.dir = dir;
    folder.base_dir = base_dir;
    core_send_order(core, job, rank, haste, CAIRN__V1__TRAINER_ORDER__BODY_SAVE_FOLDER, &folder);
}

void core_send_read_back(struct core *core, struct core_job *job, uint32_t rank,
                         const struct machine_action *act)
{
    const struct machine_ckpt *ckpt = machine_find_ckpt(&job->m, act->step, act->generation);
    char dir[LIMIT_PATH] = "";
    if (!ckpt || core_ckpt_dir(job, act->step, act->generation, dir, sizeof dir) != ST_OK)
        return;
    Cairn__V1__ReadBack read_back = CAIRN__V1__READ_BACK__INIT;
    read_back.step = ckpt->step;
    read_back.generation = ckpt->generation;
    read_back.dir = dir;
    read_back.shards = ckpt->shards;
    read_back.bytes = ckpt->bytes;
    read_back.spread_ms = (uint64_t)machine_spread_ms(&job->m, ckpt);
    core_send_order(core, job, rank, CORE_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_READ_BACK,
                    &read_back);
}
