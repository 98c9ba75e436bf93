/* Signatures and the names of deliveries. */
#include "webhook/sign.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"

#define SHA256 32

static void put_hex(const uint8_t *bytes, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

enum status webhook_sign(const char *secret, size_t secret_size, int64_t unix_s, const char *body,
                         size_t body_size, char out[WEBHOOK_SIGNATURE])
{
    auto_buf struct buf text;
    uint8_t mac[SHA256];
    unsigned made = 0;
    buf_init(&text, body_size + 32);
    enum status st = buf_printf(&text, "%" PRId64 ".", unix_s);
    if (st == ST_OK)
        st = buf_append(&text, body, body_size);
    if (st != ST_OK)
        return st;
    if (HMAC(EVP_sha256(), secret, (int)secret_size, (const uint8_t *)text.data, text.size, mac,
             &made) == NULL ||
        made != SHA256)
        return ST_NO_MEMORY;
    int size = snprintf(out, WEBHOOK_SIGNATURE, "t=%" PRId64 ",v1=", unix_s);
    put_hex(mac, SHA256, out + size);
    return ST_OK;
}

enum status webhook_delivery(const char *hook, const char *job, const char *what,
                             char out[WEBHOOK_DELIVERY])
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    const char *const parts[] = { hook, job, what };
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    bool ok = sum != NULL && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1;
    for (size_t i = 0; ok && i < sizeof(parts) / sizeof(parts[0]); i++)
        ok = EVP_DigestUpdate(sum, parts[i], strlen(parts[i]) + 1) == 1;
    ok = ok && EVP_DigestFinal_ex(sum, digest, NULL) == 1;
    EVP_MD_CTX_free(sum);
    if (!ok)
        return ST_NO_MEMORY;
    put_hex(digest, WEBHOOK_DELIVERY / 2, out);
    return ST_OK;
}

enum status webhook_delivery_new(char out[WEBHOOK_DELIVERY])
{
    uint8_t bytes[WEBHOOK_DELIVERY / 2];
    if (RAND_bytes(bytes, sizeof(bytes)) != 1)
        return ST_IO;
    put_hex(bytes, sizeof(bytes), out);
    return ST_OK;
}
