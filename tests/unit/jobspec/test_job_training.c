/* Options of the training: defaults that depend on each other. */
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"

/* Parses a job with one setting. */
static void parse_good(const char *const *sets, struct jobspec *out)
{
    static const char text[] =
        "name: a\n"
        "model: {arch: mlp}\n"
        "data: {train: {format: synthetic}, eval: {format: synthetic}}\n"
        "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 1}}\n";
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    const enum status st =
        jobspec_parse(text, strlen(text), "job.yaml", "/base", sets, 1, out, &errors);
    if (st != ST_OK)
        fail_msg("%s", errors.size > 0 ? errors.data : status_string(st));
}

static void optimizers_and_schedules_have_defaults_of_their_own(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        double momentum, beta1, beta2, eps, decay;
    } rows[] = {
        { "train.optimizer={lr: 1}", 0, 0, 0, 0, 0 },
        { "train.optimizer={lr: 1, name: adamw}", 0, 0.9, 0.999, 1e-8, 0.01 },
        { "train.optimizer={lr: 1, name: lion}", 0, 0.9, 0.99, 0, 0 },
        { "train.optimizer={lr: 1, name: lamb}", 0, 0.9, 0.999, 1e-6, 0.01 },
        { "train.optimizer={lr: 1, name: muon}", 0.95, 0.9, 0.999, 1e-8, 0.1 },
        { "train.optimizer={lr: 1, name: muon, momentum: 0, eps: 1, beta2: 0, weight_decay: 0}", 0,
          0.9, 0, 1, 0 },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *const sets[] = { rows[i].set };
        parse_good(sets, job);
        assert_true(job->train.optimizer.momentum == rows[i].momentum);
        assert_true(job->train.optimizer.beta1 == rows[i].beta1);
        assert_true(job->train.optimizer.beta2 == rows[i].beta2);
        assert_true(job->train.optimizer.eps == rows[i].eps);
        assert_true(job->train.optimizer.weight_decay == rows[i].decay);
    }
    const char *const cosine[] = { "train.schedule={name: cosine}" };
    parse_good(cosine, job);
    assert_true(job->train.schedule.min_lr == 0);
    const char *const cycle[] = { "train.schedule={name: one_cycle, warmup: 1 step}" };
    parse_good(cycle, job);
    assert_true(job->train.schedule.min_lr == 4e-6 && job->train.schedule.start_lr == 0.04);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_and_schedules_have_defaults_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
