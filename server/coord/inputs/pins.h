/* Pins, which are what bits depend on: those of a worker against those of its job. */
#pragma once

#include "server/coord/state.h"

/*
 * Compares the pins that a worker said with the job's: those of the formation with which it began
 * to run. A job that began before data were pinned takes those that are told first. ready: gets
 * what differs, its text in out.
 */
void coord_compare_pins(struct coord *coord, struct coord_job *job, const char *pins,
                        const char *node, struct fsm_ready *ready, struct reason *out);
