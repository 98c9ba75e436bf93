#include "client/print/moment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/print/format.h"

#define SHAPE      "dddd-dd-ddTdd:dd:dd" /* d: a digit */
#define SHAPE_SIZE (sizeof(SHAPE) - 1)

enum moment_form moment_form_of(const struct client *client)
{
    return client->plain ? MOMENT_LOCAL : MOMENT_UTC;
}

char *moment_text(int64_t ms, enum moment_form form, bool fine, int64_t now_ms,
                  char out[MOMENT_BYTES])
{
    const time_t at = (time_t)(ms / 1000), now = (time_t)(now_ms / 1000);
    struct tm parts, today;
    char fraction[8] = "", text[32], offset[8] = "";
    bool utc = form == MOMENT_UTC;
    out[0] = '\0';
    if ((utc ? gmtime_r(&at, &parts) : localtime_r(&at, &parts)) == NULL ||
        localtime_r(&now, &today) == NULL)
        return out;
    bool same = parts.tm_year == today.tm_year && parts.tm_yday == today.tm_yday;
    const char *shape = utc ? "%Y-%m-%dT%H:%M:%S" : same ? "%H:%M:%S" : "%Y-%m-%d %H:%M:%S";
    (void)strftime(text, sizeof(text), shape, &parts);
    if (fine)
        (void)snprintf(fraction, sizeof(fraction), ".%03d", (int)(ms % 1000));
    if (form == MOMENT_LOCAL && strftime(offset, sizeof(offset), "%z", &parts) == 5) {
        memmove(offset + 4, offset + 3, 3); /* +0100: +01:00 */
        offset[3] = ':';
    }
    (void)snprintf(out, MOMENT_BYTES, "%s%s%s", text, fraction, utc ? "Z" : offset);
    return out;
}

/* Bytes of the time that a text begins with; 0: of none. */
static size_t time_at(const char *text, int64_t *out_ms)
{
    char time[MOMENT_BYTES];
    for (size_t i = 0; i < SHAPE_SIZE; i++) {
        const bool digit = text[i] >= '0' && text[i] <= '9';
        if (SHAPE[i] == 'd' ? !digit : text[i] != SHAPE[i])
            return 0;
    }
    size_t size = SHAPE_SIZE;
    if (text[size] == '.')
        size += 1 + strspn(text + size + 1, "0123456789");
    if (text[size] != 'Z' || size + 2 > sizeof(time))
        return 0;
    (void)snprintf(time, sizeof(time), "%.*s", (int)size + 1, text);
    return format_read_time(time, out_ms) ? size + 1 : 0;
}

char *moment_rewrite(const char *text, enum moment_form form, int64_t now_ms)
{
    /* The shortest that is rewritten has 20 bytes. */
    char *made = form == MOMENT_UTC ? strdup(text) : malloc(2 * strlen(text) + MOMENT_BYTES);
    char *to = made;
    if (made == NULL || form == MOMENT_UTC)
        return made;
    while (*text != '\0') {
        int64_t ms = 0;
        const size_t size = time_at(text, &ms);
        if (size == 0) {
            *to++ = *text++;
            continue;
        }
        const bool fine = text[SHAPE_SIZE] == '.';
        to += strlen(moment_text(ms, form, fine, now_ms, to));
        text += size;
    }
    *to = '\0';
    return made;
}
