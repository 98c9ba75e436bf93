/* Arguments, exit codes, numbers for people, progress, tables, help and completion. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cairn/v1/control.pb-c.h"
#include "client/action/completion.h"
#include "client/ask/target.h"
#include "client/base/options.h"
#include "client/base/plain.h"
#include "client/commands.h"
#include "client/home/supervisor.h"
#include "client/print/format.h"
#include "client/print/job.h"
#include "client/print/loss_course.h"
#include "client/print/moment.h"
#include "client/print/output.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "tests/test.h"

/* ---- arguments ---- */

struct parsed {
    enum status st;
    struct arguments args;
    const struct command *command;
    struct reason reason;
};

#define PARSE(...) parse((char *[]){ __VA_ARGS__, NULL })

static struct parsed parse(char **words)
{
    struct parsed out = { .st = ST_OK };
    int count = 0;
    while (words[count] != NULL)
        count++;
    out.st = arguments_parse(&commands, count, words, &out.args, &out.command, &out.reason);
    return out;
}

static void options_stand_anywhere_and_take_values_in_every_way(void **state)
{
    (void)state;
    struct parsed p = PARSE("-q", "submit", "--set", "a=1", "job.yaml", "--set=b.c=2", "-ojson",
                            "--timeout", "5m", "--wait");
    assert_int_equal(p.st, ST_OK);
    assert_string_equal(p.command->verb, "submit");
    assert_true(p.args.quiet && p.args.wait);
    assert_int_equal(p.args.set_count, 2);
    assert_string_equal(p.args.sets[0], "a=1");
    assert_string_equal(p.args.sets[1], "b.c=2");
    assert_int_equal(p.args.output, OUTPUT_JSON);
    assert_int_equal(p.args.timeout_ms, 300000);
    assert_int_equal(p.args.operand_count, 1);
    assert_string_equal(p.args.operands[0], "job.yaml");
}

static void a_noun_has_verbs_and_two_dashes_end_the_options(void **state)
{
    (void)state;
    struct parsed p = PARSE("ckpt", "verify", "-o", "jsonl", "--", "-strange");
    assert_int_equal(p.st, ST_OK);
    assert_string_equal(p.command->noun, "ckpt");
    assert_string_equal(p.command->verb, "verify");
    assert_int_equal(p.args.output, OUTPUT_JSONL);
    assert_string_equal(p.args.operands[0], "-strange");
}

static void what_is_absent_has_a_value_of_its_own(void **state)
{
    (void)state;
    struct parsed p = PARSE("logs", "j");
    assert_int_equal(p.args.rank, -1);
    assert_int_equal(p.args.attempt, -1);
    assert_int_equal(p.args.timeout_ms, -1);
    p = PARSE("logs", "j", "--rank", "0", "-f");
    assert_int_equal(p.args.rank, 0);
    assert_true(p.args.follow);
}

static void mistakes_are_named_and_the_nearest_is_suggested(void **state)
{
    (void)state;
    static const struct {
        char *words[6];
        const char *error;
    } cases[] = {
        { { "sumbit", "x" }, "there is no command 'sumbit'; did you mean 'cairn submit'?" },
        { { "ckpt", "vreify" },
          "there is no command 'ckpt vreify'; did you mean 'cairn ckpt "
          "verify'?" },
        { { "frobnicate" }, "there is no command 'frobnicate'; 'cairn -h' lists them" },
        { { "ckpt" }, "'cairn ckpt' needs a verb; 'cairn ckpt -h' lists them" },
        { { "ps", "--ouptut", "json" }, "there is no option --ouptut; did you mean --output?" },
        { { "ps", "-o", "xml" }, "-o takes table, wide, json, jsonl or name, not 'xml'" },
        { { "ps", "-o" }, "-o needs a value: FORMAT" },
        { { "show" }, "something is missing: cairn show JOB" },
        { { "show", "a", "b" }, "'b' is one argument too many" },
        { { "set", "a" }, "something is missing: cairn set JOB KEY=VALUE..." },
        { { "logs", "a", "--rank", "-3" }, "--rank needs a whole number, not '-3'" },
        { { "logs", "a", "--follow=yes" }, "--follow takes no value" },
        { { "watch", "a", "--timeout", "soon" },
          "--timeout needs a time like 30s or 5m, not "
          "'soon'" },
        { { "ps", "--set", "a=1" }, "there is no option --set" },
        { { "logs", "a", "--rank", "4294967296" }, "--rank: 4294967296 is too large" },
        { { "bogus" }, "there is no command 'bogus'; 'cairn -h' lists them" },
        { { "wait", "x" }, "there is no command 'wait'; did you mean 'cairn watch'?" },
        { { "extend", "x" },
          "there is no command 'extend'; another job starts with the weights of this one: 'cairn "
          "ckpt export JOB FILE', then 'cairn submit JOBFILE --set model.weights=FILE'" },
        { { "fork", "x" },
          "there is no command 'fork'; another job starts with the weights of this one: 'cairn "
          "ckpt export JOB FILE', then 'cairn submit JOBFILE --set model.weights=FILE'" },
        { { "ckpt", "list" }, "there is no command 'ckpt list'; did you mean 'cairn ckpt ls'?" },
        { { "ckpt", "delete" },
          "there is no command 'ckpt delete'; did you mean 'cairn ckpt rm'?" },
        { { "submit", "a", "--priority=1" },
          "there is no option --priority=1; jobs train in the order of submission; 'cairn pause' "
          "makes room" },
        { { "sbatch", "x" }, "there is no command 'sbatch'; did you mean 'cairn submit'?" },
        { { "nodes" }, "there is no command 'nodes'; did you mean 'cairn node ls'?" },
        { { "help", "sbatch" }, "there is no command 'sbatch'; did you mean 'cairn submit'?" },
        { { "submit", "a", "--name", "b" },
          "there is no option --name; the name stands in the job file; --set name=NAME replaces "
          "it" },
        { { "submit", "a", "--dry-run" },
          "there is no option --dry-run; 'cairn plan FILE' checks a job file and starts nothing" },
        { { "submit", "a", "--gpus=4" },
          "there is no option --gpus=4; --set workers.device=cuda --set workers.count=N" },
        { { "up", "-w" }, "there is no option -w" },
        { { "why", "a", "--watch" }, "there is no option --watch" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct parsed p = parse((char **)cases[i].words);
        assert_int_equal(p.st, ST_INVALID);
        assert_string_equal(p.reason.text, cases[i].error);
    }
}

static void commands_of_one_form_refuse_another(void **state)
{
    (void)state;
    static const char *const calls[] = { "up", "down", "open" };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct arguments args;
        const struct command *command = NULL;
        struct reason reason = { "" };
        char *argv[] = { (char *)calls[i], (char *)"-o", (char *)"json" };
        assert_int_equal(arguments_parse(&commands, 3, argv, &args, &command, &reason), ST_INVALID);
        assert_non_null(strstr(reason.text, calls[i]));
        assert_non_null(strstr(reason.text, "-o"));
        assert_int_equal(arguments_parse(&commands, 1, argv, &args, &command, &reason), ST_OK);
    }
}

static void help_is_asked_for_without_the_words_that_a_command_needs(void **state)
{
    (void)state;
    assert_true(PARSE("show", "-h").args.help);
    assert_int_equal(PARSE("show", "-h").st, ST_OK);
    struct parsed p = PARSE("ckpt", "--help");
    assert_int_equal(p.st, ST_OK);
    assert_null(p.command);
    assert_string_equal(p.args.operands[0], "ckpt");
}

static void help_and_version_are_found_as_elsewhere(void **state)
{
    (void)state;
    struct parsed p = PARSE("help");
    assert_true(p.st == ST_OK && p.args.help && p.command == NULL);
    p = PARSE("help", "submit");
    assert_true(p.st == ST_OK && p.args.help);
    assert_string_equal(p.command->verb, "submit");
    p = PARSE("help", "ckpt");
    assert_true(p.st == ST_OK && p.args.help && p.command == NULL);
    assert_string_equal(p.args.operands[0], "ckpt");
    p = PARSE("show", "help"); /* a job's name */
    assert_true(p.st == ST_OK && !p.args.help);
    p = PARSE("--version", "-o", "json");
    assert_int_equal(p.st, ST_OK);
    assert_string_equal(p.command->verb, "version");
}

static void every_command_can_be_called_and_has_an_example(void **state)
{
    (void)state;
    const struct command *table = commands.commands;
    for (size_t i = 0; i < commands.count; i++) {
        char *words[] = { NULL, NULL, "-h", NULL };
        size_t n = 0;
        if (table[i].noun != NULL)
            words[n++] = (char *)table[i].noun;
        words[n++] = (char *)table[i].verb;
        words[n++] = "-h";
        words[n] = NULL;
        struct parsed p = parse(words);
        assert_int_equal(p.st, ST_OK);
        assert_ptr_equal(p.command, &table[i]);
        assert_true(strlen(table[i].examples) > 0);
        assert_true(strlen(table[i].summary) > 0);
        assert_non_null(table[i].run);
    }
}

static void times_are_read_with_their_units(void **state)
{
    (void)state;
    int64_t ms = 0;
    assert_true(option_duration_parse("30", &ms) && ms == 30000);
    assert_true(option_duration_parse("500ms", &ms) && ms == 500);
    assert_true(option_duration_parse("1.5 m", &ms) && ms == 90000);
    assert_true(option_duration_parse("2h", &ms) && ms == 7200000);
    assert_false(option_duration_parse("", &ms));
    assert_false(option_duration_parse("-1s", &ms));
    assert_false(option_duration_parse("5 parsecs", &ms));
    assert_false(option_duration_parse("nan", &ms));
}

/* ---- exit codes ---- */

static void codes_of_the_wire_become_the_exit_codes_that_scripts_rely_on(void **state)
{
    (void)state;
    assert_int_equal(exit_of_code(RPC_OK), 0);
    assert_int_equal(exit_of_code(RPC_INTERNAL), 1);
    assert_int_equal(exit_of_code(RPC_INVALID_ARGUMENT), 2);
    assert_int_equal(exit_of_code(RPC_NOT_FOUND), 3);
    assert_int_equal(exit_of_code(RPC_FAILED_PRECONDITION), 4);
    assert_int_equal(exit_of_code(RPC_PERMISSION_DENIED), 4);
    assert_int_equal(exit_of_code(RPC_RESOURCE_EXHAUSTED), 4);
    assert_int_equal(exit_of_code(RPC_UNAVAILABLE), 5);
    assert_int_equal(exit_of_code(RPC_DEADLINE_EXCEEDED), 5);
    assert_int_equal(exit_of_status(ST_CORRUPT), 8);
    assert_int_equal(exit_of_status(ST_INCOMPLETE), 8);
    assert_int_equal(exit_of_status(ST_VERSION), 4);
    assert_int_equal(exit_of_status(ST_NOT_FOUND), 3);
}

static void the_end_of_a_job_is_the_exit_code_of_waiting_for_it(void **state)
{
    (void)state;
    assert_int_equal(job_exit(CAIRN__V1__JOB_STATE__SUCCEEDED), 0);
    assert_int_equal(job_exit(CAIRN__V1__JOB_STATE__FAILED), 10);
    assert_int_equal(job_exit(CAIRN__V1__JOB_STATE__STOPPED), 11);
    assert_int_equal(job_exit(CAIRN__V1__JOB_STATE__KILLED), 11);
    assert_false(job_is_over(CAIRN__V1__JOB_STATE__PAUSED));
    assert_string_equal(job_state_name(CAIRN__V1__JOB_STATE__RECOVERING), "RECOVERING");
    assert_string_equal(job_state_name((Cairn__V1__JobState)99), "?");
}

/* ---- numbers for people ---- */

static void seconds_bytes_and_ages_are_short(void **state)
{
    (void)state;
    char text[64];
    assert_string_equal(format_seconds(0.44, text, sizeof(text)), "0.4s");
    assert_string_equal(format_seconds(59.4, text, sizeof(text)), "59s");
    assert_string_equal(format_seconds(59.7, text, sizeof(text)), "1m00s");
    assert_string_equal(format_seconds(314, text, sizeof(text)), "5m14s");
    assert_string_equal(format_seconds(7384, text, sizeof(text)), "2h03m");
    assert_string_equal(format_seconds(NAN, text, sizeof(text)), "-");
    assert_string_equal(format_seconds(-1, text, sizeof(text)), "-");
    assert_string_equal(format_bytes(0, text, sizeof(text)), "0 B");
    assert_string_equal(format_bytes(1023, text, sizeof(text)), "1023 B");
    assert_string_equal(format_bytes(1024 * 1024 - 1, text, sizeof(text)), "1.0 MiB");
    assert_string_equal(format_bytes(UINT64_MAX, text, sizeof(text)), "16.0 EiB");
    assert_string_equal(format_number(NAN, text, sizeof(text)), "-");
    int64_t ms = 0;
    assert_true(format_read_time("2026-01-02T03:04:05.250Z", &ms));
    assert_true(ms % 1000 == 250);
    assert_string_equal(format_age("2026-01-02T03:04:05Z", ms + 61000, text, sizeof(text)), "1m");
    assert_string_equal(format_age("", ms, text, sizeof(text)), "-");
    assert_false(format_read_time("yesterday", &ms));
}

static void a_spike_never_vanishes_from_the_sparkline(void **state)
{
    (void)state;
    float values[1000];
    char text[64];
    for (size_t i = 0; i < 1000; i++)
        values[i] = 1;
    values[537] = 100;
    assert_string_equal(format_sparkline(values, 1000, 10, false, text, sizeof(text)),
                        "_____@____");
    values[900] = NAN;
    assert_string_equal(format_sparkline(values, 1000, 10, false, text, sizeof(text)),
                        "_____@___!");
    assert_string_equal(format_sparkline(values, 0, 10, false, text, sizeof(text)), "");
    float rising[4] = { 0, 1, 2, 3 };
    assert_string_equal(format_sparkline(rising, 4, 10, true, text, sizeof(text)), "▁▃▆█");
    assert_string_equal(format_sparkline(values, 3, 10, false, text, sizeof(text)), "___");
}

static void a_bar_is_filled_by_its_fraction_and_no_further(void **state)
{
    (void)state;
    char text[64];
    assert_string_equal(format_bar(0.5, 4, false, text, sizeof(text)), "##..");
    assert_string_equal(format_bar(7, 4, false, text, sizeof(text)), "####");
    assert_string_equal(format_bar(NAN, 4, false, text, sizeof(text)), "....");
    assert_string_equal(format_bar(1, 2, true, text, sizeof(text)), "██");
}

static void lines_are_cut_by_what_is_seen_not_by_bytes(void **state)
{
    (void)state;
    assert_int_equal(format_cells("\033[32mgrün\033[0m"), 4);
    assert_int_equal(format_fit("\033[32mgrün\033[0m", 3), 5 + 4);
    assert_int_equal(format_fit("abc", 9), 3);
    assert_int_equal(format_fit("abc", 0), 0);
}

static void what_would_steer_a_terminal_becomes_visible(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "gr\303\274n \342\226\210\n\tx", "gr\303\274n \342\226\210\n\tx" },
        { "\033[2J\r\177", "^[[2J^M^?" },
        { "\302\2332J \342\200\256 \342\201\246", "<U+009B>2J <U+202E> <U+2066>" },
        { "\233 \303", "<9B> <C3>" },
        { "\300\200 \355\240\200", "<C0><80> <ED><A0><80>" },
        { "", "" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        auto_free char *plain = plain_text(cases[i][0]);
        assert_string_equal(plain, cases[i][1]);
    }
}

static void moments_have_a_zone_and_a_date_where_it_is_not_today_s(void **state)
{
    (void)state;
    char out[MOMENT_BYTES];
    const int64_t at = 1764434455065, day = 86400000; /* 2025-11-29T16:40:55.065Z */
    (void)setenv("TZ", "IST-05:30", 1);
    tzset();
    assert_string_equal(moment_text(at, MOMENT_UTC, true, at, out), "2025-11-29T16:40:55.065Z");
    assert_string_equal(moment_text(at, MOMENT_LOCAL, true, at, out), "22:10:55.065+05:30");
    assert_string_equal(moment_text(at, MOMENT_LOCAL, false, at + day, out),
                        "2025-11-29 22:10:55+05:30");
    assert_string_equal(moment_text(at, MOMENT_SHORT, false, at, out), "22:10:55");
    static const char said[] = "from 2025-11-29T16:40:55Z to 2025-11-29T20:00:00.5Z, not "
                               "2025-11-29T16:40:55, 12025-11-29T1";
    auto_free char *here = moment_rewrite(said, MOMENT_LOCAL, at);
    assert_string_equal(here, "from 22:10:55+05:30 to 2025-11-30 01:30:00.500+05:30, not "
                              "2025-11-29T16:40:55, 12025-11-29T1");
    auto_free char *there = moment_rewrite(said, MOMENT_UTC, at);
    assert_string_equal(there, said);
}

/* ---- the course of the losses ---- */

static void a_replayed_step_takes_the_place_of_the_old_course(void **state)
{
    (void)state;
    struct loss_course *course = malloc(sizeof(*course));
    assert_non_null(course);
    loss_course_init(course);
    for (uint64_t step = 1; step <= 10; step++)
        loss_course_add(course, 1, step, (float)step);
    loss_course_add(course, 2, 6, 60);
    loss_course_add(course, 1, 11, 11); /* late */
    assert_int_equal(course->loss_count, 6);
    assert_true(course->losses[5] == 60 && course->losses[4] == 5);
    for (uint64_t step = 7; step <= 20000; step++)
        loss_course_add(course, 2, step, (float)step);
    assert_in_range(course->loss_count, LOSS_COURSE_MAX / 2, LOSS_COURSE_MAX);
    assert_true(course->losses[course->loss_count - 1] == 20000);
    free(course);
}

/* ---- tables ---- */

static void a_table_is_aligned_and_wide_shows_more(void **state)
{
    (void)state;
    Cairn__V1__Checkpoint one = CAIRN__V1__CHECKPOINT__INIT;
    Cairn__V1__Checkpoint two = CAIRN__V1__CHECKPOINT__INIT;
    one.step = 5;
    one.generation = 1;
    one.bytes = 1 << 20;
    one.raw_bytes = 3 << 19;
    one.shards = 2;
    one.status = "good";
    one.digest = "0123";
    one.path = "/a";
    one.verified__case = CAIRN__V1__CHECKPOINT__VERIFIED__VERIFIED;
    one.verified = true;
    one.loss = 2.5;
    one.eval_loss = one.eval_accuracy = (double)NAN;
    two.step = 12345;
    two.generation = 12;
    two.status = "bad";
    two.parent_step = 5;
    two.parent_generation = 1;
    ProtobufCMessage *rows[] = { &one.base, &two.base };
    auto_buf struct buf out;
    buf_init(&out, 65536);
    assert_int_equal(output_table(checkpoint_columns, false, true, rows, 2, &out), ST_OK);
    assert_string_equal(out.data,
                        " STEP  ATTEMPT  AGE     SIZE  RATIO  PARENT  SHARDS  STATUS  DIGEST\n"
                        "    5        1    -  1.0 MiB  1.500       -       2  good    0123\n"
                        "12345       12    -      0 B      -       5       0  bad     -\n");
    buf_clear(&out);
    assert_int_equal(output_table(checkpoint_columns, true, false, rows, 1, &out), ST_OK);
    assert_string_equal(
        out.data, "5  1  -  1.0 MiB  1.500  -  2  good  yes  2.5  -  -  -  -  -  -  -  -  0123  "
                  "/a\n");
    Cairn__V1__SaveTimes times = CAIRN__V1__SAVE_TIMES__INIT;
    times.stall_us = 1550;
    times.encode_us = 2000000;
    times.commit_us = 12000;
    one.times = &times;
    one.verified = false;
    buf_clear(&out);
    assert_int_equal(output_table(checkpoint_columns, true, false, rows, 1, &out), ST_OK);
    assert_non_null(
        strstr(out.data, "  no  2.5  -  -  1.6ms  2.0s  0.0ms  0.0ms  0.0ms  12.0ms  0123"));
}

static void workers_that_are_there_and_spares_fit_a_line(void **state)
{
    (void)state;
    static const struct {
        uint32_t count, min, asked;
        const char *workers[5], *spares[3];
        const char *line;
    } cases[] = {
        { 0, 0, 0, { "running" }, { NULL }, "" },
        { 2, 2, 0, { "running", "running" }, { NULL }, "2" },
        { 2, 1, 1, { NULL }, { NULL }, "2 (min 1), 1 spare" },
        { 2, 2, 2, { "gone", "gone" }, { NULL }, "2, 2 spares" },
        { 4,
          2,
          1,
          { "running", "gone", "running", "forming" },
          { "warm" },
          "3 of 4 (min 2), 1 spare (warm)" },
        { 2, 2, 1, { "running", "running" }, { NULL }, "2, 1 spare (waits for a slot)" },
        { 2, 2, 2, { "running", "running" }, { NULL }, "2, 2 spares (2 wait for slots)" },
        { 1,
          1,
          3,
          { "running" },
          { "warm", "starting" },
          "1, 3 spares (1 warm, 1 starting, 1 waits for a slot)" },
        { 1, 1, 0, { "running", "running" }, { NULL }, "2 of 1" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Cairn__V1__Worker workers[5], *worker_list[5];
        Cairn__V1__Spare spares[3], *spare_list[3];
        Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
        job.workers_count = cases[i].count;
        job.workers_min = cases[i].min;
        job.workers_spares = cases[i].asked;
        job.workers = worker_list;
        job.spares = spare_list;
        for (size_t w = 0; w < 5 && cases[i].workers[w] != NULL; w++) {
            cairn__v1__worker__init(&workers[w]);
            workers[w].state = (char *)cases[i].workers[w];
            worker_list[job.n_workers++] = &workers[w];
        }
        for (size_t w = 0; w < 3 && cases[i].spares[w] != NULL; w++) {
            cairn__v1__spare__init(&spares[w]);
            spares[w].state = (char *)cases[i].spares[w];
            spare_list[job.n_spares++] = &spares[w];
        }
        char line[OUTPUT_CELL_BYTES];
        job_workers(&job, line, sizeof(line));
        assert_string_equal(line, cases[i].line);
    }
}

/* ---- lists ---- */

static Cairn__V1__ListCheckpointsReply *page_of(uint64_t first, size_t count)
{
    Cairn__V1__ListCheckpointsReply *page = malloc(sizeof(*page));
    assert_non_null(page);
    cairn__v1__list_checkpoints_reply__init(page);
    page->checkpoints = calloc(count + 1, sizeof(*page->checkpoints));
    for (; page->n_checkpoints < count; page->n_checkpoints++) {
        Cairn__V1__Checkpoint *one = malloc(sizeof(*one));
        cairn__v1__checkpoint__init(one);
        one->step = first - page->n_checkpoints;
        page->checkpoints[page->n_checkpoints] = one;
    }
    return page;
}

static void pages_become_one_list_in_their_order(void **state)
{
    (void)state;
    Cairn__V1__ListCheckpointsReply *all = NULL;
    assert_true(target_join(&all, page_of(9, 3)));
    assert_true(target_join(&all, page_of(6, 2)));
    assert_true(target_join(&all, page_of(4, 0)));
    assert_true(target_join(&all, page_of(4, 4)));
    assert_int_equal(all->n_checkpoints, 9);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(all->checkpoints[i]->step, 9 - i);
    cairn__v1__list_checkpoints_reply__free_unpacked(all, NULL);
}

/* ---- supervisor ---- */

static void restarts_wait_longer_each_time_and_forget_after_a_healthy_life(void **state)
{
    (void)state;
    int64_t wait = 0;
    static const int64_t expected[] = { 100, 200, 400, 800, 1600, 3200, 5000, 5000 };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        wait = supervisor_backoff_ms(wait, 50);
        assert_int_equal(wait, expected[i]);
    }
    assert_int_equal(supervisor_backoff_ms(wait, 10000), 100);
}

/* ---- completion ---- */

static void completion_scripts_know_every_command_and_option(void **state)
{
    (void)state;
    static const char *const shells[] = { "bash", "zsh", "fish" };
    const struct command *table = commands.commands;
    for (size_t s = 0; s < 3; s++) {
        auto_buf struct buf script;
        buf_init(&script, 1 << 20);
        assert_int_equal(completion_script(&commands, shells[s], &script), ST_OK);
        for (size_t i = 0; i < commands.count; i++) {
            if (table[i].hidden)
                continue;
            assert_non_null(strstr(script.data, table[i].verb));
            for (const struct option *o = table[i].options; o != NULL && o->name != NULL; o++)
                assert_non_null(strstr(script.data, o->name));
        }
        assert_null(strstr(script.data, "supervise"));
    }
    auto_buf struct buf script;
    buf_init(&script, 1 << 20);
    assert_int_equal(completion_script(&commands, "tcsh", &script), ST_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_stand_anywhere_and_take_values_in_every_way),
        cmocka_unit_test(a_noun_has_verbs_and_two_dashes_end_the_options),
        cmocka_unit_test(what_is_absent_has_a_value_of_its_own),
        cmocka_unit_test(mistakes_are_named_and_the_nearest_is_suggested),
        cmocka_unit_test(commands_of_one_form_refuse_another),
        cmocka_unit_test(help_is_asked_for_without_the_words_that_a_command_needs),
        cmocka_unit_test(help_and_version_are_found_as_elsewhere),
        cmocka_unit_test(every_command_can_be_called_and_has_an_example),
        cmocka_unit_test(times_are_read_with_their_units),
        cmocka_unit_test(codes_of_the_wire_become_the_exit_codes_that_scripts_rely_on),
        cmocka_unit_test(the_end_of_a_job_is_the_exit_code_of_waiting_for_it),
        cmocka_unit_test(seconds_bytes_and_ages_are_short),
        cmocka_unit_test(a_spike_never_vanishes_from_the_sparkline),
        cmocka_unit_test(a_bar_is_filled_by_its_fraction_and_no_further),
        cmocka_unit_test(lines_are_cut_by_what_is_seen_not_by_bytes),
        cmocka_unit_test(what_would_steer_a_terminal_becomes_visible),
        cmocka_unit_test(moments_have_a_zone_and_a_date_where_it_is_not_today_s),
        cmocka_unit_test(a_replayed_step_takes_the_place_of_the_old_course),
        cmocka_unit_test(a_table_is_aligned_and_wide_shows_more),
        cmocka_unit_test(workers_that_are_there_and_spares_fit_a_line),
        cmocka_unit_test(pages_become_one_list_in_their_order),
        cmocka_unit_test(restarts_wait_longer_each_time_and_forget_after_a_healthy_life),
        cmocka_unit_test(completion_scripts_know_every_command_and_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
