/* Members of a struct as a JSON object: a table says which, and under which names. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum json_field_kind {
    FIELD_U32,
    FIELD_U64, /* size_t, too */
    FIELD_I64,
    FIELD_BOOLEAN,
    FIELD_ENUM,   /* as a number */
    FIELD_DOUBLE, /* only to be shown: fields_decode refuses it */
    FIELD_TEXT,   /* an array of chars */
};

struct json_field {
    const char *name;
    size_t offset, size;
    enum json_field_kind kind;
};

/* Rows of a table: a member of `struct type`, under another name or its own. */
#define FIELD_NAMED(type, member, name, kind)                                                      \
    {                                                                                              \
        name, offsetof(struct type, member), sizeof(((struct type *)0)->member), FIELD_##kind      \
    }
#define FIELD(type, member, kind) FIELD_NAMED(type, member, #member, kind)

/* Returns an object of these members, owned by the caller; NULL: no memory. Bytes of a text that
 * are not UTF-8 become '?'. A real that isn't finite becomes null. */
json_t *fields_encode(const void *object, const struct json_field *fields, size_t count);
/* Sets a member of an object, and takes `value` over. false: no memory; a NULL value counts as
 * that. */
bool fields_put(json_t *to, const char *name, json_t *value);
/* Sets the members that `in` has. false: it is no object, or a member has another type, or is too
 * long; then some are set. */
bool fields_decode(const json_t *in, void *object, const struct json_field *fields, size_t count);
