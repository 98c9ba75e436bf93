/*
 * A round, which all ranks make together:
 *
 *   await_all              until every rank has a copy newer than the last round's
 *   agree                  all name their newest copy; the oldest of these steps is this round's
 *   run_round              all offer their copy of that step: its sizes and its seal
 *   exchange_copies
 *       prepare_files      files for the copies that will come
 *       transfer           the copies go to the copy peers, CHUNK bytes of each at a time
 *       accept_copies      each rank checks what it received, and seals it
 *                          all say whether everything came complete; if so, the round counts
 *   pause_rounds
 *
 * A copy is complete on all ranks before the next but one is begun on any (trainer/loop/loop.c). So
 * the oldest of steps that are named at one time is of use even where a rank stands still.
 *
 * Invariants
 *  1. Every rank makes the same calls of the communicator: what decides about them (steps, sizes,
 *     whether one has no copy) is known to all first.
 *  2. `last` and the peer copies' files other than `turn` hold the newest round that counts; they
 *     change only when a later one does.
 *  3. `comm` and `done` are under the mutex, for the closing thread, which sets `leaves` once.
 *     All else belongs to the thread.
 */
#include "trainer/state/copy_exchange.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "trainer/state/copy_peers.h"

#define OPEN_MS   INT64_C(60000)
#define NEXT_MS   INT64_C(86400000) /* between two copies; a peer that dies is noticed at once */
#define ANSWER_MS INT64_C(120000)   /* of one exchange within a round */
#define LEAVE_MS  INT64_C(2000)     /* that copy_exchange_close waits for a round to end */
#define LOOK_MS   INT64_C(200)      /* between two looks at `leaves` while waiting for the others */
#define CHUNK     ((size_t)64 * 1024 * 1024)
#define LEAVING   UINT64_MAX /* in place of a step: this rank closes */

/* A rank's offer of its copy of this round's step; sent over the network as it is. */
struct offer {
    uint64_t has; /* 0: that copy is gone, so that this round has none */
    uint64_t data_offset;
    struct copy_seal seal;
};

struct peer_copy {
    uint32_t rank;
    struct copy_file files[2];
};

struct copy_exchange {
    struct copy_exchange_options options;
    uint32_t rank, size, copy_peer;
    struct rendezvous rendezvous;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct comm *comm; /* under mutex, for abort */
    bool done;         /* under mutex */
    atomic_bool leaves;

    uint64_t *steps;                  /* [size]: the step that each rank names */
    struct offer *offers;             /* [size] */
    uint8_t *complete;                /* [size]: 1: all that the rank received is complete */
    struct comm_segment *send, *recv; /* [size] */
    struct peer_copy *peer_copies;    /* [peer_copy_count] */
    uint32_t peer_copy_count;

    uint64_t last_step;           /* of the last round that counts; 0: none yet */
    const struct copy_file *last; /* own copy of that step, kept; NULL: none yet */
    int turn;                     /* of each peer copy's two files: the one that is written next */
    int64_t begin_ns;             /* of this round */
    int64_t logged_ns;            /* duration of the round that was last logged */
    bool warned;
};

/* ---- rendezvous: the session's, which closing ends ---- */

/* Meets in short waits, so that closing doesn't wait for ranks that never come. */
static enum status exchange_join(void *self, const char *name, const struct rendezvous_part *mine,
                                 int ranks, int64_t timeout_ms, struct rendezvous_got *out)
{
    struct copy_exchange *x = self;
    const struct rendezvous *session = session_rendezvous(x->options.session);
    const int64_t end_ms = clock_mono_ms(clock_system()) + timeout_ms;
    for (;;) {
        if (atomic_load(&x->leaves))
            return ST_STALE;
        const int64_t left_ms = end_ms - clock_mono_ms(clock_system());
        const int64_t wait_ms = left_ms > LOOK_MS ? LOOK_MS : left_ms > 0 ? left_ms : 0;
        const enum status st = session->join(session->self, name, mine, ranks, wait_ms, out);
        if (st != ST_TIMED_OUT || left_ms <= LOOK_MS)
            return st;
    }
}

static bool exchange_is_over(void *self)
{
    struct copy_exchange *x = self;
    return atomic_load(&x->leaves) || session_is_over(x->options.session);
}

/* ---- rounds ---- */

/* items: `size` bytes per rank, of which this rank has filled in its own; now all are there. */
static enum status share_with_all(struct copy_exchange *x, void *items, size_t size,
                                  int64_t timeout_ms)
{
    for (uint32_t r = 0; r < x->size; r++)
        x->send[r] = (struct comm_segment){ (uint8_t *)items + r * size, size };
    return comm_gloo()->all_gather_v(x->comm, x->send, timeout_ms);
}

static bool all_complete(const struct copy_exchange *x)
{
    bool complete = true;
    for (uint32_t r = 0; r < x->size; r++)
        complete = complete && x->complete[r] == 1;
    return complete;
}

static bool all_have(const struct copy_exchange *x)
{
    bool have = true;
    for (uint32_t r = 0; r < x->size; r++)
        have = have && x->offers[r].has == 1;
    return have;
}

/*
 * True if an offer's numbers, whoever sent them, describe two ranges of a copy file. These are
 * sent, head first:
 *   [sizeof(struct copy_seal), head_size)   tables, scalars, hashes
 *   [data_offset, file_size)                the share
 */
static bool offer_is_sound(const struct offer *offer)
{
    const struct copy_seal *seal = &offer->seal;
    return seal->head_size >= COPY_BESIDE && seal->head_size <= offer->data_offset &&
           offer->data_offset <= seal->file_size && seal->file_size <= UINT64_MAX / 4;
}

/* Returns part c of the two ranges, which are cut into parts of CHUNK bytes; size 0: there is
 * none. */
static struct comm_segment offer_part(const struct offer *offer, uint8_t *memory, uint64_t c)
{
    const uint64_t head = sizeof(struct copy_seal);
    const uint64_t heads = (offer->seal.head_size - head + CHUNK - 1) / CHUNK;
    uint64_t at = head + c * CHUNK, end = offer->seal.head_size;
    if (c >= heads) {
        at = offer->data_offset + (c - heads) * CHUNK;
        end = offer->seal.file_size;
    }
    if (at >= end)
        return (struct comm_segment){ NULL, 0 };
    return (struct comm_segment){ memory + at, end - at < CHUNK ? (size_t)(end - at) : CHUNK };
}

static uint64_t offer_part_count(const struct offer *offer)
{
    return (offer->seal.head_size - sizeof(struct copy_seal) + CHUNK - 1) / CHUNK +
           (offer->seal.file_size - offer->data_offset + CHUNK - 1) / CHUNK;
}

/* A file of this size for a peer's copy; one that an older generation left is taken over. */
static enum status open_peer_copy(struct copy_exchange *x, const struct peer_copy *peer_copy,
                                  size_t size, int number, struct copy_file *out)
{
    const struct session_assignment *assignment = x->options.assignment;
    const char *dir = x->options.copies;
    char path[LIMIT_PATH];
    const int length =
        snprintf(path, sizeof(path), "%s/g%" PRIu32 "-r%" PRIu32 "-%d.copy", dir,
                 assignment->generation, peer_copy->rank, COPY_EXCHANGE_FIRST + number);
    if (length <= 0 || (size_t)length >= sizeof(path))
        return ST_FULL;
    (void)copy_folder_reuse(dir, assignment->generation, peer_copy->rank,
                            assignment->memory.generation > 0 ? &assignment->memory : NULL, size,
                            path);
    return copy_file_open_size(path, size, out);
}

/* Room for what the peers offer. */
static enum status prepare_files(struct copy_exchange *x)
{
    for (uint32_t i = 0; i < x->peer_copy_count; i++) {
        struct peer_copy *peer_copy = &x->peer_copies[i];
        struct copy_file *file = &peer_copy->files[x->turn];
        const size_t size = (size_t)x->offers[peer_copy->rank].seal.file_size;
        if (size > copy_file_bytes(x->options.peer_copy_bytes)) /* what memory is budgeted for */
            return ST_FULL;
        if (file->memory != NULL && file->size == size) {
            copy_file_break(file);
            continue;
        }
        copy_file_close(file);
        enum status st = open_peer_copy(x, peer_copy, size, x->turn, file);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status transfer(struct copy_exchange *x, const struct copy_file *own)
{
    uint64_t parts = 0;
    CHECK(own != NULL);
    for (uint32_t r = 0; r < x->size; r++) {
        const uint64_t count = offer_part_count(&x->offers[r]);
        parts = count > parts ? count : parts;
    }
    enum status st = ST_OK;
    for (uint64_t c = 0; st == ST_OK && c < parts; c++) {
        memset(x->send, 0, x->size * sizeof(*x->send));
        memset(x->recv, 0, x->size * sizeof(*x->recv));
        x->send[x->copy_peer] = offer_part(&x->offers[x->rank], own->memory, c);
        for (uint32_t i = 0; i < x->peer_copy_count; i++) {
            const struct peer_copy *peer_copy = &x->peer_copies[i];
            x->recv[peer_copy->rank] =
                offer_part(&x->offers[peer_copy->rank], peer_copy->files[x->turn].memory, c);
        }
        st = comm_gloo()->all_to_all_v(x->comm, x->send, x->recv, ANSWER_MS);
    }
    return st;
}

/* Seals a peer copy if it is complete and of this round's step. */
static enum status accept_copy(struct copy_exchange *x, struct peer_copy *peer_copy, uint64_t step)
{
    const struct session_assignment *assignment = x->options.assignment;
    struct copy_file *file = &peer_copy->files[x->turn];
    const struct copy_seal *seal = &x->offers[peer_copy->rank].seal;
    struct copy_view view;
    enum status st = fault_status("peers.received");
    if (st == ST_OK)
        st = copy_file_check(file, seal, &view);
    if (st != ST_OK)
        return st;
    const struct copy_head *head = view.head;
    if (strcmp(head->job, assignment->job) != 0 || head->generation != assignment->generation ||
        head->rank != peer_copy->rank || head->size != assignment->size || head->step != step)
        return ST_CORRUPT;
    copy_file_accept(file, seal);
    return ST_OK;
}

/* A copy that came damaged costs this round; the next one brings another. */
static void accept_copies(struct copy_exchange *x, uint64_t step)
{
    x->complete[x->rank] = 1;
    for (uint32_t i = 0; i < x->peer_copy_count; i++) {
        const enum status st = accept_copy(x, &x->peer_copies[i], step);
        if (st == ST_OK)
            continue;
        x->complete[x->rank] = 0;
        if (!x->warned) {
            LOG_WARN(x->options.log,
                     "copy of rank %" PRIu32 " of step %" PRIu64 ": as received: %s",
                     x->peer_copies[i].rank, step, status_string(st));
        }
        x->warned = true;
    }
}

/* own: this rank's copy of the step, of which all ranks have one. *out_complete: the round
 * counts. */
static enum status exchange_copies(struct copy_exchange *x, const struct copy_file *own,
                                   uint64_t step, bool *out_complete)
{
    for (uint32_t r = 0; r < x->size; r++) {
        if (!offer_is_sound(&x->offers[r]))
            return ST_PEER;
    }
    enum status st = prepare_files(x);
    if (st == ST_OK)
        st = transfer(x, own);
    if (st != ST_OK)
        return st;
    accept_copies(x, step);
    st = share_with_all(x, x->complete, sizeof(*x->complete), ANSWER_MS);
    *out_complete = st == ST_OK && all_complete(x);
    return st;
}

/* Shares a step with all ranks: afterwards steps[r] is what rank r named. */
static enum status name_step(struct copy_exchange *x, uint64_t step, int64_t timeout_ms)
{
    x->steps[x->rank] = step;
    return share_with_all(x, x->steps, sizeof(*x->steps), timeout_ms);
}

static bool one_leaves(const struct copy_exchange *x)
{
    bool leaves = false;
    for (uint32_t r = 0; r < x->size; r++)
        leaves = leaves || x->steps[r] == LEAVING;
    return leaves;
}

/* Waits until every rank has a copy newer than the last round's. ST_STALE: one leaves, so all
 * do. */
static enum status await_all(struct copy_exchange *x)
{
    const struct copy_file *file = NULL;
    const enum status here = session_keep_newest(x->options.session, x->last_step, &file);
    session_unkeep(x->options.session, file);
    enum status st = name_step(x, here == ST_OK ? 0 : LEAVING, NEXT_MS);
    return st == ST_OK && one_leaves(x) ? ST_STALE : st;
}

/*
 * The oldest of the newest copies that all ranks name at the same time. *own: this rank's copy of
 * that step, kept; NULL: it is gone, which happens where a newer one was made since. The round's
 * time begins here: waiting for copies takes nothing from the training.
 */
static enum status agree(struct copy_exchange *x, const struct copy_file **own, uint64_t *out_step)
{
    struct session *session = x->options.session;
    const struct copy_file *file = NULL;
    enum status st = await_all(x);
    if (st != ST_OK)
        return st;
    x->begin_ns = clock_mono_ns();
    const bool leaves = session_keep_newest(session, x->last_step, &file) != ST_OK;
    st = name_step(x, leaves ? LEAVING : copy_file_state(file)->scalars.step, ANSWER_MS);
    if (st == ST_OK && one_leaves(x))
        st = ST_STALE;
    uint64_t step = LEAVING;
    for (uint32_t r = 0; r < x->size; r++)
        step = x->steps[r] < step ? x->steps[r] : step;
    if (st != ST_OK || step != x->steps[x->rank]) {
        session_unkeep(session, file);
        file = NULL;
    }
    if (st != ST_OK)
        return st;
    if (file == NULL)
        (void)!session_keep(session, step, &file); /* NULL if it is gone: the offer says so */
    *own = file;
    *out_step = step;
    return ST_OK;
}

static void make_offer(struct offer *offer, const struct copy_file *own)
{
    memset(offer, 0, sizeof(*offer));
    if (own == NULL)
        return;
    offer->has = 1;
    offer->data_offset = own->data_offset;
    memcpy(&offer->seal, own->memory, sizeof(offer->seal));
}

static enum status run_round(struct copy_exchange *x)
{
    struct session *session = x->options.session;
    const struct copy_file *own = NULL;
    uint64_t step = 0;
    bool complete = false;
    enum status st = agree(x, &own, &step);
    if (st != ST_OK)
        return st;
    make_offer(&x->offers[x->rank], own);
    st = share_with_all(x, x->offers, sizeof(*x->offers), ANSWER_MS);
    if (st == ST_OK && all_have(x))
        st = exchange_copies(x, own, step, &complete);
    if (!complete) {
        session_unkeep(session, own);
        return st;
    }
    session_unkeep(session, x->last);
    x->last = own;
    x->last_step = step;
    x->turn = 1 - x->turn;
    session_peers_complete(session);
    return ST_OK;
}

/* ---- how often ---- */

int64_t copy_exchange_pause_ns(int64_t round_ns)
{
    return (COPY_EXCHANGE_SHARE - 1) * round_ns;
}

/* The time between two rounds is what a lost node may cost: logged when it has changed much. */
static void log_round(struct copy_exchange *x, int64_t round_ns)
{
    const struct log *log = x->options.log;
    const double ms = (double)round_ns / 1e6;
    LOG_DEBUG(log, "copies at other nodes: round to step %" PRIu64 " took %.3f ms", x->last_step,
              ms);
    if (x->rank != 0 || (round_ns < 2 * x->logged_ns && x->logged_ns < 2 * round_ns))
        return;
    x->logged_ns = round_ns;
    LOG_INFO(log, "copies at other nodes: a round took %.1f ms, the next begins after %.1f s", ms,
             (double)copy_exchange_pause_ns(round_ns) / 1e9);
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000),
                              .tv_nsec = (long)(ns % 1000000000) };
}

/* Ranks pause for different times; the longest counts, since no round begins without all. Closing
 * ends a pause. */
static void pause_rounds(struct copy_exchange *x)
{
    const int64_t now_ns = clock_mono_ns(), round_ns = now_ns - x->begin_ns;
    const struct timespec end = timespec_of(now_ns + copy_exchange_pause_ns(round_ns));
    log_round(x, round_ns);
    (void)pthread_mutex_lock(&x->mutex);
    bool waiting = true;
    while (waiting && !atomic_load(&x->leaves))
        waiting = pthread_cond_timedwait(&x->changed, &x->mutex, &end) == 0;
    (void)pthread_mutex_unlock(&x->mutex);
}

/* ---- the thread ---- */

/* Gives the memory of received copies back: no round was complete, so nobody can be restored from
 * them. */
static void drop_peer_copies(struct copy_exchange *x)
{
    for (uint32_t i = 0; i < x->peer_copy_count; i++) {
        copy_file_close(&x->peer_copies[i].files[0]);
        copy_file_close(&x->peer_copies[i].files[1]);
        copy_folder_forget(x->options.copies, x->options.assignment->generation,
                           x->peer_copies[i].rank);
    }
}

static enum status exchange_connect(struct copy_exchange *x)
{
    const struct session_assignment *assignment = x->options.assignment;
    const struct comm_options options = { .rendezvous = &x->rendezvous,
                                          .round_name = "peers",
                                          .rank = (int)x->rank,
                                          .size = (int)x->size,
                                          .host = assignment->host,
                                          .secret = x->options.secret,
                                          .timeout_ms = OPEN_MS,
                                          .log = x->options.log };
    struct comm *comm = NULL;
    enum status st = comm_gloo()->open(&options, &comm);
    if (st != ST_OK)
        return st;
    (void)pthread_mutex_lock(&x->mutex);
    x->comm = comm;
    (void)pthread_mutex_unlock(&x->mutex);
    return ST_OK;
}

static void *exchange_main(void *arg)
{
    struct copy_exchange *x = arg;
    (void)pthread_setname_np(pthread_self(), "cairn-peers");
    enum status st = exchange_connect(x);
    while (st == ST_OK) {
        st = run_round(x);
        if (st == ST_OK)
            pause_rounds(x);
    }
    if (st != ST_STALE && !atomic_load(&x->leaves)) {
        LOG_WARN(x->options.log, "no more copies at other nodes in this generation, going on: %s",
                 status_string(st));
    }
    if (x->last == NULL)
        drop_peer_copies(x);
    session_unkeep(x->options.session, x->last);
    session_peers_complete(x->options.session);
    (void)pthread_mutex_lock(&x->mutex);
    struct comm *comm = x->comm;
    x->comm = NULL;
    x->done = true;
    (void)pthread_cond_broadcast(&x->changed);
    (void)pthread_mutex_unlock(&x->mutex);
    if (comm != NULL && st != ST_STALE)
        comm_gloo()->abort(comm); /* the others make other calls: no farewell */
    comm_gloo()->close(comm);
    return NULL;
}

/* ---- open and close ---- */

static void exchange_release(struct copy_exchange *x)
{
    for (uint32_t i = 0; x->peer_copies != NULL && i < x->peer_copy_count; i++) {
        copy_file_close(&x->peer_copies[i].files[0]);
        copy_file_close(&x->peer_copies[i].files[1]);
    }
    (void)pthread_cond_destroy(&x->changed);
    (void)pthread_mutex_destroy(&x->mutex);
    free(x->steps);
    free(x->offers);
    free(x->complete);
    free(x->send);
    free(x->recv);
    free(x->peer_copies);
    free(x);
}

static enum status exchange_allocate(struct copy_exchange *x)
{
    const uint32_t *copy_peers = x->options.copy_peers;
    const uint32_t count = copy_peers_count(copy_peers, x->size, x->rank);
    x->steps = calloc(x->size, sizeof(*x->steps));
    x->offers = calloc(x->size, sizeof(*x->offers));
    x->complete = calloc(x->size, sizeof(*x->complete));
    x->send = calloc(x->size, sizeof(*x->send));
    x->recv = calloc(x->size, sizeof(*x->recv));
    x->peer_copies = calloc(count + 1, sizeof(*x->peer_copies));
    if (x->steps == NULL || x->offers == NULL || x->complete == NULL || x->send == NULL ||
        x->recv == NULL || x->peer_copies == NULL)
        return ST_NO_MEMORY;
    for (uint32_t r = 0; r < x->size; r++) {
        if (copy_peers[r] == x->rank)
            x->peer_copies[x->peer_copy_count++].rank = r;
    }
    CHECK(x->peer_copy_count == count);
    return ST_OK;
}

enum status copy_exchange_open(const struct copy_exchange_options *options,
                               struct copy_exchange **out)
{
    struct copy_exchange *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return ST_NO_MEMORY;
    x->options = *options;
    x->rank = options->assignment->rank;
    x->size = options->assignment->size;
    x->copy_peer = options->copy_peers[x->rank];
    CHECK(x->copy_peer < x->size);
    CHECK(x->copy_peer != x->rank);
    x->rendezvous =
        (struct rendezvous){ .self = x, .join = exchange_join, .is_over = exchange_is_over };
    (void)pthread_mutex_init(&x->mutex, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&x->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    enum status st = exchange_allocate(x);
    if (st == ST_OK && pthread_create(&x->thread, NULL, exchange_main, x) != 0)
        st = ST_NO_MEMORY;
    if (st != ST_OK) {
        exchange_release(x);
        return st;
    }
    *out = x;
    return ST_OK;
}

void copy_exchange_close(struct copy_exchange *exchange, bool waits)
{
    struct copy_exchange *x = exchange;
    if (x == NULL)
        return;
    session_keep_end(x->options.session);
    const struct timespec end = timespec_of(clock_mono_ns() + LEAVE_MS * 1000000);
    (void)pthread_mutex_lock(&x->mutex);
    atomic_store(&x->leaves, true);
    (void)pthread_cond_broadcast(&x->changed);
    bool waiting = waits;
    while (waiting && !x->done)
        waiting = pthread_cond_timedwait(&x->changed, &x->mutex, &end) == 0;
    if (!x->done && x->comm != NULL)
        comm_gloo()->abort(x->comm);
    (void)pthread_mutex_unlock(&x->mutex);
    (void)pthread_join(x->thread, NULL);
    exchange_release(x);
}
