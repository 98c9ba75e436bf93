#include "checkpoint/write/shard_file.h"

#include <string.h>

#include "checkpoint/format/disk.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "common/pages.h"

_Static_assert(DISK_FILE_ALIGN % IO_DIRECT_ALIGN == 0, "the last block is whole");

enum status ckpt_shard_file_init(struct ckpt_shard_file *file, size_t capacity)
{
    CHECK(capacity > 0);
    CHECK(capacity % IO_DIRECT_ALIGN == 0);
    *file = (struct ckpt_shard_file){ .fd = -1, .capacity = capacity };
    void *block = NULL;
    enum status st = pages_alloc(capacity, &block);
    if (st != ST_OK)
        return st;
    file->block = block;
    st = ckpt_hasher_new(&file->hasher);
    if (st != ST_OK)
        ckpt_shard_file_release(file);
    return st;
}

void ckpt_shard_file_release(struct ckpt_shard_file *file)
{
    ckpt_hasher_free(file->hasher);
    pages_free(file->block, file->capacity);
    *file = (struct ckpt_shard_file){ .fd = -1 };
}

size_t ckpt_shard_file_bytes(size_t capacity)
{
    return pages_bytes(capacity);
}

enum status ckpt_shard_file_create(struct ckpt_shard_file *file, const struct io *io,
                                   const char *path, uint64_t size_max)
{
    CHECK(file->fd < 0);
    int fd = -1;
    enum status st = io->open(io->self, path, IO_CREATE_NEW | IO_DIRECT, &fd);
    if (st != ST_OK)
        return st;
    io_expect(io, fd, 0, size_max);
    file->io = io;
    file->fd = fd;
    file->at = 0;
    file->used = 0;
    file->write_ns = 0;
    file->sync_ns = 0;
    ckpt_hasher_reset(file->hasher);
    return ST_OK;
}

static enum status flush_block(struct ckpt_shard_file *file)
{
    const int64_t begin_ns = clock_mono_ns();
    enum status st =
        io_write_all(file->io, file->fd, file->block, file->used, file->at - file->used);
    file->write_ns += clock_mono_ns() - begin_ns;
    file->used = 0;
    return st;
}

enum status ckpt_shard_file_put(struct ckpt_shard_file *file, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    size_t done = 0;
    CHECK(file->fd >= 0);
    while (done < size) {
        const size_t room = file->capacity - file->used, left = size - done;
        const size_t now = left < room ? left : room;
        memcpy(file->block + file->used, bytes + done, now);
        ckpt_hasher_add(file->hasher, file->block + file->used, now);
        file->used += now;
        file->at += now;
        done += now;
        enum status st = file->used == file->capacity ? flush_block(file) : ST_OK;
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

enum status ckpt_shard_file_sync(struct ckpt_shard_file *file)
{
    CHECK(file->at % IO_DIRECT_ALIGN == 0);
    enum status st = file->used > 0 ? flush_block(file) : ST_OK;
    if (st == ST_OK)
        st = fault_status("save.fsync");
    if (st != ST_OK)
        return st;
    const int64_t begin_ns = clock_mono_ns();
    st = file->io->fsync(file->io->self, file->fd);
    file->sync_ns = clock_mono_ns() - begin_ns;
    return st;
}

enum status ckpt_shard_file_close(struct ckpt_shard_file *file)
{
    const int fd = file->fd;
    CHECK(fd >= 0);
    file->fd = -1;
    return file->io->close(file->io->self, fd);
}
