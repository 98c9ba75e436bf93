/* Rows as events (curve.h). What is written is added to the curve by the code that reads it. */
#include "observer/tensorboard/curve.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/unconst.h"
#include "observer/tensorboard/event.pb-c.h"
#include "observer/tensorboard/record.h"

#define MESSAGE_BYTES 32

static const char *const tags[TENSORBOARD_TAGS] = {
    [TENSORBOARD_LOSS] = "train/loss",
    [TENSORBOARD_VAL_LOSS] = "val/loss",
    [TENSORBOARD_VAL_ACCURACY] = "val/accuracy",
    [TENSORBOARD_LR] = "optim/lr",
    [TENSORBOARD_GRAD_NORM] = "optim/grad_norm",
    [TENSORBOARD_SAMPLES] = "perf/samples_per_second",
    [TENSORBOARD_STEP] = "time/step",
    [TENSORBOARD_DATA] = "time/data",
    [TENSORBOARD_FORWARD] = "time/forward",
    [TENSORBOARD_BACKWARD] = "time/backward",
    [TENSORBOARD_COMMUNICATION] = "time/communication",
    [TENSORBOARD_OPTIMIZER] = "time/optimizer",
    [TENSORBOARD_SNAPSHOT] = "time/snapshot",
};

/* TENSORBOARD_TAGS: no tag of ours. */
static enum tensorboard_tag tag_of(const char *name)
{
    enum tensorboard_tag tag = TENSORBOARD_LOSS;
    while (tag < TENSORBOARD_TAGS && strcmp(tags[tag], name) != 0)
        tag++;
    return tag;
}

static double phase_seconds(const Cairn__V1__MetricRow *row, enum tensorboard_tag tag)
{
    const char *name = tags[tag] + strlen("time/");
    for (size_t i = 0; i < row->n_phases; i++) {
        if (strcmp(row->phases[i]->name, name) == 0)
            return row->phases[i]->ms / 1e3;
    }
    return (double)NAN;
}

static double value_of(const Cairn__V1__MetricRow *row, enum tensorboard_tag tag)
{
    const bool evaluated = row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    switch (tag) {
    case TENSORBOARD_LOSS:
        return (double)row->loss;
    case TENSORBOARD_VAL_LOSS:
        return evaluated ? row->eval->loss : (double)NAN;
    case TENSORBOARD_VAL_ACCURACY:
        return evaluated ? row->eval->accuracy : (double)NAN;
    case TENSORBOARD_LR:
        return (double)row->lr;
    case TENSORBOARD_GRAD_NORM:
        return (double)row->grad_norm;
    case TENSORBOARD_SAMPLES:
        return row->samples_per_s;
    case TENSORBOARD_STEP:
        return row->step_ms / 1e3;
    case TENSORBOARD_DATA:
    case TENSORBOARD_FORWARD:
    case TENSORBOARD_BACKWARD:
    case TENSORBOARD_COMMUNICATION:
    case TENSORBOARD_OPTIMIZER:
    case TENSORBOARD_SNAPSHOT:
        return phase_seconds(row, tag);
    case TENSORBOARD_TAGS:
        break;
    }
    return (double)NAN;
}

/* ---- what an event says ---- */

static void apply_start(struct tensorboard_curve *curve, const Tensorboard__Event *event)
{
    const Tensorboard__SessionLog *start = event->session_log;
    curve->begun = true;
    curve->step = event->step > 0 ? (uint64_t)event->step - 1 : 0;
    curve->generation = start->generation;
    for (size_t i = 0; i < TENSORBOARD_TAGS; i++)
        curve->newest[i] = i < start->n_newest ? start->newest[i] : 0;
}

static void apply_values(struct tensorboard_curve *curve, const Tensorboard__Event *event)
{
    curve->step = event->step > 0 ? (uint64_t)event->step : 0;
    for (size_t i = 0; i < event->summary->n_value; i++) {
        const Tensorboard__Summary__Value *value = event->summary->value[i];
        const bool number = value->value_case == TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
        const enum tensorboard_tag tag = tag_of(value->tag);
        if (tag < TENSORBOARD_TAGS)
            curve->newest[tag] = number || curve->step == 0 ? curve->step : curve->step - 1;
    }
}

static void apply(struct tensorboard_curve *curve, const Tensorboard__Event *event)
{
    if (event->what_case == TENSORBOARD__EVENT__WHAT_SUMMARY) {
        apply_values(curve, event);
    } else if (event->what_case == TENSORBOARD__EVENT__WHAT_SESSION_LOG &&
               event->session_log->status == TENSORBOARD__SESSION_LOG__STATUS__START) {
        apply_start(curve, event);
    }
}

enum status tensorboard_read_event(struct tensorboard_curve *curve, const void *data, size_t size)
{
    Tensorboard__Event *event = tensorboard__event__unpack(NULL, size, data);
    if (event == NULL)
        return ST_CORRUPT;
    apply(curve, event);
    tensorboard__event__free_unpacked(event, NULL);
    return ST_OK;
}

/* ---- events ---- */

static enum status put(const Tensorboard__Event *event, struct buf *out)
{
    const size_t size = tensorboard__event__get_packed_size(event);
    auto_free uint8_t *data = malloc(size);
    if (data == NULL)
        return ST_NO_MEMORY;
    (void)tensorboard__event__pack(event, data);
    return tensorboard_record_put(out, data, size);
}

static Tensorboard__Event event_of(const Cairn__V1__MetricRow *row)
{
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    event.wall_time = (double)row->wall_ms / 1e3;
    event.step = (int64_t)row->step;
    return event;
}

enum status tensorboard_put_version(const Cairn__V1__MetricRow *row, struct buf *out)
{
    Tensorboard__Event event = event_of(row);
    event.step = 0;
    event.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    event.file_version = unconst("brain.Event:2");
    return put(&event, out);
}

enum status tensorboard_put_start(struct tensorboard_curve *curve, const Cairn__V1__MetricRow *row,
                                  struct buf *out)
{
    char message[MESSAGE_BYTES];
    uint64_t newest[TENSORBOARD_TAGS];
    Tensorboard__Event event = event_of(row);
    Tensorboard__SessionLog start = TENSORBOARD__SESSION_LOG__INIT;
    (void)snprintf(message, sizeof(message), "attempt %" PRIu32, row->generation);
    memcpy(newest, curve->newest, sizeof(newest));
    start.status = TENSORBOARD__SESSION_LOG__STATUS__START;
    start.msg = message;
    start.generation = row->generation;
    start.n_newest = TENSORBOARD_TAGS;
    start.newest = newest;
    event.what_case = TENSORBOARD__EVENT__WHAT_SESSION_LOG;
    event.session_log = &start;
    const enum status st = put(&event, out);
    if (st == ST_OK)
        apply(curve, &event);
    return st;
}

enum status tensorboard_put_row(struct tensorboard_curve *curve, const Cairn__V1__MetricRow *row,
                                struct buf *out)
{
    Tensorboard__Summary__Value values[TENSORBOARD_TAGS], *list[TENSORBOARD_TAGS];
    Tensorboard__Metadata__Plugin plugin = TENSORBOARD__METADATA__PLUGIN__INIT;
    Tensorboard__Metadata scalar = TENSORBOARD__METADATA__INIT;
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    Tensorboard__Event event = event_of(row);
    plugin.plugin_name = unconst("scalars");
    scalar.plugin_data = &plugin;
    scalar.data_class = TENSORBOARD__METADATA__DATA_CLASS__DATA_CLASS_SCALAR;
    summary.value = list;
    for (enum tensorboard_tag tag = TENSORBOARD_LOSS; tag < TENSORBOARD_TAGS; tag++) {
        const double number = value_of(row, tag);
        Tensorboard__Summary__Value *value = &values[summary.n_value];
        if (isnan(number) && curve->newest[tag] < row->step)
            continue;
        tensorboard__summary__value__init(value);
        value->tag = unconst(tags[tag]);
        if (isnan(number)) { /* might be the first of its tag that a reader sees */
            value->metadata = &scalar;
        } else {
            value->value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
            value->simple_value = (float)number;
        }
        list[summary.n_value++] = value;
    }
    event.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    const enum status st = put(&event, out);
    if (st == ST_OK)
        apply(curve, &event);
    return st;
}
