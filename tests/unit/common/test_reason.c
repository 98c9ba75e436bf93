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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reason_holds_what_was_said_last),
        cmocka_unit_test(long_reason_is_cut_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
