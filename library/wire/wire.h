/*
 * What libcairn and the worker's process say to each other, over a Unix socket of the two.
 *
 *     program (library/client/) ──requests──▶ worker (trainer/relay/) ──▶ session
 *             └──── page, copy files: memory of both ────┘
 *
 * Socket: SOCK_STREAM, in the abstract namespace; WIRE_SOCKET_ENV has its name, an '@' for the NUL.
 * A worker that runs several processes has one for each, and likewise a page.
 * Both sides look at the other's account (SO_PEERCRED): the same one, or nobody listens. The
 * worker serves one connection at a time, which has said hello; a second one is refused.
 *
 * A request is a struct wire_head and `size` bytes; each gets one answer, a struct wire_head with
 * the same kind and number, and the request's status. One request is under way at a time. All
 * integers are the machine's own: both are on one machine.
 *
 * kind     program says                                   worker answers
 * HELLO    struct wire_hello                              struct wire_welcome, paths; the page's fd
 * LAYOUT   struct wire_layout, wire_entry[count]          –
 * READY    struct wire_ready                              –
 * DUE      struct wire_step                               struct wire_due
 * BEGIN    struct wire_step                               struct wire_file; the copy file's fd
 * COPIED   struct wire_copied                             –
 * SETTLE   struct wire_step                               struct wire_step: the newest committed
 * WANT     struct wire_want                               –
 * ROW      struct wire_row                                –
 * FAIL     text, not NUL-terminated                       –
 * LAST     struct wire_last                               – ; AGAIN until all ranks have said it
 *
 * Where a request fails the answer's bytes are a text for people instead, not NUL-terminated.
 * SETTLE is answered within WIRE_SETTLE_MS, AGAIN if nothing is decided; LAST soon; all others within
 * WIRE_ANSWER_MS. The worker ends a connection that says anything else; the rank has failed then.
 *
 * A save:  DUE, BEGIN, then the library fills the copy file, then COPIED. The copy file's head and
 * tables (session/copies/copy_file.h) are written by the worker before it answers BEGIN: they say
 * where each extent's data and hashes go. The library writes both, and nothing else. The worker
 * seals it at COPIED. Processes of one worker fill in one file: each its area, and of each other
 * extent with n pieces, process i of P those from n i / P up to n (i + 1) / P.
 *
 * Page: WIRE_PAGE_BYTES of memory of both (memfd). `step` is stored by the program before it loads
 * `next_due`, `next_due` by the worker before it loads `step` (both seq_cst). So either the program
 * sees that something is due at or before its step, and asks; or the worker sees its step.
 *
 * What is saved, as the checkpoint format has it: a buffer for each of its dtypes for replicated
 * tensors of that dtype, "bytes" for those of other dtypes, "ranks" for everything else: an area
 * for each rank, at chunks' borders. place.h computes all places, on both sides.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "library/cairn.h"

#define WIRE_VERSION    2u
#define WIRE_SOCKET_ENV "CAIRN_SOCKET"

#define WIRE_ANSWER_MS  20000
#define WIRE_SETTLE_MS  5000
#define WIRE_BYTES_MAX  (32u * 1024 * 1024) /* of a request or an answer: 65536 entries */
#define WIRE_PAGE_BYTES 4096u

enum wire_kind {
    WIRE_HELLO = 1,
    WIRE_LAYOUT,
    WIRE_READY,
    WIRE_DUE,
    WIRE_BEGIN,
    WIRE_COPIED,
    WIRE_SETTLE,
    WIRE_WANT,
    WIRE_ROW,
    WIRE_FAIL,
    WIRE_LAST,
};

struct wire_head {
    uint32_t size; /* of what follows */
    uint16_t kind;
    uint16_t zero;
    int32_t status; /* of an answer: enum cairn_status */
    uint32_t number;
};
_Static_assert(sizeof(struct wire_head) == 16, "wire");

struct wire_hello {
    uint32_t version, pid;
    char client[64];
};

enum wire_source { WIRE_NOTHING, WIRE_MEMORY, WIRE_CHECKPOINT };

/* Followed by `paths` texts, each with its NUL: of the copy files of all shares, in order, or of
 * the checkpoint's folder. */
struct wire_welcome {
    uint32_t version;
    uint32_t generation, rank, size;
    uint32_t source, paths;
    uint64_t step; /* of the source */
    uint32_t memory_generation, memory_size;
    uint32_t processes, zero; /* per worker, whose ranks are next to each other */
    char job[CAIRN_NAME];
};

struct wire_page {
    _Atomic uint64_t step;     /* program: finished steps */
    _Atomic uint64_t beats;    /* program: rises within a step */
    _Atomic uint64_t next_due; /* worker: the first step after which something may be due */
    _Atomic uint32_t leaves;   /* program: SIGTERM came */
    _Atomic uint32_t over;     /* worker: this start of the program is over */
};

struct wire_layout {
    uint64_t count;
    uint64_t blob_bytes;
};

/* A tensor; struct cairn_tensor without flags and data. */
struct wire_entry {
    char name[CAIRN_NAME];
    uint32_t dtype, kind, ndim, zero;
    uint64_t shape[CAIRN_DIMS], start[CAIRN_DIMS], extent[CAIRN_DIMS];
};
_Static_assert(sizeof(struct wire_entry) == 336, "wire, and areas in copies and checkpoints");

struct wire_ready {
    uint64_t step, total_steps, steps_per_epoch;
};

struct wire_step {
    uint64_t step;
};

struct wire_due {
    uint32_t due; /* enum cairn_due */
    uint32_t zero;
};

struct wire_file {
    uint32_t file; /* number: the same memory each time */
    uint32_t zero;
    uint64_t bytes; /* of the file */
    uint64_t area;  /* where this process's begins in the worker's extent of "ranks" */
};

struct wire_copied {
    uint64_t step;
    int32_t status; /* not CAIRN_OK: it is given up */
    uint32_t zero;
    uint64_t stall_us; /* the program waited for it */
};

struct wire_want {
    uint32_t leaves, zero;
    uint64_t grace_ms;
    char reason[128];
};

/* The program ends with this step, before total_steps. */
struct wire_last {
    uint64_t step;
    char reason[128];
};

#define WIRE_NUMBERS 6 /* loss, lr, grad_norm, samples_per_s, eval_loss, eval_accuracy */

struct wire_row {
    uint64_t step;
    uint32_t known; /* bit i: number[i] is given */
    uint32_t zero;
    double number[WIRE_NUMBERS];
};
