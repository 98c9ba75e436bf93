#include "observer/curves/reduce.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#define AT(member) offsetof(struct history_row, member)

enum fold { FOLD_MEAN, FOLD_MIN, FOLD_MAX };

/* The columns that are float in a row. */
static const struct series {
    const char *name;
    size_t offset;
    enum fold fold;
} series[] = {
    { "loss", AT(loss), FOLD_MEAN },
    { "loss_min", AT(loss), FOLD_MIN },
    { "loss_max", AT(loss), FOLD_MAX },
    { "lr", AT(lr), FOLD_MEAN },
    { "grad_norm", AT(grad_norm), FOLD_MEAN },
    { "grad_norm_max", AT(grad_norm), FOLD_MAX },
    { "samples_per_second", AT(samples_per_s), FOLD_MEAN },
    { "seconds", AT(seconds), FOLD_MEAN },
    { "seconds_max", AT(seconds), FOLD_MAX },
    { "data_seconds", AT(phases[HISTORY_DATA]), FOLD_MEAN },
    { "forward_seconds", AT(phases[HISTORY_FORWARD]), FOLD_MEAN },
    { "backward_seconds", AT(phases[HISTORY_BACKWARD]), FOLD_MEAN },
    { "communication_seconds", AT(phases[HISTORY_COMMUNICATION]), FOLD_MEAN },
    { "optimizer_seconds", AT(phases[HISTORY_OPTIMIZER]), FOLD_MEAN },
    { "snapshot_seconds", AT(phases[HISTORY_SNAPSHOT]), FOLD_MEAN },
};

/* Rows from `from` up to `to`, and how they are joined. */
struct part {
    const struct history_row *rows;
    size_t count, points;
};

static size_t begin_of(const struct part *part, size_t point)
{
    return point * part->count / part->points;
}

static float value_at(const struct history_row *row, size_t offset)
{
    return *(const float *)(const void *)((const char *)row + offset);
}

/* NaN: none of them is known. */
static double fold(const struct part *part, size_t point, const struct series *one)
{
    const size_t end = begin_of(part, point + 1);
    double sum = 0, low = (double)INFINITY, high = -(double)INFINITY;
    size_t known = 0;
    for (size_t i = begin_of(part, point); i < end; i++) {
        const double value = (double)value_at(&part->rows[i], one->offset);
        if (!isfinite(value))
            continue;
        known++;
        sum += value;
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    if (known == 0)
        return (double)NAN;
    switch (one->fold) {
    case FOLD_MEAN:
        return sum / (double)known;
    case FOLD_MIN:
        return low;
    case FOLD_MAX:
        return high;
    }
    return (double)NAN;
}

static enum status put_number(struct buf *out, size_t at, double value)
{
    const char *comma = at > 0 ? "," : "";
    return isfinite(value) ? buf_printf(out, "%s%.7g", comma, value)
                           : buf_printf(out, "%snull", comma);
}

static enum status put_series(const struct part *part, const struct series *one, struct buf *out)
{
    enum status st = buf_printf(out, ",\"%s\":[", one->name);
    for (size_t i = 0; st == ST_OK && i < part->points; i++)
        st = put_number(out, i, fold(part, i, one));
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

/* The columns that say which step, of the last row of each point. */
static enum status put_places(const struct part *part, struct buf *out)
{
    static const char *const names[] = { "step", "generation", "unix_seconds", "epoch" };
    enum status st = ST_OK;
    for (size_t column = 0; st == ST_OK && column < 4; column++) {
        st = buf_printf(out, "%s\"%s\":[", column > 0 ? "," : "", names[column]);
        for (size_t i = 0; st == ST_OK && i < part->points; i++) {
            const struct history_row *row = &part->rows[begin_of(part, i + 1) - 1];
            const char *comma = i > 0 ? "," : "";
            if (column == 0) {
                st = buf_printf(out, "%s%" PRIu64, comma, row->step);
            } else if (column == 1) {
                st = buf_printf(out, "%s%" PRIu32, comma, row->generation);
            } else if (column == 2) {
                st = buf_printf(out, "%s%.3f", comma, row->unix_s);
            } else {
                st = put_number(out, i, row->epoch);
            }
        }
        if (st == ST_OK)
            st = buf_append_text(out, "]");
    }
    return st;
}

static enum status put_eval(const struct part *part, const char *name, size_t offset,
                            struct buf *out)
{
    size_t put = 0;
    enum status st = buf_printf(out, "%s\"%s\":[", offset == AT(step) ? "" : ",", name);
    for (size_t i = 0; st == ST_OK && i < part->count; i++) {
        const struct history_row *row = &part->rows[i];
        if (!isfinite(row->eval_loss) && !isfinite(row->eval_accuracy))
            continue;
        if (offset == AT(step)) {
            st = buf_printf(out, "%s%" PRIu64, put > 0 ? "," : "", row->step);
        } else {
            st = put_number(out, put, (double)value_at(row, offset));
        }
        put++;
    }
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

/* An id has nothing but letters, digits and '-'; of anything else the JSON stays JSON. */
static enum status put_id(struct buf *out, const char *id)
{
    enum status st = buf_append_text(out, "{\"job\":\"");
    for (; st == ST_OK && *id != '\0'; id++) {
        const bool plain = *id > ' ' && *id <= '~' && *id != '"' && *id != '\\';
        st = buf_append(out, plain ? id : "?", 1);
    }
    return st;
}

enum status reduce_json(const struct history *history, const char *job, size_t from, size_t to,
                        size_t points, struct buf *out)
{
    const size_t most = points < REDUCE_POINTS_MAX ? points : REDUCE_POINTS_MAX;
    struct part part = { .rows = to > from ? history->rows + from : NULL,
                         .count = to > from ? to - from : 0 };
    part.points = part.count < most ? part.count : most;
    enum status st = put_id(out, job);
    if (st == ST_OK) {
        st = buf_printf(out, "\",\"rows\":%zu,\"next_step\":%" PRIu64 ",\"columns\":{",
                        history->count, history->next_step);
    }
    if (st == ST_OK)
        st = put_places(&part, out);
    for (size_t i = 0; st == ST_OK && i < sizeof(series) / sizeof(series[0]); i++)
        st = put_series(&part, &series[i], out);
    if (st == ST_OK)
        st = buf_append_text(out, "},\"evals\":{");
    if (st == ST_OK)
        st = put_eval(&part, "step", AT(step), out);
    if (st == ST_OK)
        st = put_eval(&part, "loss", AT(eval_loss), out);
    if (st == ST_OK)
        st = put_eval(&part, "accuracy", AT(eval_accuracy), out);
    return st == ST_OK ? buf_append_text(out, "}}") : st;
}
