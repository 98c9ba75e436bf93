/* The requests of people to the coordinator: new jobs, changes to jobs, lists, and going down. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/job_id.h"
#include "server/coord/apply.h"
#include "server/coord/base.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"
#include "server/coord/leaving.h"
#include "server/coord/load.h"
#include "server/coord/outbox.h"
#include "server/coord/queue/queue.h"
#include "server/coord/state.h"
#include "server/jobfsm/persist.h"

#define ID_EPOCH_MS 1704067200000 /* 2024-01-01 */

/* ---- submission ---- */

/* "j-" and 10 base32 digits: 41 bits of ms, 9 of chance; later jobs sort later. */
static void make_id(int64_t seq, char out[16])
{
    static const char digits[] = JOB_ID_DIGITS;
    uint64_t bits = (uint64_t)seq;
    char text[11];
    for (int i = 9; i >= 0; i--) {
        text[i] = digits[bits & 31];
        bits >>= 5;
    }
    text[10] = '\0';
    (void)snprintf(out, 16, "j-%s", text);
}

/* Order of submission and id in one: greater than all before, whatever the clock does. */
static int64_t next_seq(struct coord *coord)
{
    uint16_t chance = 0;
    coord->options.random(coord->options.random_arg, &chance, sizeof(chance));
    int64_t ms = clock_wall_ms(coord->options.clock) - ID_EPOCH_MS;
    int64_t seq =
        (int64_t)(((uint64_t)(ms > 0 ? ms : 0) << 9 | (chance & 511)) & ((1ull << 50) - 1));
    return seq > coord->seq_last ? seq : coord->seq_last + 1;
}

static enum status could_run(struct coord *coord, const struct jobspec *spec, struct reason *reason)
{
    const char *device = jobspec_device_word(spec->workers.device);
    bool known = false;
    uint32_t weak = 0; /* GPUs of too low a capability */
    for (size_t i = 0; i < coord->node_count; i++) {
        const struct coord_node *node = coord->nodes[i];
        known = known || node->known;
        weak += node->known ? node->gpu_count : 0;
        if (node->known && coord_node_has(node, device))
            return ST_OK;
    }
    if (!known)
        return ST_OK; /* nodes may come */
    if (weak > 0 && strcmp(device, COORD_GPU_DEVICE) == 0) {
        reason_set(reason,
                   "the job needs GPUs of compute capability %d.%d or higher, and none of the %u "
                   "registered ones has it; start an agent on a machine with newer ones, or set "
                   "workers.device: cpu",
                   LIMIT_CUDA_CAPABILITY / 10, LIMIT_CUDA_CAPABILITY % 10, weak);
        return ST_REFUSED;
    }
    reason_set(reason,
               "the job needs device '%s' and no registered node has it; start an agent on one "
               "that does, or set workers.device",
               device);
    return ST_REFUSED;
}

/* Each process of a job that isn't over may have a session open. changed: it is to have so many
 * workers; NULL: a new job is. */
static enum status could_connect(const struct coord *coord, const struct coord_job *changed,
                                 int64_t workers, int64_t spares, struct reason *reason)
{
    uint64_t needed = COORD_DESCRIPTORS_OWN + coord->node_count + (uint64_t)(workers + spares);
    for (size_t i = 0; i < coord->live.count; i++) {
        const struct coord_job *job = coord->live.list[i].value;
        if (job != changed)
            needed += job->m.config.ranks + (uint64_t)job->spec->workers.spares;
    }
    if (coord->options.descriptors == 0 || needed <= coord->options.descriptors)
        return ST_OK;
    reason_set(
        reason,
        "with this job's %lld workers%s the coordinator would need %llu open files, and it may "
        "have %llu: raise its limit (ulimit -n, or LimitNOFILE= of its service) and start it "
        "again, or %s",
        (long long)workers + (long long)spares, spares > 0 ? " and spares" : "",
        (unsigned long long)needed, (unsigned long long)coord->options.descriptors,
        changed != NULL ? "ask for fewer workers" : "submit a smaller job");
    return ST_REFUSED;
}

static enum status new_job(struct coord *coord, const struct jobspec *spec, const char *job_file,
                           struct coord_job **out)
{
    const size_t bytes = jobspec_bytes(spec);
    struct jobspec *copy = malloc(bytes);
    if (copy == NULL)
        return ST_NO_MEMORY;
    memcpy(copy, spec, bytes);
    char id[16];
    struct journal_job row = {
        .id = id, .name = spec->name, .seq = next_seq(coord), .job_file = job_file, .pins = ""
    };
    make_id(row.seq, id);
    return coord_job_new(coord, &row, copy, out);
}

static enum status record_job(struct coord *coord, const struct coord_job *job, const char *key,
                              const char *by)
{
    struct journal *journal = coord->options.journal;
    int64_t wall = clock_wall_ms(coord->options.clock);
    auto_buf struct buf state;
    buf_init(&state, COORD_STATE_BYTES_MAX);
    enum status st = fsm_encode(&job->m, &state);
    if (st == ST_OK)
        st = coord_begin(coord);
    struct journal_job row = { .id = job->id,
                               .name = job->name,
                               .seq = job->seq,
                               .job_file = job->job_file,
                               .pins = "",
                               .state = state.data };
    if (st == ST_OK)
        st = journal_put_job(journal, &row);
    struct reason note;
    reason_set(&note, "%s%s%s", job->name, by != NULL ? ", by " : "", by != NULL ? by : "");
    struct journal_event event = { .wall_ms = wall, .kind = "submitted", .message = note.text };
    if (st == ST_OK)
        st = journal_put_event(journal, job->id, &event);
    if (st == ST_OK && key[0])
        st = journal_put_key(journal, key, job->id, wall);
    return st;
}

static enum status forget_job(struct coord *coord, const char *id, const char *why)
{
    enum status st = coord_begin(coord);
    if (st == ST_OK)
        st = journal_forget_job(coord->options.journal, id);
    if (st != ST_OK) {
        coord_fail(coord, st, "forgetting a job");
        return st;
    }
    coord->stored--;
    coord->tidy_at = coord_now(coord); /* its rows, some at a time */
    struct coord_job *job = coord_job_at(coord, id);
    if (job != NULL)
        coord_drop_job(coord, job, why);
    return ST_OK;
}

/* Jobs that ended long ago make room; their checkpoints stay where they are. */
static enum status make_space(struct coord *coord)
{
    if (coord->live.count >= LIMIT_JOBS)
        return ST_FULL;
    if (coord->stored < COORD_JOBS_MAX)
        return ST_OK;
    struct journal *journal = coord->options.journal;
    char id[16];
    const enum status st = journal_oldest_ended(journal, id);
    if (st == ST_OK)
        return forget_job(coord, id, "the job was forgotten");
    if (st != ST_NOT_FOUND)
        coord_fail(coord, st, "forgetting an old job");
    return st == ST_NOT_FOUND ? ST_FULL : st;
}

enum status coord_submit(struct coord *coord, const struct jobspec *spec, const char *job_file,
                         const char *key, const char *by, struct coord_job **out,
                         struct reason *reason)
{
    char known[32];
    if (coord->failed != ST_OK)
        return coord->failed;
    enum status st = ST_NOT_FOUND;
    if (key[0])
        st = journal_get_key(coord->options.journal, key, known, sizeof(known));
    if (st == ST_OK)
        st = coord_find(coord, known, out);
    if (st != ST_NOT_FOUND) /* the job is there, or nobody can tell: then none is made */
        return st;
    if (coord->full) {
        reason_set(reason, "%s", COORD_JOURNAL_FULL);
        return ST_REFUSED;
    }
    st = could_run(coord, spec, reason);
    if (st == ST_OK)
        st = coord_could_write(coord, spec, reason);
    if (st == ST_OK)
        st = could_connect(coord, NULL, spec->workers.count, spec->workers.spares, reason);
    if (st == ST_OK)
        st = make_space(coord);
    struct coord_job *job;
    if (st == ST_OK)
        st = new_job(coord, spec, job_file, &job);
    if (st != ST_OK)
        return st;
    st = record_job(coord, job, key, by);
    if (st == ST_OK)
        st = coord_add_job(coord, job);
    if (st != ST_OK) { /* its rows may be in the group: nothing of that is committed */
        coord_fail(coord, st, "taking a new job");
        coord_job_free(job);
        return st;
    }
    job->m.dirty = false;
    coord->stored++;
    coord->schedule_needed = true;
    coord_schedule(coord);
    *out = job;
    return coord->failed;
}

/* ---- changes ---- */

enum status coord_ask(struct coord *coord, struct coord_job *job, enum fsm_event_kind kind,
                      const char *by)
{
    struct fsm_event event = coord_event(coord, kind);
    event.by = by;
    enum status st = coord_apply(coord, job, &event);
    coord_schedule(coord);
    return st;
}

void coord_remember(struct coord *coord, const char *key, const char *what)
{
    struct journal *journal = coord->options.journal;
    if (!key[0] || strlen(key) > 200 || coord->failed != ST_OK)
        return;
    enum status st = coord_begin(coord);
    if (st == ST_OK)
        st = journal_put_key(journal, key, what, clock_wall_ms(coord->options.clock));
    if (st != ST_OK)
        coord_fail(coord, st, "journalling a call's key");
}

/* True if a call with that key waits for a save already; out: for which. */
static bool is_awaited(struct coord *coord, const struct coord_job *job, const char *key,
                       struct fsm_awaited *out)
{
    char what[96];
    size_t size = strlen(job->id);
    if (!key[0] || journal_get_key(coord->options.journal, key, what, sizeof(what)) != ST_OK ||
        strncmp(what, job->id, size) != 0 || what[size] != ' ')
        return false;
    char *at = what + size;
    out->step = strtoull(at, &at, 10);
    out->generation = (uint32_t)strtoul(at, &at, 10);
    out->refused = strtoull(at, &at, 10);
    const enum fsm_outcome outcome = fsm_save_outcome(&job->m, out);
    return outcome == FSM_OUTCOME_OPEN || outcome == FSM_OUTCOME_SAVED;
}

enum status coord_save(struct coord *coord, struct coord_job *job, const char *key, const char *by,
                       struct fsm_awaited *out)
{
    if (job->m.config.saves_nothing)
        return ST_REFUSED;
    if (is_awaited(coord, job, key, out))
        return ST_OK;
    *out = fsm_await_save(&job->m);
    if (job->m.state == FSM_RUNNING) {
        enum status st = coord_ask(coord, job, FSM_EV_SAVE, by);
        if (st != ST_OK)
            return st;
    } else if (job->m.state != FSM_SAVING && (out->generation > 0 || fsm_newest(&job->m) == NULL)) {
        return ST_REFUSED;
    }
    char what[96];
    (void)snprintf(what, sizeof(what), "%s %llu %u %llu", job->id, (unsigned long long)out->step,
                   out->generation, (unsigned long long)out->refused);
    coord_remember(coord, key, what);
    return ST_OK;
}

enum status coord_remove_ended(struct coord *coord, struct coord_job *job, const char *by,
                               struct reason *reason)
{
    if (!fsm_state_final(job->m.state)) {
        reason_set(reason, "it is %s: 'cairn kill' ends it", fsm_state_name(job->m.state));
        return ST_REFUSED;
    }
    if (job->dirty || job->tasks > 0 || job->ended == JOURNAL_LIVE || job->ended == JOURNAL_LEFT) {
        reason_set(reason, "something of it is still being done in its checkpoint store: try again "
                           "in a while");
        return ST_REFUSED;
    }
    LOG_INFO(coord->options.log, "%s (%s) is removed, asked by %s", job->name, job->id,
             by != NULL ? by : "the user");
    return forget_job(coord, job->id, "the job was removed");
}

enum status coord_remove_ckpt(struct coord *coord, struct coord_job *job, uint64_t step,
                              const char *by)
{
    struct fsm_event event = coord_event(coord, FSM_EV_REMOVE_CKPT);
    event.by = by;
    event.remove_ckpt.step = step;
    enum status st = coord_apply(coord, job, &event);
    coord_schedule(coord);
    return st;
}

/* Returns whether a job can have so many workers, by what its file says. */
static enum status could_set(const struct jobspec *spec, uint32_t count, struct reason *reason)
{
    const bool command = jobspec_is_command(spec); /* as if each worker were a lane */
    const long long lanes = command ? spec->workers.count : spec->train.lanes;
    const long long spares = spec->workers.spares;
    /* A min that is the count is that of whatever count there is (struct fsm_config). */
    const long long min = spec->workers.min < spec->workers.count ? spec->workers.min : 1;
    const unsigned stages = command ? 1 : spec->parallel.pipeline.stages;
    if (command && count > lanes) {
        reason_set(reason, "%u workers are more than the workers.count that it began with: %lld",
                   count, lanes);
    } else if (count > lanes * stages && stages > 1) {
        reason_set(
            reason,
            "%u workers in %u stages can't share %lld lanes: each carries at least one of its "
            "stage's",
            count, stages, lanes);
    } else if (count > lanes * stages) {
        reason_set(reason, "%u workers can't share %lld lanes: each carries at least one", count,
                   lanes);
    } else if (count < min) {
        reason_set(reason,
                   "workers.count: %u is less than workers.min: %lld; a job that is submitted with "
                   "a smaller workers.min can go on with fewer",
                   count, min);
    } else if (count + spares > LIMIT_RANKS) {
        reason_set(reason, "%u workers and %lld spares are more than the %d processes of a job",
                   count, spares, LIMIT_RANKS);
    } else if (count != spec->workers.count && spec->parallel.reduction == JOBSPEC_REDUCTION_FAST) {
        reason_set(reason, "with parallel.reduction: fast the job's state depends on the number of "
                           "workers, so that it stays");
    } else {
        return ST_OK;
    }
    return ST_REFUSED;
}

/* Shares that the file gives, for its own number of workers, can't be those of another number. */
static bool shares_change(const struct jobspec *spec, uint32_t count)
{
    return count != spec->workers.count && !jobspec_shares_even(spec);
}

enum status coord_set_workers(struct coord *coord, struct coord_job *job, uint32_t count,
                              const char *by, struct reason *reason)
{
    struct fsm_event event = coord_event(coord, FSM_EV_SET);
    event.by = by;
    event.set.workers = count;
    event.set.evens = shares_change(job->spec, count);
    enum status st = ST_OK;
    if (!fsm_state_final(job->m.state))
        st = could_set(job->spec, count, reason);
    if (st == ST_OK)
        st = could_connect(coord, job, count, job->spec->workers.spares, reason);
    if (st != ST_OK)
        return st;
    st = coord_apply(coord, job, &event);
    if (st == ST_REFUSED)
        reason_set(reason, "it is %s", fsm_state_name(job->m.state));
    coord_schedule(coord);
    return st;
}

enum status coord_check_ckpt(struct coord *coord, struct coord_job *job, uint64_t step,
                             uint32_t generation)
{
    struct fsm_event event = coord_event(coord, FSM_EV_CHECK_CKPT);
    event.check_ckpt.step = step;
    event.check_ckpt.generation = generation;
    enum status st = coord_apply(coord, job, &event);
    coord_schedule(coord);
    return st;
}

static bool is_under_way(const struct fsm *m)
{
    return !fsm_state_final(m->state) && m->state != FSM_QUEUED && m->state != FSM_PAUSED;
}

void coord_drain(struct coord *coord, bool now, int64_t hold_ms, const char *by)
{
    if (coord->draining_until == 0) {
        coord->drain_wall = clock_wall_ms(coord->options.clock);
        for (size_t i = 0; i < coord->job_count; i++)
            coord->jobs[i]->drained = is_under_way(&coord->jobs[i]->m);
    }
    coord->draining_until = coord_now(coord) + hold_ms + COORD_DRAIN_FORGET_MS;
    for (size_t i = coord->live.count; i > 0; i--) { /* whoever is over by this leaves the list */
        struct coord_job *job = coord->live.list[i - 1].value;
        struct fsm_event event = coord_event(coord, now ? FSM_EV_DRAIN_NOW : FSM_EV_DRAIN);
        event.by = by;
        (void)coord_apply(coord, job, &event);
    }
    coord_queue_moved(coord); /* all of it waits for the coordinator now */
    coord_schedule(coord);
}

void coord_drain_end(struct coord *coord)
{
    coord->draining_until = 0;
    coord_queue_moved(coord);
    coord->schedule_needed = true;
}

size_t coord_draining(struct coord *coord)
{
    size_t count = 0;
    for (size_t i = 0; i < coord->live.count; i++) {
        const struct coord_job *job = coord->live.list[i].value;
        count += !job->unreadable[0] &&
                 (job->m.state == FSM_PLACING || fsm_alive_rank(&job->m, FSM_ALL_RANKS));
    }
    return count;
}

uint32_t coord_drain_saved(const struct coord *coord)
{
    uint32_t count = 0;
    for (size_t i = 0; i < coord->job_count; i++) {
        const struct coord_job *job = coord->jobs[i];
        const struct fsm_ckpt *newest = fsm_newest(&job->m);
        count += job->drained && newest != NULL &&
                 (newest->wall_ms >= coord->drain_wall || newest->step >= job->m.step_max);
    }
    return count;
}

/* ---- lists ---- */

enum status coord_seek(struct coord *coord, const char *name, char id[16], struct coord_job **out)
{
    *out = coord_job_at(coord, name);
    if (*out != NULL)
        (void)snprintf(id, 16, "%s", (*out)->id);
    const enum status st =
        *out != NULL ? ST_OK : journal_find_job(coord->options.journal, name, id);
    if (*out == NULL && st == ST_OK)
        *out = coord_job_at(coord, id);
    if (*out != NULL)
        (*out)->used = ++coord->uses;
    return st;
}

enum status coord_find(struct coord *coord, const char *name, struct coord_job **out)
{
    char id[16];
    enum status st = coord_seek(coord, name, id, out);
    if (st == ST_OK && *out == NULL)
        st = coord_bring(coord, id, out);
    if (st == ST_OK)
        (*out)->used = ++coord->uses;
    return st;
}

size_t coord_jobs(struct coord *coord, struct coord_job **out, size_t capacity)
{
    for (size_t i = 0; i < coord->job_count && i < capacity; i++)
        out[i] = coord->jobs[coord->job_count - 1 - i];
    return coord->job_count;
}

size_t coord_nodes(struct coord *coord, struct coord_node **out, size_t capacity)
{
    size_t count = 0;
    for (size_t i = 0; i < coord->node_count; i++) {
        const struct coord_node *node = coord->nodes[i];
        if (!node->known && !node->drains && coord_node_forgotten(coord, node->name) == 0)
            continue;
        if (count < capacity)
            out[count] = coord->nodes[i];
        count++;
    }
    return count;
}

/*
 * ---- nodes that are forgotten: a machine that was stolen or given away ----
 *
 * No list of withdrawn certificates is kept, but per node the time when it was forgotten last: what
 * was issued until then counts no more, what is issued later does. Who looks at certificates asks
 * for that time. A forgotten node isn't known: no slot of it counts, until an agent of that name
 * says hello.
 */

bool coord_node_is_taken(struct coord *coord, const char *name)
{
    const struct coord_node *node = coord_node_at(coord, name);
    return node != NULL && node->known &&
           (node->conn != NULL || coord_now(coord) < node->heard_at + coord->lost_ms);
}

static void drop_agent(struct coord *coord, struct coord_node *node)
{
    struct coord_conn *conn = node->conn;
    node->conn = NULL;
    if (conn == NULL)
        return;
    conn->node = NULL;
    coord_hang_up(coord, conn, RPC_PERMISSION_DENIED, COORD_FORGOTTEN);
}

/* Into the history of each job with workers there, once. */
static void tell_forgotten(struct coord *coord, struct coord_node *node, const char *by)
{
    struct reason note;
    size_t count;
    auto_free struct coord_rank **ranks = coord_ranks_of(coord, node, &count);
    reason_set(&note, "node %s was forgotten, asked by %s", node->name,
               by != NULL ? by : "the user");
    for (size_t i = 0; i < count; i++) {
        bool known = ranks[i]->job->unreadable[0] != '\0';
        for (size_t k = 0; k < i && !known; k++)
            known = ranks[k]->job == ranks[i]->job;
        if (!known)
            coord_note(coord, ranks[i]->job, "node", note.text);
    }
}

/* Withdraws a node's certificates. If there are as many withdrawals as there may be, those go whose
 * certificates have expired: they are refused for that. */
static enum status withdraw(struct coord *coord, const char *name, int64_t now_s)
{
    const int64_t expired_s = now_s - INT64_C(86400) * COORD_WITHDRAWN_DAYS;
    const bool full =
        coord->withdrawn.count >= COORD_WITHDRAWN_MAX && coord_node_forgotten(coord, name) == 0;
    if (full && coord_drop_withdrawn(coord, expired_s) == 0)
        return ST_FULL;
    enum status st = coord_put_withdrawn(coord, name, now_s);
    if (st == ST_OK)
        st = coord_begin(coord);
    if (st == ST_OK && full)
        st = journal_drop_withdrawn(coord->options.journal, expired_s);
    if (st == ST_OK)
        st = journal_forget_node(coord->options.journal, name, now_s);
    if (st != ST_OK)
        coord_fail(coord, st, "forgetting a node");
    return st;
}

enum status coord_forget_node(struct coord *coord, const char *name, const char *by,
                              struct coord_node **out)
{
    const enum status st = withdraw(coord, name, clock_wall_ms(coord->options.clock) / 1000);
    if (st != ST_OK)
        return st;
    LOG_INFO(coord->options.log, "node %s is forgotten: its certificates count no more", name);
    struct coord_node *node = coord_node_admit(coord, name);
    *out = node;
    if (node == NULL)
        return ST_OK;
    tell_forgotten(coord, node, by);
    drop_agent(coord, node);
    node->known = false;
    node->silent = true;
    node->suspected = node->alone = false;
    suspicion_end(&node->suspicion);
    coord_node_moved(coord, node);
    /* Workers there are gone, for all that is known: their jobs go on in another generation. */
    coord_apply_to_ranks(coord, node, FSM_EV_MISSING, NULL);
    coord_schedule(coord);
    return coord->failed;
}
