#include "client/print/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/print/format.h"
#include "client/print/json.h"

#define OUTPUT_BYTES_MAX ((size_t)64 << 20)
#define COLUMNS_MAX      24

bool output_is_json(const struct client *client)
{
    return client->args.output == OUTPUT_JSON || client->args.output == OUTPUT_JSONL;
}

enum exit_code output_text(const char *text)
{
    if (text != NULL && fputs(text, stdout) == EOF)
        return EXIT_INTERNAL;
    return fflush(stdout) == 0 ? EXIT_DONE : EXIT_INTERNAL;
}

enum exit_code output_json(const struct client *client, json_t *value)
{
    enum status st = json_write(value, client->args.output == OUTPUT_JSONL);
    json_decref(value);
    if (st == ST_OK)
        return EXIT_DONE;
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

/* One cell, padded to width unless it is the last of its line. */
static enum status print_cell(const char *text, size_t width, bool right, bool last,
                              struct buf *out)
{
    size_t cells = format_cells(text);
    size_t pad = cells < width ? width - cells : 0;
    if (right)
        return buf_printf(out, "%*s%s%s", (int)pad, "", text, last ? "\n" : "  ");
    return buf_printf(out, "%s%*s", text, last ? 0 : (int)pad + 2, "") == ST_OK
               ? buf_append_text(out, last ? "\n" : "")
               : ST_NO_MEMORY;
}

static enum status print_row(const struct column *const *columns, size_t column_count,
                             const size_t *widths, const ProtobufCMessage *row, struct buf *out)
{
    enum status st = ST_OK;
    for (size_t c = 0; st == ST_OK && c < column_count; c++) {
        char text[CELL_BYTES] = "";
        if (row == NULL) {
            (void)snprintf(text, sizeof(text), "%s", columns[c]->title);
        } else {
            columns[c]->cell(row, text, sizeof(text));
        }
        st = print_cell(text, widths[c], columns[c]->right, c + 1 == column_count, out);
    }
    return st;
}

enum status output_table(const struct listing *listing, bool wide, bool header,
                         ProtobufCMessage *const *rows, size_t count, struct buf *out)
{
    const struct column *columns[COLUMNS_MAX];
    size_t widths[COLUMNS_MAX];
    size_t column_count = 0;
    for (const struct column *c = listing->columns; c->title != NULL; c++) {
        if ((wide || !c->wide) && column_count < COLUMNS_MAX)
            columns[column_count++] = c;
    }
    for (size_t c = 0; c < column_count; c++) {
        widths[c] = header ? format_cells(columns[c]->title) : 0;
        for (size_t r = 0; r < count; r++) {
            char text[CELL_BYTES] = "";
            columns[c]->cell(rows[r], text, sizeof(text));
            size_t cells = format_cells(text);
            if (cells > widths[c])
                widths[c] = cells;
        }
    }
    enum status st = header ? print_row(columns, column_count, widths, NULL, out) : ST_OK;
    for (size_t r = 0; st == ST_OK && r < count; r++)
        st = print_row(columns, column_count, widths, rows[r], out);
    return st;
}

enum exit_code output_list(const struct client *client, const struct listing *listing,
                           ProtobufCMessage *const *rows, size_t count)
{
    if (output_is_json(client))
        return list_json(client, rows, count);
    auto_buf struct buf out;
    buf_init(&out, OUTPUT_BYTES_MAX);
    enum status st = ST_OK;
    if (client->args.output == OUTPUT_NAME) {
        for (size_t i = 0; st == ST_OK && i < count; i++) {
            char name[CELL_BYTES] = "";
            listing->name(rows[i], name, sizeof(name));
            st = buf_printf(&out, "%s\n", name);
        }
    } else {
        bool wide = client->args.output == OUTPUT_WIDE;
        st = output_table(listing, wide, !client->args.quiet, rows, count, &out);
    }
    if (st != ST_OK) {
        client_error("can't print: %s", status_string(st));
        return EXIT_INTERNAL;
    }
    return output_text(out.data);
}

const char *output_color(const struct client *client, const char *state)
{
    static const struct {
        const char *state, *color;
    } colors[] = {
        { "RUNNING", "\033[32m" }, { "SUCCEEDED", "\033[1;32m" }, { "FAILED", "\033[1;31m" },
        { "KILLED", "\033[31m" },  { "RECOVERING", "\033[33m" },  { "PAUSED", "\033[36m" },
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
