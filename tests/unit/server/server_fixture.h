/*
 * A job's state machine on the bench: events by short calls, the actions of the last one to look
 * at. Time stands still unless a test moves it.
 */
#pragma once

#include "server/machine/machine.h"

struct bench {
    struct job_machine m;
    struct jm_actions out;
    int64_t now;
    char said[LIMIT_REASON]; /* message of the last EV_WAITING, faults */
};

void bench_open(struct bench *b, const struct jm_config *config);
/* Two ranks, three checkpoints kept. */
struct jm_config bench_config(void);
void bench_close(struct bench *b);

/* For cmocka: a bench with bench_config in *state. */
int bench_setup(void **state);
int bench_teardown(void **state);
void bench_is_state(const struct bench *b, const char *name);

enum status bench_step(struct bench *b, struct job_event event);
enum status bench_ask(struct bench *b, enum job_event_kind kind);
void bench_tick(struct bench *b, int64_t ms); /* later by ms */

/* One event of the current generation. */
void bench_place(struct bench *b);
void bench_probe(struct bench *b, enum status status);
void bench_hello(struct bench *b, uint32_t rank);
void bench_ready(struct bench *b, uint32_t rank, uint64_t total);
void bench_progress(struct bench *b, uint32_t rank, uint64_t step, const char *phase);
void bench_fault(struct bench *b, uint32_t rank, enum jm_fault_kind kind, uint64_t step);
void bench_exit(struct bench *b, uint32_t rank, enum jm_exit how, int code);
void bench_save(struct bench *b, enum job_event_kind kind, uint32_t rank, uint64_t step);
void bench_store(struct bench *b, enum job_event_kind kind, uint64_t step, uint32_t generation,
                 enum status status);

/* From QUEUED (or RECOVERING) to RUNNING with `total` steps. */
void bench_run(struct bench *b, uint64_t total);
/* A whole save of step by all ranks. */
void bench_commit(struct bench *b, uint64_t step);
/* All ranks that are left exit. */
void bench_all_exit(struct bench *b);

/* The n-th action of a kind among the last ones (n from 0), or NULL. */
const struct jm_action *bench_act(const struct bench *b, enum jm_action_kind kind, size_t n);
size_t bench_count(const struct bench *b, enum jm_action_kind kind);
bool bench_event(const struct bench *b, const char *kind);
