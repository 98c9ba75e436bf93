#include "identity/invite.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "identity/cert.h"

#define BEGIN "-----BEGIN CERTIFICATE-----"

void identity_invite_release(struct identity_invite *invite)
{
    explicit_bzero(invite->secret, sizeof(invite->secret));
    free(invite->ca);
    *invite = (struct identity_invite){ .ca = NULL };
}

enum status identity_invite_text(const struct identity_invite *invite, char **out)
{
    char until[IDENTITY_TIME];
    auto_buf struct buf text;
    buf_init(&text, IDENTITY_INVITE_BYTES);
    identity_time(invite->until_s, until);
    enum status st = buf_append_text(&text, "# An invite to a cluster of Cairn, for 'cairn-agent "
                                            "--join'. Who has this file can join.\n");
    for (size_t i = 0; st == ST_OK && i < invite->address_count; i++)
        st = buf_printf(&text, "address %s\n", invite->addresses[i]);
    if (st == ST_OK)
        st = buf_printf(&text, "secret %s\nuntil %s\n%s", invite->secret, until, invite->ca);
    if (st == ST_OK)
        *out = buf_take(&text, NULL);
    return st;
}

static bool is_secret(const char *text)
{
    size_t digits = 0;
    while (isxdigit((unsigned char)text[digits]))
        digits++;
    return digits == IDENTITY_SECRET - 1 && text[digits] == '\0';
}

/* Reads one line of those before the certificate. */
static bool read_line(const char *line, struct identity_invite *out)
{
    if (strncmp(line, "address ", 8) == 0) {
        if (out->address_count == IDENTITY_ADDRESSES || strlen(line + 8) >= IDENTITY_ADDRESS ||
            strrchr(line + 8, ':') == NULL)
            return false;
        (void)snprintf(out->addresses[out->address_count++], IDENTITY_ADDRESS, "%s", line + 8);
        return true;
    }
    if (strncmp(line, "secret ", 7) == 0 && is_secret(line + 7)) {
        memcpy(out->secret, line + 7, sizeof(out->secret));
        return true;
    }
    return line[0] == '#' || strncmp(line, "until ", 6) == 0;
}

enum status identity_invite_read(const char *text, struct identity_invite *out)
{
    struct identity_cert ca;
    *out = (struct identity_invite){ .ca = NULL };
    const char *cert = strstr(text, BEGIN);
    bool good = cert != NULL;
    for (const char *at = text; good && at < cert;) {
        char line[IDENTITY_ADDRESS + 16];
        const size_t size = strcspn(at, "\n");
        good = size < sizeof(line) && at + size < cert;
        if (!good)
            break;
        memcpy(line, at, size);
        line[size] = '\0';
        good = read_line(line, out);
        explicit_bzero(line, sizeof(line));
        at += size + 1;
    }
    good = good && out->address_count > 0 && out->secret[0] != '\0' &&
           identity_cert_read(cert, &ca) == ST_OK && ca.is_ca;
    if (good)
        out->ca = strdup(cert);
    if (good && out->ca != NULL)
        return ST_OK;
    identity_invite_release(out);
    return good ? ST_NO_MEMORY : ST_CONFIG;
}

void identity_secret_make(const uint8_t bytes[32], char out[IDENTITY_SECRET])
{
    for (size_t i = 0; i < 32; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

enum status identity_secret_hash(const char *secret, uint8_t out[IDENTITY_SECRET_HASH])
{
    unsigned size = 0;
    const bool done = EVP_Digest(secret, strlen(secret), out, &size, EVP_sha256(), NULL) == 1;
    return done && size == IDENTITY_SECRET_HASH ? ST_OK : ST_NO_MEMORY;
}
