/*
 * The exchange of peers.h.
 *
 *   round: all have a newer copy ─▶ tell its step ─▶ keep the oldest that was told ─▶ tell its seal
 *          ─▶ transfers, in steps of CHUNK ─▶ check, seal ─▶ tell that all is well ─▶ round
 *
 * A copy is whole on all ranks before the next but one is begun on any (trainer/loop/loop.c). So
 * the oldest of steps that are told at one time is of use even where a rank stands still.
 *
 * Invariants
 *  1. Every rank makes the same calls of the communicator: what decides about them (steps, sizes,
 *     whether one has no copy) is told to all first.
 *  2. `last` and the files that are not `turn` hold the newest step that all ranks have told well
 *     of; they change only when all have told well of a later one.
 */
#include "trainer/state/peers.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "common/clock.h"
#include "common/fault.h"

#define OPEN_MS   INT64_C(60000)
#define NEXT_MS   INT64_C(86400000) /* between two copies; a peer that dies is noticed at once */
#define ANSWER_MS INT64_C(120000)
#define LEAVE_MS  INT64_C(2000)
#define LOOK_MS   INT64_C(200)
#define CHUNK     ((size_t)64 * 1024 * 1024)
#define LEAVING   UINT64_MAX

/* What a rank sends in this round. */
struct told {
    uint64_t has; /* 0: that copy is gone, there is none in this round */
    uint64_t data_offset;
    struct copy_seal seal;
};

struct ward {
    uint32_t rank;
    struct copy_file files[2];
};

struct peers {
    struct peers_options options;
    uint32_t rank, size, partner;
    struct kv kv;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct comm *comm; /* under mutex, for abort */
    bool done;         /* under mutex */
    atomic_bool leaves;

    uint64_t *steps; /* [size], as those below */
    struct told *told;
    uint8_t *well;
    struct comm_segment *send, *recv;
    struct ward *wards;
    uint32_t ward_count;

    uint64_t last_step;
    const struct copy_file *last; /* own copy of the last whole round */
    int turn;                     /* of the wards' files: the one that is written next */
    int64_t begin_ns;             /* of this round */
    int64_t told_ns;              /* what a round took when that was last logged */
    bool warned;
};

/* ---- the map, under a prefix ---- */

static bool make_key(char out[LIMIT_KV_KEY], const char *key)
{
    const int length = snprintf(out, LIMIT_KV_KEY, "peers/%s", key);
    return length > 0 && length < LIMIT_KV_KEY;
}

static enum status kv_set(void *self, const char *key, const void *value, size_t size)
{
    struct peers *p = self;
    const struct kv *kv = session_kv(p->options.session);
    char whole[LIMIT_KV_KEY];
    return make_key(whole, key) ? kv->set(kv->self, whole, value, size) : ST_FULL;
}

/* In short waits: who closes doesn't wait for ranks that do not come. */
static enum status kv_get(void *self, const char *key, void *out, size_t capacity, size_t *out_size,
                          int64_t timeout_ms)
{
    struct peers *p = self;
    const struct kv *kv = session_kv(p->options.session);
    const int64_t end_ms = clock_mono_ms(clock_system()) + timeout_ms;
    char whole[LIMIT_KV_KEY];
    if (!make_key(whole, key))
        return ST_FULL;
    for (;;) {
        if (atomic_load(&p->leaves))
            return ST_STALE;
        const int64_t left_ms = end_ms - clock_mono_ms(clock_system());
        const int64_t wait_ms = left_ms > LOOK_MS ? LOOK_MS : left_ms > 0 ? left_ms : 0;
        enum status st = kv->get(kv->self, whole, out, capacity, out_size, wait_ms);
        if ((st != ST_TIMED_OUT && st != ST_NOT_FOUND) || left_ms <= LOOK_MS)
            return st;
    }
}

/* ---- rounds ---- */

/* Every rank's size bytes of items. */
static enum status tell(struct peers *p, void *items, size_t size, int64_t timeout_ms)
{
    for (uint32_t r = 0; r < p->size; r++)
        p->send[r] = (struct comm_segment){ (uint8_t *)items + r * size, size };
    return comm_gloo()->all_gather_v(p->comm, p->send, timeout_ms);
}

static bool all_well(const struct peers *p)
{
    bool well = true;
    for (uint32_t r = 0; r < p->size; r++)
        well = well && p->well[r] == 1;
    return well;
}

static bool all_have(const struct peers *p)
{
    bool have = true;
    for (uint32_t r = 0; r < p->size; r++)
        have = have && p->told[r].has == 1;
    return have;
}

/* What is sent: [64, head_size) and [data_offset, file_size). */
static bool is_sound(const struct told *told)
{
    const struct copy_seal *seal = &told->seal;
    return seal->head_size >= COPY_BESIDE && seal->head_size <= told->data_offset &&
           told->data_offset <= seal->file_size && seal->file_size <= UINT64_MAX / 4;
}

/* Part c of the two ranges; size 0: there is no such part. Above: how many there are. */
static struct comm_segment part(const struct told *told, uint8_t *memory, uint64_t c)
{
    const uint64_t head = sizeof(struct copy_seal);
    const uint64_t heads = (told->seal.head_size - head + CHUNK - 1) / CHUNK;
    uint64_t at = head + c * CHUNK, end = told->seal.head_size;
    if (c >= heads) {
        at = told->data_offset + (c - heads) * CHUNK;
        end = told->seal.file_size;
    }
    if (at >= end)
        return (struct comm_segment){ NULL, 0 };
    return (struct comm_segment){ memory + at, end - at < CHUNK ? (size_t)(end - at) : CHUNK };
}

static uint64_t part_count(const struct told *told)
{
    return (told->seal.head_size - sizeof(struct copy_seal) + CHUNK - 1) / CHUNK +
           (told->seal.file_size - told->data_offset + CHUNK - 1) / CHUNK;
}

/* The file for a ward's copy of this size; an older generation's is taken over. */
static enum status open_file(struct peers *p, const struct ward *ward, size_t size, int number,
                             struct copy_file *out)
{
    const struct session_assignment *plan = p->options.plan;
    const char *dir = p->options.copies;
    char path[LIMIT_PATH];
    const int length = snprintf(path, sizeof(path), "%s/g%" PRIu32 "-r%" PRIu32 "-%d.copy", dir,
                                plan->generation, ward->rank, PEERS_FIRST + number);
    if (length <= 0 || (size_t)length >= sizeof(path))
        return ST_FULL;
    (void)copy_folder_reuse(dir, plan->generation, ward->rank,
                            plan->memory.generation > 0 ? &plan->memory : NULL, size, path);
    return copy_file_open_size(path, size, out);
}

static enum status prepare(struct peers *p)
{
    for (uint32_t i = 0; i < p->ward_count; i++) {
        struct ward *ward = &p->wards[i];
        struct copy_file *file = &ward->files[p->turn];
        const size_t size = (size_t)p->told[ward->rank].seal.file_size;
        /* Shares are cut evenly: budgeted for is one of this rank's size. */
        if (size > 2 * (size_t)p->told[p->rank].seal.file_size)
            return ST_FULL;
        if (file->memory != NULL && file->size == size) {
            copy_file_break(file);
            continue;
        }
        copy_file_close(file);
        enum status st = open_file(p, ward, size, p->turn, file);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status transfer(struct peers *p, const struct copy_file *own)
{
    uint64_t parts = 0;
    for (uint32_t r = 0; r < p->size; r++) {
        const uint64_t count = part_count(&p->told[r]);
        parts = count > parts ? count : parts;
    }
    enum status st = ST_OK;
    for (uint64_t c = 0; st == ST_OK && c < parts; c++) {
        memset(p->send, 0, p->size * sizeof(*p->send));
        memset(p->recv, 0, p->size * sizeof(*p->recv));
        p->send[p->partner] = part(&p->told[p->rank], own->memory, c);
        for (uint32_t i = 0; i < p->ward_count; i++) {
            const struct ward *ward = &p->wards[i];
            p->recv[ward->rank] = part(&p->told[ward->rank], ward->files[p->turn].memory, c);
        }
        st = comm_gloo()->all_to_all_v(p->comm, p->send, p->recv, ANSWER_MS);
    }
    return st;
}

/* Seals what is whole and what it should be. */
static enum status accept_copy(struct peers *p, struct ward *ward, uint64_t step)
{
    const struct session_assignment *plan = p->options.plan;
    struct copy_file *file = &ward->files[p->turn];
    const struct copy_seal *seal = &p->told[ward->rank].seal;
    struct copy_view view;
    enum status st = fault_status("peers.received");
    if (st == ST_OK)
        st = copy_file_check(file, seal, &view);
    if (st != ST_OK)
        return st;
    const struct copy_head *head = view.head;
    if (strcmp(head->job, plan->job) != 0 || head->generation != plan->generation ||
        head->rank != ward->rank || head->size != plan->size || head->step != step)
        return ST_CORRUPT;
    copy_file_accept(file, seal);
    return ST_OK;
}

/* A copy that came damaged costs this round; the next one brings another. */
static void accept_copies(struct peers *p, uint64_t step)
{
    p->well[p->rank] = 1;
    for (uint32_t i = 0; i < p->ward_count; i++) {
        const enum status st = accept_copy(p, &p->wards[i], step);
        if (st == ST_OK)
            continue;
        p->well[p->rank] = 0;
        if (!p->warned) {
            LOG_WARN(p->options.log,
                     "copy of rank %" PRIu32 " of step %" PRIu64 ": as received: %s",
                     p->wards[i].rank, step, status_string(st));
        }
        p->warned = true;
    }
}

/* With the copy that all ranks have of this round's step. */
static enum status exchange(struct peers *p, const struct copy_file *own, uint64_t step,
                            bool *out_well)
{
    for (uint32_t r = 0; r < p->size; r++) {
        if (!is_sound(&p->told[r]))
            return ST_PEER;
    }
    enum status st = prepare(p);
    if (st == ST_OK)
        st = transfer(p, own);
    if (st != ST_OK)
        return st;
    accept_copies(p, step);
    st = tell(p, p->well, sizeof(*p->well), ANSWER_MS);
    *out_well = st == ST_OK && all_well(p);
    return st;
}

/* Every rank's step, after it told. */
static enum status tell_step(struct peers *p, uint64_t step, int64_t timeout_ms)
{
    p->steps[p->rank] = step;
    return tell(p, p->steps, sizeof(*p->steps), timeout_ms);
}

static bool one_leaves(const struct peers *p)
{
    bool leaves = false;
    for (uint32_t r = 0; r < p->size; r++)
        leaves = leaves || p->steps[r] == LEAVING;
    return leaves;
}

/* Until every rank has a copy newer than the last round's. ST_STALE: one leaves, so all do. */
static enum status await_all(struct peers *p)
{
    const struct copy_file *file = NULL;
    const enum status here = session_keep_newest(p->options.session, p->last_step, &file);
    session_unkeep(p->options.session, file);
    enum status st = tell_step(p, here == ST_OK ? 0 : LEAVING, NEXT_MS);
    return st == ST_OK && one_leaves(p) ? ST_STALE : st;
}

/* The newest step that all ranks have, who tell at the same time; own: this rank's copy of it, or
 * NULL: a step later it may be gone. The round begins when they do: waiting for copies is none. */
static enum status agree(struct peers *p, const struct copy_file **own, uint64_t *out_step)
{
    struct session *session = p->options.session;
    const struct copy_file *file = NULL;
    enum status st = await_all(p);
    if (st != ST_OK)
        return st;
    p->begin_ns = clock_mono_ns();
    const bool leaves = session_keep_newest(session, p->last_step, &file) != ST_OK;
    st = tell_step(p, leaves ? LEAVING : copy_file_state(file)->scalars.step, ANSWER_MS);
    if (st == ST_OK && one_leaves(p))
        st = ST_STALE;
    uint64_t step = LEAVING;
    for (uint32_t r = 0; r < p->size; r++)
        step = p->steps[r] < step ? p->steps[r] : step;
    if (st != ST_OK || step != p->steps[p->rank]) {
        session_unkeep(session, file);
        file = NULL;
    }
    if (st != ST_OK)
        return st;
    if (file == NULL)
        (void)!session_keep(session, step, &file); /* told to all */
    *own = file;
    *out_step = step;
    return ST_OK;
}

static void tell_of(struct told *told, const struct copy_file *own)
{
    memset(told, 0, sizeof(*told));
    if (own == NULL)
        return;
    told->has = 1;
    told->data_offset = own->data_offset;
    memcpy(&told->seal, own->memory, sizeof(told->seal));
}

static enum status run_round(struct peers *p)
{
    struct session *session = p->options.session;
    const struct copy_file *own = NULL;
    uint64_t step = 0;
    bool well = false;
    enum status st = agree(p, &own, &step);
    if (st != ST_OK)
        return st;
    tell_of(&p->told[p->rank], own);
    st = tell(p, p->told, sizeof(*p->told), ANSWER_MS);
    if (st == ST_OK && all_have(p))
        st = exchange(p, own, step, &well);
    if (!well) {
        session_unkeep(session, own);
        return st;
    }
    session_unkeep(session, p->last);
    p->last = own;
    p->last_step = step;
    p->turn = 1 - p->turn;
    session_peers_whole(session);
    return ST_OK;
}

/* ---- how often ---- */

int64_t peers_pause_ns(int64_t round_ns)
{
    return (PEERS_SHARE - 1) * round_ns;
}

/* What a lost node may cost is the time between two rounds: told when that changed much. */
static void tell_round(struct peers *p, int64_t round_ns)
{
    const struct log *log = p->options.log;
    const double ms = (double)round_ns / 1e6;
    LOG_DEBUG(log, "copies at other nodes: round to step %" PRIu64 " took %.3f ms", p->last_step,
              ms);
    if (p->rank != 0 || (round_ns < 2 * p->told_ns && p->told_ns < 2 * round_ns))
        return;
    p->told_ns = round_ns;
    LOG_INFO(log, "copies at other nodes: a round took %.1f ms, the next begins after %.1f s", ms,
             (double)peers_pause_ns(round_ns) / 1e9);
}

/* The slowest rank decides: none begins without the others. Who closes ends it. */
static void pause_rounds(struct peers *p)
{
    const int64_t now_ns = clock_mono_ns(), round_ns = now_ns - p->begin_ns;
    const int64_t end_ns = now_ns + peers_pause_ns(round_ns);
    const struct timespec end = { .tv_sec = (time_t)(end_ns / 1000000000),
                                  .tv_nsec = (long)(end_ns % 1000000000) };
    tell_round(p, round_ns);
    (void)pthread_mutex_lock(&p->mutex);
    bool waiting = true;
    while (waiting && !atomic_load(&p->leaves))
        waiting = pthread_cond_timedwait(&p->changed, &p->mutex, &end) == 0;
    (void)pthread_mutex_unlock(&p->mutex);
}

/* ---- the thread ---- */

/* Without a whole round nothing that others could be restored from came: its room is given back. */
static void drop_wards(struct peers *p)
{
    for (uint32_t i = 0; i < p->ward_count; i++) {
        copy_file_close(&p->wards[i].files[0]);
        copy_file_close(&p->wards[i].files[1]);
        copy_folder_forget(p->options.copies, p->options.plan->generation, p->wards[i].rank);
    }
}

static enum status connect(struct peers *p)
{
    const struct session_assignment *plan = p->options.plan;
    const struct comm_options options = { .kv = &p->kv,
                                          .generation = plan->generation,
                                          .rank = (int)p->rank,
                                          .size = (int)p->size,
                                          .host = plan->host,
                                          .timeout_ms = OPEN_MS };
    struct comm *comm = NULL;
    enum status st = comm_gloo()->open(&options, &comm);
    if (st != ST_OK)
        return st;
    (void)pthread_mutex_lock(&p->mutex);
    p->comm = comm;
    (void)pthread_mutex_unlock(&p->mutex);
    return ST_OK;
}

static void *run(void *arg)
{
    struct peers *p = arg;
    (void)pthread_setname_np(pthread_self(), "cairn-peers");
    enum status st = connect(p);
    while (st == ST_OK) {
        st = run_round(p);
        if (st == ST_OK)
            pause_rounds(p);
    }
    if (st != ST_STALE && !atomic_load(&p->leaves)) {
        LOG_WARN(p->options.log, "no more copies at other nodes in this generation, going on: %s",
                 status_string(st));
    }
    if (p->last == NULL)
        drop_wards(p);
    session_unkeep(p->options.session, p->last);
    session_peers_whole(p->options.session);
    (void)pthread_mutex_lock(&p->mutex);
    struct comm *comm = p->comm;
    p->comm = NULL;
    p->done = true;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->mutex);
    if (comm != NULL && st != ST_STALE)
        comm_gloo()->abort(comm); /* the others make other calls: no farewell */
    comm_gloo()->close(comm);
    return NULL;
}

/* ---- open and close ---- */

static void release(struct peers *p)
{
    for (uint32_t i = 0; p->wards != NULL && i < p->ward_count; i++) {
        copy_file_close(&p->wards[i].files[0]);
        copy_file_close(&p->wards[i].files[1]);
    }
    (void)pthread_cond_destroy(&p->changed);
    (void)pthread_mutex_destroy(&p->mutex);
    free(p->steps);
    free(p->told);
    free(p->well);
    free(p->send);
    free(p->recv);
    free(p->wards);
    free(p);
}

static enum status allocate(struct peers *p)
{
    const uint32_t *partners = p->options.partners;
    const uint32_t wards = peers_wards(partners, p->size, p->rank);
    p->steps = calloc(p->size, sizeof(*p->steps));
    p->told = calloc(p->size, sizeof(*p->told));
    p->well = calloc(p->size, sizeof(*p->well));
    p->send = calloc(p->size, sizeof(*p->send));
    p->recv = calloc(p->size, sizeof(*p->recv));
    p->wards = calloc(wards + 1, sizeof(*p->wards));
    if (p->steps == NULL || p->told == NULL || p->well == NULL || p->send == NULL ||
        p->recv == NULL || p->wards == NULL)
        return ST_NO_MEMORY;
    for (uint32_t r = 0; r < p->size; r++) {
        if (partners[r] == p->rank)
            p->wards[p->ward_count++].rank = r;
    }
    return ST_OK;
}

enum status peers_open(const struct peers_options *options, struct peers **out)
{
    struct peers *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return ST_NO_MEMORY;
    p->options = *options;
    p->rank = options->plan->rank;
    p->size = options->plan->size;
    p->partner = options->partners[p->rank];
    p->kv = (struct kv){ .self = p, .set = kv_set, .get = kv_get }; /* all that open asks for */
    (void)pthread_mutex_init(&p->mutex, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&p->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    enum status st = allocate(p);
    if (st == ST_OK && pthread_create(&p->thread, NULL, run, p) != 0)
        st = ST_NO_MEMORY;
    if (st != ST_OK) {
        release(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

void peers_close(struct peers *peers, bool waits)
{
    struct peers *p = peers;
    if (p == NULL)
        return;
    session_keep_end(p->options.session);
    const int64_t end_ns = clock_mono_ns() + LEAVE_MS * 1000000;
    const struct timespec end = { .tv_sec = (time_t)(end_ns / 1000000000),
                                  .tv_nsec = (long)(end_ns % 1000000000) };
    (void)pthread_mutex_lock(&p->mutex);
    atomic_store(&p->leaves, true);
    (void)pthread_cond_broadcast(&p->changed);
    bool waiting = waits;
    while (waiting && !p->done)
        waiting = pthread_cond_timedwait(&p->changed, &p->mutex, &end) == 0;
    if (!p->done && p->comm != NULL)
        comm_gloo()->abort(p->comm);
    (void)pthread_mutex_unlock(&p->mutex);
    (void)pthread_join(p->thread, NULL);
    release(p);
}
