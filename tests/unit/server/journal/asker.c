#include "tests/unit/server/journal/asker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "server/render/render.h"
#include "tests/test.h"

static const char *const questions[ASKER_QUESTIONS] = { "why", "show", "metrics, a page" };
static const char *const jobs[ASKER_JOBS] = { "live", "ended lately", "ended long ago",
                                              "forgotten" };

/* A question on its way: begun with what the core knows, as the handlers of server/api do. */
struct asking {
    enum asker_question question;
    struct render_history of;
    struct explain *explain; /* of WHY */
    Cairn__V1__Job *shown;   /* of SHOW */
};

struct asker *asker_open(struct coord_world *w)
{
    struct asker *asker = calloc(1, sizeof(*asker));
    assert_non_null(asker);
    asker->w = w;
    struct coord_options options = { .clock = &w->clock, .log = &w->log };
    assert_int_equal(journal_open_beside(w->path, &asker->journal), ST_OK);
    options.journal = asker->journal;
    assert_int_equal(coord_reader_new(&options, &asker->reader), ST_OK);
    return asker;
}

void asker_close(struct asker *asker)
{
    rows_release(&asker->rows);
    coord_free(asker->reader);
    journal_close(asker->journal);
    free(asker);
}

/* ---- one question ---- */

static void take(struct asking *asking, const struct coord *coord, struct coord_job *job)
{
    asking->of = render_history_of(job);
    if (asking->question == ASKER_WHY) {
        asking->explain = explain_begin(coord, job, true);
        assert_non_null(asking->explain);
    } else if (asking->question == ASKER_SHOW) {
        asking->shown = render_job(coord, job, RENDER_CKPTS);
        assert_non_null(asking->shown);
    }
}

static void take_read(void *arg, struct coord_job *job)
{
    take(arg, NULL, job);
}

/* Begins an answer; false: nobody knows the job. */
static bool begin(struct asker *asker, const char *id, struct asking *asking)
{
    char found[16];
    struct coord_job *job = NULL;
    const enum status st = coord_seek(asker->w->coord, id, found, &job);
    if (st == ST_NOT_FOUND)
        return false;
    assert_int_equal(st, ST_OK);
    assert_string_equal(found, id);
    if (job != NULL) {
        take(asking, asker->w->coord, job);
    } else {
        assert_int_equal(coord_look(asker->reader, id, take_read, asking), ST_OK);
    }
    assert_string_equal(asking->of.job, id);
    return true;
}

/* Writes an answer as it is sent; returns its size. */
static size_t pack(const ProtobufCMessage *message)
{
    const size_t size = protobuf_c_message_get_packed_size(message);
    assert_in_range(size, 1, LIMIT_MESSAGE_BYTES);
    uint8_t *data = malloc(size);
    assert_non_null(data);
    assert_int_equal(protobuf_c_message_pack(message, data), size);
    free(data);
    return size;
}

static void note(struct asker *asker, enum asker_question question, enum asker_job job,
                 int64_t begin_ns, size_t bytes)
{
    struct asker_series *series = &asker->asked[question][job];
    const int64_t end_ns = clock_mono_ns();
    assert_true(series->count < ASKER_MAX);
    series->ms[series->count++] = (double)(end_ns - begin_ns) / 1e6;
    if (bytes > series->bytes_max)
        series->bytes_max = bytes;
}

/* ---- what the commands ask for ---- */

static bool ask_why(struct asker *asker, const char *id, enum asker_job job)
{
    struct asking asking = { .question = ASKER_WHY };
    Cairn__V1__ExplainJobReply *out = NULL;
    const int64_t at = clock_mono_ns();
    if (!begin(asker, id, &asking)) {
        note(asker, ASKER_WHY, ASKER_FORGOTTEN, at, 0);
        return false;
    }
    assert_int_equal(explain_end(asking.explain, asker->journal, &out), ST_OK);
    const size_t size = pack(&out->base);
    note(asker, ASKER_WHY, job, at, size);
    assert_string_equal(out->job->id, id);
    assert_non_null(strstr(out->text, id));
    assert_null(strstr(out->text, "The journal can't be read"));
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
    return true;
}

static bool ask_show(struct asker *asker, const char *id, enum asker_job job)
{
    struct asking asking = { .question = ASKER_SHOW };
    const int64_t at = clock_mono_ns();
    if (!begin(asker, id, &asking)) {
        note(asker, ASKER_SHOW, ASKER_FORGOTTEN, at, 0);
        return false;
    }
    assert_int_equal(render_history(&asking.of, asker->journal, asking.shown), ST_OK);
    const size_t size = pack(&asking.shown->base);
    note(asker, ASKER_SHOW, job, at, size);
    assert_string_equal(asking.shown->id, id);
    assert_in_range(asking.shown->n_events, 1, RENDER_EVENTS);
    assert_in_range(asking.shown->n_recoveries, 0, RENDER_RECOVERIES);
    cairn__v1__job__free_unpacked(asking.shown, NULL);
    return true;
}

/* Asks for all pages, none of which was read ahead; each is a question. */
static bool ask_metrics(struct asker *asker, const char *id, enum asker_job job)
{
    size_t total = 0;
    uint64_t from_step = 0;
    Cairn__V1__ReadMetricsReply out = CAIRN__V1__READ_METRICS_REPLY__INIT;
    do {
        struct asking asking = { .question = ASKER_METRICS };
        const int64_t at = clock_mono_ns();
        if (!begin(asker, id, &asking)) {
            note(asker, ASKER_METRICS, ASKER_FORGOTTEN, at, 0);
            return false;
        }
        rows_forget(&asker->rows);
        assert_int_equal(rows_read(&asker->rows, asker->journal, id, from_step), ST_OK);
        rows_put(&asker->rows, &out);
        out.generation = asking.of.generation;
        note(asker, ASKER_METRICS, job, at, pack(&out.base));
        assert_in_range(asker->rows.count, 1, ROWS_PAGE);
        assert_true(out.next_step > from_step);
        from_step = out.next_step;
        total += asker->rows.count;
    } while (out.more);
    assert_true(total <= LIMIT_METRIC_ROWS);
    return true;
}

bool asker_ask(struct asker *asker, const char *id, enum asker_job job)
{
    const bool known = ask_why(asker, id, job);
    assert_int_equal(ask_show(asker, id, job), known);
    assert_int_equal(ask_metrics(asker, id, job), known);
    return known;
}

/* ---- what it took ---- */

static int compare_ms(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void asker_print(struct asker *asker)
{
    for (int question = 0; question < ASKER_QUESTIONS; question++) {
        for (int job = 0; job < ASKER_JOBS; job++) {
            struct asker_series *series = &asker->asked[question][job];
            if (series->count == 0)
                continue;
            qsort(series->ms, series->count, sizeof(series->ms[0]), compare_ms);
            (void)printf("# %-15s %-14s: %4zu answers, median %7.3f ms, longest %7.3f ms, at most "
                         "%7zu bytes\n",
                         questions[question], jobs[job], series->count,
                         series->ms[series->count / 2], series->ms[series->count - 1],
                         series->bytes_max);
        }
    }
}
