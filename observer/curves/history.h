/*
 * The rows of one job in memory, ascending by step, as they are in the coordinator's journal.
 *
 * A job that goes back makes rows of steps that have some already. Until they are made again the
 * old ones stay; `next_step` is then the first step that this generation hasn't made yet, and what
 * is read from there on replaces what is here.
 *
 * Between two questions a generation may have gone back, made rows and ended. Of it only its rows
 * tell: up to where the present one began, generations ascend with the steps, so that a row that is
 * still the generation's that made the one here proves those before it. When the job's generation
 * is another one, such a row is looked for, from ever further back.
 *
 * Not locked: whoever has it sees to that.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/control.pb-c.h"
#include "common/limits.h"
#include "common/status.h"

#define HISTORY_ROWS_MAX (2 * (size_t)LIMIT_METRIC_ROWS) /* then it is read anew: thinned */

enum history_phase {
    HISTORY_DATA,
    HISTORY_FORWARD,
    HISTORY_BACKWARD,
    HISTORY_COMMUNICATION,
    HISTORY_OPTIMIZER,
    HISTORY_SNAPSHOT,
    HISTORY_PHASES
};

/* One row of a job. Values that aren't known are NaN. */
struct history_row {
    uint64_t step;
    double unix_s, epoch;
    uint32_t generation;
    float loss, lr, grad_norm, samples_per_s, seconds;
    float eval_loss, eval_accuracy;
    float phases[HISTORY_PHASES]; /* seconds */
};

struct history {
    struct history_row *rows; /* owned */
    size_t count, capacity;
    uint32_t generation; /* of the job, when it was asked last; 0: never */
    uint64_t next_step;  /* to ask for */
    uint64_t back;       /* steps, if next_step must go back once more */
    bool proved;      /* rows before next_step are those of the journal, but for `generation`'s */
    uint32_t rewinds; /* how often next_step went back */
    bool outdated;    /* the last answer was, and nothing was taken */
};

void history_release(struct history *history);

enum history_answer { HISTORY_MORE, HISTORY_WHOLE, HISTORY_NO_MEMORY };

/* Takes the answer to a question for rows from next_step on. HISTORY_MORE: ask for rows from
 * next_step at once; HISTORY_NO_MEMORY: the history is unchanged. */
enum history_answer history_take(struct history *history, const Cairn__V1__ReadMetricsReply *page);

/* The index of the first row of that step or a later one. */
size_t history_find(const struct history *history, uint64_t step);
