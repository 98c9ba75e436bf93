/* Names in certificates; what is made is what is read; each way that files can be wrong is told. */
#include <openssl/bn.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "identity/check.h"
#include "identity/invite.h"
#include "identity/make.h"
#include "identity/seal.h"
#include "tests/test.h"

enum { NOW = 1790000000, DAY = 86400 };

/* ---- names ---- */

static bool parse(const char *uri, struct identity *out)
{
    return identity_parse(uri, strlen(uri), out);
}

static void a_uri_is_read_back_as_it_was_written(void **state)
{
    (void)state;
    static const enum identity_role roles[] = { IDENTITY_NODE, IDENTITY_OPERATOR, IDENTITY_VIEWER,
                                                IDENTITY_COORDINATOR };
    for (size_t i = 0; i < 4; i++) {
        char uri[IDENTITY_URI];
        struct identity in = { roles[i], "lab-1.example", "Gpu_07.rack-2" }, out;
        identity_uri(&in, uri);
        assert_true(parse(uri, &out));
        assert_int_equal(out.role, in.role);
        assert_string_equal(out.cluster, in.cluster);
        assert_string_equal(out.name, in.name);
    }
    struct identity out;
    assert_true(parse("cairn://c/viewer/v", &out));
    assert_int_equal(out.role, IDENTITY_VIEWER);
}

static void what_is_not_exactly_such_a_uri_is_nobody(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "cairn://",
        "cairn://c/node/",
        "cairn:///node/n",
        "cairn://c/node",
        "cairn://c/nodes/n",
        "cairn://c/Node/n",
        "cairn://c//n",
        "cairn://c/node/n/",
        "cairn://c/node/a/b",
        "cairn://c/node/a,b",
        "cairn://c/node/a b",
        "cairn://c/node/..",
        "cairn://c/node/-a",
        "cairn://c/node/a\n",
        "cairn://c/node/\xc3\xa4",
        "cairn://C/node/n",
        "cairn://c@d/node/n",
        "cairn://c:1/node/n",
        "CAIRN://c/node/n",
        " cairn://c/node/n",
        "spiffe://c/node/n",
        "cairn://0123456789012345678901234567890123456789012345678901234567890123/node/n",
    };
    struct identity out;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (parse(wrong[i], &out))
            fail_msg("taken for an identity: %s", wrong[i]);
    }
    assert_false(identity_parse("cairn://c/node/n\0", sizeof("cairn://c/node/n"), &out));
    assert_false(identity_parse("cairn://c/node/n\0x", sizeof("cairn://c/node/n") + 1, &out));
    char name[LIMIT_NAME + 1];
    memset(name, 'n', sizeof(name));
    name[LIMIT_NAME] = '\0';
    assert_false(identity_name_valid(name));
    name[LIMIT_NAME - 1] = '\0';
    assert_true(identity_name_valid(name));
}

/* ---- certificates ---- */

struct bench {
    struct identity_pem ca, other;
    char dir[64];
    char paths[3][96];
    struct identity_files files;
};

static int set_up(void **state)
{
    static const char *const names[] = { "cert", "key", "ca" };
    struct bench *b = calloc(1, sizeof(*b));
    struct reason reason;
    assert_non_null(b);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/cairn-identity-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    for (size_t i = 0; i < 3; i++)
        (void)snprintf(b->paths[i], sizeof(b->paths[i]), "%s/%s", b->dir, names[i]);
    b->files = (struct identity_files){ b->paths[0], b->paths[1], b->paths[2] };
    assert_int_equal(identity_make_ca("lab", NOW, &b->ca, &reason), ST_OK);
    assert_int_equal(identity_make_ca("lab", NOW, &b->other, &reason), ST_OK);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *b = *state;
    identity_pem_release(&b->ca);
    identity_pem_release(&b->other);
    for (size_t i = 0; i < 3; i++)
        (void)unlink(b->paths[i]);
    assert_int_equal(rmdir(b->dir), 0);
    free(b);
    return 0;
}

static void put(const char *path, const char *text)
{
    assert_int_equal(io_replace(io_system(), path, text, strlen(text)), ST_OK);
}

/* Makes a peer's certificate at a time, and files of it. */
static struct identity_pem put_made(struct bench *b, const struct identity_pem *ca,
                                    enum identity_role role, int64_t now_s)
{
    struct identity_pem pem;
    struct reason reason;
    assert_int_equal(identity_make(ca, role, "n1", NULL, now_s, &pem, &reason), ST_OK);
    put(b->files.cert, pem.cert);
    put(b->files.key, pem.key);
    put(b->files.ca, b->ca.cert);
    return pem;
}

static void want(struct bench *b, unsigned roles, enum status want_st, const char *want_text)
{
    struct identity_cert cert;
    struct reason reason = { "" };
    enum status st = identity_check(&b->files, roles, NOW, &cert, &reason);
    if (st != want_st || strstr(reason.text, want_text) == NULL)
        fail_msg("%d, not %d: '%s', not '%s'", st, want_st, reason.text, want_text);
    assert_null(strchr(reason.text, '\n'));
    if (st != ST_OK)
        assert_non_null(strstr(reason.text, b->dir));
}

static void each_role_has_a_certificate_that_does_for_it(void **state)
{
    struct bench *b = *state;
    static const enum identity_role roles[] = { IDENTITY_NODE, IDENTITY_OPERATOR, IDENTITY_VIEWER,
                                                IDENTITY_COORDINATOR };
    for (size_t i = 0; i < 4; i++) {
        struct identity_pem pem = put_made(b, &b->ca, roles[i], NOW);
        struct identity_cert cert;
        want(b, roles[i], ST_OK, "");
        assert_int_equal(identity_cert_read(pem.cert, &cert), ST_OK);
        assert_false(cert.is_ca);
        assert_int_equal(cert.who.role, roles[i]);
        assert_string_equal(cert.who.cluster, "lab");
        assert_string_equal(cert.who.name, "n1");
        assert_string_equal(cert.hosts, roles[i] == IDENTITY_COORDINATOR ? IDENTITY_HOSTS : "");
        assert_int_equal(cert.not_before_s, NOW - IDENTITY_EARLY_S);
        assert_int_equal(cert.not_after_s, NOW + IDENTITY_DAYS * DAY);
        identity_pem_release(&pem);
    }
}

static bool has(X509 *cert, int nid, bool critical)
{
    int at = X509_get_ext_by_NID(cert, nid, -1);
    return at >= 0 && X509_EXTENSION_get_critical(X509_get_ext(cert, at)) == (critical ? 1 : 0);
}

static X509 *cert_of(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    assert_non_null(cert);
    return cert;
}

static void extensions_say_what_a_certificate_is_for(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem = put_made(b, &b->ca, IDENTITY_NODE, NOW);
    const char *const texts[] = { b->ca.cert, pem.cert };
    for (size_t i = 0; i < 2; i++) {
        X509 *cert = cert_of(texts[i]);
        assert_true(has(cert, NID_basic_constraints, true));
        assert_true(has(cert, NID_key_usage, true));
        assert_true(has(cert, NID_subject_key_identifier, false));
        assert_true(has(cert, NID_authority_key_identifier, false));
        assert_int_equal(X509_check_ca(cert), i == 0 ? 1 : 0);
        assert_int_equal(X509_get_extended_key_usage(cert), i == 0 ? UINT32_MAX : XKU_SSL_CLIENT);
        assert_int_equal(X509_get_key_usage(cert),
                         i == 0 ? KU_KEY_CERT_SIGN | KU_CRL_SIGN : KU_DIGITAL_SIGNATURE);
        assert_true(EVP_PKEY_is_a(X509_get0_pubkey(cert), "EC"));
        X509_free(cert);
    }
    struct identity_cert first, second;
    assert_int_equal(identity_cert_read(b->ca.cert, &first), ST_OK);
    assert_int_equal(identity_cert_read(b->other.cert, &second), ST_OK);
    assert_true(first.is_ca && strcmp(first.serial, second.serial) != 0);
    assert_int_equal(first.not_after_s, NOW + (int64_t)IDENTITY_CA_DAYS * DAY);
    identity_pem_release(&pem);
}

static void a_coordinator_has_the_hosts_that_it_is_given(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem;
    struct reason reason;
    struct identity_cert cert;
    assert_int_equal(identity_make(&b->ca, IDENTITY_COORDINATOR, "main",
                                   "a.example,10.0.0.1,localhost,fd00::1", NOW, &pem, &reason),
                     ST_OK);
    assert_int_equal(identity_cert_read(pem.cert, &cert), ST_OK);
    assert_string_equal(cert.hosts, IDENTITY_HOSTS ",a.example,10.0.0.1,fd00::1");
    identity_pem_release(&pem);

    static const char *const wrong[] = { "a,,b", "a b", "*.example", "URI:cairn://lab/node/x",
                                         "-a",   "",    "10.0.0.1/8" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (identity_make(&b->ca, IDENTITY_COORDINATOR, "main", wrong[i], NOW, &pem, &reason) !=
            ST_INVALID)
            fail_msg("a host: '%s'", wrong[i]);
    }
    char many[2 * IDENTITY_HOSTS_MAX] = "h0";
    for (int i = 1; i < 200; i++)
        (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), ",host%d", i);
    assert_int_equal(identity_make(&b->ca, IDENTITY_COORDINATOR, "main", many, NOW, &pem, &reason),
                     ST_INVALID);
}

static void a_name_that_could_be_two_is_refused(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem;
    struct reason reason;
    static const char *const wrong[] = { "", "a,URI:cairn://lab/operator/a", "a/b", "a b", "\n" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(identity_make(&b->ca, IDENTITY_NODE, wrong[i], NULL, NOW, &pem, &reason),
                         ST_INVALID);
        assert_int_equal(identity_make_ca(wrong[i], NOW, &pem, &reason), ST_INVALID);
    }
}

static void a_request_is_signed_for_whom_the_authority_says(void **state)
{
    struct bench *b = *state;
    struct identity_pem request, node;
    struct reason reason;
    char *cert = NULL;
    assert_int_equal(identity_request(&request, &reason), ST_OK);
    assert_int_equal(identity_sign(&b->ca, request.cert, IDENTITY_NODE, "n2", NOW, &cert, &reason),
                     ST_OK);
    put(b->files.cert, cert);
    put(b->files.key, request.key);
    put(b->files.ca, b->ca.cert);
    want(b, IDENTITY_NODE, ST_OK, "");
    free(cert);

    /* One bit of the request other than it was: its sender doesn't have the key. */
    char *end = strstr(request.cert, "\n-----END");
    end[-20] = end[-20] == 'A' ? 'B' : 'A';
    assert_int_equal(identity_sign(&b->ca, request.cert, IDENTITY_NODE, "n2", NOW, &cert, &reason),
                     ST_CONFIG);
    node = put_made(b, &b->ca, IDENTITY_NODE, NOW);
    assert_int_equal(identity_sign(&b->ca, node.cert, IDENTITY_NODE, "n2", NOW, &cert, &reason),
                     ST_CONFIG);
    /* A peer's certificate can't sign. */
    assert_int_equal(identity_sign(&node, request.cert, IDENTITY_NODE, "n2", NOW, &cert, &reason),
                     ST_CONFIG);
    const struct identity_pem mixed = { b->ca.cert, b->other.key };
    assert_int_equal(identity_sign(&mixed, request.cert, IDENTITY_NODE, "n2", NOW, &cert, &reason),
                     ST_CONFIG);
    /* An authority that is too old can't renew. */
    const int64_t later = NOW + (int64_t)IDENTITY_CA_DAYS * DAY;
    assert_int_equal(identity_renew(&b->ca, node.cert, later, &cert, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, "expired"));
    identity_pem_release(&request);
    identity_pem_release(&node);
}

static void renewing_keeps_the_key_the_name_and_the_hosts(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem;
    struct identity_cert was, is;
    struct reason reason;
    char *cert = NULL;
    assert_int_equal(identity_make(&b->ca, IDENTITY_COORDINATOR, "main", "10.0.0.1", NOW - 40 * DAY,
                                   &pem, &reason),
                     ST_OK);
    assert_int_equal(identity_renew(&b->ca, pem.cert, NOW, &cert, &reason), ST_OK);
    assert_int_equal(identity_cert_read(pem.cert, &was), ST_OK);
    assert_int_equal(identity_cert_read(cert, &is), ST_OK);
    assert_string_equal(is.hosts, was.hosts);
    assert_string_equal(is.who.name, "main");
    assert_string_not_equal(is.serial, was.serial);
    put(b->files.cert, cert);
    put(b->files.key, pem.key);
    put(b->files.ca, b->ca.cert);
    want(b, IDENTITY_COORDINATOR, ST_OK, "");
    free(cert);
    assert_int_equal(identity_renew(&b->other, pem.cert, NOW, &cert, &reason), ST_CONFIG);
    assert_int_equal(identity_renew(&b->ca, b->ca.cert, NOW, &cert, &reason), ST_CONFIG);
    assert_int_equal(identity_renew(&b->ca, "no", NOW, &cert, &reason), ST_CONFIG);
    identity_pem_release(&pem);
}

static void each_wrong_file_is_named_with_a_way_out(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem = put_made(b, &b->ca, IDENTITY_NODE, NOW);
    want(b, IDENTITY_NODE | IDENTITY_VIEWER, ST_OK, "");
    want(b, IDENTITY_OPERATOR | IDENTITY_VIEWER, ST_CONFIG, "that of an operator or a viewer");

    put(b->files.cert, "garbage");
    want(b, IDENTITY_ANY, ST_CONFIG, "/cert holds no certificate");
    put(b->files.cert, b->ca.cert);
    put(b->files.key, b->ca.key);
    want(b, IDENTITY_ANY, ST_CONFIG, "/cert names no node");
    put(b->files.cert, pem.cert);
    put(b->files.key, "garbage");
    want(b, IDENTITY_ANY, ST_CONFIG, "/key holds no key");
    put(b->files.key, b->other.key);
    want(b, IDENTITY_ANY, ST_CONFIG, "/key isn't the key of");
    put(b->files.key, pem.key);
    put(b->files.ca, "garbage");
    want(b, IDENTITY_ANY, ST_CONFIG, "/ca holds no certificate authority");
    put(b->files.ca, b->other.cert);
    want(b, IDENTITY_ANY, ST_CONFIG, "wasn't signed by the authority in");
    assert_int_equal(unlink(b->files.ca), 0);
    want(b, IDENTITY_ANY, ST_NOT_FOUND, "/ca isn't there");
    put(b->files.ca, b->ca.cert);
    want(b, IDENTITY_ANY, ST_OK, "");
    identity_pem_release(&pem);
}

static void dates_are_told_with_what_to_do(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem = put_made(b, &b->ca, IDENTITY_NODE, NOW - (IDENTITY_DAYS + 1) * DAY);
    want(b, IDENTITY_ANY, ST_CONFIG, "'cairn cert renew'");
    identity_pem_release(&pem);
    pem = put_made(b, &b->ca, IDENTITY_NODE, NOW + DAY);
    want(b, IDENTITY_ANY, ST_CONFIG, "clock");
    identity_pem_release(&pem);

    struct identity_pem old;
    struct reason reason;
    const int64_t then = NOW - (int64_t)(IDENTITY_CA_DAYS + 1) * DAY;
    assert_int_equal(identity_make_ca("lab", then, &old, &reason), ST_OK);
    assert_int_equal(identity_make(&old, IDENTITY_NODE, "n", NULL, then, &pem, &reason), ST_OK);
    put(b->files.cert, pem.cert);
    put(b->files.key, pem.key);
    put(b->files.ca, old.cert);
    want(b, IDENTITY_ANY, ST_CONFIG, "expired");
    identity_pem_release(&pem);
    identity_pem_release(&old);
}

static void two_authorities_are_trusted_while_one_takes_the_place_of_the_other(void **state)
{
    struct bench *b = *state;
    char both[8192];
    (void)snprintf(both, sizeof(both), "%s%s", b->other.cert, b->ca.cert);
    struct identity_pem pem = put_made(b, &b->ca, IDENTITY_NODE, NOW);
    put(b->files.ca, both);
    want(b, IDENTITY_ANY, ST_OK, "");
    (void)snprintf(both, sizeof(both), "%s-----BEGIN CERTIFICATE-----\ngarbage\n", b->ca.cert);
    put(b->files.ca, both);
    want(b, IDENTITY_ANY, ST_CONFIG, "/ca holds no certificate authority");
    identity_pem_release(&pem);
}

static bool cert_of_names_read(struct bench *b, const char *names)
{
    struct identity_cert read;
    X509V3_CTX context;
    struct identity_pem pem = put_made(b, &b->ca, IDENTITY_NODE, NOW);
    X509 *cert = cert_of(pem.cert);
    int at = X509_get_ext_by_NID(cert, NID_subject_alt_name, -1);
    X509_EXTENSION_free(X509_delete_ext(cert, at));
    if (names != NULL) {
        X509V3_set_ctx(&context, cert, cert, NULL, NULL, 0);
        X509_EXTENSION *extension =
            X509V3_EXT_conf_nid(NULL, &context, NID_subject_alt_name, names);
        assert_non_null(extension);
        assert_int_equal(X509_add_ext(cert, extension, -1), 1);
        X509_EXTENSION_free(extension);
    }
    bool known = identity_cert_of(cert, &read);
    X509_free(cert);
    identity_pem_release(&pem);
    return known;
}

static void a_certificate_has_exactly_one_uri(void **state)
{
    struct bench *b = *state;
    assert_true(cert_of_names_read(b, "URI:cairn://lab/node/n"));
    assert_true(cert_of_names_read(b, "DNS:x,URI:cairn://lab/node/n,IP:::1"));
    assert_false(cert_of_names_read(b, NULL));
    assert_false(cert_of_names_read(b, "DNS:cairn"));
    assert_false(cert_of_names_read(b, "URI:cairn://lab/node/n,URI:cairn://lab/operator/n"));
    assert_false(cert_of_names_read(b, "URI:cairn://lab/node/n,URI:https://example.org/"));
    assert_false(cert_of_names_read(b, "URI:https://example.org/"));
}

/* ---- files ---- */

static void a_change_of_a_file_is_seen_until_it_is_accepted(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem = put_made(b, &b->ca, IDENTITY_NODE, NOW);
    struct identity_watch *watch = NULL;
    int64_t ms = 5000;
    assert_int_equal(identity_watch_new(&b->files, &watch), ST_OK);
    assert_string_equal(identity_watch_files(watch)->key, b->files.key);
    assert_false(identity_watch_changed(watch, ms));
    put(b->files.key, pem.key);
    assert_false(identity_watch_changed(watch, ms + IDENTITY_LOOK_MS - 1));
    assert_true(identity_watch_changed(watch, ms += IDENTITY_LOOK_MS));
    assert_true(identity_watch_changed(watch, ms += IDENTITY_LOOK_MS));
    identity_watch_accept(watch);
    assert_false(identity_watch_changed(watch, ms += IDENTITY_LOOK_MS));
    assert_int_equal(unlink(b->files.ca), 0);
    assert_true(identity_watch_changed(watch, ms += IDENTITY_LOOK_MS));
    identity_watch_free(watch);
    identity_pem_release(&pem);
}

static void texts_are_usable_if_they_parse_and_the_key_fits(void **state)
{
    struct bench *b = *state;
    struct identity_pem pem = put_made(b, &b->ca, IDENTITY_NODE, NOW);
    struct identity_texts texts = { pem.cert, pem.key, b->ca.cert };
    char garbage[] = "garbage", chain[4096];
    assert_true(identity_usable(&texts));
    (void)snprintf(chain, sizeof(chain), "%s%s", pem.cert, b->ca.cert);
    texts.cert = chain;
    assert_true(identity_usable(&texts));
    (void)snprintf(chain, sizeof(chain), "%s-----BEGIN CERTIFICATE-----\n", pem.cert);
    assert_false(identity_usable(&texts));
    texts.cert = pem.cert;
    texts.key = b->ca.key;
    assert_false(identity_usable(&texts));
    texts.key = NULL;
    assert_false(identity_usable(&texts));
    texts.cert = NULL;
    assert_true(identity_usable(&texts));
    texts.ca = garbage;
    assert_false(identity_usable(&texts));
    texts.ca = NULL;
    assert_false(identity_usable(&texts));
    identity_pem_release(&pem);
}

/* ---- tokens ---- */

static void a_token_shows_who_made_it(void **state)
{
    static const char key[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    static const char other[] = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    char token[IDENTITY_TOKEN], copy[IDENTITY_TOKEN + 1];
    (void)state;
    memcpy(token, other, sizeof(token));
    assert_false(identity_sealed(key, token));
    identity_seal(key, token);
    assert_memory_equal(token, other, 32); /* the random half */
    assert_true(identity_sealed(key, token));
    assert_false(identity_sealed(other, token));
    for (size_t i = 0; i < IDENTITY_TOKEN - 1; i++) {
        memcpy(copy, token, sizeof(token));
        copy[i] = copy[i] == '0' ? '1' : '0';
        assert_false(identity_sealed(key, copy));
    }
    (void)snprintf(copy, sizeof(copy), "%s0", token);
    assert_false(identity_sealed(key, copy));
    assert_false(identity_sealed(key, ""));
}

/* ---- invites ---- */

static void an_invite_is_read_back_as_it_was_written(void **state)
{
    struct bench *b = *state;
    uint8_t bytes[32], one[IDENTITY_SECRET_HASH], other[IDENTITY_SECRET_HASH];
    struct identity_invite invite = { .address_count = 2, .until_s = NOW }, read;
    memset(bytes, 0xa5, sizeof(bytes));
    identity_secret_make(bytes, invite.secret);
    (void)snprintf(invite.addresses[0], IDENTITY_ADDRESS, "10.0.0.1:7000");
    (void)snprintf(invite.addresses[1], IDENTITY_ADDRESS, "[fd00::1]:7000");
    invite.ca = strdup(b->ca.cert);
    assert_non_null(invite.ca);
    char *text = NULL;
    assert_int_equal(identity_invite_text(&invite, &text), ST_OK);
    assert_int_equal(identity_invite_read(text, &read), ST_OK);
    assert_int_equal(read.address_count, 2);
    assert_string_equal(read.addresses[1], "[fd00::1]:7000");
    assert_string_equal(read.secret, invite.secret);
    assert_string_equal(read.ca, b->ca.cert);
    assert_int_equal(identity_secret_hash(read.secret, one), ST_OK);
    identity_invite_release(&read);
    assert_string_equal(read.secret, "");
    bytes[31] ^= 1;
    identity_secret_make(bytes, invite.secret);
    assert_int_equal(identity_secret_hash(invite.secret, other), ST_OK);
    assert_memory_not_equal(one, other, sizeof(one));
    free(text);
    identity_invite_release(&invite);
}

#define SECRET "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void what_is_no_invite_is_refused(void **state)
{
    static const char *const lines[] = {
        "",
        "address a:1\n",
        "secret " SECRET "\n",
        "address a\nsecret " SECRET "\n",
        "address a:1\nsecret " SECRET "0\n",
        "address a:1\nsecret 0123\n",
        "address a:1\nsecret " SECRET "\nother x\n",
        "address a:1\nsecret " SECRET "\n\n",
        "address a:1\nsecret " SECRET,
    };
    struct bench *b = *state;
    struct identity_invite out;
    char text[8192];
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        (void)snprintf(text, sizeof(text), "%s%s", lines[i], b->ca.cert);
        if (identity_invite_read(text, &out) != ST_CONFIG)
            fail_msg("taken for an invite: %s", lines[i]);
    }
    (void)snprintf(text, sizeof(text), "address a:1\nsecret %s\n", SECRET);
    assert_int_equal(identity_invite_read(text, &out), ST_CONFIG);
    for (size_t i = 0; i <= IDENTITY_ADDRESSES; i++)
        (void)snprintf(text + i * 12, sizeof(text) - i * 12, "address a:1\n");
    const size_t size = strlen(text);
    (void)snprintf(text + size, sizeof(text) - size, "secret %s\n%s", SECRET, b->ca.cert);
    assert_int_equal(identity_invite_read(text, &out), ST_CONFIG);
    assert_int_equal(identity_invite_read(text + 12, &out), ST_OK);
    identity_invite_release(&out);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uri_is_read_back_as_it_was_written),
        cmocka_unit_test(what_is_not_exactly_such_a_uri_is_nobody),
        cmocka_unit_test(a_token_shows_who_made_it),
        TEST(each_role_has_a_certificate_that_does_for_it),
        TEST(extensions_say_what_a_certificate_is_for),
        TEST(a_coordinator_has_the_hosts_that_it_is_given),
        TEST(a_name_that_could_be_two_is_refused),
        TEST(a_request_is_signed_for_whom_the_authority_says),
        TEST(renewing_keeps_the_key_the_name_and_the_hosts),
        TEST(each_wrong_file_is_named_with_a_way_out),
        TEST(dates_are_told_with_what_to_do),
        TEST(two_authorities_are_trusted_while_one_takes_the_place_of_the_other),
        TEST(a_certificate_has_exactly_one_uri),
        TEST(a_change_of_a_file_is_seen_until_it_is_accepted),
        TEST(an_invite_is_read_back_as_it_was_written),
        TEST(what_is_no_invite_is_refused),
        TEST(texts_are_usable_if_they_parse_and_the_key_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
