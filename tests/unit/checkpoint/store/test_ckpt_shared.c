/*
 * A folder that several machines see: names that are seen late, sizes that are old, files that are
 * still open when they are removed, handles that the server forgot.
 */
#include <stdio.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "checkpoint/store/store.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define DIR   SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000040.g2"
#define NEVER UINT32_MAX

/* A machine's view of files in memory. What it remembers wrongly concerns paths that end in
 * `about`. */
struct view {
    struct io io;
    const struct io *below;
    const char *about;
    uint32_t lists_left;   /* readings of a folder until the name is seen */
    uint64_t old_size;     /* that stat tells, while the file isn't open; 0: the true one */
    uint32_t opened;       /* that file is open, so often */
    uint32_t lists, waits; /* calls */
    uint32_t waits_max;
    enum status on_read; /* what reading that file comes to; ST_OK: its bytes */
    int read_fd;
};

static bool is_about(const struct view *view, const char *path)
{
    size_t size = strlen(path), end = view->about == NULL ? 0 : strlen(view->about);
    return end > 0 && size >= end && strcmp(path + size - end, view->about) == 0;
}

static enum status view_open(void *self, const char *path, int flags, int *out_fd)
{
    struct view *view = self;
    if (is_about(view, path) && view->lists_left > 0)
        return ST_NOT_FOUND;
    enum status st = view->below->open(view->below->self, path, flags, out_fd);
    if (st == ST_OK && is_about(view, path)) {
        view->opened++;
        view->read_fd = *out_fd;
    }
    return st;
}

static enum status view_close(void *self, int fd)
{
    struct view *view = self;
    if (fd == view->read_fd)
        view->read_fd = -1;
    return view->below->close(view->below->self, fd);
}

static enum status view_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                              size_t *out_size)
{
    const struct view *view = self;
    if (fd == view->read_fd && view->on_read != ST_OK)
        return view->on_read;
    return view->below->pread(view->below->self, fd, data, size, at, out_size);
}

static enum status view_stat(void *self, const char *path, struct io_stat *out)
{
    const struct view *view = self;
    if (is_about(view, path) && view->lists_left > 0)
        return ST_NOT_FOUND;
    enum status st = view->below->stat(view->below->self, path, out);
    if (st == ST_OK && is_about(view, path) && view->old_size > 0 && view->opened == 0)
        out->size = view->old_size;
    return st;
}

static enum status view_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    struct view *view = self;
    view->lists++;
    if (view->lists_left > 0 && view->lists_left != NEVER)
        view->lists_left--;
    return view->below->list(view->below->self, path, fn, arg);
}

static enum status view_fsync_dir(void *self, const char *path)
{
    const struct view *view = self;
    return view->below->fsync_dir(view->below->self, path);
}

static bool view_seen_late(void *self, const char *path)
{
    (void)self;
    (void)path;
    return true;
}

static bool view_waiting(void *arg)
{
    struct view *view = arg;
    return ++view->waits < view->waits_max;
}

static void view_init(struct view *view, const struct io *below, const char *about)
{
    *view = (struct view){ .below = below, .about = about, .waits_max = 3, .read_fd = -1 };
    view->io = (struct io){ .self = view,
                            .waiting = view_waiting,
                            .waiting_arg = view,
                            .open = view_open,
                            .close = view_close,
                            .pread = view_pread,
                            .stat = view_stat,
                            .list = view_list,
                            .fsync_dir = view_fsync_dir,
                            .seen_late = view_seen_late };
}

/* A checkpoint of two ranks. */
static int set_up(void **state)
{
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, 300);
    store_fixture_save(f, 2, NULL);
    *state = f;
    return 0;
}

/* What the coordinator does when all reports are in. */
static enum status check_commit(struct store_fixture *f, const struct io *io)
{
    struct ckpt_manifest manifest;
    struct ckpt_report reports[2] = { 0 };
    assert_int_equal(ckpt_manifest_read(f->io, DIR, &manifest, NULL), ST_OK);
    for (uint32_t i = 0; i < 2; i++) {
        reports[i].rank = i;
        reports[i].size = manifest.files[i].size;
        (void)snprintf(reports[i].file, sizeof(reports[i].file), "%s", manifest.files[i].name);
    }
    ckpt_manifest_release(&manifest);
    return ckpt_commit_check(io, DIR, reports, 2);
}

static enum status restore(struct store_fixture *f, const struct io *io)
{
    bool equal = false;
    enum status st = sample_compare(io, DIR, &f->sample, &equal);
    assert_true(st != ST_OK || equal);
    return st;
}

static void what_is_seen_at_once_is_not_waited_for(void **state)
{
    struct store_fixture *f = *state;
    struct view view;
    view_init(&view, f->io, NULL);
    assert_int_equal(check_commit(f, &view.io), ST_OK);
    ckpt_await(&view.io, DIR);
    assert_int_equal(restore(f, &view.io), ST_OK);
    assert_int_equal(view.lists, 0);
    assert_int_equal(view.waits, 0);
}

static void a_file_that_is_seen_late_is_looked_for_again(void **state)
{
    struct store_fixture *f = *state;
    struct view view;
    view_init(&view, f->io, "shard-00001-of-00002.cairn");
    view.lists_left = 2;
    assert_int_equal(check_commit(f, &view.io), ST_OK);
    assert_int_equal(view.lists, 2);
    view.lists_left = 2;
    assert_int_equal(restore(f, &view.io), ST_OK);
    view.lists_left = 1;
    assert_int_equal(ckpt_verify(&view.io, DIR, NULL, NULL, NULL), ST_OK);
    view_init(&view, f->io, CKPT_MANIFEST);
    view.lists_left = 2;
    ckpt_await(&view.io, DIR);
    assert_int_equal(view.lists, 2);
    assert_int_equal(restore(f, &view.io), ST_OK);
}

static void a_mark_that_is_seen_late_is_waited_for(void **state)
{
    struct store_fixture *f = *state;
    static const char nonce[] = "00112233445566778899aabbccddeeff";
    char mark[CKPT_MARK];
    struct view view;
    assert_int_equal(ckpt_store_id_write(f->io, SAMPLE_STORE, SAMPLE_JOB, nonce), ST_OK);
    view_init(&view, f->io, CKPT_MARK_NAME);
    view.lists_left = 1;
    ckpt_store_id_await(&view.io, SAMPLE_STORE, SAMPLE_JOB);
    assert_int_equal(ckpt_store_id_read(&view.io, SAMPLE_STORE, SAMPLE_JOB, mark), ST_OK);
    assert_string_equal(mark, nonce);
}

/* Bounded, and for all files together. */
static void what_stays_missing_is_missing(void **state)
{
    struct store_fixture *f = *state;
    struct view view;
    struct io_stat info;
    view_init(&view, f->io, "shard-00001-of-00002.cairn");
    view.lists_left = NEVER;
    assert_int_equal(check_commit(f, &view.io), ST_INCOMPLETE);
    assert_int_equal(view.waits, 3);
    assert_int_equal(restore(f, &view.io), ST_INCOMPLETE);
    view.waits = 0;
    assert_int_equal(io_find(&view.io, DIR "/shard-00001-of-00002.cairn", 1, 0, &info),
                     ST_NOT_FOUND); /* whose time is over */
    assert_int_equal(view.waits, 0);
    view.io.seen_late = NULL; /* a file system of this machine: at once */
    view.lists = 0;
    assert_int_equal(check_commit(f, &view.io), ST_INCOMPLETE);
    assert_int_equal(view.lists, 0);
}

static void an_old_size_is_asked_for_anew(void **state)
{
    struct store_fixture *f = *state;
    struct view view;
    view_init(&view, f->io, "shard-00000-of-00002.cairn");
    view.old_size = 4096;
    assert_int_equal(check_commit(f, &view.io), ST_OK);
    assert_int_equal(view.opened, 1);
    view.opened = 0;
    assert_int_equal(restore(f, &view.io), ST_OK);
    assert_int_equal(view.waits, 0);
}

static void a_forgotten_handle_is_the_stores_and_no_damage(void **state)
{
    struct store_fixture *f = *state;
    static const char *const files[] = { CKPT_MANIFEST, "shard-00000-of-00002.cairn" };
    static const enum status troubles[] = { ST_FORGOTTEN, ST_AWAY };
    for (size_t i = 0; i < 4; i++) {
        struct view view;
        view_init(&view, f->io, files[i / 2]);
        view.on_read = troubles[i % 2];
        assert_int_equal(restore(f, &view.io), troubles[i % 2]);
        assert_int_equal(ckpt_verify(&view.io, DIR, NULL, store_fixture_note, f), troubles[i % 2]);
        assert_string_equal(f->lines, "");
    }
}

/* ---- removed while they are open ---- */

static void a_file_that_is_still_open_is_waited_for(void **state)
{
    struct store_fixture *f = *state;
    memory_io_put(f->memory, DIR "/.nfs000000000012", "x", 1);
    assert_int_equal(store_fixture_verify(f, DIR, NULL), ST_OK);
    assert_string_equal(f->lines, ""); /* no remark either */
    assert_int_equal(ckpt_remove(f->io, DIR), ST_AGAIN);
    assert_false(memory_io_has(f->memory, DIR "/shard-00000-of-00002.cairn"));
    assert_true(memory_io_has(f->memory, DIR "/.nfs000000000012"));
    assert_int_equal(ckpt_folder_drop(f->io, DIR), ST_AGAIN);
    assert_int_equal(f->io->unlink(f->io->self, DIR "/.nfs000000000012"), ST_OK); /* closed */
    assert_int_equal(ckpt_folder_drop(f->io, DIR), ST_OK);
    assert_false(memory_io_has(f->memory, DIR));
}

/* Beside somebody else's file nothing is waited for: the folder stays anyway. */
static void foreign_files_count_more_than_open_ones(void **state)
{
    struct store_fixture *f = *state;
    memory_io_put(f->memory, DIR "/.nfs000000000012", "x", 1);
    memory_io_put(f->memory, DIR "/notes.txt", "x", 1);
    assert_int_equal(ckpt_remove(f->io, DIR), ST_OK);
    assert_true(memory_io_has(f->memory, DIR "/notes.txt"));
}

/* An unlink of a file that is open on this machine. */
static enum status unlink_open(void *self, const char *path)
{
    const struct view *view = self;
    if (is_about(view, path))
        return view->below->rename(view->below->self, path, DIR "/.nfs000000000034");
    return view->below->unlink(view->below->self, path);
}

static enum status view_rmdir(void *self, const char *path)
{
    const struct view *view = self;
    return view->below->rmdir(view->below->self, path);
}

static void a_file_that_turns_out_to_be_open_is_waited_for(void **state)
{
    struct store_fixture *f = *state;
    struct view view;
    view_init(&view, f->io, "shard-00001-of-00002.cairn");
    view.io.unlink = unlink_open;
    view.io.rmdir = view_rmdir;
    assert_int_equal(ckpt_remove(&view.io, DIR), ST_AGAIN);
    assert_true(memory_io_has(f->memory, DIR "/.nfs000000000034"));
    assert_int_equal(f->io->unlink(f->io->self, DIR "/.nfs000000000034"), ST_OK);
    assert_int_equal(ckpt_remove(f->io, DIR), ST_OK);
    assert_false(memory_io_has(f->memory, DIR));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, store_fixture_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_seen_at_once_is_not_waited_for),
        TEST(a_file_that_is_seen_late_is_looked_for_again),
        TEST(a_mark_that_is_seen_late_is_waited_for),
        TEST(what_stays_missing_is_missing),
        TEST(an_old_size_is_asked_for_anew),
        TEST(a_forgotten_handle_is_the_stores_and_no_damage),
        TEST(a_file_that_is_still_open_is_waited_for),
        TEST(foreign_files_count_more_than_open_ones),
        TEST(a_file_that_turns_out_to_be_open_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
