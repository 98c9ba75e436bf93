/* Contents for tests of the codec, made of integers alone: the same on every machine. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum content {
    CONTENT_SIGNED,    /* like weights: halving counts of smaller exponents, any mantissa */
    CONTENT_NEXT,      /* the same, the lowest bits of some have moved */
    CONTENT_UNSIGNED,  /* like CONTENT_SIGNED, no sign bit is set */
    CONTENT_TABLE,     /* like a matrix of second moments, 200 columns; a row begins at word 120 */
    CONTENT_TABLE_ODD, /* likewise; every 100th word is far from its row and column */
    CONTENT_TEXT,
    CONTENT_NOISE,
    CONTENT_ZEROS,
    CONTENTS
};

/* width: bytes of a word, 2 or 4; the highest bytes of it are those of the content. */
void content_fill(enum content content, size_t width, uint8_t *out, size_t size);
