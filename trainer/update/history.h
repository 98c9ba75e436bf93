/*
 * What a job remembers of its losses and evaluations: whether it has got better lately
 * (train.stop), and what a usual loss is (recovery.on_spike). It is part of the state: equal on all
 * ranks, in checkpoints and their digests.
 *
 * It changes only where a step becomes the newest finished one, so that ranks that have the state
 * of one step have one history. The result of an evaluation after step k is therefore pending until
 * step k + 1 is finished; a generation that begins at step k evaluates again to know it.
 *
 * In a checkpoint it is *notes*, words in the list of skipped steps behind the steps
 * (checkpoint/notes.h). Jobs without these keys have none.
 *
 * Thread: any; all functions are pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "jobspec/jobspec.h"

struct history_options {
    enum jobspec_metric metric; /* of train.stop; none: the job runs its duration */
    uint32_t patience;
    float min_delta;
    enum jobspec_on_spike on_spike;
    double spike;
    uint32_t window; /* losses; 1 to JOBSPEC_SPIKE_WINDOW_MAX */
};

struct loss_history {
    float best;     /* of the metric; once there is one */
    uint32_t since; /* values after the best one */
    bool has_best;
    bool has_pending; /* ... and the value: not among the notes */
    float pending;
    uint32_t losses;                      /* that were added, modulo 2^32 */
    float loss[JOBSPEC_SPIKE_WINDOW_MAX]; /* the newest: loss i lies at i % window */
};

#define HISTORY_NOTES_MAX (3 + JOBSPEC_SPIKE_WINDOW_MAX)

/* Returns whether a job has a history at all. */
bool history_is_kept(const struct history_options *options);
/* Notes that a step is finished: takes over what is pending. loss: NULL where the step was left
 * out. */
void history_step(const struct history_options *options, struct loss_history *history,
                  const float *loss);
/* Returns whether the job ends where it is: the metric was not better by more than min_delta for
 * `patience` values in a row. What is pending counts. */
bool history_ends(const struct history_options *options, const struct loss_history *history);
/* Returns the loss above which one is a spike: `spike` times the median of the last `window` ones;
 * 0: there are not so many yet. */
double history_loss_most(const struct history_options *options, const struct loss_history *history);

/* Writes the notes; returns their number. out: [HISTORY_NOTES_MAX] */
size_t history_notes(const struct history_options *options, const struct loss_history *history,
                     uint64_t *out);
/* Takes a note over. */
void history_take(struct loss_history *history, uint64_t note);
