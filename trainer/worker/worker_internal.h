/*
 * Inside of a worker, shared by
 *
 *   worker_open.c        opened: its data, its model, the memory that it takes
 *   worker_generation.c  from generation to generation
 */
#pragma once

#include "trainer/worker/worker.h"

/* "cause: what the status means", with what the backend says of its last error, if it does. */
MUST_CHECK enum status worker_fail_device(const struct worker *w, enum status st, const char *cause,
                                          struct reason *reason);
MUST_CHECK enum status worker_out_of_memory(struct worker *w, const char *what,
                                            struct reason *reason);
/* What the node has, and the job does not say: its device, its files. Returns st. */
MUST_CHECK enum status worker_note_of_node(const struct worker *w, enum status st);
/* Waits for the thread that loads a split. */
MUST_CHECK enum status worker_join_loader(const struct worker *w, struct worker_loader *loader,
                                          struct reason *reason);
/* This rank's lanes, by the shares of its generation. */
MUST_CHECK enum status worker_cut_lanes(struct worker *w, struct reason *reason);
/* The group's, the pipe's and the world's; nothing is sent any more. */
void worker_close_comms(struct worker *w);
/* The loss scale to the device. */
MUST_CHECK enum status worker_write_scale(struct worker *w);
