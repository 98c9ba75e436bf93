/* Times of silence: what is given has to fit together. */
#include <stdlib.h>
#include <string.h>

#include "server/times.h"
#include "tests/test.h"

static void refuse(const char *beat, const char *lost_after, const char *what)
{
    struct times times;
    struct reason reason = { "" };
    assert_int_equal(times_read(beat, lost_after, &times, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, what));
}

static void without_options_they_are_the_cores_own(void **state)
{
    struct times times;
    struct reason reason;
    (void)state;
    assert_int_equal(times_read(NULL, NULL, &times, &reason), ST_OK);
    assert_int_equal(times.beat_ms, 0);
    assert_int_equal(times.lost_ms, 0);
}

static void each_leaves_room_for_the_one_before(void **state)
{
    struct times times;
    struct reason reason;
    (void)state;
    assert_int_equal(times_read("2", NULL, &times, &reason), ST_OK);
    assert_int_equal(times.beat_ms, 2000);
    assert_int_equal(times.lost_ms, 10000);
    assert_int_equal(times_read(NULL, "20", &times, &reason), ST_OK);
    assert_int_equal(times.lost_ms, 20000);
    refuse("2", "5", "4 times the beat of 2.0 s");
    refuse(NULL, "2", "3 s at least");
    refuse(NULL, "30", "less than the 30.0 s");
    refuse("0.5", NULL, "from 1 to 60 s");
    refuse("soon", NULL, "a number of seconds");
    refuse("-1", NULL, "a number of seconds");
    refuse("nan", NULL, "a number of seconds");
    assert_int_equal(setenv("CAIRN_HANG_MS", "60000", 1), 0);
    assert_int_equal(times_read(NULL, "30", &times, &reason), ST_OK);
    assert_int_equal(times.hang_ms, 60000);
    assert_int_equal(unsetenv("CAIRN_HANG_MS"), 0);
}

static void the_environment_says_it_too(void **state)
{
    struct times times;
    struct reason reason;
    (void)state;
    assert_int_equal(setenv("CAIRN_LOST_AFTER", "12", 1), 0);
    assert_int_equal(times_read(NULL, NULL, &times, &reason), ST_OK);
    assert_int_equal(times.lost_ms, 12000);
    assert_int_equal(times_read(NULL, "7.5", &times, &reason), ST_OK);
    assert_int_equal(times.lost_ms, 7500);
    assert_int_equal(unsetenv("CAIRN_LOST_AFTER"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_they_are_the_cores_own),
        cmocka_unit_test(each_leaves_room_for_the_one_before),
        cmocka_unit_test(the_environment_says_it_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
