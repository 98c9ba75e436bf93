/* Files that hold secrets. */
#include "webhook/private.h"

#include <ctype.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "common/own/private.h"

enum status webhook_secret_read(const char *path, char **out, size_t *out_size,
                                struct reason *reason)
{
    char *text = NULL;
    size_t size = 0;
    enum status st = private_read(path, WEBHOOK_SECRET_MAX, &text, &size, reason);
    if (st != ST_OK)
        return st;
    size_t from = 0;
    while (from < size && isspace((unsigned char)text[from]))
        from++;
    size_t end = size;
    while (end > from && isspace((unsigned char)text[end - 1]))
        end--;
    if (end - from < WEBHOOK_SECRET_MIN) {
        webhook_secret_free(text, size);
        reason_set(reason, "%s holds fewer than %d bytes: openssl rand -hex 32 > %s", path,
                   WEBHOOK_SECRET_MIN, path);
        return ST_INVALID;
    }
    memmove(text, text + from, end - from);
    OPENSSL_cleanse(text + (end - from), size - (end - from));
    *out = text;
    *out_size = end - from;
    return ST_OK;
}

void webhook_secret_free(char *secret, size_t size)
{
    if (secret != NULL)
        OPENSSL_cleanse(secret, size);
    free(secret);
}
