/* cert show: what certificates say; those of the folder where no file is named. */
#include <stdlib.h>
#include <string.h>

#include "client/cert/commands.h"
#include "client/cert/folder.h"
#include "client/cert/rows.h"
#include "common/io.h"

struct names {
    char (*list)[LIMIT_NAME * 2];
    size_t count;
    bool full; /* or no memory */
};

static bool take_name(void *arg, const char *name)
{
    struct names *names = arg;
    size_t size = strlen(name);
    if (size <= 4 || strcmp(name + size - 4, ".crt") != 0 || size >= sizeof(names->list[0]))
        return true;
    char(*list)[LIMIT_NAME * 2] =
        names->count == ROWS_MAX ? NULL : realloc(names->list, (names->count + 1) * sizeof(*list));
    names->full = list == NULL;
    if (names->full)
        return false;
    names->list = list;
    memcpy(list[names->count++], name, size + 1);
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static enum exit_code add_folder(const struct client *client, struct rows *rows)
{
    const struct io *io = io_system();
    char path[LIMIT_PATH];
    struct names names = { 0 };
    enum exit_code code = folder_path(client, ".", "", path);
    if (code != EXIT_DONE)
        return code;
    enum status st = io->list(io->self, path, take_name, &names);
    if (st == ST_OK && names.full)
        st = ST_FULL;
    if (st == ST_NOT_FOUND || (st == ST_OK && names.count == 0)) {
        client_error("there is no certificate in %s: 'cairn cert init' makes an authority", path);
        code = EXIT_NOT_FOUND;
    } else if (st != ST_OK) {
        client_error("%s: %s", path, client_file_status(st));
        code = exit_of_status(st);
    }
    if (code == EXIT_DONE)
        qsort(names.list, names.count, sizeof(names.list[0]), compare_names);
    for (size_t i = 0; code == EXIT_DONE && i < names.count; i++) {
        code = folder_path(client, names.list[i], "", path);
        if (code == EXIT_DONE)
            code = rows_add(rows, path);
    }
    free(names.list);
    return code;
}

enum exit_code cmd_cert_show(struct client *client)
{
    const struct arguments *args = &client->args;
    struct rows rows = { 0 };
    enum exit_code code = args->operand_count == 0 ? add_folder(client, &rows) : EXIT_DONE;
    for (size_t i = 0; code == EXIT_DONE && i < args->operand_count; i++)
        code = rows_add(&rows, args->operands[i]);
    if (code == EXIT_DONE)
        code = rows_print(client, &rows);
    rows_release(&rows);
    return code;
}
