/*
 * The library's whole protocol on an S3 store. test_s3.py runs this program with a server, settings
 * in the environment, and CAIRN_TEST_S3 naming a place of its own (s3://bucket/prefix).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/s3/object.h"
#include "checkpoint/s3/s3.h"
#include "common/cleanup.h"
#include "tests/s3/s3_world.h"

#define COMMITTERS 6

static bool is_there(struct world *w, const char *path)
{
    struct io_stat info;
    enum status st = w->io->stat(w->io->self, path, &info);
    if (st != ST_NOT_FOUND)
        world_check(w, st, ST_OK, path);
    return st == ST_OK;
}

/* ---- files ---- */

static void file_appears_with_its_fsync(void **state)
{
    struct world *w = *state;
    char path[LIMIT_PATH];
    auto_free char *data = world_pattern(BIG);
    static const size_t sizes[] = { 0, 1, S3_PART_BYTES_MIN, S3_PART_BYTES_MIN + 1, BIG };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char name[32];
        int fd = -1;
        (void)snprintf(name, sizeof(name), "file-%zu", i);
        world_path(w, name, path);
        world_check(w, w->io->open(w->io->self, path, IO_CREATE_NEW, &fd), ST_OK, "open");
        world_check(w, io_write_all(w->io, fd, data, sizes[i], 0), ST_OK, "write");
        assert_false(is_there(w, path));
        world_check(w, w->io->fsync(w->io->self, fd), ST_OK, "fsync");
        assert_true(is_there(w, path));
        assert_int_equal(w->io->close(w->io->self, fd), ST_OK);
        auto_free char *back = NULL;
        size_t size = 0;
        world_check(w, io_read_file(w->io, path, BIG, &back, &size), ST_OK, "read");
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(back, data, size);
    }
}

static void file_without_fsync_was_never_there(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = { 100, BIG };
    auto_free char *data = world_pattern(BIG);
    char path[LIMIT_PATH];
    world_path(w, "file", path);
    for (size_t i = 0; i < 2; i++) {
        int fd = -1;
        world_check(w, w->io->open(w->io->self, path, IO_CREATE_NEW, &fd), ST_OK, "open");
        world_check(w, io_write_all(w->io, fd, data, sizes[i], 0), ST_OK, "write");
        assert_int_equal(w->io->close(w->io->self, fd), ST_OK);
        assert_false(is_there(w, path));
    }
}

static void file_is_never_written_over(void **state)
{
    struct world *w = *state;
    char path[LIMIT_PATH];
    static const size_t sizes[] = { 3, BIG };
    auto_free char *data = world_pattern(BIG);
    world_path(w, "file", path);
    int early[2] = { -1, -1 }, late = -1;
    for (size_t i = 0; i < 2; i++) {
        world_check(w, w->io->open(w->io->self, path, IO_CREATE_NEW, &early[i]), ST_OK, "open");
        world_check(w, io_write_all(w->io, early[i], data, sizes[i], 0), ST_OK, "write");
    }
    world_write(w, path, "first", 5, 5);
    assert_int_equal(w->io->open(w->io->self, path, IO_CREATE_NEW, &late), ST_EXISTS);
    for (size_t i = 0; i < 2; i++) {
        world_check(w, w->io->fsync(w->io->self, early[i]), ST_EXISTS, "fsync of a late one");
        assert_int_equal(w->io->close(w->io->self, early[i]), ST_OK);
    }
    world_check(w, w->io->put_new(w->io->self, path, "x", 1), ST_EXISTS, "put_new");
    auto_free char *back = NULL;
    size_t size = 0;
    world_check(w, io_read_file(w->io, path, 100, &back, &size), ST_OK, "read");
    assert_string_equal(back, "first");
    world_check(w, w->io->unlink(w->io->self, path), ST_OK, "unlink");
    assert_false(is_there(w, path));
}

static void file_is_written_from_front_to_back_only(void **state)
{
    struct world *w = *state;
    char path[LIMIT_PATH];
    int fd = -1;
    size_t done = 0;
    world_path(w, "file", path);
    world_check(w, w->io->open(w->io->self, path, IO_CREATE_NEW, &fd), ST_OK, "open");
    world_check(w, io_write_all(w->io, fd, "abc", 3, 0), ST_OK, "write");
    assert_int_equal(w->io->pwrite(w->io->self, fd, "d", 1, 4, &done), ST_INVALID);
    assert_int_equal(w->io->pwrite(w->io->self, fd, "d", 1, 2, &done), ST_INVALID);
    assert_int_equal(w->io->pread(w->io->self, fd, &done, 1, 0, &done), ST_INVALID);
    world_check(w, w->io->fsync(w->io->self, fd), ST_OK, "fsync");
    assert_int_equal(w->io->pwrite(w->io->self, fd, "d", 1, 3, &done), ST_REFUSED);
    assert_int_equal(w->io->close(w->io->self, fd), ST_OK);
    assert_int_equal(w->io->close(w->io->self, fd), ST_INVALID);
}

static void reads_in_any_order_give_the_same_bytes(void **state)
{
    struct world *w = *state;
    char path[LIMIT_PATH];
    auto_free char *data = world_pattern(BIG), *back = malloc(BIG);
    assert_non_null(back);
    world_path(w, "file", path);
    world_write(w, path, data, BIG, 70001);
    int fd = -1;
    world_check(w, w->io->open(w->io->self, path, IO_READ, &fd), ST_OK, "open");
    for (size_t at = 0; at < BIG; at += 999983) { /* in order, over the borders of blocks */
        size_t now = BIG - at < 999983 ? BIG - at : 999983;
        world_check(w, io_read_all(w->io, fd, back + at, now, at), ST_OK, "read in order");
    }
    assert_memory_equal(back, data, BIG);
    static const size_t places[] = { BIG - 64, 0, BIG / 2, BIG / 2 + 4096, 5, BIG / 3 };
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        world_check(w, io_read_all(w->io, fd, back, 64, places[i]), ST_OK, "read");
        assert_memory_equal(back, data + places[i], 64);
        world_check(w,
                    io_read_all(w->io, fd, back, 1000, places[i] + 64 < BIG ? places[i] + 64 : 0),
                    ST_OK, "read on");
        assert_memory_equal(back, data + (places[i] + 64 < BIG ? places[i] + 64 : 0), 1000);
    }
    size_t done = 1;
    assert_int_equal(w->io->pread(w->io->self, fd, back, 10, BIG, &done), ST_OK);
    assert_int_equal(done, 0);
    assert_int_equal(io_read_all(w->io, fd, back, 10, BIG - 5), ST_INCOMPLETE);
    assert_int_equal(w->io->close(w->io->self, fd), ST_OK);
}

static bool append_name(void *arg, const char *name)
{
    char *all = arg;
    (void)snprintf(all + strlen(all), 1000 - strlen(all), "%s,", name);
    return strcmp(name, "stop") != 0;
}

static void folders_list_files_and_folders_over_pages(void **state)
{
    struct world *w = *state;
    static const char *const names[] = {
        "b", "a/1", "a/2", "a b+c%d", "c/d/e", "d", "e", "f", "h/x"
    };
    char path[LIMIT_PATH], all[1000] = "";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        world_path(w, names[i], path);
        world_check(w, w->io->put_new(w->io->self, path, "", 0), ST_OK, names[i]);
    }
    world_check(w, w->io->list(w->io->self, w->store, append_name, all), ST_OK, "list");
    static const char *const under[] = { "a b+c%d", "a", "b", "c", "d", "e", "f", "h" };
    size_t length = 0;
    for (size_t i = 0; i < sizeof(under) / sizeof(under[0]); i++) {
        char entry[32];
        length += (size_t)snprintf(entry, sizeof(entry), "%s,", under[i]);
        assert_non_null(strstr(all, entry));
    }
    assert_int_equal(strlen(all), length);
    all[0] = '\0';
    world_path(w, "c", path);
    world_check(w, w->io->list(w->io->self, path, append_name, all), ST_OK, "list");
    assert_string_equal(all, "d,");
    world_path(w, "nothing", path);
    world_check(w, w->io->list(w->io->self, path, append_name, all), ST_OK, "list of nothing");
    assert_string_equal(all, "d,");
    struct io_stat info;
    world_path(w, "c", path);
    world_check(w, w->io->stat(w->io->self, path, &info), ST_OK, "stat of a folder");
    assert_true(info.is_dir);
    world_path(w, "h/x", path);
    world_check(w, w->io->stat(w->io->self, path, &info), ST_OK, "stat of a file");
    assert_false(info.is_dir);
    assert_true(info.mtime_ms > 0);
    world_path(w, "h/y", path);
    assert_false(is_there(w, path));
}

/* ---- checkpoints ---- */

static void save(struct world *w, uint64_t elements, uint64_t step, char dir[LIMIT_PATH])
{
    struct sample sample;
    auto_buf struct buf manifest;
    bool equal = false;
    buf_init(&manifest, (size_t)LIMIT_MANIFEST_BYTES);
    sample_init(&sample, elements, step, 2);
    world_step(w, step, dir);
    world_check(w, sample_write(w->io, &sample, 2, NULL, dir, &manifest), ST_OK, "saving");
    world_check(w, ckpt_manifest_publish(w->io, dir, manifest.data, manifest.size), ST_OK,
                "publishing");
    world_check(w, ckpt_manifest_publish(w->io, dir, manifest.data, manifest.size), ST_OK,
                "once more");
    world_check(w, ckpt_manifest_publish(w->io, dir, "x", 1), ST_EXISTS, "something else");
    world_check(w, ckpt_folder_create(w->io, dir), ST_EXISTS, "the folder again");
    world_check(w, sample_compare(w->io, dir, &sample, &equal), ST_OK, "reading back");
    assert_true(equal);
    sample_release(&sample);
}

static struct ckpt_entry *list(struct world *w, size_t count)
{
    struct ckpt_entry *entries = NULL;
    size_t found = 0;
    world_check(w, ckpt_list(w->io, w->store, SAMPLE_JOB, &entries, &found), ST_OK, "ckpt_list");
    assert_int_equal(found, count);
    return entries;
}

static void checkpoint_is_saved_listed_verified_and_removed(void **state)
{
    struct world *w = *state;
    char dir[2][LIMIT_PATH];
    free(list(w, 0));
    save(w, SAMPLE_SIZE, 40, dir[0]);
    save(w, 300, 50, dir[1]);
    auto_free struct ckpt_entry *both = list(w, 2);
    assert_string_equal(both[0].dir, dir[1]);
    assert_string_equal(both[1].dir, dir[0]);
    assert_true(both[0].committed && both[1].committed);
    assert_true(both[1].bytes > 2 * S3_PART_BYTES_MIN);
    world_check(w, ckpt_verify(w->io, dir[0], NULL, world_print, NULL), ST_OK, "ckpt_verify");
    struct ckpt_hash digest;
    world_check(w, ckpt_digest(w->io, dir[0], &digest), ST_OK, "ckpt_digest");
    assert_memory_equal(&digest, &both[1].digest, sizeof(digest));
    world_check(w, ckpt_remove(w->io, dir[0]), ST_OK, "ckpt_remove");
    world_check(w, ckpt_remove(w->io, dir[0]), ST_OK, "ckpt_remove again");
    assert_false(is_there(w, dir[0]));
    free(list(w, 1));
}

/* Leaves parts as a killed process does; test_s3.py sees that they are gone. */
static void parts_of_a_killed_worker_are_given_up_later(void **state)
{
    struct world *w = *state;
    char dir[LIMIT_PATH], path[LIMIT_PATH + 8];
    struct reason why;
    struct s3_options options = world_options();
    struct world killed = { .s3 = NULL };
    auto_free char *data = world_pattern(BIG);
    assert_int_equal(s3_new(&options, &killed.s3, &why), ST_OK);
    killed.io = s3_io(killed.s3);
    world_step(w, 40, dir); /* of generation 2 */
    (void)snprintf(path, sizeof(path), "%s/shard", dir);
    int fd = -1;
    world_check(&killed, killed.io->open(killed.io->self, path, IO_CREATE_NEW, &fd), ST_OK, "open");
    world_check(&killed, io_write_all(killed.io, fd, data, BIG, 0), ST_OK, "write");
    s3_close(killed.s3); /* nothing goes out any more, no abort either */
    assert_int_equal(killed.io->fsync(killed.io->self, fd), ST_CLOSED);
    s3_free(killed.s3);
    assert_int_equal(ckpt_folder_path(w->store, SAMPLE_JOB, 50, 3, 0, dir, sizeof(dir)), ST_OK);
    world_check(w, ckpt_folder_create(w->io, dir), ST_OK, "the next generation's folder");
}

static void save_that_did_not_finish_is_none(void **state)
{
    struct world *w = *state;
    struct sample sample;
    auto_buf struct buf manifest;
    char dir[LIMIT_PATH];
    buf_init(&manifest, (size_t)LIMIT_MANIFEST_BYTES);
    sample_init(&sample, 300, 40, 2);
    world_step(w, 40, dir);
    world_check(w, sample_write(w->io, &sample, 2, NULL, dir, &manifest), ST_OK, "saving");
    auto_free struct ckpt_entry *entry = list(w, 1);
    assert_false(entry->committed);
    assert_false(entry->damaged);
    struct ckpt_manifest none;
    assert_int_equal(ckpt_manifest_read(w->io, dir, &none, NULL), ST_NOT_FOUND);
    struct ckpt_report report;
    assert_int_equal(ckpt_shard_write(w->io, dir, &sample.state, 0, 2, NULL, &report), ST_EXISTS);
    buf_clear(&manifest); /* the folder is emptied first */
    world_check(w, sample_write(w->io, &sample, 2, NULL, dir, &manifest), ST_OK, "saving again");
    world_check(w, ckpt_manifest_publish(w->io, dir, manifest.data, manifest.size), ST_OK,
                "publishing");
    world_check(w, ckpt_verify(w->io, dir, NULL, world_print, NULL), ST_OK, "ckpt_verify");
    sample_release(&sample);
}

static void checkpoint_set_aside_looks_as_in_a_folder(void **state)
{
    struct world *w = *state;
    char dir[3][LIMIT_PATH], moved[LIMIT_PATH], want[LIMIT_PATH];
    save(w, 300, 40, dir[0]);
    save(w, 300, 50, dir[1]);
    save(w, 300, 60, dir[2]);
    world_check(w, ckpt_quarantine(w->io, dir[1], moved, sizeof(moved)), ST_OK, "ckpt_quarantine");
    assert_true(snprintf(want, sizeof(want), "%s/%s/bad-step-000000000050.g2", w->store,
                         SAMPLE_JOB) < LIMIT_PATH);
    assert_string_equal(moved, want);
    auto_free struct ckpt_entry *all = list(w, 3);
    assert_string_equal(all[1].dir, moved);
    assert_true(all[1].quarantined && !all[1].committed && all[1].manifest == ST_OK);
    assert_true(all[0].committed && all[2].committed);
    assert_false(is_there(w, dir[1]));
    struct ckpt_manifest none;
    assert_int_equal(ckpt_manifest_read(w->io, dir[1], &none, NULL), ST_NOT_FOUND);
    world_check(w, ckpt_verify(w->io, moved, NULL, world_print, NULL), ST_OK,
                "reading what was set aside");
    world_check(w, ckpt_folder_create(w->io, dir[1]), ST_EXISTS, "making it anew");
    world_check(w, ckpt_remove(w->io, moved), ST_OK, "removing it");
    assert_false(is_there(w, moved));
    assert_false(is_there(w, dir[1]));
    free(list(w, 2));
    world_check(w, ckpt_folder_create(w->io, dir[1]), ST_OK, "making it anew now");
}

/* ---- at once ---- */

struct committer {
    pthread_t thread;
    struct world *w;
    char dir[LIMIT_PATH], bytes[32];
    enum status st;
};

static void *commit(void *arg)
{
    struct committer *c = arg;
    c->st = ckpt_manifest_publish(c->w->io, c->dir, c->bytes, strlen(c->bytes));
    return NULL;
}

static int commit_all(struct world *w, uint64_t step, bool same)
{
    struct committer all[COMMITTERS] = { 0 };
    for (int i = 0; i < COMMITTERS; i++) {
        all[i].w = w;
        world_step(w, step, all[i].dir);
        (void)snprintf(all[i].bytes, sizeof(all[i].bytes), "manifest of %d", same ? 0 : i);
        assert_int_equal(pthread_create(&all[i].thread, NULL, commit, &all[i]), 0);
    }
    int winners = 0;
    for (int i = 0; i < COMMITTERS; i++)
        assert_int_equal(pthread_join(all[i].thread, NULL), 0);
    for (int i = 0; i < COMMITTERS; i++) {
        assert_true(all[i].st == ST_OK || all[i].st == ST_EXISTS);
        winners += all[i].st == ST_OK;
    }
    return winners;
}

static void one_of_several_committers_wins(void **state)
{
    struct world *w = *state;
    for (uint64_t step = 1; step <= 5; step++)
        assert_int_equal(commit_all(w, step, false), 1);
    assert_int_equal(commit_all(w, 6, true), COMMITTERS);
}

/* ---- what doesn't work is explained ---- */

static void missing_bucket_is_told(void **state)
{
    struct world *w = *state;
    struct reason why;
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    enum status st = ckpt_list(w->io, "s3://no-such-bucket-here", SAMPLE_JOB, &entries, &count);
    assert_int_equal(st, ST_CONFIG);
    io_explain(w->io, st, &why);
    assert_non_null(strstr(why.text, "NoSuchBucket"));
    assert_non_null(strstr(why.text, "checkpoint.store"));
    st = io_publish(w->io, "s3://no-such-bucket-here/x", "x", 1);
    assert_int_equal(st, ST_CONFIG);
}

static void wrong_secret_is_told_but_not_shown(void **state)
{
    (void)state;
    const char *right = getenv("AWS_SECRET_ACCESS_KEY");
    if (getenv("CAIRN_TEST_S3_CHECKED") == NULL || right == NULL || right[0] == '\0')
        skip(); /* a server that looks at no signature, or keys from elsewhere */
    char secret[256];
    struct reason why;
    (void)snprintf(secret, sizeof(secret), "%s", right);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "not-this-one", 1);
    struct world w = { .s3 = NULL };
    struct s3_options options = world_options();
    assert_int_equal(s3_new(&options, &w.s3, &why), ST_OK);
    w.io = s3_io(w.s3);
    (void)setenv("AWS_SECRET_ACCESS_KEY", secret, 1);
    enum status st = io_publish(w.io, "s3://cairn-test/x", "x", 1);
    assert_int_equal(st, ST_REFUSED);
    io_explain(w.io, st, &why);
    assert_non_null(strstr(why.text, "SignatureDoesNotMatch"));
    assert_null(strstr(why.text, "not-this-one"));
    s3_free(w.s3);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_set_up, world_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(file_appears_with_its_fsync),
        TEST(file_without_fsync_was_never_there),
        TEST(file_is_never_written_over),
        TEST(file_is_written_from_front_to_back_only),
        TEST(reads_in_any_order_give_the_same_bytes),
        TEST(folders_list_files_and_folders_over_pages),
        TEST(checkpoint_is_saved_listed_verified_and_removed),
        TEST(parts_of_a_killed_worker_are_given_up_later),
        TEST(save_that_did_not_finish_is_none),
        TEST(checkpoint_set_aside_looks_as_in_a_folder),
        TEST(one_of_several_committers_wins),
        TEST(missing_bucket_is_told),
        TEST(wrong_secret_is_told_but_not_shown),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
