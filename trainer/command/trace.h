/*
 * The dumps of PyTorch's flight recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp, version
 * 2.10 of the format): which collective a rank entered last. A dump is a pickle; it is read here
 * without Python, and nothing but texts, numbers, lists and dictionaries is taken from it.
 *
 * ProcessGroupNCCL writes one when a collective has timed out; with Gloo a program has to. A file
 * is TORCH_FR_DUMP_TEMP_FILE, or TORCH_NCCL_DEBUG_INFO_TEMP_FILE, and the rank.
 *
 * What Gloo dumps says of no collective that it is complete: each stays "scheduled". So ranks are
 * compared by what they entered.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"

#define TRACE_BYTES_MAX ((size_t)32 * 1024 * 1024) /* of a dump */

/* The last collective of all ranks that a rank entered. */
struct trace_last {
    uint64_t number; /* from 1 on; 0: none */
    char name[64];   /* as "nccl:all_reduce" */
};

/* Reads a dump. Groups of some ranks and messages between two ranks are left out.
 * Errors: ST_CORRUPT  it is none; ST_FULL  it is too large; ST_NO_MEMORY */
MUST_CHECK enum status trace_read(const void *bytes, size_t size, struct trace_last *out);

/*
 * Says which ranks never entered the collective that others entered last, by those dumps of all
 * ranks that are on this node and were written since then. env: where their place is looked for,
 * which has to be an absolute path.
 * false: there are none, or they say nothing
 */
bool trace_explain(char *const *env, uint32_t size, int64_t since_wall_ms, struct reason *out);
