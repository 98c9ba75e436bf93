#include "client/ask/target.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/format/names.h"
#include "checkpoint/store/store.h"
#include "client/ask/call.h"
#include "client/ask/folder.h"
#include "common/check.h"

#define JOBS_MAX    65536
#define THREADS_MAX 7
#define LISTED_MAX  ((size_t)1 << 17) /* twice what a coordinator keeps of one job */

const struct io *target_io(const struct client *client)
{
    return ckpt_store_io(client->store);
}

uint32_t target_threads(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores <= 1 ? 0 : cores - 1 > THREADS_MAX ? THREADS_MAX : (uint32_t)(cores - 1);
}

void target_folders_release(struct target_folders *folders)
{
    free(folders->list);
    *folders = (struct target_folders){ 0 };
}

const char *target_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

bool target_is_checkpoint(struct client *client, const char *path)
{
    struct folder folder;
    return folder_look(target_io(client), path, &folder) == ST_OK ? folder_is_checkpoint(&folder)
                                                                  : folder_is_named(path);
}

/* ---- words ---- */

/* Text of size bytes as a folder that is there. */
static bool take_folder(const char *text, size_t size, char out[LIMIT_PATH])
{
    char word[LIMIT_PATH], path[PATH_MAX];
    struct io_stat info;
    if (size == 0 || size >= sizeof(word))
        return false;
    memcpy(word, text, size);
    word[size] = '\0';
    if (ckpt_store_is_object(word)) {
        while (size > 1 && word[size - 1] == '/')
            word[--size] = '\0';
        memcpy(out, word, size + 1);
        return true;
    }
    if (io_system()->stat(io_system()->self, word, &info) != ST_OK || !info.is_dir ||
        realpath(word, path) == NULL || strlen(path) >= LIMIT_PATH)
        return false;
    (void)snprintf(out, LIMIT_PATH, "%.*s", LIMIT_PATH - 1, path);
    return true;
}

static bool take_step(const char *text, struct target *out)
{
    char *end = NULL;
    if (strcmp(text, "all") == 0) {
        out->step = TARGET_STEP_ALL;
        return true;
    }
    errno = 0;
    out->step = strtoull(text, &end, 10);
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

enum exit_code target_parse(const char *word, struct target *out)
{
    *out = (struct target){ 0 };
    const char *at = strrchr(word, '@');
    if (at != NULL && strchr(at, '/') != NULL)
        at = NULL; /* part of a folder's name */
    bool objects = ckpt_store_is_object(word);
    if (!(objects && at != NULL) && take_folder(word, strlen(word), out->path)) {
        out->is_folder = true;
        return EXIT_DONE;
    }
    size_t size = at == NULL ? strlen(word) : (size_t)(at - word);
    out->is_folder = at != NULL && take_folder(word, size, out->path);
    if (!out->is_folder && memchr(word, '/', size) != NULL) {
        client_error("%s: no such folder; 'cairn show JOB' names that of a job (store)", word);
        return EXIT_NOT_FOUND;
    }
    if (!out->is_folder && (size == 0 || size >= sizeof(out->job))) {
        client_error("'%s' is no job; 'cairn ps' lists them", word);
        return EXIT_USAGE;
    }
    if (!out->is_folder)
        memcpy(out->job, word, size);
    out->has_step = at != NULL;
    if (at == NULL || take_step(at + 1, out))
        return EXIT_DONE;
    client_error("'%s' is no step; write JOB@STEP", at + 1);
    return EXIT_USAGE;
}

/* ---- lists ---- */

bool target_join(Cairn__V1__ListCheckpointsReply **all, Cairn__V1__ListCheckpointsReply *page)
{
    Cairn__V1__ListCheckpointsReply *last = *all;
    *all = page;
    if (last == NULL)
        return true;
    size_t count = last->n_checkpoints + page->n_checkpoints;
    Cairn__V1__Checkpoint **list =
        realloc(last->checkpoints, (count + 1) * sizeof(Cairn__V1__Checkpoint *));
    if (list != NULL) {
        last->checkpoints = page->checkpoints;
        for (size_t i = 0; i < page->n_checkpoints; i++)
            list[last->n_checkpoints + i] = page->checkpoints[i];
        last->n_checkpoints = 0;
        page->checkpoints = list;
        page->n_checkpoints = count;
    }
    cairn__v1__list_checkpoints_reply__free_unpacked(last, NULL);
    return list != NULL;
}

enum exit_code target_list_of_job(struct client *client, const char *job,
                                  Cairn__V1__ListCheckpointsReply **out)
{
    Cairn__V1__ListCheckpointsRequest request = CAIRN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Cairn__V1__ListCheckpointsReply *all = NULL;
    request.job = (char *)job;
    do {
        ProtobufCMessage *reply = NULL;
        request.page_token = all == NULL ? "" : all->next_page_token;
        enum exit_code code = client_call(client, "ListCheckpoints", &request.base, 0, &reply);
        if (code == EXIT_DONE && !target_join(&all, (Cairn__V1__ListCheckpointsReply *)reply)) {
            client_error("%s", status_string(ST_NO_MEMORY));
            code = EXIT_INTERNAL;
        }
        if (code != EXIT_DONE) {
            cairn__v1__list_checkpoints_reply__free_unpacked(all, NULL);
            return code;
        }
    } while (all->next_page_token[0] != '\0' && all->n_checkpoints < LISTED_MAX);
    *out = all;
    return EXIT_DONE;
}

enum exit_code target_list_of_folder(struct client *client, const char *path,
                                     struct ckpt_entry **out, size_t *out_count)
{
    char store[LIMIT_PATH];
    (void)snprintf(store, sizeof(store), "%s", path);
    char *slash = strrchr(store, '/');
    if (slash == NULL || slash[1] == '\0') {
        client_error("%s is no job's folder; 'cairn show JOB' names it (store)", path);
        return EXIT_USAGE;
    }
    *slash = '\0';
    enum status st =
        ckpt_list(target_io(client), slash == store ? "/" : store, slash + 1, out, out_count);
    return st == ST_OK ? EXIT_DONE : target_report(client, path, st);
}

/* ---- a store ---- */

struct job_folders {
    struct client *client;
    const char *store;
    char (*list)[LIMIT_PATH];
    size_t count;
    enum status st;
};

static bool add_job_folder(void *arg, const char *name)
{
    struct job_folders *jobs = arg;
    const struct io *io = target_io(jobs->client);
    char path[LIMIT_PATH];
    struct io_stat info;
    int size = snprintf(path, sizeof(path), "%s/%s", jobs->store, name);
    if (!ckpt_name_is_good(name) || size < 0 || (size_t)size >= sizeof(path) ||
        io->stat(io->self, path, &info) != ST_OK || !info.is_dir)
        return true;
    void *list = jobs->count == JOBS_MAX
                     ? NULL
                     : realloc(jobs->list, (jobs->count + 1) * sizeof(*jobs->list));
    if (list == NULL) {
        jobs->st = jobs->count == JOBS_MAX ? ST_FULL : ST_NO_MEMORY;
        return false;
    }
    jobs->list = list;
    memcpy(jobs->list[jobs->count++], path, sizeof(path));
    return true;
}

static int compare_job_folders(const void *a, const void *b)
{
    return strcmp(a, b);
}

enum exit_code target_jobs_of_store(struct client *client, const char *path,
                                    char (**out)[LIMIT_PATH], size_t *out_count)
{
    struct job_folders jobs = { .client = client, .store = path };
    const struct io *io = target_io(client);
    enum status st = io->list(io->self, path, add_job_folder, &jobs);
    if (st == ST_OK)
        st = jobs.st;
    if (st != ST_OK) {
        free(jobs.list);
        return target_report(client, path, st);
    }
    if (jobs.count > 0)
        qsort(jobs.list, jobs.count, sizeof(jobs.list[0]), compare_job_folders);
    *out = jobs.list;
    *out_count = jobs.count;
    return EXIT_DONE;
}

static bool add_folder(struct target_folders *folders, const struct target_folder *one)
{
    struct target_folder *list = realloc(folders->list, (folders->count + 1) * sizeof(*list));
    if (list == NULL) {
        client_error("%s", status_string(ST_NO_MEMORY));
        return false;
    }
    folders->list = list;
    list[folders->count++] = *one;
    return true;
}

static enum exit_code add_of_job(struct client *client, const char *job, struct target_folders *all)
{
    Cairn__V1__ListCheckpointsReply *list = NULL;
    enum exit_code code = target_list_of_job(client, job, &list);
    for (size_t i = 0; code == EXIT_DONE && i < list->n_checkpoints; i++) {
        const Cairn__V1__Checkpoint *ckpt = list->checkpoints[i];
        struct target_folder one = { .step = ckpt->step,
                                     .generation = ckpt->generation,
                                     .good = strcmp(ckpt->status, "good") == 0,
                                     .quarantined = strcmp(ckpt->status, "bad") == 0,
                                     .timed = ckpt->times != NULL };
        if (ckpt->times != NULL)
            one.times = *ckpt->times;
        (void)snprintf(one.path, sizeof(one.path), "%s", ckpt->path);
        code = add_folder(all, &one) ? EXIT_DONE : EXIT_INTERNAL;
    }
    if (list != NULL)
        cairn__v1__list_checkpoints_reply__free_unpacked(list, NULL);
    return code;
}

enum exit_code target_all(struct client *client, const char *path, struct target_folders *all)
{
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    enum exit_code code = target_list_of_folder(client, path, &entries, &count);
    for (size_t i = 0; code == EXIT_DONE && i < count; i++) {
        struct target_folder one = { .step = entries[i].step,
                                     .good = entries[i].committed,
                                     .quarantined = entries[i].quarantined };
        (void)snprintf(one.path, sizeof(one.path), "%s", entries[i].dir);
        code = add_folder(all, &one) ? EXIT_DONE : EXIT_INTERNAL;
    }
    free(entries);
    return code;
}

/* ---- the choice ---- */

static bool is_wanted(const struct target *target, const struct target_folder *one, bool good)
{
    if (target->has_step && one->step != target->step)
        return false;
    return !good || one->good;
}

static enum exit_code choose_folder(const struct target *target, const struct target_folders *all,
                                    struct target_folders *out)
{
    /* A checkpoint that isn't good is taken only if it is named by its step. */
    for (int pass = 0; pass < (target->has_step ? 2 : 1) && out->count == 0; pass++) {
        for (size_t i = 0; i < all->count && out->count == 0; i++) {
            if (is_wanted(target, &all->list[i], pass == 0) && !add_folder(out, &all->list[i]))
                return EXIT_INTERNAL;
        }
    }
    const char *whose = target->is_folder ? target->path : target->job;
    if (out->count > 0)
        return EXIT_DONE;
    if (target->has_step) {
        client_error("%s has no checkpoint of step %llu; 'cairn ckpt ls %s' lists them", whose,
                     (unsigned long long)target->step, whose);
    } else if (all->count > 0) {
        client_error(
            "%s has no good checkpoint; name one that isn't by its step: 'cairn ckpt ls %s'", whose,
            whose);
    } else if (target->is_folder) {
        client_error(
            "%s: there is no checkpoint here; 'cairn show JOB' names a job's folder (store)",
            whose);
    } else {
        client_error("%s has no checkpoint yet; 'cairn save %s' makes one", whose, whose);
    }
    return EXIT_NOT_FOUND;
}

enum exit_code target_find(struct client *client, const struct target *target,
                           struct target_folders *out)
{
    struct target_folders all = { 0 };
    enum exit_code code = EXIT_DONE;
    CHECK(out->count == 0);
    if (target->is_folder && !target->has_step && target_is_checkpoint(client, target->path)) {
        struct target_folder one = { .good = true };
        (void)snprintf(one.path, sizeof(one.path), "%s", target->path);
        return add_folder(out, &one) ? EXIT_DONE : EXIT_INTERNAL;
    }
    code = target->is_folder ? target_all(client, target->path, &all)
                             : add_of_job(client, target->job, &all);
    if (code == EXIT_DONE && target->has_step && target->step == TARGET_STEP_ALL && all.count > 0) {
        *out = all;
        return EXIT_DONE;
    }
    if (code == EXIT_DONE) {
        struct target one = *target;
        one.has_step = target->has_step && target->step != TARGET_STEP_ALL;
        code = choose_folder(&one, &all, out);
    }
    target_folders_release(&all);
    return code;
}

enum exit_code target_find_folder(struct client *client, const char *word,
                                  struct target_folder *out)
{
    struct target target;
    struct target_folders folders = { 0 };
    enum exit_code code = target_parse(word, &target);
    if (code == EXIT_DONE && target.has_step && target.step == TARGET_STEP_ALL) {
        client_error("write JOB@STEP: this takes one checkpoint");
        code = EXIT_USAGE;
    }
    if (code == EXIT_DONE)
        code = target_find(client, &target, &folders);
    if (code == EXIT_DONE)
        *out = folders.list[0];
    target_folders_release(&folders);
    return code;
}

enum exit_code target_find_one(struct client *client, const char *word, char out[LIMIT_PATH])
{
    struct target_folder folder;
    enum exit_code code = target_find_folder(client, word, &folder);
    if (code == EXIT_DONE)
        memcpy(out, folder.path, LIMIT_PATH);
    return code;
}

/* arg: the folder. */
static void say_finding(void *arg, const char *line)
{
    client_error("%s: %s", (const char *)arg, line);
}

enum exit_code target_open_at(struct client *client, const char *path, struct ckpt_reader **out)
{
    enum status st = ckpt_open(target_io(client), path, say_finding, (void *)path, out);
    return st == ST_OK ? EXIT_DONE : target_report(client, path, st);
}

enum exit_code target_open(struct client *client, const char *word, char path[LIMIT_PATH],
                           struct ckpt_reader **out)
{
    enum exit_code code = target_find_one(client, word, path);
    return code == EXIT_DONE ? target_open_at(client, path, out) : code;
}

/* ---- what came of it ---- */

const char *target_dtype_name(enum ckpt_dtype dtype)
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

enum exit_code target_exit(const char *path, enum status st)
{
    return st == ST_NOT_FOUND && folder_is_named(path) ? EXIT_DAMAGED : exit_of_status(st);
}

const char *target_status(enum status st)
{
    return st == ST_NOT_FOUND ? "there is no manifest" : status_string(st);
}

enum exit_code target_report(const struct client *client, const char *path, enum status st)
{
    struct reason why;
    enum exit_code code = target_exit(path, st);
    if (code == EXIT_DAMAGED) {
        client_error("%s: %s; 'cairn ckpt verify' says where", path, target_status(st));
    } else if (st == ST_NOT_FOUND) {
        client_error(
            "%s: there is no checkpoint here; 'cairn show JOB' names a job's folder (store)", path);
    } else if (st == ST_REFUSED && !ckpt_store_is_object(path)) {
        client_error("%s: no permission, or a read-only file system", path);
    } else {
        io_explain(target_io(client), st, &why);
        client_error("%s: %s", path, why.text);
    }
    return code;
}
