#include "jobspec/yaml/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_CELLS 160 /* of a long line only this much is shown, around the place */

enum status jobspec_report_init(struct jobspec_report *report, const struct jobspec_source *sources,
                                size_t source_count)
{
    *report = (struct jobspec_report){ .sources = sources, .source_count = source_count };
    report->errors = calloc(JOBSPEC_ERRORS_MAX, sizeof(*report->errors));
    return report->errors == NULL ? ST_NO_MEMORY : ST_OK;
}

void jobspec_report_release(struct jobspec_report *report)
{
    free(report->errors);
    *report = (struct jobspec_report){ 0 };
}

static bool is_known(const struct jobspec_report *report, struct jobspec_place place,
                     const char *cause)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct jobspec_error *error = &report->errors[i];
        if (error->place.source == place.source && error->place.at == place.at &&
            strcmp(error->cause, cause) == 0)
            return true;
    }
    return false;
}

void jobspec_report_add(struct jobspec_report *report, struct jobspec_place place,
                        const char *way_out, const char *cause_format, ...)
{
    char cause[LIMIT_REASON];
    va_list args;
    va_start(args, cause_format);
    (void)vsnprintf(cause, sizeof(cause), cause_format, args);
    va_end(args);
    for (char *c = cause; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?'; /* a value may hold line ends: the cause is one line */
    }
    reason_mend(cause);
    if (is_known(report, place, cause))
        return;
    if (report->count == JOBSPEC_ERRORS_MAX) {
        report->dropped++;
        return;
    }
    struct jobspec_error *error = &report->errors[report->count];
    error->place = place;
    error->number = (uint32_t)report->count++;
    memcpy(error->cause, cause, sizeof(cause));
    (void)snprintf(error->way_out, sizeof(error->way_out), "%s", way_out == NULL ? "" : way_out);
}

bool jobspec_report_empty(const struct jobspec_report *report)
{
    return report->count == 0;
}

static int compare_errors(const void *left, const void *right)
{
    const struct jobspec_error *a = left;
    const struct jobspec_error *b = right;
    if (a->place.source != b->place.source)
        return a->place.source < b->place.source ? -1 : 1;
    if (a->place.at != b->place.at)
        return a->place.at < b->place.at ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

struct source_line {
    size_t number;
    size_t start, end; /* bytes; end is before the newline */
};

static struct source_line find_line(const struct jobspec_source *source, size_t at)
{
    struct source_line line = { .number = source->line };
    for (size_t i = 0; i < at; i++) {
        if (source->text[i] == '\n') {
            line.number++;
            line.start = i + 1;
        }
    }
    line.end = line.start;
    while (line.end < source->size && source->text[line.end] != '\n' &&
           source->text[line.end] != '\r')
        line.end++;
    return line;
}

static bool continues(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* Characters of UTF-8 in [from, to). */
static size_t cells(const struct jobspec_source *source, size_t from, size_t to)
{
    size_t count = 0;
    for (size_t i = from; i < to && i < source->size; i++)
        count += !continues(source->text[i]);
    return count;
}

/* The line with every control character as a space, cut to a window that holds the place. */
static enum status print_source_line(const struct jobspec_source *source,
                                     const struct source_line *line, size_t at, struct buf *out,
                                     size_t *out_column)
{
    size_t start = line->start;
    while (cells(source, start, at) > LINE_CELLS / 2)
        start++;
    while (start < line->end && continues(source->text[start]))
        start++;
    char text[LINE_CELLS * 4 + 1];
    size_t size = 0;
    for (size_t i = start; i < line->end && size + 4 < sizeof(text); i++) {
        if (cells(source, start, i) >= LINE_CELLS && !continues(source->text[i]))
            break;
        char shown = source->text[i];
        if ((unsigned char)shown < 0x20 || shown == 0x7F)
            shown = ' ';
        text[size++] = shown;
    }
    while (size > 0 && text[size - 1] == ' ')
        size--;
    text[size] = '\0';
    *out_column = cells(source, start, at);
    return size == 0 ? ST_OK : buf_printf(out, "  %s\n", text);
}

static enum status print_caret(const struct jobspec_source *source, const struct source_line *line,
                               struct jobspec_place place, size_t column, struct buf *out)
{
    size_t end = (size_t)place.at + place.size;
    if (end > line->end)
        end = line->end;
    size_t width = end > place.at ? cells(source, place.at, end) : 1;
    if (width > LINE_CELLS - column)
        width = LINE_CELLS - column;
    char tildes[LINE_CELLS + 1];
    memset(tildes, '~', sizeof(tildes));
    tildes[width > 0 ? width - 1 : 0] = '\0';
    return buf_printf(out, "  %*s^%s\n", (int)column, "", tildes);
}

static enum status print_error(const struct jobspec_report *report,
                               const struct jobspec_error *error, struct buf *out)
{
    const struct jobspec_source *source = &report->sources[error->place.source];
    struct jobspec_place place = error->place;
    if (place.at > source->size)
        place.at = (uint32_t)source->size;
    struct source_line line = find_line(source, place.at);
    enum status st = buf_printf(out, "%s:%zu:%zu: %s\n", source->name, line.number,
                                cells(source, line.start, place.at) + 1, error->cause);
    size_t before = out->size;
    size_t column = 0;
    if (st == ST_OK)
        st = print_source_line(source, &line, place.at, out, &column);
    if (st == ST_OK && out->size > before)
        st = print_caret(source, &line, place, column, out);
    if (st == ST_OK && error->way_out[0] != '\0')
        st = buf_printf(out, "  %s\n", error->way_out);
    return st;
}

enum status jobspec_report_print(struct jobspec_report *report, struct buf *out)
{
    qsort(report->errors, report->count, sizeof(*report->errors), compare_errors);
    for (size_t i = 0; i < report->count; i++) {
        enum status st = print_error(report, &report->errors[i], out);
        if (st != ST_OK)
            return st;
    }
    if (report->dropped > 0) {
        return buf_printf(out, "%s: %zu more mistakes are not shown\n", report->sources[0].name,
                          report->dropped);
    }
    return ST_OK;
}
