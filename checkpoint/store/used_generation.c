/* The generations that a job's folder shows to have existed. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "checkpoint/store/store.h"

#define CONTENT "cairn-used-1\n"

/* An io_name_fn: the highest so far. */
static bool take_highest(void *arg, const char *name)
{
    uint64_t *highest = arg, generation = 0;
    struct ckpt_folder_name folder;
    if (ckpt_folder_parse(name, &folder)) {
        generation = folder.generation;
    } else if (!ckpt_used_generation_parse(name, &generation) &&
               !ckpt_temporary_parse(name, &generation)) {
        generation = 0;
    }
    if (generation > *highest)
        *highest = generation;
    return true;
}

enum status ckpt_used_generation_max(const struct io *io, const char *store, const char *job,
                                     uint64_t *out)
{
    char folder[LIMIT_PATH];
    uint64_t highest = 0;
    if (!ckpt_name_is_good(job))
        return ST_INVALID;
    enum status st = ckpt_path(store, job, folder);
    if (st == ST_OK)
        st = io->list(io->self, folder, take_highest, &highest);
    if (st != ST_OK && st != ST_NOT_FOUND)
        return st;
    *out = highest;
    return ST_OK;
}

enum status ckpt_used_generation_write(const struct io *io, const char *store, const char *job,
                                       uint64_t generation)
{
    char folder[LIMIT_PATH], path[LIMIT_PATH], name[64];
    if (!ckpt_name_is_good(job) || generation == 0)
        return ST_INVALID;
    (void)snprintf(name, sizeof(name), CKPT_USED "%" PRIu64, generation);
    enum status st = ckpt_path(store, job, folder);
    if (st == ST_OK)
        st = ckpt_path(folder, name, path);
    if (st == ST_OK)
        st = io_mkdir_all(io, folder);
    if (st == ST_OK)
        st = io_publish(io, path, CONTENT, strlen(CONTENT));
    return st == ST_EXISTS ? ST_OK : st;
}
