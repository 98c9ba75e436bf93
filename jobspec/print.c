/* A job as YAML: the rows of the schema that it has values for, in their order. */
#include <string.h>

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
