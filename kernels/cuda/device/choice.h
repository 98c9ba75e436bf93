/*
 * Which of a library's algorithms computes what. It is chosen once per key and kept for the pins; a
 * resumed run reads the pins of the run before and chooses the same, so that it computes the same
 * bits.
 *
 *   key      all that a choice depends on: "product 512.768.768 nt bf16 …"
 *   choice   the algorithm, as a few numbers
 *   pins     "algorithms":{"KEY":"1.2.3", …}
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

#define CHOICE_KEY_MAX     96
#define CHOICE_NUMBERS_MAX 40
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
/* Returns the choice that was added for key. NULL: none. */
const struct choice *choices_find(const struct choices *choices, const char *key);
/* Finds key in the pins that were given to choices_init. False: it isn't there, or can't be
 * read. */
bool choices_stored(const struct choices *choices, const char *key, struct choice *out);
/* Errors: ST_FULL. */
MUST_CHECK enum status choices_add(struct choices *choices, const struct choice *choice);
/* Prints all choices that were added, as a JSON object. */
MUST_CHECK enum status choices_print(const struct choices *choices, struct buf *out);
