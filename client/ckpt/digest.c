/* ckpt digest: of the stored state, computed from its bytes. */
#include <stdio.h>

#include "client/ask/target.h"
#include "client/ckpt/commands.h"
#include "client/print/output.h"
#include "proto/text/json.h"

enum exit_code cmd_ckpt_digest(struct client *client)
{
    char path[LIMIT_PATH], text[33];
    struct ckpt_hash digest;
    enum exit_code code = target_find_one(client, client->args.operands[0], path);
    if (code != EXIT_DONE)
        return code;
    enum status st = ckpt_digest(target_io(client), path, &digest);
    if (st != ST_OK)
        return target_report(client, path, st);
    ckpt_hash_text(&digest, text);
    if (output_is_json(client)) {
        return output_json(client,
                           json_pack("{s:o, s:s}", "path", json_from_text(path), "digest", text));
    }
    return printf("%s\n", text) < 0 ? EXIT_INTERNAL : output_text(NULL);
}
