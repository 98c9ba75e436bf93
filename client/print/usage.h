/*
 * The resources that workers and nodes use, and have, in cells of tables and in words. What isn't
 * known is "-".
 */
#pragma once

#include <stddef.h>

#include "cairn/v1/control.pb-c.h"

/* Cells of a Worker: processors in use, memory (of its limit), bytes to and from others, its
 * peak. */
void cell_worker_cores(const void *row, char *out, size_t capacity); /* "0.97" */
/* "86.2 MiB", "1.0 GiB of 2.0 GiB" */
void cell_worker_memory(const void *row, char *out, size_t capacity);
void cell_worker_sent(const void *row, char *out, size_t capacity);
void cell_worker_received(const void *row, char *out, size_t capacity);
void cell_worker_peak(const void *row, char *out, size_t capacity); /* "107.5 GFLOP/s" */

/* Cells of a Node: processors in use of those there are, memory in use of all, bytes a second. */
void cell_node_cores(const void *row, char *out, size_t capacity);    /* "1.9/2" */
void cell_node_memory(const void *row, char *out, size_t capacity);   /* "3.1 GiB of 15.6 GiB" */
void cell_node_received(const void *row, char *out, size_t capacity); /* "1.2 MiB/s" */
void cell_node_sent(const void *row, char *out, size_t capacity);
void cell_node_gpu_use(const void *row, char *out, size_t capacity); /* "97 % 310 W, -" */

/* "MFU 35.5 %", or "". */
char *format_mfu(const Cairn__V1__Job *job, char *out, size_t capacity);
