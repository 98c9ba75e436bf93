/*
 * A rank's connection to the worker's process, as the files of this folder share it.
 *
 *     connection.c  open, close, fork        request.c  a request and its answer
 *     layout.c      what is saved, ready     step.c     steps, rows, wants, finish
 *     save.c        a save                   target.c   where in its file all goes
 *     fill.c        bytes and hashes         thread.c   the thread, SIGTERM
 *
 * A save:
 *
 *     NONE ─cairn_save_begin─▶ BEGUN ─cairn_save_start─▶ COPYING ─the thread─▶ COPIED ─it─▶ NONE
 *                                └────cairn_save_cancel────────────────────────────────────▲
 *
 * Invariants
 *  1. A process has one connection at most, which `library_open_one` knows: handlers of signals and
 *     of fork find it there.
 *  2. What lies in the copy file belongs to the caller while the save is BEGUN, to the thread while
 *     it is COPYING; nobody touches it in other phases.
 *  3. A forked child's memory of a connection sends nothing, stores nothing in the page, and locks
 *     none of its mutexes, which may be locked for ever there.
 */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"
#include "library/cairn.h"
#include "library/stored/why.h"
#include "library/wire/place.h"
#include "library/wire/wire.h"

#define LIBRARY_FILES_MAX 16  /* copy files of a rank; as many as a session has, and more */
#define LIBRARY_ROWS      256 /* of metrics that wait to be sent */

/* A copy file of the worker's, mapped. */
struct library_map {
    uint32_t file; /* its number */
    dev_t device;
    ino_t inode;
    uint8_t *memory; /* NULL: not used */
    size_t bytes;
    bool touched; /* its pages are in this process's tables */
};

/* An extent of this rank's share: bytes of a buffer, and where they and their hashes go. */
struct library_extent {
    uint32_t buffer;      /* of library/wire/place.h */
    uint64_t first, size; /* bytes, in the buffer */
    uint64_t data;        /* offsets in the file */
    uint64_t hashes;
};

/* Where in a copy file a save goes. */
struct library_target {
    struct library_map *map;
    struct library_extent extents[CKPT_EXTENTS_MAX];
    uint32_t count;
    uint8_t *area;       /* this rank's, in the file */
    uint64_t area_first; /* where it begins in "ranks" */
};

enum library_phase { SAVE_NONE, SAVE_BEGUN, SAVE_COPYING, SAVE_COPIED };

struct library_save {
    enum library_phase phase; /* under lock */
    uint64_t step;
    uint32_t blob_count;
    uint64_t blob_end;    /* offset in the area behind the last blob */
    int64_t stall_ns;     /* that the caller waited for it, up to now */
    int64_t waiting_from; /* under lock; a caller waits since then; 0: none does */
    int status;           /* under lock: of the save that ended last */
    struct reason reason;
    struct library_target target;
};

/* The tensors of a buffer, by their place. */
struct library_list {
    uint32_t *tensors; /* numbers in the layout, ascending by offset; owned */
    uint32_t count;
};

struct library_layout {
    struct wire_entry *entries; /* owned, as all here */
    uint64_t count;
    const void **data; /* [count]; where each was last */
    uint32_t *flags;
    struct layout_places places;
    struct library_list in[PLACE_BUFFERS];
    uint64_t blob_bytes;
    bool is_there;
};

struct cairn {
    /* Fixed when it is open. */
    int fd;
    uint32_t processes; /* per worker */
    struct wire_page *page;
    struct cairn_info info;
    uint32_t source, path_count; /* enum wire_source */
    char *welcome;               /* owned; its paths */
    const char *paths;           /* one after the other, each with its NUL */
    bool catches;

    atomic_bool forked; /* this is a child's memory of it */
    atomic_bool broken; /* no request is sent any more */
    atomic_bool ready;
    uint64_t total_steps;
    struct library_layout layout;
    struct library_map maps[LIBRARY_FILES_MAX];

    pthread_mutex_t wire; /* a request and its answer; taken without lock, or before it */
    uint32_t number;

    pthread_mutex_t lock; /* of what follows, and of the save */
    pthread_cond_t changed;
    struct library_save save;
    struct wire_row rows[LIBRARY_ROWS];
    uint32_t row_first, row_count;
    bool wants;
    struct wire_want want;
    bool stops; /* the thread ends when all is said */

    sem_t wake;           /* of the thread */
    atomic_bool term;     /* SIGTERM came, and isn't told yet */
    atomic_bool leaves;   /* it was told */
    atomic_bool finished; /* cairn_finish said that all is saved */
    pthread_t thread;
};

/* The connection of this process, or NULL. */
extern _Atomic(struct cairn *) library_open_one;

/* CAIRN_OK: c can send. CAIRN_CLOSED: it is a child's, or the worker is gone. */
MUST_CHECK int library_check(const struct cairn *c);

/* ---- request.c ---- */

struct library_answer {
    void *bytes; /* room for `size` */
    size_t size; /* that it has, exactly; with `any` the most, and what came */
    bool any;    /* bytes is made, by malloc, and is the caller's */
    int *fd;     /* where the descriptor that comes with it goes; NULL: none comes */
};
/*
 * Sends a request and waits for its answer, both bounded by WIRE_ANSWER_MS. parts: two at most.
 * answer: NULL: none is expected. Thread: any.
 * Errors: what the worker says, with its text; CAIRN_TIMED_OUT, CAIRN_CLOSED: no request is sent
 *         any more then
 */
MUST_CHECK int library_request(struct cairn *c, enum wire_kind kind, const struct iovec *parts,
                               int count, struct library_answer *answer);
/* Like library_request, of one part. */
MUST_CHECK int library_ask(struct cairn *c, enum wire_kind kind, const void *bytes, size_t size,
                           struct library_answer *answer);

/* Like library_ask where nobody could do anything about a failure. */
void library_tell(struct cairn *c, enum wire_kind kind, const void *bytes, size_t size);

/* ---- target.c ---- */

/* Maps the file that came with the answer to BEGIN, and reads from its head where all goes. Takes
 * the descriptor. CAIRN_CHANGED: it isn't for this layout */
MUST_CHECK int library_target_open(struct cairn *c, const struct wire_file *file, int fd,
                                   struct library_target *out);
void library_maps_close(struct cairn *c);

/* ---- fill.c ---- */

/* Copies the tensors with CAIRN_COPY_NOW to their places. */
void library_fill_now(struct cairn *c);
/* Copies all else, and takes the hashes of all. between: called every few hundred KiB. */
void library_fill(struct cairn *c, void (*between)(struct cairn *c));

/* ---- save.c ---- */

/* Waits, under lock, until the save has passed that phase. */
void library_await(struct cairn *c, enum library_phase phase);

/* ---- thread.c ---- */

MUST_CHECK int library_thread_start(struct cairn *c);
/* Lets the thread say what waits, and ends it. */
void library_thread_end(struct cairn *c);
/* Wakes the thread. Thread: any, and handlers of signals. */
void library_wake(struct cairn *c);
/* Waits until all rows that were noted are sent. */
void library_flush(struct cairn *c);
/* Handles SIGTERM if nobody does. */
void library_catch(struct cairn *c);
/* Gives SIGTERM back, if it is still ours: else false. In a forked child, too: async-signal-safe. */
bool library_release_signal(void);
