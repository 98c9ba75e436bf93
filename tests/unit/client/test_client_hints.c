/* What people are told: commands of elsewhere, the manual, folded events, room for checkpoints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/action/completion.h"
#include "client/base/options.h"
#include "client/commands.h"
#include "client/manual.h"
#include "client/preflight/capacity.h"
#include "client/print/job.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "tests/test.h"

/* ---- words of elsewhere ---- */

static bool is_command(const char *words)
{
    for (size_t i = 0; i < commands.count; i++) {
        const struct command *command = &commands.commands[i];
        char name[80];
        (void)snprintf(name, sizeof(name), "%s%s%s", command->noun == NULL ? "" : command->noun,
                       command->noun == NULL ? "" : " ", command->verb);
        if (strcmp(name, words) == 0 && !command->hidden)
            return true;
    }
    return false;
}

static void words_of_elsewhere_lead_to_commands_that_are_there(void **state)
{
    (void)state;
    static const char *const words[] = {
        "sbatch", "srun",   "salloc",   "qsub",       "bsub",   "torchrun", "run",    "apply",
        "create", "squeue", "sacct",    "qstat",      "bjobs",  "scancel",  "cancel", "delete",
        "qdel",   "bkill",  "scontrol", "describe",   "get",    "status",   "htop",   "events",
        "tail",   "hold",   "release",  "scale",      "sinfo",  "nodes",    "drain",  "cordon",
        "list",   "start",  "uncordon", "checkpoint", "export", "verify",   "check",  "jobs",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char *argv[] = { (char *)words[i], "x", NULL };
        struct arguments args;
        const struct command *command = NULL;
        struct reason reason = { "" };
        char meant[80] = "", asked[80] = "";
        assert_int_equal(arguments_parse(&commands, 2, argv, &args, &command, &reason), ST_INVALID);
        if (sscanf(reason.text, "there is no command '%79[^']'; did you mean 'cairn %79[^']'?",
                   asked, meant) != 2)
            fail_msg("%s", reason.text);
        assert_string_equal(asked, words[i]);
        assert_true(is_command(meant));
    }
}

/* ---- completion ---- */

static void values_of_options_are_offered_from_the_table(void **state)
{
    (void)state;
    auto_buf struct buf script;
    buf_init(&script, 1 << 20);
    assert_int_equal(completion_script(&commands, "bash", &script), ST_OK);
    assert_non_null(
        strstr(script.data, "\"ckpt diff --sort\") cairn_words=\"stored relative max\""));
    assert_non_null(strstr(script.data, "*\" --output\"|*\" -o\") cairn_words=\"table wide json"));
    assert_non_null(
        strstr(script.data, "\"metrics --output\"|\"metrics -o\") cairn_words=\"table csv"));
    assert_non_null(strstr(script.data, "\"ps --state\") cairn_words=\"active over queued"));
    assert_non_null(
        strstr(script.data, "\"cert check --key\") cairn_words=\"\"; cairn_kind=\"files\""));
    assert_null(strstr(script.data, "manual"));
}

/* ---- the manual ---- */

static void the_manual_has_every_command_and_every_option(void **state)
{
    (void)state;
    auto_buf struct buf page;
    buf_init(&page, 1 << 20);
    assert_int_equal(manual_of_table(&commands, &page), ST_OK);
    size_t titles = 0, shown = 0;
    for (const char *at = page.data; (at = strstr(at, "\n.SS ")) != NULL; at++)
        titles++;
    for (size_t i = 0; i < commands.count; i++)
        shown += !commands.commands[i].hidden;
    assert_int_equal(titles, shown);
    assert_non_null(strstr(page.data, "\\fB\\-w, \\-\\-watch\\fR\n"));
    assert_non_null(strstr(page.data, "\\fB\\-\\-set\\fR \\fIK=V\\fR\n"));
    assert_non_null(strstr(page.data, ".SH EXIT STATUS\n"));
    assert_null(strstr(page.data, "supervise"));
}

static void the_help_of_a_program_becomes_a_page(void **state)
{
    (void)state;
    auto_buf struct buf page;
    buf_init(&page, 1 << 16);
    static const char help[] = "usage: x [--a N]\n"
                               "         [--b]\n"
                               "\n"
                               "What it's for.\n"
                               "\n"
                               "  --a N  first\n"
                               "         and more\n"
                               "  --b    .second\n"
                               "\n"
                               "The end.\n";
    assert_int_equal(manual_of_help("x", "a thing", help, &page), ST_OK);
    assert_non_null(
        strstr(page.data, "x \\- a thing\n.SH SYNOPSIS\n.nf\nx [\\-\\-a N]\n  [\\-\\-b]\n.fi\n"));
    assert_non_null(
        strstr(page.data, "What it\\(aqs for.\n.TP\n\\fB\\-\\-a N\\fR\nfirst\nand more\n"));
    assert_non_null(strstr(page.data, ".TP\n\\fB\\-\\-b\\fR\n\\&.second\n.PP\nThe end.\n"));
}

/* ---- events ---- */

static char *show(enum output_format format, const char *const *kinds, size_t count)
{
    Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
    Cairn__V1__Event events[16], *list[16];
    struct client client = { .args = { .output = format } };
    char path[] = "/tmp/cairn-test-XXXXXX";
    static char text[8192];
    for (size_t i = 0; i < count; i++) {
        cairn__v1__event__init(&events[i]);
        events[i].time = "T";
        events[i].kind = (char *)kinds[i];
        events[i].message = "m";
        events[i].step = 100 * (i + 1);
        list[i] = &events[i];
    }
    job.events = list;
    job.n_events = count;
    job.id = "j-1";
    job.name = "a";
    int out = dup(STDOUT_FILENO), file = mkstemp(path);
    assert_true(out >= 0 && file >= 0);
    assert_int_equal(fflush(stdout), 0);
    assert_true(dup2(file, STDOUT_FILENO) >= 0);
    enum exit_code code = job_show(&client, &job);
    assert_true(dup2(out, STDOUT_FILENO) >= 0);
    assert_int_equal(code, EXIT_DONE);
    ssize_t size = pread(file, text, sizeof(text) - 1, 0);
    assert_true(size > 0);
    text[size] = '\0';
    (void)close(out);
    (void)close(file);
    (void)unlink(path);
    return text;
}

static void saves_in_a_row_are_one_line(void **state)
{
    (void)state;
    static const char *const kinds[] = { "saved", "saved", "saved", "saved", "fault",
                                         "saved", "saved", "fault", "saved", "fault",
                                         "saved", "saved", "saved" };
    const char *text = show(OUTPUT_TABLE, kinds, 13);
    assert_non_null(strstr(text, "T  saved       steps 100, 200 ... 400 (4 checkpoints)\n"
                                 "T  fault       m\n"
                                 "T  saved       steps 600, 700 (2 checkpoints)\n"
                                 "T  fault       m\n"
                                 "T  saved       m\n"
                                 "T  fault       m\n"
                                 "T  saved       steps 1100, 1200 and 1300 (3 checkpoints)\n"));
    text = show(OUTPUT_WIDE, kinds, 13);
    assert_null(strstr(text, "checkpoints)"));
}

/* ---- room ---- */

static void room_is_that_of_all_that_are_kept_and_one_more(void **state)
{
    (void)state;
    auto_free struct jobspec *job = calloc(1, sizeof(*job));
    assert_non_null(job);
    job->checkpoint.keep_last = 8;
    assert_int_equal(capacity_count(job), 9);
    job->checkpoint.keep_best.metric = JOBSPEC_METRIC_LOSS;
    job->checkpoint.keep_best.n = 2;
    assert_int_equal(capacity_count(job), 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_elsewhere_lead_to_commands_that_are_there),
        cmocka_unit_test(values_of_options_are_offered_from_the_table),
        cmocka_unit_test(the_manual_has_every_command_and_every_option),
        cmocka_unit_test(the_help_of_a_program_becomes_a_page),
        cmocka_unit_test(saves_in_a_row_are_one_line),
        cmocka_unit_test(room_is_that_of_all_that_are_kept_and_one_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
