#include "identity/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"

enum { HALF = (IDENTITY_TOKEN - 1) / 2 };

static void code_of(const char key[IDENTITY_TOKEN], const char *token, char out[HALF + 1])
{
    uint8_t code[EVP_MAX_MD_SIZE];
    unsigned size = sizeof(code);
    CHECK(HMAC(EVP_sha256(), key, IDENTITY_TOKEN - 1, (const uint8_t *)token, HALF, code, &size) !=
          NULL);
    for (size_t i = 0; i < HALF / 2; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", code[i]);
}

void identity_seal(const char key[IDENTITY_TOKEN], char token[IDENTITY_TOKEN])
{
    code_of(key, token, token + HALF);
}

bool identity_sealed(const char key[IDENTITY_TOKEN], const char *token)
{
    char code[HALF + 1];
    if (strlen(token) != IDENTITY_TOKEN - 1)
        return false;
    code_of(key, token, code);
    return CRYPTO_memcmp(code, token + HALF, HALF) == 0;
}
