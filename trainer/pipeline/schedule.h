/*
 * Schedules of a pipeline: which actions each worker computes, in which order. A table, with a row
 * for each worker.
 *
 * A stage computes, for every micro-batch of its lanes, a forward (F) and a backward (B). Where the
 * backward is split, that is the gradient of the input (I), for which the stage before waits, and
 * later that of the weights (W), for which nobody does. With `chunks` > 1 every stage has several
 * stretches of the model, and a micro-batch goes around: chunk c of stage s is part
 * c * stages + s of the model.
 *
 *     1f1b, 3 stages, 4 micro-batches         zb-h1
 *     stage 0   F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 B0 F3 B1 B2 B3
 *     stage 1   F0 F1 B0 F2 B1 F3 B2 B3       F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
 *     stage 2   F0 B0 F1 B1 F2 B2 F3 B3       F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
 *
 * So they are where sends are met. Where they are started, stages are twice as far ahead: stage 0
 * begins with five forwards, stage 1 with three.
 *
 * The order on which bits depend is the same in every table. Actions that add to gradients (B or W)
 * go through a worker's micro-batches in ascending order, so a lane's are added in one order. Lanes
 * come in the order that the reduction wants (comm/reducer_order.h). The rest is free.
 *
 * A micro-batch has one number in the whole job: lane * accumulate + which one of the lane.
 *
 * Stages may be cut into different shares. Workers that have lanes in common, directly or by others
 * between them, are one pipeline. Every *stage* of it gets an order of all its micro-batches, and a
 * worker runs of that what is of its lanes. So no worker's order asks for more than its stage's
 * does, and what can't get stuck with one worker a stage can't with several. With equal shares
 * everywhere each column of workers is a pipeline by itself.
 *
 * What a forward leaves for its backward lies in a *stash* of the worker; which, the table says.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/layout/layout.h"
#include "common/reason.h"
#include "common/status.h"

#define PIPELINE_CHUNKS_MAX 16
/* Most actions of a table, 64 MiB: 8 stages of 4096 lanes with 64 micro-batches each. */
#define PIPELINE_ACTIONS_MAX (UINT32_C(1) << 22)

enum pipeline_schedule {
    PIPELINE_GPIPE,       /* all forwards, then all backwards */
    PIPELINE_1F1B,        /* a backward as soon as there can be one; then in turn */
    PIPELINE_INTERLEAVED, /* 1f1b with several chunks a stage */
    PIPELINE_ZB_H1,       /* 1f1b with the backward split; W fills where others wait */
};
#define PIPELINE_SCHEDULES 4

/* Returns "gpipe", "1f1b", "interleaved" or "zb-h1"; static. */
const char *pipeline_schedule_word(enum pipeline_schedule schedule);
/* false: no such word. */
bool pipeline_schedule_parse(const char *word, enum pipeline_schedule *out);

enum pipeline_kind {
    PIPELINE_F,
    PIPELINE_B, /* both gradients */
    PIPELINE_I, /* of the input alone */
    PIPELINE_W, /* of the weights alone */
};
#define PIPELINE_KINDS 4

struct pipeline_action {
    enum pipeline_kind kind;
    uint32_t chunk, micro;
    uint32_t stash; /* taken by F, given back after B or W */
};

/* Row of one worker; with several tensor ranges, the row of each rank that has the stage and the
 * share. */
struct pipeline_row {
    uint32_t stage, data;
    uint32_t stashes; /* how many it needs */
    uint32_t count;
    struct pipeline_action *actions; /* [count] borrowed of the table */
};

/* True if the row's backwards are split: it has I and W instead of B. */
static inline bool pipeline_row_splits(const struct pipeline_row *row)
{
    return row->count > 0 && row->actions[row->count - 1].kind == PIPELINE_W;
}

struct pipeline_table {
    uint32_t stages, chunks, accumulate;
    uint32_t micros; /* of the job: lanes * accumulate */
    uint32_t row_count;
    struct pipeline_row *rows;       /* stage by stage, as the shares are numbered */
    uint32_t *owner;                 /* [stages * micros] which row has it */
    struct pipeline_action *actions; /* of all rows, one after the other */
};

/* Meaning of a send for the worker that sends. */
enum pipeline_sends {
    /* Sends are started, and not waited for: a receive is posted as soon as its stash is free
     * (Gloo). */
    PIPELINE_SENDS_ARE_STARTED,
    /* Sends and receives between two actions are one call, which ends when all peers have come to
     * theirs; nothing is buffered on the way (NCCL, at its strictest). */
    PIPELINE_SENDS_ARE_MET,
};

struct pipeline_options {
    enum pipeline_schedule schedule;
    uint32_t chunks;               /* of a stage: 1, but for interleaved, which wants 2 or more */
    uint32_t accumulate;           /* micro-batches of a lane */
    const struct layout *layout;   /* has passed layout_check() */
    const uint32_t *const *orders; /* [stages][lanes] reducer_spread's of each stage's shares */
    enum pipeline_sends sends;     /* sends with which the order must not get stuck */
};

/*
 * Makes the table of a whole job.
 * Memory: made here; released by pipeline_table_release().
 * Errors: ST_INVALID    the schedule can't be had with so many chunks, with the reason
 *         ST_FULL       more than PIPELINE_ACTIONS_MAX actions, with the reason
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status pipeline_table_init(struct pipeline_table *table,
                                           const struct pipeline_options *options,
                                           struct reason *reason);
void pipeline_table_release(struct pipeline_table *table);

/* Returns the part of the model, counted from its first node: chunk c of stage s is the part c *
 * stages + s. */
static inline uint32_t pipeline_part(const struct pipeline_table *table, uint32_t stage,
                                     uint32_t chunk)
{
    return chunk * table->stages + stage;
}

/* Return the part whose result for this micro-batch an action needs, and the part that waits for
 * the action's result. Forwards go on to the next part, gradients of inputs back. PIPELINE_NOWHERE:
 * none, at the ends of the model, and for weight gradients. */
#define PIPELINE_NOWHERE UINT32_MAX
uint32_t pipeline_input(const struct pipeline_table *table, uint32_t stage,
                        const struct pipeline_action *action);
uint32_t pipeline_output(const struct pipeline_table *table, uint32_t stage,
                         const struct pipeline_action *action);

/* Returns the row that has a micro-batch in a part of the model. */
static inline uint32_t pipeline_owner(const struct pipeline_table *table, uint32_t part,
                                      uint32_t micro)
{
    return table->owner[(uint64_t)(part % table->stages) * table->micros + micro];
}
