/*
 * What test_s3.py counts the requests of: it runs each test here alone, by its name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "checkpoint/s3/object.h"
#include "tests/s3/s3_world.h"

/* What a difference is made to is read while it is written. */
static void save_difference(struct world *w, struct sample *sample)
{
    char dir[LIMIT_PATH];
    struct sample_options options = { .store = w->store, .threads = 1 };
    sample->state.scalars.step = 100;
    world_check(w, sample_save(w->io, sample, 2, &options, dir), ST_OK, "saving a base");
    world_check(w, ckpt_open(w->io, dir, NULL, NULL, &options.write.base), ST_OK, "opening it");
    sample->state.scalars.step = 101;
    world_check(w, sample_save(w->io, sample, 2, &options, dir), ST_OK, "saving a difference");
    ckpt_close(options.write.base);
}

/* One folder for each way of reading, read once: no byte of a shard may be asked for twice. */
static void each_way_of_reading_asks_for_a_byte_once(void **state)
{
    struct world *w = *state;
    static const uint32_t threads[] = { 0, 1, 3, 8 };
    struct sample sample;
    sample_init(&sample, SAMPLE_SIZE, 40, 2);
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        const struct ckpt_read_options options = { .threads = threads[i] };
        const struct ckpt_buffer *buffers = NULL;
        struct ckpt_reader *reader = NULL;
        struct sample_options store = { .store = w->store };
        char dir[LIMIT_PATH], other[LIMIT_PATH];
        sample.state.scalars.step = 2 * i;
        world_check(w, sample_save(w->io, &sample, 2, &store, dir), ST_OK, "saving");
        world_check(w, ckpt_open(w->io, dir, NULL, NULL, &reader), ST_OK, "opening");
        const uint32_t count = ckpt_reader_buffers(reader, &buffers);
        void *out[CKPT_BUFFERS_MAX] = { NULL };
        for (uint32_t b = 0; b < count; b++) {
            out[b] = malloc((size_t)(buffers[b].count * ckpt_dtype_size(buffers[b].dtype)));
            assert_non_null(out[b]);
        }
        world_check(w, ckpt_read_state(reader, out, &options), ST_OK, "reading");
        for (uint32_t b = 0; b < count; b++)
            free(out[b]);
        ckpt_close(reader);
        sample.state.scalars.step = 2 * i + 1;
        world_check(w, sample_save(w->io, &sample, 2, &store, other), ST_OK, "saving");
        world_check(w, ckpt_verify(w->io, other, &options, world_print, NULL), ST_OK, "verifying");
    }
    save_difference(w, &sample);
    sample_release(&sample);
}

static void parts_of_a_file_that_may_get_long_are_equal(void **state)
{
    struct world *w = *state;
    char path[LIMIT_PATH];
    auto_free char *data = world_pattern(BIG);
    world_path(w, "long", path);
    int fd = -1;
    world_check(w, w->io->open(w->io->self, path, IO_CREATE_NEW, &fd), ST_OK, "open");
    io_expect(w->io, fd, 0, (uint64_t)60000 << 20); /* 6 MiB each, then */
    world_check(w, io_write_all(w->io, fd, data, BIG, 0), ST_OK, "write");
    world_check(w, w->io->fsync(w->io->self, fd), ST_OK, "fsync");
    assert_int_equal(w->io->close(w->io->self, fd), ST_OK);
    world_path(w, "plain", path);
    world_write(w, path, data, BIG, BIG);
}

/* The store wants the first two uploads anew. */
static void shard_is_written_anew_when_the_store_says_so(void **state)
{
    struct world *w = *state;
    struct sample sample;
    char dir[LIMIT_PATH];
    bool equal = false;
    struct sample_options store = { .store = w->store };
    sample_init(&sample, SAMPLE_SIZE, 40, 2);
    world_check(w, sample_save(w->io, &sample, 1, &store, dir), ST_OK, "saving");
    world_check(w, sample_compare(w->io, dir, &sample, &equal), ST_OK, "reading back");
    assert_true(equal);
    sample_release(&sample);
}

/* More than a page of them. */
static void all_parts_of_killed_workers_are_given_up(void **state)
{
    struct world *w = *state;
    char dir[LIMIT_PATH], path[LIMIT_PATH + 16];
    struct reason why;
    struct s3_options options = world_options();
    struct world killed = { .s3 = NULL };
    auto_free char *data = world_pattern(BIG);
    assert_int_equal(s3_new(&options, &killed.s3, &why), ST_OK);
    killed.io = s3_io(killed.s3);
    world_step(w, 40, dir);
    for (int i = 0; i < 8; i++) {
        int fd = -1;
        (void)snprintf(path, sizeof(path), "%s/shard %d", dir, i);
        world_check(&killed, killed.io->open(killed.io->self, path, IO_CREATE_NEW, &fd), ST_OK,
                    "open");
        world_check(&killed, io_write_all(killed.io, fd, data, BIG, 0), ST_OK, "write");
    }
    s3_close(killed.s3);
    s3_free(killed.s3);
    assert_int_equal(ckpt_folder_path(w->store, SAMPLE_JOB, 50, 3, 0, dir, sizeof(dir)), ST_OK);
    world_check(w, ckpt_folder_create(w->io, dir), ST_OK, "the next generation's folder");
}

static void store_is_tried_with_both_kinds_of_writes(void **state)
{
    struct world *w = *state;
    char path[LIMIT_PATH];
    struct reason why;
    world_path(w, "probe", path);
    world_check(w, io_publish(w->io, path, "x", 1), ST_OK, "put_new");
    enum status st = w->io->probe(w->io->self, path);
    const bool unsafe = getenv("CAIRN_TEST_S3_UNSAFE") != NULL;
    world_check(w, st, unsafe ? ST_CONFIG : ST_OK, "probe");
    io_explain(w->io, st, &why);
    assert_true(!unsafe || strstr(why.text, "CompleteMultipartUpload") != NULL);
}

/* CAIRN_TEST_S3_FILES shards of a byte or two, pages of a thousand names: looked at and removed;
 * where they are few, twice. */
static void checkpoint_of_many_files_is_checked_and_removed(void **state)
{
    struct world *w = *state;
    struct reason why;
    struct world far = { .s3 = NULL };
    struct s3_options options = world_options();
    const uint32_t count = (uint32_t)sample_setting("CAIRN_TEST_S3_FILES", 10);
    auto_free struct ckpt_report *reports = calloc(count, sizeof(*reports));
    assert_non_null(reports);
    options.page = s3_defaults().page;
    assert_int_equal(s3_new(&options, &far.s3, &why), ST_OK);
    far.io = s3_io(far.s3);
    for (uint64_t step = 40; step < (count < 1000 ? 60 : 50); step += 10) {
        char dir[LIMIT_PATH], path[LIMIT_PATH];
        struct ckpt_entry *entries = NULL;
        size_t left = 0;
        world_step(w, step, dir);
        for (uint32_t i = 0; i < count; i++) {
            reports[i] = (struct ckpt_report){ .rank = i, .size = 1 + i % 2 };
            ckpt_shard_name(i, count, reports[i].file);
            assert_int_equal(ckpt_path(dir, reports[i].file, path), ST_OK);
            world_check(&far, far.io->put_new(far.io->self, path, "xx", 1 + i % 2), ST_OK, "put");
        }
        world_check(&far, ckpt_commit_check(far.io, dir, reports, count), ST_OK, "checking");
        world_check(&far, ckpt_remove(far.io, dir), ST_OK, "removing");
        world_check(&far, ckpt_list(far.io, w->store, SAMPLE_JOB, &entries, &left), ST_OK, "ls");
        free(entries);
        assert_int_equal(left, 0);
    }
    s3_free(far.s3);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_set_up, world_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(each_way_of_reading_asks_for_a_byte_once),
        TEST(parts_of_a_file_that_may_get_long_are_equal),
        TEST(shard_is_written_anew_when_the_store_says_so),
        TEST(all_parts_of_killed_workers_are_given_up),
        TEST(store_is_tried_with_both_kinds_of_writes),
        TEST(checkpoint_of_many_files_is_checked_and_removed),
    };
    for (size_t i = 0; argc > 1 && i < sizeof(tests) / sizeof(tests[0]); i++) {
        const struct CMUnitTest one[] = { tests[i] };
        if (strcmp(argv[1], tests[i].name) == 0)
            return cmocka_run_group_tests(one, NULL, NULL);
    }
    return 2;
}
