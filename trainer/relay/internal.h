/*
 * Declarations that the files of the relay share: the object, its lock, its threads.
 *
 * Threads: the relay's (socket.c, requests.c), the forming one (form.c), the session's copier
 *          (relay_fill), the worker's (relay_look, relay_close).
 * Lock:    mutex; not held in calls of the session.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "library/wire/wire.h"
#include "trainer/relay/relay.h"
#include "trainer/relay/saved.h"

#define RELAY_PEERS 4

/* A connection, and the request that comes in. */
struct relay_peer {
    int fd; /* -1: none */
    bool greeted;
    struct wire_head head;
    size_t head_size; /* bytes of it that are in */
    uint8_t *body;    /* owned */
    size_t body_size; /* likewise */
    int64_t since_ms;
};

/* The copy that the program fills in. */
enum relay_filling {
    RELAY_FILLS_NOTHING,
    RELAY_BEGINS, /* it is asked for; the session looks for a file */
    RELAY_FILLS,
    RELAY_FILLED,
    RELAY_GAVE_UP,
};

/* What the program goes on from. */
struct relay_source {
    enum wire_source kind;
    uint64_t step;
    uint32_t count;
    char *paths; /* [count] texts, each with its NUL; owned */
    size_t size; /* bytes of paths */
};

struct relay {
    struct relay_options options;
    char name[40];
    int listen_fd, wake_fd, page_fd;
    struct wire_page *page;
    struct relay_source source;
    pthread_t thread, former;
    bool has_thread, has_former;

    pthread_mutex_t mutex;
    pthread_cond_t changed;

    /* Under mutex. */
    bool closing;
    bool greeted, described, ready, formed;
    bool done, failed;
    bool falls_back;      /* an older copy may be saved: nothing new is due */
    uint64_t fallen_back; /* the step of one that is committed; 0: none */
    struct reason why, words;
    int64_t words_ms;
    enum relay_filling filling;
    bool dropped; /* the copy that was begun last was given up here */
    uint64_t stall_us;

    /* The relay's thread's; saved and began are the forming thread's from READY until formed. */
    struct relay_peer peers[RELAY_PEERS];
    struct saved saved;
    struct wire_ready began;
    uint64_t due_step;    /* of the last DUE */
    enum cairn_due due;   /* what was answered */
    uint64_t last_step;   /* the program ends with it by itself; 0: not said */
    uint64_t exit_step;   /* a step after which it was asked to end; 0: none */
    uint64_t saving_step; /* of the last BEGIN */
    uint64_t committed;
    void *welcome; /* answers, while they are sent; this one owned */
    struct wire_due answered_due;
    struct wire_file answered_file;
    struct wire_step answered_step;

    struct session_row row; /* of metrics, until another step's comes; under mutex */
    bool has_row;
    int64_t row_ms;

    _Atomic uint64_t requests; /* that were answered */
    bool told_to_leave;        /* relay_look's */
    uint32_t shrunk;           /* copy_guard_shrunk, before this program */
};

/* An answer. */
struct relay_answer {
    enum status status;
    struct reason why;
    const void *body; /* borrowed */
    size_t size;
    int fd; /* -1: none */
};

int64_t relay_now_ms(void);
/* Notes that the program can't go on; the first reason counts. */
void relay_fail(struct relay *relay, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool relay_is_closing(struct relay *relay);
/* Waits so long, or until the relay closes. */
void relay_pause(struct relay *relay, int64_t ms);
/* Joins a round of the generation and waits for all ranks, however long they take. out: [ranks].
 * ST_STALE: it is over, or the relay closes */
MUST_CHECK enum status relay_meet(struct relay *relay, const char *name, const void *common,
                                  size_t size, struct rendezvous_got *out);

/* ---- socket.c ---- */

MUST_CHECK enum status relay_listen(struct relay *relay);
void *relay_run(void *relay);

/* ---- requests.c ---- */

/* Returns false if a request of that kind can't be that long. */
bool relay_fits(uint16_t kind, uint32_t size);
/* Does what the request asks for. false: it breaks the protocol: relay_fail was called. */
bool relay_serve(struct relay *relay, struct relay_peer *peer, struct relay_answer *out);
/* Tells the session the row of metrics that waits. */
void relay_tell_row(struct relay *relay);

/* ---- filling.c ---- */

/* For struct session_snapshot: waits until the copy is filled in, or given up. */
enum status relay_fill(void *relay, uint64_t *out_stall_us);
/* Notes that a copy is to be begun, which can't be given up until it is. */
void relay_filling_begins(struct relay *relay);
void relay_set_filling(struct relay *relay, enum relay_filling filling);
bool relay_fills(struct relay *relay);
/* Notes how the filling ended, which the session then hears of: session_snapshot_wait. false:
 * nothing is being filled in, or another thread was first. */
bool relay_end_filling(struct relay *relay, enum relay_filling how, uint64_t stall_us);
/* Gives up a copy that the program fills in: its connection has ended, or it is stopped. Thread:
 * the relay's, or the forming one while falls_back. false: as above. */
bool relay_give_up(struct relay *relay);
/* Whether the copy that was begun last was given up by this side. */
bool relay_was_dropped(struct relay *relay);

/* ---- form.c ---- */

void *relay_form(void *relay);

/* ---- fallback.c ---- */

/* Looks, until the generation has ended, whether an exit that was announced comes too late. */
void relay_watch_exits(struct relay *relay);

/* ---- source.c ---- */

MUST_CHECK enum status relay_find_source(struct relay *relay, struct reason *out_why);
