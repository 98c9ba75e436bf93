/* Addresses as they are written, and those that every machine has. */
#include <string.h>

#include "agent/net/address.h"
#include "tests/test.h"

static void only_one_machine_s_numeric_address_will_do(void **state)
{
    (void)state;
    static const char *const good[] = { "10.1.0.7", "127.0.0.1", "fd00::7", "::1", "2001:db8::1" };
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "node7", "--interface" },
        { "", "numeric" },
        { "10.1.0", "numeric" },
        { "fe80::1", "link-local" },
        { "febf::1", "link-local" },
        { "fe80::1%lo", "numeric" },
        { "0.0.0.0", "one machine" },
        { "::", "one machine" },
        { "224.0.0.1", "one machine" },
        { "ff02::1", "one machine" },
        { "::ffff:10.1.0.7", "one machine" },
    };
    struct reason why;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(address_check(good[i], &why), ST_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(address_check(bad[i].text, &why), ST_REFUSED);
        assert_non_null(strstr(why.text, bad[i].says));
    }
}

static void an_interface_is_known_by_name_or_network(void **state)
{
    (void)state;
    char out[ADDRESS_TEXT], name[IF_NAMESIZE];
    struct reason why;
    assert_int_equal(address_of_interface("lo", out, &why), ST_OK);
    assert_string_equal(out, "127.0.0.1"); /* before ::1 */
    assert_int_equal(address_of_interface("127.0.0.0/8", out, &why), ST_OK);
    assert_string_equal(out, "127.0.0.1");
    assert_int_equal(address_of_interface("127.0.0.1/32", out, &why), ST_OK);
    assert_int_equal(address_interface(out, name), ST_OK);
    assert_string_equal(name, "lo");
    static const char *const none[] = {
        "no-such-if", "127.0.0.2/32", "127.1.0.0/16", "lo/8",           "127.0.0.1/33",
        "127.0.0.1/", "127.0.0.1/-1", "127.0.0.1/8x", "203.0.113.0/24", ""
    };
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_int_equal(address_of_interface(none[i], out, &why), ST_NOT_FOUND);
        assert_int_not_equal(strlen(why.text), 0);
    }
    assert_int_equal(address_interface("203.0.113.7", name), ST_NOT_FOUND);
}

static void the_way_to_the_coordinator_has_a_near_end(void **state)
{
    (void)state;
    char out[ADDRESS_TEXT];
    struct reason why;
    assert_int_equal(address_towards("unix:/run/cairn.sock", out, &why), ST_OK);
    assert_string_equal(out, "127.0.0.1");
    assert_int_equal(address_towards("ipv4:127.0.0.9:7000", out, &why), ST_OK);
    assert_int_equal(strncmp(out, "127.", 4), 0);
    assert_int_equal(address_towards("ipv6:%5B::ffff:127.0.0.1%5D:7000", out, &why), ST_OK);
    assert_string_equal(out, "127.0.0.1");
    static const char *const none[] = {
        "", "node7:7000", "ipv4:", "ipv4:127.0.0.1", "ipv4:node7:7000", "ipv6:%5B::1%5D", "fd:7"
    };
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_int_equal(address_towards(none[i], out, &why), ST_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_one_machine_s_numeric_address_will_do),
        cmocka_unit_test(an_interface_is_known_by_name_or_network),
        cmocka_unit_test(the_way_to_the_coordinator_has_a_near_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
