/* Jobs with a command: what their section means, and that nothing of a model is left in them. */
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "jobspec/budget.h"
#include "jobspec/jobspec.h"
#include "jobspec/schema.h"
#include "tests/test.h"

#define SETS_MAX 8

static const char least[] = "name: a\ncommand: {run: [python3, train.py]}\n";

static enum status parse(const char *text, const char *const *sets, struct jobspec *out,
                         struct buf *errors)
{
    size_t count = 0;
    while (sets != NULL && sets[count] != NULL)
        count++;
    return jobspec_parse(text, strlen(text), "job.yaml", "/base", sets, count, out, errors);
}

/* Parses text that must be right. sets: NULL ends them. */
static void parse_good(const char *text, const char *const *sets, struct jobspec *out)
{
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    const enum status st = parse(text, sets, out, &errors);
    if (st != ST_OK)
        fail_msg("%s", errors.size > 0 ? errors.data : status_string(st));
    assert_int_equal(errors.size, 0);
}

/* Parses text that must be refused with these words. */
static void parse_bad(const char *text, const char *const *sets, const char *words)
{
    auto_buf struct buf errors;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    buf_init(&errors, 1 << 20);
    assert_int_equal(parse(text, sets, job, &errors), ST_CONFIG);
    if (strstr(errors.data, words) == NULL)
        fail_msg("%s", errors.data);
}

/* texts: in their order, NULL ends them. */
static void holds_texts(const char *list, const char *const *texts)
{
    const char *at = jobspec_next_text(list, NULL);
    for (size_t i = 0; texts[i] != NULL; i++) {
        assert_non_null(at);
        assert_string_equal(at, texts[i]);
        at = jobspec_next_text(list, at);
    }
    assert_null(at);
}

#define TEXTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void short_file_gets_the_defaults(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(least, NULL, job);
    assert_true(jobspec_is_command(job));
    assert_string_equal(job->name, "a");
    holds_texts(job->command.run, TEXTS("python3", "train.py"));
    assert_false(job->command.shell);
    holds_texts(job->command.env, (const char *const[]){ NULL });
    assert_string_equal(job->command.workdir, "/base");
    assert_string_equal(job->command.folder, "");
    assert_int_equal(job->command.processes, 1);
    assert_string_equal(job->command.progress, "");
    assert_int_equal(job->command.grace_ms, 30000);
    assert_int_equal(job->command.hang_ms, 0);
    assert_false(job->command.restart.codes_given);
    holds_texts(job->command.restart.on_output, (const char *const[]){ NULL });
    assert_int_equal(job->command.restart.budget, 0);
    assert_int_equal(jobspec_budget(job), 10);
    assert_int_equal(jobspec_budget_first(job), 0); /* its steps are not seen */
    assert_int_equal(job->workers.count, 1);
    assert_int_equal(job->workers.min, 1);
    assert_int_equal(job->workers.threads, 1);
    assert_int_equal(job->workers.device, JOBSPEC_DEVICE_CPU);
}

static void every_key_of_a_command_is_kept(void **state)
{
    (void)state;
    static const char text[] = "name: a\n"
                               "command:\n"
                               "  run: [python3, train.py, --epochs, 3, '', \"two\\nlines\"]\n"
                               "  workdir: src\n"
                               "  env: {LR: 0.1, EMPTY: '', A: \"x=y\"}\n"
                               "  folder: /out\n"
                               "  processes: 4\n"
                               "  progress: 'step (\\d+)'\n"
                               "  grace: 2 m\n"
                               "  hang: 90 s\n"
                               "  restart: {on_exit_codes: [75, 1, 75], budget: 3,\n"
                               "            on_output: ['CUDA error', 'NCCL']}\n"
                               "workers: {count: 4, min: 2, device: cuda, threads: 3}\n";
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(text, NULL, job);
    holds_texts(job->command.run, TEXTS("python3", "train.py", "--epochs", "3", "", "two\nlines"));
    assert_string_equal(job->command.workdir, "/base/src");
    holds_texts(job->command.env, TEXTS("A=x=y", "EMPTY=", "LR=0.1")); /* by name */
    assert_string_equal(job->command.folder, "/out");
    assert_int_equal(job->command.processes, 4);
    assert_string_equal(job->command.progress, "step (\\d+)");
    assert_int_equal(job->command.grace_ms, 120000);
    assert_int_equal(job->command.hang_ms, 90000);
    assert_true(job->command.restart.codes_given);
    assert_int_equal(job->command.restart.code_count, 2);
    assert_int_equal(job->command.restart.codes[0], 1);
    assert_int_equal(job->command.restart.codes[1], 75);
    assert_int_equal(job->command.restart.budget, 3);
    holds_texts(job->command.restart.on_output, TEXTS("CUDA error", "NCCL"));
    assert_int_equal(job->workers.count, 4);
    assert_int_equal(job->workers.min, 2);
    assert_int_equal(job->workers.device, JOBSPEC_DEVICE_CUDA);
    assert_int_equal(job->workers.threads, 3);
}

static void checkpoint_makes_it_a_job_that_is_saved(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(least, NULL, job);
    assert_false(job->command.saves);
    parse_good(least, TEXTS("checkpoint={}"), job);
    assert_true(job->command.saves);
    assert_int_equal(job->checkpoint.every.unit, JOBSPEC_STEPS);
    assert_true(job->checkpoint.every.value == 100);
    assert_int_equal(job->checkpoint.keep_last, 3);
    assert_string_equal(job->checkpoint.store, "/base/checkpoints");
    assert_int_equal(job->checkpoint.memory_every, 1); /* auto: every step */
    assert_int_equal(job->checkpoint.threads, 1);
    assert_int_equal(job->checkpoint.grace_ms, 30000);
    assert_int_equal(job->train.lanes, 0);
    assert_int_equal(job->audit.checksum, 0);
    parse_good(least,
               TEXTS("checkpoint.every=2 epochs", "checkpoint.memory_every=5 steps",
                     "checkpoint.keep.best.metric=eval_loss", "checkpoint.store=/s"),
               job);
    assert_true(job->command.saves);
    assert_int_equal(job->checkpoint.every.unit, JOBSPEC_EPOCHS);
    assert_int_equal(job->checkpoint.memory_every, 5);
    assert_int_equal(job->checkpoint.keep_best.metric, JOBSPEC_METRIC_EVAL_LOSS);
    assert_int_equal(job->checkpoint.keep_best.n, 1);
    assert_string_equal(job->checkpoint.store, "/s");
    parse_good(least, TEXTS("checkpoint.every=5 steps", "checkpoint=null"), job);
    assert_false(job->command.saves);
    assert_string_equal(job->checkpoint.store, "");
}

static void one_text_is_for_a_shell(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good("name: a\ncommand:\n  run: |\n    set -e\n    exec python3 \"$0\"\n", NULL, job);
    assert_true(job->command.shell);
    holds_texts(job->command.run, TEXTS("set -e\nexec python3 \"$0\"\n"));
}

/* Rows of the schema for models alone, and all members around them. */
static void nothing_of_a_model_is_in_a_job_with_a_command(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    struct jobspec *only auto_free = calloc(1, sizeof(*only));
    parse_good(least, NULL, job);
    memcpy(only->name, job->name, sizeof(only->name));
    only->workers.count = only->workers.min = only->workers.threads = 1;
    only->workers.device = JOBSPEC_DEVICE_CPU;
    only->command = job->command;
    assert_memory_equal(job, only, sizeof(*job));
}

static void nothing_of_a_command_is_in_a_job_with_a_model(void **state)
{
    (void)state;
    static const char text[] = "name: a\nmodel: {arch: mlp}\ndata: {train: {format: synthetic}}\n"
                               "train: {duration: 1 epochs, global_batch: 8, optimizer: {lr: 1}}\n";
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    static const struct jobspec_command none;
    parse_good(text, NULL, job);
    assert_false(jobspec_is_command(job));
    assert_memory_equal(&job->command, &none, sizeof(none));
}

static void printed_job_parses_to_the_same_job(void **state)
{
    (void)state;
    static const char *const variants[][SETS_MAX] = {
        { NULL },
        { "command.run=python3 train.py && echo 'it''s done' \"$X\" # no comment", NULL },
        { "command.run=\"a\\n\\tb: c\\\\ \\\" '' {x}\\n\"", NULL },
        { "command.run=[sh, -c, '', ' ', '~', 'null', '\"\"', \"it's\", 'a: b', '- c', '#']",
          NULL },
        { "command.run=[\"caf\\u00e9\", \"\\u2028\", \"\\ufeffx\", \"\\U0001F600\"]", NULL },
        { "command.env={n: 1, Y: no, _: \"a\\nb\", A1: '', LONG_NAME: 'x ''y'' \"z\"'}", NULL },
        { "command={folder: 'o \"u\" t', workdir: /, processes: 64, grace: 0 s, hang: 30 d}",
          "command.run=[x]", NULL },
        { "command.progress='\\[step\\s+(\\d+)/\\d+\\] \"x\"'", "command.hang=1500 ms", NULL },
        { "command.restart={on_exit_codes: [], on_output: [], budget: 1}", NULL },
        { "command.restart={on_exit_codes: [255, 1], on_output: ['it''s', '\"', '\\\\']}", NULL },
        { "workers={count: 1024, min: 1, device: cuda, threads: 8}", NULL },
        { "checkpoint={}", NULL },
        { "checkpoint={every: auto, memory_every: none, delta: true, level: fast}", NULL },
        { "checkpoint={keep: {last: 2, every: 500 steps, best: {metric: eval_loss, n: 2}}}", NULL },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    struct jobspec *again auto_free = calloc(1, sizeof(*again));
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        auto_buf struct buf text, text_again;
        buf_init(&text, 1 << 20);
        buf_init(&text_again, 1 << 20);
        parse_good(least, variants[i], job);
        assert_int_equal(jobspec_print(job, &text), ST_OK);
        parse_good(text.data, NULL, again);
        assert_memory_equal(job, again, sizeof(*job));
        assert_int_equal(jobspec_print(again, &text_again), ST_OK);
        assert_string_equal(text.data, text_again.data);
    }
}

static void settings_reach_into_a_command(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(least,
               TEXTS("command.env.LR=0.2", "command.env.OTHER=x", "command.env.OTHER=null",
                     "command.processes=2", "workers.count=3"),
               job);
    holds_texts(job->command.env, TEXTS("LR=0.2"));
    assert_int_equal(job->command.processes, 2);
    assert_int_equal(job->workers.count, 3);
    parse_bad(least, TEXTS("command=null"), "there is neither a model nor a command");
    parse_bad(least, TEXTS("command.run=null"), "command.run is missing");
    parse_bad(least, TEXTS("train.seed=3"), "train is not for a job with a command");
    parse_bad(least, TEXTS("command.env.RANK=1"), "--set:1:13: command.env can't set RANK");
}

static void texts_have_bounds(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    char text[2 * JOBSPEC_TEXTS_BYTES];
    for (int more = 0; more < 2; more++) {
        /* A mark, a NUL and the end take 3 of the 8192 bytes. */
        (void)snprintf(text, sizeof(text), "name: a\ncommand: {run: '%0*d'}\n",
                       JOBSPEC_TEXTS_BYTES - 3 + more, 0);
        if (more == 0) {
            parse_good(text, NULL, job);
            assert_int_equal(strlen(jobspec_next_text(job->command.run, NULL)),
                             JOBSPEC_TEXTS_BYTES - 3);
        } else {
            parse_bad(text, NULL, "command.run is longer than 8191 bytes");
        }
        (void)snprintf(text, sizeof(text), "name: a\ncommand: {run: [x], env: {A: '%0*d'}}\n",
                       JOBSPEC_TEXTS_BYTES - 5 + more, 0);
        if (more == 0) {
            parse_good(text, NULL, job);
        } else {
            parse_bad(text, NULL, "command.env is longer than 8191 bytes");
        }
        (void)snprintf(text, sizeof(text), "name: a\ncommand: {run: [x], progress: '(%0*d)'}\n",
                       JOBSPEC_PATTERN_BYTES - 3 + more, 0);
        if (more == 0) {
            parse_good(text, NULL, job);
        } else {
            parse_bad(text, NULL, "command.progress has more than 255 bytes");
        }
    }
}

static void lists_have_bounds(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (int more = 0; more < 2; more++) {
        auto_buf struct buf text;
        buf_init(&text, 1 << 16);
        assert_int_equal(buf_append_text(&text, "name: a\ncommand:\n  run: [x]\n  restart:\n"
                                                "    on_exit_codes: [1"),
                         ST_OK);
        for (int i = 1; i < JOBSPEC_CODES_MAX + more; i++)
            assert_int_equal(buf_printf(&text, ", %d", i + 1), ST_OK);
        assert_int_equal(buf_append_text(&text, "]\n  env:\n"), ST_OK);
        for (int i = 0; i < JOBSPEC_VARIABLES_MAX + more; i++)
            assert_int_equal(buf_printf(&text, "    V%d: x\n", i), ST_OK);
        if (more == 0) {
            parse_good(text.data, NULL, job);
            assert_int_equal(job->command.restart.code_count, JOBSPEC_CODES_MAX);
        } else {
            parse_bad(text.data, NULL, "has at most 32 codes");
            parse_bad(text.data, NULL, "sets at most 256 variables");
        }
    }
}

static void any_number_of_workers_from_one_on_has_a_layout(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(least, TEXTS("workers={count: 5, min: 2}"), job);
    assert_int_equal(jobspec_workers_most(job), 5);
    for (int64_t workers = 1; workers <= 5; workers++) {
        struct jobspec_layout layout;
        uint32_t sum = 0;
        assert_int_equal(jobspec_layout_of(job, workers, &layout), ST_OK);
        assert_int_equal(layout.stage_count, 1);
        assert_int_equal(layout.workers[0], workers);
        for (int64_t w = 0; w < workers; w++) {
            assert_true(layout.shares[w] > 0);
            sum += layout.shares[w];
        }
        assert_int_equal(sum, 5);
    }
    struct jobspec_layout layout;
    assert_int_equal(jobspec_layout_of(job, 6, &layout), ST_INVALID);
    assert_int_equal(jobspec_layout_of(job, 0, &layout), ST_INVALID);
    assert_int_equal(jobspec_state_bytes(job), 0);
}

static void command_is_shown_as_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *run, *line;
    } rows[] = {
        { "[python3, train.py, --lr=0.1, a/b@c]", "python3 train.py --lr=0.1 a/b@c" },
        { "[x, '', 'a b', \"it's\", '$A', \"a\\nb\"]", "x '' 'a b' 'it'\\''s' '$A' 'a b'" },
        { "\"set -e\\n\\tpython3 $A\\n\\n\"", "set -e  python3 $A" },
        { "[abcdefghijklmnopqrstuvwxyz, abcdefghijk]", "abcdefghijklmnopqrstuvwxyz abcdefghijk" },
        { "[abcdefghijklmnopqrstuvwxyz, abcdefghijkl]", "abcdefghijklmnopqrstuvwxyz abcdefghijkl" },
        { "[abcdefghijklmnopqrstuvwxyz, abcdefghijklm]",
          "abcdefghijklmnopqrstuvwxyz abcdefghi..." },
        { "abcdefghijklmnopqrstuvwxyz123456789\xc3\xa9xyz",
          "abcdefghijklmnopqrstuvwxyz123456789..." },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[256], line[40], none[1];
        (void)snprintf(text, sizeof(text), "name: a\ncommand: {run: %s}\n", rows[i].run);
        parse_good(text, NULL, job);
        jobspec_command_line(job, line, sizeof(line));
        assert_string_equal(line, rows[i].line);
        jobspec_command_line(job, none, sizeof(none));
        assert_string_equal(none, "");
    }
}

static void keys_know_for_which_jobs_they_are(void **state)
{
    (void)state;
    static const struct {
        const char *path, *not_for_commands;
    } rows[] = { { "train.optimizer.lr", "train" },
                 { "workers.shares", "workers.shares" },
                 { "nccl", "nccl" },
                 { "checkpoint.keep.best.n", "checkpoint" } };
    size_t at = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t index = 0;
        const struct field *field = schema_find(rows[i].path, &index);
        assert_non_null(field);
        assert_true(schema_is_for(field, SCHEMA_MODEL));
        assert_false(schema_is_for(field, SCHEMA_COMMAND));
        assert_int_equal(schema_is_for(field, SCHEMA_SAVED), i == 3);
        assert_int_equal(schema_not_for(field, SCHEMA_COMMAND), strlen(rows[i].not_for_commands));
    }
    assert_true(schema_is_for(schema_find("command.run", &at), SCHEMA_SAVED));
    assert_false(schema_is_for(schema_find("audit.every", &at), SCHEMA_SAVED));
}

static void epochs_need_a_program_that_has_some(void **state)
{
    (void)state;
    const struct jobspec_duration epochs = { JOBSPEC_EPOCHS, 2 }, none = { JOBSPEC_EPOCHS, 0 };
    const struct jobspec_duration steps = { JOBSPEC_STEPS, 7 };
    uint64_t out = 0;
    assert_int_equal(jobspec_duration_steps(&epochs, 10, &out), ST_OK);
    assert_int_equal(out, 20);
    assert_int_equal(jobspec_duration_steps(&epochs, 0, &out), ST_CONFIG);
    assert_int_equal(jobspec_duration_steps(&none, 0, &out), ST_OK);
    assert_int_equal(out, 0);
    assert_int_equal(jobspec_duration_steps(&steps, 0, &out), ST_OK);
    assert_int_equal(out, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_file_gets_the_defaults),
        cmocka_unit_test(every_key_of_a_command_is_kept),
        cmocka_unit_test(checkpoint_makes_it_a_job_that_is_saved),
        cmocka_unit_test(one_text_is_for_a_shell),
        cmocka_unit_test(nothing_of_a_model_is_in_a_job_with_a_command),
        cmocka_unit_test(nothing_of_a_command_is_in_a_job_with_a_model),
        cmocka_unit_test(printed_job_parses_to_the_same_job),
        cmocka_unit_test(settings_reach_into_a_command),
        cmocka_unit_test(texts_have_bounds),
        cmocka_unit_test(lists_have_bounds),
        cmocka_unit_test(any_number_of_workers_from_one_on_has_a_layout),
        cmocka_unit_test(command_is_shown_as_one_line),
        cmocka_unit_test(keys_know_for_which_jobs_they_are),
        cmocka_unit_test(epochs_need_a_program_that_has_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
