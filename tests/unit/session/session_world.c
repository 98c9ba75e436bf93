#include "tests/unit/session/session_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"

/* ---- the coordinator's end ---- */

/* Takes ownership of order. */
static void put_order(struct coordinator *c, Cairn__V1__TrainerOrder *order)
{
    CHECK(c->count < QUEUE_MAX);
    c->queue[(c->first + c->count++) % QUEUE_MAX] = order;
    (void)pthread_cond_broadcast(&c->changed);
}

static void order_plan(struct coordinator *c, uint32_t rank)
{
    uint32_t shares[] = { 1, 1 };
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    plan.job_file = (char *)(uintptr_t) "name: x";
    plan.spare = c->plans_spare;
    put_order(c, plan_order(&plan, c->generation, rank, shares, c->ranks));
}

void order_folder(struct coordinator *c, uint64_t step)
{
    put_order(c, folder_order(step, c->dir));
}

void order_done(struct coordinator *c, uint64_t step, bool committed)
{
    put_order(c, done_order(step, committed));
}

void order_save_at(struct coordinator *c, uint64_t step, bool exits)
{
    put_order(c, save_at_order(step, exits));
}

void order_stay(struct coordinator *c, uint64_t step)
{
    put_order(c, stay_order(step));
}

void order_over(struct coordinator *c, const char *reason)
{
    put_order(c, over_order(reason));
}

void order_park(struct coordinator *c)
{
    put_order(c, park_order("a worker died"));
}

void order_regroup(struct coordinator *c, uint32_t generation, const char *token)
{
    put_order(c, regroup_order(generation, 0, token));
}

/* The report as the checkpoint library has it, to make a manifest of. */
static void keep_report(struct coordinator *c, const Cairn__V1__SaveReport *from)
{
    ckpt_report_release(&c->report);
    memset(&c->report, 0, sizeof(c->report));
    c->report.step = from->step;
    c->report.generation = from->generation;
    c->report.rank = from->rank;
    (void)snprintf(c->report.file, sizeof(c->report.file), "%s", from->file);
    c->report.size = from->size;
    c->report.raw_bytes = from->raw_bytes;
    CHECK(from->xxh3_128.len == 16);
    CHECK(from->scalars_xxh3_128.len == 16);
    memcpy(&c->report.hash, from->xxh3_128.data, 16);
    memcpy(&c->report.scalars, from->scalars_xxh3_128.data, 16);
    c->report.extents = calloc(from->n_pieces, sizeof(*c->report.extents));
    CHECK(c->report.extents != NULL);
    for (size_t i = 0; i < from->n_pieces; i++) {
        struct ckpt_piece_extent *extent = &c->report.extents[c->report.extent_count++];
        const size_t size = from->pieces[i]->xxh3_128.len;
        extent->buffer = from->pieces[i]->buffer;
        extent->first = from->pieces[i]->first;
        extent->each = from->pieces[i]->pieces_per_hash;
        extent->count = size / sizeof(struct ckpt_hash);
        if (size == 0)
            continue;
        extent->hashes = malloc(size);
        CHECK(extent->hashes != NULL);
        memcpy(extent->hashes, from->pieces[i]->xxh3_128.data, size);
    }
}

static void on_report(struct coordinator *c, const Cairn__V1__SaveReport *report)
{
    c->reports++;
    keep_report(c, report);
    if (c->commits)
        order_done(c, report->step, true);
}

/* The other rank, where there is one, brings the same, or what the test makes of it. */
static void on_join(struct coordinator *c, const Cairn__V1__RendezvousJoin *join)
{
    uint8_t commons[2][RENDEZVOUS_COMMON_MAX] = { "", "" }, items[2][RENDEZVOUS_ITEM_MAX] = { "" };
    const size_t each = join->items.len / c->ranks;
    CHECK(join->common.len <= sizeof(commons[0]));
    CHECK(each <= sizeof(items[0]));
    for (uint32_t r = 0; r < c->ranks; r++) {
        if (join->common.len > 0)
            memcpy(commons[r], join->common.data, join->common.len);
        if (each > 0)
            memcpy((uint8_t *)items + r * each, join->items.data + r * each, each);
    }
    if (c->ranks > 1 && c->other != NULL)
        c->other(join->name, commons[1]);
    c->meets++;
    if (!c->meets_silent && !join->answered)
        put_order(c, joined_bytes_order(join->name, c->ranks, commons, join->common.len, items,
                                        join->items.len));
}

static void on_save_failed(struct coordinator *c, const Cairn__V1__SaveFailed *failed)
{
    c->fails++;
    (void)snprintf(c->fail_message, sizeof(c->fail_message), "%s", failed->message);
    c->removed += failed->removed != 0;
    c->full += failed->full != 0;
}

static struct session_parked kept_of(const Cairn__V1__Parked *from)
{
    return (struct session_parked){ .step = from->step,
                                    .complete = from->complete != 0,
                                    .computed_by = from->computed_by,
                                    .part = from->part,
                                    .parts = from->parts };
}

static void on_hello(struct coordinator *c, const Cairn__V1__TrainerHello *hello)
{
    c->hellos++;
    c->attached += hello->attached != 0;
    c->generation = hello->generation;
    if (hello->parked != NULL && hello->attached) {
        c->parks++;
        c->parked = kept_of(hello->parked);
    } else if (hello->parked != NULL) {
        c->offers = kept_of(hello->parked);
    }
    if (!hello->attached)
        order_plan(c, hello->rank);
}

static void on_message(struct coordinator *c, const Cairn__V1__TrainerMessage *message)
{
    switch ((int)message->body_case) {
    case CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO:
        on_hello(c, message->hello);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED:
        c->parks++;
        c->parked = kept_of(message->parked);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_READY:
        c->ready_total = message->ready->total_steps;
        c->last_step = message->ready->last_step;
        (void)snprintf(c->last_reason, sizeof(c->last_reason), "%s", message->ready->last_reason);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS:
        c->progress_counter = message->progress->counter;
        c->collectives = message->progress->collectives;
        c->exchanges = message->progress->exchanges;
        (void)snprintf(c->collective, sizeof(c->collective), "%s", message->progress->collective);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS:
        c->rows_through = message->metrics->rows[message->metrics->n_rows - 1]->step;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_JOIN:
        on_join(c, message->join);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_BEGIN:
        c->begins++;
        if (c->gives_folders)
            order_folder(c, message->save_begin->step);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_REPORT:
        on_report(c, message->save_report);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_FAILED:
        on_save_failed(c, message->save_failed);
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_PASSED:
        c->passed++;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_FAULT:
        c->faults++;
        (void)snprintf(c->fault_message, sizeof(c->fault_message), "%s", message->fault->message);
        c->fault_outside = message->fault->outside;
        break;
    case CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED:
        c->finished++;
        break;
    default:
        break;
    }
}

/* ---- the link ---- */

void lose(struct coordinator *c)
{
    c->open = false;
    while (c->count > 0) {
        cairn__v1__trainer_order__free_unpacked(c->queue[c->first], NULL);
        c->first = (c->first + 1) % QUEUE_MAX;
        c->count--;
    }
    (void)pthread_cond_broadcast(&c->changed);
}

static enum status link_open(void *self, int64_t timeout_ms)
{
    (void)timeout_ms;
    struct coordinator *c = self;
    (void)pthread_mutex_lock(&c->mutex);
    lose(c);
    enum status st = ST_OK;
    if (c->refuse)
        st = ST_STALE;
    else if (c->absent)
        st = ST_UNREACHABLE;
    c->open = st == ST_OK;
    c->opened += st == ST_OK;
    if (c->loses)
        c->lose_after = c->opened;
    (void)pthread_mutex_unlock(&c->mutex);
    return st;
}

static enum status link_send(void *self, const Cairn__V1__TrainerMessage *message)
{
    struct coordinator *c = self;
    (void)pthread_mutex_lock(&c->mutex);
    if (c->open && c->lose_after == 0)
        lose(c);
    enum status st = c->open ? ST_OK : ST_CLOSED;
    if (st == ST_OK) {
        c->lose_after -= c->lose_after > 0;
        on_message(c, message);
        (void)pthread_cond_broadcast(&c->changed);
    }
    (void)pthread_mutex_unlock(&c->mutex);
    return st;
}

bool wait_until(struct coordinator *c, int64_t end_ms)
{
    if (clock_mono_ms(clock_system()) >= end_ms)
        return false;
    (void)clock_cond_wait(&c->changed, &c->mutex, end_ms * 1000000);
    return true;
}

static enum status link_recv(void *self, int64_t timeout_ms, Cairn__V1__TrainerOrder **out)
{
    struct coordinator *c = self;
    const int64_t end_ms = clock_mono_ms(clock_system()) + timeout_ms;
    enum status st = ST_OK;
    (void)pthread_mutex_lock(&c->mutex);
    while (st == ST_OK && c->open && c->count == 0) {
        if (c->interrupted)
            st = ST_AGAIN;
        else if (!wait_until(c, end_ms))
            st = ST_TIMED_OUT;
    }
    c->interrupted = false;
    if (!c->open)
        st = ST_CLOSED;
    if (st == ST_OK) {
        *out = c->queue[c->first];
        c->first = (c->first + 1) % QUEUE_MAX;
        c->count--;
    }
    (void)pthread_mutex_unlock(&c->mutex);
    return st;
}

static void link_interrupt(void *self)
{
    struct coordinator *c = self;
    (void)pthread_mutex_lock(&c->mutex);
    c->interrupted = true;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->mutex);
}

static void link_close(void *self, int64_t patience_ms)
{
    struct coordinator *c = self;
    (void)patience_ms;
    (void)pthread_mutex_lock(&c->mutex);
    lose(c);
    (void)pthread_mutex_unlock(&c->mutex);
}

/* ---- a session and its coordinator ---- */

static void on_park(void *arg, const char *reason)
{
    struct coordinator *c = arg;
    (void)reason;
    (void)pthread_mutex_lock(&c->mutex);
    c->park_calls++;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->mutex);
}

static void on_over(void *arg, const char *reason)
{
    struct coordinator *c = arg;
    (void)pthread_mutex_lock(&c->mutex);
    c->over_calls++;
    (void)snprintf(c->over_reason, sizeof(c->over_reason), "%s", reason);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->mutex);
}

struct world *world_new(int64_t orphan_ms)
{
    struct world *w = calloc(1, sizeof(*w));
    CHECK(w != NULL);
    struct coordinator *c = &w->c;
    (void)pthread_mutex_init(&c->mutex, NULL);
    clock_cond_init(&c->changed);
    (void)snprintf(c->dir, sizeof(c->dir), "/tmp/cairn-session-XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    (void)snprintf(w->words, sizeof(w->words), "%s/words", c->dir);
    c->lose_after = -1;
    c->gives_folders = true;
    c->commits = true;
    c->log = (struct log){ .fd = -1, .program = "test", .rank = -1, .generation = -1 };
    w->io = *io_system();
    w->link =
        (struct session_link){ c, link_open, link_send, link_recv, link_interrupt, link_close };
    c->generation = 3;
    c->ranks = 1;
    w->options = (struct session_options){ .job = JOB,
                                           .generation = 3,
                                           .number = 0,
                                           .link = &w->link,
                                           .io = &w->io,
                                           .clock = clock_system(),
                                           .log = &c->log,
                                           .last_words_path = w->words,
                                           .orphan_ms = orphan_ms,
                                           .over = on_over,
                                           .over_arg = c,
                                           .park = on_park };
    assert_int_equal(session_open(&w->options, &w->session), ST_OK);
    return w;
}

struct session *next_session(struct world *w, uint32_t generation,
                             const struct session_parked *kept)
{
    struct session *session = NULL;
    struct session_assignment assignment;
    struct session_options options = w->options;
    options.generation = generation;
    options.kept = kept;
    assert_int_equal(session_open(&options, &session), ST_OK);
    assert_int_equal(session_join(session, "{}", LONG_MS, &assignment), ST_OK);
    return session;
}

bool remove_name(void *arg, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", (const char *)arg, name);
    (void)unlink(path);
    return true;
}

void world_free(struct world *w)
{
    session_close(w->session);
    (void)io_system()->list(NULL, w->c.dir, remove_name, w->c.dir);
    (void)rmdir(w->c.dir);
    ckpt_report_release(&w->c.report);
    (void)pthread_cond_destroy(&w->c.changed);
    (void)pthread_mutex_destroy(&w->c.mutex);
    free(w);
}

struct world *joined(void)
{
    struct world *w = world_new(0);
    struct session_assignment assignment;
    assert_int_equal(session_join(w->session, "{}", LONG_MS, &assignment), ST_OK);
    assert_int_equal(assignment.size, 1);
    assert_string_equal(assignment.job_file, "name: x");
    return w;
}

/* Waits until a number that the coordinator counts has come so far. */
void await(struct world *w, const int *number, int at_least)
{
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    (void)pthread_mutex_lock(&w->c.mutex);
    bool in_time = true;
    while (in_time && *number < at_least)
        in_time = wait_until(&w->c, end_ms);
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_true(in_time);
}

void await_place(struct world *w, const char *collective, uint64_t collectives, uint64_t exchanges)
{
    const struct coordinator *c = &w->c;
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    (void)pthread_mutex_lock(&w->c.mutex);
    bool in_time = true;
    while (in_time && (c->collectives != collectives || c->exchanges != exchanges ||
                       strcmp(c->collective, collective) != 0))
        in_time = wait_until(&w->c, end_ms);
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_true(in_time);
}

/* ---- a state ---- */

void training_init(struct training *t, uint64_t step)
{
    memset(t, 0, sizeof(*t));
    t->values = malloc(ELEMENTS * sizeof(float));
    CHECK(t->values != NULL);
    for (size_t i = 0; i < ELEMENTS; i++)
        t->values[i] = (float)i * 0.25f + (float)step;
    t->buffer = (struct ckpt_buffer){
        .name = "parameters", .dtype = CKPT_F32, .count = ELEMENTS, .data = t->values
    };
    t->tensor = (struct ckpt_tensor){ "w", 0, 0, 1, { ELEMENTS } };
    t->blob = (struct ckpt_blob){ "job.yaml", "name: x", 7 };
    t->skip[0] = 4;
    t->skip[1] = 5;
    t->state = (struct ckpt_state){
        .generation = 3,
        .buffers = &t->buffer,
        .buffer_count = 1,
        .tensors = &t->tensor,
        .tensor_count = 1,
        .blobs = &t->blob,
        .blob_count = 1,
        .scalars = { .seed = 1, .step = step, .loss_scale = 1, .skip = t->skip, .skip_count = 2 }
    };
    (void)snprintf(t->state.job, sizeof(t->state.job), "%s", JOB);
}

enum status save(struct session *session, const struct ckpt_state *state)
{
    const struct session_snapshot snapshot = { .state = state, .saves = true };
    enum status st = session_snapshot_begin(session, &snapshot);
    if (st == ST_EXISTS)
        return ST_OK;
    return st == ST_OK ? session_snapshot_wait(session) : st;
}

void get_ready(struct world *w)
{
    const struct session_ready ready = { .total_steps = 20,
                                         .steps_per_epoch = 10,
                                         .save_every = 5,
                                         .pins = "{}",
                                         .snapshot_bytes_max = ELEMENTS * sizeof(float) };
    assert_int_equal(session_set_ready(w->session, &ready), ST_OK);
}

Cairn__V1__LastWords *read_words(const struct world *w)
{
    char *bytes = NULL;
    size_t size = 0;
    if (io_read_file(io_system(), w->words, 1 << 20, &bytes, &size) != ST_OK)
        return NULL;
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, (uint8_t *)bytes);
    free(bytes);
    return words;
}
