/* The map in which ranks of a generation find each other. */
#include <stdio.h>
#include <string.h>

#include "common/limits.h"
#include "server/containers/kv_map.h"
#include "tests/test.h"

static void the_map_keeps_counts_and_forgets(void **state)
{
    struct kv_map map = { 0 };
    int64_t sum;
    (void)state;
    for (int i = 999; i >= 0; i--) {
        char key[16];
        (void)snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(kv_map_set(&map, key, &i, sizeof i), ST_OK);
    }
    for (int i = 0; i < 1000; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "k%d", i);
        const struct kv_entry *entry = kv_map_get(&map, key);
        assert_non_null(entry);
        assert_memory_equal(entry->value, &i, sizeof i);
    }
    assert_null(kv_map_get(&map, "k1000"));
    assert_int_equal(kv_map_add(&map, "n", 5, &sum), ST_OK);
    assert_int_equal(kv_map_add(&map, "n", -7, &sum), ST_OK);
    assert_int_equal(sum, -2);
    assert_int_equal(kv_map_add(&map, "n", INT64_MIN, &sum), ST_INVALID);
    assert_int_equal(kv_map_add(&map, "k1", 1, &sum), ST_INVALID);
    kv_map_remove(&map, "k500");
    assert_null(kv_map_get(&map, "k500"));
    assert_int_equal(map.count, 1000);
    kv_map_clear(&map);
    assert_int_equal(map.count, 0);
}

static void the_map_is_bounded(void **state)
{
    struct kv_map map = { 0 };
    static char value[LIMIT_KV_VALUE + 1];
    char key[LIMIT_KV_KEY + 2];
    (void)state;
    memset(key, 'k', sizeof key);
    key[LIMIT_KV_KEY] = '\0';
    assert_int_equal(kv_map_set(&map, key, "", 0), ST_FULL);
    assert_int_equal(kv_map_set(&map, "big", value, sizeof value), ST_FULL);
    enum status st = ST_OK;
    size_t count = 0;
    for (; st == ST_OK && count < 2000; count++) {
        (void)snprintf(key, sizeof key, "%zu", count);
        st = kv_map_set(&map, key, value, LIMIT_KV_VALUE);
    }
    assert_int_equal(st, ST_FULL);
    assert_true(map.bytes <= KV_BYTES_MAX);
    kv_map_clear(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_map_keeps_counts_and_forgets),
        cmocka_unit_test(the_map_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
