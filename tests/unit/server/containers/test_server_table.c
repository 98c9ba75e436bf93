/* A hash table, against an array by number. */
#include <stdio.h>

#include "common/rng.h"
#include "server/containers/table.h"
#include "tests/test.h"

#define KEYS  500
#define TURNS 50000

static void it_has_what_was_put_last_and_not_what_was_removed(void **state)
{
    struct table table = { 0 };
    static char names[KEYS][16];
    int values[2];
    int *model[KEYS] = { 0 };
    size_t count = 0;
    (void)state;
    assert_null(table_get(&table, "nothing"));
    table_remove(&table, "nothing");
    for (int i = 0; i < KEYS; i++)
        (void)snprintf(names[i], sizeof(names[i]), "node-%d", i);
    const uint64_t key = rng_key(11, RNG_SYNTHETIC);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct rng_counter words = rng_words(key, turn, 0, 0, 0);
        uint32_t which = rng_below(words.word[0], KEYS);
        int *value = &values[rng_below(words.word[1], 2)];
        if (rng_below(words.word[2], 2) == 0) {
            assert_int_equal(table_put(&table, names[which], value), ST_OK);
            count += model[which] == NULL;
            model[which] = value;
        } else {
            table_remove(&table, names[which]);
            count -= model[which] != NULL;
            model[which] = NULL;
        }
        assert_int_equal(table.count, count);
        uint32_t other = rng_below(words.word[3], KEYS);
        assert_ptr_equal(table_get(&table, names[which]), model[which]);
        assert_ptr_equal(table_get(&table, names[other]), model[other]);
        for (int i = 0; turn % 1000 == 0 && i < KEYS; i++)
            assert_ptr_equal(table_get(&table, names[i]), model[i]);
    }
    table_release(&table);
    assert_null(table_get(&table, names[0]));
}

static void what_is_reserved_moves_nothing(void **state)
{
    struct table table = { 0 };
    static char names[KEYS][16];
    (void)state;
    assert_int_equal(table_reserve(&table, KEYS), ST_OK);
    const struct table_entry *entries = table.entries;
    for (int i = 0; i < KEYS; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "j-%d", i);
        assert_int_equal(table_put(&table, names[i], names[i]), ST_OK);
    }
    assert_ptr_equal(table.entries, entries);
    for (int i = 0; i < KEYS; i++)
        assert_ptr_equal(table_get(&table, names[i]), names[i]);
    table_release(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_what_was_put_last_and_not_what_was_removed),
        cmocka_unit_test(what_is_reserved_moves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
