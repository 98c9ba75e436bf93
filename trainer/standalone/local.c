#include "trainer/standalone/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "jobspec/jobspec.h"
#include "jobspec/yaml/input.h"
#include "trainer/loop/loop.h"
#include "trainer/standalone/import.h"
#include "trainer/standalone/preview.h"

#define ERRORS_MAX  ((size_t)256 * 1024)
#define PREVIEW_MAX ((size_t)1024 * 1024)

static void print_metrics(void *arg, const struct session_row *row)
{
    (void)arg;
    (void)printf("step %llu loss %.9g lr %.9g norm %.9g ms %.3f", (unsigned long long)row->step,
                 (double)row->loss, (double)row->lr, (double)row->grad_norm, row->step_ms);
    for (int i = 0; i < row->phase_count; i++)
        (void)printf(" %s %.3f", row->phase[i].name, row->phase[i].ms);
    (void)printf("\n");
    if (row->has_eval) {
        (void)printf("evaluation loss %.9g accuracy %.4f (%llu of %llu)\n", row->eval_loss,
                     row->eval_accuracy, (unsigned long long)row->eval_correct,
                     (unsigned long long)row->eval_count);
    }
    (void)fflush(stdout);
}

static enum status read_job_file(const struct local_options *options, struct jobspec *out)
{
    struct jobspec_input input;
    struct reason why = { "" };
    enum status st = jobspec_input_read(options->job_path, &input, &why);
    if (st != ST_OK) {
        (void)fprintf(stderr, "%s\n", why.text);
        return ST_CONFIG;
    }
    auto_free char *text = input.text;
    auto_buf struct buf errors;
    buf_init(&errors, ERRORS_MAX);
    st = jobspec_parse(text, input.size, options->job_path, input.base_dir, options->sets,
                       options->set_count, out, &errors);
    if (st != ST_OK)
        (void)fprintf(stderr, "%s", errors.size > 0 ? errors.data : status_string(st));
    if (st == ST_OK && jobspec_is_command(out)) {
        (void)fprintf(stderr,
                      "%s: the job runs a program of its own and has no model: submit it, or run "
                      "the program\n",
                      options->job_path);
        st = ST_CONFIG;
    }
    return st;
}

/* Waits for the last update: its errors show here. */
static enum status print_digest(struct worker *worker, uint64_t step, bool alone)
{
    struct ckpt_hash digest;
    char text[33];
    enum status st = state_digest(worker, step, &digest);
    if (st != ST_OK)
        return st;
    ckpt_hash_text(&digest, text);
    (void)printf("%s%s\n", alone ? "" : "digest ", text);
    return ST_OK;
}

static enum status train_job(const struct local_options *options, struct worker *worker,
                             struct reason *reason)
{
    enum status st = worker_connect(worker, NULL, reason);
    if (st == ST_OK)
        st = state_seed(worker, reason);
    if (st == ST_OK)
        st = worker_start(worker, 0, reason);
    if (st != ST_OK)
        return st;
    struct loop_options loop = { .worker = worker, .stop_at = options->stop_at };
    if (!options->digest_only)
        loop.row = print_metrics;
    enum loop_end end = LOOP_DONE;
    st = loop_run(&loop, &end, reason);
    if (st != ST_OK)
        return st;
    st = print_digest(worker, worker->options.progress->step, options->digest_only);
    if (st != ST_OK) {
        const struct device *d = &worker->device;
        reason_set(reason, "the last update: %s: %s", status_string(st),
                   d->table->why != NULL ? d->table->why(d->backend) : "no reason is known");
    }
    return st;
}

static int exit_code(enum status st, const struct reason *reason)
{
    if (st != ST_OK)
        (void)fprintf(stderr, "%s\n", reason->text[0] != '\0' ? reason->text : status_string(st));
    return st == ST_OK ? 0 : st == ST_CONFIG ? 2 : 1;
}

static int show_preview(const struct jobspec *job)
{
    auto_buf struct buf out;
    buf_init(&out, PREVIEW_MAX);
    struct reason reason = { .text = "" };
    enum status st = preview_print(job, &out, &reason);
    if (st == ST_OK)
        (void)printf("%s", out.data);
    return exit_code(st, &reason);
}

static int check_inputs(const struct jobspec *job)
{
    struct reason reason = { .text = "" };
    const enum status st = preview_check(job, &reason);
    const int code = exit_code(st, &reason);
    return st == ST_CONFIG ? LOCAL_FITS_NOT : code;
}

static int import_weights(const struct local_options *options, struct jobspec *job)
{
    struct import_options import = { .job = job,
                                     .file = options->import_file,
                                     .dir = options->import_dir,
                                     .quiet = options->quiet,
                                     .json = options->json };
    return import_run(&import);
}

int local_run(const struct local_options *options)
{
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return 1;
    enum status st = read_job_file(options, job);
    if (st != ST_OK)
        return 2;
    if (options->inputs_only)
        return check_inputs(job);
    if (options->preview_only)
        return show_preview(job);
    if (options->import_file != NULL)
        return import_weights(options, job);
    struct progress progress = { .session = NULL };
    progress_init(&progress, NULL, NULL, 0, 1);
    uint32_t shares[1] = { (uint32_t)job->train.lanes };
    struct worker_options wo = {
        .job = job, .io = io_system(), .progress = &progress, .size = 1, .shares = shares
    };
    struct reason reason = { .text = "" };
    struct worker *worker = NULL;
    st = worker_open(&wo, &worker, &reason);
    if (st == ST_OK)
        st = train_job(options, worker, &reason);
    worker_close(worker);
    return exit_code(st, &reason);
}
