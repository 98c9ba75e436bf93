/* cert renew: certificates once more, from now on, for the same keys, names and hosts. */
#include <stdlib.h>
#include <string.h>

#include "client/cert/commands.h"
#include "client/cert/folder.h"
#include "client/cert/rows.h"
#include "common/cleanup.h"
#include "common/io.h"

static enum exit_code renew_file(const struct identity_pem *ca, const char *path)
{
    auto_free char *old = NULL, *renewed = NULL;
    struct reason reason = { "" };
    enum exit_code code = folder_read(path, &old);
    if (code != EXIT_DONE)
        return code;
    enum status st = identity_renew(ca, old, folder_now_s(), &renewed, &reason);
    if (st == ST_OK)
        st = io_replace(io_system(), path, renewed, strlen(renewed));
    if (st == ST_OK)
        return EXIT_DONE;
    client_error("%s: %s", path, reason.text[0] != '\0' ? reason.text : client_file_status(st));
    return exit_of_status(st);
}

enum exit_code cmd_cert_renew(struct client *client)
{
    const struct arguments *args = &client->args;
    struct identity_pem ca = { 0 };
    struct rows rows = { 0 };
    enum exit_code code = folder_read_ca(client, &ca);
    for (size_t i = 0; code == EXIT_DONE && i < args->operand_count; i++) {
        code = renew_file(&ca, args->operands[i]);
        if (code == EXIT_DONE)
            code = rows_add(&rows, args->operands[i]);
    }
    identity_pem_release(&ca);
    if (rows.count > 0) {
        enum exit_code printed = rows_print(client, &rows); /* also those before a failure */
        code = code == EXIT_DONE ? printed : code;
    }
    rows_release(&rows);
    return code;
}
