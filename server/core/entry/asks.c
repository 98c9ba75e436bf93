/* The requests of people to the coordinator: new jobs, changes to jobs, lists, and going down. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/job_id.h"
#include "server/core/internal.h"
#include "server/machine/codec.h"

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
static int64_t next_seq(struct core *core)
{
    uint16_t chance = 0;
    core->options.random(core->options.random_arg, &chance, sizeof chance);
    int64_t ms = clock_wall_ms(core->options.clock) - ID_EPOCH_MS;
    int64_t seq =
        (int64_t)(((uint64_t)(ms > 0 ? ms : 0) << 9 | (chance & 511)) & ((1ull << 50) - 1));
    return seq > core->seq_last ? seq : core->seq_last + 1;
}

static enum status could_run(struct core *core, const struct job *spec, struct reason *reason)
{
    const char *device = job_device_word(spec->workers.device);
    bool known = false;
    uint32_t weak = 0; /* GPUs of too low a capability */
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];
        known = known || node->known;
        weak += node->known ? node->gpu_count : 0;
        if (node->known && core_node_has(node, device))
            return ST_OK;
    }
    if (!known)
        return ST_OK; /* nodes may come */
    if (weak > 0 && strcmp(device, CORE_GPU_DEVICE) == 0) {
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
static enum status could_connect(const struct core *core, const struct core_job *changed,
                                 int64_t workers, int64_t spares, struct reason *reason)
{
    uint64_t needed = CORE_DESCRIPTORS_OWN + core->node_count + (uint64_t)(workers + spares);
    for (size_t i = 0; i < core->live.count; i++) {
        const struct core_job *job = core->live.list[i].value;
        if (job != changed)
            needed += job->m.config.ranks + (uint64_t)job->spec->workers.spares;
    }
    if (core->options.descriptors == 0 || needed <= core->options.descriptors)
        return ST_OK;
    reason_set(
        reason,
        "with this job's %lld workers%s the coordinator would need %llu open files, and it may "
        "have %llu: raise its limit (ulimit -n, or LimitNOFILE= of its service) and start it "
        "again, or %s",
        (long long)workers + (long long)spares, spares > 0 ? " and spares" : "",
        (unsigned long long)needed, (unsigned long long)core->options.descriptors,
        changed ? "ask for fewer workers" : "submit a smaller job");
    return ST_REFUSED;
}

static enum status new_job(struct core *core, const struct job *spec, const char *job_file,
                           struct core_job **out)
{
    struct job *copy = malloc(sizeof *copy);
    if (!copy)
        return ST_NO_MEMORY;
    *copy = *spec;
    char id[16];
    struct journal_job row = {
        .id = id, .name = spec->name, .seq = next_seq(core), .job_file = job_file, .pins = ""
    };
    make_id(row.seq, id);
    return core_job_new(core, &row, copy, out);
}

static enum status record_job(struct core *core, const struct core_job *job, const char *key,
                              const char *by)
{
    struct journal *journal = core->options.journal;
    int64_t wall = clock_wall_ms(core->options.clock);
    auto_buf struct buf state;
    buf_init(&state, CORE_STATE_BYTES_MAX);
    enum status st = machine_encode(&job->m, &state);
    if (st == ST_OK)
        st = core_begin(core);
    struct journal_job row = { .id = job->id,
                               .name = job->name,
                               .seq = job->seq,
                               .job_file = job->job_file,
                               .pins = "",
                               .state = state.data };
    if (st == ST_OK)
        st = journal_put_job(journal, &row);
    struct reason told;
    reason_set(&told, "%s%s%s", job->name, by ? ", by " : "", by ? by : "");
    struct journal_event event = { .wall_ms = wall, .kind = "submitted", .message = told.text };
    if (st == ST_OK)
        st = journal_put_event(journal, job->id, &event);
    if (st == ST_OK && key[0])
        st = journal_put_key(journal, key, job->id, wall);
    return st;
}

static enum status forget_job(struct core *core, const char *id, const char *why)
{
    enum status st = core_begin(core);
    if (st == ST_OK)
        st = journal_forget_job(core->options.journal, id);
    if (st != ST_OK) {
        core_fail(core, st, "forgetting a job");
        return st;
    }
    core->stored--;
    core->tidy_at = core_now(core); /* its rows, some at a time */
    struct core_job *job = core_job_at(core, id);
    if (job)
        core_drop_job(core, job, why);
    return ST_OK;
}

/* Jobs that ended long ago make room; their checkpoints stay where they are. */
static enum status make_room(struct core *core)
{
    if (core->live.count >= LIMIT_JOBS)
        return ST_FULL;
    if (core->stored < CORE_JOBS_MAX)
        return ST_OK;
    struct journal *journal = core->options.journal;
    char id[16];
    const enum status st = journal_oldest_ended(journal, id);
    if (st == ST_OK)
        return forget_job(core, id, "the job was forgotten");
    if (st != ST_NOT_FOUND)
        core_fail(core, st, "forgetting an old job");
    return st == ST_NOT_FOUND ? ST_FULL : st;
}

enum status core_submit(struct core *core, const struct job *spec, const char *job_file,
                        const char *key, const char *by, struct core_job **out,
                        struct reason *reason)
{
    char known[32];
    if (core->failed != ST_OK)
        return core->failed;
    enum status st = ST_NOT_FOUND;
    if (key[0])
        st = journal_get_key(core->options.journal, key, known, sizeof known);
    if (st == ST_OK)
        st = core_find(core, known, out);
    if (st != ST_NOT_FOUND) /* the job is there, or nobody can tell: then none is made */
        return st;
    if (core->full) {
        reason_set(reason, "%s", CORE_JOURNAL_FULL);
        return ST_REFUSED;
    }
    st = could_run(core, spec, reason);
    if (st == ST_OK)
        st = could_connect(core, NULL, spec->workers.count, spec->workers.spares, reason);
    if (st == ST_OK)
        st = make_room(core);
    struct core_job *job;
    if (st == ST_OK)
        st = new_job(core, spec, job_file, &job);
    if (st != ST_OK)
        return st;
    st = record_job(core, job, key, by);
    if (st == ST_OK)
        st = core_add_job(core, job);
    if (st != ST_OK) { /* its rows may be in the group: nothing of that is committed */
        core_fail(core, st, "taking a new job");
        core_job_free(job);
        return st;
    }
    job->m.dirty = false;
    core->stored++;
    core->schedule_needed = true;
    core_schedule(core);
    *out = job;
    return core->failed;
}

/* ---- changes ---- */

enum status core_ask(struct core *core, struct core_job *job, enum machine_event_kind kind,
                     const char *by)
{
    struct machine_event event = core_event(core, kind);
    event.by = by;
    enum status st = core_apply(core, job, &event);
    core_schedule(core);
    return st;
}

void core_remember(struct core *core, const char *key, const char *what)
{
    struct journal *journal = core->options.journal;
    if (!key[0] || strlen(key) > 200 || core->failed != ST_OK)
        return;
    enum status st = core_begin(core);
    if (st == ST_OK)
        st = journal_put_key(journal, key, what, clock_wall_ms(core->options.clock));
    if (st != ST_OK)
        core_fail(core, st, "journalling a call's key");
}

/* True if a call with that key waits for a save already; out: for which. */
static bool is_awaited(struct core *core, const struct core_job *job, const char *key,
                       struct machine_awaited *out)
{
    char what[96];
    size_t size = strlen(job->id);
    if (!key[0] || journal_get_key(core->options.journal, key, what, sizeof what) != ST_OK ||
        strncmp(what, job->id, size) != 0 || what[size] != ' ')
        return false;
    char *at = what + size;
    out->step = strtoull(at, &at, 10);
    out->generation = (uint32_t)strtoul(at, &at, 10);
    out->refused = strtoull(at, &at, 10);
    const enum machine_outcome outcome = machine_save_outcome(&job->m, out);
    return outcome == MACHINE_OUTCOME_OPEN || outcome == MACHINE_OUTCOME_SAVED;
}

enum status core_save(struct core *core, struct core_job *job, const char *key, const char *by,
                      struct machine_awaited *out)
{
    if (is_awaited(core, job, key, out))
        return ST_OK;
    *out = machine_await_save(&job->m);
    if (job->m.state == MACHINE_RUNNING) {
        enum status st = core_ask(core, job, MACHINE_EV_SAVE, by);
        if (st != ST_OK)
            return st;
    } else if (job->m.state != MACHINE_SAVING &&
               (out->generation > 0 || !machine_newest(&job->m))) {
        return ST_REFUSED;
    }
    char what[96];
    (void)snprintf(what, sizeof what, "%s %llu %u %llu", job->id, (unsigned long long)out->step,
                   out->generation, (unsigned long long)out->refused);
    core_remember(core, key, what);
    return ST_OK;
}

enum status core_remove_ended(struct core *core, struct core_job *job, const char *by,
                              struct reason *reason)
{
    if (!machine_state_final(job->m.state)) {
        reason_set(reason, "it is %s: 'cairn kill' ends it", machine_state_name(job->m.state));
        return ST_REFUSED;
    }
    if (job->dirty || job->tasks > 0 || job->ended == JOURNAL_LIVE || job->ended == JOURNAL_LEFT) {
        reason_set(reason, "something of it is still being done in its checkpoint store: try again "
                           "in a while");
        return ST_REFUSED;
    }
    LOG_INFO(core->options.log, "%s (%s) is removed, asked by %s", job->name, job->id,
             by ? by : "the user");
    return forget_job(core, job->id, "the job was removed");
}

enum status core_remove_ckpt(struct core *core, struct core_job *job, uint64_t step, const char *by)
{
    struct machine_event event = core_event(core, MACHINE_EV_REMOVE_CKPT);
    event.by = by;
    event.remove_ckpt.step = step;
    enum status st = core_apply(core, job, &event);
    core_schedule(core);
    return st;
}

/* Returns whether a job can have so many workers, by what its file says. */
static enum status could_set(const struct job *spec, uint32_t count, struct reason *reason)
{
    const long long lanes = spec->train.lanes, spares = spec->workers.spares;
    /* A min that is the count is that of whatever count there is (struct machine_config). */
    const long long min = spec->workers.min < spec->workers.count ? spec->workers.min : 1;
    const unsigned stages = spec->parallel.pipeline.stages;
    if (count > lanes * stages && stages > 1) {
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
    } else if (count != spec->workers.count && spec->parallel.reduction == JOB_REDUCTION_FAST) {
        reason_set(reason, "with parallel.reduction: fast the job's state depends on the number of "
                           "workers, so that it stays");
    } else {
        return ST_OK;
    }
    return ST_REFUSED;
}

/* Shares that the file gives, for its own number of workers, can't be those of another number. */
static bool shares_change(const struct job *spec, uint32_t count)
{
    return count != spec->workers.count && !job_shares_even(spec);
}

enum status core_set_workers(struct core *core, struct core_job *job, uint32_t count,
                             const char *by, struct reason *reason)
{
    struct machine_event event = core_event(core, MACHINE_EV_SET);
    event.by = by;
    event.set.workers = count;
    event.set.evens = shares_change(job->spec, count);
    enum status st = ST_OK;
    if (!machine_state_final(job->m.state))
        st = could_set(job->spec, count, reason);
    if (st == ST_OK)
        st = could_connect(core, job, count, job->spec->workers.spares, reason);
    if (st != ST_OK)
        return st;
    st = core_apply(core, job, &event);
    if (st == ST_REFUSED)
        reason_set(reason, "it is %s", machine_state_name(job->m.state));
    core_schedule(core);
    return st;
}

enum status core_check_ckpt(struct core *core, struct core_job *job, uint64_t step,
                            uint32_t generation)
{
    struct machine_event event = core_event(core, MACHINE_EV_CHECK_CKPT);
    event.check_ckpt.step = step;
    event.check_ckpt.generation = generation;
    enum status st = core_apply(core, job, &event);
    core_schedule(core);
    return st;
}

static bool is_under_way(const struct machine *m)
{
    return !machine_state_final(m->state) && m->state != MACHINE_QUEUED &&
           m->state != MACHINE_PAUSED;
}

void core_drain(struct core *core, bool now, int64_t hold_ms, const char *by)
{
    if (core->draining_until == 0) {
        core->drain_wall = clock_wall_ms(core->options.clock);
        for (size_t i = 0; i < core->job_count; i++)
            core->jobs[i]->drained = is_under_way(&core->jobs[i]->m);
    }
    core->draining_until = core_now(core) + hold_ms + CORE_DRAIN_FORGET_MS;
    for (size_t i = core->live.count; i > 0; i--) { /* whoever is over by this leaves the list */
        struct core_job *job = core->live.list[i - 1].value;
        struct machine_event event =
            core_event(core, now ? MACHINE_EV_DRAIN_NOW : MACHINE_EV_DRAIN);
        event.by = by;
        (void)core_apply(core, job, &event);
    }
    core_queue_moved(core); /* all of it waits for the coordinator now */
    core_schedule(core);
}

void core_drain_end(struct core *core)
{
    core->draining_until = 0;
    core_queue_moved(core);
    core->schedule_needed = true;
}

size_t core_draining(struct core *core)
{
    size_t count = 0;
    for (size_t i = 0; i < core->live.count; i++) {
        const struct core_job *job = core->live.list[i].value;
        count += !job->unreadable[0] && (job->m.state == MACHINE_PLACING ||
                                         machine_alive_rank(&job->m, MACHINE_ALL_RANKS));
    }
    return count;
}

uint32_t core_drain_saved(const struct core *core)
{
    uint32_t count = 0;
    for (size_t i = 0; i < core->job_count; i++) {
        const struct core_job *job = core->jobs[i];
        const struct machine_ckpt *newest = machine_newest(&job->m);
        count += job->drained && newest &&
                 (newest->wall_ms >= core->drain_wall || newest->step >= job->m.step_max);
    }
    return count;
}

/* ---- lists ---- */

/* Adds from which nodes the job keeps away, until when, and how that ends before. */
static void add_shunned(const struct core *core, const struct core_job *job, struct reason *out)
{
    struct reason told = { "" }, before = *out;
    shun_tell(&job->m.shunned, clock_wall_ms(core->options.clock), &told);
    if (told.text[0]) {
        reason_set(out,
                   "%.220s; keeps away from %s; at once with an agent that is started anew there, "
                   "or by cairn pause and cairn resume",
                   before.text, told.text);
    }
}

void core_reason(const struct core *core, const struct core_job *job, struct reason *out)
{
    const bool wants = core_job_queues(job) && machine_wants_slots(&job->m, core_now(core));
    const struct core_job *other = wants ? ordered_get(&core->queue, job->behind) : NULL;
    if (core_is_kept(job)) {
        reason_set(out, "%s", job->unreadable);
    } else if (wants && core->draining_until != 0) {
        reason_set(out, "the coordinator is going down; the job goes on when it is up again");
    } else if (other) {
        reason_set(out, "waits behind %s (%s), which %s", other->name, other->id,
                   other->m.state == MACHINE_QUEUED ? "was submitted before" : "is under way");
    } else if (!job->m.reason[0] && !machine_state_final(job->m.state) && core->full) {
        reason_set(out, "%s", CORE_JOURNAL_FULL);
    } else {
        reason_set(out, "%s", job->m.reason);
        if (wants)
            add_shunned(core, job, out);
    }
}

enum status core_seek(struct core *core, const char *name, char id[16], struct core_job **out)
{
    *out = core_job_at(core, name);
    if (*out)
        (void)snprintf(id, 16, "%s", (*out)->id);
    const enum status st = *out ? ST_OK : journal_find_job(core->options.journal, name, id);
    if (!*out && st == ST_OK)
        *out = core_job_at(core, id);
    if (*out)
        (*out)->used = ++core->uses;
    return st;
}

enum status core_find(struct core *core, const char *name, struct core_job **out)
{
    char id[16];
    enum status st = core_seek(core, name, id, out);
    if (st == ST_OK && !*out)
        st = core_bring(core, id, out);
    if (st == ST_OK)
        (*out)->used = ++core->uses;
    return st;
}

size_t core_jobs(struct core *core, struct core_job **out, size_t capacity)
{
    for (size_t i = 0; i < core->job_count && i < capacity; i++)
        out[i] = core->jobs[core->job_count - 1 - i];
    return core->job_count;
}

size_t core_nodes(struct core *core, struct core_node **out, size_t capacity)
{
    size_t count = 0;
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];
        if (!node->known && !node->drains && core_node_forgotten(core, node->name) == 0)
            continue;
        if (count < capacity)
            out[count] = core->nodes[i];
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

bool core_node_is_taken(struct core *core, const char *name)
{
    const struct core_node *node = core_node_at(core, name);
    return node && node->known && (node->conn || core_now(core) < node->heard_at + core->lost_ms);
}

static void drop_agent(struct core *core, struct core_node *node)
{
    struct core_conn *conn = node->conn;
    node->conn = NULL;
    if (!conn)
        return;
    conn->node = NULL;
    core_hang_up(core, conn, RPC_PERMISSION_DENIED, CORE_FORGOTTEN);
}

/* Into the history of each job with workers there, once. */
static void tell_forgotten(struct core *core, struct core_node *node, const char *by)
{
    struct reason told;
    size_t count;
    auto_free struct core_rank **ranks = core_ranks_of(core, node, &count);
    reason_set(&told, "node %s was forgotten, asked by %s", node->name, by ? by : "the user");
    for (size_t i = 0; i < count; i++) {
        bool known = ranks[i]->job->unreadable[0] != '\0';
        for (size_t k = 0; k < i && !known; k++)
            known = ranks[k]->job == ranks[i]->job;
        if (!known)
            core_note(core, ranks[i]->job, "node", told.text);
    }
}

/* Withdraws a node's certificates. If there are as many withdrawals as there may be, those go whose
 * certificates have expired: they are refused for that. */
static enum status withdraw(struct core *core, const char *name, int64_t now_s)
{
    const int64_t expired_s = now_s - INT64_C(86400) * CORE_WITHDRAWN_DAYS;
    const bool full =
        core->withdrawn.count >= CORE_WITHDRAWN_MAX && core_node_forgotten(core, name) == 0;
    if (full && core_drop_withdrawn(core, expired_s) == 0)
        return ST_FULL;
    enum status st = core_put_withdrawn(core, name, now_s);
    if (st == ST_OK)
        st = core_begin(core);
    if (st == ST_OK && full)
        st = journal_drop_withdrawn(core->options.journal, expired_s);
    if (st == ST_OK)
        st = journal_forget_node(core->options.journal, name, now_s);
    if (st != ST_OK)
        core_fail(core, st, "forgetting a node");
    return st;
}

enum status core_forget_node(struct core *core, const char *name, const char *by,
                             struct core_node **out)
{
    const enum status st = withdraw(core, name, clock_wall_ms(core->options.clock) / 1000);
    if (st != ST_OK)
        return st;
    LOG_INFO(core->options.log, "node %s is forgotten: its certificates count no more", name);
    struct core_node *node = core_node_admit(core, name);
    *out = node;
    if (!node)
        return ST_OK;
    tell_forgotten(core, node, by);
    drop_agent(core, node);
    node->known = false;
    node->silent = true;
    node->doubted = node->alone = false;
    doubt_end(&node->doubt);
    core_node_moved(core, node);
    /* Workers there are gone, for all that is known: their jobs go on in another generation. */
    core_tell_ranks(core, node, MACHINE_EV_MISSING, NULL);
    core_schedule(core);
    return core->failed;
}
