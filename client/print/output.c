#include "client/print/output.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/base/plain.h"
#include "client/print/format.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "proto/text/json.h"

#define OUTPUT_BYTES_MAX ((size_t)64 << 20)
#define LAST_CELLS       12 /* of the last column of a table that has to fit */

bool output_is_json(const struct client *client)
{
    return client->args.output == OUTPUT_JSON || client->args.output == OUTPUT_JSONL;
}

bool output_unread(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    struct stat info;
    bool pipe =
        fstat(STDOUT_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
    return pipe && poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

int output_printf(const struct client *client, const char *format, ...)
{
    auto_free char *text = NULL;
    va_list list;
    va_start(list, format);
    int size = vasprintf(&text, format, list);
    va_end(list);
    if (size < 0) {
        text = NULL;
        return size;
    }
    auto_free char *plain = client->plain ? plain_text(text) : NULL;
    if (client->plain && plain == NULL)
        return -1;
    return fputs(plain != NULL ? plain : text, stdout) == EOF ? -1 : size;
}

enum exit_code output_text(const char *text)
{
    if (text != NULL && fputs(text, stdout) == EOF)
        return EXIT_INTERNAL;
    return fflush(stdout) == 0 ? EXIT_DONE : EXIT_INTERNAL;
}

/* Writes so many lines at most, each cut to so many cells. */
static enum exit_code write_cut(const struct client *client, size_t columns, size_t rows,
                                const char *text)
{
    for (size_t row = 0; row < rows && text[0] != '\0'; row++) {
        const size_t length = strcspn(text, "\n");
        auto_free char *line = strndup(text, length);
        if (line == NULL ||
            printf("%.*s%s\n", (int)format_fit(line, columns), line, output_color_off(client)) < 0)
            return EXIT_INTERNAL;
        text += length + (text[length] == '\n');
    }
    return output_text(NULL);
}

enum exit_code output_cut(const struct client *client, size_t columns, const char *text)
{
    return write_cut(client, columns, SIZE_MAX, text);
}

enum exit_code output_screen(const struct client *client, const char *text)
{
    struct winsize size = { 0 };
    if (text == NULL || !client->args.watch || !client->terminal ||
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2 || size.ws_row < 2)
        return output_text(text);
    return write_cut(client, size.ws_col, (size_t)size.ws_row - 1, text);
}

enum exit_code output_json(const struct client *client, json_t *value)
{
    enum status st = json_write(value, client->args.output == OUTPUT_JSONL);
    json_decref(value);
    if (st == ST_OK)
        return EXIT_DONE;
    if (!output_unread() && ferror(stdout) == 0) /* then its end says why */
        client_error("can't print: %s", status_string(st));
    return EXIT_INTERNAL;
}

enum exit_code output_message(const struct client *client, const ProtobufCMessage *message)
{
    return output_json(client, json_from_message(message));
}

static enum exit_code list_json(const struct client *client, ProtobufCMessage *const *rows,
                                size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; array != NULL && i < count; i++) {
        json_t *value = json_from_message(rows[i]);
        if (client->args.output == OUTPUT_JSONL) {
            enum exit_code code = output_json(client, value);
            if (code != EXIT_DONE) {
                json_decref(array);
                return code;
            }
        } else if (json_array_append_new(array, value) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    if (client->args.output == OUTPUT_JSON)
        return output_json(client, array);
    json_decref(array);
    return EXIT_DONE;
}

/* ---- tables ---- */

/* The layout of one table: which columns show, and how. */
struct text_table {
    const struct client *colors; /* whose; NULL: none */
    bool wide;
    const struct column *shown[OUTPUT_COLUMNS_MAX];
    size_t widths[OUTPUT_COLUMNS_MAX];
    size_t count;
};

/* Appends one cell, padded to width unless it is the last of its line. */
static enum status print_cell(const struct text_table *table, size_t c, bool title,
                              const char *text, struct buf *out)
{
    const size_t cells = format_cells(text), width = table->widths[c];
    const int pad = cells < width ? (int)(width - cells) : 0;
    const bool right = table->shown[c]->right, last = c + 1 == table->count;
    const bool colored = table->colors != NULL && table->shown[c]->state && !title;
    const char *on = colored ? output_color(table->colors, text) : "";
    const char *off = colored ? output_color_off(table->colors) : "";
    return buf_printf(out, "%*s%s%s%s%*s", right ? pad : 0, "", on, text, off,
                      last ? 0 : (right ? 0 : pad) + 2, "");
}

void output_cell(const struct column *column, const ProtobufCMessage *row,
                 char out[OUTPUT_CELL_BYTES])
{
    const char *at = (const char *)row;
    if (column->part != 0)
        at = *(const char *const *)(const void *)(at + column->part);
    if (at == NULL) {
        (void)snprintf(out, OUTPUT_CELL_BYTES, "-");
    } else {
        column->cell(at + column->offset, out, OUTPUT_CELL_BYTES);
    }
    for (unsigned char *c = (unsigned char *)out; *c != '\0'; c++) {
        if (*c < ' ' || *c == 0x7F)
            *c = '?';
    }
    auto_free char *plain = plain_text(out);
    (void)snprintf(out, OUTPUT_CELL_BYTES, "%s", plain == NULL ? "?" : plain);
}

/* Cuts a cell's text if the table isn't wide, and returns the cells that it takes. */
static size_t fit_cell(const struct column *column, bool wide, char text[OUTPUT_CELL_BYTES])
{
    const size_t cells = format_cells(text);
    if (wide || column->most == 0 || cells <= column->most)
        return cells;
    const size_t kept = format_fit(text, column->most - 2);
    (void)snprintf(text + kept, OUTPUT_CELL_BYTES - kept, "..");
    return column->most;
}

/* row NULL: the titles. */
static enum status print_row(const struct text_table *table, const ProtobufCMessage *row,
                             struct buf *out)
{
    enum status st = ST_OK;
    for (size_t c = 0; st == ST_OK && c < table->count; c++) {
        char text[OUTPUT_CELL_BYTES] = "";
        if (row == NULL) {
            (void)snprintf(text, sizeof(text), "%s", table->shown[c]->title);
        } else {
            output_cell(table->shown[c], row, text);
            (void)fit_cell(table->shown[c], table->wide, text);
        }
        st = print_cell(table, c, row == NULL, text, out);
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

static void measure(struct text_table *table, const struct column *columns, bool header,
                    ProtobufCMessage *const *rows, size_t count)
{
    for (const struct column *c = columns; c->title != NULL; c++) {
        if (c->asked || (c->wide && !table->wide))
            continue;
        CHECK(table->count < OUTPUT_COLUMNS_MAX);
        size_t width = header ? format_cells(c->title) : 0;
        for (size_t r = 0; r < count; r++) {
            char text[OUTPUT_CELL_BYTES] = "";
            output_cell(c, rows[r], text);
            const size_t cells = fit_cell(c, table->wide, text);
            width = cells > width ? cells : width;
        }
        table->widths[table->count] = width;
        table->shown[table->count++] = c;
    }
}

static enum status print_table(const struct text_table *table, bool header,
                               ProtobufCMessage *const *rows, size_t count, struct buf *out)
{
    enum status st = header ? print_row(table, NULL, out) : ST_OK;
    for (size_t r = 0; st == ST_OK && r < count; r++)
        st = print_row(table, rows[r], out);
    return st;
}

enum status output_table(const struct column *columns, bool wide, bool header,
                         ProtobufCMessage *const *rows, size_t count, struct buf *out)
{
    struct text_table table = { .wide = wide };
    measure(&table, columns, header, rows, count);
    return print_table(&table, header, rows, count, out);
}

/* Returns the cells that a table needs; of the last column the beginning is enough. */
static size_t cells_of(const struct text_table *table)
{
    size_t cells = 0;
    for (size_t c = 0; c + 1 < table->count; c++)
        cells += table->widths[c] + 2;
    const size_t last = table->count > 0 ? table->widths[table->count - 1] : 0;
    return cells + (last < LAST_CELLS ? last : LAST_CELLS);
}

/* false: all of them have to stay. */
static bool leave_one_out(struct text_table *table)
{
    size_t chosen = 0;
    for (size_t c = 1; c < table->count; c++) {
        if (table->shown[c]->less > table->shown[chosen]->less)
            chosen = c;
    }
    if (table->count == 0 || table->shown[chosen]->less == 0)
        return false;
    table->count--;
    for (size_t c = chosen; c < table->count; c++) {
        table->shown[c] = table->shown[c + 1];
        table->widths[c] = table->widths[c + 1];
    }
    return true;
}

enum status output_fitted(const struct client *client, const struct column *columns, size_t width,
                          ProtobufCMessage *const *rows, size_t count, struct buf *out)
{
    struct text_table table = { .colors = client };
    measure(&table, columns, true, rows, count);
    while (cells_of(&table) > width && leave_one_out(&table)) {
    }
    return print_table(&table, true, rows, count, out);
}

/* Returns the width of a terminal that a table has to fit; 0: it need not. */
static size_t width_to_fit(const struct client *client)
{
    struct winsize size = { 0 };
    bool fits = client->terminal && client->args.output == OUTPUT_TABLE && !client->args.quiet;
    return fits && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col
                                                                                   : 0;
}

/* The table of a listing, and the cells at which its lines are cut (0: nowhere). Columns that were
 * asked for all stay: of those only the end of the last one may be cut. */
static enum status print_list(const struct client *client, const struct column *columns,
                              ProtobufCMessage *const *rows, size_t count, size_t *out_width,
                              struct buf *out)
{
    const size_t width = width_to_fit(client);
    struct text_table table = { .wide = client->args.output == OUTPUT_WIDE };
    measure(&table, columns, !client->args.quiet, rows, count);
    const bool chosen = client->args.columns != NULL;
    while (width > 0 && !chosen && cells_of(&table) > width && leave_one_out(&table)) {
    }
    *out_width = chosen && cells_of(&table) > width ? 0 : width;
    return print_table(&table, !client->args.quiet, rows, count, out);
}

enum exit_code output_list(const struct client *client, const struct column *columns,
                           ProtobufCMessage *const *rows, size_t count)
{
    if (output_is_json(client))
        return list_json(client, rows, count);
    auto_buf struct buf out;
    buf_init(&out, OUTPUT_BYTES_MAX);
    enum status st = ST_OK;
    size_t width = 0;
    if (client->args.output == OUTPUT_NAME) {
        for (size_t i = 0; st == ST_OK && i < count; i++) {
            char name[OUTPUT_CELL_BYTES] = "";
            output_cell(&columns[0], rows[i], name);
            st = buf_printf(&out, "%s\n", name);
        }
    } else {
        st = print_list(client, columns, rows, count, &width, &out);
    }
    if (st != ST_OK) {
        client_error("can't print: %s", status_string(st));
        return EXIT_INTERNAL;
    }
    if (width > 0 && !client->args.watch)
        return output_cut(client, width, out.data);
    return output_screen(client, out.data);
}

const char *output_color(const struct client *client, const char *state)
{
    static const struct {
        const char *state, *color;
    } colors[] = {
        { "RUNNING", "\033[32m" }, { "SUCCEEDED", "\033[1;32m" },  { "FAILED", "\033[1;31m" },
        { "KILLED", "\033[31m" },  { "RECOVERING", "\033[33m" },   { "PAUSED", "\033[36m" },
        { "ready", "\033[32m" },   { "draining", "\033[33m" },     { "drained", "\033[33m" },
        { "silent", "\033[33m" },  { "unsupervised", "\033[33m" }, { "lost", "\033[1;31m" },
    };
    if (!client->color)
        return "";
    for (size_t i = 0; i < sizeof(colors) / sizeof(colors[0]); i++) {
        if (strcmp(colors[i].state, state) == 0)
            return colors[i].color;
    }
    return "\033[0m";
}

const char *output_color_off(const struct client *client)
{
    return client->color ? "\033[0m" : "";
}
