/*
 * webhook_feed [RETRY_MS [TIMEOUT_MS]]: the observer's webhooks alone, in CAIRN_HOME. Each line of
 * standard input is a job as JSON, by the names of its message; it is handed over, and answered by
 * "ok". The line "waiting" is answered by how many messages wait. The end of the input ends it.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/v1/control.pb-c.h"
#include "common/log.h"
#include "common/paths.h"
#include "observer/webhook/webhook.h"

#define LINE_BYTES (1 << 20)

static ProtobufCMessage *message_of(const ProtobufCMessageDescriptor *type, const json_t *value);

/* A value into the place of a field that holds one. */
static bool put(const ProtobufCFieldDescriptor *field, const json_t *value, void *place)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)place = strdup(json_string_value(value));
        return *(char **)place != NULL;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_INT32:
        *(int32_t *)place = (int32_t)json_integer_value(value);
        return true;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
        *(int64_t *)place = json_integer_value(value);
        return true;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)place = json_number_value(value);
        return true;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)place = message_of(field->descriptor, value);
        return *(ProtobufCMessage **)place != NULL;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value_by_name(
            field->descriptor, json_string_value(value));
        *(int *)place = found == NULL ? 0 : found->value;
        return found != NULL;
    }
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_BYTES:
        break;
    }
    return false;
}

static bool put_list(const ProtobufCFieldDescriptor *field, const json_t *list, char *message)
{
    const size_t count = json_array_size(list);
    void **items = calloc(count + 1, sizeof(void *));
    bool ok = items != NULL && field->type == PROTOBUF_C_TYPE_MESSAGE;
    for (size_t i = 0; ok && i < count; i++)
        ok = put(field, json_array_get(list, i), &items[i]);
    *(size_t *)(void *)(message + field->quantifier_offset) = count;
    *(void ***)(void *)(message + field->offset) = items;
    return ok;
}

/* NULL: the JSON isn't like it. */
static ProtobufCMessage *message_of(const ProtobufCMessageDescriptor *type, const json_t *value)
{
    char *message = calloc(1, type->sizeof_message);
    const char *key;
    json_t *member;
    if (message == NULL)
        return NULL;
    type->message_init((ProtobufCMessage *)(void *)message);
    json_object_foreach((json_t *)value, key, member)
    {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(type, key);
        if (field == NULL || !(field->label == PROTOBUF_C_LABEL_REPEATED
                                   ? put_list(field, member, message)
                                   : put(field, member, message + field->offset))) {
            (void)fprintf(stderr, "%s: not understood\n", key);
            return NULL;
        }
    }
    return (ProtobufCMessage *)(void *)message;
}

static bool feed(struct webhooks *webhooks, const char *line)
{
    if (strncmp(line, "waiting", 7) == 0) {
        (void)printf("%zu\n", webhook_waiting(webhooks));
        return true;
    }
    json_t *value = json_loads(line, 0, NULL);
    ProtobufCMessage *job = value == NULL ? NULL : message_of(&cairn__v1__job__descriptor, value);
    json_decref(value);
    if (job == NULL)
        return false;
    webhook_job(webhooks, (const Cairn__V1__Job *)job);
    protobuf_c_message_free_unpacked(job, NULL);
    (void)puts("ok");
    return true;
}

int main(int argc, char **argv)
{
    static char line[LINE_BYTES];
    struct log log = log_open("webhook_feed");
    struct paths paths;
    struct webhooks *webhooks = NULL;
    struct webhook_options options = { .paths = &paths, .log = &log };
    if (argc > 1)
        options.retry_ms = strtol(argv[1], NULL, 10);
    if (argc > 2)
        options.timeout_ms = strtol(argv[2], NULL, 10);
    if (paths_open(&paths) != ST_OK || webhook_open(&options, &webhooks) != ST_OK)
        return 1;
    bool ok = true;
    while (ok && fgets(line, sizeof(line), stdin) != NULL) {
        ok = feed(webhooks, line);
        (void)fflush(stdout);
    }
    webhook_close(webhooks);
    return ok ? 0 : 1;
}
