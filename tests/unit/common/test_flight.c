/* The flight recorder: what was marked is read back, also from a process that was killed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/flight.h"
#include "tests/test.h"

/* How many more calls are interrupted, as on a tmpfs while signals are pending. */
static int interrupted;
int __real_posix_fallocate(int fd, off_t at, off_t size);
int __wrap_posix_fallocate(int fd, off_t at, off_t size);
int __wrap_posix_fallocate(int fd, off_t at, off_t size)
{
    return interrupted > 0 && interrupted-- > 0 ? EINTR : __real_posix_fallocate(fd, at, size);
}

struct fixture {
    char path[64];
    struct flight_dump dump;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->path, sizeof(f->path), "/tmp/test_flight_XXXXXX");
    int fd = mkstemp(f->path);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(unlink(f->path), 0);
    free(f);
    return 0;
}

static void marks_are_read_back_in_order(void **state)
{
    struct fixture *f = *state;
    struct flight *flight = NULL;
    assert_int_equal(flight_open(f->path, "j-0000000001", 7, 3, &flight), ST_OK);
    flight_mark(flight, FLIGHT_PHASE, 41, 0, "forward");
    flight_mark(flight, FLIGHT_COLLECTIVE_BEGIN, 41, 99, "a name that is longer than a record");
    assert_int_equal(flight_read(io_system(), f->path, &f->dump), ST_OK);
    assert_string_equal(f->dump.header.job, "j-0000000001");
    assert_int_equal(f->dump.header.generation, 7);
    assert_int_equal(f->dump.header.rank, 3);
    assert_int_equal(f->dump.header.pid, getpid());
    assert_int_equal(f->dump.count, 2);
    assert_string_equal(f->dump.records[0].name, "forward");
    assert_int_equal(f->dump.records[0].step, 41);
    assert_int_equal(f->dump.records[1].kind, FLIGHT_COLLECTIVE_BEGIN);
    assert_int_equal(f->dump.records[1].value, 99);
    assert_string_equal(f->dump.records[1].name, "a name that is longer t");
    assert_true(f->dump.records[1].mono_ns >= f->dump.records[0].mono_ns);
    flight_close(flight);
}

static void signals_do_not_keep_a_file_from_its_room(void **state)
{
    struct fixture *f = *state;
    struct flight *flight = NULL;
    interrupted = 5;
    assert_int_equal(flight_open(f->path, "j", 1, 0, &flight), ST_OK);
    assert_int_equal(interrupted, 0);
    flight_close(flight);
}

static void only_the_last_marks_are_kept(void **state)
{
    struct fixture *f = *state;
    struct flight *flight = NULL;
    assert_int_equal(flight_open(f->path, "j", 1, 0, &flight), ST_OK);
    for (uint64_t i = 0; i < 3 * FLIGHT_RECORDS + 10; i++)
        flight_mark(flight, FLIGHT_PHASE, i, i * i, "phase");
    flight_close(flight);
    assert_int_equal(flight_read(io_system(), f->path, &f->dump), ST_OK);
    assert_int_equal(f->dump.count, FLIGHT_RECORDS);
    for (size_t i = 0; i < FLIGHT_RECORDS; i++) {
        uint64_t step = 2 * FLIGHT_RECORDS + 10 + i;
        assert_int_equal(f->dump.records[i].step, step);
        assert_int_equal(f->dump.records[i].value, step * step);
    }
}

static void the_marks_of_a_killed_process_are_there(void **state)
{
    struct fixture *f = *state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct flight *flight = NULL;
        if (flight_open(f->path, "j", 2, 1, &flight) != ST_OK)
            _exit(1);
        flight_mark(flight, FLIGHT_PHASE, 5, 0, "reduce");
        (void)kill(getpid(), SIGKILL);
        _exit(1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(flight_read(io_system(), f->path, &f->dump), ST_OK);
    assert_int_equal(f->dump.header.pid, child);
    assert_int_equal(f->dump.count, 1);
    assert_string_equal(f->dump.records[0].name, "reduce");
}

static void a_record_in_the_middle_of_being_written_is_left_out(void **state)
{
    struct fixture *f = *state;
    struct flight *flight = NULL;
    assert_int_equal(flight_open(f->path, "j", 2, 1, &flight), ST_OK);
    for (uint64_t i = 0; i < 3; i++)
        flight_mark(flight, FLIGHT_PHASE, i, 0, "phase");
    flight_close(flight);
    FILE *file = fopen(f->path, "r+be");
    assert_non_null(file);
    uint64_t zero = 0;
    assert_int_equal(fseek(file, FLIGHT_HEADER_BYTES + 64, SEEK_SET), 0);
    assert_int_equal(fwrite(&zero, 8, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(flight_read(io_system(), f->path, &f->dump), ST_OK);
    assert_int_equal(f->dump.count, 2);
    assert_int_equal(f->dump.records[1].step, 2);
}

static void other_files_are_refused(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(flight_read(io_system(), f->path, &f->dump), ST_CORRUPT);
    assert_int_equal(flight_read(io_system(), "/nowhere/at/all", &f->dump), ST_NOT_FOUND);
    struct flight *flight = NULL;
    assert_int_equal(flight_open(f->path, "j", 2, 1, &flight), ST_OK);
    flight_close(flight);
    FILE *file = fopen(f->path, "r+be");
    assert_non_null(file);
    assert_int_equal(fputc('X', file), 'X');
    assert_int_equal(fclose(file), 0);
    assert_int_equal(flight_read(io_system(), f->path, &f->dump), ST_CORRUPT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(marks_are_read_back_in_order),
        TEST(signals_do_not_keep_a_file_from_its_room),
        TEST(only_the_last_marks_are_kept),
        TEST(the_marks_of_a_killed_process_are_there),
        TEST(a_record_in_the_middle_of_being_written_is_left_out),
        TEST(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
