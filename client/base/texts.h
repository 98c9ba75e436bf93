/*
 * All texts of a message, and of the messages in it.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>

/* Gets a text and the name of its field; it may exchange the text for another one of malloc. A text
 * that is "" may lie in no memory of malloc. */
typedef void (*texts_fn)(void *arg, const char *field, char **text);

void texts_each(ProtobufCMessage *message, texts_fn fn, void *arg);
