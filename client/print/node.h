/*
 * Nodes in a table.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "client/print/output.h"

extern const struct column node_columns[]; /* of Node; to be chosen among by name */

/* Cells, each made of a Node. */
void node_cell_slots(const void *node, char *out, size_t capacity);  /* "2/4 (1 undying)" */
void node_cell_gpus(const void *node, char *out, size_t capacity);   /* "2/8 (1 bad)" */
void node_cell_heat(const void *node, char *out, size_t capacity);   /* "71 C": the hottest GPU */
void node_cell_memory(const void *node, char *out, size_t capacity); /* "12.1 GiB of 80.0 GiB" */
