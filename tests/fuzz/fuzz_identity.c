/* Any bytes as the URI of an identity, as a certificate, as what is in the PEM text of one or of a
 * request to sign, as what a caller showed, and as for whom the page asks. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "identity/behalf.h"
#include "identity/cert.h"
#include "identity/invite.h"
#include "identity/make.h"
#include "identity/peer.h"
#include "tests/fuzz/fuzz.h"

enum { NOW = 1790000000, BYTES_MAX = 16384 };

static struct identity_pem ca; /* made once */

/* What is an identity is so in one way only. */
static void parse_uri(const char *bytes, size_t size)
{
    struct identity who;
    char uri[IDENTITY_URI];
    if (!identity_parse(bytes, size, &who))
        return;
    identity_uri(&who, uri);
    CHECK(strlen(uri) == size);
    CHECK(memcmp(uri, bytes, size) == 0);
}

static void parse_cert(const char *text)
{
    struct identity_cert cert;
    if (identity_cert_read(text, &cert) == ST_OK && !cert.is_ca)
        CHECK(identity_name_valid(cert.who.name));
}

static void parse_request(const char *text)
{
    struct reason reason = { "" };
    char *made = NULL;
    enum status st = identity_sign(&ca, text, IDENTITY_NODE, "n", NOW, &made, &reason);
    CHECK(st == ST_OK || reason.text[0] != '\0');
    free(made);
}

/* What is an invite is one again when it is written. */
static void parse_invite(const char *text)
{
    struct identity_invite invite, again;
    char *written = NULL;
    if (identity_invite_read(text, &invite) != ST_OK)
        return;
    CHECK(identity_invite_text(&invite, &written) == ST_OK);
    CHECK(identity_invite_read(written, &again) == ST_OK);
    CHECK(strcmp(invite.secret, again.secret) == 0 && invite.address_count == again.address_count);
    free(written);
    identity_invite_release(&invite);
    identity_invite_release(&again);
}

/* With an authority, as bytes alone never have one. */
static void parse_lines(const char *text)
{
    const size_t size = strlen(text) + strlen(ca.cert) + 1;
    char *whole = malloc(size);
    CHECK(whole != NULL);
    (void)snprintf(whole, size, "%s%s", text, ca.cert);
    parse_invite(whole);
    free(whole);
}

/* What is for whom somebody asks is so in one way only. */
static void parse_behalf(const uint8_t *data, size_t size)
{
    struct identity_behalf behalf;
    char text[IDENTITY_BEHALF];
    if (!identity_behalf_read(data, size, &behalf))
        return;
    CHECK(behalf.role == IDENTITY_OPERATOR || behalf.role == IDENTITY_VIEWER);
    identity_behalf_text(&behalf, text);
    CHECK(strlen(text) == size);
    CHECK(memcmp(text, data, size) == 0);
}

/* Nobody signed it, so it makes nobody somebody. The first byte says where it is cut in two. */
static void check_peer(const uint8_t *data, size_t size)
{
    struct reason reason = { "" };
    struct identity_cert cert;
    const size_t cut = size == 0 ? 0 : data[0] % size;
    const struct identity_der chain[] = { { data, cut }, { data + cut, size - cut } };
    for (size_t from = 0; from < 2; from++) {
        CHECK(identity_peer_check(ca.cert, "lab", chain + from, 2 - from, NOW, &cert, &reason) !=
              ST_OK);
        CHECK(reason.text[0] != '\0');
    }
}

/* The bytes between the lines of such a text. */
static void parse_wrapped(const char *what, void (*parse)(const char *), const uint8_t *data,
                          size_t size)
{
    unsigned char *base64 = malloc(2 * size + 8);
    char *text = malloc(2 * size + 256);
    CHECK(base64 != NULL && text != NULL);
    (void)EVP_EncodeBlock(base64, data, (int)size);
    (void)snprintf(text, 2 * size + 256, "-----BEGIN %s-----\n%s\n-----END %s-----\n", what, base64,
                   what);
    parse(text);
    free(base64);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reason reason;
    if (size > BYTES_MAX)
        return 0;
    if (ca.cert == NULL)
        CHECK(identity_make_ca("lab", NOW, &ca, &reason) == ST_OK);
    char *text = malloc(size + 1);
    CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    parse_behalf(data, size);
    check_peer(data, size);
    parse_uri(text, size);
    parse_cert(text);
    parse_invite(text);
    parse_lines(text);
    free(text);
    parse_wrapped("CERTIFICATE", parse_cert, data, size);
    parse_wrapped("CERTIFICATE REQUEST", parse_request, data, size);
    return 0;
}
