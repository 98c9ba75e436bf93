/* Inputs of the state machine: the link, calls of the step thread, announced saves, orders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "session/fsm.h"

/* ---- lifecycle ---- */

enum status session_fsm_init(struct session_fsm *fsm, const char *job, uint32_t generation,
                             uint32_t number, uint32_t pid, int64_t now_ms)
{
    memset(fsm, 0, sizeof(*fsm));
    fsm->job = job;
    fsm->generation = generation;
    fsm->number = number;
    fsm->pid = pid;
    fsm->down_since_ms = now_ms;
    fsm->now_ms = now_ms;
    fsm->progress_said.phase = "";
    session_fsm_files(fsm, 1, 1);
    return ST_OK;
}

void session_fsm_release(struct session_fsm *fsm)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++)
        cairn__v1__save_report__free_unpacked(fsm->saves[i].report, NULL);
    if (fsm->assigned != NULL)
        cairn__v1__trainer_order__free_unpacked(fsm->assigned, NULL);
    for (int i = 0; i < RENDEZVOUS_ROUNDS; i++) {
        free(fsm->rounds[i].items);
        if (fsm->rounds[i].answer != NULL)
            cairn__v1__trainer_order__free_unpacked(fsm->rounds[i].answer, NULL);
    }
    free(fsm->pins);
    free(fsm->copies);
    free(fsm->copy_list);
    free(fsm->ready_pins);
    free(fsm->rows);
    memset(fsm, 0, sizeof(*fsm));
}

/* ---- link ---- */

void session_fsm_link_up(struct session_fsm *fsm)
{
    fsm->up = true;
    fsm->ever_up = true;
    fsm->hello_said = false;
    fsm->ready_said = false;
    fsm->fault.said = false;
    fsm->wanted.said = false;
    fsm->read.said = false;
    fsm->finished_said = false;
    fsm->row_said = fsm->row_first;
    fsm->progress_ms = 0;
    for (int i = 0; i < RENDEZVOUS_ROUNDS; i++)
        fsm->rounds[i].said = false;
    session_saves_link_up(fsm);
}

void session_fsm_link_down(struct session_fsm *fsm, int64_t now_ms)
{
    fsm->now_ms = now_ms;
    if (fsm->up)
        fsm->down_since_ms = now_ms;
    fsm->up = false;
}

/* ---- local calls ---- */

enum status session_fsm_offer(struct session_fsm *fsm, const struct session_copy *copies,
                              size_t count)
{
    CHECK(fsm->copies == NULL && fsm->pins == NULL);
    if (count == 0)
        return ST_OK;
    fsm->copies = calloc(count, sizeof(*fsm->copies));
    fsm->copy_list =
        calloc(count, sizeof(*fsm->copy_list)); /* NOLINT(bugprone-sizeof-expression) */
    if (fsm->copies == NULL || fsm->copy_list == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        Cairn__V1__MemoryCopy *to = &fsm->copies[i];
        cairn__v1__memory_copy__init(to);
        to->generation = copies[i].generation;
        to->step = copies[i].step;
        to->rank = copies[i].rank;
        to->size = copies[i].size;
        to->bytes = copies[i].bytes;
        fsm->copy_list[i] = to;
    }
    fsm->copy_count = count;
    return ST_OK;
}

enum status session_fsm_hello(struct session_fsm *fsm, const char *pins)
{
    CHECK(fsm->pins == NULL);
    fsm->pins = strdup(pins);
    return fsm->pins == NULL ? ST_NO_MEMORY : ST_OK;
}

enum status session_fsm_ready(struct session_fsm *fsm, const struct session_ready *ready)
{
    CHECK(!fsm->ready_known);
    const bool tells_rows = fsm->rank == 0 && !session_fsm_is_spare(fsm);
    if (tells_rows) /* never touched by most jobs beyond a few pages */
        fsm->rows = calloc(LIMIT_METRIC_ROWS, sizeof(*fsm->rows));
    fsm->ready_pins = strdup(ready->pins);
    if (fsm->ready_pins == NULL || (tells_rows && fsm->rows == NULL))
        return ST_NO_MEMORY;
    fsm->ready = *ready;
    fsm->ready.pins = fsm->ready_pins;
    fsm->planned_steps = ready->total_steps;
    reason_set(&fsm->memory_reason, "%s", ready->memory_reason != NULL ? ready->memory_reason : "");
    fsm->ready.memory_reason = fsm->memory_reason.text;
    fsm->ready_known = true;
    fsm->due_step = fsm->asked_step = ready->step;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &fsm->announced[i];
        if (one->state == SESSION_ANNOUNCED_AHEAD && one->step <= ready->step) {
            one->state = SESSION_ANNOUNCED_PASSED;
            one->at = ready->step;
        }
    }
    return ST_OK;
}

void session_fsm_last(struct session_fsm *fsm, uint64_t step, const char *reason)
{
    CHECK(fsm->ready_known);
    CHECK(step <= fsm->ready.total_steps);
    fsm->ready.total_steps = fsm->last_step = step;
    reason_set(&fsm->last_reason, "%s", reason);
    fsm->ready_said = false;
}

void session_fsm_row(struct session_fsm *fsm, const struct session_row *row, int64_t wall_ms)
{
    if (fsm->rows == NULL)
        return;
    if (fsm->row_end - fsm->row_first == LIMIT_METRIC_ROWS) {
        fsm->row_first++; /* the oldest goes */
        if (fsm->row_said < fsm->row_first)
            fsm->row_said = fsm->row_first;
    }
    CHECK(fsm->row_first <= fsm->row_said);
    CHECK(fsm->row_said <= fsm->row_end);
    struct session_row_record *record = &fsm->rows[fsm->row_end++ % LIMIT_METRIC_ROWS];
    record->row = *row;
    record->wall_ms = wall_ms;
}

void session_fsm_note_lanes(struct session_fsm *fsm, uint32_t lanes, int64_t us)
{
    fsm->timed.lanes = lanes;
    fsm->timed.steps++;
    fsm->timed.us += us > 0 ? (uint64_t)us : 0;
}

void session_fsm_fault(struct session_fsm *fsm, const struct session_fault_record *fault)
{
    if (fsm->fault.known)
        return; /* the first cause counts */
    fsm->fault = *fault;
    fsm->fault.known = true;
    fsm->fault.said = false;
    fsm->fault.said_ever = false;
    fsm->last_words_version++;
}

void session_fsm_wanted(struct session_fsm *fsm, bool leaves, uint64_t grace_ms, const char *reason)
{
    struct session_wanted_record *wanted = &fsm->wanted;
    if (wanted->known && wanted->leaves)
        return;
    *wanted =
        (struct session_wanted_record){ .known = true, .leaves = leaves, .grace_ms = grace_ms };
    (void)snprintf(wanted->reason, sizeof(wanted->reason), "%s", reason);
}

void session_fsm_finished(struct session_fsm *fsm, uint64_t step)
{
    fsm->finished = true;
    fsm->finished_step = step;
    fsm->last_words_version++;
}

/* ---- rounds ---- */

/* The record of that name, or a free one; NULL: there is neither. */
static struct session_rendezvous_round *round_at(struct session_fsm *fsm, const char *name)
{
    struct session_rendezvous_round *vacant = NULL;
    for (int i = 0; i < RENDEZVOUS_ROUNDS; i++) {
        struct session_rendezvous_round *one = &fsm->rounds[i];
        if (strcmp(one->name, name) == 0)
            return one;
        if (vacant == NULL && one->name[0] == '\0')
            vacant = one;
    }
    return vacant;
}

enum status session_fsm_rendezvous_join(struct session_fsm *fsm, const char *name,
                                        const struct rendezvous_part *mine, uint32_t ranks,
                                        const struct session_rendezvous_round **out)
{
    CHECK(name[0] != '\0');
    if (session_fsm_ended(fsm))
        return ST_STALE;
    if (strlen(name) >= RENDEZVOUS_NAME || ranks < 1 || ranks > LIMIT_RANKS ||
        mine->common_size > RENDEZVOUS_COMMON_MAX || mine->item_size > RENDEZVOUS_ITEM_MAX)
        return ST_INVALID;
    struct session_rendezvous_round *round = round_at(fsm, name);
    if (round == NULL)
        return ST_FULL;
    *out = round;
    if (round->name[0] != '\0')
        return round->ranks == ranks ? ST_OK : ST_INVALID;
    const size_t size = ranks * mine->item_size;
    uint8_t *items = malloc(size > 0 ? size : 1);
    if (items == NULL)
        return ST_NO_MEMORY;
    if (size > 0)
        memcpy(items, mine->items, size);
    *round = (struct session_rendezvous_round){ .ranks = ranks,
                                                .common_size = mine->common_size,
                                                .item_size = mine->item_size,
                                                .items = items };
    if (mine->common_size > 0)
        memcpy(round->common, mine->common, mine->common_size);
    (void)snprintf(round->name, sizeof(round->name), "%s", name);
    return ST_OK;
}

enum status session_fsm_rendezvous_result(const struct session_rendezvous_round *round,
                                          struct rendezvous_got *out)
{
    CHECK(round->answered);
    const Cairn__V1__RendezvousResult *joined = round->answer->joined;
    if (joined->status != ST_OK)
        return (enum status)joined->status;
    if (joined->n_commons != round->ranks || joined->items.len != round->ranks * round->item_size)
        return ST_INVALID;
    for (size_t r = 0; r < joined->n_commons; r++) {
        const ProtobufCBinaryData *common = &joined->commons[r];
        if (common->len > RENDEZVOUS_COMMON_MAX)
            return ST_INVALID;
        memset(&out[r], 0, sizeof(out[r]));
        out[r].common_size = common->len;
        if (common->len > 0)
            memcpy(out[r].common, common->data, common->len);
        if (round->item_size > 0)
            memcpy(out[r].item, joined->items.data + r * round->item_size, round->item_size);
    }
    return ST_OK;
}

/* ---- announced saves ---- */

static bool is_regular(const struct session_fsm *fsm, uint64_t step)
{
    if (!fsm->ready_known)
        return false;
    const uint64_t every = fsm->ready.save_every;
    return step == fsm->ready.total_steps || (every > 0 && step % every == 0);
}

static void announced_pass(struct session_announced *announced, uint64_t at)
{
    announced->state = SESSION_ANNOUNCED_PASSED;
    announced->at = at;
    announced->said = false;
}

/* A record for a newly announced step: one that is done with, else the lowest step's. */
static struct session_announced *announced_vacant(struct session_fsm *fsm)
{
    struct session_announced *lowest = &fsm->announced[0];
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &fsm->announced[i];
        if (one->state == SESSION_ANNOUNCED_NONE)
            return one;
        if (one->step < lowest->step)
            lowest = one;
    }
    return lowest;
}

static void order_stay(struct session_fsm *fsm, uint64_t step)
{
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        if (fsm->announced[i].step == step)
            memset(&fsm->announced[i], 0, sizeof(fsm->announced[i]));
    }
    const bool last = fsm->ready_known && step == fsm->ready.total_steps;
    if (fsm->leaves && fsm->due_step == step && !last)
        fsm->stays = true; /* after the job's last step there is nothing to train on */
}

static void order_save_at(struct session_fsm *fsm, const Cairn__V1__SaveAt *save_at)
{
    if (session_fsm_ended(fsm))
        return;
    if (save_at->then == CAIRN__V1__SAVE_AT__THEN__STAY) {
        order_stay(fsm, save_at->step);
        return;
    }
    const bool exits = save_at->then == CAIRN__V1__SAVE_AT__THEN__EXIT;
    if (exits && fsm->exits_ms == 0)
        fsm->exits_ms = fsm->now_ms;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &fsm->announced[i];
        if (one->state == SESSION_ANNOUNCED_NONE || one->step != save_at->step)
            continue;
        /* This was said before: a coordinator that asks again did not hear the answer. */
        one->said = false;
        one->exits = one->exits || exits;
        if (one->state != SESSION_ANNOUNCED_TAKEN)
            return;
        if (exits && fsm->due_step > one->step)
            announced_pass(one, fsm->due_step);
        return;
    }
    const bool past = fsm->ready_known && save_at->step <= fsm->due_step;
    if (past && save_at->step == fsm->ready.total_steps)
        return; /* nobody goes on from it: said to have passed, it would be announced for ever */
    if (past && !exits && is_regular(fsm, save_at->step) && save_at->step > fsm->ready.step)
        return; /* the step was saved anyway */
    struct session_announced *one = announced_vacant(fsm);
    *one = (struct session_announced){ .state = SESSION_ANNOUNCED_AHEAD,
                                       .step = save_at->step,
                                       .exits = exits };
    if (past)
        announced_pass(one, fsm->due_step);
}

enum session_due session_fsm_due_by_rule(const struct session_fsm *fsm, uint64_t step)
{
    const uint64_t copies = fsm->ready_known ? fsm->ready.memory_every : 0;
    if (is_regular(fsm, step))
        return SESSION_DUE_SAVE;
    return copies > 0 && step % copies == 0 ? SESSION_DUE_COPY : SESSION_DUE_NOTHING;
}

enum session_due session_fsm_due(struct session_fsm *fsm, uint64_t step)
{
    if (session_fsm_ended(fsm))
        return SESSION_DUE_NOTHING;
    enum session_due due = session_fsm_due_by_rule(fsm, step);
    fsm->due_step = fsm->asked_step = step;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &fsm->announced[i];
        if (one->state != SESSION_ANNOUNCED_AHEAD || one->step > step)
            continue;
        if (one->step < step) {
            announced_pass(one, step);
            continue;
        }
        one->state = SESSION_ANNOUNCED_TAKEN;
        due = one->exits || due == SESSION_DUE_SAVE_AND_EXIT ? SESSION_DUE_SAVE_AND_EXIT
                                                             : SESSION_DUE_SAVE;
    }
    fsm->leaves = due == SESSION_DUE_SAVE_AND_EXIT;
    fsm->stays = false;
    return due;
}

void session_fsm_reached(struct session_fsm *fsm, uint64_t step)
{
    if (!fsm->ready_known || step <= fsm->due_step)
        return;
    fsm->due_step = step < fsm->ready.total_steps ? step : fsm->ready.total_steps;
}

/* Returns the first multiple of `every` after `step`; every 0: none. */
static uint64_t next_multiple(uint64_t step, uint64_t every)
{
    if (every == 0 || step > UINT64_MAX - every)
        return UINT64_MAX;
    return (step / every + 1) * every;
}

static uint64_t lower_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t session_fsm_next_due(const struct session_fsm *fsm)
{
    if (session_fsm_ended(fsm))
        return 0;
    if (!fsm->ready_known)
        return UINT64_MAX;
    /* A rank that has reached a step may not have looked yet what is due: what it asked for counts.
     * The last step stays due: its save may be dropped. */
    const uint64_t step = fsm->asked_step;
    uint64_t next = fsm->ready.total_steps;
    next = lower_of(next, next_multiple(step, fsm->ready.save_every));
    next = lower_of(next, next_multiple(step, fsm->ready.memory_every));
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        if (fsm->announced[i].state == SESSION_ANNOUNCED_AHEAD)
            next = lower_of(next, fsm->announced[i].step);
    }
    return next;
}

/* ---- orders ---- */

static void order_joined(struct session_fsm *fsm, Cairn__V1__TrainerOrder **order)
{
    for (int i = 0; i < RENDEZVOUS_ROUNDS; i++) {
        struct session_rendezvous_round *round = &fsm->rounds[i];
        if (round->answered || round->name[0] == '\0' ||
            strcmp(round->name, (*order)->joined->name) != 0)
            continue;
        round->answered = true;
        round->answer = *order;
        *order = NULL;
        return;
    }
}

static void order_metric_ack(struct session_fsm *fsm, const Cairn__V1__MetricAck *ack)
{
    if (fsm->rows == NULL)
        return;
    if (ack->through_step > fsm->row_known)
        fsm->row_known = ack->through_step;
    while (fsm->row_first < fsm->row_end &&
           fsm->rows[fsm->row_first % LIMIT_METRIC_ROWS].row.step <= ack->through_step)
        fsm->row_first++;
    if (fsm->row_said < fsm->row_first)
        fsm->row_said = fsm->row_first;
}

static void order_assignment(struct session_fsm *fsm, Cairn__V1__TrainerOrder **order)
{
    if (fsm->assigned != NULL || session_fsm_ended(fsm))
        return; /* said twice, or too late */
    fsm->assigned = *order;
    *order = NULL;
    const Cairn__V1__Plan *plan = fsm->assigned->plan;
    fsm->rank = plan->rank;
    if (plan->spare) {
        fsm->park.state = SESSION_PARK_ASKED;
        return;
    }
    for (size_t i = 0; i < plan->n_saves; i++)
        order_save_at(fsm, plan->saves[i]);
}

/* Asked again for what is under way, or done, it says again how far it is; what could not be read
 * is tried anew. */
static void order_read_back(struct session_fsm *fsm, const Cairn__V1__ReadBack *order)
{
    struct session_read_record *read = &fsm->read;
    const bool same = read->order.generation == order->generation &&
                      read->order.step == order->step && read->order.shards == order->shards;
    const bool failed = read->known && read->news.done && read->news.status != ST_OK;
    if (fsm->assigned == NULL || session_fsm_ended(fsm) ||
        strlen(order->dir) >= sizeof(read->order.dir))
        return;
    read->said = false;
    if (same && !failed)
        return;
    *read = (struct session_read_record){
        .fresh = true,
        .order = { .step = order->step,
                   .generation = order->generation,
                   .shards = order->shards,
                   .rank = fsm->rank,
                   .ranks = fsm->assigned->plan->size,
                   .bytes = order->bytes,
                   .spread_ms = order->spread_ms },
    };
    (void)snprintf(read->order.dir, sizeof(read->order.dir), "%s", order->dir);
}

bool session_fsm_read_order(struct session_fsm *fsm, struct readback_order *out)
{
    if (!fsm->read.fresh || session_fsm_ended(fsm))
        return false;
    fsm->read.fresh = false;
    *out = fsm->read.order;
    return true;
}

void session_fsm_read_news(struct session_fsm *fsm, const struct readback_news *news)
{
    struct session_read_record *read = &fsm->read;
    if (news->step != read->order.step || news->generation != read->order.generation || read->fresh)
        return; /* of an order before this one */
    read->known = true;
    read->said = false;
    read->news = *news;
}

bool session_fsm_writes(const struct session_fsm *fsm)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        if (fsm->saves[i].state == SESSION_SAVE_WRITING)
            return true;
    }
    return false;
}

void session_fsm_order(struct session_fsm *fsm, Cairn__V1__TrainerOrder *order, int64_t now_ms)
{
    fsm->now_ms = now_ms;
    switch (order->body_case) {
    case CAIRN__V1__TRAINER_ORDER__BODY_PLAN:
        order_assignment(fsm, &order);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_JOINED:
        order_joined(fsm, &order);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_METRIC_ACK:
        order_metric_ack(fsm, order->metric_ack);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_FOLDER:
        session_order_folder(fsm, order->save_folder);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE:
        session_order_done(fsm, order->save_done);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT:
        order_save_at(fsm, order->save_at);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_READ_BACK:
        order_read_back(fsm, order->read_back);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_PARK:
        session_order_park(fsm, order->park);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_REGROUP:
        session_order_regroup(fsm, order->regroup);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_OVER:
        session_fsm_end(fsm, order->over->reason);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY__NOT_SET: /* an order of a later version */
    case _CAIRN__V1__TRAINER_ORDER__BODY__CASE_IS_INT_SIZE:
        break;
    }
    if (order != NULL)
        cairn__v1__trainer_order__free_unpacked(order, NULL);
}
