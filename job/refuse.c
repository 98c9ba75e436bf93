#include "job/refuse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "job/suggest.h"

enum status refuse_value(struct refusal *out, const char *way_out, const char *cause_format, ...)
{
    va_list args;
    va_start(args, cause_format);
    (void)vsnprintf(out->cause, sizeof(out->cause), cause_format, args);
    va_end(args);
    (void)snprintf(out->way_out, sizeof(out->way_out), "%s", way_out);
    return ST_CONFIG;
}

enum status refuse_word(const struct field *field, const char *text, struct refusal *out)
{
    const char *at = field->words;
    bool built = true;
    char word[FIELD_WORD_BYTES];
    char way_out[LIMIT_REASON] = "";
    size_t best = suggest_limit(text) + 1;
    while (schema_next_word(&at, &built, word, sizeof(word))) {
        size_t distance = suggest_distance(text, word);
        if (distance < best && distance < strlen(word)) {
            best = distance;
            (void)snprintf(way_out, sizeof(way_out), "did you mean '%s'?", word);
        }
    }
    if (way_out[0] == '\0') {
        char words[LIMIT_REASON / 2];
        schema_words(field, true, words, sizeof(words));
        (void)snprintf(way_out, sizeof(way_out), "one of: %s", words);
    }
    return refuse_value(out, way_out, "%s can't be '%.100s'", field->path, text);
}

enum status refuse_unbuilt(const struct field *field, const char *text, struct refusal *out)
{
    char words[LIMIT_REASON / 2];
    char way_out[LIMIT_REASON] = "remove this key";
    schema_words(field, false, words, sizeof(words));
    if (field->kind == FIELD_INT && field->words != NULL) {
        (void)snprintf(way_out, sizeof(way_out), "write a number, or remove this key");
    } else if (field->fallback != NULL && words[0] == '\0') {
        (void)snprintf(way_out, sizeof(way_out), "this version has %s only", field->fallback);
    } else if (words[0] != '\0') {
        (void)snprintf(way_out, sizeof(way_out), "this version has: %s", words);
    }
    return refuse_value(out, way_out, "%s: '%.100s' is not supported in this version", field->path,
                        text);
}
