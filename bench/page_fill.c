/*
 * Program `page_fill`: the journal of bench/page. Copies a job that a coordinator wrote, and that
 * has ended, under other ids, and gives each copy what a long one has: GENERATIONS, EVENTS,
 * CHECKPOINTS and rows of metrics, a block of them at a time, as they come from a trainer. All of
 * it goes through the journal's own calls, so that it thins rows as it does for the coordinator.
 *
 *   page_fill [--jobs N] [--rows N] [--block N] JOURNAL ENDED [JOB...]
 *
 * Each JOB, which may live, gets the rows alone. No coordinator has the journal meanwhile. Prints
 * how many rows a job has in the end.
 */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cairn/v1/control.pb-c.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "server/journal/journal.h"

enum {
    GENERATIONS = 64, /* all that GetJob shows of each */
    EVENTS = 1000,
    CHECKPOINTS = 100,
    EVAL_EVERY = 500,
    PHASES = 6,
    STEP_MS = 100,
    ROW_BYTES = 256,
    ID_BITS = 50,
    OTHER_EVENT = 10 /* every so many; those between are saves */
};
#define HOUR_MS 3600000

/* ---- rows ---- */

struct rows {
    struct journal_metric *list;
    uint8_t *bytes;
    size_t count;
};

/* A curve with noise, always the same. */
static double noise(uint64_t step, double of)
{
    return fmod(fabs(sin(12.9898 * (double)step + of) * 43758.5453), 1.0) - 0.5;
}

static size_t pack_row(uint64_t step, size_t count, int64_t end_ms, uint8_t *out)
{
    static const char *const names[PHASES] = { "data",          "forward",   "backward",
                                               "communication", "optimizer", "snapshot" };
    static const double parts[PHASES] = { 0.04, 0.28, 0.44, 0.14, 0.08, 0.02 };
    const double ms = STEP_MS * (1 + 0.2 * noise(step, 1));
    const double done = (double)step / (double)count;
    Cairn__V1__Phase phases[PHASES], *pointers[PHASES];
    for (size_t i = 0; i < PHASES; i++) {
        phases[i] = (Cairn__V1__Phase)CAIRN__V1__PHASE__INIT;
        phases[i].name = (char *)(uintptr_t)names[i];
        phases[i].ms = ms * parts[i] * (1 + 0.1 * noise(step, (double)i));
        pointers[i] = &phases[i];
    }
    Cairn__V1__Eval eval = CAIRN__V1__EVAL__INIT;
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
    row.step = step;
    row.epoch = (double)step / 1875;
    row.loss = (float)(0.3 + 2 * exp(-6 * done) + 0.1 * noise(step, 2));
    row.lr = (float)(0.01 * (1 - done));
    row.grad_norm = (float)(1 + 0.4 * noise(step, 3));
    row.samples_per_s = 32e3 / ms;
    row.step_ms = ms;
    row.phases = pointers;
    row.n_phases = PHASES;
    row.generation = (uint32_t)(1 + (step - 1) * GENERATIONS / count);
    row.wall_ms = end_ms - (int64_t)(count - step) * STEP_MS;
    if (step % EVAL_EVERY == 0) {
        eval.loss = (double)row.loss + 0.05;
        eval.accuracy = 1 - 0.3 * (double)row.loss;
        eval.correct = (uint64_t)(1e4 * eval.accuracy);
        eval.count = 10000;
        row.eval = &eval;
        row.eval__case = CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    }
    CHECK(cairn__v1__metric_row__get_packed_size(&row) <= ROW_BYTES);
    return cairn__v1__metric_row__pack(&row, out);
}

static struct rows make_rows(size_t count, int64_t end_ms)
{
    struct rows rows = { .list = calloc(count, sizeof(*rows.list)),
                         .bytes = malloc(count * ROW_BYTES),
                         .count = count };
    CHECK(rows.list != NULL && rows.bytes != NULL);
    uint8_t *at = rows.bytes;
    for (size_t i = 0; i < count; i++) {
        const size_t size = pack_row(i + 1, count, end_ms, at);
        rows.list[i] = (struct journal_metric){
            .step = i + 1, .eval = (i + 1) % EVAL_EVERY == 0, .data = at, .size = size
        };
        at += size;
    }
    return rows;
}

static void put_rows(struct journal *journal, const char *id, const struct rows *rows, size_t block)
{
    for (size_t at = 0; at < rows->count; at += block) {
        const size_t left = rows->count - at;
        CHECK(journal_put_metrics(journal, id, rows->list + at, left < block ? left : block) ==
              ST_OK);
    }
}

static bool count_row(void *arg, uint64_t step, const void *row, size_t size)
{
    (void)step;
    (void)row;
    (void)size;
    ++*(size_t *)arg;
    return true;
}

/* ---- the job that is copied ---- */

struct model {
    struct journal_job job;
    Cairn__V1__Job *summary;
    struct journal_generation generations[GENERATIONS];
    struct journal_event events[EVENTS], saved;
    struct fsm_ckpt ckpts[CHECKPOINTS];
    struct fsm_rank_row ranks[LIMIT_RANKS];
    size_t generation_count, event_count, ckpt_count, rank_count;
};

/* Copies a text, for the program's life. */
static char *copy(const char *text)
{
    char *made = strdup(text);
    CHECK(made != NULL);
    return made;
}

static bool take_job(void *arg, const struct journal_job *job)
{
    struct model *model = arg;
    model->job = *job;
    model->job.id = copy(job->id);
    model->job.name = copy(job->name);
    model->job.job_file = copy(job->job_file);
    model->job.pins = copy(job->pins);
    model->job.state = copy(job->state);
    return true;
}

static bool take_summary(void *arg, const char *id, const void *row, size_t size)
{
    struct model *model = arg;
    if (strcmp(id, model->job.id) == 0 && size > 0)
        model->summary = cairn__v1__job__unpack(NULL, size, row);
    return model->summary == NULL;
}

static bool take_generation(void *arg, const struct journal_generation *row)
{
    struct model *model = arg;
    struct journal_generation *out = &model->generations[model->generation_count++];
    *out = *row;
    out->nodes = copy(row->nodes);
    out->numbers = copy(row->numbers);
    out->cause = copy(row->cause);
    out->message = copy(row->message);
    out->recovery = copy(row->recovery);
    return model->generation_count < GENERATIONS;
}

static bool take_event(void *arg, const struct journal_event *event)
{
    struct model *model = arg;
    struct journal_event *out = &model->events[model->event_count++];
    *out = *event;
    out->kind = copy(event->kind);
    out->message = copy(event->message);
    if (strcmp(out->kind, "saved") == 0)
        model->saved = *out;
    return model->event_count < EVENTS;
}

static bool take_ckpt(void *arg, const struct fsm_ckpt *ckpt)
{
    struct model *model = arg;
    model->ckpts[model->ckpt_count++] = *ckpt;
    return model->ckpt_count < CHECKPOINTS;
}

static bool take_rank(void *arg, uint32_t rank, const struct fsm_rank_row *row)
{
    struct model *model = arg;
    CHECK(rank == model->rank_count);
    model->ranks[model->rank_count++] = *row;
    return model->rank_count < LIMIT_RANKS;
}

/* false: that job doesn't do; why was said. */
static bool load_model(struct journal *journal, const char *id, struct model *model)
{
    if (journal_get_job(journal, id, take_job, model) != ST_OK ||
        model->job.ended != JOURNAL_OVER) {
        (void)fprintf(stderr, "page_fill: %s isn't a job for which nothing is left to do\n", id);
        return false;
    }
    CHECK(journal_list_jobs(journal, "", JOURNAL_JOBS_MAX, take_summary, model) == ST_OK);
    CHECK(journal_each_generation(journal, id, UINT32_MAX, take_generation, model) == ST_OK);
    CHECK(journal_each_event(journal, id, EVENTS, take_event, model) == ST_OK);
    CHECK(journal_each_ckpt(journal, id, take_ckpt, model) == ST_OK);
    CHECK(journal_each_rank(journal, id, take_rank, model) == ST_OK);
    const bool does = model->summary != NULL && model->generation_count > 1 &&
                      model->ckpt_count > 0 && model->saved.kind != NULL;
    if (!does)
        (void)fprintf(stderr, "page_fill: %s had no recovery, or has no checkpoint\n", id);
    return does;
}

/* ---- its copies ---- */

/* A copy that is to be made: how long before the copied job it began, and its number of steps. */
struct made {
    char id[16], name[64];
    int64_t seq, earlier_ms;
    uint64_t steps;
};

/* Makes an id of a seq as the coordinator does: the upper bits are milliseconds. */
static struct made make_one(const struct model *model, unsigned number, uint64_t steps)
{
    static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz";
    struct made made = { .earlier_ms = (int64_t)number * HOUR_MS + 25 * HOUR_MS, .steps = steps };
    made.seq = model->job.seq - (made.earlier_ms << 9);
    (void)snprintf(made.id, sizeof(made.id), "j-");
    for (int i = 0; i < ID_BITS / 5; i++)
        made.id[2 + i] = digits[(uint64_t)made.seq >> (ID_BITS - 5 - 5 * i) & 31];
    (void)snprintf(made.name, sizeof(made.name), "%.40s-%03u", model->job.name, number);
    return made;
}

static void set_number(json_t *object, const char *key, int64_t value)
{
    CHECK(json_object_get(object, key) != NULL);
    CHECK(json_object_set_new(object, key, json_integer(value)) == 0);
}

static void set_earlier(json_t *object, const char *key, int64_t ms)
{
    set_number(object, key, json_integer_value(json_object_get(object, key)) - ms);
}

/* The caller frees it. */
static char *state_of(const struct model *model, const struct made *made)
{
    static const char *const times[] = { "since_wall", "submitted_wall", "started_wall",
                                         "ended_wall" };
    json_t *state = json_loads(model->job.state, 0, NULL);
    CHECK(state != NULL);
    set_number(state, "step_max", (int64_t)made->steps);
    set_number(state, "total_steps", (int64_t)made->steps);
    set_number(state, "generation", GENERATIONS);
    set_number(state, "restarts", GENERATIONS - 1);
    set_number(state, "recoveries", GENERATIONS - 1);
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        set_earlier(state, times[i], made->earlier_ms);
    char *text = json_dumps(state, JSON_COMPACT);
    CHECK(text != NULL);
    json_decref(state);
    return text;
}

/* Returns the recovery before that generation; the caller frees it. */
static char *recovery_of(const char *text, unsigned generation, const struct made *made)
{
    if (text[0] == '\0')
        return copy("");
    json_t *recovery = json_loads(text, 0, NULL);
    CHECK(recovery != NULL);
    const int64_t mark = (int64_t)((generation - 1) * made->steps / GENERATIONS);
    set_number(recovery, "generation", generation);
    set_number(recovery, "ended", generation - 1);
    set_number(recovery, "mark", mark);
    set_number(recovery, "step", mark > 3 ? mark - 3 : 0);
    set_earlier(recovery, "wall_ms", made->earlier_ms);
    char *out = json_dumps(recovery, JSON_COMPACT);
    CHECK(out != NULL);
    json_decref(recovery);
    return out;
}

static void put_generations(struct journal *journal, const struct model *model,
                            const struct made *made)
{
    for (unsigned n = 1; n <= GENERATIONS; n++) {
        const size_t of = n == 1 ? 0 : 1 + (n - 2) % (model->generation_count - 1);
        struct journal_generation row = model->generations[of];
        auto_free char *recovery = recovery_of(row.recovery, n, made);
        row.generation = n;
        row.begin_ms -= made->earlier_ms;
        row.end_ms -= made->earlier_ms;
        row.restore_step = (n - 1) * made->steps / GENERATIONS;
        row.end_step = n * made->steps / GENERATIONS;
        row.recovery = recovery;
        CHECK(journal_put_generation(journal, made->id, &row) == ST_OK);
        CHECK(journal_end_generation(journal, made->id, &row) == ST_OK);
    }
}

static void put_history(struct journal *journal, const struct model *model, const struct made *made)
{
    for (size_t i = 0; i < EVENTS; i++) {
        struct journal_event event = i % OTHER_EVENT == 0
                                         ? model->events[i / OTHER_EVENT % model->event_count]
                                         : model->saved;
        event.wall_ms -= made->earlier_ms;
        event.generation = (uint32_t)(1 + i * GENERATIONS / EVENTS);
        event.step = i * made->steps / EVENTS;
        CHECK(journal_put_event(journal, made->id, &event) == ST_OK);
    }
    for (size_t i = 0; i < CHECKPOINTS; i++) {
        struct fsm_ckpt ckpt = model->ckpts[i % model->ckpt_count];
        ckpt.step = (i + 1) * made->steps / CHECKPOINTS;
        ckpt.generation = (uint32_t)(1 + i * GENERATIONS / CHECKPOINTS);
        ckpt.wall_ms -= made->earlier_ms;
        CHECK(journal_put_ckpt(journal, made->id, &ckpt) == ST_OK);
    }
    for (size_t i = 0; i < model->rank_count; i++)
        CHECK(journal_put_rank(journal, made->id, (uint32_t)i, &model->ranks[i]) == ST_OK);
}

/* RFC 3339, of so long before; the caller frees it. */
static char *earlier(const char *text, int64_t ms)
{
    struct tm tm = { 0 };
    char out[32] = "";
    if (strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) == NULL)
        return copy(text);
    const time_t at = timegm(&tm) - ms / 1000;
    CHECK(gmtime_r(&at, &tm) != NULL);
    CHECK(strftime(out, sizeof(out), "%Y-%m-%dT%H:%M:%S.000Z", &tm) > 0);
    return copy(out);
}

static void put_ended(struct journal *journal, const struct model *model, const struct made *made)
{
    const size_t size = cairn__v1__job__get_packed_size(model->summary);
    auto_free uint8_t *bytes = malloc(size);
    CHECK(bytes != NULL);
    (void)cairn__v1__job__pack(model->summary, bytes);
    Cairn__V1__Job *job = cairn__v1__job__unpack(NULL, size, bytes);
    CHECK(job != NULL);
    char **const texts[] = { &job->id, &job->name, &job->submitted_at, &job->started_at,
                             &job->ended_at };
    char *const values[] = { copy(made->id), copy(made->name),
                             earlier(job->submitted_at, made->earlier_ms),
                             earlier(job->started_at, made->earlier_ms),
                             earlier(job->ended_at, made->earlier_ms) };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        free(*texts[i]);
        *texts[i] = values[i];
    }
    job->step = job->total_steps = made->steps;
    job->generation = GENERATIONS;
    job->restarts = job->recovery_count = GENERATIONS - 1;
    const size_t packed = cairn__v1__job__get_packed_size(job);
    auto_free uint8_t *row = malloc(packed);
    CHECK(row != NULL);
    (void)cairn__v1__job__pack(job, row);
    CHECK(journal_put_ended(journal, made->id, model->job.ended, row, packed) == ST_OK);
    cairn__v1__job__free_unpacked(job, NULL);
}

static void put_copy(struct journal *journal, const struct model *model, const struct made *made)
{
    auto_free char *state = state_of(model, made);
    struct journal_job job = model->job;
    job.id = made->id;
    job.name = made->name;
    job.seq = made->seq;
    job.state = state;
    CHECK(journal_put_job(journal, &job) == ST_OK);
    put_generations(journal, model, made);
    put_history(journal, model, made);
    put_ended(journal, model, made);
}

/* ---- the program ---- */

struct arguments {
    unsigned jobs;
    size_t rows, block;
};

static bool take_arguments(struct arguments *a, int argc, char **argv)
{
    static const struct option options[] = { { "jobs", required_argument, NULL, 'j' },
                                             { "rows", required_argument, NULL, 'r' },
                                             { "block", required_argument, NULL, 'b' },
                                             { NULL, 0, NULL, 0 } };
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j') {
            a->jobs = (unsigned)strtoul(optarg, NULL, 10);
        } else if (option == 'r') {
            a->rows = strtoul(optarg, NULL, 10);
        } else if (option == 'b') {
            a->block = strtoul(optarg, NULL, 10);
        } else {
            return false;
        }
    }
    return a->rows > 0 && a->block > 0 && argc - optind >= 2;
}

static void fill(struct journal *journal, const struct model *model, const struct arguments *a,
                 char **others)
{
    struct rows rows = make_rows(a->rows, model->generations[model->generation_count - 1].begin_ms);
    size_t kept = 0;
    for (unsigned i = 0; i < a->jobs; i++) {
        const struct made made = make_one(model, i, a->rows);
        CHECK(journal_begin(journal) == ST_OK);
        put_copy(journal, model, &made);
        put_rows(journal, made.id, &rows, a->block);
        CHECK(journal_commit(journal) == ST_OK);
        if (i == 0)
            CHECK(journal_each_metric(journal, made.id, 0, UINT32_MAX, count_row, &kept) == ST_OK);
    }
    for (; *others != NULL; others++) {
        CHECK(journal_begin(journal) == ST_OK);
        put_rows(journal, *others, &rows, a->block);
        CHECK(journal_commit(journal) == ST_OK);
    }
    (void)printf("%zu\n", kept);
    free(rows.list);
    free(rows.bytes);
}

int main(int argc, char **argv)
{
    struct arguments a = { .jobs = 200, .rows = 100000, .block = 10 };
    struct journal *journal = NULL;
    if (!take_arguments(&a, argc, argv)) {
        (void)fputs("usage: page_fill [--jobs N] [--rows N] [--block N] JOURNAL ENDED [JOB...]\n",
                    stderr);
        return 2;
    }
    const enum status st = journal_open(argv[optind], &journal);
    if (st != ST_OK) {
        (void)fprintf(stderr, "page_fill: %s: %s\n", argv[optind], status_string(st));
        return 1;
    }
    struct model *model = calloc(1, sizeof(*model));
    CHECK(model != NULL);
    const bool loaded = load_model(journal, argv[optind + 1], model);
    if (loaded)
        fill(journal, model, &a, argv + optind + 2);
    journal_close(journal);
    return loaded ? 0 : 1;
}
