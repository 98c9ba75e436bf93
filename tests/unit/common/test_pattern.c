/* Patterns over lines: what is found, what is refused, and that no search runs away. */
#include <string.h>

#include "common/pattern.h"
#include "tests/test.h"

static struct pattern *compiled(const char *text)
{
    struct pattern *pattern = NULL;
    size_t offset = 0;
    struct reason why = { "" };
    assert_int_equal(pattern_compile(text, &pattern, &offset, &why), ST_OK);
    assert_non_null(pattern);
    assert_string_equal(why.text, "");
    return pattern;
}

static void pattern_finds_its_first_group_in_a_line(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *line;
        bool found;
        const char *group;
    } rows[] = {
        { "step (\\d+)", "epoch 1 step 42 loss 0.5", true, "42" },
        { "step (\\d+)", "epoch 1 loss 0.5", false, "before" },
        { "^step", "a step", false, "before" },
        { "CUDA error", "RuntimeError: CUDA error: 2", true, "" }, /* no group */
        { "a(b)?c", "ac", true, "" },                              /* a group that isn't set */
        { "(a)|(b)", "b", true, "" },
        { "(?i)STEP=(?<n>\\d+)", "step=7", true, "7" },
        { "\xc3\xa9(.)", "caf\xc3\xa9s", true, "s" },
        { "(.)x", "\xff\xfex", true, "\xfe" }, /* a line that is no UTF-8 */
        { "(.*)", "123456789", true, "1234567" },
        { "", "", true, "" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct pattern *pattern = compiled(rows[i].pattern);
        char group[8] = "before";
        assert_int_equal(
            pattern_find(pattern, rows[i].line, strlen(rows[i].line), group, sizeof(group)),
            rows[i].found);
        assert_string_equal(group, rows[i].group);
        assert_int_equal(pattern_find(pattern, rows[i].line, strlen(rows[i].line), NULL, 0),
                         rows[i].found);
        pattern_free(pattern);
    }
}

static void pattern_reads_so_many_bytes_of_a_line(void **state)
{
    (void)state;
    struct pattern *pattern = compiled("a\\x00(b)");
    char group[4] = "";
    assert_true(pattern_find(pattern, "a\0b", 3, group, sizeof(group)));
    assert_string_equal(group, "b");
    assert_false(pattern_find(pattern, "a\0b", 2, group, sizeof(group)));
    pattern_free(pattern);
}

static void pattern_counts_its_groups(void **state)
{
    (void)state;
    static const char *const texts[] = { "a", "(a)", "(a)(?:b)(c)" };
    for (uint32_t groups = 0; groups < 3; groups++) {
        struct pattern *pattern = compiled(texts[groups]);
        assert_int_equal(pattern_groups(pattern), groups);
        pattern_free(pattern);
    }
}

static void mistake_in_a_pattern_has_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
        size_t offset;
    } rows[] = {
        { "step (\\d+", "missing closing parenthesis", 9 },
        { "[z-a]", "range out of order in character class", 3 },
        { "(*UTF)a", "using UTF is disabled by the application", 6 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct pattern *pattern = NULL;
        size_t offset = 99;
        struct reason why = { "" };
        assert_int_equal(pattern_compile(rows[i].text, &pattern, &offset, &why), ST_CONFIG);
        assert_null(pattern);
        assert_string_equal(why.text, rows[i].why);
        assert_int_equal(offset, rows[i].offset);
    }
}

static void pattern_of_any_size_is_bounded(void **state)
{
    (void)state;
    struct pattern *pattern = NULL;
    size_t offset = 0;
    struct reason why = { "" };
    char text[PATTERN_BYTES + 1];
    memset(text, 'a', sizeof(text) - 1);
    text[PATTERN_BYTES] = '\0';
    assert_int_equal(pattern_compile(text, &pattern, &offset, &why), ST_CONFIG);
    assert_int_equal(offset, PATTERN_BYTES - 1);
    text[PATTERN_BYTES - 1] = '\0';
    assert_int_equal(pattern_compile(text, &pattern, &offset, &why), ST_OK);
    pattern_free(pattern);
    pattern = NULL;
    assert_int_equal(pattern_compile("((a{60000}){60000}){60000}", &pattern, &offset, &why),
                     ST_CONFIG);
    assert_null(pattern);
}

/* Without bounds, each of these takes longer than the sun shines. */
static void search_that_runs_away_ends_without_a_match(void **state)
{
    (void)state;
    static const char *const texts[] = { "^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "^((a*)*)*b" };
    char line[LIMIT_LOG_LINE];
    memset(line, 'a', sizeof(line));
    line[sizeof(line) - 1] = '!';
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct pattern *pattern = compiled(texts[i]);
        assert_false(pattern_find(pattern, line, sizeof(line), NULL, 0));
        assert_true(pattern_find(pattern, i < 3 ? "aa" : "ab", 2, NULL, 0)); /* it is usable on */
        pattern_free(pattern);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pattern_finds_its_first_group_in_a_line),
        cmocka_unit_test(pattern_reads_so_many_bytes_of_a_line),
        cmocka_unit_test(pattern_counts_its_groups),
        cmocka_unit_test(mistake_in_a_pattern_has_its_place),
        cmocka_unit_test(pattern_of_any_size_is_bounded),
        cmocka_unit_test(search_that_runs_away_ends_without_a_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
