/* Which variables reach what trains: the list, and that docs/environment.md has the same one. */
#include <stdlib.h>
#include <string.h>

#include "common/host/environment.h"
#include "common/io.h"
#include "tests/test.h"

/* The rows of the page's table behind a heading. To be freed. */
static char *section(const char *heading)
{
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(
        io_read_file(io_system(), SOURCE_DIR "/docs/environment.md", 1 << 20, &text, &size), ST_OK);
    char *begin = strstr(text, heading);
    assert_non_null(begin);
    begin += strlen(heading);
    char *end = strstr(begin, "\n## ");
    if (end != NULL)
        *end = '\0';
    begin = strstr(begin, "\n| ---");
    assert_non_null(begin);
    char *part = strdup(begin);
    free(text);
    return part;
}

/* The next `NAME` of a first column; NULL: there are no more. *at goes on behind it. */
static const char *next_name(char **at)
{
    static char name[64];
    for (;;) {
        char *tick = strchr(*at, '`'), *line = strstr(*at, "\n|");
        char *column = strstr(*at, " | ");
        if (tick != NULL && column != NULL && tick < column && (line == NULL || tick < line)) {
            const size_t size = strcspn(tick + 1, "`");
            assert_true(size < sizeof(name));
            memcpy(name, tick + 1, size);
            name[size] = '\0';
            *at = tick + size + 2;
            return name;
        }
        if (line == NULL)
            return NULL;
        *at = line + 2;
    }
}

static unsigned count_rows(const char *(*row)(unsigned))
{
    unsigned count = 0;
    while (row(count) != NULL)
        count++;
    return count;
}

static bool has_row(const char *(*row)(unsigned), const char *name)
{
    for (unsigned i = 0; row(i) != NULL; i++) {
        if (strcmp(row(i), name) == 0)
            return true;
    }
    return false;
}

static void the_page_lists_what_passes_and_nothing_else(void **state)
{
    (void)state;
    char *text = section("\n## What passes\n"), *at = text;
    unsigned count = 0;
    for (const char *name = next_name(&at); name != NULL; name = next_name(&at), count++) {
        if (!has_row(environment_passing, name))
            fail_msg("%s passes on the page alone", name);
    }
    assert_int_equal(count, count_rows(environment_passing));
    free(text);
}

static void the_page_lists_all_families_and_names_that_are_left_out(void **state)
{
    (void)state;
    char *text = section("\n## What is left out\n"), *at = text;
    unsigned families = 0, names = 0;
    for (const char *name = next_name(&at); name != NULL; name = next_name(&at)) {
        if (has_row(environment_family, name)) {
            families++;
        } else {
            names++;
        }
        if (strchr(name, '*') == NULL && !environment_is_left_out(name))
            fail_msg("%s isn't left out", name);
    }
    assert_int_equal(families, count_rows(environment_family));
    assert_true(names > 10);
    free(text);
}

static void names_are_whole_and_values_do_not_matter(void **state)
{
    (void)state;
    assert_true(environment_passes("PATH=/bin"));
    assert_true(environment_passes("AWS_REGION=x"));
    assert_false(environment_passes("PATHS=/bin"));
    assert_false(environment_passes("PAT=/bin"));
    assert_false(environment_passes("EDITOR=vi"));
    assert_false(environment_is_left_out("EDITOR=vi")); /* no library's */
    assert_true(environment_is_left_out("OMP_THREAD_LIMIT=1"));
    assert_false(environment_is_left_out("OMP_NUM_THREADS=1"));
    assert_true(environment_is_left_out("NVIDIA_TF32_OVERRIDE=0"));
}

static void those_that_are_left_out_are_named(void **state)
{
    (void)state;
    char names[32], some[8];
    assert_int_equal(clearenv(), 0);
    environment_name_left_out(names, sizeof(names));
    assert_string_equal(names, "");
    assert_int_equal(setenv("OMP_DYNAMIC", "true", 1), 0);
    assert_int_equal(setenv("NCCL_ALGO", "Ring", 1), 0);
    environment_name_left_out(names, sizeof(names));
    environment_name_left_out(some, sizeof(some));
    assert_non_null(strstr(names, "OMP_DYNAMIC"));
    assert_non_null(strstr(names, "NCCL_ALGO"));
    assert_int_equal(strlen(some), sizeof(some) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_lists_what_passes_and_nothing_else),
        cmocka_unit_test(the_page_lists_all_families_and_names_that_are_left_out),
        cmocka_unit_test(names_are_whole_and_values_do_not_matter),
        cmocka_unit_test(those_that_are_left_out_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
