/* Gloo's addresses in their short form, against what the system calls such an address. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/gloo_address.h"
#include "tests/test.h"

/* As Gloo has it; what it doesn't fill in is garbage. */
static void long_form(uint8_t out[GLOO_ADDRESS_BYTES], const void *name, size_t size,
                      int64_t number)
{
    memset(out, 0xa5, GLOO_ADDRESS_BYTES);
    memcpy(out, name, size);
    memcpy(out + sizeof(struct sockaddr_storage), &number, sizeof(number));
}

static void an_address_of_ipv4_is_four_bytes_and_a_port(void **state)
{
    (void)state;
    uint8_t bytes[GLOO_ADDRESS_BYTES], back[GLOO_ADDRESS_BYTES];
    struct gloo_address shortened;
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(0xfedc) }, out;
    assert_int_equal(inet_pton(AF_INET, "10.1.254.7", &in.sin_addr), 1);
    long_form(bytes, &in, sizeof(in), -1);
    assert_int_equal(gloo_address_shorten(bytes, &shortened), ST_OK);
    assert_int_equal(shortened.host_size, 4);
    assert_memory_equal(shortened.host, "\x0a\x01\xfe\x07", 4);
    assert_memory_equal(shortened.port, "\xfe\xdc", 2);
    assert_int_equal(gloo_address_expand(&shortened, back), ST_OK);
    memcpy(&out, back, sizeof(out));
    assert_int_equal(out.sin_family, AF_INET);
    assert_int_equal(out.sin_port, in.sin_port);
    assert_int_equal(out.sin_addr.s_addr, in.sin_addr.s_addr);
    assert_memory_equal(back + sizeof(struct sockaddr_storage),
                        bytes + sizeof(struct sockaddr_storage), sizeof(int64_t));
}

static void an_address_of_ipv6_keeps_its_scope(void **state)
{
    (void)state;
    uint8_t bytes[GLOO_ADDRESS_BYTES], back[GLOO_ADDRESS_BYTES];
    struct gloo_address shortened;
    struct sockaddr_in6 in = { .sin6_family = AF_INET6,
                               .sin6_port = htons(1),
                               .sin6_scope_id = 0x01020304 },
                        out;
    assert_int_equal(inet_pton(AF_INET6, "fe80::1234:5678", &in.sin6_addr), 1);
    long_form(bytes, &in, sizeof(in), -1);
    assert_int_equal(gloo_address_shorten(bytes, &shortened), ST_OK);
    assert_int_equal(shortened.host_size, 20);
    assert_memory_equal(shortened.host, &in.sin6_addr, 16);
    assert_memory_equal(shortened.host + 16, "\x01\x02\x03\x04", 4);
    assert_int_equal(gloo_address_expand(&shortened, back), ST_OK);
    memcpy(&out, back, sizeof(out));
    assert_memory_equal(&out, &in, sizeof(in));
    assert_memory_equal(back + sizeof(struct sockaddr_storage),
                        bytes + sizeof(struct sockaddr_storage), sizeof(int64_t));
}

static void what_the_short_form_has_no_room_for_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[GLOO_ADDRESS_BYTES];
    struct gloo_address shortened;
    struct sockaddr_in in = { .sin_family = AF_INET };
    long_form(bytes, &in, sizeof(in), 3); /* several pairs at one listening socket */
    assert_int_equal(gloo_address_shorten(bytes, &shortened), ST_INVALID);
    in.sin_family = AF_UNIX;
    long_form(bytes, &in, sizeof(in), -1);
    assert_int_equal(gloo_address_shorten(bytes, &shortened), ST_INVALID);
    for (size_t size = 0; size <= GLOO_HOST_MAX; size++) {
        shortened = (struct gloo_address){ .host_size = size };
        const enum status wanted = size == 4 || size == GLOO_HOST_MAX ? ST_OK : ST_INVALID;
        assert_int_equal(gloo_address_expand(&shortened, bytes), wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_of_ipv4_is_four_bytes_and_a_port),
        cmocka_unit_test(an_address_of_ipv6_keeps_its_scope),
        cmocka_unit_test(what_the_short_form_has_no_room_for_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
