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

/* "cause: what the status means"; returns st. */
enum status worker_fail(enum status st, const char *cause, struct reason *reason);
/* The same with what the backend says of its last error, if it does. */
MUST_CHECK enum status worker_fail_device(const struct worker *w, enum status st, const char *cause,
                                          struct reason *reason);
struct memory_need_options worker_memory_options(const struct worker *w);
MUST_CHECK enum status worker_out_of_memory(struct worker *w, const char *what,
                                            struct reason *reason);
/* What the node has, and the job does not say: its device, its files. Returns st. */
MUST_CHECK enum status worker_note_of_node(const struct worker *w, enum status st);
/* What is wrong with data that the job trained on before isn't the job file's fault. */
enum status worker_data_status(const struct worker *w, enum status st);
/* Waits for the thread that loads a split; the same again later. */
MUST_CHECK enum status worker_join_loader(const struct worker *w, struct worker_loader *loader,
                                          struct reason *reason);
/* This rank's group and lanes, by the shares of its generation. */
MUST_CHECK enum status worker_cut_lanes(struct worker *w, struct reason *reason);
/* The loss scale to the device. What was staged before is through: every step waits. */
MUST_CHECK enum status worker_write_scale(struct worker *w);
/* In a pipeline: its stage, and what runs a row of it; plans for that many stashes. */
MUST_CHECK enum status worker_open_stage(struct worker *w, struct reason *reason);
MUST_CHECK enum status worker_open_stage_run(struct worker *w);
MUST_CHECK enum status worker_open_plans(struct worker *w);
void worker_close_plans(struct worker *w);
/* Its job is a pipeline. */
bool worker_is_staged(const struct worker *w);
void worker_each_comm(struct worker *w, void (*call)(struct comm *comm));
/* The group's, the pipe's and the world's; nothing is sent any more. */
void worker_close_comms(struct worker *w);
