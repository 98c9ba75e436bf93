/* Trainers: their connections, the fence of generations, reports, and what else they say. */
#include "server/coord/inputs/trainers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coord/apply.h"
#include "server/coord/index.h"
#include "server/coord/inputs/pins.h"
#include "server/coord/metrics.h"
#include "server/coord/orders.h"
#include "server/coord/outbox.h"
#include "server/coord/rendezvous.h"
#include "server/coord/usage.h"

#define COPIES_MAX 4096 /* of one hello */

/* ---- faults, reports, rows ---- */

struct fsm_fault coord_fault(const Cairn__V1__Fault *in)
{
    struct fsm_fault out = { .kind = (enum fsm_fault_kind)in->kind,
                             .rank = in->n_ranks > 0 ? in->ranks[0] : FSM_ALL_RANKS,
                             .step = in->step,
                             .of_node = in->of_node,
                             .outside = in->outside,
                             .stays = in->stays,
                             .shard = in->shard,
                             .good_step = in->good_step };
    if (in->kind <= CAIRN__V1__FAULT_KIND__FAULT_KIND_UNSPECIFIED ||
        in->kind > CAIRN__V1__FAULT_KIND__WRONG || in->kind == CAIRN__V1__FAULT_KIND__PATH)
        out.kind = FSM_FAULT_PROCESS;
    (void)snprintf(out.phase, sizeof(out.phase), "%.31s", in->phase);
    (void)snprintf(out.message, sizeof(out.message), "%.511s", in->message);
    return out;
}

/* True if the report's file has a name of its own in the folder, and its hashes are complete: else
 * it isn't journalled. */
static bool is_sound(const Cairn__V1__SaveReport *report)
{
    if (!report->file[0] || strlen(report->file) >= 64 || strchr(report->file, '/') != NULL ||
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

/* A time that comes from outside; 0 for what is far beyond any save. */
static int64_t sane_time(uint64_t us)
{
    return us < (uint64_t)1 << 50 ? (int64_t)us : 0;
}

void coord_take_report(struct coord *coord, struct coord_job *job, uint32_t rank,
                       const Cairn__V1__SaveReport *report)
{
    if (report->rank != rank || report->generation != job->m.generation)
        return;
    struct fsm_event event = coord_event_of(coord, FSM_EV_SAVE_REPORT, report->generation, rank);
    if (!is_sound(report)) {
        event.kind = FSM_EV_SAVE_FAILED;
        event.save_failed.step = report->step;
        event.save_failed.message = "a worker's report of its file makes no sense";
        (void)coord_apply(coord, job, &event);
        return;
    }
    int64_t stall_us = sane_time(report->stall_us), encode_us = sane_time(report->encode_us);
    event.save_report = (struct fsm_report){
        .step = report->step,
        /* If no core is free, encoding takes its processor time from that of the mathematics. */
        .cost_us = stall_us + encode_us / job->spec->workers.threads,
        .write_ms = sane_time(report->write_ms),
        .times = { .stall_us = stall_us,
                   .encode_us = encode_us,
                   .io_us = sane_time(report->io_us),
                   .sync_us = sane_time(report->sync_us) },
        .record = report,
    };
    (void)coord_apply(coord, job, &event);
}

static void take_rows(struct coord *coord, struct coord_conn *conn,
                      const Cairn__V1__MetricRows *rows)
{
    if (conn->rank != 0 || conn->spare)
        return;
    coord_take_rows(coord, conn->job, rows->rows, rows->n_rows);
    conn->job->metrics_from = conn;
    if (conn->job->rows.count >= COORD_ROWS_MAX)
        coord_flush_rows(coord, conn->job);
}

/* ---- hello ---- */

static bool same_token(const char *a, const char *b)
{
    size_t size = strlen(a);
    unsigned char difference = (unsigned char)(size != strlen(b) || size == 0);
    for (size_t i = 0; i < size && size == strlen(b); i++) /* as long for each wrong token */
        difference |= (unsigned char)(a[i] ^ b[i]);
    return difference == 0;
}

/* Lists the copies that the hello offers; free(). NULL: none. */
static struct fsm_copy *copies_offered(const Cairn__V1__TrainerHello *hello, size_t *out_count)
{
    const size_t count = hello->n_copies < COPIES_MAX ? hello->n_copies : COPIES_MAX;
    struct fsm_copy *list = count > 0 ? calloc(count, sizeof(*list)) : NULL;
    *out_count = list != NULL ? count : 0;
    for (size_t i = 0; i < *out_count; i++) {
        const Cairn__V1__MemoryCopy *from = hello->copies[i];
        list[i] = (struct fsm_copy){ .step = from->step,
                                     .generation = from->generation,
                                     .rank = from->rank,
                                     .size = from->size };
    }
    return list;
}

static struct fsm_parked_state parked_state_of(const Cairn__V1__Parked *parked)
{
    return (struct fsm_parked_state){ .complete = parked->complete,
                                      .step = parked->step,
                                      .computed_by = parked->computed_by,
                                      .part = parked->part,
                                      .parts = parked->parts };
}

/*
 * Returns the worker's rank in the generation that forms, if it was kept, or was a spare, and has
 * not heard of its rank, or lost what it heard. Else FSM_ALL_RANKS.
 */
static uint32_t find_regrouping(const struct coord_job *job, const struct coord_conn *conn,
                                const Cairn__V1__TrainerHello *hello)
{
    const struct fsm *m = &job->m;
    const uint32_t at = fsm_find_number(m, hello->rank, m->size);
    if (at == FSM_ALL_RANKS || !(m->state == FSM_FORMING || m->ending.parks))
        return FSM_ALL_RANKS;
    const struct fsm_rank *of = &m->ranks[at];
    const bool kept = hello->parked != NULL && hello->generation + 1 == m->generation &&
                      same_token(conn->token, m->token_before);
    const bool spare = hello->generation == of->birth && same_token(conn->token, m->spares.token);
    return (kept || spare) && of->birth < m->generation && !of->joined ? at : FSM_ALL_RANKS;
}

/* Returns the worker's place among the spares; FSM_ALL_RANKS: it is none, or none any more. */
static uint32_t find_spare(const struct coord_job *job, const struct coord_conn *conn,
                           const Cairn__V1__TrainerHello *hello)
{
    const struct fsm *m = &job->m;
    const uint32_t at = fsm_find_number(m, hello->rank, m->count);
    const bool is_one = at != FSM_ALL_RANKS && fsm_is_spare(m, at) && !m->ranks[at].ended &&
                        hello->generation == m->ranks[at].birth;
    return is_one && same_token(conn->token, m->spares.token) ? at : FSM_ALL_RANKS;
}

/* Admits a worker of the generation; false: it was told why it may have no session. */
static bool admit_member(struct coord *coord, struct coord_conn *conn, const struct coord_job *job,
                         const Cairn__V1__TrainerHello *hello)
{
    const struct fsm *m = &job->m;
    const uint32_t at = fsm_find_number(m, hello->rank, m->size);
    if (hello->generation != m->generation || at == FSM_ALL_RANKS || !fsm_alive_rank(m, at)) {
        coord_send_over_to(coord, conn, "this generation is over");
        return false;
    }
    if (!same_token(conn->token, m->token)) {
        coord_hang_up(coord, conn, RPC_UNAUTHENTICATED,
                      "not the token of this job and generation: workers get theirs from the agent "
                      "that starts them");
        return false;
    }
    if (fsm_is_over(m, at)) {
        coord_send_over_to(coord, conn, "this generation has ended");
        return false;
    }
    conn->rank = at;
    return true;
}

/* Returns the job of the worker at conn->rank, which may have a session; NULL: it was told why
 * not. */
static struct coord_job *admit_trainer(struct coord *coord, struct coord_conn *conn,
                                       const Cairn__V1__TrainerHello *hello)
{
    if (conn->greeted) {
        coord_hang_up(coord, conn, RPC_FAILED_PRECONDITION, "a stream has one hello");
        return NULL;
    }
    conn->greeted = true;
    struct coord_job *job = coord_job_at(coord, hello->job);
    if (job != NULL && coord_is_unreadable(job)) { /* the worker trains on, and asks again */
        coord_hang_up(coord, conn, RPC_UNAVAILABLE, job->unreadable);
        return NULL;
    }
    const uint32_t regroups = job != NULL ? find_regrouping(job, conn, hello) : FSM_ALL_RANKS;
    if (regroups != FSM_ALL_RANKS) {
        conn->regroups = true;
        coord_send_regroup(coord, job, regroups, conn);
        return NULL;
    }
    const uint32_t spare = job != NULL ? find_spare(job, conn, hello) : FSM_ALL_RANKS;
    if (spare != FSM_ALL_RANKS) {
        conn->spare = true;
        conn->rank = spare;
        return job;
    }
    if (job == NULL) {
        coord_send_over_to(coord, conn, "this generation is over");
        return NULL;
    }
    return admit_member(coord, conn, job, hello) ? job : NULL;
}

/*
 * Programs of one major and minor version understand each other. What they compute may differ in
 * its bits all the same, so that in a generation all are of the same version: of the coordinator's,
 * if one of them is. A job goes on with another one in a later generation.
 */
static bool version_fits(const struct coord_job *job, uint32_t at,
                         const Cairn__V1__TrainerHello *hello, struct fsm_fault *out)
{
    const struct fsm_rank *nodes = job->m.ranks;
    const char *said = coord_version_text(hello->version);
    uint32_t other = 0;
    out->rank = at;
    if (!coord_version_fits(hello->version)) {
        (void)snprintf(out->message, sizeof(out->message),
                       "this coordinator is of version %s, cairn-trainer on node %s of version "
                       "%.31s: install the same on both",
                       CAIRN_VERSION, nodes[at].node, said);
        return false;
    }
    while (other < job->m.size && (job->ranks[other].version_of != hello->generation ||
                                   strcmp(job->ranks[other].version, said) == 0))
        other++;
    if (other == job->m.size)
        return true;
    out->rank = strcmp(said, CAIRN_VERSION) == 0 ? other : at;
    (void)snprintf(out->message, sizeof(out->message),
                   "cairn-trainer is of version %.31s on node %.100s and %.31s on node %.100s: "
                   "install the same on both",
                   said, nodes[at].node, job->ranks[other].version, nodes[other].node);
    return false;
}

/* Ends the generation: the reason is the job's to show. It waits until the versions are equal, as
 * they will be at the end of a rolling upgrade. */
static void refuse_version(struct coord *coord, struct coord_conn *conn, struct coord_job *job,
                           struct fsm_fault fault)
{
    fault.kind = FSM_FAULT_FORMATION;
    fault.of_node = fault.waits = true;
    (void)snprintf(fault.phase, sizeof(fault.phase), "hello");
    struct fsm_event event = coord_event_of(coord, FSM_EV_FAULT, job->m.generation, conn->rank);
    event.fault = &fault;
    (void)coord_apply(coord, job, &event);
    coord_send_over_to(coord, conn, fault.message);
}

static void trainer_hello(struct coord *coord, struct coord_conn *conn,
                          const Cairn__V1__TrainerHello *hello)
{
    struct coord_job *job = admit_trainer(coord, conn, hello);
    if (job == NULL)
        return;
    struct fsm_fault fault = { .rank = conn->rank };
    if (!version_fits(job, conn->rank, hello, &fault)) {
        refuse_version(coord, conn, job, fault);
        return;
    }
    struct coord_rank *rank = &job->ranks[conn->rank];
    /* The worker is back: its first hello since the start. */
    if (hello->attached && rank->version_of != hello->generation)
        coord->hello_at = coord_now(coord);
    rank->version_of = hello->generation;
    (void)snprintf(rank->version, sizeof(rank->version), "%.31s",
                   coord_version_text(hello->version));
    struct coord_conn *old = rank->conn;
    if (old != NULL) {
        coord_detach(old);
        coord_hang_up(coord, old, RPC_ABORTED, "the worker opened another session");
    }
    conn->job = job;
    conn->generation = hello->generation;
    conn->number = hello->rank;
    rank->conn = conn;
    size_t copy_count;
    struct fsm_copy *copies = copies_offered(hello, &copy_count);
    struct fsm_event event = coord_event_of(coord, FSM_EV_HELLO, job->m.generation, conn->rank);
    event.hello = (struct fsm_hello){ .pid = hello->pid,
                                      .attached = hello->attached,
                                      .step = hello->step,
                                      .parked = hello->parked != NULL,
                                      .copies = copies,
                                      .copy_count = copy_count };
    if (hello->parked != NULL)
        event.hello.parked_state = parked_state_of(hello->parked);
    (void)coord_apply(coord, job, &event);
    free(copies);
}

/* ---- the stream ---- */

/* Notes why copies of the newest generation are missing. People are told where those before had
 * them, unless the job wants none. */
static void note_no_copies(struct coord *coord, struct coord_job *job, const char *why)
{
    struct coord_copies *copies = &job->copies;
    struct reason text;
    if (why[0] == '\0')
        return;
    reason_set(&copies->reason, "%s", why);
    if (copies->told || job->spec->checkpoint.memory_every == 0)
        return;
    copies->told = true;
    reason_set(&text, "%s: %s",
               copies->every == 0 ? "none in memory between saves" : "in memory, with a lack", why);
    coord_note(coord, job, "copies", text.text);
}

/* Notes what a rank says of its copies. All ranks take copies of the same steps; one that has no
 * room for them says why there are none. */
static void note_copies(struct coord *coord, struct coord_conn *conn, const Cairn__V1__Ready *ready)
{
    struct coord_copies *copies = &conn->job->copies;
    if (copies->generation != conn->generation) {
        *copies = (struct coord_copies){ .generation = conn->generation,
                                         .told = copies->reason.text[0] != '\0' };
    }
    copies->every = ready->memory_every;
    if (ready->memory_bytes > copies->bytes)
        copies->bytes = ready->memory_bytes;
    note_no_copies(coord, conn->job, ready->memory_reason);
}

static void trainer_ready(struct coord *coord, struct coord_conn *conn,
                          const Cairn__V1__Ready *ready)
{
    struct reason difference;
    if (!conn->spare)
        note_copies(coord, conn, ready);
    struct fsm_event event =
        coord_event_of(coord, FSM_EV_READY, conn->job->m.generation, conn->rank);
    event.ready = (struct fsm_ready){
        .total_steps = ready->total_steps,
        .steps_per_epoch = ready->steps_per_epoch,
        .state_bytes = ready->state_bytes,
        .last_step = ready->last_step,
        .last_reason = ready->last_reason,
    };
    coord_compare_pins(coord, conn->job, ready->pins, conn->job->m.ranks[conn->rank].node,
                       &event.ready, &difference);
    (void)coord_apply(coord, conn->job, &event);
}

/* Reads a message that is an event of the job's machine and nothing else; false: it is another one.
 * fault: the place for that of the event. */
static bool read_event(const Cairn__V1__TrainerMessage *message, struct fsm_event *event,
                       struct fsm_fault *fault)
{
    switch ((int)message->body_case) {
    case CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS:
        event->kind = FSM_EV_PROGRESS;
        event->progress = (struct fsm_progress){ .step = message->progress->step,
                                                 .phase = message->progress->phase,
                                                 .counter = message->progress->counter,
                                                 .saving = message->progress->saving,
                                                 .at_store = message->progress->at_store,
                                                 .collectives = message->progress->collectives,
                                                 .collective = message->progress->collective,
                                                 .exchanges = message->progress->exchanges,
                                                 .audited = message->progress->audited,
                                                 .lanes = message->progress->lanes,
                                                 .timed = { message->progress->timed_steps,
                                                            message->progress->timed_us } };
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_BEGIN:
        event->kind = FSM_EV_SAVE_BEGIN;
        event->save_begin.step = message->save_begin->step;
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_FAILED:
        event->kind = FSM_EV_SAVE_FAILED;
        event->save_failed.step = message->save_failed->step;
        event->save_failed.full = message->save_failed->full;
        event->save_failed.removed = message->save_failed->removed;
        event->save_failed.message = message->save_failed->message;
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_PASSED:
        event->kind = FSM_EV_SAVE_PASSED;
        event->save_passed.step = message->save_passed->step;
        event->save_passed.at = message->save_passed->at;
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_WANTED:
        event->kind = FSM_EV_SAVE_WANTED;
        event->save_wanted.leaves = message->save_wanted->leaves;
        event->save_wanted.grace_ms = message->save_wanted->grace_ms;
        event->save_wanted.why = message->save_wanted->reason;
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_READ_BACK:
        event->kind = FSM_EV_READ_BACK;
        event->read_back =
            (struct fsm_read_state){ .step = message->read_back->step,
                                     .generation = message->read_back->generation,
                                     .shard = message->read_back->shard,
                                     .bytes = message->read_back->bytes,
                                     .done = message->read_back->done,
                                     .status = (enum status)message->read_back->status,
                                     .message = message->read_back->message };
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_FAULT:
        event->kind = FSM_EV_FAULT;
        *fault = coord_fault(message->fault);
        event->fault = fault;
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED:
        event->kind = FSM_EV_PARKED;
        event->parked = parked_state_of(message->parked);
        return true;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED:
        event->kind = FSM_EV_FINISHED;
        event->finished.step = message->finished->step;
        return true;
    }
    return false;
}

static void apply_message(struct coord *coord, struct coord_conn *conn,
                          const Cairn__V1__TrainerMessage *message)
{
    struct fsm_fault fault;
    struct fsm_event event =
        coord_event_of(coord, FSM_EV_TICK, conn->job->m.generation, conn->rank);
    if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS &&
        message->progress->memory_every > 0 && !conn->spare)
        conn->job->copies.every = message->progress->memory_every;
    if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS && !conn->spare) {
        coord_note_rank_report(conn->job, conn->rank, message->progress);
        note_no_copies(coord, conn->job, message->progress->memory_reason);
    }
    if (read_event(message, &event, &fault))
        (void)coord_apply(coord, conn->job, &event);
}

static void note_heard(struct coord *coord, const struct coord_conn *conn)
{
    const struct coord_node *on = conn->job != NULL ? conn->job->ranks[conn->rank].node : NULL;
    if (on != NULL && !on->local && (conn->spare || conn->generation == conn->job->m.generation))
        isolation_heard(&coord->isolation);
}

/* True if the worker's rank goes on in a generation that forms, and has not come there yet. */
static bool regroups(const struct coord_conn *conn)
{
    const struct fsm *m = &conn->job->m;
    const bool before = conn->spare || conn->generation + 1 == m->generation;
    return conn->rank < m->size && (m->state == FSM_FORMING || m->ending.parks) && before &&
           m->ranks[conn->rank].birth < m->generation && !m->ranks[conn->rank].joined;
}

/* True if the connection's worker is a spare, and not an earlier one that had this place. */
static bool is_of_spare(const struct coord_conn *conn)
{
    const struct fsm *m = &conn->job->m;
    const struct fsm_rank *of = &m->ranks[conn->rank];
    return conn->spare && fsm_is_spare(m, conn->rank) && !of->gone && of->number == conn->number &&
           of->birth == conn->generation;
}

/* Takes a message of a worker without a part in the generation, which says nothing about one. */
static void hear_spare(struct coord *coord, struct coord_conn *conn,
                       const Cairn__V1__TrainerMessage *message)
{
    if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_READY) {
        trainer_ready(coord, conn, message->ready);
    } else {
        apply_message(coord, conn, message);
    }
}

/* Takes a message that a worker sent before it heard of its new generation: only rows count, as
 * nobody trains them again. */
static void hear_before_regroup(struct coord *coord, struct coord_conn *conn,
                                const Cairn__V1__TrainerMessage *message)
{
    if (conn->job != NULL && message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS)
        take_rows(coord, conn, message->metrics);
}

void coord_trainer_message(struct coord *coord, struct coord_conn *conn,
                           const Cairn__V1__TrainerMessage *message)
{
    if (coord->failed != ST_OK)
        return;
    note_heard(coord, conn);
    if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO) {
        trainer_hello(coord, conn, message->hello);
    } else if (conn->job == NULL && !conn->regroups) { /* else the worker goes, and comes again */
        coord_send_over_to(coord, conn, "no hello came before, or this generation is over");
    } else if (conn->job == NULL || regroups(conn)) {
        hear_before_regroup(coord, conn, message);
    } else if (is_of_spare(conn)) {
        hear_spare(coord, conn, message);
    } else if (conn->spare || conn->generation != conn->job->m.generation) {
        coord_detach(conn);
        coord_send_over_to(coord, conn, "this generation is over");
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_JOIN) {
        conn->job->m.ranks[conn->rank].heard_at = coord_now(coord);
        coord_rendezvous_join(coord, conn->job, conn->rank, message->join);
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS) {
        take_rows(coord, conn, message->metrics);
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_REPORT) {
        coord_take_report(coord, conn->job, conn->rank, message->save_report);
    } else if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_READY) {
        trainer_ready(coord, conn, message->ready);
    } else {
        apply_message(coord, conn, message);
    }
    coord_bound_group(coord);
}

void coord_trainer_closed(struct coord *coord, struct coord_conn *conn)
{
    struct coord_job *job = conn->job;
    const bool spare = job != NULL && is_of_spare(conn);
    coord_outbox_forget(coord, conn);
    coord_detach(conn);
    if (job == NULL || (conn->spare && !spare))
        return;
    struct fsm_event event = coord_event_of(
        coord, FSM_EV_SESSION_LOST, spare ? job->m.generation : conn->generation, conn->rank);
    (void)coord_apply(coord, job, &event);
    coord_bound_group(coord);
}
