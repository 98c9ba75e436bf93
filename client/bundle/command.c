/* bundle: asks for what support needs, and packs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ask/call.h"
#include "client/bundle/commands.h"
#include "client/bundle/jobs.h"
#include "client/bundle/local.h"
#include "client/bundle/secrets.h"
#include "client/print/output.h"
#include "common/cleanup.h"
#include "common/clock.h"

/* Where it goes: as said, else a name with the time in it, here. */
static enum exit_code find_path(const struct client *client, int64_t now_s, char out[LIMIT_PATH])
{
    const time_t at = (time_t)now_s;
    struct tm parts;
    char stamp[32] = "";
    const char *to = client->args.to;
    const size_t size = to == NULL ? 0 : strlen(to);
    if (to == NULL) {
        if (gmtime_r(&at, &parts) != NULL)
            (void)strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", &parts);
        (void)snprintf(out, LIMIT_PATH, "cairn-bundle-%s.tar.gz", stamp);
        return EXIT_DONE;
    }
    const bool ends = (size > 7 && strcmp(to + size - 7, ".tar.gz") == 0) ||
                      (size > 4 && strcmp(to + size - 4, ".tgz") == 0);
    if (!ends || size >= LIMIT_PATH) {
        client_error("a bundle is a .tar.gz: --to FILE.tar.gz, not '%.100s'", to);
        return EXIT_USAGE;
    }
    (void)snprintf(out, LIMIT_PATH, "%s", to);
    return EXIT_DONE;
}

/* Does the coordinator have these jobs? A wrong name makes no bundle; a coordinator that doesn't
 * answer is no reason for none. */
static enum exit_code check_jobs(struct client *client)
{
    for (size_t i = 0; i < client->args.operand_count; i++) {
        Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
        ProtobufCMessage *reply = NULL;
        request.job = (char *)client->args.operands[i];
        const enum rpc_code code = client_try(client, "GetJob", &request.base, 2000, &reply);
        if (code == RPC_OK)
            protobuf_c_message_free_unpacked(reply, NULL);
        if (code == RPC_NOT_FOUND || code == RPC_INVALID_ARGUMENT) {
            client_error("there is no job '%s'; 'cairn ps' lists them", client->args.operands[i]);
            return EXIT_NOT_FOUND;
        }
        if (code != RPC_OK)
            break;
    }
    return EXIT_DONE;
}

/* Is the coordinator that of this machine's home? */
static bool is_here(const struct client *client)
{
    const char *addr = getenv("CAIRN_ADDR");
    return client->args.addr == NULL && (addr == NULL || addr[0] == '\0');
}

static void pack(struct client *client, struct parcel *parcel)
{
    char *ids[JOBS_OF_BUNDLE] = { NULL };
    size_t count = 0;
    local_machine(parcel);
    local_environment(client, parcel);
    if (is_here(client)) {
        local_logs(client, parcel);
    } else {
        parcel_missing(parcel, "logs/: the coordinator is at an address, so its home's logs aren't "
                               "looked for here: run 'cairn bundle' on its machine, too");
    }
    const enum rpc_code code = jobs_cluster(client, parcel, ids, &count);
    if (code != RPC_OK && is_here(client))
        local_workers(client, parcel);
    for (size_t i = 0; code == RPC_OK && i < client->args.operand_count; i++)
        jobs_one(client, parcel, client->args.operands[i]);
    for (size_t i = 0; i < count; i++) {
        if (client->args.operand_count == 0)
            jobs_one(client, parcel, ids[i]);
        free(ids[i]);
    }
}

enum exit_code cmd_bundle(struct client *client)
{
    char path[LIMIT_PATH];
    struct reason reason = { "" };
    struct redact *redact = NULL;
    struct parcel parcel;
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    client->plain = false; /* what is packed stays as it is; what prints it makes it plain */
    enum exit_code code = find_path(client, now_s, path);
    if (code == EXIT_DONE)
        code = check_jobs(client);
    if (code != EXIT_DONE)
        return code;
    enum status st = redact_new(&redact);
    if (st == ST_OK)
        st = secrets_gather(client, redact);
    if (st == ST_OK)
        st = parcel_open(&parcel, path, redact, now_s, &reason);
    if (st == ST_OK) {
        pack(client, &parcel);
        st = parcel_close(&parcel, &reason);
    }
    redact_free(redact);
    if (st != ST_OK) {
        client_error("%s", reason.text[0] != '\0' ? reason.text : status_string(st));
        return exit_of_status(st);
    }
    (void)output_printf(client, "%s\n", path);
    client_note(client, "%zu files, %zu KiB before packing", parcel.members, parcel.total >> 10);
    if (parcel.missing > 0) {
        client_note(client, "; %zu thing%s couldn't be had: errors.txt in it", parcel.missing,
                    parcel.missing == 1 ? "" : "s");
    }
    client_note(client, "\nsecrets are left out; look into it before you give it away\n");
    return output_text(NULL);
}
