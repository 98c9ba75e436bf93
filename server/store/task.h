/*
 * A task for the checkpoint store, as a value: filled in by the core, run on the store's thread (or
 * by the simulator), and handed back.
 */
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/store.h"
#include "common/buf.h"
#include "common/io.h"
#include "common/limits.h"
#include "common/status.h"
#include "server/jobfsm/parts.h"
#include "server/store/watch.h"

struct store_task {
    struct store_task *next;  /* of whoever holds it */
    struct store_watch watch; /* while it runs */
    enum fsm_task kind;
    char job[16];
    uint64_t step;
    uint32_t generation;
    uint32_t try_number; /* of the folder's name */
    uint32_t shard;      /* VERIFY: 1 + the only file to read; 0: all */
    char store[LIMIT_PATH];
    char mark[CKPT_MARK];        /* of the store, as the job knows it; "": not yet. PROBE sets it */
    char nonce[CKPT_MARK];       /* PROBE: the mark of a store that has none */
    char call[IO_CALL];          /* in temporary names: of this task alone (ckpt_call_name) */
    bool holds;                  /* PROBE: checkpoints of the job are said to be there */
    bool given_up;               /* DROP, REMOVE: also where the mark is missing, or another */
    char dir[LIMIT_PATH];        /* the checkpoint's folder */
    char journal[LIMIT_PATH];    /* CHECK: has the ranks' reports */
    uint32_t ranks;              /* CHECK: so many */
    struct ckpt_report *reports; /* CHECK, while it runs: by rank; owned */
    uint32_t report_count;
    int64_t wall_ms;     /* goes into the manifest */
    struct buf manifest; /* made by CHECK, published by PUBLISH */
    char digest[33];
    struct ckpt_parent parent;     /* CHECK: what the reports say that it holds differences to */
    struct ckpt_folder_name *kept; /* SWEEP: the folders of the catalog; owned */
    uint32_t kept_count;
    uint32_t swept;      /* SWEEP: folders that went */
    uint64_t need_bytes; /* FOLDER: what the files will take, about */
    uint64_t bytes, raw_bytes;
    uint32_t shards;
    enum status refused; /* not ST_OK: it can't be done, as message says; that is its answer */
    /* the answer */
    enum status status;
    bool mark_mismatch;         /* with ST_UNREACHABLE: the mark is missing, or another */
    char message[LIMIT_REASON]; /* one line; "" on ST_OK */
};

int64_t store_task_deadline_ms(enum fsm_task kind);    /* then it counts as hung */
struct store_task *store_task_new(enum fsm_task kind); /* NULL: no memory */
void store_task_free(struct store_task *task);

/* Reads the reports for CHECK, where that runs, if they aren't there. Errors: of
 * store_reports_read */
MUST_CHECK enum status store_task_read_reports(struct store_task *task);

/* Returns the answer in place of a task that never came back: its job, its subject, and
 * ST_TIMED_OUT. NULL: no memory. */
struct store_task *store_task_late_answer(const struct store_task *task);

/* Runs the task: sets status and message. It blocks as long as the store does; a removal only for a
 * while if watch.others_wait. Then watch.yielded is set, and the task is to be run again, after the
 * others. Fault points: coordinator.* */
void store_task_run(struct store_task *task, const struct io *real);

/* The runner of tasks. It takes the task over; the answer comes to coord_store_done. */
struct store_port {
    void *self;
    void (*submit)(void *self, struct store_task *task);
};
