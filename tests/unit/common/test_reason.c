/* One line for a person, however long what goes into it. */
#include <string.h>

#include "common/reason.h"
#include "tests/test.h"

#define ROOM (LIMIT_REASON - 1)

static void reason_holds_what_was_said_last(void **state)
{
    (void)state;
    struct reason reason = { "" };
    reason_set(&reason, "%s: %d", "step", 7);
    assert_string_equal(reason.text, "step: 7");
}

/* Characters of one to four bytes, shifted so that the cut meets each of their bytes. */
static void long_reason_is_cut_between_characters(void **state)
{
    (void)state;
    static const char *const characters[] = { "x", "é", "→", "𝄞" };
    for (size_t i = 0; i < 4; i++) {
        const size_t size = strlen(characters[i]);
        assert_int_equal(size, i + 1);
        for (size_t shift = 0; shift < 4; shift++) {
            char text[2 * LIMIT_REASON] = "";
            memset(text, 'a', shift);
            for (size_t at = shift; at + size < sizeof(text); at += size)
                memcpy(text + at, characters[i], size);
            struct reason reason;
            reason_set(&reason, "%s", text);
            assert_int_equal(strlen(reason.text), ROOM - (ROOM - shift) % size);
            assert_memory_equal(reason.text, text, strlen(reason.text));
        }
    }
}

static void what_is_no_character_becomes_a_question_mark(void **state)
{
    (void)state;
    static const struct {
        const char *text, *mended;
    } rows[] = {
        { "", "" },
        { "key 'ab'", "key 'ab'" },
        { "key '学习'", "key '学习'" },
        { "key '学\xe4\xb9': 1", "key '学?': 1" }, /* cut by its format */
        { "caf\xe9 au lait", "caf? au lait" },     /* Latin-1 */
        { "a\xb9\xb9"
          "b",
          "a??b" },
        { "学\xe4\xb9", "学" },
        { "\xf0\x9f\x92", "" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct reason reason;
        reason_set(&reason, "%s", rows[i].text);
        assert_string_equal(reason.text, rows[i].mended);
    }
    struct reason reason;
    reason_set(&reason, "'%.4s'", "学习");
    assert_string_equal(reason.text, "'学?'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reason_holds_what_was_said_last),
        cmocka_unit_test(long_reason_is_cut_between_characters),
        cmocka_unit_test(what_is_no_character_becomes_a_question_mark),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
