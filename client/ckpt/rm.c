/* ckpt rm: the coordinator removes a job's checkpoint; of a folder, this program does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/ask/folder.h"
#include "client/ask/target.h"
#include "client/ckpt/commands.h"
#include "client/print/job.h"
#include "client/print/output.h"
#include "proto/text/json.h"

/* ---- rm ---- */

/* The checkpoint beside the one at path that holds differences to it; false: none does. */
static bool find_child(struct client *client, const char *path, uint64_t *out_step)
{
    char job[LIMIT_PATH];
    struct ckpt_entry *entries = NULL;
    struct ckpt_manifest own;
    size_t count = 0;
    (void)snprintf(job, sizeof(job), "%.*s", (int)(target_base(path) - path) - 1, path);
    if (ckpt_manifest_read(target_io(client), path, &own, NULL) != ST_OK)
        return false;
    bool found = false;
    if (job[0] != '\0' && target_list_of_folder(client, job, &entries, &count) == EXIT_DONE) {
        for (size_t i = 0; i < count && !found; i++) {
            found = entries[i].committed && entries[i].parent.generation == own.generation &&
                    entries[i].parent.step == own.step && entries[i].parent.generation > 0;
            *out_step = entries[i].step;
        }
    }
    free(entries);
    ckpt_manifest_release(&own);
    return found;
}

/* path NULL: not known any more, the call was repeated after the checkpoint was gone. */
static enum exit_code say_removed(const struct client *client, const char *path)
{
    if (output_is_json(client)) {
        return output_json(
            client, json_pack("{s:o}", "path", path != NULL ? json_from_text(path) : json_null()));
    }
    if (client->args.output == OUTPUT_NAME && path != NULL)
        return output_printf(client, "%s\n", path) < 0 ? EXIT_INTERNAL : output_text(NULL);
    client_note(client, "removed %s\n", path != NULL ? path : client->args.operands[0]);
    return EXIT_DONE;
}

/* Refuses what isn't Cairn's, and what may be somebody else's where nobody insists. */
static enum exit_code check_folder(const struct client *client, const char *path,
                                   const struct folder *folder)
{
    if (!folder_is_checkpoint(folder)) {
        client_error("%s: nothing of Cairn's is in it: no checkpoint", path);
        return EXIT_REFUSED;
    }
    if (folder->manifest == FOLDER_FOREIGN || (folder->ours == 0 && folder->others > 0)) {
        client_error("%s: nothing of Cairn's is in it, but for the name", path);
        return EXIT_REFUSED;
    }
    if (folder->manifest == FOLDER_DAMAGED && (folder->shards == 0 || !client->args.force)) {
        client_error("%s: its manifest is damaged%s", path,
                     folder->shards == 0 ? ", and no shard is beside it: it stays"
                                         : "; --force removes it");
        return EXIT_REFUSED;
    }
    return EXIT_DONE;
}

/* Other people's files, and the folder with them, stay: what was removed then, and what not. */
static enum exit_code say_rest(struct client *client, const char *path, const struct folder *before)
{
    struct folder left;
    char names[FOLDER_OTHERS_MAX * (LIMIT_NAME + 2) + 8] = "";
    if (folder_look(target_io(client), path, &left) != ST_OK || left.others == 0)
        return say_removed(client, path);
    for (size_t i = 0, at = 0; i < left.others && i <= FOLDER_OTHERS_MAX; i++) {
        const char *name = i < FOLDER_OTHERS_MAX ? left.other[i] : "...";
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i > 0 ? ", " : "", name);
    }
    client_error("%s: removed %zu file%s; these stay: %s", path, before->ours,
                 before->ours == 1 ? "" : "s", names);
    return output_is_json(client) || client->args.output == OUTPUT_NAME ? say_removed(client, path)
                                                                        : EXIT_DONE;
}

static enum exit_code remove_folder(struct client *client, const char *path)
{
    uint64_t child = 0;
    struct folder folder;
    enum status st = folder_look(target_io(client), path, &folder);
    enum exit_code code =
        st == ST_OK ? check_folder(client, path, &folder) : target_report(client, path, st);
    if (code != EXIT_DONE)
        return code;
    if (find_child(client, path, &child)) {
        client_error("%s: the checkpoint of step %llu holds differences to it and could not be "
                     "read any more; remove that one first",
                     path, (unsigned long long)child);
        return EXIT_REFUSED;
    }
    st = ckpt_remove(target_io(client), path);
    return st == ST_OK ? say_rest(client, path, &folder) : target_report(client, path, st);
}

/* The newest one of a job that is over holds what it was trained for. */
static enum exit_code check_result(struct client *client, const struct target *target)
{
    Cairn__V1__Job *job = NULL;
    enum exit_code code =
        client->args.force ? EXIT_DONE : client_get_job(client, target->job, &job);
    if (code != EXIT_DONE || job == NULL)
        return code;
    const Cairn__V1__Checkpoint *newest = NULL;
    for (size_t i = 0; newest == NULL && i < job->n_checkpoints; i++) {
        if (strcmp(job->checkpoints[i]->status, "good") == 0)
            newest = job->checkpoints[i];
    }
    if (job_is_over(job->state) && newest != NULL && newest->step == target->step) {
        client_error("step %llu is the newest checkpoint of %s, which is %s: its result. --force "
                     "removes it",
                     (unsigned long long)target->step, job->name, job_state_name(job->state));
        code = EXIT_REFUSED;
    }
    cairn__v1__job__free_unpacked(job, NULL);
    return code;
}

enum exit_code cmd_ckpt_rm(struct client *client)
{
    struct target target;
    enum exit_code code = target_parse(client->args.operands[0], &target);
    if (code != EXIT_DONE)
        return code;
    if (target.is_folder && !target.has_step)
        return remove_folder(client, target.path);
    if (!target.has_step || target.step == TARGET_STEP_ALL) {
        client_error("write which one: cairn ckpt rm %s@STEP",
                     target.is_folder ? target.path : target.job);
        return EXIT_USAGE;
    }
    if (target.is_folder) {
        char path[LIMIT_PATH];
        code = target_find_one(client, client->args.operands[0], path);
        return code == EXIT_DONE ? remove_folder(client, path) : code;
    }
    code = check_result(client, &target);
    if (code != EXIT_DONE)
        return code;
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__RemoveCheckpointRequest request = CAIRN__V1__REMOVE_CHECKPOINT_REQUEST__INIT;
    request.job = target.job;
    request.step = target.step;
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    code = client_call(client, "RemoveCheckpoint", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__RemoveCheckpointReply *done = (const Cairn__V1__RemoveCheckpointReply *)reply;
    bool known = done->path__case == CAIRN__V1__REMOVE_CHECKPOINT_REPLY__PATH__PATH;
    code = say_removed(client, known ? done->path : NULL);
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}
