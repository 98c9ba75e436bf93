#include "client/base/plain.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base/texts.h"

#define SHOWN_BYTES 12 /* of one character that is made visible; four times its own at most */
#define MOST_LONGER 4

/* The character at a text's beginning, in *out; returns its bytes. Not UTF-8: 1, and *out < 0. */
static size_t decode(const unsigned char *at, int32_t *out)
{
    static const int32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t size = at[0] < 0x80 ? 1 : at[0] < 0xC0 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;
    int32_t value = size < 2 ? at[0] : at[0] & (0xFF >> (size + 1));
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xC0) != 0x80)
            size = 0;
        value = value << 6 | (at[i] & 0x3F);
    }
    const bool good = size > 0 && at[0] < 0xF8 && value >= least[size] && value <= 0x10FFFF &&
                      (value < 0xD800 || value > 0xDFFF);
    *out = good ? value : -1;
    return good ? size : 1;
}

static bool steers(int32_t c)
{
    return (c >= 0x80 && c < 0xA0) || c == 0x61C || c == 0x200E || c == 0x200F ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/* Bytes of the character at `at`; *shown is "" where it stays as it is. */
static size_t look(const char *at, char shown[SHOWN_BYTES])
{
    int32_t c = 0;
    const size_t size = decode((const unsigned char *)at, &c);
    shown[0] = '\0';
    if (c < 0) {
        (void)snprintf(shown, SHOWN_BYTES, "<%02X>", (unsigned)(unsigned char)at[0]);
    } else if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7F) {
        (void)snprintf(shown, SHOWN_BYTES, "^%c", (char)(c ^ 0x40));
    } else if (steers(c)) {
        (void)snprintf(shown, SHOWN_BYTES, "<U+%04X>", (unsigned)c & 0xFFFF);
    }
    return size;
}

char *plain_text(const char *text)
{
    char *made = malloc(strlen(text) * MOST_LONGER + 1), *to = made;
    char shown[SHOWN_BYTES];
    for (size_t size; made != NULL && *text != '\0'; text += size) {
        size = look(text, shown);
        const size_t out = shown[0] == '\0' ? size : strlen(shown);
        memcpy(to, shown[0] == '\0' ? text : shown, out);
        to += out;
    }
    if (made != NULL)
        *to = '\0';
    return made;
}

static bool is_plain(const char *text)
{
    char shown[SHOWN_BYTES] = "";
    while (*text != '\0' && shown[0] == '\0')
        text += look(text, shown);
    return shown[0] == '\0';
}

/* One that was unpacked: its memory is of malloc. */
static void make_plain(char **text)
{
    if (*text == NULL || is_plain(*text))
        return;
    char *made = plain_text(*text);
    if (made == NULL) {
        **text = '\0';
        return;
    }
    free(*text);
    *text = made;
}

static void make_field_plain(void *arg, const char *field, char **text)
{
    (void)arg;
    if (strcmp(field, "path") != 0)
        make_plain(text);
}

void plain_message(ProtobufCMessage *message)
{
    texts_each(message, make_field_plain, NULL);
}
