/*
 * What the commands of `cairn ckpt` work on.
 *
 *   JOB  JOB@STEP  JOB@all           by the coordinator's list of that job's checkpoints
 *   FOLDER                           a checkpoint's, a job's in a store, for ls and scrub a whole
 *                                    store: no coordinator needed
 *   FOLDER@STEP  FOLDER@all          a job's folder in a store
 *
 * Folders may lie in an object store (s3://…). Errors are reported on standard error.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "checkpoint/checkpoint.h"
#include "client/base/client.h"
#include "common/io.h"

#define TARGET_STEP_ALL UINT64_MAX

struct target {
    bool is_folder;
    char path[LIMIT_PATH]; /* of the folder: absolute, or in an object store */
    char job[LIMIT_NAME + 64];
    bool has_step;
    uint64_t step; /* TARGET_STEP_ALL: all of them */
};

/* A checkpoint's folder that a target stands for. */
struct target_folder {
    char path[LIMIT_PATH];
    uint64_t step;
    uint32_t generation; /* of a job; of a folder: 0 */
    bool good;           /* committed, as far as is known */
    bool quarantined;    /* bad-… */
    bool timed;          /* the coordinator knows what saving it took */
    Cairn__V1__SaveTimes times;
};

struct target_folders {
    struct target_folder *list; /* owned */
    size_t count;
};
void target_folders_release(struct target_folders *folders);

/* The files of all stores. */
const struct io *target_io(const struct client *client);

enum exit_code target_parse(const char *word, struct target *out);

/* The last part of a path. */
const char *target_base(const char *path);
/* True if the folder is a checkpoint, whole or damaged, by its name or by its content
 * (client/ask/folder.h). */
bool target_is_checkpoint(struct client *client, const char *path);

/* ListCheckpoints, all pages; cairn__v1__list_checkpoints_reply__free_unpacked. */
enum exit_code target_list_of_job(struct client *client, const char *job,
                                  Cairn__V1__ListCheckpointsReply **out);
/* Appends a page to *all (NULL: nothing yet) and takes it over, whatever comes of it. False: no
 * memory. */
bool target_join(Cairn__V1__ListCheckpointsReply **all, Cairn__V1__ListCheckpointsReply *page);
/* Lists the checkpoints in a job's folder; free(*out). */
enum exit_code target_list_of_folder(struct client *client, const char *path,
                                     struct ckpt_entry **out, size_t *out_count);

/* The folders in a store that may be jobs', by their names; free(*out). */
enum exit_code target_jobs_of_store(struct client *client, const char *path,
                                    char (**out)[LIMIT_PATH], size_t *out_count);

/*
 * The folders meant, newest first, into an empty list: without a step the newest good one; with a
 * step its good one, else any of it; with "all" all of them.
 */
enum exit_code target_find(struct client *client, const struct target *target,
                           struct target_folders *out);
/* Lists all checkpoints of a job's folder, newest first; none is no error. */
enum exit_code target_all(struct client *client, const char *path, struct target_folders *all);
/* Finds the one folder that a word means. */
enum exit_code target_find_folder(struct client *client, const char *word,
                                  struct target_folder *out);
enum exit_code target_find_one(struct client *client, const char *word, char out[LIMIT_PATH]);
/* Opens a folder that was found: ckpt_close(*out). Damage that is met while reading is reported on
 * standard error; path must live as long as the reader. */
enum exit_code target_open_at(struct client *client, const char *path, struct ckpt_reader **out);
/* target_find_one and target_open_at. */
enum exit_code target_open(struct client *client, const char *word, char path[LIMIT_PATH],
                           struct ckpt_reader **out);

/* The exit code of reading the checkpoint at path. One that is named, or listed as committed, and
 * has no manifest has lost it: damage. */
enum exit_code target_exit(const char *path, enum status st);
/* Returns what a status of reading a checkpoint means, in words. */
const char *target_status(enum status st);
/* Reports such a status, and returns target_exit. */
enum exit_code target_report(const struct client *client, const char *path, enum status st);

/* "f32" */
const char *target_dtype_name(enum ckpt_dtype dtype);

/* Threads that read beside the caller's, on this machine. */
uint32_t target_threads(void);
