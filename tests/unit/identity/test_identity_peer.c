/* What callers may show in a handshake, and what is said to those whose certificates won't do. */
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>

#include "identity/make.h"
#include "identity/peer.h"
#include "tests/test.h"

enum { NOW = 1790000000, DAY = 86400, DER_BYTES = 4096 };

struct bench {
    struct identity_pem ca, other, elsewhere; /* of lab, of lab again, of attic */
    unsigned char bytes[IDENTITY_CHAIN_MAX + 1][DER_BYTES];
    struct identity_der chain[IDENTITY_CHAIN_MAX + 1];
    struct identity_cert cert;
    struct reason reason;
};

static int set_up(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    assert_int_equal(identity_make_ca("lab", NOW, &b->ca, &b->reason), ST_OK);
    assert_int_equal(identity_make_ca("lab", NOW, &b->other, &b->reason), ST_OK);
    assert_int_equal(identity_make_ca("attic", NOW, &b->elsewhere, &b->reason), ST_OK);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *b = *state;
    identity_pem_release(&b->ca);
    identity_pem_release(&b->other);
    identity_pem_release(&b->elsewhere);
    free(b);
    return 0;
}

/* The certificate of a PEM text as it goes over the wire. */
static void put(struct bench *b, size_t at, const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    assert_non_null(cert);
    unsigned char *end = b->bytes[at];
    const int size = i2d_X509(cert, NULL);
    assert_true(size > 0 && size <= DER_BYTES);
    assert_int_equal(i2d_X509(cert, &end), size);
    b->chain[at] = (struct identity_der){ b->bytes[at], (size_t)size };
    X509_free(cert);
    BIO_free(bio);
}

static void make(struct bench *b, const struct identity_pem *ca, enum identity_role role,
                 int64_t at_s)
{
    struct identity_pem pem = { 0 };
    assert_int_equal(identity_make(ca, role, "somebody", NULL, at_s, &pem, &b->reason), ST_OK);
    put(b, 0, pem.cert);
    identity_pem_release(&pem);
}

static enum status check(struct bench *b, size_t count, int64_t now_s)
{
    b->reason.text[0] = '\0';
    return identity_peer_check(b->ca.cert, "lab", b->chain, count, now_s, &b->cert, &b->reason);
}

static void expect_refusal(struct bench *b, size_t count, int64_t now_s, const char *words)
{
    assert_int_equal(check(b, count, now_s), ST_CONFIG);
    if (strstr(b->reason.text, words) == NULL)
        fail_msg("'%s' isn't in: %s", words, b->reason.text);
}

static void who_dials_is_who_the_certificate_says(void **state)
{
    static const enum identity_role roles[] = { IDENTITY_NODE, IDENTITY_OPERATOR, IDENTITY_VIEWER };
    struct bench *b = *state;
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        make(b, &b->ca, roles[i], NOW);
        assert_int_equal(check(b, 1, NOW), ST_OK);
        assert_int_equal(b->cert.who.role, roles[i]);
        assert_string_equal(b->cert.who.name, "somebody");
    }
}

static void a_coordinators_serves_only(void **state)
{
    struct bench *b = *state;
    make(b, &b->ca, IDENTITY_COORDINATOR, NOW);
    expect_refusal(b, 1, NOW, "for another use");
}

static void of_another_authority_is_nobodys(void **state)
{
    struct bench *b = *state;
    make(b, &b->other, IDENTITY_OPERATOR, NOW);
    expect_refusal(b, 1, NOW, "wasn't signed by an authority of this cluster");
    put(b, 1, b->other.cert); /* that it brings its authority along changes nothing */
    expect_refusal(b, 2, NOW, "wasn't signed by an authority of this cluster");
    put(b, 0, b->other.cert);
    expect_refusal(b, 1, NOW, "wasn't signed by an authority of this cluster");
    put(b, 0, b->ca.cert); /* the authority itself is nobody who calls */
    assert_int_equal(check(b, 1, NOW), ST_CONFIG);
}

/* Two authorities that one ca.crt names, as while one takes the other's place. */
static void of_another_cluster_is_refused(void **state)
{
    struct bench *b = *state;
    make(b, &b->elsewhere, IDENTITY_OPERATOR, NOW);
    assert_int_equal(
        identity_peer_check(b->elsewhere.cert, "lab", b->chain, 1, NOW, &b->cert, &b->reason),
        ST_CONFIG);
    assert_non_null(strstr(b->reason.text, "another cluster"));
    assert_int_equal(
        identity_peer_check(b->elsewhere.cert, "attic", b->chain, 1, NOW, &b->cert, &b->reason),
        ST_OK);
}

static void too_old_and_too_young_are_refused(void **state)
{
    struct bench *b = *state;
    make(b, &b->ca, IDENTITY_OPERATOR, NOW);
    assert_int_equal(check(b, 1, NOW + IDENTITY_DAYS * DAY - IDENTITY_EARLY_S - 10), ST_OK);
    expect_refusal(b, 1, NOW + IDENTITY_DAYS * DAY + 10, "expired on 20");
    make(b, &b->ca, IDENTITY_OPERATOR, NOW + 2 * DAY);
    expect_refusal(b, 1, NOW, "is valid from 20");
    make(b, &b->ca, IDENTITY_OPERATOR, NOW);
    assert_int_equal(check(b, 1, NOW + (IDENTITY_CA_DAYS + 1) * (int64_t)DAY), ST_CONFIG);
}

static void what_is_no_certificate_is_refused(void **state)
{
    struct bench *b = *state;
    expect_refusal(b, 0, NOW, "no chain of certificates");
    make(b, &b->ca, IDENTITY_OPERATOR, NOW);
    const struct identity_der whole = b->chain[0];
    for (size_t size = 0; size < whole.size; size += 7) {
        b->chain[0].size = size;
        expect_refusal(b, 1, NOW, "no chain of certificates");
    }
    b->chain[0].size = whole.size + 1; /* something behind it */
    expect_refusal(b, 1, NOW, "no chain of certificates");
    b->chain[0] = whole;
    for (size_t i = 1; i <= IDENTITY_CHAIN_MAX; i++)
        put(b, i, b->ca.cert);
    assert_int_equal(check(b, IDENTITY_CHAIN_MAX, NOW), ST_OK);
    expect_refusal(b, IDENTITY_CHAIN_MAX + 1, NOW, "no chain of certificates");
    b->bytes[0][whole.size - 1] ^= 1; /* of the signature */
    assert_int_equal(check(b, 1, NOW), ST_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_dials_is_who_the_certificate_says, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_coordinators_serves_only, set_up, tear_down),
        cmocka_unit_test_setup_teardown(of_another_authority_is_nobodys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(of_another_cluster_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_old_and_too_young_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_certificate_is_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
