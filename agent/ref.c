#include "agent/ref.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
    if (wire == NULL || !ref_name_is_safe(wire->job) || wire->rank >= LIMIT_RANKS)
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
        st = paths_join(paths, files.record, sizeof(files.record),
                        "agent/%s.g%" PRIu32 ".r%" PRIu32 ".json", job, g, r);
    }
    if (st == ST_OK)
        *out = files;
    return st;
}
