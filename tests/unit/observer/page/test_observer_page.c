/* The page as it lies in the program: whole, small, and with the policy of its own scripts. */
#include <string.h>

#include "observer/page/page.h"
#include "tests/test.h"

static void the_page_is_whole(void **state)
{
    (void)state;
    size_t size = 0;
    const char *html = page_html(&size);
    static const char begin[] = "<!doctype html>", end[] = "</html>\n";
    assert_in_range(size, 100 * 1000, 300 * 1000);
    assert_memory_equal(html, begin, sizeof(begin) - 1);
    assert_memory_equal(html + size - (sizeof(end) - 1), end, sizeof(end) - 1);
    assert_null(memchr(html, '\0', size));
}

static size_t count(const char *text, size_t size, const char *word)
{
    size_t found = 0;
    const char *at = text;
    while ((at = memmem(at, size - (size_t)(at - text), word, strlen(word))) != NULL) {
        found++;
        at++;
    }
    return found;
}

static void the_policy_has_a_hash_for_each_script(void **state)
{
    (void)state;
    size_t size = 0;
    const char *html = page_html(&size);
    const char *csp = page_csp();
    assert_int_equal(count(csp, strlen(csp), "'sha256-"), count(html, size, "<script>"));
    assert_non_null(strstr(csp, "default-src 'none'"));
    assert_non_null(strstr(csp, "connect-src 'self'"));
    assert_null(strchr(csp, '\n'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_is_whole),
        cmocka_unit_test(the_policy_has_a_hash_for_each_script),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
