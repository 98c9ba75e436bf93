#include "common/pattern.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* The bounds of a search from one byte of a line on. A pattern that tries more than this many ways
 * would hold up whoever reads the lines. */
#define WAYS_MAX     50000
#define DEPTH_MAX    2000
#define HEAP_KIB_MAX 1024

struct pattern {
    pcre2_code *code;
    pcre2_match_context *bounds;
    pcre2_match_data *match;
    uint32_t groups;
};

/* Copies PCRE2's words for a mistake. */
static void say_why(int error, struct reason *out_why)
{
    PCRE2_UCHAR text[LIMIT_REASON];
    const int size = pcre2_get_error_message(error, text, sizeof(text));
    reason_set(out_why, "%s", size > 0 ? (const char *)text : "it is no pattern");
}

/* *out_code is NULL where it fails. */
static enum status compile(const char *text, pcre2_code **out_code, size_t *out_offset,
                           struct reason *out_why)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    const size_t size = strlen(text);
    if (size >= PATTERN_BYTES) {
        reason_set(out_why, "it has more than %d bytes", PATTERN_BYTES - 1);
        *out_offset = PATTERN_BYTES - 1;
        return ST_CONFIG;
    }
    /* Lines are what a program wrote: they may be no UTF-8. */
    *out_code = pcre2_compile((PCRE2_SPTR)text, size, PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &error,
                              &offset, NULL);
    if (*out_code != NULL)
        return ST_OK;
    if (error == PCRE2_ERROR_HEAP_FAILED)
        return ST_NO_MEMORY;
    say_why(error, out_why);
    *out_offset = offset < size ? offset : size;
    return ST_CONFIG;
}

enum status pattern_compile(const char *text, struct pattern **out, size_t *out_offset,
                            struct reason *out_why)
{
    struct pattern *pattern = calloc(1, sizeof(*pattern));
    if (pattern == NULL)
        return ST_NO_MEMORY;
    enum status st = compile(text, &pattern->code, out_offset, out_why);
    if (st != ST_OK) {
        pattern_free(pattern);
        return st;
    }
    pattern->bounds = pcre2_match_context_create(NULL);
    pattern->match = pcre2_match_data_create_from_pattern(pattern->code, NULL);
    if (pattern->bounds == NULL || pattern->match == NULL ||
        pcre2_pattern_info(pattern->code, PCRE2_INFO_CAPTURECOUNT, &pattern->groups) != 0) {
        pattern_free(pattern);
        return ST_NO_MEMORY;
    }
    (void)pcre2_set_match_limit(pattern->bounds, WAYS_MAX); /* always 0 */
    (void)pcre2_set_depth_limit(pattern->bounds, DEPTH_MAX);
    (void)pcre2_set_heap_limit(pattern->bounds, HEAP_KIB_MAX);
    *out = pattern;
    return ST_OK;
}

uint32_t pattern_groups(const struct pattern *pattern)
{
    return pattern->groups;
}

/* What group 1 matched, of `found` groups that are set. */
static void copy_group(const struct pattern *pattern, int found, const char *line, char *out,
                       size_t capacity)
{
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(pattern->match);
    size_t size = 0;
    /* \K in a look-ahead may set an end before its beginning. */
    if (found > 1 && ends[2] != PCRE2_UNSET && ends[3] >= ends[2])
        size = ends[3] - ends[2];
    if (size >= capacity)
        size = capacity - 1;
    if (size > 0)
        memcpy(out, line + ends[2], size);
    out[size] = '\0';
}

bool pattern_find(const struct pattern *pattern, const char *line, size_t size, char *out_group,
                  size_t capacity)
{
    const int found =
        pcre2_match(pattern->code, (PCRE2_SPTR)line, size, 0, 0, pattern->match, pattern->bounds);
    if (found < 1)
        return false; /* not found, or a bound was passed */
    if (out_group != NULL && capacity > 0)
        copy_group(pattern, found, line, out_group, capacity);
    return true;
}

void pattern_free(struct pattern *pattern)
{
    if (pattern == NULL)
        return;
    pcre2_match_data_free(pattern->match); /* these three take NULL */
    pcre2_match_context_free(pattern->bounds);
    pcre2_code_free(pattern->code);
    free(pattern);
}
