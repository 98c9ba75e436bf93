/*
 * The coordinator's memory: one SQLite file (WAL, synchronous=FULL); copies of it can be made while
 * it is used, and put in its place (backup.c). A commit is durable when
 * journal_commit returned ST_OK; the caller lets no action leave before.
 *
 * Tables:
 *   jobs             the state machine as JSON, rewritten with every change
 *   ranks            where each rank is, of those that had a place
 *   generations
 *   saves            those under way; a row with a manifest decides
 *   reports
 *   checkpoints
 *   events, metrics  bounded; metrics in blocks of rows
 *   keys             idempotency; bounded
 *   drains           nodes that people keep free
 *   summaries        jobs that ended, as lists show them
 *   forgotten        jobs whose rows are still to be deleted
 *   forgotten_nodes  when certificates of nodes were withdrawn
 *
 * Thread: the one that opened it; journal_open_beside and journal_read_reports any.
 * Errors: ST_IO, ST_FULL, ST_CORRUPT from SQLite; after one of them the caller must give up and be
 *         restarted: what was not committed never happened.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "server/jobfsm/jobfsm.h"

#define JOURNAL_KEYS_MAX 10000
#define JOURNAL_JOBS_MAX 10000 /* of more, those that ended first are forgotten */
/* The rows that jobs which ended keep. Those that ended last keep everything; others all but their
 * oldest events and generations, and where their ranks were. Checkpoints stay with all; so do
 * metrics, as long as the file doesn't grow beyond JOURNAL_BYTES_MAX. */
#define JOURNAL_WHOLE_JOBS 1000
#define JOURNAL_THIN_ROWS  50 /* events and generations that stay with the older ones, of each */
/* The bytes that a job's generations take at most (and a few more), unless they are so few. */
#define JOURNAL_GENERATIONS_BYTES 4194304
#define JOURNAL_GENERATIONS_MIN   64
/* The bytes of the file's pages that are in use, at most. Beyond, the job that ended first loses
 * the most rows of its metrics (JOURNAL_BARE_BYTES stay); once all have, it is forgotten. */
#define JOURNAL_BYTES_MAX  (INT64_C(4) * 1024 * 1024 * 1024)
#define JOURNAL_BARE_ROWS  1024
#define JOURNAL_BARE_BYTES (INT64_C(256) * 1024)
/* The bytes kept on the disk behind the ends of the file and of its WAL: room for some thousand
 * decisions when others have filled the disk up. */
#define JOURNAL_RESERVE_BYTES ((int64_t)16 * 1024 * 1024)
#define JOURNAL_METRIC_BYTES  (INT64_C(32) * 1024 * 1024) /* of one job; more are thinned */
#define JOURNAL_ROW_BYTES     ((size_t)16 * 1024) /* of a row of metrics: a larger one isn't kept */
#define JOURNAL_TIDY_ROWS                                                                          \
    500 /* rows that journal_tidy deletes at a time, or a block of
                                   * metrics */

struct journal;

/* Creates the file and its tables where they are missing.
 * ST_EXISTS: another process has it; ST_VERSION: a newer version wrote it. */
MUST_CHECK enum status journal_open(const char *path, struct journal **out);
/* A watcher of this process, which hears a beat, every some milliseconds, while an older file is
 * brought up to date. (Reading back a WAL takes without one: it has 16 MiB, and what was written
 * since somebody began to copy the file.) */
struct journal_watch {
    void (*beat)(void *arg); /* NULL: nobody does */
    void *arg;
};
MUST_CHECK enum status journal_open_watched(const char *path, const struct journal_watch *watch,
                                            struct journal **out);
/* Opens the journal of that path to read what is committed, beside whoever has it open; on any
 * thread, which is then the one that it belongs to. Reads block as long as the disk does. */
MUST_CHECK enum status journal_open_beside(const char *path, struct journal **out);
void journal_close(struct journal *journal);             /* NULL is fine */
const char *journal_path(const struct journal *journal); /* as it was opened */
/* True if others may read the file, which another user owns. */
bool journal_is_exposed(const struct journal *journal);
/* Returns what failed last, for the log. */
const char *journal_error(const struct journal *journal);
/* Acts as if the process had died here: whatever is committed from now on is lost (tests/sim). */
void journal_freeze(struct journal *journal);

/*
 * Makes a copy of the journal of path, as one file that takes the place of `to` at once, 0600. A
 * process that has the journal open goes on meanwhile, also another one. In the copy no save is
 * under way.
 */
MUST_CHECK enum status journal_backup(const char *path, const char *to, struct reason *reason);
/* True if what was opened is a copy: what happened since it was made is not in it. */
bool journal_is_restored(const struct journal *journal);
/* Commits what follows from that, instead of journal_commit: from now on the copy is the
 * journal. */
MUST_CHECK enum status journal_end_restore(struct journal *journal);

/*
 * Whether what lies at path may be opened: a journal, or, unless one is known to have been there
 * (lived), nothing. A file of up to 256 MiB is read through. No byte of it changes, and nothing is
 * made; beside another process that has it open, too.
 * Errors: ST_NOT_FOUND  lived, and it is missing, empty, or holds nothing
 *         ST_CORRUPT    it is damaged, cut short, or no journal
 *         ST_VERSION    a newer version wrote it
 *         others        it can't be read now
 *         reason begins with "it"
 */
MUST_CHECK enum status journal_look(const char *path, bool lived, const struct journal_watch *watch,
                                    struct reason *reason);
/* Keeps every cairnd away from the journal of path until the descriptor is closed. ST_EXISTS: one
 * has it. */
MUST_CHECK enum status journal_lock(const char *path, int *out_fd);
/* Gives the file at path, if there is one, another name, with its WAL; durable. ST_EXISTS:
 * something has that name; what is there stays. */
MUST_CHECK enum status journal_set_aside(const char *path, const char *aside);
/* Puts part, a journal that nobody has open, in the place of path at once; durable. */
MUST_CHECK enum status journal_place(const char *part, const char *path);

/* Has JOURNAL_RESERVE_BYTES kept free for each of the two files; costs little when they are.
 * ST_FULL: the disk has less, or somebody's quota. */
MUST_CHECK enum status journal_reserve(struct journal *journal);

MUST_CHECK enum status journal_begin(struct journal *journal);
MUST_CHECK enum status journal_commit(struct journal *journal);

/* ---- writes, within begin and commit ---- */

/* How far a job has ended. The numbers are journalled. */
enum journal_ended {
    JOURNAL_LIVE = 0, /* the job goes on, or saves of it may still commit */
    JOURNAL_LEFT = 1, /* the store may hold what it is to remove */
    JOURNAL_OVER = 2, /* nothing is left to do */
    JOURNAL_THIN = 3, /* nothing is left to do, and its old rows are gone */
};

struct journal_job {
    const char *id, *name;
    int64_t seq;
    const char *job_file;     /* normalised YAML */
    const char *pins;         /* of the first formation, or "" */
    const char *state;        /* JSON: server/jobfsm/persist.h */
    enum journal_ended ended; /* read only: a job that is put lives */
};
MUST_CHECK enum status journal_put_job(struct journal *journal, const struct journal_job *job);
MUST_CHECK enum status journal_put_state(struct journal *journal, const char *id,
                                         const char *state);
MUST_CHECK enum status journal_put_pins(struct journal *journal, const char *id, const char *pins);
/* Writes how far the job has ended, with the row that lists have of it, or none (size 0): then it
 * is to be read as a whole. */
MUST_CHECK enum status journal_put_ended(struct journal *journal, const char *id,
                                         enum journal_ended ended, const void *row, size_t size);
/* Forgets the job: nobody finds it any more; its rows in other tables go with journal_tidy. */
MUST_CHECK enum status journal_forget_job(struct journal *journal, const char *id);
/* The result of journal_tidy. */
struct journal_tidied {
    bool more;      /* there is more to do */
    char id[16];    /* of a job that gave room, as the journal had grown too large; or "" */
    bool forgotten; /* the job as a whole; else of its metrics: */
    int64_t rows;   /* rows that went, all but JOURNAL_BARE_ROWS or fewer */
};
/* Deletes some of what is kept no longer, and gives what has become free back to the disk. */
MUST_CHECK enum status journal_tidy(struct journal *journal, struct journal_tidied *out);
/* Sets another bound than JOURNAL_BYTES_MAX (tests). */
void journal_bound(struct journal *journal, int64_t bytes);

struct journal_event {
    int64_t wall_ms;
    uint32_t generation;
    uint64_t step;
    const char *kind, *message;
};
MUST_CHECK enum status journal_put_event(struct journal *journal, const char *id,
                                         const struct journal_event *event);

struct journal_generation {
    uint32_t generation;
    int64_t begin_ms, end_ms; /* wall; end 0: not yet */
    uint64_t restore_step, end_step;
    const char *nodes;   /* names, comma separated, by rank */
    const char *numbers; /* of the workers, likewise; "": each is its rank */
    const char *cause, *message;
    const char *recovery; /* how the job came to it (server/jobfsm/persist.h); "": it is the first,
                           * or nobody knows */
};
/* Writes all of a generation but its end. The newest LIMIT_GENERATIONS of a job stay, and a hundred
 * more; fewer, if they are large (JOURNAL_GENERATIONS_BYTES). */
MUST_CHECK enum status journal_put_generation(struct journal *journal, const char *id,
                                              const struct journal_generation *row);
MUST_CHECK enum status journal_end_generation(struct journal *journal, const char *id,
                                              const struct journal_generation *row);

/* Writes the recovery of a generation that has its row; restore_step, too, as it turned out. */
MUST_CHECK enum status journal_put_recovery(struct journal *journal, const char *id,
                                            uint32_t generation, uint64_t restore_step,
                                            const char *recovery);

MUST_CHECK enum status journal_put_rank(struct journal *journal, const char *id, uint32_t rank,
                                        const struct fsm_rank_row *row);

struct journal_save {
    uint64_t step;
    uint32_t generation;
    uint32_t try_number; /* of the folder's name */
    int state;           /* enum fsm_save_state: COLLECTING, COMMITTING or DROPPING */
    int64_t wall_ms;
    const void *manifest; /* COMMITTING: its bytes */
    size_t manifest_size;
    const char *digest;
    uint64_t bytes, raw_bytes;
    uint32_t shards;
    uint64_t base_step; /* ranks were told to write differences to it; generation 0: to none */
    uint32_t base_generation;
    uint64_t parent_step; /* COMMITTING: what they did */
    uint32_t parent_generation;
};
MUST_CHECK enum status journal_put_save(struct journal *journal, const char *id,
                                        const struct journal_save *save);
/* Deletes the save, with its reports. */
MUST_CHECK enum status journal_drop_save(struct journal *journal, const char *id, uint64_t step,
                                         uint32_t generation);
MUST_CHECK enum status journal_drop_reports(struct journal *journal, const char *id, uint64_t step,
                                            uint32_t generation);
/* report: a packed cairn.v1.SaveReport. */
MUST_CHECK enum status journal_put_report(struct journal *journal, const char *id, uint64_t step,
                                          uint32_t generation, uint32_t rank, const void *report,
                                          size_t size);

MUST_CHECK enum status journal_put_ckpt(struct journal *journal, const char *id,
                                        const struct fsm_ckpt *ckpt);
MUST_CHECK enum status journal_drop_ckpt(struct journal *journal, const char *id, uint64_t step,
                                         uint32_t generation);

struct journal_metric {
    uint64_t step;
    bool eval;
    const void *data; /* a packed cairn.v1.MetricRow */
    size_t size;
};
/* Writes rows, in any order; each takes the place of an older one of the same step. Once there are
 * more than LIMIT_METRIC_ROWS, or JOURNAL_METRIC_BYTES, older ones are thinned to half of that,
 * those with an evaluation last. It is cheap if rows come together: they are one row of the
 * file. */
MUST_CHECK enum status journal_put_metrics(struct journal *journal, const char *id,
                                           const struct journal_metric *rows, size_t count);

MUST_CHECK enum status journal_put_key(struct journal *journal, const char *key, const char *what,
                                       int64_t wall_ms);

/* ---- reads; pointers are valid during the call of fn; false stops ---- */

typedef bool (*journal_job_fn)(void *arg, const struct journal_job *job);
/* Reads the jobs that are JOURNAL_LIVE, by seq. */
MUST_CHECK enum status journal_each_job(struct journal *journal, journal_job_fn fn, void *arg);
/* Reads one job. ST_NOT_FOUND */
MUST_CHECK enum status journal_get_job(struct journal *journal, const char *id, journal_job_fn fn,
                                       void *arg);
/* Finds the id that somebody means: an id, a unique prefix of one, or a name (the newest of it).
 * ST_NOT_FOUND; ST_INVALID: not unique */
MUST_CHECK enum status journal_find_job(struct journal *journal, const char *name, char out[16]);
/* Counts the jobs, and finds the highest seq; 0: there is none. */
MUST_CHECK enum status journal_count_jobs(struct journal *journal, size_t *out_count,
                                          int64_t *out_seq);
/* Finds the job that ended first. ST_NOT_FOUND */
MUST_CHECK enum status journal_oldest_ended(struct journal *journal, char out[16]);
/* Finds the first JOURNAL_LEFT job after *seq, which becomes its seq. ST_NOT_FOUND */
MUST_CHECK enum status journal_next_left(struct journal *journal, int64_t *seq, char out[16]);
/* row: what journal_put_ended was given; size 0: nothing. */
typedef bool (*journal_list_fn)(void *arg, const char *id, const void *row, size_t size);
/* Lists jobs, the newest first, from the one before an id on; "": from the newest. */
MUST_CHECK enum status journal_list_jobs(struct journal *journal, const char *before,
                                         uint32_t count_max, journal_list_fn fn, void *arg);
typedef bool (*journal_rank_fn)(void *arg, uint32_t rank, const struct fsm_rank_row *row);
/* Reads the ranks, ascending. ST_CORRUPT: a row that says what no rank can be */
MUST_CHECK enum status journal_each_rank(struct journal *journal, const char *id,
                                         journal_rank_fn fn, void *arg);
typedef bool (*journal_save_fn)(void *arg, const struct journal_save *save);
MUST_CHECK enum status journal_each_save(struct journal *journal, const char *id,
                                         journal_save_fn fn, void *arg);
typedef bool (*journal_report_fn)(void *arg, uint32_t rank, const void *report, size_t size);
MUST_CHECK enum status journal_each_report(struct journal *journal, const char *id, uint64_t step,
                                           uint32_t generation, journal_report_fn fn, void *arg);
/* Reads reports on any thread, beside whoever has the journal of that path open: those that are
 * committed by then. It blocks as long as the disk does. */
MUST_CHECK enum status journal_read_reports(const char *path, const char *id, uint64_t step,
                                            uint32_t generation, journal_report_fn fn, void *arg);
typedef bool (*journal_ckpt_fn)(void *arg, const struct fsm_ckpt *ckpt);
MUST_CHECK enum status journal_each_ckpt(struct journal *journal, const char *id,
                                         journal_ckpt_fn fn, void *arg);
typedef bool (*journal_event_fn)(void *arg, const struct journal_event *event);
/* Reads the newest count_max events, oldest first. */
MUST_CHECK enum status journal_each_event(struct journal *journal, const char *id,
                                          uint32_t count_max, journal_event_fn fn, void *arg);
typedef bool (*journal_generation_fn)(void *arg, const struct journal_generation *row);
/* Reads the newest count_max generations, oldest first. */
MUST_CHECK enum status journal_each_generation(struct journal *journal, const char *id,
                                               uint32_t count_max, journal_generation_fn fn,
                                               void *arg);
/* Reads that generation alone; if it isn't there any more, fn isn't called. */
MUST_CHECK enum status journal_get_generation(struct journal *journal, const char *id,
                                              uint32_t generation, journal_generation_fn fn,
                                              void *arg);
/* Reads the recoveries of generations that have one: the newest count_max, oldest first. */
typedef bool (*journal_recovery_fn)(void *arg, uint32_t generation, const char *recovery);
MUST_CHECK enum status journal_each_recovery(struct journal *journal, const char *id,
                                             uint32_t count_max, journal_recovery_fn fn, void *arg);
typedef bool (*journal_metric_fn)(void *arg, uint64_t step, const void *row, size_t size);
/* Reads rows, ascending, from a step on. */
MUST_CHECK enum status journal_each_metric(struct journal *journal, const char *id, uint64_t from,
                                           uint32_t count_max, journal_metric_fn fn, void *arg);
/* Reads the newest row with an evaluation up to a step, if there is one. */
MUST_CHECK enum status journal_last_eval(struct journal *journal, const char *id, uint64_t step,
                                         journal_metric_fn fn, void *arg);
/* Finds the step of the n-th newest row (n >= 1), or of the oldest if there are fewer.
 * ST_NOT_FOUND: none. */
MUST_CHECK enum status journal_metric_back(struct journal *journal, const char *id, uint32_t n,
                                           uint64_t *out_step);
/* Nodes that people keep free (`cairn node drain`), in no order. until_ms: Unix time, when workers
 * that are still there are killed; 0: never. */
MUST_CHECK enum status journal_put_drain(struct journal *journal, const char *node,
                                         const char *reason, int64_t until_ms);
MUST_CHECK enum status journal_drop_drain(struct journal *journal, const char *node);
typedef bool (*journal_drain_fn)(void *arg, const char *node, const char *reason, int64_t until_ms);
MUST_CHECK enum status journal_each_drain(struct journal *journal, journal_drain_fn fn, void *arg);
/* Nodes that were forgotten (`cairn node forget`), and when last, Unix time; in no order. */
MUST_CHECK enum status journal_forget_node(struct journal *journal, const char *node,
                                           int64_t time_s);
/* Deletes the rows of nodes that were forgotten before that time. */
MUST_CHECK enum status journal_drop_withdrawn(struct journal *journal, int64_t before_s);
typedef bool (*journal_forgotten_fn)(void *arg, const char *node, int64_t time_s);
MUST_CHECK enum status journal_each_forgotten_node(struct journal *journal, journal_forgotten_fn fn,
                                                   void *arg);
/* Reads what a key was used for. ST_NOT_FOUND: it was not used. */
MUST_CHECK enum status journal_get_key(struct journal *journal, const char *key, char *out,
                                       size_t capacity);
