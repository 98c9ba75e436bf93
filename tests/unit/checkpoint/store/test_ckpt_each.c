/* Many files of one folder: looked at side by side, listed with their sizes, removed together. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/each_file.h"
#include "common/clock.h"
#include "tests/crash/memory_io.h"
#include "tests/test.h"

#define FILES 1000
#define DIR   "/store/j-1/step-000000000040.g2"

/* A store of many files, which counts what it is asked. */
struct far {
    struct io io;
    struct memory_io *memory;
    const struct io *real;
    struct ckpt_report *reports;
    atomic_int stats, lists, unlinks, requests;
    atomic_int inside, together; /* stats now, and at most at once */
    atomic_int crowd;            /* each stat waits until there were so many, or never come */
    bool object;
    bool refuses; /* DeleteObjects */
    bool stale;   /* what nobody has opened looks missing, or shorter */
    atomic_uchar opened[FILES];
};

static uint32_t rank_of(const char *path)
{
    return (uint32_t)strtoul(strrchr(path, '/') + strlen("/shard-"), NULL, 10);
}

static enum status far_stat(void *self, const char *path, struct io_stat *out)
{
    struct far *far = self;
    int64_t end = clock_mono_ms(clock_system()) + 20000;
    int inside = atomic_fetch_add(&far->inside, 1) + 1, most = atomic_load(&far->together);
    (void)atomic_fetch_add(&far->stats, 1);
    while (most < inside && !atomic_compare_exchange_weak(&far->together, &most, inside))
        continue;
    while (atomic_load(&far->together) < atomic_load(&far->crowd)) {
        if (clock_mono_ms(clock_system()) > end)
            atomic_store(&far->crowd, 0);
        (void)sched_yield();
    }
    enum status st = far->real->stat(far->real->self, path, out);
    if (far->stale && strstr(path, "shard-") != NULL &&
        atomic_load(&far->opened[rank_of(path)]) == 0) {
        st = rank_of(path) % 2 == 0 ? ST_NOT_FOUND : st;
        out->size = 0;
    }
    (void)atomic_fetch_sub(&far->inside, 1);
    return st;
}

static enum status far_open(void *self, const char *path, int flags, int *out_fd)
{
    struct far *far = self;
    if (strstr(path, "shard-") != NULL)
        atomic_store(&far->opened[rank_of(path)], 1);
    return far->real->open(far->real->self, path, flags, out_fd);
}

static enum status far_close(void *self, int fd)
{
    const struct far *far = self;
    return far->real->close(far->real->self, fd);
}

static enum status far_fsync_dir(void *self, const char *path)
{
    const struct far *far = self;
    return far->real->fsync_dir(far->real->self, path);
}

static enum status far_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    struct far *far = self;
    (void)atomic_fetch_add(&far->lists, 1);
    return far->real->list(far->real->self, path, fn, arg);
}

static enum status far_unlink(void *self, const char *path)
{
    struct far *far = self;
    (void)atomic_fetch_add(&far->unlinks, 1);
    return far->real->unlink(far->real->self, path);
}

static enum status far_rmdir(void *self, const char *path)
{
    const struct far *far = self;
    return far->real->rmdir(far->real->self, path);
}

static bool far_is_object(void *self, const char *path)
{
    (void)path;
    return ((struct far *)self)->object;
}

struct sizing {
    struct far *far;
    const char *path;
    io_size_fn fn;
    void *arg;
};

static bool size_name(void *arg, const char *name)
{
    const struct sizing *to = arg;
    char path[LIMIT_PATH];
    struct io_stat info;
    assert_int_equal(ckpt_path(to->path, name, path), ST_OK);
    assert_int_equal(to->far->real->stat(to->far->real->self, path, &info), ST_OK);
    return to->fn(to->arg, name, info.size);
}

static enum status far_list_sizes(void *self, const char *path, io_size_fn fn, void *arg)
{
    struct far *far = self;
    struct sizing to = { .far = far, .path = path, .fn = fn, .arg = arg };
    (void)atomic_fetch_add(&far->requests, 1);
    return far->real->list(far->real->self, path, size_name, &to);
}

static enum status far_unlink_many(void *self, const char *dir, const char *const *names,
                                   uint32_t count, bool *out_gone)
{
    struct far *far = self;
    (void)atomic_fetch_add(&far->requests, 1);
    assert_in_range(count, 2, IO_UNLINK_MAX);
    for (uint32_t i = 0; i < count && !far->refuses; i++) {
        char path[LIMIT_PATH];
        assert_int_equal(ckpt_path(dir, names[i], path), ST_OK);
        out_gone[i] = i % 100 != 7; /* some are refused */
        if (out_gone[i])
            assert_int_equal(far->real->unlink(far->real->self, path), ST_OK);
    }
    return ST_OK;
}

static int open_far(void **state)
{
    struct far *far = calloc(1, sizeof(*far));
    assert_non_null(far);
    far->memory = memory_io_new();
    far->real = memory_io_table(far->memory);
    far->io = (struct io){ .self = far,
                           .open = far_open,
                           .close = far_close,
                           .fsync_dir = far_fsync_dir,
                           .unlink = far_unlink,
                           .rmdir = far_rmdir,
                           .stat = far_stat,
                           .list = far_list,
                           .is_object = far_is_object,
                           .list_sizes = far_list_sizes,
                           .unlink_many = far_unlink_many };
    far->reports = calloc(FILES, sizeof(*far->reports));
    assert_non_null(far->reports);
    assert_int_equal(ckpt_folder_create(far->real, DIR), ST_OK);
    for (uint32_t i = 0; i < FILES; i++) {
        char path[LIMIT_PATH];
        ckpt_shard_name(i, FILES, far->reports[i].file);
        far->reports[i].rank = i;
        far->reports[i].size = i % 5 + 1;
        assert_int_equal(ckpt_path(DIR, far->reports[i].file, path), ST_OK);
        memory_io_put(far->memory, path, "12345", i % 5 + 1);
    }
    *state = far;
    return 0;
}

static int close_far(void **state)
{
    struct far *far = *state;
    assert_int_equal(memory_io_open_files(far->memory), 0);
    memory_io_free(far->memory);
    free(far->reports);
    free(far);
    return 0;
}

static void damage_file(struct far *far, uint32_t rank, uint64_t size)
{
    char path[LIMIT_PATH];
    assert_int_equal(ckpt_path(DIR, far->reports[rank].file, path), ST_OK);
    memory_io_put(far->memory, path, "123456", size);
}

static void files_are_looked_at_side_by_side(void **state)
{
    struct far *far = *state;
    atomic_store(&far->crowd, 2);
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_OK);
    assert_int_equal(atomic_load(&far->stats), FILES);
    assert_in_range(atomic_load(&far->together), 2, CKPT_AT_ONCE);
    damage_file(far, 777, 6);
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_INCOMPLETE);
    damage_file(far, 777, far->reports[777].size);
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_OK);
    far->reports[3].rank = 4;
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_INVALID);
}

/* The attributes are stale, as on NFS, which remembers them for a while. */
static void file_that_looks_missing_is_opened_before_it_counts_so(void **state)
{
    struct far *far = *state;
    far->stale = true;
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_OK);
    memset(far->opened, 0, sizeof(far->opened));
    damage_file(far, 500, 6);
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_INCOMPLETE);
}

static void sizes_of_objects_come_with_one_list(void **state)
{
    struct far *far = *state;
    far->object = true;
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_OK);
    assert_int_equal(atomic_load(&far->requests), 1);
    assert_int_equal(atomic_load(&far->stats), 0);
    damage_file(far, 12, 6);
    assert_int_equal(ckpt_commit_check(&far->io, DIR, far->reports, FILES), ST_INCOMPLETE);
    assert_in_range(atomic_load(&far->stats), 1, 4); /* of that file alone */
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    atomic_store(&far->stats, 0);
    assert_int_equal(ckpt_list(&far->io, "/store", "j-1", &entries, &count), ST_OK);
    assert_int_equal(count, 1);
    assert_int_equal(entries[0].bytes, FILES / 5 * 15 + 3); /* file 12 has 6 bytes, not 3 */
    assert_in_range(atomic_load(&far->stats), 1, 2);        /* the folder, the manifest */
    free(entries);
}

static void objects_go_with_one_request_and_those_it_left_alone(void **state)
{
    struct far *far = *state;
    far->object = true;
    assert_int_equal(ckpt_remove(&far->io, DIR), ST_OK);
    assert_false(memory_io_has(far->memory, DIR));
    assert_int_equal(atomic_load(&far->requests), 1);
    assert_int_equal(atomic_load(&far->unlinks), 1 + FILES / 100); /* the manifest; those left */
    assert_int_equal(atomic_load(&far->lists), 1);
}

static void objects_go_one_by_one_where_there_is_no_such_request(void **state)
{
    struct far *far = *state;
    far->object = far->refuses = true;
    assert_int_equal(ckpt_folder_drop(&far->io, DIR), ST_OK);
    assert_false(memory_io_has(far->memory, DIR));
    assert_int_equal(atomic_load(&far->unlinks), FILES);
}

static void files_of_a_folder_go_in_their_order(void **state)
{
    struct far *far = *state;
    assert_int_equal(ckpt_remove(&far->io, DIR), ST_OK);
    assert_false(memory_io_has(far->memory, DIR));
    assert_int_equal(atomic_load(&far->requests), 0);
    assert_int_equal(atomic_load(&far->unlinks), 1 + FILES);
}

/* ---- the calls themselves ---- */

struct calls {
    pthread_t self;
    int64_t end; /* others have come to something by then, too */
    atomic_uchar done[FILES];
    atomic_int elsewhere;
    uint32_t bad; /* fails on every thread; FILES: none */
};

static enum status call_item(void *arg, uint32_t item)
{
    struct calls *calls = arg;
    if (item == calls->bad)
        return ST_IO;
    if (!pthread_equal(pthread_self(), calls->self)) {
        (void)atomic_fetch_add(&calls->elsewhere, 1);
        return ST_TIMED_OUT;
    }
    while (atomic_load(&calls->elsewhere) == 0 && clock_mono_ms(clock_system()) < calls->end)
        (void)sched_yield();
    (void)atomic_fetch_add(&calls->done[item], 1);
    return ST_OK;
}

static void what_fails_on_another_thread_is_made_again_on_ours(void **state)
{
    (void)state;
    const int64_t end = clock_mono_ms(clock_system()) + 20000;
    struct calls calls = { .self = pthread_self(), .bad = FILES, .end = end };
    assert_int_equal(ckpt_each_file(FILES, call_item, &calls), ST_OK);
    assert_in_range(atomic_load(&calls.elsewhere), 1, CKPT_AT_ONCE - 1);
    for (uint32_t i = 0; i < FILES; i++)
        assert_int_equal(atomic_load(&calls.done[i]), 1);
    calls = (struct calls){ .self = pthread_self(), .bad = 900, .end = end };
    assert_int_equal(ckpt_each_file(FILES, call_item, &calls), ST_IO);
}

static enum status note_order(void *arg, uint32_t item)
{
    uint32_t *next = arg;
    return item == (*next)++ ? ST_OK : ST_INVALID;
}

static void few_are_done_in_order_by_the_caller(void **state)
{
    (void)state;
    uint32_t next = 0;
    assert_int_equal(ckpt_each_file(2 * CKPT_EACH_LEAST - 1, note_order, &next), ST_OK);
    assert_int_equal(next, 2 * CKPT_EACH_LEAST - 1);
    assert_int_equal(ckpt_each_file(0, note_order, &next), ST_OK);
}

#define FAR(name) cmocka_unit_test_setup_teardown(name, open_far, close_far)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAR(files_are_looked_at_side_by_side),
        FAR(file_that_looks_missing_is_opened_before_it_counts_so),
        FAR(sizes_of_objects_come_with_one_list),
        FAR(objects_go_with_one_request_and_those_it_left_alone),
        FAR(objects_go_one_by_one_where_there_is_no_such_request),
        FAR(files_of_a_folder_go_in_their_order),
        cmocka_unit_test(what_fails_on_another_thread_is_made_again_on_ours),
        cmocka_unit_test(few_are_done_in_order_by_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
