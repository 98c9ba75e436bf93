/*
 * libcairn: for a program that runs as a job's own command (docs/command.md) and wants its state
 * saved by Cairn. The state is copied to memory that outlives the process, beside the next step.
 * From there the worker's process writes checkpoints. After a failure the program gets it back.
 *
 *     cairn_open ─▶ cairn_restore ─▶ cairn_layout ─▶ cairn_ready ─▶ steps ─▶ cairn_finish
 *
 *     a step:  compute; cairn_step says what is due; if anything is:
 *              cairn_save_begin, cairn_save_blob …, cairn_save_start
 *     before the state changes again:  cairn_save_copied
 *
 * What is saved are tensors and blobs. A tensor is REPLICATED (all ranks hold the same bytes, which
 * are stored once), SHARDED (a rank holds a box of it) or PRIVATE (each rank has one of its own).
 * Blobs are private bytes: random states, positions. A state that was saved by other ranks, or by
 * more or fewer of them, can be read: boxes are put together from whoever had them.
 *
 * No call waits for another rank, but cairn_finish and cairn_last. The library needs libc only. It has one thread,
 * which copies. A forked child can't use its parent's connection: calls return CAIRN_CLOSED there.
 *
 * Thread: one at a time, but cairn_beat, cairn_want, cairn_log and cairn_fail: any.
 * Errors: every int is CAIRN_OK or one of enum cairn_status; cairn_why has it in words.
 * Names of dtypes, kinds and dues have their numbers for good.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CAIRN_API        __attribute__((visibility("default")))
#define CAIRN_MUST_CHECK __attribute__((warn_unused_result))
#else
#define CAIRN_API
#define CAIRN_MUST_CHECK
#endif

enum cairn_status {
    CAIRN_OK = 0,
    CAIRN_AGAIN = -100,     /* not now; the same call may be made again */
    CAIRN_TIMED_OUT = -101, /* the worker's process does not answer */
    CAIRN_INVALID = -102,   /* an argument is wrong, or the call comes at the wrong time */
    CAIRN_NO_MEMORY = -103,
    CAIRN_IO = -104,
    CAIRN_FULL = -105,      /* no room, or more than was announced */
    CAIRN_NOT_FOUND = -106, /* no such thing; cairn_open: this process doesn't run under Cairn */
    CAIRN_REFUSED = -108,
    CAIRN_CLOSED = -109,  /* the connection is gone */
    CAIRN_CORRUPT = -200, /* what was stored is damaged */
    CAIRN_STALE = -301,   /* this start of the program is over: end */
    CAIRN_CHANGED = -302, /* the state isn't as it was described */
    CAIRN_OTHER_VERSION =
        -502, /* library and worker, or what was stored, are of different versions */
};

/* The first six are those of the checkpoint format (docs/format.md). */
enum cairn_dtype {
    CAIRN_F32 = 1,
    CAIRN_BF16 = 2,
    CAIRN_F16 = 3,
    CAIRN_I32 = 4,
    CAIRN_I64 = 5,
    CAIRN_U8 = 6,
    CAIRN_F64 = 7,
    CAIRN_I8 = 8,
    CAIRN_I16 = 9,
    CAIRN_BOOL = 10,
    CAIRN_F8_E4M3FN = 11,
    CAIRN_F8_E5M2 = 12,
    CAIRN_C64 = 13,
    CAIRN_C128 = 14,
    CAIRN_U16 = 15,
    CAIRN_U32 = 16,
    CAIRN_U64 = 17,
    CAIRN_F8_E4M3FNUZ = 18,
    CAIRN_F8_E5M2FNUZ = 19,
    CAIRN_F8_E8M0FNU = 20,
};
/* Bytes of an element; 0: no such dtype. */
CAIRN_API size_t cairn_dtype_size(int dtype);

enum cairn_kind {
    CAIRN_REPLICATED = 1,
    CAIRN_SHARDED = 2,
    CAIRN_PRIVATE = 3,
};

#define CAIRN_NAME        128 /* bytes of a name, with its NUL */
#define CAIRN_DIMS        8
#define CAIRN_TENSORS_MAX 65536

/* data is copied before cairn_save_start returns: it changes before cairn_save_copied. */
#define CAIRN_COPY_NOW 1u

/* A tensor as a rank has it; elements row-major, without gaps. */
struct cairn_tensor {
    char name[CAIRN_NAME]; /* unique in the layout; NUL to the end */
    uint32_t dtype, kind;
    uint32_t ndim; /* 0: one element */
    uint32_t flags;
    uint64_t shape[CAIRN_DIMS]; /* of the whole tensor */
    /* The box that this rank has; without SHARDED: 0 and shape. */
    uint64_t start[CAIRN_DIMS], extent[CAIRN_DIMS];
    const void *data; /* borrowed; of the box */
};

/* ---- a rank's connection ---- */

struct cairn; /* opaque */

struct cairn_options {
    const char *client; /* who asks, for logs: "cairn (Python) 0.4"; or NULL */
    /* Not 0: SIGTERM to this process asks for a save, and for leave to end, whatever thread runs
     * and whatever it waits for. Only if nobody handles it yet. */
    int catch_sigterm;
};
/*
 * Connects to the worker's process, which CAIRN_SOCKET names. options: or NULL.
 * Errors: CAIRN_NOT_FOUND  there is none: the program was started without Cairn, or its job has no
 *                          `checkpoint`; CAIRN_REFUSED  another process of this rank is connected, or
 *                          this one already; CAIRN_CLOSED  the worker that started it is gone
 *         CAIRN_OTHER_VERSION, CAIRN_TIMED_OUT, CAIRN_NO_MEMORY
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_open(const struct cairn_options *options, struct cairn **out);
/* Ends the connection, which says nothing about the job. NULL is fine. */
CAIRN_API void cairn_close(struct cairn *c);
/* Returns what this thread's last call that failed said; "" if none did. Valid until the thread's
 * next call. c: or NULL, as for cairn_open and the cairn_state calls. */
CAIRN_API const char *cairn_why(const struct cairn *c);

struct cairn_info {
    char job[CAIRN_NAME];
    uint32_t generation; /* the number of this start of the program, from 1 on */
    uint32_t rank, size;
    uint32_t has_state; /* there is a state to go on from */
    uint64_t step;      /* has_state: its finished steps */
    uint32_t from_memory;
};
CAIRN_API void cairn_info(const struct cairn *c, struct cairn_info *out);

/*
 * Describes what is saved from now on; copied, but for data. blob_bytes: most bytes that the blobs
 * of a save have together. Before cairn_ready, once.
 * Errors: CAIRN_INVALID  a tensor that can't be: cairn_why names it; CAIRN_FULL, CAIRN_NO_MEMORY
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_layout(struct cairn *c, const struct cairn_tensor *tensors,
                                            size_t count, size_t blob_bytes);
/*
 * Says that this rank is about to train, from `step` finished steps on, to total_steps. After
 * cairn_layout. steps_per_epoch: 0 if there are none.
 * Errors: CAIRN_INVALID  step is beyond total_steps
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_ready(struct cairn *c, uint64_t step, uint64_t total_steps,
                                           uint64_t steps_per_epoch);

enum cairn_due {
    CAIRN_DUE_NOTHING = 0,
    CAIRN_DUE_COPY = 1,          /* a copy in memory */
    CAIRN_DUE_SAVE = 2,          /* a copy, which also becomes a checkpoint */
    CAIRN_DUE_SAVE_AND_EXIT = 3, /* likewise; then cairn_finish, and end with code 0 */
};
/* Notes that so many steps are finished, and returns what is due after them (enum cairn_due), or
 * an error. All ranks get the same. Where nothing is due: some nanoseconds. */
CAIRN_API CAIRN_MUST_CHECK int cairn_step(struct cairn *c, uint64_t finished);
/* Notes that something goes on within a step. */
CAIRN_API void cairn_beat(struct cairn *c);

/*
 * Begins the save of `finished` steps; waits until this rank's save before is copied. data:
 * [count of the layout], where each tensor is now; NULL: where it was.
 * Errors: CAIRN_AGAIN  it is late, or saved already: nothing to do; CAIRN_STALE, CAIRN_FULL
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_save_begin(struct cairn *c, uint64_t finished,
                                                const void *const *data);
/* Adds a blob, which is copied. CAIRN_FULL: more than blob_bytes; names are unique in a save. */
CAIRN_API CAIRN_MUST_CHECK int cairn_save_blob(struct cairn *c, const char *name, const void *data,
                                               size_t size);
/* Copies tensors with CAIRN_COPY_NOW and begins to copy the rest beside what the caller does. */
CAIRN_API CAIRN_MUST_CHECK int cairn_save_start(struct cairn *c);
/* Waits until all is copied, and the state may change. Returns at once if nothing is under way.
 * Errors: those of the copy; the save is given up then */
CAIRN_API CAIRN_MUST_CHECK int cairn_save_copied(struct cairn *c);
/* Gives up a save that was begun and not started. */
CAIRN_API void cairn_save_cancel(struct cairn *c);

/*
 * After the save of total_steps, or one of CAIRN_DUE_SAVE_AND_EXIT: waits until it is committed on
 * all ranks. The process may end with code 0 then.
 * Errors: CAIRN_REFUSED  another rank has passed that step: train on
 *         CAIRN_AGAIN    the save was dropped (a full store): save the same step again
 *         CAIRN_STALE
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_finish(struct cairn *c, uint64_t finished);

/*
 * Says that the program ends by itself with this step, before total_steps (early stopping), and
 * waits until all ranks have said so. Its save is due then (cairn_step), and cairn_finish follows:
 * the job is done. After the step, best before anything of it is saved: a start that goes on from
 * that has to decide the same. reason: of 127 bytes at most, for people; or NULL. Since CAIRN_0.5;
 * a worker of an older version ends the connection.
 * Errors: CAIRN_INVALID  a later step is finished, or beyond total_steps, or another was said
 *         CAIRN_STALE    among others: the ranks don't end with the same step, which fails the job
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_last(struct cairn *c, uint64_t finished, const char *reason);

/* Asks for a save soon. leaves: this process has to end within grace_ms. Returns at once. */
CAIRN_API void cairn_want(struct cairn *c, int leaves, uint64_t grace_ms, const char *reason);
/* Notes numbers of a step: "loss", "lr", "grad_norm", "eval_loss", "eval_accuracy",
 * "samples_per_s"; others are ignored, and CAIRN_NOT_FOUND says so. Rank 0's count. */
CAIRN_API int cairn_log(struct cairn *c, uint64_t step, const char *const *names,
                        const double *values, size_t count);
/* Says why this process is about to fail. */
CAIRN_API void cairn_fail(struct cairn *c, const char *message);

/* ---- a stored state ---- */

struct cairn_state; /* opaque; independent of the connection it came from */

/*
 * Opens the state to go on from: copies in memory, else the checkpoint. Every byte that is read is
 * checked by its hashes.
 * Errors: CAIRN_NOT_FOUND  there is none: begin anew; CAIRN_CORRUPT, CAIRN_IO, CAIRN_NO_MEMORY.
 *         After such an error: cairn_fail, and end. The next start gets another state.
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_restore(struct cairn *c, struct cairn_state **out);
/* Opens a checkpoint's folder, of such a job or of a model of Cairn's; needs no coordinator.
 * Errors: CAIRN_NOT_FOUND, CAIRN_CORRUPT, CAIRN_OTHER_VERSION, … */
CAIRN_API CAIRN_MUST_CHECK int cairn_state_open(const char *path, struct cairn_state **out);
/* NULL is fine. */
CAIRN_API void cairn_state_close(struct cairn_state *state);

struct cairn_state_info {
    char job[CAIRN_NAME];
    uint64_t step;
    uint32_t ranks; /* that saved it */
    uint64_t tensors, blobs;
};
CAIRN_API void cairn_state_info(const struct cairn_state *state, struct cairn_state_info *out);
/* Tensor number i. Replicated ones come once; of sharded and private ones each rank's box, with
 * its rank. data is NULL. CAIRN_NOT_FOUND: there are fewer. */
CAIRN_API CAIRN_MUST_CHECK int cairn_state_tensor(const struct cairn_state *state, uint64_t i,
                                                  struct cairn_tensor *out, uint32_t *out_rank);
/* Blob number i, likewise. */
CAIRN_API CAIRN_MUST_CHECK int cairn_state_blob(const struct cairn_state *state, uint64_t i,
                                                char out_name[CAIRN_NAME], uint64_t *out_size,
                                                uint32_t *out_rank);
/*
 * Reads a box of a tensor into out, row-major, from all boxes that hold parts of it. rank: whose,
 * of a PRIVATE one; not looked at otherwise. start, extent: [ndim]; NULL: the whole tensor (of a
 * private one: all of it).
 * Errors: CAIRN_NOT_FOUND  no such tensor, or some of the box was saved by nobody
 *         CAIRN_CORRUPT, CAIRN_IO; what is in out is undefined then
 */
CAIRN_API CAIRN_MUST_CHECK int cairn_state_read(struct cairn_state *state, const char *name,
                                                uint32_t rank, const uint64_t *start,
                                                const uint64_t *extent, void *out);
/* Reads a rank's blob; size: its bytes, as cairn_state_blob says. */
CAIRN_API CAIRN_MUST_CHECK int cairn_state_read_blob(struct cairn_state *state, const char *name,
                                                     uint32_t rank, void *out, size_t size);

#ifdef __cplusplus
}
#endif

#endif
