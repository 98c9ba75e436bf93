#include "server/containers/fields.h"

#include <math.h>
#include <string.h>

#include "common/limits.h"

/* Fault messages come from outside: what isn't UTF-8 is replaced, never refused. */
static json_t *text_value(const char *text)
{
    json_t *value = json_string(text);
    if (value != NULL)
        return value;
    char clean[LIMIT_REASON];
    size_t size = strnlen(text, sizeof(clean) - 1);
    for (size_t i = 0; i < size; i++)
        clean[i] = (char)((text[i] & 0x80) ? '?' : text[i]);
    clean[size] = '\0';
    return json_string(clean);
}

static json_t *field_get(const void *object, const struct json_field *field)
{
    const char *at = (const char *)object + field->offset;
    switch (field->kind) {
    case FIELD_U32:
    case FIELD_ENUM: {
        uint32_t value;
        memcpy(&value, at, sizeof(value));
        return json_integer(value);
    }
    case FIELD_U64:
    case FIELD_I64: {
        int64_t value;
        memcpy(&value, at, sizeof(value));
        return json_integer(value);
    }
    case FIELD_BOOLEAN:
        return json_boolean(*(const bool *)at);
    case FIELD_DOUBLE: {
        double value;
        memcpy(&value, at, sizeof(value));
        return isfinite(value) ? json_real(value) : json_null();
    }
    case FIELD_TEXT:
        return text_value(at);
    }
    return NULL;
}

static bool field_set(void *object, const struct json_field *field, const json_t *value)
{
    char *at = (char *)object + field->offset;
    switch (field->kind) {
    case FIELD_U32:
    case FIELD_ENUM: {
        if (!json_is_integer(value))
            return false;
        uint32_t number = (uint32_t)json_integer_value(value);
        memcpy(at, &number, sizeof(number));
        return true;
    }
    case FIELD_U64:
    case FIELD_I64: {
        if (!json_is_integer(value))
            return false;
        int64_t number = json_integer_value(value);
        memcpy(at, &number, sizeof(number));
        return true;
    }
    case FIELD_BOOLEAN:
        if (!json_is_boolean(value))
            return false;
        *(bool *)at = json_is_true(value);
        return true;
    case FIELD_DOUBLE:
        return false; /* nothing is read back that would have to be a bit-exact real */
    case FIELD_TEXT: {
        const char *text = json_string_value(value);
        if (text == NULL || strlen(text) >= field->size)
            return false;
        memcpy(at, text, strlen(text) + 1);
        return true;
    }
    }
    return false;
}

json_t *fields_encode(const void *object, const struct json_field *fields, size_t count)
{
    json_t *out = json_object();
    for (size_t i = 0; out != NULL && i < count; i++) {
        if (json_object_set_new(out, fields[i].name, field_get(object, &fields[i])) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

bool fields_decode(const json_t *in, void *object, const struct json_field *fields, size_t count)
{
    if (!json_is_object(in))
        return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(in, fields[i].name);
        if (value != NULL && !field_set(object, &fields[i], value))
            return false;
    }
    return true;
}

bool fields_put(json_t *to, const char *name, json_t *value)
{
    return value != NULL && json_object_set_new(to, name, value) == 0;
}
