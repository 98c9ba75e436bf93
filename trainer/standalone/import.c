#include "trainer/standalone/import.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/store.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"
#include "trainer/device/device.h"
#include "trainer/state/initial_state.h"
#include "trainer/update/optimizer.h"
#include "trainer/update/scaler.h"
#include "trainer/worker/build.h"
#include "trainer/worker/settings.h"

#define PINS       "{}" /* none of these bits was computed */
#define GENERATION 1

enum { JOB_BYTES = 2 * LIMIT_JOB_FILE_BYTES, MANIFEST_BYTES = LIMIT_MANIFEST_BYTES };

/* Exit codes, the same as the client's. */
enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NOT_FOUND = 3, EXIT_REFUSED = 4 };

struct import {
    const struct import_options *options;
    const struct io *io;
    struct dataset *data;
    struct settings settings;
    struct tape *tape;
    struct device device;
    struct optimizer *optimizer;
    struct ckpt_state state;
    struct ckpt_hash digest;
    struct reason reason;
};

static enum status import_fail(struct import *i, enum status st, const char *what)
{
    struct reason why = { "it is there already; choose another folder" };
    if (st == ST_REFUSED)
        reason_set(&why, "no permission, or a read-only file system");
    if (st != ST_EXISTS && st != ST_REFUSED)
        io_explain(i->io, st, &why);
    if (st != ST_OK)
        reason_set(&i->reason, "%.250s: %.255s", what, why.text);
    return st;
}

/* The model of the job and the optimizer's buffers, in host memory whatever device the job wants:
 * nothing is computed. */
static enum status make_buffers(struct import *i)
{
    const struct jobspec *job = i->options->job;
    struct build_options build = { .job = job, .io = i->io, .split = DATASET_TRAIN };
    struct device_options device = { .job = job, .table = backend_cpu() };
    enum status st = build_dataset(&build, &i->data, &i->reason);
    if (st == ST_OK)
        st = settings_derive(job, i->data->samples, &i->settings, &i->reason);
    if (st == ST_OK)
        st = build_tape(job, i->data, &i->tape, &i->reason);
    if (st == ST_OK)
        st = device_open(&device, &i->device, &i->reason);
    if (st != ST_OK)
        return st;
    return import_fail(i,
                       optimizer_new(&i->settings.optimizer, i->tape, NULL, i->device.table,
                                     i->device.backend, &i->optimizer),
                       "the optimizer's buffers");
}

static enum status fill_import(struct import *i)
{
    struct initial_state_options initial = { .job = i->options->job, .io = i->io, .tape = i->tape };
    struct ckpt_state *s = &i->state;
    optimizer_describe(i->optimizer, &s->buffers, &s->buffer_count, &s->tensors, &s->tensor_count);
    initial.buffers = s->buffers;
    initial.buffer_count = s->buffer_count;
    initial.tensors = s->tensors;
    initial.tensor_count = s->tensor_count;
    s->generation = GENERATION;
    s->scalars = (struct ckpt_scalars){ .seed = i->settings.seed,
                                        .loss_scale = scaler_start(&i->settings.scaler).scale };
    enum status st = initial_state_fill(&initial, optimizer_params(i->optimizer),
                                        optimizer_stats(i->optimizer), &i->reason);
    return st == ST_OK ? optimizer_begin(i->optimizer, i->device.compute) : st;
}

/* A checkpoint's job is the folder that its folder lies in, so that `ckpt ls` finds it there. */
static enum status name_job(struct import *i)
{
    char parent[LIMIT_PATH], base[LIMIT_PATH];
    enum status st = ckpt_dirname(i->options->dir, parent);
    if (st == ST_OK)
        st = ckpt_basename(parent, base);
    bool good = st == ST_OK && ckpt_name_is_good(base) && strlen(base) < sizeof(i->state.job);
    (void)snprintf(i->state.job, sizeof(i->state.job), "%.*s", (int)sizeof(i->state.job) - 1,
                   good ? base : i->options->job->name);
    return st;
}

static enum status commit(struct import *i, const struct ckpt_report *report)
{
    char wall[32] = "";
    struct tm tm;
    time_t now = (time_t)(clock_wall_ms(clock_system()) / 1000);
    auto_buf struct buf manifest;
    buf_init(&manifest, MANIFEST_BYTES);
    if (gmtime_r(&now, &tm) == NULL || strftime(wall, sizeof(wall), "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        return ST_INVALID;
    enum status st = ckpt_commit_check(i->io, i->options->dir, report, 1);
    if (st == ST_OK)
        st = ckpt_manifest_make(report, 1, i->state.job, wall, &manifest, &i->digest);
    if (st == ST_OK)
        st = ckpt_manifest_publish(i->io, i->options->dir, manifest.data, manifest.size);
    return st;
}

/* Whole or not there, as a saved one. */
static enum status save_checkpoint(struct import *i)
{
    const char *dir = i->options->dir;
    auto_buf struct buf job;
    buf_init(&job, JOB_BYTES);
    enum status st = jobspec_print(i->options->job, &job);
    struct ckpt_blob blobs[] = { { .name = "job.yaml", .data = job.data, .size = job.size },
                                 { .name = "pins.json", .data = PINS, .size = strlen(PINS) } };
    i->state.blobs = blobs;
    i->state.blob_count = sizeof(blobs) / sizeof(blobs[0]);
    if (st == ST_OK)
        st = name_job(i);
    if (st == ST_OK)
        st = ckpt_folder_create(i->io, dir);
    if (st != ST_OK)
        return import_fail(i, st, dir);
    struct ckpt_report report = { 0 };
    st = ckpt_shard_write(i->io, dir, &i->state, 0, 1, NULL, &report);
    if (st == ST_OK)
        st = commit(i, &report);
    ckpt_report_release(&report);
    if (st != ST_OK)
        (void)!ckpt_remove(i->io, dir);
    i->state.blobs = NULL;
    i->state.blob_count = 0;
    return import_fail(i, st, dir);
}

static void print_import(const struct import *i)
{
    char digest[33];
    ckpt_hash_text(&i->digest, digest);
    const struct import_options *o = i->options;
    if (o->json) {
        json_t *said = json_pack("{s:s, s:s, s:I}", "path", o->dir, "digest", digest, "parameters",
                                 (json_int_t)i->tape->param_elements);
        (void)json_dumpf(said, stdout, JSON_COMPACT); /* as jsonl wants it */
        (void)printf("\n");
        json_decref(said);
    } else if (!o->quiet) {
        (void)printf("%s  %zu parameters, digest %s\n", o->dir, i->tape->param_elements, digest);
    }
}

static int exit_of_import(enum status st)
{
    switch (status_scope(st)) {
    case SCOPE_NONE:
        return 0;
    case SCOPE_JOB:
        return st == ST_VERSION ? EXIT_FAILED : EXIT_USAGE;
    case SCOPE_CALL:
        if (st == ST_EXISTS || st == ST_REFUSED)
            return EXIT_REFUSED;
        return st == ST_NOT_FOUND ? EXIT_NOT_FOUND : EXIT_FAILED;
    case SCOPE_CHECKPOINT:
    case SCOPE_GENERATION:
    case SCOPE_WORKER:
        break;
    }
    return EXIT_FAILED;
}

int import_run(const struct import_options *options)
{
    struct import i = { .options = options };
    struct ckpt_store *store = NULL;
    struct jobspec *job = options->job;
    auto_free char *file = realpath(options->file, NULL);
    if (file == NULL || strlen(file) >= sizeof(job->model.weights)) {
        (void)fprintf(stderr, "%s: no such file\n", options->file);
        return EXIT_NOT_FOUND;
    }
    (void)snprintf(job->model.weights, sizeof(job->model.weights), "%s", file);
    enum status st = ckpt_store_new(&store);
    if (st == ST_OK) {
        i.io = ckpt_store_io(store);
        st = make_buffers(&i);
    }
    if (st == ST_OK)
        st = fill_import(&i);
    if (st == ST_OK)
        st = save_checkpoint(&i);
    if (st == ST_OK) {
        print_import(&i);
    } else {
        (void)fprintf(stderr, "%s\n", i.reason.text[0] != '\0' ? i.reason.text : status_string(st));
    }
    optimizer_free(i.optimizer);
    device_close(&i.device);
    tape_free(i.tape);
    dataset_close(i.data);
    ckpt_store_free(store);
    return exit_of_import(st);
}
