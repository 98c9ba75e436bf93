#include "client/print/columns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/print/format.h"
#include "common/cleanup.h"
#include "jobspec/text/suggest.h"

#define NAME_MAX_BYTES 32
#define NAMES_BYTES    1024
#define HELP_BYTES     ((size_t)64 << 10)

/* ---- names ---- */

static void name_of(const struct column *column, char out[NAME_MAX_BYTES])
{
    (void)snprintf(out, NAME_MAX_BYTES, "%s", column->title);
    for (char *c = format_lower(out); *c != '\0'; c++)
        *c = (char)(*c == ' ' ? '-' : *c);
}

void columns_names(const struct column *columns, const char *between, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (const struct column *c = columns; c->title != NULL && used < capacity; c++) {
        char name[NAME_MAX_BYTES];
        name_of(c, name);
        if (c->about != NULL) {
            used += (size_t)snprintf(out + used, capacity - used, "%s%s", used == 0 ? "" : between,
                                     name);
        }
    }
}

static const struct column *find(const struct column *columns, const char *word)
{
    for (const struct column *c = columns; c->title != NULL; c++) {
        char name[NAME_MAX_BYTES];
        name_of(c, name);
        if (c->about != NULL && strcasecmp(name, word) == 0)
            return c;
    }
    return NULL;
}

static enum exit_code refuse(const struct column *columns, const char *option, const char *word)
{
    char names[NAMES_BYTES], nearest[NAME_MAX_BYTES] = "";
    size_t distance = suggest_limit(word) + 1;
    for (const struct column *c = columns; c->title != NULL; c++) {
        char name[NAME_MAX_BYTES];
        name_of(c, name);
        const size_t d = c->about == NULL ? SIZE_MAX : suggest_distance(name, word);
        if (d < distance) {
            distance = d;
            (void)snprintf(nearest, sizeof(nearest), "%s", name);
        }
    }
    columns_names(columns, ", ", names, sizeof(names));
    client_error("--%s: there is no column '%s'%s%s%s\n  there are: %s", option, word,
                 nearest[0] == '\0' ? "" : "; did you mean '", nearest,
                 nearest[0] == '\0' ? "" : "'?", names);
    return EXIT_USAGE;
}

/* Cuts the next word off; it is no column where it is too long. */
static const char *next_word(const char *at, char out[64])
{
    const size_t size = strcspn(at, ",");
    (void)snprintf(out, 64, "%.*s", (int)(size < 63 ? size : 63), at);
    return at[size] == ',' ? at + size + 1 : NULL;
}

/* ---- choosing ---- */

enum exit_code columns_choose(const struct column *columns, const char *option, const char *words,
                              struct column out[OUTPUT_COLUMNS_MAX + 1])
{
    size_t count = 0;
    for (const char *at = words; at != NULL;) {
        char word[64];
        at = next_word(at, word);
        const struct column *column = find(columns, word);
        if (column == NULL)
            return refuse(columns, option, word);
        if (count == OUTPUT_COLUMNS_MAX) {
            client_error("--%s: more than %d columns", option, OUTPUT_COLUMNS_MAX);
            return EXIT_USAGE;
        }
        out[count] = *column;
        out[count].wide = out[count].asked = false;
        count++;
    }
    out[count] = (struct column){ 0 };
    return EXIT_DONE;
}

enum exit_code columns_order(const struct column *columns, const char *option, const char *words,
                             struct order *out)
{
    struct order order = { .count = 0 };
    for (const char *at = words; at != NULL;) {
        char word[64];
        at = next_word(at, word);
        const bool reverse = word[0] == '-';
        const struct column *column = find(columns, word + reverse);
        if (column == NULL)
            return refuse(columns, option, word + reverse);
        if (order.count == COLUMNS_KEYS_MAX) {
            client_error("--%s: more than %d keys", option, COLUMNS_KEYS_MAX);
            return EXIT_USAGE;
        }
        order.reverse[order.count] = reverse;
        order.keys[order.count++] = column;
    }
    *out = order;
    return EXIT_DONE;
}

enum exit_code columns_of_call(const struct client *client, const struct column **columns,
                               struct column chosen[OUTPUT_COLUMNS_MAX + 1], struct order *order)
{
    const struct arguments *args = &client->args;
    const struct column *all = *columns;
    enum exit_code code = EXIT_DONE;
    *order = (struct order){ .count = 0 };
    if (args->columns != NULL && args->output != OUTPUT_TABLE && args->output != OUTPUT_WIDE) {
        client_error("--columns chooses those of a table: JSON always has every field (jq takes "
                     "some of them), -o name the first one only");
        return EXIT_USAGE;
    }
    if (args->sort != NULL)
        code = columns_order(all, "sort", args->sort, order);
    if (code != EXIT_DONE || args->columns == NULL)
        return code;
    *columns = chosen;
    return columns_choose(all, "columns", args->columns, chosen);
}

static bool is_help(const char *words)
{
    return words != NULL && strcmp(words, "help") == 0;
}

bool columns_asked(const struct client *client)
{
    return is_help(client->args.columns) || is_help(client->args.sort);
}

enum exit_code columns_help(const struct column *columns)
{
    auto_buf struct buf out;
    buf_init(&out, HELP_BYTES);
    enum status st = ST_OK;
    for (const struct column *c = columns; st == ST_OK && c->title != NULL; c++) {
        char name[NAME_MAX_BYTES];
        name_of(c, name);
        if (c->about != NULL)
            st = buf_printf(&out, "%-12s %s\n", name, c->about);
    }
    return st == ST_OK ? output_text(out.data) : EXIT_INTERNAL;
}

/* ---- order ---- */

/* A row with where it was. */
struct placed {
    ProtobufCMessage *row;
    size_t place;
};

static double value_of(const struct column *column, const ProtobufCMessage *row)
{
    const char *at = (const char *)row;
    if (column->part != 0)
        at = *(const char *const *)(const void *)(at + column->part);
    return at == NULL ? (double)NAN : column->value(at + column->offset);
}

/* < 0: a is first. last: one of them, or both, isn't known. */
static int compare_values(double a, double b, bool *last)
{
    *last = isnan(a) || isnan(b);
    return *last ? isnan(a) - isnan(b) : (a > b) - (a < b);
}

/* Numbers in names by their value: node2 is before node10. */
static int compare_texts(const struct column *column, const ProtobufCMessage *a,
                         const ProtobufCMessage *b, bool *last)
{
    char x[OUTPUT_CELL_BYTES] = "", y[OUTPUT_CELL_BYTES] = "";
    output_cell(column, a, x);
    output_cell(column, b, y);
    const bool no_x = x[0] == '\0' || strcmp(x, "-") == 0;
    const bool no_y = y[0] == '\0' || strcmp(y, "-") == 0;
    *last = no_x || no_y;
    return *last ? no_x - no_y : strverscmp(x, y);
}

static int compare_placed(const void *a, const void *b, void *arg)
{
    const struct order *order = arg;
    const struct placed *x = a, *y = b;
    for (size_t i = 0; i < order->count; i++) {
        const struct column *key = order->keys[i];
        bool last = false;
        const int way = key->value == NULL
                            ? compare_texts(key, x->row, y->row, &last)
                            : compare_values(value_of(key, x->row), value_of(key, y->row), &last);
        if (way != 0)
            return order->reverse[i] && !last ? -way : way;
    }
    return (x->place > y->place) - (x->place < y->place);
}

enum status columns_sort(const struct order *order, ProtobufCMessage **rows, size_t count)
{
    if (order->count == 0 || count < 2)
        return ST_OK;
    auto_free struct placed *placed = malloc(count * sizeof(*placed));
    if (placed == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        placed[i] = (struct placed){ .row = rows[i], .place = i };
    qsort_r(placed, count, sizeof(*placed), compare_placed, (void *)order);
    for (size_t i = 0; i < count; i++)
        rows[i] = placed[i].row;
    return ST_OK;
}
