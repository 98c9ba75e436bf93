/* A job of which nothing is saved, on the bench: short calls beside those of the other fixture. */
#pragma once

#include "tests/unit/server/server_fixture.h"

#define RANKS    3
#define GRACE_MS 30000
#define BUDGET   4

struct fsm_config program_config(void);
/* Checks that nothing of a save left the machine with the last event; the calls below do, too. */
void program_saves_nothing(const struct bench *b);
/* The job gets slots: FORMING. */
void program_form(struct bench *b);
/* From FORMING to RUNNING. */
void program_go_on(struct bench *b);
/* A job that runs, anew. */
struct bench *program_run_with(void **state, struct fsm_config config);
struct bench *program_run(void **state);
/* The program of the rank has ended, and all is well. */
void program_finish(struct bench *b, uint32_t rank);
/* It failed so: its worker reports it. */
void program_fail(struct bench *b, uint32_t rank, enum fsm_fault_kind kind, bool outside);
/* Those that live say that they have parked, if they are to. */
void program_park_all(struct bench *b);
/* The processes of those that live exit. */
void program_exit_all(struct bench *b, int code);
/* The failed rank exits, the others park, and the next generation runs. */
void program_start_anew(struct bench *b, uint32_t failed);
/* All live, and what they do counts up, for so long. */
void program_live_for(struct bench *b, int64_t ms);
