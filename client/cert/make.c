/* cert node, operator, viewer: a key and a certificate for somebody who dials. */
#include <stdio.h>

#include "client/cert/commands.h"
#include "client/cert/folder.h"
#include "client/cert/rows.h"

static enum exit_code make_peer(struct client *client, enum identity_role role)
{
    const char *name = client->args.operands[0];
    char stem[LIMIT_NAME + 16], path[LIMIT_PATH];
    struct identity_pem ca = { 0 }, pem = { 0 };
    struct reason reason = { "" };
    enum exit_code code = folder_read_ca(client, &ca);
    if (code != EXIT_DONE)
        return code;
    enum status st = identity_make(&ca, role, name, NULL, folder_now_s(), &pem, &reason);
    identity_pem_release(&ca);
    if (st != ST_OK)
        return folder_report(st, &reason);
    (void)snprintf(stem, sizeof(stem), "%s-%s", identity_role_name(role), name);
    code = folder_publish(client, stem, &pem);
    identity_pem_release(&pem);
    if (code == EXIT_DONE)
        code = folder_path(client, stem, ".crt", path);
    if (code == EXIT_DONE)
        code = rows_print_one(client, path);
    if (code == EXIT_DONE) {
        client_note(client,
                    "for %s: %s.crt, its key beside it, and ca.crt; the key is for nobody "
                    "else\n",
                    name, stem);
    }
    return code;
}

enum exit_code cmd_cert_node(struct client *client)
{
    return make_peer(client, IDENTITY_NODE);
}

enum exit_code cmd_cert_operator(struct client *client)
{
    return make_peer(client, IDENTITY_OPERATOR);
}

enum exit_code cmd_cert_viewer(struct client *client)
{
    return make_peer(client, IDENTITY_VIEWER);
}
