/* Any bytes as a manifest, and as the body of one whose hash is right. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "tests/fuzz/fuzz.h"

#define TAIL ",\"xxh3_128\":\""
#define END  "\"}\n"

static void parse(const char *text, size_t size)
{
    struct ckpt_manifest manifest;
    struct reason what = { "" };
    enum status st = ckpt_manifest_parse(text, size, &manifest, &what);
    CHECK(st == ST_OK || what.text[0] != '\0');
    if (st == ST_OK)
        ckpt_manifest_release(&manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse((const char *)data, size);
    if (size >= sizeof(TAIL) + 34 && memcmp(data + size - 3, END, 3) == 0)
        size -= sizeof(TAIL) - 1 + 32 + 3; /* a whole manifest: its body */
    char *text = malloc(size + sizeof(TAIL) + 40), hex[33];
    CHECK(text != NULL);
    struct ckpt_hash hash = ckpt_hash_of(data, size);
    ckpt_hash_text(&hash, hex);
    memcpy(text, data, size);
    memcpy(text + size, TAIL, sizeof(TAIL) - 1);
    size += sizeof(TAIL) - 1;
    memcpy(text + size, hex, 32);
    memcpy(text + size + 32, END, 3);
    parse(text, size + 32 + 3);
    free(text);
    return 0;
}
