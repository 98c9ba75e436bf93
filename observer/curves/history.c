#include "observer/curves/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BACK_STEPS 512

static const char *const phase_names[HISTORY_PHASES] = {
    [HISTORY_DATA] = "data",           [HISTORY_FORWARD] = "forward",
    [HISTORY_BACKWARD] = "backward",   [HISTORY_COMMUNICATION] = "communication",
    [HISTORY_OPTIMIZER] = "optimizer", [HISTORY_SNAPSHOT] = "snapshot",
};

void history_release(struct history *history)
{
    free(history->rows);
    *history = (struct history){ .rows = NULL };
}

size_t history_find(const struct history *history, uint64_t step)
{
    size_t low = 0, high = history->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (history->rows[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void read_phases(const Cairn__V1__MetricRow *row, float out[HISTORY_PHASES])
{
    for (enum history_phase i = HISTORY_DATA; i < HISTORY_PHASES; i++)
        out[i] = NAN;
    for (size_t k = 0; k < row->n_phases; k++) { /* which come in this order, mostly */
        for (size_t j = 0; j < HISTORY_PHASES; j++) {
            const size_t i = (k + j) % HISTORY_PHASES;
            if (strcmp(row->phases[k]->name, phase_names[i]) != 0)
                continue;
            out[i] = (float)(row->phases[k]->ms / 1e3);
            break;
        }
    }
}

static struct history_row row_of(const Cairn__V1__MetricRow *row)
{
    const bool evaluated = row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    struct history_row out = {
        .step = row->step,
        .unix_s = (double)row->wall_ms / 1e3,
        .epoch = row->epoch,
        .generation = row->generation,
        .loss = row->loss,
        .lr = row->lr,
        .grad_norm = row->grad_norm,
        .samples_per_s = (float)row->samples_per_s,
        .seconds = (float)(row->step_ms / 1e3),
        .eval_loss = evaluated ? (float)row->eval->loss : NAN,
        .eval_accuracy = evaluated ? (float)row->eval->accuracy : NAN,
    };
    read_phases(row, out.phases);
    return out;
}

/* Room for `more` rows behind the first `keep`. */
static bool make_room(struct history *history, size_t keep, size_t more)
{
    if (keep + more <= history->capacity)
        return true;
    const size_t capacity = 2 * (keep + more);
    struct history_row *rows = realloc(history->rows, capacity * sizeof(*rows));
    if (rows == NULL)
        return false;
    history->rows = rows;
    history->capacity = capacity;
    return true;
}

static void ask_from(struct history *history, uint64_t step)
{
    history->next_step = step;
    history->rewinds++;
}

/* True if the page's first row replaces, or follows, a row of an earlier generation. */
static bool was_made_anew(const struct history *history, const Cairn__V1__ReadMetricsReply *page)
{
    if (history->count == 0)
        return false;
    size_t at = history_find(history, page->rows[0]->step);
    if (at == history->count || history->rows[at].step != page->rows[0]->step) {
        if (at == 0)
            return false;
        at--;
    }
    return page->rows[0]->generation > history->rows[at].generation;
}

/* Another generation makes the steps after base_step, or made some already, and others before it
 * may have; true: rows before those that were asked for are to be read. */
static bool go_back(struct history *history, const Cairn__V1__ReadMetricsReply *page)
{
    const uint64_t asked = history->next_step;
    if (page->generation != history->generation) {
        history->proved = history->generation == 0;
        history->generation = page->generation;
        history->back = BACK_STEPS;
        if (!history->proved && page->base_step + 1 < asked) {
            ask_from(history, page->base_step + 1);
            return true;
        }
    }
    if (history->proved || page->n_rows == 0)
        return false;
    history->proved = asked <= 1 || !was_made_anew(history, page);
    if (history->proved)
        return false;
    ask_from(history, asked > history->back ? asked - history->back : 1);
    history->back *= 2;
    return true;
}

/* All was read: what this generation hasn't made yet is asked for again. */
static void settle(struct history *history, uint64_t base_step)
{
    size_t at = history->count;
    while (at > 0 && history->rows[at - 1].generation < history->generation &&
           history->rows[at - 1].step > base_step)
        at--;
    if (at < history->count)
        history->next_step = history->rows[at].step;
}

/* True if rows of the page are newer than what it says of the job: another generation began while
 * the page was made, as rows are read beside the coordinator. The next answer knows of that
 * generation; an answer that follows an outdated one is accepted. */
static bool is_outdated(struct history *history, const Cairn__V1__ReadMetricsReply *page)
{
    bool newer = false;
    for (size_t i = 0; i < page->n_rows && !newer; i++)
        newer = page->rows[i]->generation > page->generation;
    history->outdated = newer && !history->outdated;
    return history->outdated;
}

enum history_answer history_take(struct history *history, const Cairn__V1__ReadMetricsReply *page)
{
    if (is_outdated(history, page) || go_back(history, page))
        return HISTORY_MORE;
    if (history->count > 0 && history->count + page->n_rows > HISTORY_ROWS_MAX) {
        history->count = 0;
        history->next_step = 0;
        history->rewinds++;
        return HISTORY_MORE;
    }
    const size_t keep =
        page->n_rows > 0 ? history_find(history, page->rows[0]->step) : history->count;
    if (!make_room(history, keep, page->n_rows))
        return HISTORY_NO_MEMORY;
    for (size_t i = 0; i < page->n_rows; i++)
        history->rows[keep + i] = row_of(page->rows[i]);
    history->count = keep + page->n_rows;
    history->next_step = page->next_step;
    if (page->more)
        return HISTORY_MORE;
    settle(history, page->base_step);
    return HISTORY_WHOLE;
}
