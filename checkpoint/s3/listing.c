/*
 * Invariants:
 *  (1) entries is a NUL and then one entry after the other: a byte that says what it is, the name,
 *      a NUL. So before every entry there is a NUL.
 *  (2) sizes has a uint64_t for each entry, in the same order.
 */
#include "checkpoint/s3/listing.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/format/names.h"

#define NAMES_BYTES  ((size_t)64 << 20) /* of one folder */
#define ENTRY_FILE   'f'
#define ENTRY_FOLDER 'd'

struct collecting {
    struct s3_listing *listing;
    enum status st;
};

static bool collect_entry(void *arg, const char *name, bool is_folder, uint64_t size)
{
    struct collecting *c = arg;
    char kind = is_folder ? ENTRY_FOLDER : ENTRY_FILE;
    c->st = buf_append(&c->listing->entries, &kind, 1);
    if (c->st == ST_OK)
        c->st = buf_append(&c->listing->entries, name, strlen(name) + 1);
    if (c->st == ST_OK)
        c->st = buf_append(&c->listing->sizes, &size, sizeof(size));
    return c->st == ST_OK;
}

enum status s3_listing_read(struct s3_client *client, const struct s3_place *folder, uint32_t page,
                            struct s3_listing *out)
{
    struct collecting c = { .listing = out };
    buf_init(&out->entries, NAMES_BYTES);
    buf_init(&out->sizes, NAMES_BYTES);
    enum status st = buf_append(&out->entries, "", 1);
    if (st == ST_OK)
        st = s3_list(client, folder, page, collect_entry, &c);
    return st == ST_OK ? c.st : st;
}

void s3_listing_release(struct s3_listing *listing)
{
    buf_release(&listing->entries);
    buf_release(&listing->sizes);
}

/* Whether the folder X has an object bad-X beside it. */
static bool is_quarantined(const struct s3_listing *l, const char *name)
{
    struct ckpt_folder_name folder;
    char entry[S3_KEY_MAX + 16];
    if (!ckpt_folder_parse(name, &folder) || folder.quarantined)
        return false;
    int size = snprintf(entry, sizeof(entry), "_%c" CKPT_QUARANTINE "%s", ENTRY_FILE, name);
    entry[0] = '\0'; /* an entry's end, not the middle of another name */
    return size > 0 && memmem(l->entries.data, l->entries.size, entry, (size_t)size + 1) != NULL;
}

void s3_listing_walk(const struct s3_listing *l, bool is_inside_quarantined, s3_name_fn fn,
                     void *arg)
{
    if (is_inside_quarantined && !fn(arg, CKPT_MANIFEST, false, IO_SIZE_UNKNOWN))
        return;
    size_t number = 0;
    for (size_t at = 1; at < l->entries.size; at += strlen(l->entries.data + at) + 1, number++) {
        const char *name = l->entries.data + at + 1;
        bool is_folder = name[-1] == ENTRY_FOLDER;
        uint64_t size = 0;
        memcpy(&size, l->sizes.data + number * sizeof(size), sizeof(size));
        bool hidden = is_inside_quarantined ? strcmp(name, CKPT_MANIFEST) == 0
                                            : is_folder && is_quarantined(l, name);
        if (!hidden && !fn(arg, name, is_folder, size))
            return;
    }
}
