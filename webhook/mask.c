/* Covers what may be secret in a list of webhooks. */
#include "webhook/mask.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#define WORD_MAX 15 /* of a line without a key: a longer word is covered */

/* Keys whose values may be shown. */
static const char *const open_keys[] = { "webhooks",    "name",    "events", "format",
                                         "secret_file", "ca_file", "jobs",   NULL };

static bool is_open(const char *key, size_t size)
{
    while (size > 0 && (*key == ' ' || *key == '-')) {
        key++;
        size--;
    }
    while (size > 0 && key[size - 1] == ' ')
        size--;
    for (size_t i = 0; open_keys[i] != NULL; i++) {
        if (strlen(open_keys[i]) == size && memcmp(open_keys[i], key, size) == 0)
            return true;
    }
    return false;
}

static void cover(char *from, const char *end)
{
    for (; from < end; from++) {
        if (!isspace((unsigned char)*from))
            *from = '*';
    }
}

/* Words that may be parts of an address: long ones. */
static void cover_words(char *from, const char *end)
{
    while (from < end) {
        char *stop = from;
        while (stop < end && !isspace((unsigned char)*stop))
            stop++;
        if (stop - from > WORD_MAX)
            cover(from, stop);
        from = stop + 1;
    }
}

/* Covers an address from behind "://" on. */
static void cover_address(char *from, const char *end)
{
    for (; from + 3 <= end; from++) {
        if (memcmp(from, "://", 3) == 0) {
            cover(from + 3, end);
            return;
        }
    }
}

static void mask_line(char *from, const char *end)
{
    char *colon = memchr(from, ':', (size_t)(end - from));
    if (colon == NULL || *from == '#') {
        cover_words(from, end);
    } else if (is_open(from, (size_t)(colon - from))) {
        cover_address(colon, end);
    } else {
        cover_words(from, colon);
        cover(colon + 1, end);
    }
}

void webhook_mask(char *text, size_t size)
{
    char *end = text + size;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const size_t line = newline == NULL ? (size_t)(end - text) : (size_t)(newline - text);
        mask_line(text, text + line);
        text += line + 1;
    }
}
