/* Inputs of the state machine: the link, calls of the step thread, announced saves, orders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "session/core.h"

/* ---- lifecycle ---- */

enum status session_core_init(struct session_core *core, const char *job, uint32_t generation,
                              uint32_t number, uint32_t pid, int64_t now_ms)
{
    memset(core, 0, sizeof(*core));
    core->job = job;
    core->generation = generation;
    core->number = number;
    core->pid = pid;
    core->down_since_ms = now_ms;
    core->now_ms = now_ms;
    core->progress_said.phase = "";
    session_core_files(core, 1, 1);
    return ST_OK;
}

void session_core_release(struct session_core *core)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++)
        cairn__v1__save_report__free_unpacked(core->saves[i].report, NULL);
    if (core->assigned != NULL)
        cairn__v1__trainer_order__free_unpacked(core->assigned, NULL);
    for (int i = 0; i < RENDEZVOUS_MEETINGS; i++) {
        free(core->meetings[i].items);
        if (core->meetings[i].answer != NULL)
            cairn__v1__trainer_order__free_unpacked(core->meetings[i].answer, NULL);
    }
    free(core->pins);
    free(core->copies);
    free(core->copy_list);
    free(core->ready_pins);
    free(core->rows);
    memset(core, 0, sizeof(*core));
}

/* ---- link ---- */

void session_core_link_up(struct session_core *core)
{
    core->up = true;
    core->ever_up = true;
    core->hello_said = false;
    core->ready_said = false;
    core->fault.said = false;
    core->wanted.said = false;
    core->read.said = false;
    core->finished_said = false;
    core->row_said = core->row_first;
    core->progress_ms = 0;
    for (int i = 0; i < RENDEZVOUS_MEETINGS; i++)
        core->meetings[i].said = false;
    session_saves_link_up(core);
}

void session_core_link_down(struct session_core *core, int64_t now_ms)
{
    core->now_ms = now_ms;
    if (core->up)
        core->down_since_ms = now_ms;
    core->up = false;
}

/* ---- local calls ---- */

enum status session_core_offer(struct session_core *core, const struct session_copy *copies,
                               size_t count)
{
    CHECK(core->copies == NULL && core->pins == NULL);
    if (count == 0)
        return ST_OK;
    core->copies = calloc(count, sizeof(*core->copies));
    core->copy_list =
        calloc(count, sizeof(*core->copy_list)); /* NOLINT(bugprone-sizeof-expression) */
    if (core->copies == NULL || core->copy_list == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        Cairn__V1__MemoryCopy *to = &core->copies[i];
        cairn__v1__memory_copy__init(to);
        to->generation = copies[i].generation;
        to->step = copies[i].step;
        to->rank = copies[i].rank;
        to->size = copies[i].size;
        to->bytes = copies[i].bytes;
        core->copy_list[i] = to;
    }
    core->copy_count = count;
    return ST_OK;
}

enum status session_core_hello(struct session_core *core, const char *pins)
{
    CHECK(core->pins == NULL);
    core->pins = strdup(pins);
    return core->pins == NULL ? ST_NO_MEMORY : ST_OK;
}

enum status session_core_ready(struct session_core *core, const struct session_ready *ready)
{
    CHECK(!core->ready_known);
    const bool tells_rows = core->rank == 0 && !session_core_is_spare(core);
    if (tells_rows) /* never touched by most jobs beyond a few pages */
        core->rows = calloc(LIMIT_METRIC_ROWS, sizeof(*core->rows));
    core->ready_pins = strdup(ready->pins);
    if (core->ready_pins == NULL || (tells_rows && core->rows == NULL))
        return ST_NO_MEMORY;
    core->ready = *ready;
    core->ready.pins = core->ready_pins;
    reason_set(&core->memory_reason, "%s",
               ready->memory_reason != NULL ? ready->memory_reason : "");
    core->ready.memory_reason = core->memory_reason.text;
    core->ready_known = true;
    core->due_step = ready->step;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &core->announced[i];
        if (one->state == SESSION_ANNOUNCED_AHEAD && one->step <= ready->step) {
            one->state = SESSION_ANNOUNCED_PASSED;
            one->at = ready->step;
        }
    }
    return ST_OK;
}

void session_core_row(struct session_core *core, const struct session_row *row, int64_t wall_ms)
{
    if (core->rows == NULL)
        return;
    if (core->row_end - core->row_first == LIMIT_METRIC_ROWS) {
        core->row_first++; /* the oldest goes */
        if (core->row_said < core->row_first)
            core->row_said = core->row_first;
    }
    CHECK(core->row_first <= core->row_said);
    CHECK(core->row_said <= core->row_end);
    struct session_row_record *record = &core->rows[core->row_end++ % LIMIT_METRIC_ROWS];
    record->row = *row;
    record->wall_ms = wall_ms;
}

void session_core_note_lanes(struct session_core *core, uint32_t lanes, int64_t us)
{
    core->timed.lanes = lanes;
    core->timed.steps++;
    core->timed.us += us > 0 ? (uint64_t)us : 0;
}

void session_core_fault(struct session_core *core, const struct session_fault_record *fault)
{
    if (core->fault.known)
        return; /* the first cause counts */
    core->fault = *fault;
    core->fault.known = true;
    core->fault.said = false;
    core->fault.said_ever = false;
    core->last_words_version++;
}

void session_core_wanted(struct session_core *core, bool leaves, uint64_t grace_ms,
                         const char *reason)
{
    struct session_wanted_record *wanted = &core->wanted;
    if (wanted->known && wanted->leaves)
        return;
    *wanted =
        (struct session_wanted_record){ .known = true, .leaves = leaves, .grace_ms = grace_ms };
    (void)snprintf(wanted->reason, sizeof(wanted->reason), "%s", reason);
}

void session_core_finished(struct session_core *core, uint64_t step)
{
    core->finished = true;
    core->finished_step = step;
    core->last_words_version++;
}

/* ---- meetings ---- */

/* The record of that name, or a free one; NULL: there is neither. */
static struct session_meeting *meeting_at(struct session_core *core, const char *name)
{
    struct session_meeting *vacant = NULL;
    for (int i = 0; i < RENDEZVOUS_MEETINGS; i++) {
        struct session_meeting *one = &core->meetings[i];
        if (strcmp(one->name, name) == 0)
            return one;
        if (vacant == NULL && one->name[0] == '\0')
            vacant = one;
    }
    return vacant;
}

enum status session_core_meet(struct session_core *core, const char *name,
                              const struct rendezvous_part *mine, uint32_t ranks,
                              const struct session_meeting **out)
{
    CHECK(name[0] != '\0');
    if (session_core_ended(core))
        return ST_STALE;
    if (strlen(name) >= RENDEZVOUS_NAME || ranks < 1 || ranks > LIMIT_RANKS ||
        mine->common_size > RENDEZVOUS_COMMON_MAX || mine->item_size > RENDEZVOUS_ITEM_MAX)
        return ST_INVALID;
    struct session_meeting *meeting = meeting_at(core, name);
    if (meeting == NULL)
        return ST_FULL;
    *out = meeting;
    if (meeting->name[0] != '\0')
        return meeting->ranks == ranks ? ST_OK : ST_INVALID;
    const size_t size = ranks * mine->item_size;
    uint8_t *items = malloc(size > 0 ? size : 1);
    if (items == NULL)
        return ST_NO_MEMORY;
    if (size > 0)
        memcpy(items, mine->items, size);
    *meeting = (struct session_meeting){ .ranks = ranks,
                                         .common_size = mine->common_size,
                                         .item_size = mine->item_size,
                                         .items = items };
    if (mine->common_size > 0)
        memcpy(meeting->common, mine->common, mine->common_size);
    (void)snprintf(meeting->name, sizeof(meeting->name), "%s", name);
    return ST_OK;
}

enum status session_core_met(const struct session_meeting *meeting, struct rendezvous_got *out)
{
    CHECK(meeting->answered);
    const Cairn__V1__Met *met = meeting->answer->met;
    if (met->status != ST_OK)
        return (enum status)met->status;
    if (met->n_commons != meeting->ranks || met->items.len != meeting->ranks * meeting->item_size)
        return ST_INVALID;
    for (size_t r = 0; r < met->n_commons; r++) {
        const ProtobufCBinaryData *common = &met->commons[r];
        if (common->len > RENDEZVOUS_COMMON_MAX)
            return ST_INVALID;
        memset(&out[r], 0, sizeof(out[r]));
        out[r].common_size = common->len;
        if (common->len > 0)
            memcpy(out[r].common, common->data, common->len);
        if (meeting->item_size > 0)
            memcpy(out[r].item, met->items.data + r * meeting->item_size, meeting->item_size);
    }
    return ST_OK;
}

/* ---- announced saves ---- */

static bool is_regular(const struct session_core *core, uint64_t step)
{
    if (!core->ready_known)
        return false;
    const uint64_t every = core->ready.save_every;
    return step == core->ready.total_steps || (every > 0 && step % every == 0);
}

static void announced_pass(struct session_announced *announced, uint64_t at)
{
    announced->state = SESSION_ANNOUNCED_PASSED;
    announced->at = at;
    announced->said = false;
}

/* A record for a newly announced step: one that is done with, else the lowest step's. */
static struct session_announced *announced_vacant(struct session_core *core)
{
    struct session_announced *lowest = &core->announced[0];
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &core->announced[i];
        if (one->state == SESSION_ANNOUNCED_NONE)
            return one;
        if (one->step < lowest->step)
            lowest = one;
    }
    return lowest;
}

static void order_stay(struct session_core *core, uint64_t step)
{
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        if (core->announced[i].step == step)
            memset(&core->announced[i], 0, sizeof(core->announced[i]));
    }
    const bool last = core->ready_known && step == core->ready.total_steps;
    if (core->leaves && core->due_step == step && !last)
        core->stays = true; /* after the job's last step there is nothing to train on */
}

static void order_save_at(struct session_core *core, const Cairn__V1__SaveAt *save_at)
{
    if (session_core_ended(core))
        return;
    if (save_at->then == CAIRN__V1__SAVE_AT__THEN__STAY) {
        order_stay(core, save_at->step);
        return;
    }
    const bool exits = save_at->then == CAIRN__V1__SAVE_AT__THEN__EXIT;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &core->announced[i];
        if (one->state == SESSION_ANNOUNCED_NONE || one->step != save_at->step)
            continue;
        /* This was said before: a coordinator that asks again did not hear the answer. */
        one->said = false;
        one->exits = one->exits || exits;
        if (one->state != SESSION_ANNOUNCED_TAKEN)
            return;
        if (exits && core->due_step > one->step)
            announced_pass(one, core->due_step);
        return;
    }
    const bool past = core->ready_known && save_at->step <= core->due_step;
    if (past && save_at->step == core->ready.total_steps)
        return; /* nobody goes on from it: said to have passed, it would be announced for ever */
    if (past && !exits && is_regular(core, save_at->step) && save_at->step > core->ready.step)
        return; /* the step was saved anyway */
    struct session_announced *one = announced_vacant(core);
    *one = (struct session_announced){ .state = SESSION_ANNOUNCED_AHEAD,
                                       .step = save_at->step,
                                       .exits = exits };
    if (past)
        announced_pass(one, core->due_step);
}

enum session_due session_core_due_by_rule(const struct session_core *core, uint64_t step)
{
    const uint64_t copies = core->ready_known ? core->ready.memory_every : 0;
    if (is_regular(core, step))
        return SESSION_DUE_SAVE;
    return copies > 0 && step % copies == 0 ? SESSION_DUE_COPY : SESSION_DUE_NOTHING;
}

enum session_due session_core_due(struct session_core *core, uint64_t step)
{
    if (session_core_ended(core))
        return SESSION_DUE_NOTHING;
    enum session_due due = session_core_due_by_rule(core, step);
    core->due_step = step;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &core->announced[i];
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
    core->leaves = due == SESSION_DUE_SAVE_AND_EXIT;
    core->stays = false;
    return due;
}

/* ---- orders ---- */

static void order_met(struct session_core *core, Cairn__V1__TrainerOrder **order)
{
    for (int i = 0; i < RENDEZVOUS_MEETINGS; i++) {
        struct session_meeting *meeting = &core->meetings[i];
        if (meeting->answered || meeting->name[0] == '\0' ||
            strcmp(meeting->name, (*order)->met->name) != 0)
            continue;
        meeting->answered = true;
        meeting->answer = *order;
        *order = NULL;
        return;
    }
}

static void order_metric_ack(struct session_core *core, const Cairn__V1__MetricAck *ack)
{
    if (core->rows == NULL)
        return;
    if (ack->through_step > core->row_known)
        core->row_known = ack->through_step;
    while (core->row_first < core->row_end &&
           core->rows[core->row_first % LIMIT_METRIC_ROWS].row.step <= ack->through_step)
        core->row_first++;
    if (core->row_said < core->row_first)
        core->row_said = core->row_first;
}

static void order_assignment(struct session_core *core, Cairn__V1__TrainerOrder **order)
{
    if (core->assigned != NULL || session_core_ended(core))
        return; /* said twice, or too late */
    core->assigned = *order;
    *order = NULL;
    const Cairn__V1__Plan *plan = core->assigned->plan;
    core->rank = plan->rank;
    if (plan->spare) {
        core->park.state = SESSION_PARK_ASKED;
        return;
    }
    for (size_t i = 0; i < plan->n_saves; i++)
        order_save_at(core, plan->saves[i]);
}

/* Asked again for what is under way, or done, it says again how far it is; what could not be read
 * is tried anew. */
static void order_read_back(struct session_core *core, const Cairn__V1__ReadBack *order)
{
    struct session_read_record *read = &core->read;
    const bool same = read->order.generation == order->generation &&
                      read->order.step == order->step && read->order.shards == order->shards;
    const bool failed = read->known && read->news.done && read->news.status != ST_OK;
    if (core->assigned == NULL || session_core_ended(core) ||
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
                   .rank = core->rank,
                   .ranks = core->assigned->plan->size,
                   .bytes = order->bytes,
                   .spread_ms = order->spread_ms },
    };
    (void)snprintf(read->order.dir, sizeof(read->order.dir), "%s", order->dir);
}

bool session_core_read_order(struct session_core *core, struct readback_order *out)
{
    if (!core->read.fresh || session_core_ended(core))
        return false;
    core->read.fresh = false;
    *out = core->read.order;
    return true;
}

void session_core_read_news(struct session_core *core, const struct readback_news *news)
{
    struct session_read_record *read = &core->read;
    if (news->step != read->order.step || news->generation != read->order.generation || read->fresh)
        return; /* of an order before this one */
    read->known = true;
    read->said = false;
    read->news = *news;
}

bool session_core_writes(const struct session_core *core)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        if (core->saves[i].state == SESSION_SAVE_WRITING)
            return true;
    }
    return false;
}

void session_core_order(struct session_core *core, Cairn__V1__TrainerOrder *order, int64_t now_ms)
{
    core->now_ms = now_ms;
    switch (order->body_case) {
    case CAIRN__V1__TRAINER_ORDER__BODY_PLAN:
        order_assignment(core, &order);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_MET:
        order_met(core, &order);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_METRIC_ACK:
        order_metric_ack(core, order->metric_ack);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_FOLDER:
        session_order_folder(core, order->save_folder);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE:
        session_order_done(core, order->save_done);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT:
        order_save_at(core, order->save_at);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_READ_BACK:
        order_read_back(core, order->read_back);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_PARK:
        session_order_park(core, order->park);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_REGROUP:
        session_order_regroup(core, order->regroup);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY_OVER:
        session_core_end(core, order->over->reason);
        break;
    case CAIRN__V1__TRAINER_ORDER__BODY__NOT_SET: /* an order of a later version */
    case _CAIRN__V1__TRAINER_ORDER__BODY__CASE_IS_INT_SIZE:
        break;
    }
    if (order != NULL)
        cairn__v1__trainer_order__free_unpacked(order, NULL);
}
