/*
 * Status codes, the one error type of this project.
 *
 * A code says what went wrong; its scope says how much must be thrown away before trying again.
 * Where only that matters, as with a checkpoint that can't be used, callers look at the scope;
 * others name the code.
 *
 * Source: the grouping of ucs_status_t "by the largest entity permanently affected by the error" in
 * OpenUCX, src/ucs/type/status.h.
 */
#pragma once

enum status {
    ST_OK = 0,

    /* Scope CALL: nothing was changed; the same call may be made again. */
    ST_AGAIN = -100,
    ST_TIMED_OUT = -101,
    ST_INVALID = -102, /* an argument or input is wrong */
    ST_NO_MEMORY = -103,
    ST_IO = -104,   /* the medium failed (EIO and its like) */
    ST_FULL = -105, /* no space, quota, or a bound was reached */
    ST_NOT_FOUND = -106,
    ST_EXISTS = -107,
    ST_REFUSED = -108, /* not permitted in this state, or for this caller */
    ST_CLOSED = -109,  /* the peer or the object is gone */
    ST_UNREACHABLE = -110,
    ST_AWAY = -111,      /* a file server that doesn't answer, or is not mounted any more */
    ST_FORGOTTEN = -112, /* a file that its server doesn't know any more, though we have it open */

    /* Scope CHECKPOINT: this checkpoint is unusable; an older one may be complete. */
    ST_CORRUPT = -200,
    ST_INCOMPLETE = -201,

    /* Scope GENERATION: the workers must form anew; the processes may live on. */
    ST_PEER = -300,    /* a peer died, or communication with it failed */
    ST_STALE = -301,   /* this generation is over */
    ST_WRONG = -303,   /* two ranks computed different bits */
    ST_CHANGED = -302, /* what was begun with is not what is there now */

    /* Scope WORKER: the process must be replaced (e.g. a sticky device error). */
    ST_DEVICE = -400,

    /* Scope JOB: no retry can help; the user must change something. */
    ST_CONFIG = -500,
    ST_NUMERIC = -501,  /* a loss or a gradient is not finite */
    ST_VERSION = -502,  /* made by another build, which says nothing bad of it: bytes, a module */
    ST_TOO_LONG = -503, /* a path, with what has to be added to it */
};

enum status_scope {
    SCOPE_NONE,
    SCOPE_CALL,
    SCOPE_CHECKPOINT,
    SCOPE_GENERATION,
    SCOPE_WORKER,
    SCOPE_JOB,
};

/* Every fallible function is MUST_CHECK; discard on purpose with (void). */
#define MUST_CHECK __attribute__((warn_unused_result))

enum status_scope status_scope(enum status st);

/* Static string, never NULL, e.g. "checkpoint is corrupt". */
const char *status_string(enum status st);

/* The status that describes an errno value: ENOSPC and EDQUOT are ST_FULL, ENOENT ST_NOT_FOUND,
 * EEXIST ST_EXISTS, EACCES and EPERM ST_REFUSED, ENOMEM ST_NO_MEMORY, ETIMEDOUT ST_TIMED_OUT,
 * ENAMETOOLONG ST_TOO_LONG, EINTR and EAGAIN ST_AGAIN, ESTALE ST_FORGOTTEN, what says that another
 * machine can't be reached or failed ST_AWAY, all others ST_IO. */
enum status status_from_errno(int error);
