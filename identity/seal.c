#include "identity/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/own/private.h"
#include "identity/invite.h"

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

enum { HEX = IDENTITY_TOKEN - 1 };
_Static_assert(IDENTITY_TOKEN == IDENTITY_SECRET, "both are 32 bytes in digits");

static void make_digits(char out[IDENTITY_TOKEN])
{
    uint8_t bytes[HEX / 2];
    CHECK(getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes)); /* so few come at once */
    identity_secret_make(bytes, out);
    explicit_bzero(bytes, sizeof(bytes));
}

enum status identity_key_at(const char *path, char out[IDENTITY_TOKEN], struct reason *reason)
{
    auto_close int fd = -1;
    const enum status st = private_file(AT_FDCWD, path, O_RDWR, PRIVATE_MAKE, &fd, NULL, reason);
    if (st != ST_OK)
        return st;
    out[HEX] = '\0';
    if (pread(fd, out, HEX, 0) == HEX)
        return ST_OK;
    make_digits(out);
    bool written = pwrite(fd, out, HEX, 0) == HEX && ftruncate(fd, HEX) == 0 && fsync(fd) == 0;
    return written ? ST_OK : status_from_errno(errno);
}

enum status identity_key_new(const char *path, char out[IDENTITY_TOKEN])
{
    make_digits(out);
    return io_replace_private(io_system(), path, out, HEX);
}
