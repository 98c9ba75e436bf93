/* ckpt ls, show, verify, digest, rm: of a job, or of a folder without a coordinator. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/checkpoint.h"
#include "client/job.h"
#include "client/json.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"

#define STEP_ALL UINT64_MAX

/* What JOB, JOB@STEP, JOB@all or a folder stands for. */
struct target {
    bool is_folder;
    char path[PATH_MAX]; /* of the folder, absolute */
    char job[LIMIT_NAME + 64];
    bool has_step;
    uint64_t step; /* STEP_ALL: all of them */
};

/* ---- what is meant ---- */

static enum exit_code parse_target(const char *word, struct target *out)
{
    struct stat st;
    *out = (struct target){ 0 };
    if (stat(word, &st) == 0 && S_ISDIR(st.st_mode)) {
        out->is_folder = true;
        if (realpath(word, out->path) != NULL)
            return EXIT_DONE;
        client_error("%s: %s", word, strerror(errno));
        return EXIT_INTERNAL;
    }
    if (strchr(word, '/') != NULL) {
        client_error("%s: no such folder", word);
        return EXIT_NOT_FOUND;
    }
    const char *at = strrchr(word, '@');
    size_t size = at == NULL ? strlen(word) : (size_t)(at - word);
    if (size == 0 || size >= sizeof(out->job)) {
        client_error("'%s' is no job", word);
        return EXIT_USAGE;
    }
    memcpy(out->job, word, size);
    if (at == NULL)
        return EXIT_DONE;
    out->has_step = true;
    if (strcmp(at + 1, "all") == 0) {
        out->step = STEP_ALL;
        return EXIT_DONE;
    }
    char *end = NULL;
    errno = 0;
    out->step = strtoull(at + 1, &end, 10);
    if (errno == 0 && at[1] >= '0' && at[1] <= '9' && *end == '\0')
        return EXIT_DONE;
    client_error("'%s' is no step; write JOB@STEP", at + 1);
    return EXIT_USAGE;
}

/* The last part of a path. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static bool is_checkpoint_folder(const char *path)
{
    const char *name = base_name(path);
    return strncmp(name, "step-", 5) == 0 || strncmp(name, "bad-", 4) == 0;
}

static enum exit_code list_of_job(struct client *client, const char *job,
                                  Cairn__V1__ListCheckpointsReply **out)
{
    Cairn__V1__ListCheckpointsRequest request = CAIRN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    request.job = (char *)job;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "ListCheckpoints", &request.base, 0, &reply);
    if (code == EXIT_DONE)
        *out = (Cairn__V1__ListCheckpointsReply *)reply;
    return code;
}

/* The folders that a target stands for, newest first; each owned by the caller, as the array. */
struct folders {
    char **paths;
    size_t count;
};

static void folders_release(struct folders *folders)
{
    for (size_t i = 0; i < folders->count; i++)
        free(folders->paths[i]);
    free(folders->paths);
    *folders = (struct folders){ 0 };
}

static bool folders_add(struct folders *folders, const char *path)
{
    char **paths = realloc(folders->paths, (folders->count + 1) * sizeof(char *));
    if (paths == NULL)
        return false;
    folders->paths = paths;
    paths[folders->count] = strdup(path);
    if (paths[folders->count] == NULL)
        return false;
    folders->count++;
    return true;
}

static bool is_wanted(const struct target *target, const Cairn__V1__Checkpoint *ckpt, bool good)
{
    if (target->has_step && target->step == STEP_ALL)
        return true;
    if (target->has_step && ckpt->step != target->step)
        return false;
    return !good || strcmp(ckpt->status, "good") == 0;
}

/* Of a job: the newest good one; with a step the good one of it, else any; with "all" all. */
static enum exit_code find_folders(struct client *client, const struct target *target,
                                   struct folders *out)
{
    if (target->is_folder)
        return folders_add(out, target->path) ? EXIT_DONE : EXIT_INTERNAL;
    Cairn__V1__ListCheckpointsReply *list = NULL;
    enum exit_code code = list_of_job(client, target->job, &list);
    if (code != EXIT_DONE)
        return code;
    bool all = target->has_step && target->step == STEP_ALL;
    for (int pass = 0; pass < 2 && code == EXIT_DONE && (out->count == 0 || (all && pass == 0));
         pass++) {
        for (size_t i = 0; i < list->n_checkpoints && (all || out->count == 0); i++) {
            if (is_wanted(target, list->checkpoints[i], pass == 0) &&
                !folders_add(out, list->checkpoints[i]->path))
                code = EXIT_INTERNAL;
        }
    }
    cairn__v1__list_checkpoints_reply__free_unpacked(list, NULL);
    if (code != EXIT_DONE || out->count > 0)
        return code;
    if (target->has_step && !all) {
        client_error("%s has no checkpoint of step %llu", target->job,
                     (unsigned long long)target->step);
    } else {
        client_error("%s has no checkpoint yet", target->job);
    }
    return EXIT_NOT_FOUND;
}

/* The one folder of a command that takes one. */
static enum exit_code find_folder(struct client *client, char *out, size_t capacity)
{
    struct target target;
    struct folders folders = { 0 };
    enum exit_code code = parse_target(client->args.words[0], &target);
    if (code == EXIT_DONE && target.has_step && target.step == STEP_ALL) {
        client_error("write JOB@STEP");
        code = EXIT_USAGE;
    }
    if (code == EXIT_DONE)
        code = find_folders(client, &target, &folders);
    if (code == EXIT_DONE)
        (void)snprintf(out, capacity, "%s", folders.paths[0]);
    folders_release(&folders);
    return code;
}

/* What reading the checkpoint at path came to. One that is named, or listed as committed, and has
 * no manifest has lost it: damage. */
static enum exit_code exit_of_read(const char *path, enum status st)
{
    return st == ST_NOT_FOUND && is_checkpoint_folder(path) ? EXIT_DAMAGED : exit_of_status(st);
}

static const char *describe_status(enum status st)
{
    return st == ST_NOT_FOUND ? "there is no manifest" : status_string(st);
}

static enum exit_code report(const char *path, enum status st)
{
    if (st == ST_NOT_FOUND && !is_checkpoint_folder(path)) {
        client_error("%s: there is no checkpoint here", path);
    } else {
        client_error("%s: %s", path, describe_status(st));
    }
    return exit_of_read(path, st);
}

/* ---- ls ---- */

/* What one entry of a folder is as the message that ListCheckpoints gives; texts are borrowed. */
static void describe(const struct ckpt_entry *entry, char digest[33], Cairn__V1__Checkpoint *out)
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
    out->status = entry->quarantined ? "bad" : entry->committed ? "good" : "incomplete";
    if (entry->committed)
        out->digest = digest;
}

static enum exit_code print_entries(const struct client *client, const struct ckpt_entry *entries,
                                    size_t count)
{
    Cairn__V1__Checkpoint *list = calloc(count + 1, sizeof(*list));
    ProtobufCMessage **rows = calloc(count + 1, sizeof(ProtobufCMessage *));
    char(*digests)[33] = calloc(count + 1, sizeof(*digests));
    enum exit_code code = EXIT_INTERNAL;
    if (list != NULL && rows != NULL && digests != NULL) {
        for (size_t i = 0; i < count; i++) {
            describe(&entries[i], digests[i], &list[i]);
            rows[i] = &list[i].base;
        }
        code = output_list(client, &checkpoint_listing, rows, count);
    }
    free(list);
    free(rows);
    free(digests);
    return code;
}

/* A job's folder: STORE/JOB. */
static enum exit_code list_folder(const struct client *client, const struct target *target)
{
    char store[PATH_MAX];
    (void)snprintf(store, sizeof(store), "%s", target->path);
    char *slash = strrchr(store, '/');
    if (slash == NULL || slash[1] == '\0') {
        client_error("%s is no job's folder", target->path);
        return EXIT_USAGE;
    }
    *slash = '\0';
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    enum status st =
        ckpt_list(io_system(), slash == store ? "/" : store, slash + 1, &entries, &count);
    enum exit_code code =
        st == ST_OK ? print_entries(client, entries, count) : report(target->path, st);
    free(entries);
    return code;
}

enum exit_code cmd_ckpt_ls(struct client *client)
{
    struct target target;
    enum exit_code code = parse_target(client->args.words[0], &target);
    if (code != EXIT_DONE)
        return code;
    if (target.is_folder)
        return list_folder(client, &target);
    Cairn__V1__ListCheckpointsReply *list = NULL;
    code = list_of_job(client, target.job, &list);
    if (code != EXIT_DONE)
        return code;
    code = output_list(client, &checkpoint_listing, (ProtobufCMessage *const *)list->checkpoints,
                       list->n_checkpoints);
    cairn__v1__list_checkpoints_reply__free_unpacked(list, NULL);
    return code;
}

/* ---- show ---- */

static const char *dtype_name(enum ckpt_dtype dtype)
{
    switch (dtype) {
    case CKPT_F32:
        return "f32";
    case CKPT_BF16:
        return "bf16";
    case CKPT_F16:
        return "f16";
    case CKPT_I32:
        return "i32";
    case CKPT_I64:
        return "i64";
    case CKPT_U8:
        return "u8";
    }
    return "?";
}

static json_t *json_of_files(const struct ckpt_manifest *manifest)
{
    json_t *files = json_array();
    for (uint32_t i = 0; files != NULL && i < manifest->file_count; i++) {
        char hash[33];
        ckpt_hash_text(&manifest->files[i].hash, hash);
        (void)json_array_append_new(
            files, json_pack("{s:s, s:I, s:s}", "name", manifest->files[i].name, "size",
                             (json_int_t)manifest->files[i].size, "xxh3_128", hash));
    }
    return files;
}

static json_t *json_of_contents(struct ckpt_reader *reader, json_t **out_tensors)
{
    const struct ckpt_buffer *buffers = NULL;
    const struct ckpt_tensor *tensors = NULL;
    uint32_t buffer_count = ckpt_reader_buffers(reader, &buffers);
    uint32_t tensor_count = ckpt_reader_tensors(reader, &tensors);
    json_t *buffer_list = json_array();
    json_t *tensor_list = json_array();
    for (uint32_t i = 0; i < buffer_count; i++) {
        (void)json_array_append_new(buffer_list,
                                    json_pack("{s:s, s:s, s:I}", "name", buffers[i].name, "dtype",
                                              dtype_name(buffers[i].dtype), "count",
                                              (json_int_t)buffers[i].count));
    }
    for (uint32_t i = 0; i < tensor_count; i++) {
        json_t *shape = json_array();
        for (int32_t d = 0; d < tensors[i].ndim; d++)
            (void)json_array_append_new(shape, json_integer((json_int_t)tensors[i].dims[d]));
        (void)json_array_append_new(tensor_list,
                                    json_pack("{s:s, s:I, s:I, s:o}", "name", tensors[i].name,
                                              "buffer", (json_int_t)tensors[i].buffer, "offset",
                                              (json_int_t)tensors[i].offset, "shape", shape));
    }
    *out_tensors = tensor_list;
    return buffer_list;
}

static enum exit_code show_json(const struct client *client, const char *path,
                                struct ckpt_reader *reader)
{
    const struct ckpt_manifest *manifest = ckpt_reader_manifest(reader);
    char digest[33];
    ckpt_hash_text(&manifest->digest, digest);
    json_t *tensors = NULL;
    json_t *buffers = json_of_contents(reader, &tensors);
    return output_json(client,
                       json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:I, s:o, s:o, s:o}", "path", path,
                                 "job", manifest->job, "step", (json_int_t)manifest->step,
                                 "generation", (json_int_t)manifest->generation, "digest", digest,
                                 "committed_at", manifest->created_at, "raw_bytes",
                                 (json_int_t)manifest->raw_bytes, "files", json_of_files(manifest),
                                 "buffers", buffers, "tensors", tensors));
}

static enum exit_code show_text(const struct client *client, const char *path,
                                struct ckpt_reader *reader)
{
    const struct ckpt_manifest *manifest = ckpt_reader_manifest(reader);
    const struct ckpt_buffer *buffers = NULL;
    const struct ckpt_tensor *tensors = NULL;
    uint32_t buffer_count = ckpt_reader_buffers(reader, &buffers);
    uint32_t tensor_count = ckpt_reader_tensors(reader, &tensors);
    char hash[33];
    ckpt_hash_text(&manifest->digest, hash);
    (void)printf("path         %s\njob          %s\nstep         %llu\nattempt      %llu\n"
                 "committed    %s\ndigest       %s\nraw bytes    %llu\n",
                 path, manifest->job, (unsigned long long)manifest->step,
                 (unsigned long long)manifest->generation, manifest->created_at, hash,
                 (unsigned long long)manifest->raw_bytes);
    for (uint32_t i = 0; i < manifest->file_count; i++) {
        (void)printf("file         %s  %llu bytes\n", manifest->files[i].name,
                     (unsigned long long)manifest->files[i].size);
    }
    for (uint32_t i = 0; i < buffer_count; i++) {
        (void)printf("buffer       %-12s %llu x %s\n", buffers[i].name,
                     (unsigned long long)buffers[i].count, dtype_name(buffers[i].dtype));
    }
    (void)printf("tensors      %u\n", tensor_count);
    for (uint32_t i = 0; client->args.output == OUTPUT_WIDE && i < tensor_count; i++) {
        (void)printf("tensor       %-40s [", tensors[i].name);
        for (int32_t d = 0; d < tensors[i].ndim; d++)
            (void)printf("%s%llu", d > 0 ? ", " : "", (unsigned long long)tensors[i].dims[d]);
        (void)printf("]\n");
    }
    return output_text(NULL);
}

enum exit_code cmd_ckpt_show(struct client *client)
{
    char path[PATH_MAX];
    enum exit_code code = find_folder(client, path, sizeof(path));
    if (code != EXIT_DONE)
        return code;
    if (client->args.output == OUTPUT_NAME)
        return printf("%s\n", path) < 0 ? EXIT_INTERNAL : output_text(NULL);
    struct ckpt_reader *reader = NULL;
    enum status st = ckpt_open(io_system(), path, &reader);
    if (st != ST_OK)
        return report(path, st);
    code =
        output_is_json(client) ? show_json(client, path, reader) : show_text(client, path, reader);
    ckpt_close(reader);
    return code;
}

/* ---- verify ---- */

struct findings {
    const struct client *client;
    json_t *lines; /* with JSON output, else NULL */
};

static void on_finding(void *arg, const char *line)
{
    struct findings *findings = arg;
    if (findings->lines != NULL) {
        (void)json_array_append_new(findings->lines, json_string(line));
    } else {
        (void)printf("  %s\n", line);
    }
}

/* Verifies one folder; with JSON its result goes to results. */
static enum exit_code verify_folder(const struct client *client, const char *path, json_t *results)
{
    struct findings findings = { .client = client };
    bool json = output_is_json(client);
    if (json)
        findings.lines = json_array();
    enum status st = ckpt_verify(io_system(), path, on_finding, &findings);
    if (json) {
        (void)json_array_append_new(results, json_pack("{s:s, s:b, s:s, s:o}", "path", path, "good",
                                                       st == ST_OK, "status", describe_status(st),
                                                       "findings", findings.lines));
        return exit_of_read(path, st);
    }
    if (st == ST_OK && !client->args.quiet) {
        (void)printf("good     %s\n", path);
    } else if (st != ST_OK && exit_of_read(path, st) == EXIT_DAMAGED) {
        (void)printf("DAMAGED  %s: %s\n", path, describe_status(st));
    } else if (st != ST_OK) {
        (void)report(path, st);
    }
    return exit_of_read(path, st);
}

static enum exit_code print_results(const struct client *client, json_t *results)
{
    if (client->args.output == OUTPUT_JSON)
        return output_json(client, results);
    size_t i;
    json_t *result;
    enum exit_code code = EXIT_DONE;
    json_array_foreach(results, i, result)
    {
        if (code == EXIT_DONE)
            code = output_json(client, json_incref(result));
    }
    json_decref(results);
    return code;
}

enum exit_code cmd_ckpt_verify(struct client *client)
{
    struct target target;
    struct folders folders = { 0 };
    enum exit_code code = parse_target(client->args.words[0], &target);
    if (code == EXIT_DONE)
        code = find_folders(client, &target, &folders);
    json_t *results = code == EXIT_DONE ? json_array() : NULL;
    enum exit_code worst = code;
    for (size_t i = 0; code == EXIT_DONE && i < folders.count; i++) {
        enum exit_code one = verify_folder(client, folders.paths[i], results);
        if (worst == EXIT_DONE || one == EXIT_DAMAGED)
            worst = one;
    }
    folders_release(&folders);
    if (code == EXIT_DONE && output_is_json(client)) {
        code = print_results(client, results);
    } else {
        json_decref(results);
    }
    if (output_text(NULL) != EXIT_DONE)
        return EXIT_INTERNAL;
    return code != EXIT_DONE ? code : worst;
}

/* ---- digest, rm ---- */

enum exit_code cmd_ckpt_digest(struct client *client)
{
    char path[PATH_MAX];
    char text[33];
    struct ckpt_hash digest;
    enum exit_code code = find_folder(client, path, sizeof(path));
    if (code != EXIT_DONE)
        return code;
    enum status st = ckpt_digest(io_system(), path, &digest);
    if (st != ST_OK)
        return report(path, st);
    ckpt_hash_text(&digest, text);
    if (output_is_json(client))
        return output_json(client, json_pack("{s:s, s:s}", "path", path, "digest", text));
    return printf("%s\n", text) < 0 ? EXIT_INTERNAL : output_text(NULL);
}

enum exit_code cmd_ckpt_rm(struct client *client)
{
    struct target target;
    enum exit_code code = parse_target(client->args.words[0], &target);
    if (code != EXIT_DONE)
        return code;
    if (target.is_folder) {
        if (!is_checkpoint_folder(target.path)) {
            client_error("%s is no checkpoint's folder", target.path);
            return EXIT_REFUSED;
        }
        enum status st = ckpt_remove(io_system(), target.path);
        return st == ST_OK ? EXIT_DONE : report(target.path, st);
    }
    if (!target.has_step || target.step == STEP_ALL) {
        client_error("write which one: cairn ckpt rm %s@STEP", target.job);
        return EXIT_USAGE;
    }
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
    protobuf_c_message_free_unpacked(reply, NULL);
    client_note(client, "removed step %llu of %s\n", (unsigned long long)target.step, target.job);
    return EXIT_DONE;
}
