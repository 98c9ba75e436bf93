/* Whether the coordinator's certificate will do for a page that others reach. */
#include <stdlib.h>
#include <string.h>

#include "client/cert/commands.h"
#include "client/cert/folder.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "identity/check.h"

enum { CERT, KEY, CA, FILES };

static enum exit_code find_files(const struct client *client, char paths[FILES][LIMIT_PATH])
{
    enum exit_code code = folder_path(client, "coordinator", ".crt", paths[CERT]);
    if (code == EXIT_DONE)
        code = folder_path(client, "coordinator", ".key", paths[KEY]);
    return code == EXIT_DONE ? folder_path(client, "ca", ".crt", paths[CA]) : code;
}

/* Now, or when the certificate was good last: what has expired is the observer's to renew, and no
 * reason why the jobs shouldn't go on after a restart. */
static int64_t lifetime(const char *path)
{
    auto_free char *pem = NULL;
    size_t size = 0;
    struct identity_cert cert;
    const int64_t now_s = folder_now_s();
    if (io_read_file(io_system(), path, IDENTITY_FILE_BYTES, &pem, &size) != ST_OK ||
        identity_cert_read(pem, &cert) != ST_OK || cert.not_after_s > now_s)
        return now_s;
    return cert.not_after_s - 1;
}

enum exit_code cert_check_page(const struct client *client, const char *address, const char *host)
{
    char paths[FILES][LIMIT_PATH];
    struct identity_cert cert;
    struct reason reason = { "" };
    enum exit_code code = find_files(client, paths);
    for (size_t i = 0; code == EXIT_DONE && i < FILES; i++) {
        if (folder_has(paths[i]))
            continue;
        client_error("--page %s: beyond this machine the page needs the coordinator's certificate, "
                     "and %s isn't there\n"
                     "  make it with: cairn cert init --hosts %s\n"
                     "  or leave the page on this machine and come by ssh -L (docs/page.md)",
                     address, paths[i], host);
        code = EXIT_USAGE;
    }
    if (code != EXIT_DONE)
        return code;
    const struct identity_files files = { paths[CERT], paths[KEY], paths[CA] };
    const enum status st =
        identity_check(&files, IDENTITY_COORDINATOR, lifetime(paths[CERT]), &cert, &reason);
    if (st != ST_OK)
        return folder_report(st, &reason);
    if (!identity_hosts_have(cert.hosts, host, strlen(host))) {
        client_note(client,
                    "%s doesn't name %s: who comes by that address is told it isn't this one's; "
                    "for one that does remove it and its key, then: cairn cert init --hosts %s\n",
                    paths[CERT], host, host);
    }
    return EXIT_DONE;
}
