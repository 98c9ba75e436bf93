#include "client/cert/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/v1/control.pb-c.h"
#include "client/cert/folder.h"
#include "client/print/cell.h"
#include "client/print/format.h"
#include "client/print/output.h"
#include "common/cleanup.h"
#include "identity/cert.h"

struct row {
    char path[LIMIT_PATH];
    struct identity_cert cert;
    char from[IDENTITY_TIME], until[IDENTITY_TIME];
};

#define CERTIFICATE(member) 0, offsetof(Cairn__V1__Certificate, member)

/* The cell that says how long a certificate is good for from now on. */
static void cell_left(const void *until, char *out, size_t capacity)
{
    int64_t ms = 0;
    const int64_t now_s = folder_now_s(), day_s = 86400;
    if (!format_read_time(*(char *const *)until, &ms) || ms / 1000 <= now_s) {
        (void)snprintf(out, capacity, "expired");
        return;
    }
    const int64_t left_s = ms / 1000 - now_s;
    if (left_s < 2 * day_s) {
        (void)snprintf(out, capacity, "%lldh", (long long)(left_s / 3600));
    } else {
        (void)snprintf(out, capacity, "%lldd", (long long)(left_s / day_s));
    }
}

static const struct column certificate_columns[] = {
    { "FILE", CERTIFICATE(file), .cell = cell_text },
    { "ROLE", CERTIFICATE(role), .cell = cell_text },
    { "NAME", CERTIFICATE(name), .cell = cell_optional_text },
    { "CLUSTER", CERTIFICATE(cluster), .cell = cell_text },
    { "EXPIRES", CERTIFICATE(not_after), .cell = cell_text },
    { "LEFT", CERTIFICATE(not_after), .cell = cell_left, .right = true },
    { "HOSTS", CERTIFICATE(hosts), .cell = cell_optional_text, .wide = true },
    { "SERIAL", CERTIFICATE(serial), .cell = cell_text, .wide = true },
    { 0 },
};

void rows_release(struct rows *rows)
{
    free(rows->list);
    *rows = (struct rows){ 0 };
}

enum exit_code rows_add(struct rows *rows, const char *path)
{
    auto_free char *pem = NULL;
    if (rows->count == ROWS_MAX || strlen(path) >= LIMIT_PATH) {
        client_error("more than %d certificates, or a path that is too long", ROWS_MAX);
        return EXIT_USAGE;
    }
    enum exit_code code = folder_read(path, &pem);
    if (code != EXIT_DONE)
        return code;
    struct row *list = realloc(rows->list, (rows->count + 1) * sizeof(*list));
    if (list == NULL)
        return folder_report(ST_NO_MEMORY, &(struct reason){ "" });
    rows->list = list;
    struct row *row = &list[rows->count];
    if (identity_cert_read(pem, &row->cert) != ST_OK) {
        client_error("%s holds no certificate of a cluster", path);
        return EXIT_USAGE;
    }
    (void)snprintf(row->path, sizeof(row->path), "%s", path);
    identity_time(row->cert.not_before_s, row->from);
    identity_time(row->cert.not_after_s, row->until);
    rows->count++;
    return EXIT_DONE;
}

/* Texts are borrowed. */
static void describe_row(struct row *row, Cairn__V1__Certificate *out)
{
    *out = (Cairn__V1__Certificate)CAIRN__V1__CERTIFICATE__INIT;
    out->file = row->path;
    out->role = row->cert.is_ca ? (char *)"ca" : (char *)identity_role_name(row->cert.who.role);
    out->name = row->cert.who.name;
    out->cluster = row->cert.who.cluster;
    out->hosts = row->cert.hosts;
    out->serial = row->cert.serial;
    out->not_before = row->from;
    out->not_after = row->until;
}

enum exit_code rows_print(const struct client *client, const struct rows *rows)
{
    Cairn__V1__Certificate *list = calloc(rows->count + 1, sizeof(*list));
    ProtobufCMessage **messages = calloc(rows->count + 1, sizeof(ProtobufCMessage *));
    enum exit_code code = EXIT_INTERNAL;
    if (list != NULL && messages != NULL) {
        for (size_t i = 0; i < rows->count; i++) {
            describe_row(&rows->list[i], &list[i]);
            messages[i] = &list[i].base;
        }
        code = output_list(client, certificate_columns, messages, rows->count);
    }
    free(list);
    free(messages);
    return code;
}

enum exit_code rows_print_one(const struct client *client, const char *path)
{
    struct rows rows = { 0 };
    enum exit_code code = rows_add(&rows, path);
    if (code == EXIT_DONE)
        code = rows_print(client, &rows);
    rows_release(&rows);
    return code;
}
