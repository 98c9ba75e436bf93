/* Hashes of blocks that are kept between starts: they stand for the content of a file that nobody
 * touched, whatever is wrong with them costs a hashing, and what was edited is found where it is
 * read. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/format/hash.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "trainer/data/sums.h"
#include "trainer/data/tokens.h"

#define BLOCKS 20
#define SIZE   (BLOCKS * SUMS_BLOCK - 4) /* the last block is not whole */

/* A file system on which an edit doesn't move the time, if it is told so. */
struct coarse {
    struct io io;
    bool frozen;
};

struct fixture {
    char dir[64], data[80], other[80], sums[80];
    struct coarse files;
    struct reason reason;
};

static enum status coarse_stat(void *self, const char *path, struct io_stat *out)
{
    const struct coarse *files = self;
    enum status st = io_system()->stat(NULL, path, out);
    if (files->frozen)
        out->changed_ns = 77;
    return st;
}

static void write_data(const char *path, unsigned seed)
{
    uint8_t *bytes = malloc(SIZE);
    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 37 + i / 251 + seed);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, SIZE, file), SIZE);
    assert_int_equal(fclose(file), 0);
    free(bytes);
}

/* Changes one byte in place. */
static void flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+e");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/test_data_sums_XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->data, sizeof(f->data), "%s/text", f->dir);
    (void)snprintf(f->other, sizeof(f->other), "%s/other", f->dir);
    (void)snprintf(f->sums, sizeof(f->sums), "%s/sums", f->dir);
    f->files.io = *io_system();
    f->files.io.self = &f->files;
    f->files.io.stat = coarse_stat;
    write_data(f->data, 0);
    *state = f;
    return 0;
}

static bool remove_name(void *arg, const char *name)
{
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/%s", (const char *)arg, name);
    (void)unlink(path);
    return true;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    (void)io_system()->list(NULL, f->sums, remove_name, f->sums);
    (void)rmdir(f->sums);
    (void)unlink(f->data);
    (void)unlink(f->other);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

/* The data file as a worker has it that starts now; with_sums: on a node that keeps them. */
static struct tokens *load(struct fixture *f, const char *path, bool with_sums)
{
    struct tokens *t = NULL;
    struct tokens_options options = { .io = &f->files.io,
                                      .path = path,
                                      .text = true,
                                      .watched = true,
                                      .sums = with_sums ? f->sums : NULL };
    enum status st = tokens_open(&options, &t, &f->reason);
    if (st == ST_OK)
        st = tokens_load(t, &f->reason);
    if (st != ST_OK)
        fail_msg("%s", f->reason.text);
    return t;
}

static void print_identity(const struct tokens *t, char out[160])
{
    auto_buf struct buf text;
    buf_init(&text, 159);
    assert_int_equal(tokens_print_identity(t, &text), ST_OK);
    memcpy(out, text.data, text.size + 1);
}

static void identity(struct fixture *f, const char *path, bool with_sums, char out[160])
{
    struct tokens *t = load(f, path, with_sums);
    print_identity(t, out);
    tokens_close(t);
}

static enum status read_at(struct fixture *f, struct tokens *t, uint64_t at)
{
    int32_t out[16];
    struct tokens_range range = { .at = at, .count = 16, .vocab = 256 };
    return tokens_read(t, &range, out, &f->reason);
}

static void kept_path(const struct fixture *f, const char *path, char out[160])
{
    char text[33];
    const struct ckpt_hash hash = ckpt_hash_of(path, strlen(path));
    ckpt_hash_text(&hash, text);
    (void)snprintf(out, 160, "%s/%s.sums", f->sums, text);
}

/* True: the kept ones were taken for the content, which was not read. The file system is frozen. */
static bool are_taken(struct fixture *f)
{
    char kept[160], now[160], right[160];
    identity(f, f->data, true, kept);
    flip(f->data, 9);
    identity(f, f->data, true, now);
    identity(f, f->data, false, right);
    assert_string_not_equal(right, kept);
    flip(f->data, 9);
    return strcmp(now, kept) == 0;
}

static void what_is_kept_stands_for_a_file_that_nobody_touched(void **state)
{
    struct fixture *f = *state;
    char first[160], second[160], without[160];
    identity(f, f->data, true, first);
    identity(f, f->data, true, second);
    identity(f, f->data, false, without);
    assert_string_equal(first, second);
    assert_string_equal(first, without);
    f->files.frozen = true;
    assert_true(are_taken(f));
    assert_int_equal(truncate(f->data, SUMS_KEEP_MIN - 1), 0);
    assert_false(are_taken(f)); /* a small one is hashed */
}

static void an_edit_with_its_time_put_back_is_seen_at_the_next_start(void **state)
{
    struct fixture *f = *state;
    char before[160], after[160];
    struct stat info;
    identity(f, f->data, true, before);
    assert_int_equal(stat(f->data, &info), 0);
    flip(f->data, 3000000);
    const struct timespec times[2] = { info.st_atim, info.st_mtim };
    assert_int_equal(utimensat(AT_FDCWD, f->data, times, 0), 0);
    identity(f, f->data, true, after);
    assert_string_not_equal(before, after);
}

static void an_edit_that_no_time_tells_is_found_where_it_is_read(void **state)
{
    struct fixture *f = *state;
    char before[160], after[160], place[64];
    f->files.frozen = true;
    identity(f, f->data, true, before);
    const uint64_t bad = 7 * SUMS_BLOCK;
    flip(f->data, (long)bad + 1000);
    struct tokens *t = load(f, f->data, true);
    print_identity(t, after);
    assert_string_equal(before, after); /* nobody has read it */
    assert_int_equal(read_at(f, t, 0), ST_OK);
    assert_int_equal(read_at(f, t, SIZE - 16), ST_OK);
    assert_int_equal(read_at(f, t, bad - 16), ST_OK);
    assert_int_equal(read_at(f, t, bad + SUMS_BLOCK), ST_OK);
    assert_int_equal(read_at(f, t, bad - 15), ST_CHANGED);
    (void)snprintf(place, sizeof(place), "bytes from %llu on", (unsigned long long)bad);
    assert_non_null(strstr(f->reason.text, f->data));
    assert_non_null(strstr(f->reason.text, place));
    assert_int_equal(read_at(f, t, bad + SUMS_BLOCK - 1), ST_CHANGED);
    tokens_close(t);
    identity(f, f->data, true, after); /* they are not believed once more */
    assert_string_not_equal(before, after);
}

static void an_edit_while_it_is_read_is_found_where_it_is(void **state)
{
    struct fixture *f = *state;
    for (int kept = 0; kept < 2; kept++) {
        struct tokens *t = load(f, f->data, true);
        assert_int_equal(read_at(f, t, 5 * SUMS_BLOCK), ST_OK);
        flip(f->data, 5 * SUMS_BLOCK + 10);
        assert_int_equal(read_at(f, t, 4 * SUMS_BLOCK), ST_OK);
        assert_int_equal(read_at(f, t, 5 * SUMS_BLOCK), ST_CHANGED);
        flip(f->data, 5 * SUMS_BLOCK + 10);
        assert_int_equal(read_at(f, t, 5 * SUMS_BLOCK), ST_OK);
        tokens_close(t);
    }
}

/* Each of its parts, its end, and nothing of it. */
static void what_is_kept_and_damaged_counts_for_nothing(void **state)
{
    struct fixture *f = *state;
    static const long places[] = { 0, 9, 12, 16, 24, 32, 40, 56, 64, -17, -16, -1 };
    char path[160];
    struct stat info;
    f->files.frozen = true;
    kept_path(f, f->data, path);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        assert_true(are_taken(f));
        assert_int_equal(stat(path, &info), 0);
        flip(f->data, 0);
        flip(path, places[i] < 0 ? (long)info.st_size + places[i] : places[i]);
        char now[160], right[160];
        identity(f, f->data, true, now);
        identity(f, f->data, false, right);
        assert_string_equal(now, right);
    }
    static const long sizes[] = { 0, 1, 63, 64, 200, -1 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(truncate(path, sizes[i] < 0 ? info.st_size + sizes[i] : sizes[i]), 0);
        assert_true(are_taken(f)); /* its first load has kept new ones */
    }
}

static void what_is_kept_of_another_file_counts_for_nothing(void **state)
{
    struct fixture *f = *state;
    char path[160], wrong[160], now[160], right[160];
    f->files.frozen = true;
    write_data(f->other, 1);
    identity(f, f->data, true, now);
    kept_path(f, f->data, path);
    kept_path(f, f->other, wrong);
    assert_int_equal(rename(path, wrong), 0);
    identity(f, f->other, true, now);
    identity(f, f->other, false, right);
    assert_string_equal(now, right);
    identity(f, f->data, true, now);
    assert_int_equal(rename(f->other, f->data), 0); /* and of one that was there before */
    identity(f, f->data, true, now);
    identity(f, f->data, false, right);
    assert_string_equal(now, right);
}

struct worker {
    struct fixture *f;
    struct reason reason;
    pthread_t thread;
    char identity[160];
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct fixture own = *w->f;
    own.files.io.self = &own.files;
    identity(&own, own.data, true, w->identity);
    return NULL;
}

static void workers_that_start_at_once_keep_what_is_right(void **state)
{
    struct fixture *f = *state;
    char right[160], path[160];
    f->files.frozen = true;
    identity(f, f->data, false, right);
    kept_path(f, f->data, path);
    for (int round = 0; round < 10; round++) {
        struct worker workers[4];
        for (size_t i = 0; i < 4; i++) {
            workers[i].f = f;
            assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
        }
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
            assert_string_equal(workers[i].identity, right);
        }
        if (round % 2 == 0)
            assert_int_equal(unlink(path), 0);
    }
    assert_true(are_taken(f));
}

struct reader {
    struct tokens *tokens;
    enum status st;
    pthread_t thread;
    bool right;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    struct reason reason;
    r->right = true;
    for (uint64_t i = 0; i < 4000 && r->st == ST_OK; i++) {
        int32_t out[16];
        struct tokens_range range = { .at = i * 7919 * 16 % (SIZE - 16),
                                      .count = 16,
                                      .vocab = 256 };
        r->st = tokens_read(r->tokens, &range, out, &reason);
        for (uint64_t k = range.at; k < range.at + 16; k++)
            r->right = r->right && out[k - range.at] == (uint8_t)(k * 37 + k / 251);
    }
    return NULL;
}

static void readers_go_on_while_a_file_is_touched(void **state)
{
    struct fixture *f = *state;
    tokens_close(load(f, f->data, true));
    struct tokens *t = load(f, f->data, true);
    struct reader readers[3];
    for (size_t i = 0; i < 3; i++) {
        readers[i] = (struct reader){ .tokens = t };
        assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        assert_int_equal(chmod(f->data, i % 2 == 0 ? 0600 : 0644), 0);
        (void)poll(NULL, 0, 1);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
        assert_int_equal(readers[i].st, ST_OK);
        assert_true(readers[i].right);
    }
    tokens_close(t);
}

/* A node whose home is full, or not ours to write. */
static void where_nothing_can_be_kept_it_is_hashed(void **state)
{
    struct fixture *f = *state;
    char now[160], right[160];
    FILE *file = fopen(f->sums, "we"); /* where the folder should be */
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    identity(f, f->data, true, now);
    identity(f, f->data, false, right);
    assert_string_equal(now, right);
    assert_int_equal(unlink(f->sums), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_kept_stands_for_a_file_that_nobody_touched),
        TEST(an_edit_with_its_time_put_back_is_seen_at_the_next_start),
        TEST(an_edit_that_no_time_tells_is_found_where_it_is_read),
        TEST(an_edit_while_it_is_read_is_found_where_it_is),
        TEST(what_is_kept_and_damaged_counts_for_nothing),
        TEST(what_is_kept_of_another_file_counts_for_nothing),
        TEST(workers_that_start_at_once_keep_what_is_right),
        TEST(readers_go_on_while_a_file_is_touched),
        TEST(where_nothing_can_be_kept_it_is_hashed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
