/*
 * A backend that records: the CPU's, whose calls between capture_begin and capture_end are kept
 * instead of run, and run by replay. One at a time.
 */
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"

#define RECORDER_GRAPHS_MAX 512

struct recorder {
    struct backend_table table;
    int graph_count, room; /* graphs; that it takes */
    bool recording;
    int replays, ran, refreshed; /* ran: ops that were run at once, as refreshed: kernels */
    int gave;                    /* forward calls that may write a gradient where the input lies */
};
extern struct recorder recorder;

/* Anew, with room for so many graphs. Its table may be changed. */
const struct backend_table *recorder_open(int room);
