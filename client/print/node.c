#include "client/print/node.h"

#include <math.h>
#include <stdio.h>

#include "client/print/cell.h"
#include "client/print/format.h"
#include "client/print/usage.h"

#define NODE(member) .offset = offsetof(Cairn__V1__Node, member)

void node_cell_slots(const void *node, char *out, size_t capacity)
{
    const Cairn__V1__Node *row = node;
    if (row->undying == 0) {
        (void)snprintf(out, capacity, "%u/%u", row->used, row->slots);
    } else {
        (void)snprintf(out, capacity, "%u/%u (%u undying)", row->used, row->slots, row->undying);
    }
}

static double value_used(const void *node)
{
    return ((const Cairn__V1__Node *)node)->used;
}

void node_cell_gpus(const void *node, char *out, size_t capacity)
{
    const Cairn__V1__Node *row = node;
    size_t bad = 0;
    for (size_t i = 0; i < row->n_gpus; i++)
        bad += row->gpus[i]->problem[0] != '\0';
    if (row->n_gpus == 0) {
        (void)snprintf(out, capacity, "-");
    } else if (bad == 0) {
        (void)snprintf(out, capacity, "%u/%zu", row->gpus_used, row->n_gpus);
    } else {
        (void)snprintf(out, capacity, "%u/%zu (%zu bad)", row->gpus_used, row->n_gpus, bad);
    }
}

static double value_gpus(const void *node)
{
    const Cairn__V1__Node *row = node;
    return row->n_gpus == 0 ? (double)NAN : row->gpus_used;
}

static void cell_gpu(const void *node, char *out, size_t capacity)
{
    const Cairn__V1__Node *row = node;
    (void)snprintf(out, capacity, "%s", row->n_gpus > 0 ? row->gpus[0]->name : "-");
}

static double value_heat(const void *node)
{
    const Cairn__V1__Node *row = node;
    double hottest = (double)NAN;
    for (size_t i = 0; i < row->n_gpus; i++) {
        if (row->gpus[i]->temperature > 0)
            hottest = fmax(hottest, row->gpus[i]->temperature); /* of NaN and a number the number */
    }
    return hottest;
}

void node_cell_heat(const void *node, char *out, size_t capacity)
{
    const double heat = value_heat(node);
    (void)snprintf(out, capacity, isnan(heat) ? "-" : "%.0f C", heat);
}

/* Returns the memory in use of all GPUs of a node; total 0: not told. */
static uint64_t memory_used(const Cairn__V1__Node *node, uint64_t *total)
{
    uint64_t used = 0;
    *total = 0;
    for (size_t i = 0; i < node->n_gpus; i++) {
        used += node->gpus[i]->memory_used_bytes;
        *total += node->gpus[i]->memory_bytes;
    }
    return used;
}

void node_cell_memory(const void *node, char *out, size_t capacity)
{
    char used[32], all[32];
    uint64_t total = 0;
    const uint64_t bytes = memory_used(node, &total);
    if (total == 0) {
        (void)snprintf(out, capacity, "-");
    } else {
        (void)snprintf(out, capacity, "%s of %s", format_bytes(bytes, used, sizeof(used)),
                       format_bytes(total, all, sizeof(all)));
    }
}

static double value_memory(const void *node)
{
    uint64_t total = 0;
    const uint64_t used = memory_used(node, &total);
    return total == 0 ? (double)NAN : (double)used;
}

static double value_cores(const void *node)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)node)->usage;
    return usage == NULL ? (double)NAN : usage->cores;
}

static double value_machine_memory(const void *node)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)node)->usage;
    return usage == NULL || usage->memory_bytes == 0
               ? (double)NAN
               : (double)usage->memory_bytes - (double)usage->memory_available_bytes;
}

static double value_received(const void *node)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)node)->usage;
    return usage == NULL ? (double)NAN : usage->received_bytes_per_s;
}

static double value_sent(const void *node)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)node)->usage;
    return usage == NULL ? (double)NAN : usage->sent_bytes_per_s;
}

const struct column node_columns[] = {
    { "NAME", NODE(name), .cell = cell_text, .about = "as its certificate, or its agent, says" },
    { "STATE", NODE(state), .cell = cell_text, .state = true,
      .about = "ready, draining, drained, left, lost, ..." },
    { "DEVICE", NODE(device), .cell = cell_text, .about = "of its slots: cpu or cuda" },
    { "USED", .cell = node_cell_slots, .value = value_used, .right = true,
      .about = "slots that have a worker, of all" },
    { "GPUS", .cell = node_cell_gpus, .value = value_gpus, .right = true,
      .about = "GPUs that have a worker, of all" },
    { "GPU", .cell = cell_gpu, .wide = true, .about = "what they are" },
    { "GPU HEAT", .cell = node_cell_heat, .value = value_heat, .right = true, .asked = true,
      .about = "temperature of the hottest" },
    { "GPU MEMORY", .cell = node_cell_memory, .value = value_memory, .right = true, .asked = true,
      .about = "of all of them, as far as it is told" },
    { "GPU USE", .cell = cell_node_gpu_use, .wide = true,
      .about = "how busy each is, and what it draws" },
    { "CORES", .cell = cell_node_cores, .value = value_cores, .right = true, .wide = true,
      .about = "processors in use, of all" },
    { "MEMORY", .cell = cell_node_memory, .value = value_machine_memory, .right = true,
      .wide = true, .about = "in use, of all" },
    { "RECEIVES", .cell = cell_node_received, .value = value_received, .right = true, .wide = true,
      .about = "bytes a second, of all its networks" },
    { "SENDS", .cell = cell_node_sent, .value = value_sent, .right = true, .wide = true,
      .about = "likewise" },
    { "HOST", NODE(host), .cell = cell_text, .wide = true, .about = "where other nodes reach it" },
    { "VERSION", NODE(version), .cell = cell_text, .about = "of its agent" },
    { "REASON", NODE(reason), .cell = cell_text, .wide = true,
      .about = "why it takes no jobs, or what is wrong with it" },
    { 0 },
};
