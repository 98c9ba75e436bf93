#include "tests/unit/trainer/ranks_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "trainer/loop/evaluation.h"
#include "trainer/loop/loop.h"
#include "trainer/state/copy_interval.h"

struct one {
    const struct ranks_options *options;
    struct ranks_result *result;
    struct shared_rendezvous *shared;
    struct jobspec job;
    uint32_t rank;
    pthread_t thread;
    enum status st;
    uint64_t step;
    struct progress *progress;
    uint64_t collectives;
    struct reason reason;
    char digest[33];
    struct ckpt_report report;
};

static void take_row(void *arg, const struct session_row *row)
{
    struct one *one = arg;
    struct ranks_result *result = one->result;
    if (one->rank == 0) {
        CHECK(result->row_count < RANKS_ROWS);
        result->rows[result->row_count++] = *row;
    }
    if (row->step == one->options->over_at)
        progress_stop(one->progress);
    if (one->options->row != NULL)
        one->options->row(one->options->row_arg, one->rank, row);
}

static enum status open_comm(struct one *one, const struct worker *worker, const char *round_name,
                             const int *members, int count, const bool *connected,
                             struct comm **out)
{
    const struct device *device = &worker->device;
    const bool pipe = strcmp(round_name, "pipe") == 0;
    const struct rendezvous rendezvous = shared_rendezvous_of(one->shared, (int)one->rank);
    struct comm_options options = { .rendezvous = &rendezvous,
                                    .round_name = round_name,
                                    .rank = (int)one->rank,
                                    .size = (int)one->options->size,
                                    .members = members,
                                    .member_count = count,
                                    .connected = connected,
                                    .host = "127.0.0.1",
                                    .secret = "of a test",
                                    .timeout_ms = 60000,
                                    .device = { .table = device->table,
                                                .backend = device->backend,
                                                .stream =
                                                    pipe ? device->pipe : device->communication,
                                                .compute = device->compute } };
    return one->options->size > 1 ? device->comm->open(&options, out) : ST_OK;
}

static enum status open_comms(struct one *one, const struct worker *worker,
                              struct worker_comms *out)
{
    const uint32_t size = one->options->size;
    const struct worker_group *group = &worker->group;
    int members[RANKS_MAX], all[RANKS_MAX];
    bool connected[RANKS_MAX];
    for (uint32_t i = 0; i < group->size; i++)
        members[i] = (int)(group->first + i);
    for (uint32_t r = 0; r < size; r++) {
        all[r] = (int)r;
        connected[r] = worker_is_neighbour(worker, r);
    }
    enum status st = open_comm(one, worker, "workers", NULL, 0, NULL, &out->world);
    if (st != ST_OK || worker->stage == NULL) {
        out->group = out->world;
        return st;
    }
    st = open_comm(one, worker, "group", members, (int)group->size, NULL, &out->group);
    if (st == ST_OK)
        st = open_comm(one, worker, "pipe", all, (int)size, connected, &out->pipe);
    return st;
}

/* Before the first step, as the ranks of a real generation do. */
static enum status agree(struct worker *worker)
{
    const uint32_t size = worker->options.size, rank = worker->options.rank;
    uint32_t every = 0;
    enum status st = copy_interval_agree(worker, (uint32_t)1 << rank, &every);
    if (st != ST_OK)
        return st;
    CHECK(every == (uint32_t)1 << (size - 1)); /* the highest wins */
    st = copy_interval_agree(worker, rank == 0 ? 0 : 4, &every);
    CHECK(st != ST_OK || every == 0); /* one can take none */
    return st;
}

static enum status prepare(struct one *one, struct worker *worker, const struct worker_comms *comms)
{
    const struct ranks_options *o = one->options;
    struct state_source from = { .dir = o->restore, .step = o->restore_step };
    if (o->parts) {
        CHECK(!worker->device.comm->on_stream);
        from.table = worker->device.comm;
        from.comm = comms->world;
    }
    enum status st = worker_connect(worker, comms, &one->reason);
    if (st == ST_OK)
        st = worker_skip_add(worker, o->skip, o->skip_count);
    if (st == ST_OK && o->restore != NULL)
        st = state_restore(worker, &from, NULL, &one->reason);
    else if (st == ST_OK)
        st = state_seed(worker, &one->reason);
    if (st == ST_OK)
        st = worker_start(worker, o->restore != NULL ? o->restore_step : 0, &one->reason);
    return st == ST_OK ? agree(worker) : st;
}

/* Also after a failure: what state was left? */
static void leave_state(struct one *one, struct worker *worker, uint64_t step)
{
    const struct ranks_options *o = one->options;
    struct state_beside beside = {
        .job = "j-test", .generation = 1, .job_file = o->job->yaml, .pins = "{}"
    };
    struct state_view view;
    struct ckpt_hash digest;
    one->step = step;
    if (worker->held == NULL) { /* else no rank has all of it */
        CHECK(state_digest(worker, step, &digest) == ST_OK);
        ckpt_hash_text(&digest, one->digest);
    }
    if (one->st != ST_OK || o->save == NULL)
        return;
    CHECK(state_allow_saves(worker) == ST_OK);
    if (worker->staging != NULL) {
        CHECK(staging_begin(worker->staging) == ST_OK);
        CHECK(staging_wait(worker->staging) == ST_OK);
    }
    state_describe(worker, step, &beside, &view);
    one->st =
        ckpt_shard_write(io_system(), o->save, &view.state, one->rank, o->size, NULL, &one->report);
}

static void note_end(struct one *one, struct worker *worker, enum loop_end end)
{
    struct evaluation result;
    one->result->end = end;
    one->result->lanes_us = worker->lanes_us;
    one->result->chunks = worker->stage != NULL ? stage_chunks(worker->stage) : 0;
    if (worker->comm != NULL && worker->device.comm->traffic != NULL) {
        struct comm_traffic traffic = { 0 };
        worker->device.comm->traffic(worker->comm, &traffic);
        one->result->sent_bytes = traffic.sent_bytes;
    }
    if (one->options->over_at > 0 && worker->eval_plans[0] != NULL)
        one->result->evaluation_st = evaluation_run(worker, &result);
}

static _Thread_local const struct progress *own_progress;

const struct progress *ranks_progress(void)
{
    return own_progress;
}

static void *run_rank(void *arg)
{
    struct one *one = arg;
    const struct ranks_options *o = one->options;
    struct progress progress = { .session = NULL };
    progress_init(&progress, NULL, NULL, one->rank, 1);
    one->progress = &progress;
    own_progress = &progress;
    struct worker_options options = { .job = &one->job,
                                      .io =
                                          one->options->io != NULL ? one->options->io : io_system(),
                                      .progress = &progress,
                                      .rank = one->rank,
                                      .size = o->size,
                                      .shares = o->shares,
                                      .stages = o->stages.count > 1 ? &o->stages : NULL,
                                      .table = o->table,
                                      .comm = o->comm };
    struct worker *worker = NULL;
    struct worker_comms comms = { NULL };
    one->st = worker_open(&options, &worker, &one->reason);
    if (one->st == ST_OK && o->loss_scale > 0)
        worker->settings.scaler.scale = o->loss_scale;
    if (one->st == ST_OK)
        one->st = open_comms(one, worker, &comms);
    if (one->st == ST_OK)
        one->st = prepare(one, worker, &comms);
    if (one->st == ST_OK) {
        struct loop_options loop = { .worker = worker,
                                     .step = o->restore != NULL ? o->restore_step : 0,
                                     .stop_at = o->stop_at,
                                     .row = take_row,
                                     .row_arg = one };
        enum loop_end end = LOOP_DONE;
        one->st = loop_run(&loop, &end, &one->reason);
        one->collectives = progress.collective;
        if (one->rank == 0)
            note_end(one, worker, end);
        leave_state(one, worker, progress.step);
    }
    worker_close(worker);
    return NULL;
}

static void publish(const struct ranks_options *options, const struct one *ones, char out[33])
{
    struct ckpt_report reports[RANKS_MAX];
    for (uint32_t r = 0; r < options->size; r++)
        reports[r] = ones[r].report;
    auto_buf struct buf bytes;
    buf_init(&bytes, LIMIT_MANIFEST_BYTES);
    struct ckpt_hash digest;
    CHECK(ckpt_manifest_make(reports, options->size, "j-test", "2026-01-02T03:04:05Z", &bytes,
                             &digest) == ST_OK);
    ckpt_hash_text(&digest, out);
    CHECK(ones[0].digest[0] == '\0' || strcmp(out, ones[0].digest) == 0);
    CHECK(ckpt_manifest_publish(io_system(), options->save, bytes.data, bytes.size) == ST_OK);
}

static void parse(const struct ranks_options *options, struct jobspec *out)
{
    auto_buf struct buf errors;
    buf_init(&errors, 65536);
    const char *const *const lists[] = { options->job->sets, options->sets };
    const char *sets[2 * RANKS_SETS];
    size_t count = 0;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        for (const char *const *set = lists[i]; set != NULL && *set != NULL; set++) {
            CHECK(count < 2 * RANKS_SETS);
            sets[count++] = *set;
        }
    }
    const char *yaml = options->job->yaml;
    enum status st = jobspec_parse(yaml, strlen(yaml), "test.yaml", "/", sets, count, out, &errors);
    if (st != ST_OK)
        (void)fprintf(stderr, "%s\n", errors.data);
    CHECK(st == ST_OK);
}

void ranks_run(const struct ranks_options *options, struct ranks_result *out)
{
    struct one *ones = calloc(options->size, sizeof(*ones));
    struct shared_rendezvous *shared = shared_rendezvous_new();
    CHECK(ones != NULL);
    memset(out, 0, sizeof(*out));
    if (options->save != NULL)
        CHECK(ckpt_folder_create(io_system(), options->save) == ST_OK);
    for (uint32_t r = 0; r < options->size; r++) {
        ones[r] = (struct one){ .options = options, .result = out, .shared = shared, .rank = r };
        parse(options, &ones[r].job);
        CHECK(pthread_create(&ones[r].thread, NULL, run_rank, &ones[r]) == 0);
    }
    for (uint32_t r = 0; r < options->size; r++)
        CHECK(pthread_join(ones[r].thread, NULL) == 0);
    for (uint32_t r = 0; r < options->size; r++) {
        CHECK(strcmp(ones[r].digest, ones[0].digest) == 0);
        CHECK(ones[r].step == ones[0].step);
        /* By which the coordinator tells who hangs. */
        CHECK(ones[r].st != ST_OK || ones[0].st != ST_OK ||
              ones[r].collectives == ones[0].collectives);
        if (out->st == ST_OK && ones[r].st != ST_OK) {
            out->st = ones[r].st;
            out->reason = ones[r].reason;
        }
    }
    memcpy(out->digest, ones[0].digest, sizeof(out->digest));
    out->step = ones[0].step;
    if (out->st == ST_OK && options->save != NULL)
        publish(options, ones, out->digest);
    for (uint32_t r = 0; r < options->size; r++)
        ckpt_report_release(&ones[r].report);
    shared_rendezvous_free(shared);
    free(ones);
}

struct ranks_result *ranks_new(const struct ranks_options *options)
{
    struct ranks_result *result = malloc(sizeof(*result));
    assert_non_null(result);
    ranks_run(options, result);
    return result;
}

struct ranks_result *ranks_new_well(const struct ranks_options *options)
{
    struct ranks_result *result = ranks_new(options);
    if (result->st != ST_OK)
        fail_msg("%s: %s", status_string(result->st), result->reason.text);
    return result;
}

int ranks_make_folder(void **state)
{
    static char folder[64];
    (void)snprintf(folder, sizeof(folder), "/tmp/cairn-ranks-XXXXXX");
    *state = mkdtemp(folder);
    return *state == NULL ? -1 : 0;
}

int ranks_remove_folder(void **state)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", (char *)*state);
    return system(command) == 0 ? 0 : -1;
}
