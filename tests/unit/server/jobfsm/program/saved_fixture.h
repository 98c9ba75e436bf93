/* A job with a program that is saved, on the bench: short calls beside those of the other one. */
#pragma once

#include "tests/unit/server/server_fixture.h"

#define RANKS    2
#define GRACE_MS 30000
#define BUDGET   4
#define STEPS    1000

struct fsm_config saved_config(void);
/* From RECOVERING, or QUEUED, to FORMING; nodes: by rank. */
void saved_form_on(struct bench *b, const char *const *nodes);
void saved_form(struct bench *b); /* all on one node */
/* From FORMING to RUNNING. */
void saved_go_on(struct bench *b);
/* A job that runs, anew. */
struct bench *saved_run_with(void **state, struct fsm_config config);
struct bench *saved_run(void **state);
/* The program of the rank has ended with code 0. */
void saved_finish(struct bench *b, uint32_t rank, uint64_t step);
/* The program of the rank has failed, and its worker stays. */
void saved_fail(struct bench *b, uint32_t rank);
/* That of rank 1 does, and all workers park; they say that they have all of the state. */
void saved_fail_and_park(struct bench *b);
/* A hello with all copies of that step, as `generation` left them. */
void saved_offer(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation);
/* Returns the step of the save that the last event announced, which workers leave with. */
uint64_t saved_announced(const struct bench *b);
/* All come to the step, save it and leave. */
void saved_leave(struct bench *b, uint64_t step);
