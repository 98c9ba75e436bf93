/* What a crash leaves: the record played again, without what wasn't safe. */
#include "common/check.h"
#include "common/rng.h"
#include "tests/crash/memory_internal.h"

/* Whether a sync among changes i+1 .. end-1 makes change i safe. */
static bool is_safe(const struct memory_io *memory, size_t i, size_t end)
{
    const struct change *change = &memory->changes[i];
    if (change->safe || change->kind == FSYNC || change->kind == FSYNC_DIR)
        return true;
    const char *path = change->to != NULL ? change->to : change->path;
    for (size_t k = i + 1; k < end; k++) {
        const struct change *sync = &memory->changes[k];
        if (change->kind == WRITE ? sync->kind == FSYNC && sync->inode == change->inode
                                  : sync->kind == FSYNC_DIR && memory_within(path, sync->path))
            return true;
    }
    return false;
}

/* What choice says about loose change number k of `loose`: 0 lost, 1 half of it, 2 whole. */
static int verdict(uint64_t choice, size_t k, size_t loose)
{
    if (choice < 2 || choice == MEMORY_IO_KILL)
        return choice == 0 ? 0 : 2;
    choice -= 2;
    if (choice < loose)
        return choice == k ? 2 : 0;
    choice -= loose;
    if (choice < loose)
        return choice == k ? 0 : 2;
    struct rng_counter words = rng_words(choice, (uint32_t)k, 0, 0, 0);
    return (int)rng_below(words.word[0], 3);
}

static void replay(struct memory_io *memory, const struct change *change, bool half)
{
    struct name *name = change->path == NULL ? NULL : memory_find(memory, change->path);
    const char *made = change->to != NULL ? change->to : change->path;
    bool free_place =
        made != NULL && memory_find(memory, made) == NULL && memory_parent_there(memory, made);
    switch (change->kind) {
    case CREATE:
        if (free_place)
            memory_add_name(memory, change->path, false, change->inode);
        break;
    case WRITE:
        memory_write_bytes(&memory->inodes[change->inode], change->data,
                           half ? change->size / 2 : change->size, change->at);
        break;
    case LINK: /* the new name holds, whatever became of the old one */
        if (free_place)
            memory_add_name(memory, change->to, false, change->inode);
        break;
    case RENAME:
        if (name != NULL && free_place)
            memory_rename_within(memory, change->path, change->to);
        break;
    case MKDIR:
        if (free_place)
            memory_add_name(memory, change->path, true, 0);
        break;
    case UNLINK:
        if (name != NULL)
            memory_drop_name(memory, name);
        break;
    case RMDIR:
        if (name != NULL && memory_empty(memory, change->path))
            memory_drop_name(memory, name);
        break;
    case FSYNC:
    case FSYNC_DIR:
        break;
    }
}

/* What survived is the beginning of the new record. */
static void keep(struct memory_io *memory, const struct change *change, bool half, bool safe)
{
    size_t size = half ? change->size / 2 : change->size;
    struct change *kept =
        change->kind == WRITE
            ? memory_record_write(memory, change->inode, change->data, size, change->at)
            : memory_record(memory, change->kind, change->path, change->to, change->inode);
    kept->safe = safe;
}

struct memory_io *memory_io_crash(const struct memory_io *memory, size_t changes, uint64_t choice,
                                  size_t *out_loose)
{
    CHECK(changes <= memory->change_count);
    struct memory_io *after = memory_io_new();
    while (after->inode_count < memory->inode_count)
        (void)memory_add_inode(after);
    size_t loose = 0;
    for (size_t i = 0; i < changes; i++)
        loose += !is_safe(memory, i, changes);
    for (size_t i = 0, k = 0; i < changes; i++) {
        int how = is_safe(memory, i, changes) ? 2 : verdict(choice, k++, loose);
        if (how > 0) {
            replay(after, &memory->changes[i], how == 1);
            keep(after, &memory->changes[i], how == 1,
                 choice != MEMORY_IO_KILL || memory->changes[i].safe);
        }
    }
    *out_loose = loose;
    return after;
}
