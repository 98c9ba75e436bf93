/*
 * ckpt scrub: all checkpoints of a job or a store, every byte against its hashes. Nothing is
 * changed here: what a scrub of a job finds damaged the coordinator reads again, and it alone sets
 * aside.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ask/call.h"
#include "client/ask/target.h"
#include "client/ckpt/commands.h"
#include "client/ckpt/throttle.h"
#include "client/ckpt/verify.h"
#include "client/print/format.h"
#include "client/print/output.h"
#include "common/check.h"
#include "common/clock.h"

#define LINE_EVERY_MS 200    /* of progress on a terminal */
#define CHECK_MS      300000 /* for the coordinator to read one and to set it aside */

struct scrub {
    struct client *client;
    const char *job; /* whose coordinator is asked; NULL: of a folder */
    struct throttle throttle;
    bool progress; /* there is a terminal to show it on */
    int64_t shown_ms;
    size_t at, count; /* checkpoints */
    size_t good, damaged, aside, unread, skipped;
    json_t *results;
    enum exit_code worst;
};

static void show_scrubbed(void *arg, uint64_t bytes)
{
    struct scrub *scrub = arg;
    int64_t now = clock_mono_ms(clock_system());
    if (!scrub->progress || now - scrub->shown_ms < LINE_EVERY_MS)
        return;
    double seconds = (double)(clock_mono_ns() - scrub->throttle.start_ns) / 1e9;
    char read[32], speed[32];
    scrub->shown_ms = now;
    (void)fprintf(
        stderr, "\r\033[Kscrub: checkpoint %zu of %zu, %s read, %s/s", scrub->at, scrub->count,
        format_bytes(bytes, read, sizeof(read)),
        format_bytes(seconds > 0 ? (uint64_t)((double)bytes / seconds) : 0, speed, sizeof(speed)));
}

/* What the coordinator said of the checkpoint verified last, for people and in its result. */
static void say_checked(struct scrub *scrub, const char *said, const char *path)
{
    bool aside = strcmp(said, "bad") == 0;
    CHECK(scrub->job != NULL);
    scrub->aside += aside;
    if (output_is_json(scrub->client)) {
        json_t *result = json_array_get(scrub->results, json_array_size(scrub->results) - 1);
        (void)json_object_set_new(result, "coordinator", json_string(said));
        (void)json_object_set_new(result, "set_aside", aside ? json_string(path) : json_null());
    } else if (aside) {
        (void)output_printf(scrub->client, "  set aside as %s\n", path);
    } else if (strcmp(said, "good") == 0) {
        (void)printf("  the coordinator reads it well, it stays: this machine or its way to the "
                     "store is suspected\n");
    }
}

/* Asks the coordinator to read a checkpoint that read badly here. False: it was removed meanwhile,
 * which was no damage. */
static bool ask_to_check(struct scrub *scrub, const struct target_folder *one)
{
    Cairn__V1__CheckCheckpointRequest request = CAIRN__V1__CHECK_CHECKPOINT_REQUEST__INIT;
    request.job = (char *)scrub->job;
    request.step = one->step;
    request.generation = one->generation;
    ProtobufCMessage *message = NULL;
    (void)fflush(stdout);
    enum exit_code code =
        client_call(scrub->client, "CheckCheckpoint", &request.base, CHECK_MS, &message);
    if (code != EXIT_DONE) {
        say_checked(scrub, code == EXIT_NOT_FOUND ? "removed" : "no answer", "");
        return code != EXIT_NOT_FOUND;
    }
    const Cairn__V1__CheckCheckpointReply *reply = (const Cairn__V1__CheckCheckpointReply *)message;
    if (reply->message[0] != '\0')
        client_error("the coordinator can't read %s now, it stays: %s", one->path, reply->message);
    say_checked(scrub, reply->result, reply->checkpoint == NULL ? "" : reply->checkpoint->path);
    protobuf_c_message_free_unpacked(message, NULL);
    return true;
}

static void scrub_folders(struct scrub *scrub, const struct target_folders *folders)
{
    scrub->count += folders->count;
    for (size_t i = 0; i < folders->count; i++) {
        const struct target_folder *one = &folders->list[i];
        struct ckpt_manifest manifest;
        scrub->at++;
        /* Set aside already, or never committed: no checkpoint. A lost manifest is damage. */
        if (one->quarantined ||
            (!one->good && ckpt_manifest_read(target_io(scrub->client), one->path, &manifest,
                                              NULL) == ST_NOT_FOUND)) {
            scrub->skipped++;
            continue;
        }
        enum exit_code code = verify_folder(scrub->client, &scrub->throttle.io, one->path,
                                            scrub->progress, scrub->results);
        if (code == EXIT_DAMAGED && scrub->job != NULL && !ask_to_check(scrub, one)) {
            scrub->skipped++;
            continue;
        }
        scrub->good += code == EXIT_DONE;
        scrub->damaged += code == EXIT_DAMAGED;
        scrub->unread += code != EXIT_DONE && code != EXIT_DAMAGED;
        if (scrub->worst == EXIT_DONE || code == EXIT_DAMAGED)
            scrub->worst = code;
    }
}

/* A folder below a store's is a job's if it has checkpoints. */
static enum exit_code scrub_store(struct scrub *scrub, const char *path)
{
    char(*jobs)[LIMIT_PATH] = NULL;
    size_t count = 0;
    enum exit_code code = target_jobs_of_store(scrub->client, path, &jobs, &count);
    for (size_t i = 0; i < count; i++) {
        struct target_folders folders = { 0 };
        if (target_all(scrub->client, jobs[i], &folders) == EXIT_DONE)
            scrub_folders(scrub, &folders);
        target_folders_release(&folders);
    }
    free(jobs);
    if (code != EXIT_DONE || scrub->count > 0)
        return code;
    client_error("%s: there is no checkpoint here; 'cairn show JOB' names a job's folder (store)",
                 path);
    return EXIT_NOT_FOUND;
}

static enum exit_code scrub_target(struct scrub *scrub, struct target *target)
{
    struct target_folders folders = { 0 };
    enum exit_code code = EXIT_DONE;
    scrub->job = target->is_folder ? NULL : target->job;
    bool one = target->has_step ||
               (target->is_folder && target_is_checkpoint(scrub->client, target->path));
    if (one) {
        code = target_find(scrub->client, target, &folders);
    } else if (target->is_folder) {
        code = target_all(scrub->client, target->path, &folders);
        if (code == EXIT_DONE && folders.count == 0)
            return scrub_store(scrub, target->path);
    } else {
        target->has_step = true;
        target->step = TARGET_STEP_ALL;
        code = target_find(scrub->client, target, &folders);
    }
    if (code == EXIT_DONE)
        scrub_folders(scrub, &folders);
    target_folders_release(&folders);
    return code;
}

static enum exit_code print_summary(struct scrub *scrub)
{
    const struct client *client = scrub->client;
    double seconds = (double)(clock_mono_ns() - scrub->throttle.start_ns) / 1e9;
    uint64_t bytes = scrub->throttle.bytes;
    if (client->args.output == OUTPUT_JSONL)
        return verify_print(client, scrub->results);
    if (client->args.output == OUTPUT_JSON) {
        return output_json(client,
                           json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "good",
                                     (json_int_t)scrub->good, "damaged", (json_int_t)scrub->damaged,
                                     "set_aside", (json_int_t)scrub->aside, "unread",
                                     (json_int_t)scrub->unread, "skipped",
                                     (json_int_t)scrub->skipped, "bytes", (json_int_t)bytes,
                                     "seconds", seconds, "checkpoints", scrub->results));
    }
    json_decref(scrub->results);
    char size[32], time[32];
    (void)fflush(stdout);
    client_note(client,
                "%zu good, %zu damaged (%zu set aside now), %zu that couldn't be read, %zu passed "
                "over (set aside before, removed, or not committed); %s read in %s\n",
                scrub->good, scrub->damaged, scrub->aside, scrub->unread, scrub->skipped,
                format_bytes(bytes, size, sizeof(size)),
                format_seconds(seconds, time, sizeof(time)));
    return output_text(NULL);
}

enum exit_code cmd_ckpt_scrub(struct client *client)
{
    struct target target;
    struct scrub scrub = { .client = client };
    enum exit_code code = target_parse(client->args.operands[0], &target);
    if (code != EXIT_DONE)
        return code;
    uint64_t rate = client->args.rate < 0 ? 0 : (uint64_t)client->args.rate * 1000000;
    throttle_init(&scrub.throttle, target_io(client), rate);
    scrub.progress = isatty(STDERR_FILENO) == 1 && !client->args.quiet && client->terminal;
    scrub.throttle.progress = show_scrubbed;
    scrub.throttle.progress_arg = &scrub;
    scrub.results = json_array();
    code = scrub_target(&scrub, &target);
    if (code == EXIT_DONE) {
        code = print_summary(&scrub);
    } else {
        json_decref(scrub.results);
    }
    throttle_release(&scrub.throttle);
    return code != EXIT_DONE ? code : scrub.worst;
}
