/*
 * Orders to agents and trainers. Nothing in here changes what is journalled: an order that is lost
 * with its connection is made again when the other side says hello.
 */
#include "server/coord/orders.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"
#include "server/coord/node_health.h"
#include "server/coord/outbox.h"

/* ---- to agents: trainers ---- */

/* Returns the agent's connection; NULL: the agent isn't there now, and gets what it misses when it
 * says hello. */
static struct coord_conn *agent_of(struct coord *coord, const char *node_name)
{
    struct coord_node *node = coord_node_at(coord, node_name);
    return node != NULL ? node->conn : NULL;
}

static Cairn__V1__TrainerRef ref_of(struct coord_job *job, uint32_t rank)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = job->id;
    ref.generation = job->m.ranks[rank].birth; /* what its agent knows it by */
    ref.rank = job->m.ranks[rank].number;
    return ref;
}

void coord_send_start(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    const bool spare = fsm_is_spare(&job->m, rank);
    if (!spare && job->m.ranks[rank].birth != job->m.generation) {
        coord_send_regroup(coord, job, rank, job->ranks[rank].conn);
        return;
    }
    struct coord_conn *conn = agent_of(coord, job->m.ranks[rank].node);
    if (conn == NULL)
        return;
    Cairn__V1__TrainerRef ref = ref_of(job, rank);
    Cairn__V1__StartTrainer start = CAIRN__V1__START_TRAINER__INIT;
    start.ref = &ref;
    start.slot = job->m.ranks[rank].slot;
    start.token = spare ? job->m.spares.token : job->m.token;
    start.threads = (uint32_t)job->spec->workers.threads;
    start.device = (char *)jobspec_device_word(job->spec->workers.device);
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_START;
    order.start = &start;
    coord_post(coord, conn, COORD_COMMIT_SOON, &order.base);
}

void coord_send_end_of(struct coord *coord, struct coord_conn *conn, Cairn__V1__TrainerRef *ref)
{
    Cairn__V1__EndTrainer end = CAIRN__V1__END_TRAINER__INIT;
    end.ref = ref;
    end.signal = SIGKILL;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_END;
    order.end = &end;
    coord_post(coord, conn, COORD_COMMIT_SOON, &order.base);
}

void coord_send_end(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    struct coord_conn *conn = agent_of(coord, job->m.ranks[rank].node);
    Cairn__V1__TrainerRef ref = ref_of(job, rank);
    if (conn != NULL && !job->m.ranks[rank].gone)
        coord_send_end_of(coord, conn, &ref);
}

void coord_hold_slot(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    const struct fsm_rank *of = &job->m.ranks[rank];
    struct coord_node *node = coord_node_at(coord, of->node);
    Cairn__V1__TrainerRef ref = ref_of(job, rank);
    if (node == NULL)
        return;
    const int64_t ended_at = job->m.ending.ended_at;
    coord_orphan_add(coord, node, &ref, of->slot, ended_at > 0 ? ended_at : coord_now(coord));
    if (node->conn != NULL) /* the rank counts as gone, and FSM_ACT_END leaves it out */
        coord_send_end_of(coord, node->conn, &ref);
}

enum status coord_log_request(struct coord *coord, const char *node_name,
                              const Cairn__V1__LogRequest *request)
{
    struct coord_conn *conn = agent_of(coord, node_name);
    if (conn == NULL)
        return ST_NOT_FOUND;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_LOG;
    order.log = (Cairn__V1__LogRequest *)request;
    coord_post(coord, conn, COORD_COMMIT_SOON, &order.base);
    return ST_OK;
}

void coord_send_beat_interval(struct coord *coord, struct coord_conn *conn, bool welcome)
{
    Cairn__V1__AgentIntervals intervals = CAIRN__V1__AGENT_INTERVALS__INIT;
    Cairn__V1__AgentWelcome text = CAIRN__V1__AGENT_WELCOME__INIT;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    intervals.beat_ms = (uint32_t)coord->beat_ms;
    intervals.spread_ms = coord_update_spread(coord);
    text.coordinator_version = CAIRN_VERSION;
    text.intervals = &intervals;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_INTERVALS;
    order.intervals = &intervals;
    if (welcome) {
        order.body_case = CAIRN__V1__AGENT_ORDER__BODY_WELCOME;
        order.welcome = &text;
    }
    coord_post(coord, conn, COORD_COMMIT_SOON, &order.base);
}

void coord_send_probe(struct coord *coord, const struct coord_node *who,
                      const struct coord_node *whom, Cairn__V1__Probe *probe)
{
    probe->host = (char *)whom->host;
    probe->port = whom->probe_port;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_PROBE;
    order.probe = probe;
    coord_post(coord, who->conn, COORD_COMMIT_SOON, &order.base);
}

void coord_ask_probe(struct coord *coord, const struct coord_node *who,
                     const struct coord_node *whom, uint64_t round)
{
    Cairn__V1__Probe probe = CAIRN__V1__PROBE__INIT;
    probe.id = round;
    coord_send_probe(coord, who, whom, &probe);
}

/* ---- to agents: copies in memory ---- */

static void send_forget(struct coord *coord, const struct coord_node *node, const char *job)
{
    Cairn__V1__ForgetCopies forget = CAIRN__V1__FORGET_COPIES__INIT;
    forget.job = (char *)job;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_FORGET;
    order.forget = &forget;
    if (node->conn != NULL)
        coord_post(coord, node->conn, COORD_COMMIT_SOON, &order.base);
}

/* True if copies are made there, or a generation that comes may start from those that are there. */
static bool needs_copies(const struct coord_job *job, const struct coord_node *node)
{
    const struct fsm *m = &job->m;
    if (m->state == FSM_PLACING || m->state == FSM_RECOVERING)
        return true;
    if (!fsm_alive_rank(m, FSM_ALL_RANKS))
        return false;
    bool needs = !m->committed;
    for (uint32_t r = 0; r < m->count && !needs; r++)
        needs = strcmp(m->ranks[r].node, node->name) == 0;
    return needs;
}

void coord_send_forget(struct coord *coord, const struct coord_job *job)
{
    for (size_t i = 0; i < coord->node_count; i++) {
        if (!needs_copies(job, coord->nodes[i]))
            send_forget(coord, coord->nodes[i], job->id);
    }
}

void coord_check_copies(struct coord *coord, struct coord_node *node,
                        const Cairn__V1__AgentHello *hello)
{
    for (size_t i = 0; i < hello->n_copies; i++) {
        const struct coord_job *job = coord_job_at(coord, hello->copies[i]);
        if (job == NULL || (!coord_is_unreadable(job) && !needs_copies(job, node)))
            send_forget(coord, node, hello->copies[i]);
    }
}

/* ---- to trainers ---- */

void coord_send_order(struct coord *coord, struct coord_job *job, uint32_t rank,
                      enum coord_urgency urgency, Cairn__V1__TrainerOrder__BodyCase body,
                      void *message)
{
    struct coord_conn *conn = job->ranks[rank].conn;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = body;
    order.over = message; /* a union of pointers */
    if (conn != NULL)
        coord_post(coord, conn, urgency, &order.base);
}

void coord_send_over_to(struct coord *coord, struct coord_conn *conn, const char *reason)
{
    Cairn__V1__Over over = CAIRN__V1__OVER__INIT;
    over.reason = (char *)reason;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_OVER;
    order.over = &over;
    coord_post(coord, conn, COORD_COMMIT_SOON, &order.base);
    coord_hang_up(coord, conn, RPC_FAILED_PRECONDITION, reason);
}

void coord_send_park(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    const struct fsm_rank *of = &job->m.ranks[rank];
    Cairn__V1__Park park = CAIRN__V1__PARK__INIT;
    park.reason = job->m.reason;
    park.kind = (Cairn__V1__FaultKind)job->m.cause.kind; /* of the same numbers */
    if (of->gone || of->ended)
        return;
    coord_send_order(coord, job, rank, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_PARK,
                     &park);
    coord_post_point(coord, "coordinator.park", rank, job->m.generation, -1);
}

void coord_send_regroup(struct coord *coord, struct coord_job *job, uint32_t rank,
                        struct coord_conn *conn)
{
    Cairn__V1__Regroup regroup = CAIRN__V1__REGROUP__INIT;
    regroup.generation = job->m.generation;
    regroup.rank = job->m.ranks[rank].number;
    regroup.token = job->m.token;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_REGROUP;
    order.regroup = &regroup;
    if (conn == NULL)
        return;
    coord_post_point(coord, "coordinator.regroup", rank, job->m.generation, -1);
    coord_post(coord, conn, COORD_COMMIT_SOON, &order.base);
    coord_post_point(coord, "coordinator.regrouped", rank, job->m.generation, -1);
}

void coord_send_over(struct coord *coord, struct coord_job *job, uint32_t rank, const char *reason)
{
    const uint32_t first = rank == FSM_ALL_RANKS ? 0 : rank;
    const uint32_t end = rank == FSM_ALL_RANKS ? job->m.size : rank + 1;
    for (uint32_t i = first; i < end; i++) {
        struct coord_conn *conn = job->ranks[i].conn;
        if (conn == NULL)
            continue;
        coord_detach(conn);
        coord_send_over_to(coord, conn, reason);
    }
}

/* ---- to trainers: assignments ---- */

/* Returns the address for the data plane: loopback if all ranks share a machine. */
static const char *host_of(struct coord *coord, const struct coord_job *job, uint32_t rank)
{
    const struct fsm *m = &job->m;
    bool one = true;
    for (uint32_t i = 1; i < m->size && one; i++)
        one = strcmp(m->ranks[i].node, m->ranks[0].node) == 0;
    const struct coord_node *node = coord_node_at(coord, m->ranks[rank].node);
    return one || node == NULL || !node->host[0] ? "127.0.0.1" : node->host;
}

static Cairn__V1__SaveAt save_at_of(uint64_t step, bool exit)
{
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT;
    at.step = step;
    at.then = exit ? CAIRN__V1__SAVE_AT__THEN__EXIT : CAIRN__V1__SAVE_AT__THEN__CONTINUE;
    return at;
}

/* Lists the announced saves; returns how many. */
static size_t list_saves(const struct fsm *m, Cairn__V1__SaveAt *saves, Cairn__V1__SaveAt **list)
{
    size_t count = 0;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
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

static enum status list_stages(const struct jobspec_layout *layout, struct places *out)
{
    const uint32_t count = layout->stage_count;
    if (count <= 1)
        return ST_OK;
    out->stage_list = calloc(count, sizeof(*out->stage_list));
    out->stages = calloc(count, sizeof(*out->stages)); /* NOLINT(bugprone-sizeof-expression) */
    if (out->stage_list == NULL || out->stages == NULL)
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
static void deal_by_speed(const struct fsm *m, struct jobspec_layout *out)
{
    uint64_t dealt = 0;
    for (uint32_t i = 0; i < m->size; i++)
        dealt += m->ranks[i].lanes;
    for (uint32_t i = 0; i < m->size && dealt == m->config.lanes; i++)
        out->shares[i] = m->ranks[i].lanes;
}

enum status coord_layout(const struct coord_job *job, struct jobspec_layout *out)
{
    const struct fsm *m = &job->m;
    uint32_t widths[LIMIT_STAGES];
    const uint32_t stages = fsm_widths(m, widths);
    enum status st = jobspec_layout_with(job->spec, widths, stages, out);
    if (st == ST_OK && m->balance.by_speed)
        deal_by_speed(m, out);
    return st;
}

/* Finds the layout, once for all ranks of a generation. */
static bool find_layout(struct coord_job *job)
{
    const uint32_t generation = job->m.balance.by_speed ? 0 : job->m.generation;
    if ((generation == 0 || job->layout_of != generation) &&
        coord_layout(job, job->layout) != ST_OK)
        return false;
    job->layout_of = generation;
    return true;
}

static enum status list_places(struct coord_job *job, struct places *out)
{
    struct fsm *m = &job->m;
    const uint32_t ranks = m->size;
    struct places places = {
        .nodes = calloc(ranks, sizeof(*places.nodes)), /* NOLINT(bugprone-sizeof-expression) */
        .holders = calloc(fsm_memory_size(m), sizeof(*places.holders)),
        .sources = calloc(ranks, sizeof(*places.sources)),
    };
    if (places.nodes == NULL || places.holders == NULL || places.sources == NULL ||
        !find_layout(job) || list_stages(job->layout, &places) != ST_OK) {
        release_places(&places);
        return ST_NO_MEMORY;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        places.nodes[i] = m->ranks[i].node;
        if (m->restore.live && m->ranks[i].source)
            places.sources[places.source_count++] = i;
    }
    for (uint32_t share = 0; share < fsm_memory_size(m); share++)
        places.holders[share] = fsm_memory_holder(m, share);
    *out = places;
    return ST_OK;
}

static Cairn__V1__MemoryRestore restore_of(const struct fsm *m, const struct places *places)
{
    Cairn__V1__MemoryRestore memory = CAIRN__V1__MEMORY_RESTORE__INIT;
    memory.generation = m->restore.memory_generation;
    memory.step = m->restore.memory_step;
    memory.size = fsm_memory_size(m);
    memory.holders = places->holders;
    memory.n_holders = fsm_memory_size(m);
    return memory;
}

static Cairn__V1__LiveRestore live_of(const struct fsm *m, const struct places *places)
{
    Cairn__V1__LiveRestore live = CAIRN__V1__LIVE_RESTORE__INIT;
    live.step = m->restore.step;
    live.sources = places->sources;
    live.n_sources = places->source_count;
    return live;
}

/* Fills in what all ranks get alike. */
static void fill_plan(struct coord *coord, struct coord_job *job, const struct places *places,
                      Cairn__V1__Plan *plan)
{
    const struct fsm *m = &job->m;
    plan->job = job->id;
    plan->size = m->size;
    plan->shares = job->layout->shares;
    plan->n_shares = m->size;
    plan->stages = places->stages;
    plan->n_stages = places->stage_count;
    plan->job_file = job->job_file;
    plan->store_id = (char *)m->store_id;
    plan->data_known = m->started_wall != 0;
    plan->nodes = places->nodes;
    plan->n_nodes = m->size;
    plan->heartbeat_ms = (uint32_t)coord->beat_ms;
    plan->spread_ms = coord_update_spread(coord);
}

/* Sends a spare a plan by which it makes ready for a seat like the last one. A checkpoint tells it
 * which algorithms a device's libraries chose; a spare loads no state. */
static void send_spare_plan(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    const struct fsm_ckpt *newest = fsm_newest(&job->m);
    char dir[LIMIT_PATH] = "";
    struct places places;
    if (newest != NULL &&
        coord_ckpt_dir(job, newest->step, newest->generation, dir, sizeof(dir)) != ST_OK)
        return;
    if (list_places(job, &places) != ST_OK)
        return;
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    fill_plan(coord, job, &places, &plan);
    plan.spare = true;
    plan.restore = dir;
    plan.restore_step = newest != NULL ? newest->step : 0;
    plan.generation = job->m.ranks[rank].birth;
    plan.rank = job->m.size - 1;
    plan.host = (char *)host_of(coord, job, rank);
    coord_send_order(coord, job, rank, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_PLAN,
                     &plan);
    release_places(&places);
}

void coord_send_assignment(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    if (fsm_is_spare(&job->m, rank)) {
        send_spare_plan(coord, job, rank);
        return;
    }
    struct fsm *m = &job->m;
    const struct fsm_ckpt *newest = m->restore.live ? fsm_newest(m) : NULL;
    char dir[LIMIT_PATH] = "";
    if (m->restore.generation > 0 &&
        coord_ckpt_dir(job, m->restore.step, m->restore.generation, dir, sizeof(dir)) != ST_OK)
        return;
    if (newest != NULL &&
        coord_ckpt_dir(job, newest->step, newest->generation, dir, sizeof(dir)) != ST_OK)
        return;
    struct places places;
    if (list_places(job, &places) != ST_OK)
        return;
    Cairn__V1__SaveAt saves[FSM_ANNOUNCED_MAX];
    Cairn__V1__SaveAt *save_list[FSM_ANNOUNCED_MAX];
    Cairn__V1__MemoryRestore memory = restore_of(m, &places);
    Cairn__V1__LiveRestore live = live_of(m, &places);
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    fill_plan(coord, job, &places, &plan);
    plan.generation = m->generation;
    plan.rank = rank;
    plan.restore = dir;
    plan.restore_step = m->restore.step;
    if (m->restore.live) /* what is in the store: saves of later steps are still to be made */
        plan.restore_step = newest != NULL ? newest->step : 0;
    plan.live = m->restore.live ? &live : NULL;
    plan.memory = m->restore.memory_generation > 0 ? &memory : NULL;
    plan.skip = m->numeric.skip;
    plan.n_skip = m->numeric.skip_count;
    plan.n_saves = list_saves(m, saves, save_list);
    plan.saves = save_list;
    plan.host = (char *)host_of(coord, job, rank);
    plan.metric_step = job->metric_step;
    coord_post_point(coord, "coordinator.plan", rank, m->generation, (int64_t)m->restore.step);
    coord_send_order(coord, job, rank, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_PLAN,
                     &plan);
    release_places(&places);
}

/* ---- to trainers: saves ---- */

static void send_at(struct coord *coord, struct coord_job *job, uint32_t rank, Cairn__V1__SaveAt at)
{
    coord_send_order(coord, job, rank, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT,
                     &at);
}

void coord_send_save_at(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step,
                        bool exit)
{
    send_at(coord, job, rank, save_at_of(step, exit));
}

void coord_send_stay(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step)
{
    Cairn__V1__SaveAt at = save_at_of(step, false);
    at.then = CAIRN__V1__SAVE_AT__THEN__STAY;
    send_at(coord, job, rank, at);
}

void coord_send_done(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step,
                     bool committed)
{
    Cairn__V1__SaveDone done = CAIRN__V1__SAVE_DONE__INIT;
    done.step = step;
    done.committed = committed;
    coord_send_order(coord, job, rank, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE,
                     &done);
}

void coord_send_folder(struct coord *coord, struct coord_job *job, uint32_t rank,
                       const struct fsm_action *act)
{
    char dir[LIMIT_PATH] = "", base_dir[LIMIT_PATH] = "";
    const struct fsm_save *save = fsm_find_save(&job->m, act->step, act->generation);
    bool based = act->there && save != NULL && save->base_generation > 0;
    if (act->there && coord_ckpt_dir(job, act->step, act->generation, dir, sizeof(dir)) != ST_OK)
        return;
    if (based && coord_ckpt_dir(job, save->base_step, save->base_generation, base_dir,
                                sizeof(base_dir)) != ST_OK)
        return;
    /* A rank that begins later than others saves beside training, as all do. */
    const enum coord_urgency urgency =
        act->rank == FSM_ALL_RANKS ? COORD_COMMIT_SOON : COORD_WITH_GROUP;
    Cairn__V1__SaveFolder folder = CAIRN__V1__SAVE_FOLDER__INIT;
    folder.step = act->step;
    folder.dir = dir;
    folder.base_dir = base_dir;
    coord_send_order(coord, job, rank, urgency, CAIRN__V1__TRAINER_ORDER__BODY_SAVE_FOLDER,
                     &folder);
}

void coord_send_read_back(struct coord *coord, struct coord_job *job, uint32_t rank,
                          const struct fsm_action *act)
{
    const struct fsm_ckpt *ckpt = fsm_find_ckpt(&job->m, act->step, act->generation);
    char dir[LIMIT_PATH] = "";
    if (ckpt == NULL || coord_ckpt_dir(job, act->step, act->generation, dir, sizeof(dir)) != ST_OK)
        return;
    Cairn__V1__ReadBack read_back = CAIRN__V1__READ_BACK__INIT;
    read_back.step = ckpt->step;
    read_back.generation = ckpt->generation;
    read_back.dir = dir;
    read_back.shards = ckpt->shards;
    read_back.bytes = ckpt->bytes;
    read_back.spread_ms = (uint64_t)fsm_spread_ms(&job->m, ckpt);
    coord_send_order(coord, job, rank, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_READ_BACK,
                     &read_back);
}
