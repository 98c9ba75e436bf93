#include "trainer/data/identity.h"

#include <stdlib.h>

#include "checkpoint/format/hash.h"

struct identity_maker {
    uint64_t size;
    struct ckpt_hasher *hasher;
};

enum status identity_maker_new(struct identity_maker **out)
{
    struct identity_maker *maker = calloc(1, sizeof(*maker));
    if (maker == NULL)
        return ST_NO_MEMORY;
    enum status st = ckpt_hasher_new(&maker->hasher);
    if (st != ST_OK) {
        free(maker);
        return st;
    }
    *out = maker;
    return ST_OK;
}

void identity_maker_free(struct identity_maker *maker)
{
    if (maker == NULL)
        return;
    ckpt_hasher_free(maker->hasher);
    free(maker);
}

void identity_maker_add(struct identity_maker *maker, const void *data, size_t size)
{
    ckpt_hasher_add(maker->hasher, data, size);
    maker->size += size;
}

struct data_identity identity_maker_result(const struct identity_maker *maker)
{
    return (struct data_identity){ .size = maker->size, .hash = ckpt_hasher_result(maker->hasher) };
}

static enum status print_escaped(const char *text, struct buf *out)
{
    enum status st = ST_OK;
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0' && st == ST_OK; p++) {
        if (*p < 0x20) {
            st = buf_printf(out, "\\u%04x", *p);
        } else {
            st = buf_printf(out, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
        }
    }
    return st;
}

enum status identity_print(const struct data_identity *identity, const char *path, struct buf *out)
{
    enum status st = buf_append_text(out, "\"");
    if (st == ST_OK)
        st = print_escaped(path, out);
    if (st == ST_OK)
        st = buf_printf(out, " %llu ", (unsigned long long)identity->size);
    for (size_t i = 0; i < sizeof(identity->hash.byte) && st == ST_OK; i++)
        st = buf_printf(out, "%02x", identity->hash.byte[i]);
    return st == ST_OK ? buf_append_text(out, "\"") : st;
}
