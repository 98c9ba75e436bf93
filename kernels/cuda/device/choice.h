/*
 * Which algorithm serves which product: chosen once per key, kept for pins, and read back from the
 * pins of an earlier run, so that a resumed job computes the same bits.
 *
 * A key says all that a choice depends on ("m.n.k.…"), a choice is a few numbers. As pins:
 *   "algorithms":{"KEY":"1.2.3", …}
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

#define CHOICE_KEY_MAX     96
#define CHOICE_NUMBERS_MAX 12
#define CHOICES_MAX        1024

struct choice {
    char key[CHOICE_KEY_MAX];
    int64_t numbers[CHOICE_NUMBERS_MAX];
    int count;
};

struct choices {
    struct choice *list; /* owned; CHOICES_MAX */
    int count;
    char *stored; /* owned copy of earlier pins, or NULL */
};

MUST_CHECK enum status choices_init(struct choices *choices, const char *stored);
void choices_release(struct choices *choices);
/* One made earlier in this process. NULL: none. */
const struct choice *choices_find(const struct choices *choices, const char *key);
/* One made by the run whose pins were given. False: none, or damaged. */
bool choices_stored(const struct choices *choices, const char *key, struct choice *out);
/* Errors: ST_FULL. */
MUST_CHECK enum status choices_add(struct choices *choices, const struct choice *choice);
MUST_CHECK enum status choices_print(const struct choices *choices, struct buf *out);
