/*
 * Declarations that the files of the relay share: the object, its lock, its threads.
 *
 * Threads: each process's (socket.c, requests.c), the forming one (form.c), the session's copier
 *          (relay_fill), the worker's (relay_look, relay_close).
 * Locks:   turn, by who begins a copy or ends one in the session, or asks it what is due; taken
 *          before mutex, which is not held in calls of the session.
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

/* One process of the program: its connection, and what is said there. */
struct relay_process {
    struct relay *relay;
    uint32_t local; /* its number among the worker's */
    int listen_fd, wake_fd, page_fd;
    struct wire_page *page;
    struct session_followed followed; /* the page, and those of the processes after it */
    pthread_t thread;
    bool has_thread;
    _Atomic uint64_t requests; /* that were answered */
    _Atomic uint64_t owed;     /* stored under turn */

    /* Under the relay's mutex. */
    uint64_t last_step; /* the program ends with it by itself; 0: not said */
    bool greeted, ready, done;
    bool joined, filled; /* it has begun to fill in the copy, and is through with it */

    /* Members of its thread; saved and began are the forming thread's from READY until formed. */
    struct relay_peer peers[RELAY_PEERS];
    bool described;
    struct saved saved;
    struct wire_ready began;
    uint64_t due_step;    /* of the last DUE */
    enum cairn_due due;   /* what was answered */
    uint64_t exit_step;   /* a step after which it was asked to end; 0: none */
    uint64_t saving_step; /* of the last BEGIN */
    uint64_t begins;      /* of that step, by this process */
    void *welcome;        /* answers, while they are sent; this one owned */
    struct wire_due answered_due;
    struct wire_file answered_file;
    int file_fd; /* that goes with it; borrowed */
    struct wire_step answered_step;
};

#define RELAY_DECISIONS 32

/* What the session said was due after a step. */
struct relay_decision {
    uint64_t step;
    enum cairn_due due;
};

struct relay {
    struct relay_options options;
    char name[40];
    struct relay_source source;
    uint32_t count;                  /* processes */
    struct relay_process *processes; /* [count]; owned */
    struct saved *saved;             /* of the first one, by which the state is dealt out */
    pthread_t former;
    bool has_former;

    pthread_mutex_t turn;
    struct relay_decision decisions[RELAY_DECISIONS]; /* under turn, as the next; the last ones */
    uint64_t decided;                                 /* how often */
    uint64_t told_last, ends_with; /* the step that the program ends with: said, and agreed */

    pthread_mutex_t mutex;
    pthread_cond_t changed;

    /* Under mutex. */
    bool closing;
    bool formed, failed;
    bool falls_back;      /* an older copy may be saved: nothing new is due */
    uint64_t fallen_back; /* the step of one that is committed; 0: none */
    uint64_t stayed;      /* an exit that was taken back: the step after which it would have been */
    uint64_t committed;
    struct reason why, words;
    int64_t words_ms;
    enum relay_filling filling;
    const struct copy_file *file; /* that is filled in */
    uint32_t file_number;
    uint32_t shrunk; /* copy_guard_shrunk, before this program */
    uint64_t filling_step,
        attempts;        /* of the copy that was begun last; how often that step's was */
    enum status refused; /* why the last attempt wasn't begun; ST_OK: it was */
    bool dropped;        /* the copy that was begun last was given up here */
    uint64_t stall_us;

    struct session_row row; /* of metrics, until another step's comes; under mutex */
    bool has_row;
    int64_t row_ms;

    bool told_to_leave; /* relay_look's */
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

/* Chooses the relay's name. */
void relay_choose_name(struct relay *relay);
MUST_CHECK enum status relay_listen(struct relay_process *process);
/* process: a struct relay_process */
void *relay_run(void *process);

/* ---- requests.c ---- */

/* Returns false if a request of that kind can't be that long. */
bool relay_fits(uint16_t kind, uint32_t size);
/* Does what the request asks for. false: it breaks the protocol: relay_fail was called. */
bool relay_serve(struct relay_process *process, struct relay_peer *peer, struct relay_answer *out);
/* Tells the session the row of metrics that waits. */
void relay_tell_row(struct relay *relay);

/* ---- filling.c ---- */

/* For struct session_snapshot: waits until the copy is filled in, or given up. */
enum status relay_fill(void *relay, uint64_t *out_stall_us);
/*
 * Begins the copy of the process's saving_step, or joins those that fill it in already;
 * answered_file and file_fd say where.
 * Errors: ST_EXISTS  it is past: begun without this process, or failed meanwhile
 *         those of session_snapshot_begin
 */
MUST_CHECK enum status relay_begin_filling(struct relay_process *process,
                                           const struct session_snapshot *snapshot);
/* True if others fill in the copy of that step, and wait for this process to begin. */
bool relay_lacks(struct relay_process *process, uint64_t step);
/* True if the process fills in a copy. */
bool relay_fills(struct relay_process *process);
/*
 * Notes that a process is through with the copy, or (complete: false) gives it up for all. Once all
 * are, the session hears of it, and out_st has what it says.
 * false: this process fills in nothing, or another thread was first.
 */
bool relay_end_filling(struct relay_process *process, bool complete, uint64_t stall_us,
                       enum status *out_st);
/* Gives up a copy that is being filled in: a process's connection has ended, or it is stopped.
 * Thread: a process's, or the forming one while falls_back. false: as above. */
bool relay_give_up(struct relay *relay);
/* Gives up a copy that some process hasn't begun and won't: it has finished the next step. */
void relay_give_up_passed(struct relay *relay);
/* Whether the copy that the process began last was given up by this side, or by another process. */
bool relay_was_dropped(struct relay_process *process);

/* ---- together.c ---- */

/* Returns what is due after a step: the same to all processes. */
enum cairn_due relay_due(struct relay_process *process, uint64_t step);
/* Waits for saves to be decided, as session_settle: the same to all processes of an exit after
 * `step` that was taken back. */
MUST_CHECK enum status relay_settle(struct relay *relay, uint64_t step, int64_t timeout_ms,
                                    uint64_t *out_committed);

/* ---- form.c ---- */

void *relay_form(void *relay);

/* ---- fallback.c ---- */

/* Looks, until the generation has ended, whether an exit that was announced comes too late. */
void relay_watch_exits(struct relay *relay);

/* ---- source.c ---- */

MUST_CHECK enum status relay_find_source(struct relay *relay, struct reason *out_why);
