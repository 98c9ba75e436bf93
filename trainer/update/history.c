#include "trainer/update/history.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/notes.h"
#include "common/check.h"

/* A note: CKPT_SKIPS_NOTE, the slot, 32 bits. Losses follow the three others. */
enum slot { SLOT_SINCE, SLOT_BEST, SLOT_LOSSES, SLOT_LOSS };
#define SLOT_SHIFT 32
#define SINCE_HAS  (UINT32_C(1) << 31) /* there is a best value */

static bool spikes(const struct history_options *options)
{
    return options->on_spike != JOBSPEC_ON_SPIKE_NONE;
}

static bool stops(const struct history_options *options)
{
    return options->metric != JOBSPEC_METRIC_NONE;
}

bool history_is_kept(const struct history_options *options)
{
    return stops(options) || spikes(options);
}

/* ---- whether it gets better ---- */

static bool is_better(const struct history_options *options, const struct loss_history *h,
                      float value)
{
    if (!h->has_best)
        return true;
    return options->metric == JOBSPEC_METRIC_EVAL_ACCURACY ? value > h->best + options->min_delta
                                                           : value < h->best - options->min_delta;
}

static void take_value(const struct history_options *options, struct loss_history *h, float value)
{
    if (is_better(options, h, value)) {
        h->best = value;
        h->since = 0;
        h->has_best = true;
    } else if (h->since < SINCE_HAS - 1) {
        h->since++;
    }
}

void history_step(const struct history_options *options, struct loss_history *history,
                  const float *loss)
{
    struct loss_history *h = history;
    if (h->has_pending)
        take_value(options, h, h->pending);
    h->has_pending = false;
    if (loss == NULL)
        return;
    if (options->metric == JOBSPEC_METRIC_LOSS)
        take_value(options, h, *loss);
    if (spikes(options))
        h->loss[h->losses++ % options->window] = *loss;
}

bool history_ends(const struct history_options *options, const struct loss_history *history)
{
    struct loss_history after = *history;
    if (!stops(options))
        return false;
    if (after.has_pending)
        take_value(options, &after, after.pending);
    return after.since >= options->patience;
}

/* ---- what is usual ---- */

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double history_loss_most(const struct history_options *options, const struct loss_history *history)
{
    const uint32_t n = options->window;
    float sorted[JOBSPEC_SPIKE_WINDOW_MAX];
    if (!spikes(options) || history->losses < n)
        return 0;
    CHECK(n >= 1 && n <= JOBSPEC_SPIKE_WINDOW_MAX);
    memcpy(sorted, history->loss, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), ascending);
    return options->spike * ((double)sorted[(n - 1) / 2] + (double)sorted[n / 2]) / 2;
}

/* ---- notes ---- */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint64_t note)
{
    const uint32_t bits = (uint32_t)note;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint64_t note_of(unsigned slot, uint32_t bits)
{
    return CKPT_SKIPS_NOTE | (uint64_t)slot << SLOT_SHIFT | bits;
}

size_t history_notes(const struct history_options *options, const struct loss_history *history,
                     uint64_t *out)
{
    const struct loss_history *h = history;
    size_t count = 0;
    if (stops(options) && h->has_best) {
        out[count++] = note_of(SLOT_SINCE, SINCE_HAS | h->since);
        out[count++] = note_of(SLOT_BEST, bits_of(h->best));
    }
    if (!spikes(options) || h->losses == 0)
        return count;
    out[count++] = note_of(SLOT_LOSSES, h->losses);
    for (uint32_t i = 0; i < options->window && i < h->losses; i++)
        out[count++] = note_of(SLOT_LOSS + i, bits_of(h->loss[i]));
    return count;
}

void history_take(struct loss_history *history, uint64_t note)
{
    const uint64_t slot = (note & ~CKPT_SKIPS_NOTE) >> SLOT_SHIFT;
    if (slot == SLOT_SINCE) {
        history->has_best = ((uint32_t)note & SINCE_HAS) != 0;
        history->since = (uint32_t)note & ~SINCE_HAS;
    } else if (slot == SLOT_BEST) {
        history->best = float_of(note);
    } else if (slot == SLOT_LOSSES) {
        history->losses = (uint32_t)note;
    } else if (slot - SLOT_LOSS < JOBSPEC_SPIKE_WINDOW_MAX) {
        history->loss[slot - SLOT_LOSS] = float_of(note);
    }
}
