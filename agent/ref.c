#include "agent/ref.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool ref_name_is_safe(const char *name)
{
    size_t size = strnlen(name, LIMIT_NAME);
    if (size == 0 || size >= LIMIT_NAME || name[0] == '.')
        return false;
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return strspn(name, allowed) == size;
}

enum status ref_from_wire(const Cairn__V1__TrainerRef *wire, struct ref *out)
{
    if (wire == NULL || !ref_name_is_safe(wire->job) || wire->rank >= LIMIT_NUMBERS)
        return ST_INVALID;
    *out = (struct ref){ .generation = wire->generation, .rank = wire->rank };
    (void)snprintf(out->job, sizeof(out->job), "%s", wire->job);
    return ST_OK;
}

void ref_to_wire(struct ref *ref, Cairn__V1__TrainerRef *out)
{
    cairn__v1__trainer_ref__init(out);
    out->job = ref->job;
    out->generation = ref->generation;
    out->rank = ref->rank;
}

bool ref_equal(const struct ref *a, const struct ref *b)
{
    return a->generation == b->generation && a->rank == b->rank && strcmp(a->job, b->job) == 0;
}

enum status ref_files(const struct ref *ref, const struct paths *paths, struct ref_files *out)
{
    struct ref_files files;
    const char *job = ref->job;
    uint32_t g = ref->generation;
    uint32_t r = ref->rank;
    enum status st =
        paths_join(paths, files.folder, sizeof(files.folder), "jobs/%s/g%" PRIu32, job, g);
    if (st == ST_OK) {
        st = paths_join(paths, files.log, sizeof(files.log),
                        "jobs/%s/g%" PRIu32 "/r%" PRIu32 ".log", job, g, r);
    }
    if (st == ST_OK) {
        st = paths_join(paths, files.words, sizeof(files.words),
                        "jobs/%s/g%" PRIu32 "/r%" PRIu32 ".words", job, g, r);
    }
    if (st == ST_OK) {
        st = paths_join(paths, files.flight, sizeof(files.flight),
                        "jobs/%s/g%" PRIu32 "/r%" PRIu32 ".flight", job, g, r);
    }
    if (st == ST_OK) {
        st = paths_join(paths, files.program, sizeof(files.program),
                        "jobs/%s/g%" PRIu32 "/r%" PRIu32 ".program", job, g, r);
    }
    if (st == ST_OK) {
        st = paths_join(paths, files.record, sizeof(files.record),
                        "agent/%s.g%" PRIu32 ".r%" PRIu32 ".json", job, g, r);
    }
    if (st == ST_OK)
        *out = files;
    return st;
}

/* Returns the generation that a folder's name "gN" gives; 0: it is no such name. */
static uint32_t generation_of(const char *name)
{
    char *end;
    const unsigned long long number = name[0] == 'g' ? strtoull(name + 1, &end, 10) : 0;
    return number > 0 && number <= UINT32_MAX && *end == '\0' ? (uint32_t)number : 0;
}

struct ref ref_born(const struct ref *ref, const struct paths *paths)
{
    struct ref born = *ref, one = *ref;
    char folder[LIMIT_PATH];
    DIR *dir = NULL;
    if (paths_join(paths, folder, sizeof(folder), "jobs/%s", ref->job) == ST_OK)
        dir = opendir(folder);
    born.generation = 0;
    for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        struct ref_files files;
        one.generation = generation_of(entry->d_name);
        if (one.generation > born.generation && one.generation <= ref->generation &&
            ref_files(&one, paths, &files) == ST_OK && access(files.log, F_OK) == 0)
            born = one;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return born.generation > 0 ? born : *ref;
}
