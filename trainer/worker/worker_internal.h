/*
 * Inside of a worker, shared by
 *
 *   worker_open.c        opened: its data, its model, the memory that it takes
 *   worker_generation.c  from generation to generation
 *   worker_internal.c    what both need
 */
#pragma once

#include "trainer/worker/memory_need.h"
#include "trainer/worker/worker.h"

/* Writes "cause: what the status means" to reason; returns st. */
enum status worker_fail(enum status st, const char *cause, struct reason *reason);
/* Like worker_fail, with the backend's line about its last error, if it has one. */
MUST_CHECK enum status worker_fail_device(const struct worker *w, enum status st, const char *cause,
                                          struct reason *reason);
struct memory_need_options worker_memory_options(const struct worker *w);
MUST_CHECK enum status worker_out_of_memory(struct worker *w, const char *what,
                                            struct reason *reason);
/* Notes that a failure is the node's (its device, its files), not the job's. Returns st. */
MUST_CHECK enum status worker_note_of_node(const struct worker *w, enum status st);
/* Returns the status of an error of the data: not the job file's fault if the job trained on them
 * before. */
enum status worker_data_status(const struct worker *w, enum status st);
/* Waits for the thread that loads a split, and returns its status; may be called again. */
MUST_CHECK enum status worker_join_loader(const struct worker *w, struct worker_loader *loader,
                                          struct reason *reason);
/* Sets this rank's group and lanes from the shares of its generation. */
MUST_CHECK enum status worker_cut_lanes(struct worker *w, struct reason *reason);
/* Writes the loss scale to the device. The copy before has ended, since every step waits. */
MUST_CHECK enum status worker_write_scale(struct worker *w);
/* Open a pipeline rank's stage, the run of its row, and plans with as many stashes as that
 * needs. */
MUST_CHECK enum status worker_open_stage(struct worker *w, struct reason *reason);
MUST_CHECK enum status worker_open_stage_run(struct worker *w);
MUST_CHECK enum status worker_open_plans(struct worker *w);
void worker_close_plans(struct worker *w);
/* True if the worker's job is a pipeline. */
bool worker_is_staged(const struct worker *w);
void worker_each_comm(struct worker *w, void (*call)(struct comm *comm));
/* Closes the communicators of group, pipe and world; nothing is sent any more. */
void worker_close_comms(struct worker *w);
