/* Where the page is served, as people say it, and where they are told it is. */
#include <string.h>
#include <unistd.h>

#include "observer/listen.h"
#include "tests/test.h"

static void an_address_is_of_this_machine_or_beyond_it(void **state)
{
    static const struct {
        const char *address, *host;
        uint16_t port;
        bool local;
    } good[] = {
        { "127.0.0.1:7080", "127.0.0.1", 7080, true },
        { "127.1.2.3:0", "127.1.2.3", 0, true },
        { "[::1]:7080", "::1", 7080, true },
        { "192.0.2.7:65535", "192.0.2.7", 65535, false },
        { "[fd00::7]:1", "fd00::7", 1, false },
        { "0.0.0.0:7080", "0.0.0.0", 7080, false },
        { "[::]:7080", "::", 7080, false },
        { "[::ffff:127.0.0.1]:7080", "::ffff:127.0.0.1", 7080, false }, /* with TLS, so no harm */
        { "cairn.example.org:7080", "cairn.example.org", 7080, false },
    };
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char host[LISTEN_HOST];
        uint16_t port = 1234;
        bool local = !good[i].local;
        assert_true(listen_parse(good[i].address, host, &port, &local));
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
        assert_int_equal(local, good[i].local);
    }
}

static void what_is_no_address_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "7080",
        ":7080",
        "127.0.0.1",
        "127.0.0.1:",
        "localhost:1",
        "LOCALHOST:1",
        "127.0.0.1:x",
        "127.0.0.1:1x",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "::1:7080",
        "[::1:7080",
        "::1]:7080",
        "[]:7080",
        "[host]:7080",
        "[127.0.0.1]:7080",
        "a b:7080",
        "a/b:7080",
        "a,b:7080",
        "a@b:7080",
        "a\"b:7080",
        "<b>:7080",
        "[fe80::1%lo]:7080",
    };
    char host[LISTEN_HOST], text[2 * LISTEN_HOST];
    uint16_t port = 0;
    bool local = false;
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (listen_parse(bad[i], host, &port, &local))
            fail_msg("taken for an address: %s", bad[i]);
    }
    memset(text, 'x', sizeof(text));
    memcpy(text + LISTEN_HOST - 1, ":80", 4);
    assert_true(listen_parse(text, host, &port, &local));
    memset(text, 'x', sizeof(text));
    memcpy(text + LISTEN_HOST, ":80", 4);
    assert_false(listen_parse(text, host, &port, &local));
}

static void people_are_told_a_name_of_the_certificate(void **state)
{
    static const struct {
        const char *host, *hosts, *told;
        bool content;
    } cases[] = {
        { "192.0.2.7", "cairnd,localhost,127.0.0.1,::1,192.0.2.7", "192.0.2.7", true },
        { "192.0.2.7", "cairnd,localhost,127.0.0.1,::1,a.example,192.0.2.7", "192.0.2.7", true },
        { "A.example", "cairnd,a.example", "A.example", true },
        { "192.0.2.7", "cairnd,localhost,127.0.0.1,::1,a.example,b.example", "a.example", true },
        { "0.0.0.0", "cairnd,localhost,127.0.0.1,::1,a.example", "a.example", true },
        { "::", "cairnd,localhost,127.0.0.1,::1", "localhost", false },
        { "192.0.2.7", "cairnd,localhost,127.0.0.1,::1", "192.0.2.7", false },
        { "192.0.2.7", "", "192.0.2.7", false },
        { "192.0.2.7", "192.0.2.70", "192.0.2.70", true },
        { "127.0.0.1", "cairnd,localhost,127.0.0.1,::1,a.example", "127.0.0.1", true },
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char told[LISTEN_HOST];
        assert_int_equal(listen_public(cases[i].host, cases[i].hosts, told), cases[i].content);
        assert_string_equal(told, cases[i].told);
    }
}

static void a_page_has_an_address(void **state)
{
    char url[LISTEN_URL];
    (void)state;
    listen_url(false, "127.0.0.1", 7080, url);
    assert_string_equal(url, "http://127.0.0.1:7080/");
    listen_url(true, "fd00::7", 65535, url);
    assert_string_equal(url, "https://[fd00::7]:65535/");
}

static void a_port_is_had_once(void **state)
{
    int fd = -1, other = -1;
    (void)state;
    assert_int_equal(listen_at("127.0.0.1", 0, &fd), ST_OK);
    const uint16_t port = listen_port(fd);
    assert_true(port > 0);
    assert_int_not_equal(listen_at("127.0.0.1", port, &other), ST_OK);
    assert_int_equal(other, -1);
    assert_int_equal(listen_at("no-such-host.invalid", 0, &other), ST_NOT_FOUND);
    assert_int_equal(close(fd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_is_of_this_machine_or_beyond_it),
        cmocka_unit_test(what_is_no_address_is_refused),
        cmocka_unit_test(people_are_told_a_name_of_the_certificate),
        cmocka_unit_test(a_page_has_an_address),
        cmocka_unit_test(a_port_is_had_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
