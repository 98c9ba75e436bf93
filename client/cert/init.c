/* cert init: an authority, and the coordinator's certificate; what is there already stays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cert/commands.h"
#include "client/cert/folder.h"
#include "client/cert/rows.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "identity/cert.h"

#define CLUSTER     "cairn" /* where none is named */
#define COORDINATOR "coordinator"

static enum exit_code make_folder(const struct client *client)
{
    char path[LIMIT_PATH];
    enum exit_code code = folder_path(client, "", "", path);
    if (code != EXIT_DONE)
        return code;
    path[strlen(path) - 1] = '\0'; /* the slash */
    enum status st = io_mkdir_all(io_system(), path);
    if (st != ST_OK)
        client_error("%s can't be made: %s", path, client_file_status(st));
    return exit_of_status(st);
}

/* An authority that is there is the one that is meant. */
static enum exit_code check_ca(const struct client *client, const char *path)
{
    const char *cluster = client->args.cluster;
    auto_free char *pem = NULL;
    struct identity_cert cert;
    enum exit_code code = folder_read(path, &pem);
    if (code != EXIT_DONE)
        return code;
    if (identity_cert_read(pem, &cert) != ST_OK || !cert.is_ca) {
        client_error("%s holds no authority of a cluster", path);
        return EXIT_REFUSED;
    }
    if (cluster == NULL || strcmp(cluster, cert.who.cluster) == 0)
        return EXIT_DONE;
    client_error("%s is the authority of cluster %s, not of %s: use another --dir", path,
                 cert.who.cluster, cluster);
    return EXIT_REFUSED;
}

static enum exit_code make_ca(const struct client *client)
{
    char path[LIMIT_PATH];
    struct identity_pem pem = { 0 };
    struct reason reason = { "" };
    const char *cluster = client->args.cluster == NULL ? CLUSTER : client->args.cluster;
    enum exit_code code = folder_path(client, "ca", ".crt", path);
    if (code != EXIT_DONE)
        return code;
    if (folder_has(path))
        return check_ca(client, path);
    enum status st = identity_make_ca(cluster, folder_now_s(), &pem, &reason);
    if (st != ST_OK)
        return folder_report(st, &reason);
    code = folder_publish(client, "ca", &pem);
    identity_pem_release(&pem);
    return code;
}

static enum exit_code make_coordinator(const struct client *client)
{
    const char *hosts = client->args.hosts;
    char path[LIMIT_PATH];
    struct identity_pem ca = { 0 }, pem = { 0 };
    struct reason reason = { "" };
    enum exit_code code = folder_path(client, COORDINATOR, ".crt", path);
    if (code != EXIT_DONE)
        return code;
    if (folder_has(path)) {
        if (hosts == NULL)
            return EXIT_DONE;
        client_error("%s is there already: for one with these hosts remove it and its key first",
                     path);
        return EXIT_REFUSED;
    }
    code = folder_read_ca(client, &ca);
    if (code != EXIT_DONE)
        return code;
    enum status st =
        identity_make(&ca, IDENTITY_COORDINATOR, "main", hosts, folder_now_s(), &pem, &reason);
    identity_pem_release(&ca);
    if (st != ST_OK)
        return folder_report(st, &reason);
    code = folder_publish(client, COORDINATOR, &pem);
    identity_pem_release(&pem);
    return code;
}

enum exit_code cert_prepare(const struct client *client)
{
    enum exit_code code = make_folder(client);
    if (code == EXIT_DONE)
        code = make_ca(client);
    return code == EXIT_DONE ? make_coordinator(client) : code;
}

enum exit_code cmd_cert_init(struct client *client)
{
    static const char *const stems[] = { "ca", COORDINATOR };
    char path[LIMIT_PATH];
    struct rows rows = { 0 };
    enum exit_code code = cert_prepare(client);
    for (size_t i = 0; code == EXIT_DONE && i < 2; i++) {
        code = folder_path(client, stems[i], ".crt", path);
        if (code == EXIT_DONE)
            code = rows_add(&rows, path);
    }
    if (code == EXIT_DONE)
        code = rows_print(client, &rows);
    rows_release(&rows);
    if (code == EXIT_DONE)
        client_note(client, "who has ca.key is everybody: it stays here\n");
    return code;
}
