/*
 * Declarations that the files of the session share: the object, its locks, its threads.
 *
 * Locks:   last_words_mutex before mutex; neither is held while sending, receiving or writing a
 *          shard.
 * Threads: the step thread and others   call session.h (step_thread.c, snapshot.c, held_copies.c,
 *                                       rendezvous.c)
 *          the link (link_thread.c)     alone opens, sends and receives
 *          the saver (saver.c)          alone writes and unlinks in the store
 *          the copier (snapshot.c)      makes and fills copy files
 *          the reader (readback/)       alone reads checkpoints back
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "session/copies/copy_file.h"
#include "session/fsm.h"

/*
 * The copy files, and the snapshot that is being taken (its states: snapshot.c). All of it under
 * the session's mutex, except what is in a file: that is the step thread's in
 * session_snapshot_begin, then the copier's, then, if it is a save, the saver's.
 */
struct session_copies {
    /* The files. session_copies_want says how many; the copier makes them, beside the first step
     * only if that one's state is due: the pages cost as much as a copy, and a job that was
     * interrupted waits for its first step. */
    struct copy_file files[SESSION_FILES_MAX];
    size_t share_bytes; /* bytes of buffers in one file */
    int file_count;     /* 0: not yet known */
    bool shared;        /* another process writes to the files */
    bool needed;        /* the files are to be made now */
    int made;           /* so many, the first ones; a snapshot waits for its own only */
    enum status made_status;
    bool alone; /* one of them lies in this process's own memory, and that was said */

    /* The snapshot. */
    bool active; /* from session_snapshot_begin until the copy is complete, or came to nothing */
    bool given;  /* to the copier */
    bool reads_state; /* the state must not change */
    int file;
    int save; /* index of its record in the core; -1: it is a copy only */
    struct session_snapshot snapshot;
    enum status status;                 /* of the last snapshot */
    int64_t stall_ns;                   /* the step thread spent on it, so far */
    struct session_copy_cost copy_cost; /* cost of snapshots */

    /* Other contents of the folder, and what is known of them. */
    struct session_copy restored; /* what this generation began with; generation 0: nothing here */
    uint64_t first_step;          /* of the first copy; 0: none yet */
    bool cleaned;                 /* files of older generations are gone */
    bool peers_wait;              /* some rank's copy is not yet at another node */
    bool keep_ends;               /* session_keep_end was called */
};

struct session {
    struct session_options options;
    struct rendezvous rendezvous;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* of anything under mutex */
    struct session_fsm fsm;
    struct session_copies copies;
    struct session_followed followed; /* all NULL: the steps are done by this process */
    uint32_t rank, size;              /* in the generation; known with the assignment */
    bool closing;     /* session_close or session_retire was called: the threads end */
    bool over_called; /* options.over was */
    bool park_called; /* options.park was */
    bool retired;     /* goes on in the next: leaves no last words; under last_words_mutex */

    pthread_mutex_t last_words_mutex;
    uint64_t last_words_written; /* core.last_words_version that the file holds */

    _Atomic uint64_t step, counter, saving;
    _Atomic(const char *) phase;
    _Atomic uint64_t collectives, exchanges;
    _Atomic(const char *) collective;

    struct readback *readback; /* has a thread of its own */
    pthread_t link_thread, saver_thread, copier_thread;
    bool has_link_thread, has_saver_thread, has_copier_thread;
    struct session_out *out; /* the link thread's */
};

int64_t session_now(const struct session *session);
struct session_progress session_progress_of(struct session *session);
/* Counts one more piece of work of the saver at the store. */
void session_tick_saving(struct session *session);

/* Under mutex: waits for changed, until deadline_ms of the machine's monotonic clock at most.
 * false: the deadline has passed. */
bool session_wait(struct session *session, int64_t deadline_ms);
int64_t session_deadline(int64_t timeout_ms);
/* Like session_wait, for the step thread where it may wait for a store: such a wait is no hang of
 * this process, however long it takes, and counts as progress. */
bool session_wait_at_store(struct session *session, int64_t deadline_ms);
/* Wakes everybody, since something is to be sent. Under mutex. */
void session_wake(struct session *session);

/* Notes how far the process that does the steps has come; before an order is heard. Under mutex. */
void session_hear_steps(struct session *session);
/* Tells that process when something is due next; after whatever changes it. Under mutex. */
void session_tell_due(struct session *session);

/* Writes the last words if they changed since. Not under mutex. */
void session_write_last_words(struct session *session);

/* Frees what is left of a session whose threads but the saver's and the reader's have ended. */
void session_release(struct session *session);
/* Ends the link's thread and the copier. */
void session_end_threads(struct session *session);

void *session_link_run(void *arg);
void *session_saver_run(void *arg);

void *session_copier_run(void *arg);
/* Sets the number and size of copy files; the copier makes them. Under mutex. */
void session_copies_want(struct session *session, const struct session_budget *budget,
                         const struct session_ready *ready);
/* Makes the copier make them now. Under mutex. */
void session_copies_need(struct session *session);

void session_rendezvous_init(struct session *session);
