#include "proto/text/json.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_BYTES_MAX ((size_t)256 << 20)

static json_t *from_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

double json_shortest(float value)
{
    char text[40];
    if (!isfinite(value))
        return (double)value;
    for (int digits = 6; digits <= 9; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return strtod(text, NULL);
}

/* "JOB_STATE_UNSPECIFIED" of JobState is "UNSPECIFIED"; a number that has no name stays one. */
static json_t *from_enum(const ProtobufCEnumDescriptor *type, int value)
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(type, value);
    if (found == NULL)
        return json_integer(value);
    char prefix[128];
    size_t size = 0;
    for (const char *c = type->short_name; *c != '\0' && size + 3 < sizeof(prefix); c++) {
        bool upper = *c >= 'A' && *c <= 'Z';
        if (upper && c != type->short_name)
            prefix[size++] = '_';
        prefix[size++] = (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    }
    prefix[size++] = '_';
    const char *name = found->name;
    return json_string(strncmp(name, prefix, size) == 0 ? name + size : name);
}

json_t *json_from_text(const char *text)
{
    json_t *value = json_string(text);
    char *copy = value == NULL ? strdup(text) : NULL;
    if (copy == NULL)
        return value;
    for (char *c = copy; *c != '\0'; c++)
        *c = (char)(*c < 0 ? '?' : *c);
    value = json_string(copy);
    free(copy);
    return value;
}

static json_t *from_bytes(const ProtobufCBinaryData *bytes)
{
    char *text = calloc(2 * bytes->len + 1, 1);
    if (text == NULL)
        return NULL;
    for (size_t i = 0; i < bytes->len; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes->data[i]);
    json_t *value = json_string(text);
    free(text);
    return value;
}

static json_t *from_unsigned(uint64_t value)
{
    return value <= INT64_MAX ? json_integer((json_int_t)value) : json_real((double)value);
}

/* One value of a field's type. */
static json_t *from_member(const ProtobufCFieldDescriptor *field, const void *member)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return json_integer(*(const int32_t *)member);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)member);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)member);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return from_unsigned(*(const uint64_t *)member);
    case PROTOBUF_C_TYPE_FLOAT:
        return from_real(json_shortest(*(const float *)member));
    case PROTOBUF_C_TYPE_DOUBLE:
        return from_real(*(const double *)member);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)member);
    case PROTOBUF_C_TYPE_ENUM:
        return from_enum(field->descriptor, *(const int *)member);
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)member;
        return json_from_text(text == NULL ? "" : text);
    }
    case PROTOBUF_C_TYPE_BYTES:
        return from_bytes(member);
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *message = *(ProtobufCMessage *const *)member;
        return message == NULL ? json_null() : json_from_message(message);
    }
    }
    return NULL;
}

static size_t member_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    }
    return 0;
}

/* [{cause: "detect", seconds: 1}] becomes {"detect": 1}. */
static json_t *from_causes(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message)
{
    const char *base = (const char *)message;
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    ProtobufCMessage *const *rows =
        *(ProtobufCMessage *const *const *)(const void *)(base + field->offset);
    json_t *object = json_object();
    for (size_t i = 0; object != NULL && i < count; i++) {
        const char *row = (const char *)rows[i];
        const ProtobufCFieldDescriptor *cause = &rows[i]->descriptor->fields[0];
        const ProtobufCFieldDescriptor *seconds = &rows[i]->descriptor->fields[1];
        const char *name = *(char *const *)(const void *)(row + cause->offset);
        double value = *(const double *)(const void *)(row + seconds->offset);
        if (json_object_set_new(object, name, from_real(value)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *from_repeated(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message)
{
    const char *base = (const char *)message;
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const char *items = *(const char *const *)(const void *)(base + field->offset);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        const ProtobufCMessageDescriptor *type = field->descriptor;
        if (strcmp(type->short_name, "LostSeconds") == 0)
            return from_causes(field, message);
    }
    json_t *array = json_array();
    for (size_t i = 0; array != NULL && i < count; i++) {
        if (json_array_append_new(array,
                                  from_member(field, items + i * member_size(field->type))) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *from_field(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *message)
{
    const char *base = (const char *)message;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return from_repeated(field, message);
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
        uint32_t which = *(const uint32_t *)(const void *)(base + field->quantifier_offset);
        if (which != field->id)
            return json_null();
    }
    return from_member(field, base + field->offset);
}

json_t *json_from_message(const ProtobufCMessage *message)
{
    json_t *object = json_object();
    for (unsigned i = 0; object != NULL && i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (json_object_set_new(object, field->name, from_field(field, message)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* ---- text ---- */

static enum status put_value(const json_t *value, int depth, struct buf *out);

/* The shortest digits that read back as the same number, marked as a real. jansson always
 * writes 17. */
static enum status put_real(double value, struct buf *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return buf_printf(out, "%s%s", text, strpbrk(text, ".e") == NULL ? ".0" : "");
}

/* depth < 0: all on one line. */
static enum status put_break(int depth, struct buf *out)
{
    return depth < 0 ? ST_OK : buf_printf(out, "\n%*s", 2 * depth, "");
}

static enum status put_array(const json_t *array, int depth, struct buf *out)
{
    int inside = depth < 0 ? depth : depth + 1;
    enum status st = buf_append_text(out, "[");
    for (size_t i = 0; st == ST_OK && i < json_array_size(array); i++) {
        if (i > 0)
            st = buf_append_text(out, ",");
        if (st == ST_OK)
            st = put_break(inside, out);
        if (st == ST_OK)
            st = put_value(json_array_get(array, i), inside, out);
    }
    if (st == ST_OK && json_array_size(array) > 0)
        st = put_break(depth, out);
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

static enum status put_object(const json_t *object, int depth, struct buf *out)
{
    int inside = depth < 0 ? depth : depth + 1;
    bool first = true;
    enum status st = buf_append_text(out, "{");
    /* jansson's iterator wants the object unlocked; nothing is changed. */
    for (void *at = json_object_iter((json_t *)object); st == ST_OK && at != NULL;
         at = json_object_iter_next((json_t *)object, at)) {
        json_t *key = json_string(json_object_iter_key(at));
        if (!first)
            st = buf_append_text(out, ",");
        first = false;
        if (st == ST_OK)
            st = put_break(inside, out);
        if (st == ST_OK)
            st = put_value(key, inside, out);
        json_decref(key);
        if (st == ST_OK)
            st = buf_append_text(out, depth < 0 ? ":" : ": ");
        if (st == ST_OK)
            st = put_value(json_object_iter_value(at), inside, out);
    }
    if (st == ST_OK && !first)
        st = put_break(depth, out);
    return st == ST_OK ? buf_append_text(out, "}") : st;
}

static enum status put_value(const json_t *value, int depth, struct buf *out)
{
    if (json_is_object(value))
        return put_object(value, depth, out);
    if (json_is_array(value))
        return put_array(value, depth, out);
    if (json_is_real(value))
        return put_real(json_real_value(value), out);
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    enum status st = text == NULL ? ST_NO_MEMORY : buf_append_text(out, text);
    free(text);
    return st;
}

enum status json_print(const json_t *value, bool one_line, struct buf *out)
{
    enum status st = value == NULL ? ST_NO_MEMORY : put_value(value, one_line ? -1 : 0, out);
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

enum status json_write(const json_t *value, bool one_line)
{
    auto_buf struct buf out;
    buf_init(&out, JSON_BYTES_MAX);
    enum status st = json_print(value, one_line, &out);
    if (st != ST_OK)
        return st;
    bool written = fwrite(out.data, 1, out.size, stdout) == out.size && fflush(stdout) == 0;
    return written ? ST_OK : ST_IO;
}

enum status json_write_message(const ProtobufCMessage *message)
{
    json_t *value = json_from_message(message);
    enum status st = json_write(value, true);
    json_decref(value);
    return st;
}
