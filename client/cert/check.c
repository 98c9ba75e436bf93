/* cert check: whether certificate, key and CA will do, before anybody dials with them. */
#include "identity/check.h"

#include <stdio.h>
#include <string.h>

#include "client/cert/commands.h"
#include "client/cert/folder.h"
#include "client/cert/rows.h"
#include "client/print/output.h"

/* "ca.crt" in the folder of a certificate. */
static enum exit_code ca_beside(const char *cert, char out[LIMIT_PATH])
{
    const char *slash = strrchr(cert, '/');
    int folder = slash == NULL ? 0 : (int)(slash - cert) + 1;
    int length = snprintf(out, LIMIT_PATH, "%.*sca.crt", folder, cert);
    if (length > 0 && length < LIMIT_PATH)
        return EXIT_DONE;
    client_error("%s: the path is too long", cert);
    return EXIT_USAGE;
}

enum exit_code cmd_cert_check(struct client *client)
{
    const struct arguments *args = &client->args;
    char key[LIMIT_PATH], ca[LIMIT_PATH];
    struct identity_files files = { args->operands[0], args->key, args->ca };
    struct identity_cert cert;
    struct reason reason = { "" };
    enum exit_code code = EXIT_DONE;
    if (files.key == NULL) {
        code = folder_key_of(files.cert, key);
        files.key = key;
    }
    if (code == EXIT_DONE && files.ca == NULL) {
        code = ca_beside(files.cert, ca);
        files.ca = ca;
    }
    if (code != EXIT_DONE)
        return code;
    enum status st = identity_check(&files, IDENTITY_ANY, folder_now_s(), &cert, &reason);
    if (st == ST_OK && identity_key_exposed(files.key, &reason))
        st = ST_REFUSED;
    if (st != ST_OK)
        return folder_report(st, &reason);
    return client->args.quiet ? EXIT_DONE : rows_print_one(client, files.cert);
}
