/* What whoever started a program is told: a supervisor by its pipe, systemd by its socket. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/host/watchdog.h"
#include "tests/test.h"

static void a_program_is_watched_while_its_supervisor_reads(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const struct watchdog watchdog = { .fd = ends[1] };
    assert_true(watchdog_watched(&watchdog));
    while (fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0 && write(ends[1], "b", 1) == 1)
        ;
    assert_true(watchdog_watched(&watchdog)); /* full, but there */
    assert_int_equal(close(ends[0]), 0);
    assert_false(watchdog_watched(&watchdog));
    assert_int_equal(close(ends[1]), 0);
    assert_false(watchdog_watched(&watchdog));
    assert_false(watchdog_watched(&(struct watchdog){ .fd = -1 }));
}

/* A socket in the place of systemd's, with an abstract name that is written with an '@'. */
static int open_manager(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0 && name[0] == '@');
    memcpy(address.sun_path, name, strlen(name));
    address.sun_path[0] = '\0';
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
    return fd;
}

/* The next message; "" if there is none. */
static const char *told(int fd)
{
    static char text[4096];
    const ssize_t size = read(fd, text, sizeof(text) - 1);
    text[size > 0 ? size : 0] = '\0';
    return text;
}

static void set(const char *usec, const char *pid)
{
    assert_int_equal(setenv("WATCHDOG_USEC", usec, 1), 0);
    assert_int_equal(pid != NULL ? setenv("WATCHDOG_PID", pid, 1) : unsetenv("WATCHDOG_PID"), 0);
}

static void systemd_is_told_what_it_asks_for(void **state)
{
    (void)state;
    char pid[32];
    struct watchdog watchdog;
    const int fd = open_manager("@cairn-test-watchdog");
    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    set("4000000", pid);
    watchdog_open(&watchdog);
    assert_null(getenv("NOTIFY_SOCKET"));
    assert_null(getenv("WATCHDOG_USEC"));
    assert_null(getenv("WATCHDOG_PID"));
    assert_int_equal(watchdog.notify.every_ms, 2000);
    assert_int_equal(watchdog_every_ms(&watchdog), WATCHDOG_BEAT_MS);

    watchdog_beat(&watchdog);
    assert_string_equal(told(fd), "EXTEND_TIMEOUT_USEC=60000000");
    watchdog_ready(&watchdog);
    assert_string_equal(told(fd), "READY=1");
    watchdog_beat(&watchdog);
    assert_string_equal(told(fd), "WATCHDOG=1");
    watchdog_beat(&watchdog); /* not due yet */
    assert_string_equal(told(fd), "");
    watchdog.sign_at = 0;
    watchdog_beat(&watchdog);
    assert_string_equal(told(fd), "WATCHDOG=1");

    watchdog_status(&watchdog, "%d\nREADY=0", 7); /* a line is one line */
    assert_string_equal(told(fd), "STATUS=7");
    watchdog_status(&watchdog, "7");
    assert_string_equal(told(fd), "");
    static char longer[2 * NOTIFY_BYTES];
    memset(longer, 'x', sizeof(longer) - 1);
    watchdog_status(&watchdog, "%s", longer);
    assert_in_range(strlen(told(fd)), NOTIFY_BYTES / 2, NOTIFY_BYTES - 1);
    watchdog_stopping(&watchdog, 2000);
    assert_string_equal(told(fd), "STOPPING=1\nEXTEND_TIMEOUT_USEC=3000000");
    assert_int_equal(close(watchdog.notify.fd), 0);
    assert_int_equal(close(fd), 0);
}

static void signs_of_life_are_sent_only_to_who_asks_this_process(void **state)
{
    (void)state;
    struct watchdog watchdog;
    static const struct {
        const char *usec, *pid;
        int64_t every_ms;
    } asked[] = { { "1000000", NULL, 500 }, { "1000000", "1", 0 }, { "1000000", "", 0 },
                  { "0", NULL, 0 },         { "-5", NULL, 0 },     { "12s", NULL, 0 },
                  { "1", NULL, 1 } };
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        const int fd = open_manager("@cairn-test-watchdog");
        set(asked[i].usec, asked[i].pid);
        watchdog_open(&watchdog);
        assert_int_equal(watchdog.notify.every_ms, asked[i].every_ms);
        watchdog_ready(&watchdog);
        assert_string_equal(told(fd), "READY=1");
        watchdog_beat(&watchdog);
        assert_string_equal(told(fd), asked[i].every_ms > 0 ? "WATCHDOG=1" : "");
        assert_int_equal(close(watchdog.notify.fd), 0);
        assert_int_equal(close(fd), 0);
    }
}

static void nobody_is_told_without_a_socket(void **state)
{
    (void)state;
    struct watchdog watchdog;
    static const char *const none[] = { "", "@", "/", "relative", "vsock:2:1" };
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_int_equal(setenv("NOTIFY_SOCKET", none[i], 1), 0);
        watchdog_open(&watchdog);
        assert_int_equal(watchdog.notify.fd, -1);
        assert_int_equal(watchdog_every_ms(&watchdog), -1);
        watchdog_beat(&watchdog);
        watchdog_ready(&watchdog);
        watchdog_status(&watchdog, "fine");
        watchdog_stopping(&watchdog, 0);
    }
}

/* A socket that is gone, or whose reader hangs, holds up nobody for long. */
static void a_manager_that_is_away_is_no_harm(void **state)
{
    (void)state;
    struct watchdog watchdog;
    const int fd = open_manager("@cairn-test-watchdog");
    set("1000000", NULL);
    watchdog_open(&watchdog);
    watchdog_ready(&watchdog);
    for (int i = 0; i < 100000; i++) { /* more than a socket holds */
        watchdog.sign_at = 0;
        watchdog_beat(&watchdog);
    }
    assert_int_equal(close(fd), 0);
    watchdog_status(&watchdog, "fine");
    watchdog_stopping(&watchdog, 0);
    assert_int_equal(close(watchdog.notify.fd), 0);
}

/* The program's supervisor is a service, and the program is not. */
static void who_has_a_supervisor_tells_systemd_nothing(void **state)
{
    (void)state;
    char number[16], bytes[8] = "";
    int ends[2];
    struct watchdog watchdog;
    const int fd = open_manager("@cairn-test-watchdog");
    assert_int_equal(pipe(ends), 0);
    (void)snprintf(number, sizeof(number), "%d", ends[1]);
    assert_int_equal(setenv(WATCHDOG_ENV, number, 1), 0);
    set("1000000", NULL);
    watchdog_open(&watchdog);
    assert_int_equal(unsetenv(WATCHDOG_ENV), 0);
    watchdog_beat(&watchdog);
    watchdog_beat(&watchdog); /* not due yet */
    watchdog_ready(&watchdog);
    watchdog_status(&watchdog, "fine");
    assert_string_equal(told(fd), "");
    assert_int_equal(read(ends[0], bytes, sizeof(bytes) - 1), 2);
    assert_string_equal(bytes, "br");
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(close(ends[1]), 0);
    assert_int_equal(close(fd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_is_watched_while_its_supervisor_reads),
        cmocka_unit_test(systemd_is_told_what_it_asks_for),
        cmocka_unit_test(signs_of_life_are_sent_only_to_who_asks_this_process),
        cmocka_unit_test(nobody_is_told_without_a_socket),
        cmocka_unit_test(a_manager_that_is_away_is_no_harm),
        cmocka_unit_test(who_has_a_supervisor_tells_systemd_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
