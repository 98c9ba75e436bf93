/* A job as YAML: the rows of the schema that it has values for, in their order. */
#include <ctype.h>
#include <string.h>

#include "common/check.h"
#include "jobspec/schema.h"
#include "jobspec/value.h"

/* Returns how many sections, from the outermost, two paths have in common. */
static size_t common_sections(const char *a, const char *b)
{
    size_t count = 0;
    for (size_t i = 0; a[i] != '\0' && a[i] == b[i]; i++)
        count += a[i] == '.';
    return count;
}

static enum status print_indent(size_t depth, struct buf *out)
{
    return buf_printf(out, "%*s", (int)(2 * depth), "");
}

/* Opens the sections of path that the key before it was not in, then writes the key. */
static enum status print_key(const char *path, const char *before, struct buf *out)
{
    size_t depth = 0;
    size_t open = common_sections(path, before);
    enum status st = ST_OK;
    const char *part = path;
    for (const char *dot = strchr(path, '.'); dot != NULL; dot = strchr(part, '.')) {
        if (depth >= open) {
            st = print_indent(depth, out);
            if (st == ST_OK)
                st = buf_printf(out, "%.*s:\n", (int)(dot - part), part);
            if (st != ST_OK)
                return st;
        }
        depth++;
        part = dot + 1;
    }
    st = print_indent(depth, out);
    return st == ST_OK ? buf_printf(out, "%s: ", part) : st;
}

enum status jobspec_print(const struct jobspec *job, struct buf *out)
{
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    const char *before = "";
    for (size_t i = 0; i < count; i++) {
        const struct field *field = &fields[i];
        if (!value_is_set(field, job) || !schema_applies(field, job))
            continue;
        enum status st = print_key(field->path, before, out);
        if (st == ST_OK)
            st = value_print(field, job, out);
        if (st == ST_OK)
            st = buf_append_text(out, "\n");
        if (st != ST_OK)
            return st;
        before = field->path;
    }
    return ST_OK;
}

/* ---- a command for people ---- */

struct shown {
    char *out;
    size_t used, capacity;
    bool cut;
};

static void show(struct shown *shown, char c)
{
    if (c == '\n' || c == '\t')
        c = ' ';
    if (shown->used + 1 < shown->capacity) {
        shown->out[shown->used++] = c;
    } else {
        shown->cut = true;
    }
}

static bool is_plain(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && strchr("_-./:=,@%+", *c) == NULL)
            return false;
    }
    return text[0] != '\0';
}

static void show_argument(struct shown *shown, const char *text)
{
    if (is_plain(text)) {
        for (; *text != '\0'; text++)
            show(shown, *text);
        return;
    }
    show(shown, '\'');
    for (; *text != '\0'; text++) {
        const char *as = *text == '\'' ? "'\\''" : (char[]){ *text, '\0' };
        for (; *as != '\0'; as++)
            show(shown, *as);
    }
    show(shown, '\'');
}

/* Ends a line that was cut with dots, in the place of whole characters. */
static void show_cut(struct shown *shown)
{
    static const char dots[] = "...";
    if (shown->capacity <= sizeof(dots))
        return;
    size_t at = shown->capacity - sizeof(dots);
    while (at > 0 && ((unsigned char)shown->out[at] & 0xC0) == 0x80)
        at--;
    memcpy(shown->out + at, dots, sizeof(dots));
}

void jobspec_command_line(const struct jobspec *job, char *out, size_t capacity)
{
    struct shown shown = { .out = out, .capacity = capacity };
    CHECK(capacity > 0);
    for (const char *text = jobspec_next_text(job->command.run, NULL); text != NULL;
         text = jobspec_next_text(job->command.run, text)) {
        if (shown.used > 0)
            show(&shown, ' ');
        if (!job->command.shell) {
            show_argument(&shown, text);
            continue;
        }
        size_t size = strlen(text);
        while (size > 0 && text[size - 1] == '\n')
            size--;
        for (size_t i = 0; i < size; i++)
            show(&shown, text[i]);
        break;
    }
    out[shown.used] = '\0';
    if (shown.cut)
        show_cut(&shown);
}
