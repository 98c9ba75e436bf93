#include "checkpoint/s3/quarantine.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/format/names.h"

/* Cuts the last part off; NULL: there is none. The part stays valid behind the new end. */
static char *cut_last(char *key)
{
    char *slash = strrchr(key, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    return slash + 1;
}

/* X of bad-X and bad-X.2. */
static void plain_name(const char *aside, const struct ckpt_folder_name *folder,
                       char out[S3_KEY_MAX])
{
    (void)snprintf(out, S3_KEY_MAX, "%.*s", (int)folder->plain_size,
                   aside + strlen(CKPT_QUARANTINE));
}

bool s3_place_join(const struct s3_place *folder, const char *name, struct s3_place *out)
{
    struct s3_place place = *folder;
    int size = snprintf(place.key, sizeof(place.key), "%s%s%s", folder->key,
                        folder->key[0] == '\0' ? "" : "/", name);
    if (size < 0 || (size_t)size >= sizeof(place.key))
        return false;
    *out = place;
    return true;
}

/* The folder X in job, or the file in it; and the marker. */
static bool make_path(const struct s3_place *job, const char *plain, const char *file,
                      struct s3_path *out)
{
    char name[S3_KEY_MAX + sizeof(CKPT_QUARANTINE)];
    (void)snprintf(name, sizeof(name), CKPT_QUARANTINE "%s", plain);
    return s3_place_join(job, name, &out->marker) && s3_place_join(job, plain, &out->place) &&
           (file == NULL || s3_place_join(&out->place, file, &out->place));
}

bool s3_path_parse(const char *path, struct s3_path *out)
{
    struct s3_path found = { .meaning = S3_PLAIN };
    if (!s3_place_parse(path, &found.place))
        return false;
    struct s3_place job = found.place;
    struct ckpt_folder_name folder;
    char plain[S3_KEY_MAX];
    const char *last = cut_last(job.key), *file = NULL;
    if (last == NULL) { /* a checkpoint right in the bucket has no job; nothing is set aside */
        *out = found;
        return true;
    }
    bool is_folder = ckpt_folder_parse(last, &folder);
    if (!is_folder) {
        file = last;
        last = cut_last(job.key);
        if (last == NULL || !ckpt_folder_parse(last, &folder) || !folder.quarantined) {
            *out = found;
            return true;
        }
    }
    if (!folder.quarantined) {
        (void)snprintf(plain, sizeof(plain), "%s", last);
        found.meaning = S3_STEP;
    } else {
        plain_name(last, &folder, plain);
        found.meaning = is_folder                          ? S3_ASIDE
                        : strcmp(file, CKPT_MANIFEST) == 0 ? S3_ASIDE_MANIFEST
                                                           : S3_PLAIN;
    }
    if (!make_path(&job, plain, file, &found))
        return false;
    *out = found;
    return true;
}
