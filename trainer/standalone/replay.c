#include "trainer/standalone/replay.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/store/store.h"
#include "common/cleanup.h"
#include "trainer/loop/loop.h"
#include "trainer/state/state.h"

#define ERRORS_MAX   ((size_t)256 * 1024)
#define PRIORITY     19
#define EXIT_DIFFERS 1
#define EXIT_NO_FILE 3
#define EXIT_REFUSED 4
#define EXIT_DAMAGED 8
#define EXIT_FAILED  10

struct replay {
    const struct replay_options *options;
    struct ckpt_store *store;
    const struct io *io;
    struct ckpt_reader *to;
    struct jobspec *job;
    char *pins; /* of the later checkpoint */
    struct progress progress;
    struct worker *worker;
    uint64_t first, last; /* finished steps */
    bool trains;          /* it came as far as that */
    struct ckpt_hash digest;
    struct reason reason;
};

static enum status fail(struct replay *r, enum status st, const char *what)
{
    if (r->reason.text[0] == '\0')
        reason_set(&r->reason, "%s: %s", what, status_string(st));
    return st;
}

/* ---- what the checkpoints say ---- */

static enum status read_job(struct replay *r)
{
    auto_free char *text = NULL;
    size_t size = 0;
    enum status st = ckpt_read_blob(r->to, "job.yaml", &text, &size);
    if (st != ST_OK)
        return fail(r, st, r->options->to);
    r->job = calloc(1, sizeof(*r->job));
    if (r->job == NULL)
        return ST_NO_MEMORY;
    auto_buf struct buf errors;
    buf_init(&errors, ERRORS_MAX);
    st = jobspec_parse(text, size, "job", "/", NULL, 0, r->job, &errors);
    if (st != ST_OK) {
        reason_set(&r->reason, "%s: its job file: %s", r->options->to,
                   errors.size > 0 ? errors.data : status_string(st));
    }
    if (st == ST_OK && r->job->recovery.exactness == JOBSPEC_EXACTNESS_RELAXED) {
        reason_set(&r->reason, "the job has recovery.exactness: relaxed, so its bits may differ "
                               "from machine to machine");
        return ST_REFUSED;
    }
    return st;
}

static enum status read_first(struct replay *r)
{
    struct ckpt_reader *from = NULL;
    if (r->options->from == NULL)
        return ST_OK;
    enum status st = ckpt_open(r->io, r->options->from, NULL, NULL, &from);
    if (st != ST_OK)
        return fail(r, st, r->options->from);
    const char *job = ckpt_reader_manifest(r->to)->job;
    r->first = ckpt_reader_manifest(from)->step;
    if (strcmp(ckpt_reader_manifest(from)->job, job) != 0) {
        reason_set(&r->reason, "%s is of another job than %s", r->options->from, r->options->to);
        st = ST_REFUSED;
    } else if (r->first >= r->last) {
        reason_set(&r->reason, "step %llu is not before step %llu", (unsigned long long)r->first,
                   (unsigned long long)r->last);
        st = ST_REFUSED;
    }
    ckpt_close(from);
    return st;
}

static enum status read_checkpoints(struct replay *r)
{
    enum status st = ckpt_open(r->io, r->options->to, NULL, NULL, &r->to);
    if (st != ST_OK)
        return fail(r, st, r->options->to);
    r->last = ckpt_reader_manifest(r->to)->step;
    st = read_job(r);
    if (st == ST_OK)
        st = read_first(r);
    if (st == ST_OK)
        st = state_read_pins(r->io, r->options->to, &r->pins);
    return st == ST_OK ? ST_OK : fail(r, st, r->options->to);
}

/* ---- whether this machine computes the same ---- */

/* The first of the pins that isn't the same; what both have. */
static enum status compare_pins(struct replay *r, const char *here)
{
    json_t *theirs = json_loads(r->pins, 0, NULL), *ours = json_loads(here, 0, NULL);
    enum status st = theirs != NULL && ours != NULL ? ST_OK : ST_CORRUPT;
    const char *name;
    json_t *value;
    json_object_foreach(theirs, name, value)
    {
        const json_t *other = json_object_get(ours, name);
        if (st != ST_OK || json_equal(value, other))
            continue;
        auto_free char *was = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        auto_free char *is =
            other != NULL ? json_dumps(other, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        reason_set(&r->reason,
                   "this machine would compute other bits by itself: %s is %.180s there and "
                   "%.180s here; run it on a machine like the job's",
                   name, was != NULL ? was : "?", is != NULL ? is : "nothing");
        st = ST_REFUSED;
    }
    json_decref(theirs);
    json_decref(ours);
    return st;
}

static enum status open_worker(struct replay *r)
{
    static uint32_t shares[1];
    shares[0] = (uint32_t)r->job->train.lanes;
    progress_init(&r->progress, NULL, NULL, 0, 1);
    const struct worker_options options = { .job = r->job,
                                            .io = r->io,
                                            .progress = &r->progress,
                                            .size = 1,
                                            .shares = shares,
                                            .data_known = true,
                                            .choices = r->pins };
    enum status st = worker_open(&options, &r->worker, &r->reason);
    if (st == ST_OK)
        st = worker_connect(r->worker, NULL, &r->reason);
    auto_buf struct buf pins;
    buf_init(&pins, WORKER_PINS_MAX);
    if (st == ST_OK)
        st = worker_pins(r->worker, &pins, &r->reason);
    return st == ST_OK ? compare_pins(r, pins.data) : fail(r, st, "the job's worker");
}

/* ---- the steps ---- */

/* Shows the step in place, on a terminal. */
static void tell_step(void *arg, const struct session_row *row)
{
    const struct replay *r = arg;
    if (r->options->quiet || !isatty(STDERR_FILENO))
        return;
    (void)fprintf(stderr, "\rstep %llu of %llu, loss %.6g\033[K", (unsigned long long)row->step,
                  (unsigned long long)r->last, (double)row->loss);
    if (row->step == r->last)
        (void)fprintf(stderr, "\r\033[K");
    (void)fflush(stderr);
}

static enum status compute(struct replay *r)
{
    struct worker *w = r->worker;
    const struct ckpt_scalars *scalars = ckpt_reader_scalars(r->to);
    const struct state_source from = { .dir = r->options->from, .step = r->first };
    enum status st =
        from.dir != NULL ? state_restore(w, &from, NULL, &r->reason) : state_seed(w, &r->reason);
    if (st == ST_OK)
        st = worker_skip_add(w, scalars->skip, (size_t)scalars->skip_count);
    if (st == ST_OK)
        st = worker_start(w, r->first, &r->reason);
    if (st != ST_OK)
        return fail(r, st, "the state to begin with");
    const struct loop_options loop = {
        .worker = w, .step = r->first, .stop_at = r->last, .row = tell_step, .row_arg = r
    };
    enum loop_end end = LOOP_DONE;
    r->trains = true;
    st = loop_run(&loop, &end, &r->reason);
    if (st == ST_OK)
        st = state_digest(w, r->last, &r->digest);
    return st == ST_OK ? ST_OK : fail(r, st, "training");
}

/* ---- what came of it ---- */

static int tell(const struct replay *r)
{
    const struct ckpt_hash *saved = &ckpt_reader_manifest(r->to)->digest;
    const bool equal = memcmp(saved, &r->digest, sizeof(*saved)) == 0;
    char theirs[33], ours[33];
    ckpt_hash_text(saved, theirs);
    ckpt_hash_text(&r->digest, ours);
    if (r->options->json) {
        json_t *said =
            json_pack("{s:I, s:I, s:b, s:s, s:s}", "from", (json_int_t)r->first, "to",
                      (json_int_t)r->last, "equal", equal, "digest", theirs, "computed", ours);
        (void)json_dumpf(said, stdout, JSON_COMPACT); /* as jsonl wants it */
        (void)printf("\n");
        json_decref(said);
    } else if (equal) {
        (void)printf("steps %llu to %llu computed again: the same bits, digest %s\n",
                     (unsigned long long)r->first, (unsigned long long)r->last, theirs);
    } else {
        (void)printf("steps %llu to %llu computed again: OTHER BITS, digest %s, saved was %s: "
                     "there or here something computes wrongly; a shorter interval tells where\n",
                     (unsigned long long)r->first, (unsigned long long)r->last, ours, theirs);
    }
    return equal ? 0 : EXIT_DIFFERS;
}

static int exit_of(const struct replay *r, enum status st)
{
    if (r->trains)
        return EXIT_FAILED;
    switch (status_scope(st)) {
    case SCOPE_NONE:
        return 0;
    case SCOPE_CHECKPOINT:
        return EXIT_DAMAGED;
    case SCOPE_JOB:
        return EXIT_REFUSED;
    case SCOPE_CALL:
        return st == ST_NOT_FOUND ? EXIT_NO_FILE : EXIT_REFUSED;
    case SCOPE_GENERATION:
    case SCOPE_WORKER:
        break;
    }
    return EXIT_REFUSED;
}

int replay_run(const struct replay_options *options)
{
    struct replay r = { .options = options };
    (void)setpriority(PRIO_PROCESS, 0, PRIORITY); /* jobs that train here go first */
    enum status st = ckpt_store_new(&r.store);
    if (st == ST_OK) {
        r.io = ckpt_store_io(r.store);
        st = read_checkpoints(&r);
    }
    if (st == ST_OK)
        st = open_worker(&r);
    if (st == ST_OK)
        st = compute(&r);
    int code = exit_of(&r, st);
    if (st == ST_OK) {
        code = tell(&r);
    } else {
        (void)fprintf(stderr, "%s\n", r.reason.text[0] != '\0' ? r.reason.text : status_string(st));
    }
    worker_close(r.worker);
    ckpt_close(r.to);
    free(r.pins);
    free(r.job);
    ckpt_store_free(r.store);
    return code;
}
