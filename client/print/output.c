#include "client/print/output.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/print/format.h"
#include "client/print/json.h"
#include "common/check.h"
#include "common/cleanup.h"

#define OUTPUT_BYTES_MAX ((size_t)64 << 20)
#define COLUMNS_MAX      24

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

enum exit_code output_text(const char *text)
{
    if (text != NULL && fputs(text, stdout) == EOF)
        return EXIT_INTERNAL;
    return fflush(stdout) == 0 ? EXIT_DONE : EXIT_INTERNAL;
}

enum exit_code output_screen(const struct client *client, const char *text)
{
    struct winsize size = { 0 };
    if (text == NULL || !client->args.watch || !client->terminal ||
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2 || size.ws_row < 2)
        return output_text(text);
    for (unsigned row = 1; row < size.ws_row && text[0] != '\0'; row++) {
        const size_t length = strcspn(text, "\n");
        auto_free char *line = strndup(text, length);
        if (line == NULL || printf("%.*s%s\n", (int)format_fit(line, size.ws_col), line,
                                   output_color_off(client)) < 0)
            return EXIT_INTERNAL;
        text += length + (text[length] == '\n');
    }
    return output_text(NULL);
}

enum exit_code output_json(const struct client *client, json_t *value)
{
    enum status st = json_write(value, client->args.output == OUTPUT_JSONL);
    json_decref(value);
    if (st == ST_OK)
        return EXIT_DONE;
    if (!output_unread())
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

static void fill_cell(const struct column *column, const ProtobufCMessage *row,
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
}

/* Its cells, cut where the table isn't wide. */
static size_t fit_cell(const struct column *column, bool wide, char text[OUTPUT_CELL_BYTES])
{
    const size_t cells = format_cells(text);
    if (wide || column->most == 0 || cells <= column->most)
        return cells;
    const size_t kept = format_fit(text, column->most - 2);
    (void)snprintf(text + kept, OUTPUT_CELL_BYTES - kept, "..");
    return column->most;
}

static enum status print_row(const struct column *const *shown, size_t shown_count, bool wide,
                             const size_t *widths, const ProtobufCMessage *row, struct buf *out)
{
    enum status st = ST_OK;
    for (size_t c = 0; st == ST_OK && c < shown_count; c++) {
        char text[OUTPUT_CELL_BYTES] = "";
        if (row == NULL) {
            (void)snprintf(text, sizeof(text), "%s", shown[c]->title);
        } else {
            fill_cell(shown[c], row, text);
            (void)fit_cell(shown[c], wide, text);
        }
        st = print_cell(text, widths[c], shown[c]->right, c + 1 == shown_count, out);
    }
    return st;
}

enum status output_table(const struct column *columns, bool wide, bool header,
                         ProtobufCMessage *const *rows, size_t count, struct buf *out)
{
    const struct column *shown[COLUMNS_MAX];
    size_t widths[COLUMNS_MAX];
    size_t shown_count = 0;
    for (const struct column *c = columns; c->title != NULL; c++) {
        CHECK(shown_count < COLUMNS_MAX);
        if (wide || !c->wide)
            shown[shown_count++] = c;
    }
    for (size_t c = 0; c < shown_count; c++) {
        widths[c] = header ? format_cells(shown[c]->title) : 0;
        for (size_t r = 0; r < count; r++) {
            char text[OUTPUT_CELL_BYTES] = "";
            fill_cell(shown[c], rows[r], text);
            const size_t cells = fit_cell(shown[c], wide, text);
            if (cells > widths[c])
                widths[c] = cells;
        }
    }
    enum status st = header ? print_row(shown, shown_count, wide, widths, NULL, out) : ST_OK;
    for (size_t r = 0; st == ST_OK && r < count; r++)
        st = print_row(shown, shown_count, wide, widths, rows[r], out);
    return st;
}

enum exit_code output_list(const struct client *client, const struct column *columns,
                           ProtobufCMessage *const *rows, size_t count)
{
    if (output_is_json(client))
        return list_json(client, rows, count);
    auto_buf struct buf out;
    buf_init(&out, OUTPUT_BYTES_MAX);
    enum status st = ST_OK;
    if (client->args.output == OUTPUT_NAME) {
        for (size_t i = 0; st == ST_OK && i < count; i++) {
            char name[OUTPUT_CELL_BYTES] = "";
            fill_cell(&columns[0], rows[i], name);
            st = buf_printf(&out, "%s\n", name);
        }
    } else {
        bool wide = client->args.output == OUTPUT_WIDE;
        st = output_table(columns, wide, !client->args.quiet, rows, count, &out);
    }
    if (st != ST_OK) {
        client_error("can't print: %s", status_string(st));
        return EXIT_INTERNAL;
    }
    return output_screen(client, out.data);
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
