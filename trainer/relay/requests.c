/* What each request does. Answers are as library/wire/wire.h has them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/relay/internal.h"

#define SETTLE_MS INT64_C(200) /* one look whether it is decided */

/* ---- what can be ---- */

static const size_t sizes[] = {
    [WIRE_HELLO] = sizeof(struct wire_hello),   [WIRE_READY] = sizeof(struct wire_ready),
    [WIRE_DUE] = sizeof(struct wire_step),      [WIRE_BEGIN] = sizeof(struct wire_step),
    [WIRE_COPIED] = sizeof(struct wire_copied), [WIRE_SETTLE] = sizeof(struct wire_step),
    [WIRE_WANT] = sizeof(struct wire_want),     [WIRE_ROW] = sizeof(struct wire_row),
    [WIRE_LAST] = sizeof(struct wire_last),
};

bool relay_fits(uint16_t kind, uint32_t size)
{
    if (kind == WIRE_LAYOUT)
        return size >= sizeof(struct wire_layout) && size <= WIRE_BYTES_MAX;
    if (kind == WIRE_FAIL)
        return size <= 65536;
    return kind < sizeof(sizes) / sizeof(sizes[0]) && sizes[kind] > 0 && size == sizes[kind];
}

static bool refuse(struct relay_answer *out, enum status st, const char *why)
{
    out->status = st;
    reason_set(&out->why, "%s", why);
    return true;
}

/* ---- before the first step ---- */

static bool on_hello(struct relay_process *p, const struct wire_hello *hello,
                     struct relay_answer *out)
{
    struct relay *r = p->relay;
    const struct session_assignment *a = r->options.assignment;
    const struct relay_source *source = &r->source;
    if (hello->version != WIRE_VERSION) {
        out->status = ST_VERSION;
        reason_set(&out->why, "the library speaks version %u, this worker version %u",
                   hello->version, WIRE_VERSION);
        return false;
    }
    struct wire_welcome welcome = { .version = WIRE_VERSION,
                                    .generation = a->generation,
                                    .rank = a->rank * r->count + p->local,
                                    .size = a->size * r->count,
                                    .source = source->kind,
                                    .paths = source->count,
                                    .step = source->step,
                                    .memory_generation = a->memory.generation,
                                    .memory_size = a->memory.size,
                                    .processes = r->count };
    memcpy(welcome.job, a->job, strnlen(a->job, sizeof(welcome.job) - 1));
    uint8_t *body = malloc(sizeof(welcome) + source->size);
    if (body == NULL)
        return refuse(out, ST_NO_MEMORY, "no memory for an answer");
    memcpy(body, &welcome, sizeof(welcome));
    if (source->size > 0)
        memcpy(body + sizeof(welcome), source->paths, source->size);
    free(p->welcome);
    p->welcome = body;
    out->body = body;
    out->size = sizeof(welcome) + source->size;
    out->fd = p->page_fd;
    (void)pthread_mutex_lock(&r->mutex);
    p->greeted = true;
    (void)pthread_mutex_unlock(&r->mutex);
    LOG_INFO(r->options.log, "the program connected: %.*s", (int)sizeof(hello->client) - 1,
             hello->client[0] != '\0' && memchr(hello->client, '\0', sizeof(hello->client)) != NULL
                 ? hello->client
                 : "a library without a name");
    return true;
}

static bool on_layout(struct relay_process *p, const uint8_t *body, uint32_t size,
                      struct relay_answer *out)
{
    struct wire_layout layout;
    memcpy(&layout, body, sizeof(layout));
    if (layout.count > CAIRN_TENSORS_MAX ||
        size != sizeof(layout) + layout.count * sizeof(struct wire_entry)) {
        relay_fail(p->relay, "the program described %llu tensors in %u bytes",
                   (unsigned long long)layout.count, size);
        return false;
    }
    if (p->described)
        return refuse(out, ST_REFUSED, "this start of the program has described its state already");
    const size_t bytes = (size_t)layout.count * sizeof(struct wire_entry);
    struct wire_entry *entries = malloc(bytes + 1); /* aligned */
    if (entries == NULL)
        return refuse(out, ST_NO_MEMORY, "no memory for a layout");
    memcpy(entries, body + sizeof(layout), bytes);
    out->status = saved_describe(entries, layout.count, layout.blob_bytes, &p->saved, &out->why);
    free(entries);
    p->described = out->status == ST_OK;
    return true;
}

static bool on_ready(struct relay_process *p, const struct wire_ready *ready,
                     struct relay_answer *out)
{
    struct relay *r = p->relay;
    bool all = true;
    if (!p->described || p->ready)
        return refuse(out, ST_INVALID, "ready comes once, after the layout");
    if (ready->step > ready->total_steps)
        return refuse(out, ST_INVALID, "the step is beyond the last one");
    p->began = *ready;
    (void)pthread_mutex_lock(&r->mutex);
    p->ready = true;
    for (uint32_t i = 0; i < r->count; i++)
        all = all && r->processes[i].ready;
    (void)pthread_mutex_unlock(&r->mutex);
    if (!all)
        return true;
    r->has_former = pthread_create(&r->former, NULL, relay_form, r) == 0; /* the last one alone */
    if (!r->has_former)
        relay_fail(r, "no memory for a thread");
    return true;
}

/* ---- saves ---- */

/* True if all ranks are there, and no older copy is saved in the place of an announced exit's. One
 * that was taken back meanwhile other ranks may not have come to: they never agree on a copy. */
static bool is_formed(struct relay *r)
{
    struct session_exit exit;
    (void)pthread_mutex_lock(&r->mutex);
    const bool formed = r->formed && r->fallen_back == 0, falls_back = r->falls_back;
    (void)pthread_mutex_unlock(&r->mutex);
    return formed && !(falls_back && session_exit(r->options.session, &exit));
}

static bool on_due(struct relay_process *p, uint64_t step, struct relay_answer *out)
{
    struct relay *r = p->relay;
    p->answered_due = (struct wire_due){ .due = CAIRN_DUE_NOTHING };
    out->body = &p->answered_due;
    out->size = sizeof(p->answered_due);
    if (session_is_over(r->options.session))
        return refuse(out, ST_STALE, "this start of the program is over");
    if (!is_formed(r))
        return true;
    if (step > p->began.total_steps)
        return refuse(out, ST_INVALID, "the step is beyond the last one");
    const bool begins = step <= p->began.step && step < p->began.total_steps;
    p->due_step = step;
    p->due = begins ? CAIRN_DUE_NOTHING : relay_due(p, step);
    p->exit_step = p->due == CAIRN_DUE_SAVE_AND_EXIT ? step : 0;
    p->answered_due.due = p->due;
    return true;
}

/* Where the process's area begins in the worker's extent. */
static uint64_t area_of(const struct relay_process *p)
{
    uint64_t first = 0;
    for (uint32_t i = 0; i < p->local; i++)
        first += p->relay->processes[i].saved.places.buffer_bytes[PLACE_RANKS];
    return first;
}

static bool on_begin(struct relay_process *p, uint64_t step, struct relay_answer *out)
{
    struct relay *r = p->relay;
    if (!p->ready || relay_fills(p))
        return refuse(out, ST_INVALID, "no save can begin now");
    if (!is_formed(r))
        return refuse(out, ST_AGAIN, "an older copy is being saved");
    const bool last = step == p->began.total_steps || (p->exit_step != 0 && step == p->exit_step);
    const bool due = step == p->due_step && p->due != CAIRN_DUE_NOTHING;
    if (!last && !due)
        return refuse(out, ST_INVALID, "no save of this step is due");
    struct ckpt_state state;
    struct saved saved = *r->saved; /* the step's texts are written into it */
    saved_state(&saved, r->options.assignment, step, p->began.steps_per_epoch, &state);
    const struct session_snapshot snapshot = { .state = &state,
                                               .saves = last || p->due != CAIRN_DUE_COPY,
                                               .last = last,
                                               .fill = relay_fill,
                                               .arg = r };
    p->begins = p->saving_step == step ? p->begins : 0;
    p->saving_step = step;
    const enum status st = relay_begin_filling(p, &snapshot);
    if (st == ST_EXISTS)
        return refuse(out, ST_AGAIN, "this step is saved already");
    if (st == ST_REFUSED || st == ST_TIMED_OUT)
        return refuse(out, ST_AGAIN, "the save before it is still being written");
    if (st != ST_OK)
        return refuse(out, st, status_string(st));
    p->answered_file.area = area_of(p);
    out->body = &p->answered_file;
    out->size = sizeof(p->answered_file);
    out->fd = p->file_fd;
    return true;
}

static bool on_copied(struct relay_process *p, const struct wire_copied *copied,
                      struct relay_answer *out)
{
    const bool begun = copied->step == p->saving_step;
    const bool complete = copied->status == CAIRN_OK;
    enum status st = ST_OK;
    if (!begun || !relay_end_filling(p, complete, copied->stall_us, &st)) {
        if (begun && relay_was_dropped(p)) /* as any save that is dropped: cairn_finish says so */
            return true;
        return refuse(out, ST_INVALID, "no copy of this step was begun");
    }
    out->status = complete ? st : ST_OK;
    return true;
}

/* Waits a while for the save to be decided. One that waits for this process's part is to it as one
 * that was dropped: it is to begin again. */
static enum status settle(struct relay_process *p, uint64_t step, uint64_t *out_committed)
{
    struct relay *r = p->relay;
    const int64_t until = relay_now_ms() + WIRE_SETTLE_MS / 2;
    enum status st = ST_TIMED_OUT;
    while (st == ST_TIMED_OUT && relay_now_ms() < until && !relay_is_closing(r)) {
        if (relay_lacks(p, step)) {
            st = ST_OK;
        } else if (is_formed(r)) {
            st = relay_settle(r, step, SETTLE_MS, out_committed);
        } else if (session_is_over(r->options.session)) {
            st = ST_STALE;
        } else {
            relay_pause(r, SETTLE_MS);
        }
    }
    return st;
}

static bool on_settle(struct relay_process *p, uint64_t step, struct relay_answer *out)
{
    struct relay *r = p->relay;
    uint64_t committed = 0;
    if (!p->ready || relay_fills(p))
        return refuse(out, ST_INVALID, "nothing can be settled now");
    const enum status st = settle(p, step, &committed);
    if (st == ST_TIMED_OUT)
        return refuse(out, ST_AGAIN, "nothing is decided yet");
    if (st == ST_REFUSED)
        return refuse(out, st, "another rank has passed this step: train on");
    if (st != ST_OK)
        return refuse(out, st, status_string(st));
    const bool ends = step == p->began.total_steps || (step != 0 && step == p->exit_step);
    (void)pthread_mutex_lock(&r->mutex);
    r->committed = committed > r->committed ? committed : r->committed;
    p->answered_step = (struct wire_step){ .step = r->committed };
    p->done = p->done || (ends && r->committed >= step);
    (void)pthread_mutex_unlock(&r->mutex);
    out->body = &p->answered_step;
    out->size = sizeof(p->answered_step);
    return true;
}

/* Whether the program may still end with that step: no process has gone beyond, or said another. */
static bool may_be_last(const struct relay_process *p, uint64_t step)
{
    const struct relay *r = p->relay;
    bool may = step != 0 && step >= p->began.step && step <= p->began.total_steps &&
               atomic_load(&p->page->step) <= step;
    for (uint32_t i = 0; i < r->count; i++) {
        const uint64_t said = r->processes[i].last_step;
        may = may && (said == 0 || said == step);
    }
    return may;
}

/* Notes that a process has said so; true once all of the worker have. Under mutex. */
static bool have_all_said(struct relay_process *p, uint64_t step)
{
    const struct relay *r = p->relay;
    bool all = true;
    p->last_step = step;
    for (uint32_t i = 0; i < r->count; i++)
        all = all && r->processes[i].last_step == step;
    return all;
}

/* Agrees with the other ranks that this step is the last one, and tells the coordinator, both once.
 * Under turn. */
static enum status agree_last(struct relay *r, const struct wire_last *last)
{
    const struct rendezvous *rendezvous = session_rendezvous(r->options.session);
    const struct rendezvous_part nothing = { .common = NULL };
    const uint32_t size = r->options.assignment->size;
    char reason[sizeof(last->reason) + 1] = "";
    struct reason mended;
    enum status st = ST_OK;
    if (r->ends_with == last->step)
        return ST_OK;
    auto_free struct rendezvous_got *got = calloc(size, sizeof(*got));
    if (got == NULL)
        return ST_NO_MEMORY;
    memcpy(reason, last->reason, sizeof(last->reason));
    reason_set(&mended, "%s", reason);
    if (r->told_last != last->step)
        st = session_last(r->options.session, last->step, mended.text);
    if (st != ST_OK)
        return st;
    r->told_last = last->step;
    st = rendezvous->join(rendezvous->self, "last", &nothing, (int)size, SETTLE_MS, got);
    if (st == ST_OK)
        r->ends_with = last->step;
    return st;
}

/* All ranks end with the same step, or the coordinator ends the generation: once all have said it,
 * it is the last one here. */
static bool on_last(struct relay_process *p, const struct wire_last *last, struct relay_answer *out)
{
    struct relay *r = p->relay;
    if (session_is_over(r->options.session))
        return refuse(out, ST_STALE, "this start of the program is over");
    if (!is_formed(r))
        return refuse(out, ST_AGAIN, "not all ranks are ready yet");
    (void)pthread_mutex_lock(&r->mutex);
    const bool may = may_be_last(p, last->step);
    const bool all = may && have_all_said(p, last->step);
    (void)pthread_mutex_unlock(&r->mutex);
    if (!may)
        return refuse(out, ST_INVALID, "this step can't be the last one any more");
    if (last->step == p->began.total_steps)
        return true;
    if (!all) {
        relay_pause(r, SETTLE_MS);
        return refuse(out, ST_AGAIN, "not all processes of the worker have said so yet");
    }
    (void)pthread_mutex_lock(&r->turn);
    const enum status st = agree_last(r, last);
    (void)pthread_mutex_unlock(&r->turn);
    if (st == ST_TIMED_OUT)
        return refuse(out, ST_AGAIN, "not all ranks have said so yet");
    if (st != ST_OK)
        return refuse(out, st, status_string(st));
    (void)pthread_mutex_lock(&r->mutex);
    p->began.total_steps = last->step;
    (void)pthread_mutex_unlock(&r->mutex);
    return true;
}

/* ---- words ---- */

static bool on_want(struct relay *r, const struct wire_want *want)
{
    char reason[sizeof(want->reason) + 1] = "";
    struct reason mended;
    memcpy(reason, want->reason, sizeof(want->reason));
    reason_set(&mended, "%s", reason);
    const uint64_t grace = (uint64_t)r->options.job->checkpoint.grace_ms;
    const bool shorter = want->grace_ms > 0 && want->grace_ms < grace;
    session_wanted(r->options.session, want->leaves != 0, shorter ? want->grace_ms : grace,
                   mended.text[0] != '\0' ? mended.text : "the program wants a checkpoint");
    return true;
}

void relay_tell_row(struct relay *relay)
{
    struct relay *r = relay;
    (void)pthread_mutex_lock(&r->mutex);
    const struct session_row row = r->row;
    const bool has_row = r->has_row;
    r->has_row = false;
    (void)pthread_mutex_unlock(&r->mutex);
    if (has_row && r->options.assignment->rank == 0)
        session_add_row(r->options.session, &row);
}

static void take_numbers(struct session_row *row, const struct wire_row *said)
{
    float *const floats[] = { &row->loss, &row->lr, &row->grad_norm };
    for (uint32_t i = 0; i < 3; i++) {
        if ((said->known >> i & 1) != 0)
            *floats[i] = (float)said->number[i];
    }
    if ((said->known >> 3 & 1) != 0)
        row->samples_per_s = said->number[3];
    row->has_eval = row->has_eval || said->known >> 4 != 0;
    if ((said->known >> 4 & 1) != 0)
        row->eval_loss = said->number[4];
    if ((said->known >> 5 & 1) != 0)
        row->eval_accuracy = said->number[5];
}

static bool on_row(struct relay_process *p, const struct wire_row *said, struct relay_answer *out)
{
    struct relay *r = p->relay;
    if (said->known >> WIRE_NUMBERS != 0)
        return refuse(out, ST_INVALID, "there are no such numbers");
    if (!is_formed(r) || p->local != 0)
        return true;
    if (said->step > p->began.total_steps)
        return refuse(out, ST_INVALID, "the step is beyond the last one");
    (void)pthread_mutex_lock(&r->mutex);
    const bool another = r->has_row && r->row.step != said->step;
    (void)pthread_mutex_unlock(&r->mutex);
    if (another)
        relay_tell_row(r);
    (void)pthread_mutex_lock(&r->mutex);
    if (!r->has_row) {
        const uint64_t each = p->began.steps_per_epoch;
        r->row = (struct session_row){ .step = said->step,
                                       .epoch = each > 0 ? (double)said->step / (double)each : 0,
                                       .loss = NAN,
                                       .grad_norm = NAN };
        r->row_ms = relay_now_ms();
    }
    r->has_row = true;
    take_numbers(&r->row, said);
    (void)pthread_mutex_unlock(&r->mutex);
    return true;
}

static bool on_fail(struct relay *r, const uint8_t *text, uint32_t size)
{
    (void)pthread_mutex_lock(&r->mutex);
    if (r->words.text[0] == '\0') {
        reason_set(&r->words, "%.*s", (int)size, (const char *)text);
        r->words.text[strcspn(r->words.text, "\r\n")] = '\0';
        r->words_ms = relay_now_ms();
    }
    (void)pthread_mutex_unlock(&r->mutex);
    return true;
}

bool relay_serve(struct relay_process *process, struct relay_peer *peer, struct relay_answer *out)
{
    struct relay_process *p = process;
    struct relay *r = p->relay;
    union {
        struct wire_hello hello;
        struct wire_ready ready;
        struct wire_step step;
        struct wire_copied copied;
        struct wire_want want;
        struct wire_row row;
        struct wire_last last;
    } said;
    memset(&said, 0, sizeof(said));
    if (peer->head.size <= sizeof(said))
        memcpy(&said, peer->body, peer->head.size);
    switch ((enum wire_kind)peer->head.kind) {
    case WIRE_HELLO:
        return on_hello(p, &said.hello, out);
    case WIRE_LAYOUT:
        return on_layout(p, peer->body, peer->head.size, out);
    case WIRE_READY:
        return on_ready(p, &said.ready, out);
    case WIRE_DUE:
        return on_due(p, said.step.step, out);
    case WIRE_BEGIN:
        return on_begin(p, said.step.step, out);
    case WIRE_COPIED:
        return on_copied(p, &said.copied, out);
    case WIRE_SETTLE:
        return on_settle(p, said.step.step, out);
    case WIRE_WANT:
        return on_want(r, &said.want);
    case WIRE_ROW:
        return on_row(p, &said.row, out);
    case WIRE_FAIL:
        return on_fail(r, peer->body, peer->head.size);
    case WIRE_LAST:
        return on_last(p, &said.last, out);
    }
    CHECK(false); /* relay_fits */
}
