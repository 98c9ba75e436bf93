/*
 * A job's state machine on the bench: events by short calls, the actions of the last one to look
 * at. Time stands still unless a test moves it.
 */
#pragma once

#include "server/jobfsm/jobfsm.h"

#define BENCH_STEPS 100000 /* of bench_setup_running: a job that doesn't end by itself */

struct bench {
    struct fsm m;
    struct fsm_actions out;
    int64_t now;
};

void bench_open(struct bench *b, const struct fsm_config *config);
/* Two ranks, three checkpoints kept; after a failure all workers start anew. */
struct fsm_config bench_config(void);
void bench_close(struct bench *b);
/* QUEUED again, with another configuration. */
void bench_reopen(struct bench *b, const struct fsm_config *config);

/* For cmocka: a bench with bench_config in *state; QUEUED, RUNNING, RUNNING with checkpoints of
 * steps 10 and 20. */
int bench_setup(void **state);
int bench_setup_running(void **state);
int bench_setup_saved(void **state);
int bench_teardown(void **state);

void bench_is_state(const struct bench *b, const char *name);
/* True if the job goes to other nodes than this one, as it failed there. */
bool bench_avoids(const struct bench *b, const char *node);

/* ---- one event; those of ranks are of the current generation ---- */

enum status bench_apply(struct bench *b, struct fsm_event event);
enum status bench_ask(struct bench *b, enum fsm_event_kind kind);
enum status bench_remove(struct bench *b, uint64_t step);
void bench_tick(struct bench *b, int64_t ms); /* later by ms */
void bench_place(struct bench *b);
void bench_place_on(struct bench *b, const char *const *nodes); /* by rank */
void bench_probe(struct bench *b, enum status status);
void bench_hello(struct bench *b, uint32_t rank);
void bench_attach(struct bench *b, uint32_t rank, uint64_t step); /* a hello: it comes back */
void bench_session_lost(struct bench *b, uint32_t rank);
void bench_ready(struct bench *b, uint32_t rank, uint64_t total);
void bench_progress(struct bench *b, uint32_t rank, uint64_t step, const char *phase);
void bench_counter(struct bench *b, uint32_t rank, uint64_t step, const char *phase,
                   uint64_t counter);
/* Rank 0 says that audits passed up to that step, which it has. */
void bench_audited(struct bench *b, uint64_t step);
void bench_fault(struct bench *b, uint32_t rank, enum fsm_fault_kind kind, uint64_t step);
/* What the node has to have is not there. */
void bench_fault_of_node(struct bench *b, uint32_t rank, enum fsm_fault_kind kind);
void bench_exit(struct bench *b, uint32_t rank, enum fsm_exit how, int code);
void bench_begin(struct bench *b, uint32_t rank, uint64_t step);
void bench_report(struct bench *b, uint32_t rank, uint64_t step);
/* No space; its file is gone. */
void bench_save_fails(struct bench *b, uint32_t rank, uint64_t step);
void bench_passed(struct bench *b, uint32_t rank, uint64_t step, uint64_t at);
/* The answer to what the store was asked. */
void bench_store(struct bench *b, enum fsm_task task, uint64_t step, uint32_t generation,
                 enum status status);
/* What a rank says of the checkpoint that it read back, of file (rank - 1) mod ranks. */
void bench_read(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation,
                enum status status);
void bench_read_all(struct bench *b,
                    uint64_t step); /* of generation 1; all of them say that it is good */
/* The coordinator's answer about one file. */
void bench_reread(struct bench *b, uint64_t step, uint32_t shard, enum status status);
void bench_publish(struct bench *b, const struct fsm_ckpt *ckpt);

/* ---- many ---- */

/* From QUEUED (or RECOVERING) to RUNNING with `total` steps. */
void bench_run(struct bench *b, uint64_t total);
/* From FORMING to RUNNING: all of the generation say hello, and are ready. */
void bench_go_on(struct bench *b);
/* A save of step by all ranks, up to that state: OPENING, COLLECTING (the folder is there),
 * CHECKING (all reported), COMMITTING (decided), COMMITTED. */
void bench_save_until(struct bench *b, uint64_t step, enum fsm_save_state state);
/* All ranks come to step, and it is saved. */
void bench_commit(struct bench *b, uint64_t step);
/* All ranks that are left exit. */
void bench_all_exit(struct bench *b);
/* The coordinator goes, and another one reads the journal away_ms later. */
void bench_restart(struct bench *b, int64_t away_ms);
/* m gets the rows of another's ranks. */
void bench_load_ranks(struct fsm *m, const struct fsm *from);

/* ---- what came of the last event ---- */

/* The n-th action of a kind (n from 0), or NULL. */
const struct fsm_action *bench_act(const struct bench *b, enum fsm_action_kind kind, size_t n);
/* The first action that asks the store that, or NULL; how many do. */
const struct fsm_action *bench_task(const struct bench *b, enum fsm_task task);
size_t bench_tasks(const struct bench *b, enum fsm_task task);
size_t bench_count(const struct bench *b, enum fsm_action_kind kind);
/* Message of the event of that name in the job's history, or NULL. */
const char *bench_told(const struct bench *b, const char *what);
bool bench_event(const struct bench *b, const char *what);

/* ---- workers that park ---- */

#define BENCH_PARK_RANKS 4

/* Set-up: so many ranks, each on a node of its own, train; failures may be outlived. */
int bench_setup_park(void **state);
void bench_say_parked(struct bench *b, uint32_t rank);
/* Rank 1 dies, the others park. */
void bench_lose_one(struct bench *b);
/* Placed again, and the probe of the store is through: FORMING. */
void bench_form_again(struct bench *b);
/* A planned change whose generation is to save and end has just been told: all `ranks` do so, and
 * the next one forms. Returns the step that was saved. */
uint64_t bench_save_before_leaving(struct bench *b, uint32_t ranks);
