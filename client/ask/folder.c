#include "client/ask/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/disk.h"
#include "checkpoint/format/names.h"
#include "common/cleanup.h"

/* The beginning of every version's manifest, from the first to those to come. */
#define FIRST_KEY "{\"cairn_checkpoint\":"

static bool count_file(void *arg, const char *name)
{
    struct folder *folder = arg;
    if (strcmp(name, CKPT_MANIFEST) == 0) {
        folder->manifest = FOLDER_FOREIGN; /* until its bytes are seen */
    } else if (ckpt_file_is_ours(name)) {
        folder->ours++;
        folder->shards += strncmp(name, "shard-", 6) == 0;
    } else if (!ckpt_file_is_held(name) && folder->others++ < FOLDER_OTHERS_MAX) {
        (void)snprintf(folder->other[folder->others - 1], LIMIT_NAME, "%s", name);
    }
    return true;
}

/* Judges the manifest, if the file is one. */
static enum status look_at_manifest(const struct io *io, const char *path, struct folder *folder)
{
    char file[LIMIT_PATH];
    auto_free char *bytes = NULL;
    size_t size = 0;
    struct ckpt_manifest manifest;
    enum status st = ckpt_path(path, CKPT_MANIFEST, file);
    if (st == ST_OK)
        st = io_read_file(io, file, (size_t)LIMIT_MANIFEST_BYTES, &bytes, &size);
    if (st == ST_FULL || st == ST_INVALID || st == ST_INCOMPLETE)
        return ST_OK; /* a folder, or no manifest's size */
    if (st != ST_OK)
        return st;
    if (size < strlen(FIRST_KEY) || memcmp(bytes, FIRST_KEY, strlen(FIRST_KEY)) != 0)
        return ST_OK;
    struct reason unwanted;
    st = ckpt_manifest_parse(bytes, size, &manifest, &unwanted);
    if (st == ST_NO_MEMORY)
        return st;
    /* The end of another version's manifest may be different, too. */
    bool version = strtoull(bytes + strlen(FIRST_KEY), NULL, 10) != DISK_VERSION;
    folder->manifest = st == ST_OK ? FOLDER_WHOLE : version ? FOLDER_OTHER_VERSION : FOLDER_DAMAGED;
    if (st == ST_OK)
        ckpt_manifest_release(&manifest);
    return ST_OK;
}

bool folder_is_named(const char *path)
{
    char base[LIMIT_PATH];
    struct ckpt_folder_name name;
    return ckpt_basename(path, base) == ST_OK && ckpt_folder_parse(base, &name);
}

enum status folder_look(const struct io *io, const char *path, struct folder *out)
{
    *out = (struct folder){ .named = folder_is_named(path) };
    enum status st = io->list(io->self, path, count_file, out);
    if (st == ST_OK && out->manifest == FOLDER_FOREIGN)
        st = look_at_manifest(io, path, out);
    if (st == ST_NOT_FOUND)
        out->manifest = FOLDER_NO_MANIFEST;
    if (st != ST_OK)
        return st;
    /* Damage may begin at the first byte. */
    if (out->manifest == FOLDER_FOREIGN && out->shards > 0)
        out->manifest = FOLDER_DAMAGED;
    const bool foreign = out->manifest == FOLDER_FOREIGN;
    out->ours += out->manifest != FOLDER_NO_MANIFEST && !foreign;
    if (foreign && out->others++ < FOLDER_OTHERS_MAX)
        (void)snprintf(out->other[out->others - 1], LIMIT_NAME, "%s", CKPT_MANIFEST);
    return ST_OK;
}

bool folder_is_checkpoint(const struct folder *folder)
{
    return folder->named || folder->manifest > FOLDER_FOREIGN;
}
