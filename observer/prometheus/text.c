#include "observer/prometheus/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NUMBER_BYTES 32
#define WORD_BYTES   32

/* ---- labels ---- */

/* Bytes of the character that begins there, as RFC 3629 has it; 0: none does. */
static size_t utf8_size(const unsigned char *at)
{
    if (at[0] < 0x80)
        return 1;
    const size_t size = at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    if (size == 0 || at[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80) /* a NUL, too */
            return 0;
    }
    const bool overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    const bool surrogate = at[0] == 0xed && at[1] > 0x9f;
    const bool beyond = at[0] == 0xf4 && at[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : size;
}

/* Escapes the character at `at`; returns how many bytes of it that took. */
static size_t escape(const char *at, const char **out, size_t *out_size)
{
    const size_t size = utf8_size((const unsigned char *)at);
    *out_size = 2;
    switch (at[0]) {
    case '\\':
        *out = "\\\\";
        return 1;
    case '"':
        *out = "\\\"";
        return 1;
    case '\n':
        *out = "\\n";
        return 1;
    default:
        *out = size == 0 ? "\xef\xbf\xbd" : at; /* U+FFFD */
        *out_size = size == 0 ? 3 : size;
        return size == 0 ? 1 : size;
    }
}

void prometheus_label_value(const char *text, char out[PROMETHEUS_VALUE_BYTES])
{
    size_t used = 0;
    while (text != NULL && text[0] != '\0') {
        const char *written = NULL;
        size_t size = 0;
        text += escape(text, &written, &size);
        if (used + size > PROMETHEUS_LABEL_BYTES)
            break;
        memcpy(out + used, written, size);
        used += size;
    }
    out[used] = '\0';
}

bool prometheus_is_word(const char *text)
{
    const size_t size = text == NULL ? 0 : strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return size > 0 && size <= WORD_BYTES && text[size] == '\0';
}

/* ---- values ---- */

/* The fewer of 15 and 17 digits that read back as the same number. Most are small and whole. */
static const char *number(double value, char out[NUMBER_BYTES])
{
    if (isinf(value))
        return value > 0 ? "+Inf" : "-Inf";
    if (fabs(value) < 1e15 && trunc(value) == value) {
        (void)snprintf(out, NUMBER_BYTES, "%" PRId64, (int64_t)value);
        return out;
    }
    (void)snprintf(out, NUMBER_BYTES, "%.15g", value);
    if (strtod(out, NULL) != value)
        (void)snprintf(out, NUMBER_BYTES, "%.17g", value);
    return out;
}

static void add(struct prometheus_lines *lines, const char *text)
{
    if (lines->st == ST_OK)
        lines->st = buf_append_text(lines->out, text);
}

void prometheus_put_labels(struct prometheus_lines *lines, const char *labels, double value)
{
    char text[NUMBER_BYTES];
    if (lines->st != ST_OK || isnan(value))
        return;
    const bool any = lines->labels[0] != '\0' || labels[0] != '\0';
    const bool both = lines->labels[0] != '\0' && labels[0] != '\0';
    add(lines, lines->family);
    add(lines, any ? "{" : "");
    add(lines, lines->labels);
    add(lines, both ? "," : "");
    add(lines, labels);
    add(lines, any ? "} " : " ");
    add(lines, number(value, text));
    add(lines, "\n");
}

void prometheus_put(struct prometheus_lines *lines, double value)
{
    prometheus_put_labels(lines, "", value);
}

void prometheus_put_word(struct prometheus_lines *lines, const char *label, const char *word,
                         double value)
{
    char labels[2 * WORD_BYTES + 8];
    (void)snprintf(labels, sizeof(labels), "%s=\"%s\"", label, word);
    prometheus_put_labels(lines, labels, value);
}

void prometheus_put_states(struct prometheus_lines *lines, const char *label,
                           const char *const *words, size_t count, const char *now)
{
    bool found = false;
    for (size_t i = 0; i < count; i++) {
        const bool is = now != NULL && strcmp(words[i], now) == 0;
        found = found || is;
        prometheus_put_word(lines, label, words[i], is ? 1 : 0);
    }
    if (!found)
        prometheus_put_word(lines, label, "other", 1);
}

double prometheus_time(const char *text)
{
    struct tm parts = { 0 };
    const char *rest = text == NULL ? NULL : strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
    if (rest == NULL)
        return (double)NAN;
    double fraction = 0, scale = 0.1;
    if (rest[0] == '.') {
        for (rest++; rest[0] >= '0' && rest[0] <= '9'; rest++, scale /= 10)
            fraction += (rest[0] - '0') * scale;
    }
    if (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0)
        return (double)NAN;
    return (double)timegm(&parts) + round(fraction * 1e6) / 1e6;
}
