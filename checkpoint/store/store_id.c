/* A store's mark: one line of a fixed size, "cairn-mark-1 " and 32 hex digits. */
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/store.h"
#include "common/cleanup.h"

#define FORM      "cairn-mark-1 %s\n"
#define FORM_SIZE (13 + CKPT_MARK) /* the newline in the NUL's place */

static enum status store_id_path(const char *store, const char *job, char folder[LIMIT_PATH],
                                 char path[LIMIT_PATH])
{
    if (!ckpt_name_is_good(job))
        return ST_INVALID;
    enum status st = ckpt_path(store, job, folder);
    return st == ST_OK ? ckpt_path(folder, CKPT_MARK_NAME, path) : st;
}

enum status ckpt_store_id_read(const struct io *io, const char *store, const char *job,
                               char out[CKPT_MARK])
{
    char folder[LIMIT_PATH], path[LIMIT_PATH], again[FORM_SIZE + 1], mark[CKPT_MARK];
    auto_free char *text = NULL;
    size_t size = 0;
    struct ckpt_hash nonce;
    enum status st = store_id_path(store, job, folder, path);
    if (st == ST_OK)
        st = io_read_file(io, path, FORM_SIZE, &text, &size);
    if (st == ST_FULL) /* longer */
        return ST_CORRUPT;
    if (st != ST_OK)
        return st;
    if (size != FORM_SIZE)
        return ST_CORRUPT;
    (void)snprintf(mark, sizeof(mark), "%.32s", text + 13);
    (void)snprintf(again, sizeof(again), FORM, mark);
    if (ckpt_hash_parse(mark, &nonce) != ST_OK || memcmp(again, text, FORM_SIZE) != 0)
        return ST_CORRUPT;
    memcpy(out, mark, sizeof(mark));
    return ST_OK;
}

void ckpt_store_id_await(const struct io *io, const char *store, const char *job)
{
    char folder[LIMIT_PATH], path[LIMIT_PATH];
    struct io_stat info;
    if (io->seen_late == NULL || !io->seen_late(io->self, store) ||
        store_id_path(store, job, folder, path) != ST_OK)
        return;
    (void)!io_find(io, path, IO_SIZE_UNKNOWN, io_find_until(), &info);
}

enum status ckpt_store_id_write(const struct io *io, const char *store, const char *job,
                                const char *mark)
{
    char folder[LIMIT_PATH], path[LIMIT_PATH], text[FORM_SIZE + 1];
    enum status st = store_id_path(store, job, folder, path);
    if (st != ST_OK)
        return st;
    int size = snprintf(text, sizeof(text), FORM, mark);
    if (size != FORM_SIZE)
        return ST_INVALID;
    st = io_mkdir_all(io, folder);
    return st == ST_OK ? io_publish(io, path, text, (size_t)size) : st;
}
