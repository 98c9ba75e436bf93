/* The agent's parts that need no coordinator. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/exit_cause.h"
#include "agent/last_words.h"
#include "agent/logs/tail.h"
#include "agent/record.h"
#include "agent/spawn.h"
#include "agent/telemetry/proc.h"
#include "common/flight.h"
#include "tests/test.h"

struct folder {
    struct paths paths;
    char file[LIMIT_PATH];
};

static int set_up(void **state)
{
    struct folder *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->paths.home, sizeof(f->paths.home), "/tmp/cairn-agent-XXXXXX");
    assert_non_null(mkdtemp(f->paths.home));
    char path[LIMIT_PATH];
    assert_int_equal(paths_join(&f->paths, path, sizeof(path), "agent"), ST_OK);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(paths_join(&f->paths, f->file, sizeof(f->file), "file"), ST_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct folder *f = *state;
    char command[LIMIT_PATH];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", f->paths.home);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static void put(const struct folder *f, const void *data, size_t size)
{
    FILE *file = fopen(f->file, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void reference_with_a_path_in_it_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "",    ".",   "..",       "../etc", "a/b",
                                       "a b", "a\n", "\xc3\xa4", ".hidden" };
    Cairn__V1__TrainerRef wire = CAIRN__V1__TRAINER_REF__INIT;
    struct ref ref;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        wire.job = (char *)bad[i];
        assert_int_equal(ref_from_wire(&wire, &ref), ST_INVALID);
    }
    char longest[LIMIT_NAME + 1];
    memset(longest, 'a', sizeof(longest) - 1);
    longest[LIMIT_NAME] = '\0';
    wire.job = longest;
    assert_int_equal(ref_from_wire(&wire, &ref), ST_INVALID);
    longest[LIMIT_NAME - 1] = '\0';
    assert_int_equal(ref_from_wire(&wire, &ref), ST_OK);
    wire.rank = LIMIT_NUMBERS; /* a spare's is beyond all ranks, and below that */
    assert_int_equal(ref_from_wire(&wire, &ref), ST_INVALID);
    assert_int_equal(ref_from_wire(NULL, &ref), ST_INVALID);
}

static struct record some_record(void)
{
    struct record record = { .ref = { .job = "j-0123456789", .generation = 7, .rank = 3 },
                             .node = "node-1",
                             .boot_id = "0f0f",
                             .slot = 2,
                             .state = RECORD_EXITED,
                             .pid = 4242,
                             .start_time = UINT64_C(1) << 40,
                             .exit = { .cause = CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL,
                                       .signal = 11,
                                       .message = { "with \"quotes\", \n and \xc3\xa4" } } };
    return record;
}

/* The log is that of the trainer that had the rank then: it may have been started for an earlier
 * generation. */
static void a_log_is_that_of_whoever_had_the_rank(void **state)
{
    const struct folder *f = *state;
    static const uint32_t born[] = { 2, 5, 1000007 };
    static const uint32_t asked[] = { 1, 2, 4, 5, 999999, 1000008 };
    static const uint32_t found[] = { 1, 2, 2, 5, 5, 1000007 };
    struct ref ref = some_record().ref;
    struct ref_files files;
    char folder[LIMIT_PATH];
    assert_int_equal(paths_join(&f->paths, folder, sizeof(folder), "jobs"), ST_OK);
    (void)mkdir(folder, 0755);
    assert_int_equal(paths_join(&f->paths, folder, sizeof(folder), "jobs/%s", ref.job), ST_OK);
    (void)mkdir(folder, 0755);
    for (size_t i = 0; i < sizeof(born) / sizeof(born[0]); i++) {
        ref.generation = born[i];
        assert_int_equal(ref_files(&ref, &f->paths, &files), ST_OK);
        assert_int_equal(mkdir(files.folder, 0755), 0);
        assert_int_equal(close(open(files.log, O_CREAT | O_WRONLY, 0644)), 0);
    }
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        ref.generation = asked[i];
        assert_int_equal(ref_born(&ref, &f->paths).generation, found[i]);
    }
    ref.rank++; /* which nobody had */
    assert_int_equal(ref_born(&ref, &f->paths).generation, ref.generation);
}

static void record_comes_back_as_it_was_written(void **state)
{
    const struct folder *f = *state;
    struct record in = some_record();
    struct ref_files files;
    in.ref.rank = LIMIT_NUMBERS - 1;
    assert_int_equal(ref_files(&in.ref, &f->paths, &files), ST_OK);
    for (int turn = 0; turn < 2; turn++) { /* the second replaces the first */
        in.state = turn == 0 ? RECORD_INTENT : RECORD_EXITED;
        assert_int_equal(record_write(io_system(), &f->paths, &in), ST_OK);
        struct record out;
        memset(&out, 0, sizeof(out));
        assert_int_equal(record_read(io_system(), files.record, &out), ST_OK);
        assert_string_equal(out.node, in.node);
        assert_true(ref_equal(&out.ref, &in.ref));
        assert_int_equal(out.slot, in.slot);
        assert_string_equal(out.boot_id, in.boot_id);
        assert_int_equal(out.state, in.state);
        assert_int_equal(out.pid, in.pid);
        assert_int_equal(out.start_time, in.start_time);
        assert_int_equal(out.exit.cause, in.exit.cause);
        assert_int_equal(out.exit.signal, in.exit.signal);
        assert_string_equal(out.exit.message.text, in.exit.message.text);
    }
    assert_int_equal(record_remove(io_system(), &f->paths, &in.ref), ST_OK);
    assert_int_equal(access(files.record, F_OK), -1);
    assert_int_equal(record_remove(io_system(), &f->paths, &in.ref), ST_OK);
}

static void damaged_record_is_refused(void **state)
{
    const struct folder *f = *state;
    struct record in = some_record();
    struct ref_files files;
    struct record out;
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(ref_files(&in.ref, &f->paths, &files), ST_OK);
    assert_int_equal(record_write(io_system(), &f->paths, &in), ST_OK);
    assert_int_equal(io_read_file(io_system(), files.record, 65536, &text, &size), ST_OK);
    for (size_t cut = 0; cut < size; cut++) {
        put(f, text, cut);
        assert_int_equal(record_read(io_system(), f->file, &out), ST_CORRUPT);
    }
    free(text);
    static const char escape[] =
        "{\"version\":1,\"node\":\"n\",\"job\":\"../../x\",\"generation\":1,\"rank\":0,\"slot\":0,"
        "\"boot_id\":\"\",\"state\":\"intent\",\"pid\":0,\"start_time\":0,\"cause\":0,\"code\":0,"
        "\"signal\":0,\"message\":\"\"}";
    put(f, escape, sizeof(escape) - 1);
    assert_int_equal(record_read(io_system(), f->file, &out), ST_CORRUPT);
}

static void count_path(void *arg, const char *path)
{
    assert_non_null(strstr(path, ".json"));
    (*(unsigned *)arg)++;
}

static void list_has_records_only(void **state)
{
    const struct folder *f = *state;
    struct record record = some_record();
    for (uint32_t rank = 0; rank < 3; rank++) {
        record.ref.rank = rank;
        assert_int_equal(record_write(io_system(), &f->paths, &record), ST_OK);
    }
    char path[LIMIT_PATH];
    assert_int_equal(paths_join(&f->paths, path, sizeof(path), "agent/n.lock"), ST_OK);
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
    unsigned count = 0;
    assert_int_equal(record_list(io_system(), &f->paths, count_path, &count), ST_OK);
    assert_int_equal(count, 3);
    struct paths nowhere = { .home = "/nonexistent" };
    assert_int_equal(record_list(io_system(), &nowhere, count_path, &count), ST_OK);
}

static struct exit_facts died(int code, int status)
{
    struct exit_facts facts = { .waited = true };
    facts.info.si_code = code;
    facts.info.si_status = status;
    return facts;
}

static void exit_cause_is_what_the_system_says(void **state)
{
    (void)state;
    struct exit_facts facts = died(CLD_EXITED, 3);
    struct exit_cause cause = exit_cause_decide(&facts);
    assert_int_equal(cause.cause, CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT);
    assert_int_equal(cause.code, 3);
    assert_string_equal(cause.message.text, "");
    char text[200];
    exit_cause_text(&cause, text, sizeof(text));
    assert_string_equal(text, "ended with exit code 3");
    (void)snprintf(facts.last_mark, sizeof(facts.last_mark), "in phase update of step 7");
    cause = exit_cause_decide(&facts);
    assert_string_equal(cause.message.text, "last in phase update of step 7");
    facts = died(CLD_EXITED, 0);
    (void)snprintf(facts.last_mark, sizeof(facts.last_mark), "in phase finishing of step 7");
    cause = exit_cause_decide(&facts);
    assert_string_equal(cause.message.text, ""); /* nothing is to be explained */

    facts = died(CLD_DUMPED, SIGSEGV);
    cause = exit_cause_decide(&facts);
    assert_int_equal(cause.cause, CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL);
    assert_int_equal(cause.signal, SIGSEGV);
    assert_string_equal(cause.message.text, "core dumped");
    (void)snprintf(facts.last_mark, sizeof(facts.last_mark), "in phase forward of step 7");
    cause = exit_cause_decide(&facts);
    exit_cause_text(&cause, text, sizeof(text));
    assert_string_equal(text, "was ended by signal 11 (SIGSEGV): core dumped, last in phase "
                              "forward of step 7");
}

static void sigkill_is_out_of_memory_only_if_the_counter_rose_and_it_was_not_ours(void **state)
{
    (void)state;
    struct exit_facts facts = died(CLD_KILLED, SIGKILL);
    assert_int_equal(exit_cause_decide(&facts).cause, CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL);
    facts.oom_rose = true;
    assert_int_equal(exit_cause_decide(&facts).cause, CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL);
    facts.sent = SIGTERM;
    assert_int_equal(exit_cause_decide(&facts).cause, CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL);
    facts.sent = SIGKILL;
    assert_int_equal(exit_cause_decide(&facts).cause, CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL);
}

static void exit_of_an_adopted_trainer_is_told_by_its_last_words(void **state)
{
    (void)state;
    struct exit_facts facts = { .waited = false };
    assert_int_equal(exit_cause_decide(&facts).cause,
                     CAIRN__V1__TRAINER_EXITED__CAUSE__CAUSE_UNSPECIFIED);
    Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
    facts.words = &words;
    words.finished = 1;
    assert_int_equal(exit_cause_decide(&facts).cause, CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED);
    words.finished = 0;
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    fault.message = (char *)"no such file";
    words.fault__case = CAIRN__V1__LAST_WORDS__FAULT__FAULT;
    words.fault = &fault;
    struct exit_cause cause = exit_cause_decide(&facts);
    assert_int_equal(cause.cause, CAIRN__V1__TRAINER_EXITED__CAUSE__CAUSE_UNSPECIFIED);
    assert_non_null(strstr(cause.message.text, "no such file"));
}

static void last_lines_are_the_last_ones_oldest_first(void **state)
{
    const struct folder *f = *state;
    char text[4096];
    size_t size = 0;
    for (int i = 0; i < 100; i++)
        size += (size_t)snprintf(text + size, sizeof(text) - size, "line %d\n", i);
    put(f, text, size);
    struct log_tail lines;
    assert_int_equal(log_tail_read(io_system(), f->file, &lines), ST_OK);
    assert_int_equal(lines.count, LIMIT_LAST_LINES);
    assert_string_equal(lines.lines[0], "line 80");
    assert_string_equal(lines.lines[LIMIT_LAST_LINES - 1], "line 99");
    log_tail_release(&lines);

    put(f, "a\n\nno end", 9);
    assert_int_equal(log_tail_read(io_system(), f->file, &lines), ST_OK);
    assert_int_equal(lines.count, 3);
    assert_string_equal(lines.lines[0], "a");
    assert_string_equal(lines.lines[1], "");
    assert_string_equal(lines.lines[2], "no end");
    log_tail_release(&lines);

    put(f, "", 0);
    assert_int_equal(log_tail_read(io_system(), f->file, &lines), ST_OK);
    assert_int_equal(lines.count, 0);
    log_tail_release(&lines);
    assert_int_equal(unlink(f->file), 0);
    assert_int_equal(log_tail_read(io_system(), f->file, &lines), ST_OK);
    assert_int_equal(lines.count, 0);
    log_tail_release(&lines);
}

static void huge_lines_are_cut_and_bytes_that_are_no_text_replaced(void **state)
{
    const struct folder *f = *state;
    size_t size = 3 * LIMIT_LAST_LINES * LIMIT_LOG_LINE;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, 'x', size);
    put(f, text, size);
    free(text);
    struct log_tail lines;
    assert_int_equal(log_tail_read(io_system(), f->file, &lines), ST_OK);
    assert_int_equal(lines.count, 1);
    assert_int_equal(strlen(lines.lines[0]), LIMIT_LOG_LINE - 1);
    log_tail_release(&lines);

    static const char odd[] = "\xc3\xa4 \xff \x00 \xed\xa0\x80 \xe2\x82\xac \xf4\x90\x80\x80 \xc3";
    put(f, odd, sizeof(odd) - 1);
    assert_int_equal(log_tail_read(io_system(), f->file, &lines), ST_OK);
    assert_int_equal(lines.count, 1);
    assert_string_equal(lines.lines[0], "\xc3\xa4 ? ? ??? \xe2\x82\xac ???? ?");
    log_tail_release(&lines);
}

static void log_piece_is_bounded_and_says_where_it_is(void **state)
{
    const struct folder *f = *state;
    put(f, "0123456789", 10);
    struct log_piece piece;
    assert_int_equal(log_piece_read(io_system(), f->file, 4, 3, &piece), ST_OK);
    assert_int_equal(piece.size, 3);
    assert_memory_equal(piece.data, "456", 3);
    assert_int_equal(piece.offset, 4);
    assert_int_equal(piece.file_size, 10);
    free(piece.data);
    assert_int_equal(log_piece_read(io_system(), f->file, 1000, 3, &piece), ST_OK);
    assert_int_equal(piece.size, 3); /* it was longer once, and began anew */
    assert_memory_equal(piece.data, "012", 3);
    assert_int_equal(piece.offset, 0);
    free(piece.data);
    assert_int_equal(log_piece_read(io_system(), f->file, 10, 3, &piece), ST_OK);
    assert_int_equal(piece.size, 0);
    assert_int_equal(piece.offset, 10);
    free(piece.data);
    assert_int_equal(unlink(f->file), 0);
    assert_int_equal(log_piece_read(io_system(), f->file, 0, 3, &piece), ST_OK);
    assert_true(piece.missing);
}

static void words_of_somebody_else_or_damaged_are_none(void **state)
{
    const struct folder *f = *state;
    const struct ref ref = { .job = "j-a", .generation = 2, .rank = 1 };
    Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
    words.job = (char *)"j-a";
    words.generation = 2;
    words.rank = 1;
    words.finished = 1;
    uint8_t bytes[128];
    size_t size = cairn__v1__last_words__pack(&words, bytes);
    put(f, bytes, size);
    for (uint32_t g = 1; g <= 3; g++) { /* that of generation 1 may go on as 2 */
        const struct ref one = { .job = "j-a", .generation = g, .rank = 1 };
        const Cairn__V1__LastWords *back = last_words_read(io_system(), f->file, &one);
        assert_true((back != NULL && back->finished) == (g <= 2));
        last_words_free(back);
    }
    put(f, "\xff\xff\xff", 3);
    assert_null(last_words_read(io_system(), f->file, &ref));
    assert_int_equal(unlink(f->file), 0);
    assert_null(last_words_read(io_system(), f->file, &ref));
}

static void last_mark_of_the_flight_recorder_says_where_it_was(void **state)
{
    const struct folder *f = *state;
    char text[LIMIT_REASON / 2];
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "");
    struct flight *flight = NULL;
    assert_int_equal(flight_open(f->file, "j-a", 1, 0, &flight), ST_OK);
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "");
    flight_mark(flight, FLIGHT_PHASE, 6, 0, "forward");
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "in phase forward of step 7");
    flight_mark(flight, FLIGHT_COLLECTIVE_BEGIN, 6, 41, "all_to_all");
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "in collective 41 (all_to_all) of step 7, before that forward");
    flight_mark(flight, FLIGHT_PHASE, 6, 0, "backward");
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "in phase backward of step 7, before that forward; collective 41 "
                              "(all_to_all) has not ended");
    flight_mark(flight, FLIGHT_COLLECTIVE_END, 6, 41, "all_to_all");
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "after collective 41 (all_to_all) of step 7, before that backward, "
                              "forward");
    flight_mark(flight, FLIGHT_PHASE, 6, 0, "update");
    flight_mark(flight, FLIGHT_PHASE, 7, 0, "data");
    flight_mark(flight, FLIGHT_PHASE, 7, 0, "forward");
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "in phase forward of step 8, before that data, update, backward; "
                              "collective 41 (all_to_all) has ended");
    char cut[32];
    last_mark_read(io_system(), f->file, cut, sizeof(cut));
    assert_string_equal(cut, "in phase forward of step 8, bef");
    flight_close(flight);
    assert_int_equal(last_mark_step(io_system(), f->file), 7);
    put(f, "rubbish", 7);
    assert_int_equal(last_mark_step(io_system(), f->file), 0);
    last_mark_read(io_system(), f->file, text, sizeof(text));
    assert_string_equal(text, "");
}

static void each_kill_for_memory_explains_one_exit_for_a_while(void **state)
{
    (void)state;
    struct oom_watch watch;
    oom_watch_init(&watch, 5);
    assert_false(oom_watch_claim(&watch, 5));
    assert_true(oom_watch_claim(&watch, 7)); /* two were killed */
    assert_true(oom_watch_claim(&watch, 7));
    assert_false(oom_watch_claim(&watch, 7));
    oom_watch_sample(&watch, 8); /* a beat came between the kill and its exit */
    assert_true(oom_watch_claim(&watch, 8));
    for (int i = 0; i < OOM_SAMPLES + 1; i++)
        oom_watch_sample(&watch, 9);
    assert_false(oom_watch_claim(&watch, 9)); /* long ago: somebody else */
}

static void spawned_process_holds_its_log_until_it_is_gone(void **state)
{
    const struct folder *f = *state;
    const struct ref ref = { .job = "j-a", .generation = 1, .rank = 0 };
    struct ref_files files;
    assert_int_equal(ref_files(&ref, &f->paths, &files), ST_OK);
    assert_int_equal(io_mkdir_all(io_system(), files.folder), ST_OK);
    assert_false(spawn_is_alive(files.log));
    char *env[] = { (char *)"MODE=hold" };
    struct spawn_request request = { .program = SOURCE_DIR "/tests/unit/agent/trainer.sh",
                                     .ref = &ref,
                                     .files = &files,
                                     .coordinator = "unix:/nowhere",
                                     .token = "secret",
                                     .tls_ca = "",
                                     .sums = "/nowhere",
                                     .peaks = "/nowhere",
                                     .ports = "",
                                     .gpu = "",
                                     .threads = 3,
                                     .env = env,
                                     .env_count = 1 };
    pid_t pid = 0;
    struct reason why = { "" };
    assert_int_equal(spawn_trainer(&request, &pid, &why), ST_OK);
    assert_int_equal(getpgid(pid), pid);
    assert_true(spawn_is_alive(files.log));
    pid_t second = 0;
    assert_int_equal(spawn_trainer(&request, &second, &why), ST_EXISTS);
    pid_t found = 0;
    while (proc_find("--words", files.words, &found) != ST_OK) /* the shell takes its time */
        (void)poll(NULL, 0, 2);
    assert_int_equal(found, pid);
    assert_int_equal(kill(-pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < 5000 && spawn_is_alive(files.log); i++)
        (void)poll(NULL, 0, 2); /* its child, a sleep, ends a moment later */
    assert_false(spawn_is_alive(files.log));

    env[0] = (char *)"LD_PRELOAD=/tmp/x.so";
    assert_int_equal(spawn_trainer(&request, &pid, &why), ST_INVALID);
    env[0] = (char *)"CAIRN_HOME=/";
    assert_int_equal(spawn_trainer(&request, &pid, &why), ST_INVALID);
    env[0] = (char *)"NOVALUE";
    assert_int_equal(spawn_trainer(&request, &pid, &why), ST_INVALID);
    request.env_count = 0;
    request.program = "/nonexistent/trainer";
    assert_int_equal(spawn_trainer(&request, &pid, &why), ST_NOT_FOUND);
    assert_non_null(strstr(why.text, "/nonexistent/trainer"));
    assert_false(spawn_is_alive(files.log));
}

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_with_a_path_in_it_is_refused),
        FOLDER_TEST(a_log_is_that_of_whoever_had_the_rank),
        FOLDER_TEST(record_comes_back_as_it_was_written),
        FOLDER_TEST(damaged_record_is_refused),
        FOLDER_TEST(list_has_records_only),
        cmocka_unit_test(exit_cause_is_what_the_system_says),
        cmocka_unit_test(sigkill_is_out_of_memory_only_if_the_counter_rose_and_it_was_not_ours),
        cmocka_unit_test(exit_of_an_adopted_trainer_is_told_by_its_last_words),
        FOLDER_TEST(last_lines_are_the_last_ones_oldest_first),
        FOLDER_TEST(huge_lines_are_cut_and_bytes_that_are_no_text_replaced),
        FOLDER_TEST(log_piece_is_bounded_and_says_where_it_is),
        FOLDER_TEST(words_of_somebody_else_or_damaged_are_none),
        FOLDER_TEST(last_mark_of_the_flight_recorder_says_where_it_was),
        cmocka_unit_test(each_kill_for_memory_explains_one_exit_for_a_while),
        FOLDER_TEST(spawned_process_holds_its_log_until_it_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
