/* Status scopes, the bounded buffer, publishing of files, time, paths. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/backoff.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/io.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/paths.h"
#include "common/status.h"
#include "tests/test.h"

static void every_status_has_the_scope_of_its_range(void **state)
{
    (void)state;
    assert_int_equal(status_scope(ST_OK), SCOPE_NONE);
    assert_int_equal(status_scope(ST_AGAIN), SCOPE_CALL);
    assert_int_equal(status_scope(ST_UNREACHABLE), SCOPE_CALL);
    assert_int_equal(status_scope(ST_CORRUPT), SCOPE_CHECKPOINT);
    assert_int_equal(status_scope(ST_VERSION), SCOPE_JOB);
    assert_int_equal(status_scope(ST_PEER), SCOPE_GENERATION);
    assert_int_equal(status_scope(ST_STALE), SCOPE_GENERATION);
    assert_int_equal(status_scope(ST_DEVICE), SCOPE_WORKER);
    assert_int_equal(status_scope(ST_CONFIG), SCOPE_JOB);
    assert_int_equal(status_scope(ST_NUMERIC), SCOPE_JOB);
}

/* In words that nobody takes for damage, and of a scope that throws nothing away. */
static void trouble_of_a_file_server_is_told_from_damage(void **state)
{
    (void)state;
    static const int away[] = { EREMOTEIO, ENOTCONN,    EHOSTDOWN,  EHOSTUNREACH, ENETDOWN,
                                ESHUTDOWN, ENETUNREACH, ECONNRESET, ECONNREFUSED, ECONNABORTED };
    for (size_t i = 0; i < sizeof(away) / sizeof(away[0]); i++)
        assert_int_equal(status_from_errno(away[i]), ST_AWAY);
    assert_int_equal(status_from_errno(ESTALE), ST_FORGOTTEN);
    assert_int_equal(status_from_errno(ETIMEDOUT), ST_TIMED_OUT);
    assert_int_equal(status_from_errno(EDQUOT), ST_FULL);
    assert_int_equal(status_from_errno(EIO), ST_IO);
    assert_int_equal(status_scope(ST_AWAY), SCOPE_CALL);
    assert_int_equal(status_scope(ST_FORGOTTEN), SCOPE_CALL);
    assert_non_null(strstr(status_string(ST_AWAY), "file server"));
    assert_non_null(strstr(status_string(ST_FORGOTTEN), "stale handle"));
}

static void a_buffer_never_passes_its_maximum_and_keeps_what_it_has(void **state)
{
    (void)state;
    struct buf buf;
    buf_init(&buf, 8);
    assert_int_equal(buf_append_text(&buf, "12345"), ST_OK);
    assert_int_equal(buf_append_text(&buf, "6789"), ST_FULL);
    assert_int_equal(buf_printf(&buf, "%d", 6789), ST_FULL);
    assert_string_equal(buf.data, "12345");
    assert_int_equal(buf_printf(&buf, "%d", 678), ST_OK);
    assert_string_equal(buf.data, "12345678");
    assert_int_equal(buf.size, 8);
    buf_release(&buf);
}

static int make_folder(void **state)
{
    static char folder[64];
    (void)snprintf(folder, sizeof(folder), "/tmp/cairn-test-XXXXXX");
    *state = mkdtemp(folder);
    return *state == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", (char *)*state);
    return system(command) == 0 ? 0 : -1;
}

static void publishing_never_replaces_and_leaves_no_temporary_name(void **state)
{
    const struct io *io = io_system();
    char path[128], temporary[160];
    (void)snprintf(path, sizeof(path), "%s/a/b/manifest", (char *)*state);
    (void)snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    char folder[128];
    (void)snprintf(folder, sizeof(folder), "%s/a/b", (char *)*state);
    assert_int_equal(io_mkdir_all(io, folder), ST_OK);
    assert_int_equal(io_mkdir_all(io, folder), ST_OK);
    assert_int_equal(io_publish(io, path, "one", 3), ST_OK);
    assert_int_equal(io_publish(io, path, "two", 3), ST_EXISTS);
    char *data = NULL;
    size_t size = 0;
    assert_int_equal(io_read_file(io, path, 100, &data, &size), ST_OK);
    assert_string_equal(data, "one");
    free(data);
    struct io_stat info;
    assert_int_equal(io->stat(io->self, temporary, &info), ST_NOT_FOUND);
    assert_int_equal(io_replace(io, path, "three", 5), ST_OK);
    assert_int_equal(io_read_file(io, path, 4, &data, &size), ST_FULL);
    assert_int_equal(io_read_file(io, path, 5, &data, &size), ST_OK);
    assert_string_equal(data, "three");
    free(data);
}

static void a_private_file_is_its_owners_alone_from_the_start(void **state)
{
    const struct io *io = io_system();
    char path[128];
    struct stat info;
    (void)snprintf(path, sizeof(path), "%s/key", (char *)*state);
    const mode_t mask = umask(0);
    assert_int_equal(io_publish_private(io, path, "one", 3), ST_OK);
    assert_int_equal(io_publish_private(io, path, "two", 3), ST_EXISTS);
    (void)umask(mask);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(info.st_size, 3);
    assert_int_equal(info.st_nlink, 1);
}

/* What is written here lies on a disk, or in memory; /proc can't hold a file. */
static void a_folder_of_this_machine_is_local_and_locks(void **state)
{
    char missing[128];
    (void)snprintf(missing, sizeof(missing), "%s/not/there", (char *)*state);
    assert_int_equal(io_mount_of(*state), IO_MOUNT_LOCAL);
    assert_int_equal(io_mount_of(missing), IO_MOUNT_LOCAL);
    assert_int_equal(io_mount_of("a-name-that-is-not-here"), IO_MOUNT_LOCAL);
    assert_true(io_locks(*state));
    assert_false(io_locks("/proc"));
    assert_int_equal(rmdir(*state), 0); /* nothing was left in it */
    assert_int_equal(mkdir(*state, 0700), 0);
}

static void a_fifo_that_nobody_writes_is_empty(void **state)
{
    const struct io *io = io_system();
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/fifo", (char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    char *data = NULL;
    size_t size = 99;
    assert_int_equal(io_read_file(io, path, 100, &data, &size), ST_OK);
    assert_int_equal(size, 0);
    free(data);
}

static void a_mapped_file_is_its_bytes_and_outlives_its_descriptor(void **state)
{
    const struct io *io = io_system();
    static const char *const texts[] = { "some bytes", "" };
    for (size_t i = 0; i < 2; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/mapped", (char *)*state);
        size_t length = strlen(texts[i]);
        assert_int_equal(io_replace(io, path, texts[i], length), ST_OK);
        int fd = -1;
        void *data = path; /* something that isn't NULL */
        size_t size = 99;
        assert_int_equal(io->open(io->self, path, IO_READ, &fd), ST_OK);
        assert_int_equal(io->map(io->self, fd, &data, &size), ST_OK);
        assert_int_equal(io->close(io->self, fd), ST_OK);
        assert_int_equal(io->unlink(io->self, path), ST_OK);
        assert_int_equal(size, length);
        assert_true(length > 0 ? memcmp(data, texts[i], length) == 0 : data == NULL);
        assert_int_equal(io->unmap(io->self, data, size), ST_OK);
    }
    void *data = NULL;
    size_t size = 0;
    assert_int_equal(io->map(io->self, -1, &data, &size), ST_IO);
}

static void the_socket_lies_in_the_home(void **state)
{
    (void)state;
    struct paths paths;
    char home[300], socket[512], wanted[512];
    memset(home, 'x', sizeof(home));
    home[0] = '/';
    home[sizeof(home) - 1] = '\0';
    assert_int_equal(setenv("CAIRN_HOME", home, 1), 0);
    assert_int_equal(paths_open(&paths), ST_OK);
    assert_int_equal(paths_socket(&paths, socket, sizeof(socket)), ST_OK);
    (void)snprintf(wanted, sizeof(wanted), "unix:%s/cairnd.sock", home);
    assert_string_equal(socket, wanted);
    assert_int_equal(paths_socket(&paths, socket, 100), ST_FULL);
}

static void waits_grow_to_their_bound_and_connections_come_back_apart(void **state)
{
    (void)state;
    static const int64_t waits[] = { 500, 500, 1000, 2000, 4000, 5000, 5000 };
    for (uint32_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        assert_int_equal(backoff_ms(500, 2, i, 5000), waits[i]);
    assert_int_equal(backoff_ms(500, 2, UINT32_MAX, INT64_MAX / 4), INT64_MAX / 4);
    assert_int_equal(backoff_ms(500, 2, 1, 100), 100);
    for (uint32_t spread = 0; spread < 200000; spread += 1111) {
        const uint32_t told = spread == 0 ? BACKOFF_CONNECT_MS : spread;
        const uint32_t most = told < BACKOFF_CONNECT_MAX_MS ? told : BACKOFF_CONNECT_MAX_MS;
        const int64_t ms = backoff_connect_ms(spread) - BACKOFF_CONNECT_MIN_MS;
        assert_in_range(ms, 0, most - 1);
    }
}

static void a_log_line_is_one_bounded_json_object(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct log log = log_open("test");
    log.fd = ends[1];
    log.job = "j-1";
    log.rank = 2;
    static char message[3 * LIMIT_LOG_LINE];
    memset(message, '"', sizeof(message) - 1);
    LOG_INFO(&log, "%s", message);
    LOG_DEBUG(&log, "not shown");
    static char line[2 * LIMIT_LOG_LINE];
    ssize_t size = read(ends[0], line, sizeof(line) - 1);
    assert_true(size > 0);
    assert_true(size <= LIMIT_LOG_LINE);
    line[size] = '\0';
    assert_non_null(
        strstr(line, "\"level\":\"info\",\"program\":\"test\",\"job\":\"j-1\",\"rank\":2,"));
    assert_non_null(strstr(line, "\"cut\":true}\n"));
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* The journal takes the level from the front of a line, and what follows is as anywhere. */
static void a_log_line_in_the_journal_begins_with_its_level(void **state)
{
    (void)state;
    char stream[64], line[LIMIT_LOG_LINE + 1];
    struct stat about;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fstat(STDERR_FILENO, &about), 0);
    (void)snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)about.st_dev,
                   (uintmax_t)about.st_ino + 1);
    assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
    assert_false(log_open("test").leads); /* another file: who redirects takes no level */
    (void)snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)about.st_dev,
                   (uintmax_t)about.st_ino);
    assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
    struct log log = log_open("test");
    assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
    assert_true(log.leads);
    assert_false(log_open("test").leads);
    log.fd = ends[1];
    log.level = LOG_LEVEL_DEBUG;
    LOG_DEBUG(&log, "d");
    LOG_INFO(&log, "i");
    LOG_WARN(&log, "w");
    LOG_ERROR(&log, "e");
    const ssize_t size = read(ends[0], line, sizeof(line) - 1);
    assert_true(size > 0);
    line[size] = '\0';
    static const char *const begins[] = { "<7>{\"ts\":", "<6>{\"ts\":", "<4>{\"ts\":",
                                          "<3>{\"ts\":" };
    const char *at = line;
    for (size_t i = 0; i < 4; i++, at = strchr(at, '\n') + 1)
        assert_int_equal(strncmp(at, begins[i], strlen(begins[i])), 0);
    assert_string_equal(at, "");
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void a_wait_ends_at_its_time_and_not_before(void **state)
{
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    clock_cond_init(&cond);
    const int64_t until_ns = clock_mono_ns() + 5000000;
    (void)pthread_mutex_lock(&mutex);
    while (clock_cond_wait(&cond, &mutex, until_ns)) {
    }
    assert_true(clock_mono_ns() >= until_ns);
    assert_false(clock_cond_wait(&cond, &mutex, until_ns)); /* which has passed */
    (void)pthread_mutex_unlock(&mutex);
    (void)pthread_cond_destroy(&cond);
}

static void descriptors_are_raised_to_what_the_user_may_have(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit low = { .rlim_cur = 64, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    const uint64_t raised = io_descriptors_raise();
    assert_true(raised == before.rlim_max || raised == 1 << 20);
    struct rlimit after;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &after), 0);
    assert_int_equal(after.rlim_cur, raised);
    assert_int_equal(after.rlim_max, before.rlim_max);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_the_scope_of_its_range),
        cmocka_unit_test(trouble_of_a_file_server_is_told_from_damage),
        cmocka_unit_test(a_buffer_never_passes_its_maximum_and_keeps_what_it_has),
        cmocka_unit_test_setup_teardown(publishing_never_replaces_and_leaves_no_temporary_name,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_private_file_is_its_owners_alone_from_the_start,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_folder_of_this_machine_is_local_and_locks, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_fifo_that_nobody_writes_is_empty, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_mapped_file_is_its_bytes_and_outlives_its_descriptor,
                                        make_folder, remove_folder),
        cmocka_unit_test(a_wait_ends_at_its_time_and_not_before),
        cmocka_unit_test(descriptors_are_raised_to_what_the_user_may_have),
        cmocka_unit_test(the_socket_lies_in_the_home),
        cmocka_unit_test(waits_grow_to_their_bound_and_connections_come_back_apart),
        cmocka_unit_test(a_log_line_is_one_bounded_json_object),
        cmocka_unit_test(a_log_line_in_the_journal_begins_with_its_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
