#include "client/cert/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/io.h"
#include "identity/files.h"
#include "identity/serving_cert.h"

enum exit_code folder_report(enum status st, const struct reason *reason)
{
    client_error("%s", reason->text[0] != '\0' ? reason->text : client_file_status(st));
    return exit_of_status(st);
}

int64_t folder_now_s(void)
{
    return clock_wall_ms(clock_system()) / 1000;
}

enum exit_code folder_path(const struct client *client, const char *stem, const char *ending,
                           char out[LIMIT_PATH])
{
    const char *dir = client->args.dir;
    const char *home = dir != NULL ? dir : client->paths.home;
    int length =
        snprintf(out, LIMIT_PATH, "%s%s/%s%s", home, dir != NULL ? "" : "/tls", stem, ending);
    if (length > 0 && length < LIMIT_PATH)
        return EXIT_DONE;
    client_error("the folder's path is too long");
    return EXIT_USAGE;
}

enum exit_code folder_key_of(const char *cert, char out[LIMIT_PATH])
{
    size_t size = strlen(cert);
    if (size > 4 && size < LIMIT_PATH && strcmp(cert + size - 4, ".crt") == 0) {
        (void)snprintf(out, LIMIT_PATH, "%.*s.key", (int)size - 4, cert);
        return EXIT_DONE;
    }
    client_error("%s doesn't end in .crt: where its key is has to be said with --key", cert);
    return EXIT_USAGE;
}

bool folder_has(const char *path)
{
    struct io_stat info;
    return io_system()->stat(io_system()->self, path, &info) == ST_OK;
}

enum exit_code folder_read(const char *path, char **out)
{
    size_t size = 0;
    enum status st = io_read_file(io_system(), path, IDENTITY_FILE_BYTES, out, &size);
    if (st == ST_OK)
        return EXIT_DONE;
    client_error("%s: %s", path, client_file_status(st));
    return exit_of_status(st);
}

enum exit_code folder_read_ca(const struct client *client, struct identity_pem *out)
{
    char cert[LIMIT_PATH], key[LIMIT_PATH];
    enum exit_code code = folder_path(client, "ca", ".crt", cert);
    if (code == EXIT_DONE)
        code = folder_path(client, "ca", ".key", key);
    if (code != EXIT_DONE)
        return code;
    if (!folder_has(cert) || !folder_has(key)) {
        client_error("%s isn't there: 'cairn cert init' makes an authority, --dir says where one "
                     "is",
                     folder_has(cert) ? key : cert);
        return EXIT_NOT_FOUND;
    }
    code = folder_read(cert, &out->cert);
    if (code == EXIT_DONE) {
        struct reason reason = { "" };
        const enum status st = identity_ca_key_read(key, &out->key, &reason);
        code = st == ST_OK ? EXIT_DONE : folder_report(st, &reason);
    }
    if (code != EXIT_DONE)
        identity_pem_release(out);
    return code;
}

enum exit_code folder_publish(const struct client *client, const char *stem,
                              const struct identity_pem *pem)
{
    const struct io *io = io_system();
    char cert[LIMIT_PATH], key[LIMIT_PATH];
    enum exit_code code = folder_path(client, stem, ".crt", cert);
    if (code == EXIT_DONE)
        code = folder_path(client, stem, ".key", key);
    if (code != EXIT_DONE)
        return code;
    enum status st = io_publish_private(io, key, pem->key, strlen(pem->key));
    const char *failed = key;
    if (st == ST_OK) {
        failed = cert;
        st = io_publish(io, cert, pem->cert, strlen(pem->cert));
        if (st != ST_OK)
            (void)io->unlink(io->self, key); /* of no certificate */
    }
    if (st == ST_EXISTS && failed == key && !folder_has(cert)) {
        client_error("%s is there without its certificate, of a call that was cut off: remove it",
                     key);
    } else if (st == ST_EXISTS) {
        client_error("%s is there already: 'cairn cert renew' prolongs a certificate; for another "
                     "one remove it first",
                     failed);
    } else if (st != ST_OK) {
        client_error("%s can't be written: %s", failed, client_file_status(st));
    }
    return exit_of_status(st);
}
