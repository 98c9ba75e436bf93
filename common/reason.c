#include "common/reason.h"

#include <stdbool.h>
#include <stdio.h>

/* Bytes of the character that begins with this one; 0: none does. */
static size_t size_of_character(unsigned char first)
{
    if (first < 0x80)
        return 1;
    return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
}

void reason_mend(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0';) {
        const size_t want = size_of_character((unsigned char)*from);
        size_t size = 1;
        while (size < want && ((unsigned char)from[size] & 0xc0) == 0x80)
            size++;
        const bool whole = size == want;
        for (size_t i = 0; whole && i < size; i++)
            *to++ = from[i];
        from += size;
        if (!whole && *from != '\0')
            *to++ = '?';
    }
    *to = '\0';
}

void reason_set_list(struct reason *reason, const char *format, va_list list)
{
    const int size = vsnprintf(reason->text, sizeof(reason->text), format, list);
    if (size < 0)
        reason->text[0] = '\0';
    reason_mend(reason->text);
}

void reason_set(struct reason *reason, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    reason_set_list(reason, format, list);
    va_end(list);
}
