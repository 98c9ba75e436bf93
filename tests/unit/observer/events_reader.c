/* TensorBoard's readers (events_reader.h). */
#include "events_reader.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "observer/tensorboard/event.pb-c.h"
#include "observer/tensorboard/record.h"
#include "tests/test.h"

#define FILE_MAX (64 << 20)

static void make_room(struct reader_curve *curve, uint64_t step)
{
    const uint64_t old = curve->steps;
    if (step < old)
        return;
    curve->steps = old < 64 ? 128 : 2 * old;
    curve->there = realloc(curve->there, curve->steps * sizeof(*curve->there));
    curve->value = realloc(curve->value, curve->steps * sizeof(*curve->value));
    assert_true(curve->there != NULL && curve->value != NULL);
    memset(curve->there + old, 0, (curve->steps - old) * sizeof(*curve->there));
    make_room(curve, step);
}

static struct reader_curve *curve_of(struct events *events, enum reader_kind kind, const char *tag,
                                     bool make)
{
    for (int i = 0; i < READER_TAGS; i++) {
        struct reader_curve *curve = &events->curve[kind][i];
        if (curve->there == NULL) {
            if (!make)
                return NULL;
            (void)snprintf(curve->tag, sizeof(curve->tag), "%s", tag);
            make_room(curve, 0);
        }
        if (strcmp(curve->tag, tag) == 0)
            return curve;
    }
    fail_msg("too many tags");
    return NULL;
}

static void drop_from(struct reader_curve *curve, uint64_t step)
{
    for (uint64_t s = step; s <= curve->newest; s++)
        curve->there[s] = false;
    curve->newest = curve->newest < step ? curve->newest : step - 1;
}

static void put_point(struct reader_curve *curve, uint64_t step, float value)
{
    make_room(curve, step);
    curve->there[step] = true;
    curve->value[step] = value;
    curve->newest = step > curve->newest ? step : curve->newest;
}

static void take_values(struct events *events, const Tensorboard__Event *event)
{
    const uint64_t step = (uint64_t)event->step;
    for (size_t i = 0; i < event->summary->n_value; i++) {
        const Tensorboard__Summary__Value *value = event->summary->value[i];
        const bool number = value->value_case == TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
        struct reader_curve *rust = curve_of(events, READER_RUST, value->tag, true);
        drop_from(rust, step);
        if (number) {
            struct reader_curve *python = curve_of(events, READER_PYTHON, value->tag, true);
            put_point(rust, step, value->simple_value);
            events->twice += step < python->steps && python->there[step];
            put_point(python, step, value->simple_value);
        } else {
            assert_string_equal(value->metadata->plugin_data->plugin_name, "scalars");
        }
    }
}

static void take_start(struct events *events, uint64_t step)
{
    for (int i = 0; i < READER_TAGS && events->starts > 0; i++) {
        if (events->curve[READER_PYTHON][i].there != NULL)
            drop_from(&events->curve[READER_PYTHON][i], step);
    }
    events->starts++;
}

static void take_event(struct events *events, const void *data, size_t size, bool first)
{
    Tensorboard__Event *event = tensorboard__event__unpack(NULL, size, data);
    assert_non_null(event);
    assert_int_equal(event->what_case == TENSORBOARD__EVENT__WHAT_FILE_VERSION, first);
    assert_true(first || (event->step > 0 && event->step < READER_STEPS));
    if (event->what_case == TENSORBOARD__EVENT__WHAT_SUMMARY) {
        assert_true(events->starts > 0);
        take_values(events, event);
    } else if (event->what_case == TENSORBOARD__EVENT__WHAT_SESSION_LOG) {
        assert_int_equal(event->session_log->status, TENSORBOARD__SESSION_LOG__STATUS__START);
        take_start(events, (uint64_t)event->step);
    } else {
        assert_string_equal(event->file_version, "brain.Event:2");
    }
    events->events++;
    tensorboard__event__free_unpacked(event, NULL);
}

static int is_events(const struct dirent *entry)
{
    return strstr(entry->d_name, "tfevents") != NULL;
}

struct events *events_read(const char *folder)
{
    struct events *events = calloc(1, sizeof(*events));
    struct dirent **list = NULL;
    assert_non_null(events);
    const int count = scandir(folder, &list, is_events, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        auto_free char *data = NULL;
        const void *record = NULL;
        size_t size = 0, at = 0, record_size = 0;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, list[i]->d_name);
        assert_int_equal(io_read_file(io_system(), path, FILE_MAX, &data, &size), ST_OK);
        for (bool first = true; tensorboard_record_next(data, size, &at, &record, &record_size);
             first = false)
            take_event(events, record, record_size, first);
        events->torn += at < size;
        events->files++;
        free(list[i]);
    }
    free(list);
    return events;
}

void events_free(struct events *events)
{
    for (int i = 0; i < READERS * READER_TAGS; i++) {
        free(events->curve[i / READER_TAGS][i % READER_TAGS].there);
        free(events->curve[i / READER_TAGS][i % READER_TAGS].value);
    }
    free(events);
}

uint32_t events_count(const struct events *events, enum reader_kind kind, const char *tag)
{
    uint32_t count = 0;
    for (uint64_t step = 0; step < READER_STEPS; step++)
        count += events_has(events, kind, tag, step);
    return count;
}

bool events_has(const struct events *events, enum reader_kind kind, const char *tag, uint64_t step)
{
    const struct reader_curve *curve = curve_of((struct events *)events, kind, tag, false);
    return curve != NULL && step < curve->steps && curve->there[step];
}

double events_value(const struct events *events, enum reader_kind kind, const char *tag,
                    uint64_t step)
{
    const struct reader_curve *curve = curve_of((struct events *)events, kind, tag, false);
    assert_true(events_has(events, kind, tag, step));
    return (double)curve->value[step];
}
