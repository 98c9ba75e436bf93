#include "client/base/texts.h"

#include <stddef.h>
#include <stdint.h>

#define MOST_DEPTH 32 /* of messages in messages: they are a tree, as long as nobody errs */

struct walk {
    texts_fn fn;
    void *arg;
};

static void walk_message(const struct walk *walk, ProtobufCMessage *message, int depth);

static void walk_member(const struct walk *walk, const ProtobufCFieldDescriptor *field,
                        void *member, int depth)
{
    char **text = member;
    if (field->type == PROTOBUF_C_TYPE_STRING && *text != NULL)
        walk->fn(walk->arg, field->name, text);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        walk_message(walk, *(ProtobufCMessage **)member, depth + 1);
}

static void walk_message(const struct walk *walk, ProtobufCMessage *message, int depth)
{
    if (message == NULL || depth > MOST_DEPTH)
        return;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        char *at = (char *)message;
        const uint32_t *which = (const uint32_t *)(void *)(at + field->quantifier_offset);
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0 || *which == field->id)
                walk_member(walk, field, at + field->offset, depth);
            continue;
        }
        if (field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        void **list = *(void ***)(void *)(at + field->offset);
        const size_t count = *(const size_t *)(const void *)which;
        for (size_t k = 0; k < count; k++)
            walk_member(walk, field, &list[k], depth);
    }
}

void texts_each(ProtobufCMessage *message, texts_fn fn, void *arg)
{
    const struct walk walk = { fn, arg };
    walk_message(&walk, message, 0);
}
