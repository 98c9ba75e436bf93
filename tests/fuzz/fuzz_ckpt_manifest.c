/* Feeds bytes as a manifest; those whose first byte is odd get the right hash at their end. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hash.h"
#include "checkpoint/manifest.h"
#include "common/check.h"

#define TAIL ",\"xxh3_128\":\""

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t body = size - 1;
    char *text = malloc(body + sizeof(TAIL) + 40);
    CHECK(text != NULL);
    memcpy(text, data + 1, body);
    if ((data[0] & 1) != 0) {
        struct ckpt_hash hash = ckpt_hash_of(text, body);
        char hex[33];
        ckpt_hash_text(&hash, hex);
        memcpy(text + body, TAIL, sizeof(TAIL) - 1);
        memcpy(text + body + sizeof(TAIL) - 1, hex, 32);
        memcpy(text + body + sizeof(TAIL) - 1 + 32, "\"}\n", 3);
        body += sizeof(TAIL) - 1 + 32 + 3;
    }
    struct ckpt_manifest manifest;
    const char *what = NULL;
    enum status st = ckpt_manifest_parse(text, body, &manifest, &what);
    CHECK(st == ST_OK || what != NULL);
    if (st == ST_OK)
        ckpt_manifest_release(&manifest);
    free(text);
    return 0;
}
