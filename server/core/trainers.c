/* Trainers: their sessions, the fence of generations, the rendezvous map, reports and rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fault.h"
#include "server/core/internal.h"

/* ---- orders ---- */

void core_send_order(struct core_job *job, uint32_t rank, Cairn__V1__TrainerOrder *order)
{
    struct core_conn *conn = job->ranks[rank].conn;
    if (conn)
        conn->ops->send(conn, &order->base);
}

static void send_over(struct core_conn *conn, const char *reason)
{
    Cairn__V1__Over over = CAIRN__V1__OVER__INIT;
    over.reason = (char *)reason;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_OVER;
    order.over = &over;
    conn->ops->send(conn, &order.base);
    conn->ops->finish(conn, RPC_FAILED_PRECONDITION, reason);
}

void core_send_over(struct core_job *job, const char *reason)
{
    for (uint32_t i = 0; i < job->m.config.ranks; i++) {
        struct core_conn *conn = job->ranks[i].conn;
        if (!conn)
            continue;
        job->ranks[i].conn = NULL;
        conn->job = NULL;
        send_over(conn, reason);
    }
    job->metrics_from = NULL;
}

/* Address for the data plane: loopback where all ranks share a machine. */
static const char *host_of(struct core *core, const struct core_job *job, uint32_t rank)
{
    const struct job_machine *m = &job->m;
    bool one = true;
    for (uint32_t i = 1; i < m->config.ranks; i++)
        one = one && strcmp(m->ranks[i].node, m->ranks[0].node) == 0;
    const struct core_node *node = core_node_at(core, m->ranks[rank].node);
    return one || !node || !node->host[0] ? "127.0.0.1" : node->host;
}

void core_send_plan(struct core *core, struct core_job *job, uint32_t rank)
{
    struct job_machine *m = &job->m;
    char dir[LIMIT_PATH] = "";
    if (m->restore_generation > 0) {
        struct jm_ckpt ckpt = { .step = m->restore_step, .generation = m->restore_generation };
        if (core_ckpt_dir(job, &ckpt, dir, sizeof dir) != ST_OK)
            return;
    }
    Cairn__V1__SaveAt saves[JM_ANNOUNCED_MAX];
    Cairn__V1__SaveAt *save_list[JM_ANNOUNCED_MAX];
    size_t save_count = 0;
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++) {
        if (m->announced[i].step == 0)
            continue;
        saves[save_count] = (Cairn__V1__SaveAt)CAIRN__V1__SAVE_AT__INIT;
        saves[save_count].step = m->announced[i].step;
        saves[save_count].then = m->announced[i].exit ? CAIRN__V1__SAVE_AT__THEN__EXIT
                                                      : CAIRN__V1__SAVE_AT__THEN__CONTINUE;
        save_list[save_count] = &saves[save_count];
        save_count++;
    }
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    plan.job = job->id;
    plan.generation = m->generation;
    plan.size = m->config.ranks;
    plan.rank = rank;
    plan.shares = job->spec->workers.shares;
    plan.n_shares = m->config.ranks;
    plan.job_file = job->job_file;
    plan.restore = dir;
    plan.restore_step = m->restore_step;
    plan.skip = m->skip;
    plan.n_skip = m->skip_count;
    plan.saves = save_list;
    plan.n_saves = save_count;
    plan.host = (char *)host_of(core, job, rank);
    plan.store_mark = m->store_mark;
    struct core_places places;
    if (core_places_list(m, &places) != ST_OK)
        return;
    plan.memory = m->memory_generation > 0 ? &places.memory : NULL;
    plan.nodes = places.nodes;
    plan.n_nodes = m->config.ranks;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_PLAN;
    order.plan = &plan;
    fault_context(rank, m->generation, (int64_t)m->restore_step);
    fault_point("coordinator.plan");
    core_send_order(job, rank, &order);
    core_places_release(&places);
}

/* ---- rendezvous ---- */

void core_forget_kv(struct core_job *job)
{
    kv_map_clear(&job->kv);
    while (job->waits) {
        struct core_wait *wait = job->waits;
        job->waits = wait->next;
        free(wait);
    }
    job->wait_count = 0;
}

static void reply_kv(struct core_job *job, uint32_t rank, uint64_t id, enum status st,
                     const struct kv_entry *entry, int64_t sum)
{
    Cairn__V1__KvReply reply = CAIRN__V1__KV_REPLY__INIT;
    reply.id = id;
    reply.status = st;
    reply.sum = sum;
    if (entry) {
        reply.value.data = entry->value;
        reply.value.len = entry->size;
    }
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_KV;
    order.kv = &reply;
    core_send_order(job, rank, &order);
}

/* A restart of the coordinator must not make a formation fail: the map is journalled. */
static enum status record_kv(struct core *core, struct core_job *job, const char *key)
{
    const struct kv_entry *entry = kv_map_get(&job->kv, key);
    struct journal *journal = core->options.journal;
    enum status st = journal_begin(journal);
    if (st == ST_OK && entry) {
        st = journal_put_kv(journal, job->id, job->m.generation, key, entry->value, entry->size);
    } else if (st == ST_OK) {
        st = journal_drop_kv(journal, job->id, key);
    }
    if (st == ST_OK)
        st = journal_commit(journal);
    if (st != ST_OK)
        core_fail(core, st, "journalling the rendezvous");
    return st;
}

static void answer_waits(struct core_job *job, const char *key)
{
    const struct kv_entry *entry = kv_map_get(&job->kv, key);
    for (struct core_wait **at = &job->waits; entry && *at;) {
        struct core_wait *wait = *at;
        if (strcmp(wait->key, key) != 0) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        job->wait_count--;
        reply_kv(job, wait->rank, wait->id, ST_OK, entry, 0);
        free(wait);
    }
}

static void wait_for(struct core *core, struct core_job *job, uint32_t rank,
                     const Cairn__V1__KvRequest *request)
{
    int64_t ms = request->timeout_ms < CORE_KV_MS_MAX ? request->timeout_ms : CORE_KV_MS_MAX;
    if (ms <= 0) {
        reply_kv(job, rank, request->id, ST_NOT_FOUND, NULL, 0);
        return;
    }
    for (struct core_wait *wait = job->waits; wait; wait = wait->next) {
        if (wait->rank == rank && wait->id == request->id)
            return; /* repeated after a lost session */
    }
    struct core_wait *wait = job->wait_count < CORE_WAITS_MAX ? calloc(1, sizeof *wait) : NULL;
    if (!wait) {
        reply_kv(job, rank, request->id, ST_FULL, NULL, 0);
        return;
    }
    *wait = (struct core_wait){
        .next = job->waits, .rank = rank, .id = request->id, .until = core_now(core) + ms
    };
    (void)snprintf(wait->key, sizeof wait->key, "%s", request->key);
    job->waits = wait;
    job->wait_count++;
}

void core_waits_tick(struct core *core, struct core_job *job)
{
    int64_t now = core_now(core);
    for (struct core_wait **at = &job->waits; *at;) {
        struct core_wait *wait = *at;
        if (now < wait->until) {
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        job->wait_count--;
        reply_kv(job, wait->rank, wait->id, ST_TIMED_OUT, NULL, 0);
        free(wait);
    }
}

static void on_kv(struct core *core, struct core_job *job, uint32_t rank,
                  const Cairn__V1__KvRequest *request)
{
    enum status st = ST_INVALID;
    int64_t sum = 0;
    if (strlen(request->key) >= LIMIT_KV_KEY) {
        reply_kv(job, rank, request->id, ST_FULL, NULL, 0);
        return;
    }
    if (request->op == CAIRN__V1__KV_REQUEST__OP__GET) {
        const struct kv_entry *entry = kv_map_get(&job->kv, request->key);
        if (entry) {
            reply_kv(job, rank, request->id, ST_OK, entry, 0);
        } else {
            wait_for(core, job, rank, request);
        }
        return;
    }
    if (request->op == CAIRN__V1__KV_REQUEST__OP__SET) {
        st = kv_map_set(&job->kv, request->key, request->value.data, request->value.len);
    } else if (request->op == CAIRN__V1__KV_REQUEST__OP__ADD) {
        st = kv_map_add(&job->kv, request->key, request->delta, &sum);
    } else if (request->op == CAIRN__V1__KV_REQUEST__OP__REMOVE) {
        kv_map_remove(&job->kv, request->key);
        st = ST_OK;
    }
    if (st == ST_OK && record_kv(core, job, request->key) != ST_OK)
        return;
    reply_kv(job, rank, request->id, st, NULL, sum);
    answer_waits(job, request->key);
}

/* ---- faults, reports, rows ---- */

struct jm_fault core_fault(const Cairn__V1__Fault *in)
{
    struct jm_fault out = { .kind = (enum jm_fault_kind)in->kind,
                            .rank = in->n_ranks > 0 ? in->ranks[0] : JM_ALL,
                            .step = in->step };
    if (in->kind <= CAIRN__V1__FAULT_KIND__FAULT_KIND_UNSPECIFIED ||
        in->kind > CAIRN__V1__FAULT_KIND__FORMATION)
        out.kind = FAULT_PROCESS;
    (void)snprintf(out.phase, sizeof out.phase, "%.31s", in->phase);
    (void)snprintf(out.message, sizeof out.message, "%.511s", in->message);
    return out;
}

/* A name of its own in the folder, whole hashes: nothing else is journalled. */
static bool is_sound(const Cairn__V1__SaveReport *report)
{
    if (!report->file[0] || strlen(report->file) >= 64 || strchr(report->file, '/') ||
        report->file[0] == '.')
        return false;
    if (report->xxh3_128.len != 16 || report->scalars_xxh3_128.len != 16)
        return false;
    for (size_t i = 0; i < report->n_pieces; i++) {
        if (report->pieces[i]->xxh3_128.len % 16 != 0)
            return false;
    }
    return true;
}

/* Of what comes from outside: at most what is far beyond any save. */
static int64_t whole_us(uint64_t us)
{
    return us < (uint64_t)1 << 50 ? (int64_t)us : 0;
}

void core_take_report(struct core *core, struct core_job *job, uint32_t rank,
                      const Cairn__V1__SaveReport *report)
{
    if (report->rank != rank || report->generation != job->m.generation)
        return;
    bool sound = is_sound(report);
    struct job_event event = core_event(core, sound ? EV_SAVE_REPORT : EV_SAVE_FAILED);
    event.generation = report->generation;
    event.rank = rank;
    event.step = report->step;
    event.message = "a worker's report of its file makes no sense";
    /* Where no core is free, encoding takes its processor time from that of the mathematics. */
    event.cost_us =
        whole_us(report->stall_us) + whole_us(report->encode_us) / job->spec->workers.threads;
    event.write_ms = whole_us(report->write_ms);
    event.times = (struct jm_save_times){ .stall_us = whole_us(report->stall_us),
                                          .encode_us = whole_us(report->encode_us),
                                          .io_us = whole_us(report->io_us),
                                          .sync_us = whole_us(report->sync_us) };
    core->report = report;
    (void)core_apply(core, job, &event);
    core->report = NULL;
}

/* What the step waited for a copy in memory, of rank 0. What it waited for a checkpoint is told
 * with that one, by all ranks (job_saves.c). */
static void note_copy(struct core_job *job, const Cairn__V1__MetricRow *row)
{
    struct job_machine *m = &job->m;
    if (row->step == 0 || jm_find_open(m, row->step - 1, m->generation) != NULL)
        return;
    for (size_t i = 0; i < row->n_phases; i++) {
        double ms = row->phases[i]->ms;
        if (strcmp(row->phases[i]->name, "snapshot") == 0 && ms > 0 && ms < 86400000.0)
            jm_note_stall(m, (int64_t)(ms * 1000)); /* from outside: not more than a day */
    }
}

static void note_row(struct core_job *job, const Cairn__V1__MetricRow *row)
{
    if (row->step <= job->metric_step && row->generation == job->metric_generation)
        return; /* told again after a lost session */
    note_copy(job, row);
    job->metric_step = row->step;
    job->metric_generation = row->generation;
    job->loss = (double)row->loss;
    job->samples_per_s = row->samples_per_s;
    job->step_ms = row->step_ms;
    if (row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL) {
        job->accuracy = row->eval->accuracy;
        job->eval_loss = row->eval->loss;
    }
}

static enum status keep_row(struct core_job *job, const Cairn__V1__MetricRow *row)
{
    struct core_rows *rows = &job->rows;
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
        struct core_row *more = realloc(rows->list, capacity * sizeof *more);
        if (!more)
            return ST_NO_MEMORY;
        rows->list = more;
        rows->capacity = capacity;
    }
    size_t size = cairn__v1__metric_row__get_packed_size(row);
    void *data = malloc(size ? size : 1);
    if (!data)
        return ST_NO_MEMORY;
    (void)cairn__v1__metric_row__pack(row, data);
    rows->list[rows->count++] =
        (struct core_row){ .step = row->step,
                           .eval = row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL,
                           .data = data,
                           .size = size };
    return ST_OK;
}

static void on_rows(struct core *core, struct core_conn *conn, const Cairn__V1__MetricRows *in)
{
    struct core_job *job = conn->job;
    if (conn->rank != 0)
        return;
    for (size_t i = 0; i < in->n_rows; i++) {
        Cairn__V1__MetricRow *row = in->rows[i];
        row->generation = job->m.generation;
        if (row->wall_ms == 0)
            row->wall_ms = clock_wall_ms(core->options.clock);
        if (job->rows.count == 0)
            job->rows.since = core_now(core);
        if (keep_row(job, row) != ST_OK) {
            core_fail(core, ST_NO_MEMORY, "keeping metrics");
            return;
        }
        note_row(job, row);
    }
    job->metrics_from = conn;
    if (job->rows.count >= CORE_ROWS_MAX)
        core_flush_rows(core, job);
}

/* ---- hello ---- */

static bool same_token(const char *a, const char *b)
{
    size_t size = strlen(a);
    unsigned char difference = (unsigned char)(size != strlen(b) || size == 0);
    for (size_t i = 0; i < size && !difference; i++)
        difference |= (unsigned char)(a[i] ^ b[i]);
    return difference == 0;
}

static void on_hello(struct core *core, struct core_conn *conn,
                     const Cairn__V1__TrainerHello *hello)
{
    struct core_job *job = core_job_at(core, hello->job);
    if (!job || hello->generation != job->m.generation || hello->rank >= job->m.config.ranks ||
        !jm_alive_rank(&job->m, hello->rank)) {
        send_over(conn, "this generation is over");
        return;
    }
    if (!same_token(conn->token, job->m.token)) {
        conn->ops->finish(conn, RPC_UNAUTHENTICATED, "not the token of this job and generation");
        return;
    }
    if (job->m.end_to != JOB_NONE && job->m.end_hard_at == 0) {
        send_over(conn, "this generation has ended");
        return;
    }
    struct core_conn *old = job->ranks[hello->rank].conn;
    if (old && old != conn) {
        old->job = NULL;
        old->ops->finish(old, RPC_ABORTED, "the worker opened another session");
    }
    if (job->metrics_from == old)
        job->metrics_from = NULL;
    conn->job = job;
    conn->generation = hello->generation;
    conn->rank = hello->rank;
    job->ranks[hello->rank].conn = conn;
    struct job_event event = core_event(core, EV_HELLO);
    event.generation = hello->generation;
    event.rank = hello->rank;
    event.pid = hello->pid;
    event.flag = hello->attached;
    event.step = hello->step;
    struct jm_copy *copies = core_copies_offered(hello, &event.copy_count);
    event.copies = copies;
    (void)core_apply(core, job, &event);
    free(copies);
}

/* The job's pins are those of its first formation. */
static const char *compare_pins(struct core *core, struct core_job *job, const char *pins,
                                char out[LIMIT_REASON])
{
    if (!pins[0] || strcmp(job->pins, pins) == 0)
        return NULL;
    if (!job->pins[0]) {
        char *copy = strdup(pins);
        enum status st = copy ? journal_begin(core->options.journal) : ST_NO_MEMORY;
        if (st == ST_OK)
            st = journal_put_pins(core->options.journal, job->id, pins);
        if (st == ST_OK)
            st = journal_commit(core->options.journal);
        if (st != ST_OK) {
            free(copy);
            core_fail(core, st, "journalling the pins");
            return NULL;
        }
        free(job->pins);
        job->pins = copy;
        return NULL;
    }
    size_t at = 0;
    while (pins[at] && pins[at] == job->pins[at])
        at++;
    size_t from = at > 40 ? at - 40 : 0;
    (void)snprintf(
        out, LIMIT_REASON,
        "what bits depend on differs from the job's first formation: '%.80s' was '%.80s'",
        pins + from, job->pins + from);
    return out;
}

/* ---- the stream ---- */

static void on_ready(struct core *core, struct core_conn *conn, const Cairn__V1__Ready *ready)
{
    char difference[LIMIT_REASON];
    struct job_event event = core_event(core, EV_READY);
    event.generation = conn->generation;
    event.rank = conn->rank;
    event.total_steps = ready->total_steps;
    event.steps_per_epoch = ready->steps_per_epoch;
    event.step = ready->step;
    event.bytes = ready->state_bytes;
    event.message = compare_pins(core, conn->job, ready->pins, difference);
    (void)core_apply(core, conn->job, &event);
}

static void on_event(struct core *core, struct core_conn *conn,
                     const Cairn__V1__TrainerMessage *message)
{
    struct job_event event = core_event(core, EV_PROGRESS);
    event.generation = conn->generation;
    event.rank = conn->rank;
    struct jm_fault fault;
    switch ((int)message->body_case) {
    case CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS:
        event.step = message->progress->step;
        event.phase = message->progress->phase;
        event.counter = message->progress->counter;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_BEGIN:
        event.kind = EV_SAVE_BEGIN;
        event.step = message->save_begin->step;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_FAILED:
        event.kind = EV_SAVE_FAILED;
        event.step = message->save_failed->step;
        event.message = message->save_failed->message;
        event.full = message->save_failed->full;
        event.flag = message->save_failed->removed;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_PASSED:
        event.kind = EV_SAVE_PASSED;
        event.step = message->save_passed->step;
        event.at = message->save_passed->at;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_WANTED:
        event.kind = EV_SAVE_WANTED;
        event.flag = message->save_wanted->leaves;
        event.at = message->save_wanted->grace_ms;
        event.message = message->save_wanted->reason;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_FAULT:
        event.kind = EV_FAULT;
        fault = core_fault(message->fault);
        event.fault = &fault;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED:
        event.kind = EV_FINISHED;
        event.step = message->finished->step;
        break;
    default:
        return;
    }
    (void)core_apply(core, conn->job, &event);
}

void core_trainer_message(struct core *core, struct core_conn *conn,
                          const Cairn__V1__TrainerMessage *message)
{
    if (core->failed != ST_OK)
        return;
    if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO) {
        on_hello(core, conn, message->hello);
    } else if (!conn->job) {
        send_over(conn, "no hello came before, or this generation is over");
    } else if (conn->generation != conn->job->m.generation) {
        struct core_job *job = conn->job;
        if (job->ranks[conn->rank].conn == conn)
            job->ranks[conn->rank].conn = NULL;
        conn->job = NULL;
        send_over(conn, "this generation is over");
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_KV) {
        conn->job->m.ranks[conn->rank].heard_at = core_now(core);
        on_kv(core, conn->job, conn->rank, message->kv);
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS) {
        on_rows(core, conn, message->metrics);
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_REPORT) {
        core_take_report(core, conn->job, conn->rank, message->save_report);
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_READY) {
        on_ready(core, conn, message->ready);
    } else {
        on_event(core, conn, message);
    }
    core_settle(core);
}

void core_trainer_closed(struct core *core, struct core_conn *conn)
{
    struct core_job *job = conn->job;
    conn->job = NULL;
    if (!job)
        return;
    if (job->metrics_from == conn)
        job->metrics_from = NULL;
    if (job->ranks[conn->rank].conn != conn)
        return;
    job->ranks[conn->rank].conn = NULL;
    struct job_event event = core_event(core, EV_SESSION_LOST);
    event.generation = conn->generation;
    event.rank = conn->rank;
    (void)core_apply(core, job, &event);
    core_settle(core);
}
