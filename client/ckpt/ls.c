/* ckpt ls: the checkpoints of a job, or of a folder without a coordinator. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "client/ask/target.h"
#include "client/ckpt/commands.h"
#include "client/print/job.h"
#include "proto/text/json.h"

/* What one entry of a folder is as the message that ListCheckpoints gives; texts are borrowed. */
static void describe_entry(const struct ckpt_entry *entry, char digest[33],
                           Cairn__V1__Checkpoint *out)
{
    *out = (Cairn__V1__Checkpoint)CAIRN__V1__CHECKPOINT__INIT;
    ckpt_hash_text(&entry->digest, digest);
    out->step = entry->step;
    out->generation = (uint32_t)entry->generation;
    out->path = (char *)entry->dir;
    out->bytes = entry->bytes;
    out->raw_bytes = entry->raw_bytes;
    out->shards = entry->files;
    out->committed_at = (char *)entry->created_at;
    out->status = entry->quarantined              ? "bad"
                  : entry->committed              ? "good"
                  : entry->manifest == ST_VERSION ? "version"
                                                  : "incomplete";
    if (entry->committed)
        out->digest = digest;
    out->parent_step = entry->parent.generation > 0 ? entry->parent.step : 0;
    out->parent_generation = (uint32_t)entry->parent.generation;
    out->loss = out->eval_loss = out->eval_accuracy = (double)NAN; /* the coordinator knows them */
}

static enum exit_code print_entries(const struct client *client, const struct column *columns,
                                    const struct ckpt_entry *entries, size_t count)
{
    Cairn__V1__Checkpoint *list = calloc(count + 1, sizeof(*list));
    ProtobufCMessage **rows = calloc(count + 1, sizeof(ProtobufCMessage *));
    char(*digests)[33] = calloc(count + 1, sizeof(*digests));
    enum exit_code code = EXIT_INTERNAL;
    if (list != NULL && rows != NULL && digests != NULL) {
        for (size_t i = 0; i < count; i++) {
            describe_entry(&entries[i], digests[i], &list[i]);
            rows[i] = &list[i].base;
        }
        code = output_list(client, columns, rows, count);
    }
    free(list);
    free(rows);
    free(digests);
    return code;
}

/* True if the coordinator gave the folder its name: what else lies in a store is somebody else's.
 * */
static bool is_of_job(const char *path)
{
    return strncmp(target_base(path), "j-", 2) == 0;
}

/* All jobs of a store, one after the other. A folder that can't be read hides no other one: that is
 * said, and counts where it is a job's. */
static enum exit_code list_store(struct client *client, const char *path,
                                 struct ckpt_entry **entries, size_t *count, enum exit_code *worst)
{
    char(*jobs)[LIMIT_PATH] = NULL;
    size_t job_count = 0;
    enum exit_code code = target_jobs_of_store(client, path, &jobs, &job_count);
    *worst = EXIT_DONE;
    for (size_t i = 0; code == EXIT_DONE && i < job_count; i++) {
        struct ckpt_entry *more = NULL;
        size_t more_count = 0;
        const enum exit_code one = target_list_of_folder(client, jobs[i], &more, &more_count);
        if (one == EXIT_UNREACHABLE)
            code = one;
        if (one != EXIT_DONE && is_of_job(jobs[i]))
            *worst = one;
        struct ckpt_entry *all =
            more_count == 0 ? NULL : realloc(*entries, (*count + more_count) * sizeof(*all));
        if (all != NULL) {
            memcpy(all + *count, more, more_count * sizeof(*all));
            *entries = all;
            *count += more_count;
        } else if (more_count > 0) {
            code = EXIT_INTERNAL;
        }
        free(more);
    }
    free(jobs);
    if (code == EXIT_DONE && *count == 0 && *worst == EXIT_DONE) {
        client_error(
            "%s: there is no checkpoint here; 'cairn show JOB' names a job's folder (store)", path);
        code = EXIT_NOT_FOUND;
    }
    return code;
}

/* A job's folder, or a store's with such folders. */
static enum exit_code list_folder(struct client *client, const char *path)
{
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    enum exit_code code = EXIT_DONE, worst = EXIT_DONE;
    if (ckpt_name_is_good(target_base(path))) /* else no job's */
        code = target_list_of_folder(client, path, &entries, &count);
    bool store = code == EXIT_DONE && count == 0;
    if (store)
        code = list_store(client, path, &entries, &count, &worst);
    if (code == EXIT_DONE) {
        code = print_entries(client, store ? stored_checkpoint_columns : checkpoint_columns,
                             entries, count);
    }
    free(entries);
    return code == EXIT_DONE ? worst : code;
}

enum exit_code cmd_ckpt_ls(struct client *client)
{
    struct target target;
    enum exit_code code = target_parse(client->args.operands[0], &target);
    if (code == EXIT_DONE && target.has_step) {
        client_error("ls lists all of a job: cairn ckpt ls %s",
                     target.is_folder ? target.path : target.job);
        return EXIT_USAGE;
    }
    if (code != EXIT_DONE)
        return code;
    if (target.is_folder)
        return list_folder(client, target.path);
    Cairn__V1__ListCheckpointsReply *list = NULL;
    code = target_list_of_job(client, target.job, &list);
    if (code != EXIT_DONE)
        return code;
    code = output_list(client, checkpoint_columns, (ProtobufCMessage *const *)list->checkpoints,
                       list->n_checkpoints);
    cairn__v1__list_checkpoints_reply__free_unpacked(list, NULL);
    return code;
}
