/*
 * Texts of others (a coordinator's, a worker's, a file's) before a terminal gets them: what would
 * steer it, or show words in another order than they stand, becomes visible.
 *
 *   ^[ ^M ^?     controls, but newline and tab
 *   <U+009B>     C1 controls, marks of direction, separators of lines
 *   <9B>         a byte that isn't UTF-8
 */
#pragma once

#include <protobuf-c/protobuf-c.h>

/* The text made so, owned by the caller; NULL: no memory. */
char *plain_text(const char *text);

/* Makes all texts of a message and of the messages in it plain, but for paths: files are opened by
 * them, so whoever prints one asks plain_text. Without memory a text becomes "". */
void plain_message(ProtobufCMessage *message);
