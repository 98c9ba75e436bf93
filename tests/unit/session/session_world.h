/*
 * For tests of the session with its threads: a link inside the process, whose other end is a small
 * coordinator, and a state to save. Nothing waits for a time to pass: conditions have deadlines.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"
#include "session/session.h"
#include "tests/test.h"
#include "tests/unit/session/session_orders.h"

#define QUEUE_MAX 256
#define LONG_MS   60000
#define ELEMENTS  (3 * PIECE_ELEMENTS + 777)

struct coordinator {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    char dir[64]; /* of everything */
    struct log log;

    Cairn__V1__TrainerOrder *queue[QUEUE_MAX]; /* to the trainer */
    int first, count;
    bool open, interrupted;
    int opened;          /* connections so far */
    int lose_after;      /* messages until the link is lost; -1: never */
    bool loses;          /* each connection: the n-th after n messages */
    bool refuse, absent; /* of the next open */

    /* What it does by itself. */
    bool gives_folders, commits;
    bool plans_spare; /* who says hello is a spare */

    /* What it heard. */
    uint32_t generation; /* of the last hello */
    int hellos, attached, begins, reports, fails, removed, full, faults, finished, passed;
    uint64_t rows_through, ready_total, last_step;
    char last_reason[LIMIT_REASON];
    uint64_t progress_counter;
    uint64_t collectives, exchanges; /* of the newest Progress */
    char collective[32];
    char fault_message[LIMIT_REASON], fail_message[LIMIT_REASON];
    bool fault_outside;
    struct ckpt_report report; /* the last one, owned */
    int over_calls;
    char over_reason[LIMIT_REASON];
    int park_calls, parks;                /* the callback; messages Parked, alone or in hello */
    struct session_parked parked, offers; /* the last; of a hello that is not attached */
    int meets;
    bool meets_silent; /* the other ranks never come */
    uint32_t ranks;    /* of the generation: 1, or 2; who joins is rank 0 */
    /* Changes what rank 1 brings to a round, which is what rank 0 does; NULL: nothing. */
    void (*other)(const char *name, uint8_t *common);
};

struct world {
    struct coordinator c;
    struct session_link link;
    struct io io; /* the machine's, or with something wrong */
    char words[96];
    struct session *session;
    struct session_options options;
};

struct training {
    float *values;
    struct ckpt_buffer buffer;
    struct ckpt_tensor tensor;
    struct ckpt_blob blob;
    uint64_t skip[2];
    struct ckpt_state state;
};

void order_folder(struct coordinator *c, uint64_t step);
void order_done(struct coordinator *c, uint64_t step, bool committed);
void order_save_at(struct coordinator *c, uint64_t step, bool exits);
void order_stay(struct coordinator *c, uint64_t step);
void order_over(struct coordinator *c, const char *reason);
void order_park(struct coordinator *c);
void order_regroup(struct coordinator *c, uint32_t generation, const char *token);
void lose(struct coordinator *c);
bool wait_until(struct coordinator *c, int64_t end_ms);
struct world *world_new(int64_t orphan_ms);
/* A session of that generation in the same process; kept may be NULL. Joins. */
struct session *next_session(struct world *w, uint32_t generation,
                             const struct session_parked *kept);
void world_free(struct world *w);
struct world *joined(void);
/* Waits until a number that the coordinator counts has come so far. */
void await(struct world *w, const int *number, int at_least);
/* Until Progress says so. */
void await_place(struct world *w, const char *collective, uint64_t collectives, uint64_t exchanges);
void training_init(struct training *t, uint64_t step);
void get_ready(struct world *w);
/* A snapshot of it that is saved, copied when it returns; saved already is success. */
enum status save(struct session *session, const struct ckpt_state *state);
Cairn__V1__LastWords *read_words(const struct world *w);
bool remove_name(void *arg, const char *name);
