#include "agent/record.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

enum { VERSION = 1, RECORD_BYTES_MAX = 16 * 1024 };

static const char *const state_names[] = { "intent", "running", "exited" };

static json_t *record_to_json(const struct record *r)
{
    return json_pack(
        "{s:i, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:s}", "version",
        VERSION, "node", r->node, "job", r->ref.job, "generation", (json_int_t)r->ref.generation,
        "rank", (json_int_t)r->ref.rank, "slot", (json_int_t)r->slot, "boot_id", r->boot_id,
        "pid_space", r->pid_space, "state", state_names[r->state], "pid", (json_int_t)r->pid,
        "start_time", (json_int_t)r->start_time, "cause", (int)r->exit.cause, "code",
        (int)r->exit.code, "signal", (int)r->exit.signal, "message", r->exit.message.text);
}

enum status record_write(const struct io *io, const struct paths *paths,
                         const struct record *record)
{
    struct ref_files files;
    enum status st = ref_files(&record->ref, paths, &files);
    if (st != ST_OK)
        return st;
    json_t *json = record_to_json(record);
    if (json == NULL)
        return ST_NO_MEMORY;
    auto_free char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (text == NULL)
        return ST_NO_MEMORY;
    return io_replace(io, files.record, text, strlen(text));
}

static bool find_state(const char *name, enum record_state *out)
{
    for (size_t i = 0; i < sizeof(state_names) / sizeof(state_names[0]); i++) {
        if (strcmp(name, state_names[i]) == 0) {
            *out = (enum record_state)i;
            return true;
        }
    }
    return false;
}

static bool copy_text(char *out, size_t capacity, const char *text)
{
    int size = snprintf(out, capacity, "%s", text);
    return size >= 0 && (size_t)size < capacity;
}

static bool record_from_json(json_t *json, struct record *out)
{
    int version = 0;
    int cause = 0;
    const char *node = "";
    const char *job = "";
    const char *boot_id = "";
    const char *pid_space = "";
    const char *state = "";
    const char *message = "";
    json_int_t generation = 0;
    json_int_t rank = 0;
    json_int_t slot = 0;
    json_int_t pid = 0;
    json_int_t start_time = 0;
    struct record r = { .pid = 0 };
    if (json_unpack(json,
                    "{s:i, s:s, s:s, s:I, s:I, s:I, s:s, s?:s, s:s, s:I, s:I, s:i, s:i, s:i, s:s}",
                    "version", &version, "node", &node, "job", &job, "generation", &generation,
                    "rank", &rank, "slot", &slot, "boot_id", &boot_id, "pid_space", &pid_space,
                    "state", &state, "pid", &pid, "start_time", &start_time, "cause", &cause,
                    "code", &r.exit.code, "signal", &r.exit.signal, "message", &message) != 0)
        return false;
    if (version != VERSION || !ref_name_is_safe(node) || !ref_name_is_safe(job) || generation < 0 ||
        generation > UINT32_MAX || rank < 0 || rank >= LIMIT_NUMBERS || slot < 0 ||
        slot > UINT32_MAX || pid < 0 || start_time < 0 || !find_state(state, &r.state))
        return false;
    r.ref.generation = (uint32_t)generation;
    r.ref.rank = (uint32_t)rank;
    r.slot = (uint32_t)slot;
    r.pid = pid;
    r.start_time = (uint64_t)start_time;
    r.exit.cause = (Cairn__V1__TrainerExited__Cause)cause;
    if (!copy_text(r.node, sizeof(r.node), node) || !copy_text(r.ref.job, sizeof(r.ref.job), job) ||
        !copy_text(r.boot_id, sizeof(r.boot_id), boot_id) ||
        !copy_text(r.pid_space, sizeof(r.pid_space), pid_space) ||
        !copy_text(r.exit.message.text, sizeof(r.exit.message.text), message))
        return false;
    *out = r;
    return true;
}

enum status record_read(const struct io *io, const char *path, struct record *out)
{
    auto_free char *text = NULL;
    size_t size = 0;
    enum status st = io_read_file(io, path, RECORD_BYTES_MAX, &text, &size);
    if (st != ST_OK)
        return st;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    if (json == NULL)
        return ST_CORRUPT;
    bool good = record_from_json(json, out);
    json_decref(json);
    return good ? ST_OK : ST_CORRUPT;
}

enum status record_remove(const struct io *io, const struct paths *paths, const struct ref *ref)
{
    struct ref_files files;
    enum status st = ref_files(ref, paths, &files);
    if (st != ST_OK)
        return st;
    st = io->unlink(io->self, files.record);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

struct listing {
    const struct paths *paths;
    void (*fn)(void *arg, const char *path);
    void *arg;
};

static bool list_name(void *arg, const char *name)
{
    const struct listing *listing = arg;
    size_t size = strlen(name);
    char path[LIMIT_PATH];
    if (name[0] == '.' || size < 5 || strcmp(name + size - 5, ".json") != 0)
        return true; /* locks, temporary names */
    if (paths_join(listing->paths, path, sizeof(path), "agent/%s", name) == ST_OK)
        listing->fn(listing->arg, path);
    return true;
}

enum status record_list(const struct io *io, const struct paths *paths,
                        void (*fn)(void *arg, const char *path), void *arg)
{
    char folder[LIMIT_PATH];
    enum status st = paths_join(paths, folder, sizeof(folder), "agent");
    if (st != ST_OK)
        return st;
    struct listing listing = { paths, fn, arg };
    st = io->list(io->self, folder, list_name, &listing);
    return st == ST_NOT_FOUND ? ST_OK : st;
}
