#include "common/reason.h"

#include <stdio.h>
#include <string.h>

/* text has `size` bytes of which the last may be the begin of a longer character: it goes. */
static void drop_half_character(char *text, size_t size)
{
    size_t at = size;
    while (at > 0 && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
        at--;
    if (at == 0)
        return;
    const unsigned char first = (unsigned char)text[at - 1];
    const size_t want = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    if (size - (at - 1) < want)
        text[at - 1] = '\0';
}

void reason_set_list(struct reason *reason, const char *format, va_list list)
{
    const int size = vsnprintf(reason->text, sizeof(reason->text), format, list);
    if (size < 0) {
        reason->text[0] = '\0';
    } else if ((size_t)size >= sizeof(reason->text)) {
        drop_half_character(reason->text, sizeof(reason->text) - 1);
    }
}

void reason_set(struct reason *reason, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    reason_set_list(reason, format, list);
    va_end(list);
}
