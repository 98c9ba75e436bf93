/* What is read in parts, by several threads or through parents is what was saved. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/read/cursor.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define MANY 600000  /* elements: three chunks a float buffer */
#define LONG 3000000 /* twelve: two threads take eight at once */

/* ---- a part of a buffer ---- */

/* Chunks elsewhere may be damaged. */
static void a_part_reads_only_the_chunks_that_hold_some_of_it(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, MANY);
    struct ckpt_reader *reader = NULL;
    store_fixture_save(f, 1, NULL);
    assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &reader), ST_OK);
    const struct ckpt_place *place = ckpt_reader_place(reader, 1, 1); /* momentum, chunk 1 of 3 */
    const uint64_t chunk = ckpt_chunk_elements(f->sample.buffers[1].dtype);
    char path[LIMIT_PATH];
    store_fixture_shard(f->dir, 0, 1, path);
    store_fixture_flip(f, path, place->reference.offset + 2000, 1);
    auto_free float *part = malloc((size_t)MANY * sizeof(*part));
    assert_non_null(part);
    const struct {
        uint64_t first, count;
        enum status want;
    } parts[] = {
        { 0, chunk, ST_OK },      { chunk - 7, 7, ST_OK },          { chunk - 7, 8, ST_CORRUPT },
        { chunk, 1, ST_CORRUPT }, { 2 * chunk - 1, 2, ST_CORRUPT }, { 2 * chunk, 9, ST_OK },
        { chunk, 0, ST_OK },
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        assert_int_equal(
            ckpt_read_buffer(reader, "momentum", parts[i].first, parts[i].count, part, NULL),
            parts[i].want);
    }
    ckpt_close(reader);
    store_fixture_free(f);
}

/* ---- several threads ---- */

/* On the machine's files: those in memory are for one thread at a time. */
static int set_up_folder(void **state)
{
    *state = store_fixture_new(STORE_IN_FOLDER, MANY);
    return 0;
}

struct ticks {
    uint64_t count; /* no lock: never two at once */
    bool strange;
};

static void tick(void *arg, uint64_t done)
{
    struct ticks *ticks = arg;
    ticks->strange |= done != ticks->count + 1;
    ticks->count++;
}

static void any_number_of_threads_reads_the_same(void **state)
{
    struct store_fixture *f = *state;
    for (uint32_t ranks = 1; ranks <= 4; ranks += 3) {
        store_fixture_save(f, ranks, NULL);
        for (uint32_t threads = 0; threads <= 5; threads++) {
            struct ticks ticks = { .count = 0 };
            const struct ckpt_read_options options = { .threads = threads,
                                                       .progress = tick,
                                                       .progress_arg = &ticks };
            struct ckpt_reader *reader = NULL;
            void *out[SAMPLE_BUFFERS];
            assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &reader), ST_OK);
            for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++) {
                out[i] = calloc((size_t)f->sample.buffers[i].count, 8);
                assert_non_null(out[i]);
            }
            assert_int_equal(ckpt_read_state(reader, out, &options), ST_OK);
            assert_int_equal(ticks.count, reader->set.blobs[0].first); /* all chunks of buffers */
            assert_false(ticks.strange);
            for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++) {
                const struct ckpt_buffer *b = &f->sample.buffers[i];
                assert_memory_equal(out[i], b->data, b->count * ckpt_dtype_size(b->dtype));
                free(out[i]);
            }
            ticks.count = 0;
            assert_int_equal(ckpt_read_state(reader, NULL, &options), ST_OK);
            ckpt_close(reader);
            ticks.count = 0;
            assert_int_equal(store_fixture_verify(f, f->dir, &options), ST_OK);
        }
        assert_int_equal(ckpt_remove(f->io, f->dir), ST_OK);
    }
}

/* A byte of one of two shard files. */
static void flip(struct store_fixture *f, uint32_t rank, uint64_t at)
{
    char path[LIMIT_PATH];
    store_fixture_shard(f->dir, rank, 2, path);
    store_fixture_flip(f, path, at, 4);
}

static void any_number_of_threads_finds_the_same_damage(void **state)
{
    struct store_fixture *f = *state;
    store_fixture_save(f, 2, NULL);
    flip(f, 0, 2000000);
    flip(f, 0, 5000);
    flip(f, 1, 1000000);
    char first[sizeof(f->lines)];
    assert_int_equal(store_fixture_verify(f, f->dir, NULL), ST_CORRUPT);
    memcpy(first, f->lines, sizeof(first));
    assert_non_null(strstr(first, "shard-00000-of-00002.cairn: chunk 0 of parameters"));
    assert_non_null(strstr(first, "shard-00001-of-00002.cairn: chunk"));
    for (uint32_t threads = 1; threads <= 4; threads++) {
        const struct ckpt_read_options options = { .threads = threads };
        assert_int_equal(store_fixture_verify(f, f->dir, &options), ST_CORRUPT);
        assert_string_equal(f->lines, first);
        struct ckpt_reader *reader = NULL;
        f->lines[0] = '\0';
        assert_int_equal(ckpt_open(f->io, f->dir, store_fixture_note, f, &reader), ST_OK);
        assert_int_equal(ckpt_read_state(reader, NULL, &options), ST_CORRUPT);
        assert_non_null(strstr(f->lines, "chunk 0 of parameters"));
        ckpt_close(reader);
    }
    flip(f, 1, 200); /* the tables of a file: its bytes alone */
    for (uint32_t threads = 0; threads <= 3; threads += 3) {
        const struct ckpt_read_options options = { .threads = threads };
        assert_int_equal(store_fixture_verify(f, f->dir, &options), ST_CORRUPT);
        assert_non_null(strstr(f->lines, "shard-00001-of-00002.cairn: the bytes don't match"));
    }
}

/* Two chunks are damaged. The later one may be met first: it begins what another thread takes at
 * once. */
static void the_first_damage_is_told_whatever_was_met_first(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_FOLDER, LONG);
    store_fixture_save(f, 1, NULL);
    struct ckpt_reader *reader = NULL;
    char path[LIMIT_PATH];
    store_fixture_shard(f->dir, 0, 1, path);
    assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &reader), ST_OK);
    for (uint64_t i = 7; i <= 8; i++) {
        const struct disk_reference *it = &ckpt_reader_place(reader, 0, i)->reference;
        store_fixture_flip(f, path, it->offset + it->size - 100, 4);
    }
    ckpt_close(reader);
    for (uint32_t threads = 0; threads <= 4; threads++) {
        const struct ckpt_read_options options = { .threads = threads };
        f->lines[0] = '\0';
        assert_int_equal(ckpt_open(f->io, f->dir, store_fixture_note, f, &reader), ST_OK);
        assert_int_equal(ckpt_read_state(reader, NULL, &options), ST_CORRUPT);
        assert_non_null(strstr(f->lines, "chunk 7 of parameters"));
        ckpt_close(reader);
    }
    store_fixture_free(f);
}

/* ---- parents ---- */

/* A checkpoint and others that differ from it, each from the one before. */
#define LINKS 10

struct chain {
    struct store_fixture *f;
    const struct io *io; /* the fixture's */
    struct sample samples[LINKS];
    char dirs[LINKS][LIMIT_PATH];
};

static int set_up_chain(void **state)
{
    struct chain *chain = calloc(1, sizeof(*chain));
    assert_non_null(chain);
    chain->f = store_fixture_new(STORE_IN_MEMORY, 4);
    chain->io = chain->f->io;
    sample_init(&chain->samples[0], 30000, 40, 2);
    assert_int_equal(sample_save(chain->io, &chain->samples[0], 2, NULL, chain->dirs[0]), ST_OK);
    for (uint32_t i = 1; i < LINKS; i++)
        sample_init_near(&chain->samples[i], &chain->samples[i - 1], 40 + i, 2 + i % 2);
    *state = chain;
    return 0;
}

static int tear_down_chain(void **state)
{
    struct chain *chain = *state;
    for (uint32_t i = 0; i < LINKS; i++)
        sample_release(&chain->samples[i]);
    store_fixture_free(chain->f);
    free(chain);
    return 0;
}

/* Verifies number i; what was found is in the fixture's lines. */
static enum status verify(struct chain *chain, uint32_t i)
{
    return store_fixture_verify(chain->f, chain->dirs[i], NULL);
}

/* Saves number i, by one rank more than the one before, as a difference to that. */
static enum status save_link(struct chain *chain, uint32_t i)
{
    struct ckpt_reader *base = NULL;
    enum status st = ckpt_open(chain->io, chain->dirs[i - 1], NULL, NULL, &base);
    if (st != ST_OK)
        return st;
    const struct sample_options options = { .write = { .base = base } };
    assert_int_equal(
        sample_save(chain->io, &chain->samples[i], 1 + i % 3, &options, chain->dirs[i]), ST_OK);
    ckpt_close(base);
    return ST_OK;
}

static uint32_t differences_of(const struct ckpt_reader *reader)
{
    struct ckpt_cursor *cursor = NULL;
    uint32_t count = 0;
    assert_int_equal(ckpt_cursor_new(reader, &cursor), ST_OK);
    for (uint64_t i = 0; i < reader->set.place_count; i++) {
        const struct ckpt_place *place = &reader->set.places[i];
        const uint8_t *stored = NULL;
        assert_int_equal(ckpt_cursor_fetch(cursor, place, &stored), ST_OK);
        count += ckpt_chunk_needs_base(stored, place->reference.size);
    }
    ckpt_cursor_free(cursor);
    return count;
}

static void assert_reads_back(struct chain *chain, uint32_t i)
{
    bool equal = false;
    struct ckpt_hash is, stored;
    assert_int_equal(sample_compare(chain->io, chain->dirs[i], &chain->samples[i], &equal), ST_OK);
    assert_true(equal);
    assert_int_equal(ckpt_verify(chain->io, chain->dirs[i], NULL, NULL, NULL), ST_OK);
    assert_int_equal(ckpt_state_digest(&chain->samples[i].state, &is), ST_OK);
    assert_int_equal(ckpt_digest(chain->io, chain->dirs[i], &stored), ST_OK);
    assert_memory_equal(is.byte, stored.byte, sizeof(is.byte));
}

static void differences_are_read_through_eight_parents(void **state)
{
    struct chain *chain = *state;
    for (uint32_t i = 1; i <= DISK_CHAIN_MAX; i++) {
        assert_int_equal(save_link(chain, i), ST_OK);
        struct ckpt_reader *reader = NULL;
        assert_int_equal(ckpt_open(chain->io, chain->dirs[i], NULL, NULL, &reader), ST_OK);
        const struct ckpt_parent *parent = &ckpt_reader_manifest(reader)->parent;
        assert_int_equal(parent->step, 39 + i);
        assert_int_equal(parent->generation, i == 1 ? 2 : 2 + (i - 1) % 2);
        assert_true(differences_of(reader) >= 3);
        ckpt_close(reader);
        assert_reads_back(chain, i);
    }
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    assert_int_equal(ckpt_list(chain->io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    assert_int_equal(count, DISK_CHAIN_MAX + 1);
    assert_int_equal(entries[0].parent.step, 47);
    assert_int_equal(entries[count - 1].parent.generation, 0);
    free(entries);
}

static void too_long_a_chain_is_refused(void **state)
{
    struct chain *chain = *state;
    for (uint32_t i = 1; i <= DISK_CHAIN_MAX; i++)
        assert_int_equal(save_link(chain, i), ST_OK);
    struct ckpt_reader *base = NULL;
    assert_int_equal(ckpt_open(chain->io, chain->dirs[DISK_CHAIN_MAX], NULL, NULL, &base), ST_OK);
    struct ckpt_reader *parents = base->parent;
    base->parent = NULL; /* the writer would not take it */
    const struct sample_options options = { .write = { .base = base } };
    assert_int_equal(sample_save(chain->io, &chain->samples[DISK_CHAIN_MAX + 1], 2, &options,
                                 chain->dirs[DISK_CHAIN_MAX + 1]),
                     ST_OK);
    ckpt_close(parents);
    ckpt_close(base);
    assert_int_equal(verify(chain, DISK_CHAIN_MAX + 1), ST_CORRUPT);
    assert_non_null(strstr(chain->f->lines, "the chain of its parents is too long"));
    struct ckpt_reader *reader = NULL;
    assert_int_equal(ckpt_open(chain->io, chain->dirs[DISK_CHAIN_MAX + 1], NULL, NULL, &reader),
                     ST_CORRUPT);
    assert_reads_back(chain, DISK_CHAIN_MAX);
}

static void missing_parent_is_named(void **state)
{
    struct chain *chain = *state;
    for (uint32_t i = 1; i <= 3; i++)
        assert_int_equal(save_link(chain, i), ST_OK);
    assert_int_equal(ckpt_remove(chain->io, chain->dirs[1]), ST_OK);
    for (uint32_t i = 2; i <= 3; i++) {
        struct ckpt_reader *reader = NULL;
        assert_int_equal(verify(chain, i), ST_INCOMPLETE);
        assert_non_null(strstr(chain->f->lines,
                               "it is a difference to step-000000000041.g3, which is missing"));
        assert_int_equal(ckpt_open(chain->io, chain->dirs[i], NULL, NULL, &reader), ST_INCOMPLETE);
    }
    assert_reads_back(chain, 0);
}

static void damage_of_a_parent_is_told_with_its_place(void **state)
{
    struct chain *chain = *state;
    for (uint32_t i = 1; i <= 2; i++)
        assert_int_equal(save_link(chain, i), ST_OK);
    char path[LIMIT_PATH];
    store_fixture_shard(chain->dirs[0], 0, 2, path);
    store_fixture_flip(chain->f, path, 4096 + 104 + 5000, 1);
    assert_int_equal(verify(chain, 2), ST_CORRUPT);
    assert_non_null(strstr(chain->f->lines,
                           "step-000000000040.g2/shard-00000-of-00002.cairn: chunk 0 "
                           "of parameters"));
    bool equal = true;
    assert_int_equal(sample_compare(chain->io, chain->dirs[2], &chain->samples[2], &equal),
                     ST_CORRUPT);
    store_fixture_flip(chain->f, path, 20, 1); /* the header */
    assert_int_equal(verify(chain, 2), ST_CORRUPT);
    assert_non_null(
        strstr(chain->f->lines, "it is a difference to step-000000000041.g3, which is damaged"));
    assert_non_null(strstr(chain->f->lines, "step-000000000040.g2"));
}

/* Same folder, same step, other bytes: only what each chunk says of its raw bytes tells. */
static void another_parent_of_the_same_name_is_never_taken_for_the_right_one(void **state)
{
    struct chain *chain = *state;
    assert_int_equal(save_link(chain, 1), ST_OK);
    struct sample other;
    sample_init(&other, 30000, 39, 2);
    other.state.scalars.step = 40;
    assert_int_equal(ckpt_remove(chain->io, chain->dirs[0]), ST_OK);
    assert_int_equal(sample_save(chain->io, &other, 2, NULL, NULL), ST_OK);
    bool equal = true;
    assert_int_equal(ckpt_verify(chain->io, chain->dirs[0], NULL, NULL, NULL), ST_OK);
    assert_int_equal(ckpt_verify(chain->io, chain->dirs[1], NULL, NULL, NULL), ST_CORRUPT);
    assert_int_equal(sample_compare(chain->io, chain->dirs[1], &chain->samples[1], &equal),
                     ST_CORRUPT);
    assert_int_equal(ckpt_remove(chain->io, chain->dirs[0]), ST_OK);
    struct sample short_one; /* other buffers */
    sample_init(&short_one, 29999, 40, 2);
    assert_int_equal(sample_save(chain->io, &short_one, 2, NULL, NULL), ST_OK);
    assert_int_equal(verify(chain, 1), ST_CORRUPT);
    assert_non_null(strstr(chain->f->lines, "which has other buffers"));
    sample_release(&other);
    sample_release(&short_one);
}

/* EIO in a parent is no damage either. */
static void failing_reads_of_a_parent_are_no_damage(void **state)
{
    struct chain *chain = *state;
    for (uint32_t i = 1; i <= 2; i++)
        assert_int_equal(save_link(chain, i), ST_OK);
    memory_io_arm(chain->f->memory, MEMORY_IO_NONE, 0);
    assert_int_equal(ckpt_verify(chain->io, chain->dirs[2], NULL, NULL, NULL), ST_OK);
    uint64_t calls = memory_io_calls(chain->f->memory);
    assert_true(calls > 40);
    for (uint64_t n = 1; n <= calls; n++) {
        memory_io_arm(chain->f->memory, MEMORY_IO_EIO, n);
        enum status st = verify(chain, 2);
        assert_true(st == ST_IO || st == ST_OK); /* closing may fail */
        assert_string_equal(chain->f->lines, "");
        assert_int_equal(memory_io_open_files(chain->f->memory), 0);
    }
    memory_io_arm(chain->f->memory, MEMORY_IO_NONE, 0);
}

/* A table in which the nth opening of a shard file comes to something else. */
struct failing_open {
    struct io io;
    const struct io *below;
    uint64_t left;
    enum status st;
};

static enum status open_or_fail(void *self, const char *path, int flags, int *out_fd)
{
    struct failing_open *it = self;
    if (strstr(path, "/shard-") != NULL && it->left > 0 && --it->left == 0)
        return it->st;
    return it->below->open(it->below->self, path, flags, out_fd);
}

static enum status pread_below(void *self, int fd, void *data, size_t size, uint64_t at,
                               size_t *out_size)
{
    const struct failing_open *it = self;
    return it->below->pread(it->below->self, fd, data, size, at, out_size);
}

static enum status close_below(void *self, int fd)
{
    const struct failing_open *it = self;
    return it->below->close(it->below->self, fd);
}

static enum status stat_below(void *self, const char *path, struct io_stat *out)
{
    const struct failing_open *it = self;
    return it->below->stat(it->below->self, path, out);
}

static enum status list_below(void *self, const char *path, io_name_fn fn, void *arg)
{
    const struct failing_open *it = self;
    return it->below->list(it->below->self, path, fn, arg);
}

/* Too many open files, no memory, a store that is away: nothing is known of the bytes then. */
static void a_file_that_cannot_be_opened_now_is_no_damage(void **state)
{
    struct chain *chain = *state;
    static const enum status troubles[] = { ST_INVALID, ST_NO_MEMORY,   ST_IO,        ST_FULL,
                                            ST_AWAY,    ST_UNREACHABLE, ST_TIMED_OUT, ST_CLOSED,
                                            ST_REFUSED, ST_FORGOTTEN };
    for (uint32_t i = 1; i <= 2; i++)
        assert_int_equal(save_link(chain, i), ST_OK);
    for (size_t k = 0; k < sizeof(troubles) / sizeof(troubles[0]); k++) {
        for (uint64_t n = 1;; n++) {
            struct failing_open it = { .below = chain->io, .left = n, .st = troubles[k] };
            it.io = (struct io){ .self = &it,
                                 .open = open_or_fail,
                                 .close = close_below,
                                 .pread = pread_below,
                                 .stat = stat_below,
                                 .list = list_below };
            bool equal = false;
            enum status read = sample_compare(&it.io, chain->dirs[2], &chain->samples[2], &equal);
            const bool failed = it.left == 0;
            it.left = n;
            enum status verified = ckpt_verify(&it.io, chain->dirs[2], NULL, NULL, NULL);
            assert_int_not_equal(status_scope(read), SCOPE_CHECKPOINT);
            assert_int_not_equal(status_scope(verified), SCOPE_CHECKPOINT);
            assert_true(!failed || read != ST_OK);
            if (!failed && it.left > 0)
                break;
        }
    }
}

static void reports_of_other_parents_make_no_manifest(void **state)
{
    struct chain *chain = *state;
    struct ckpt_report reports[2] = { 0 };
    struct ckpt_hash digest;
    struct ckpt_reader *base = NULL;
    auto_buf struct buf out;
    buf_init(&out, LIMIT_MANIFEST_BYTES);
    assert_int_equal(ckpt_open(chain->io, chain->dirs[0], NULL, NULL, &base), ST_OK);
    const struct ckpt_write_options options = { .base = base };
    assert_int_equal(ckpt_folder_create(chain->io, "/x"), ST_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(ckpt_shard_write(chain->io, "/x", &chain->samples[1].state, i, 2, &options,
                                          &reports[i]),
                         ST_OK);
        assert_int_equal(reports[i].parent.step, 40);
    }
    ckpt_close(base);
    assert_int_equal(ckpt_manifest_make(reports, 2, SAMPLE_JOB, "now", &out, &digest), ST_OK);
    reports[1].parent.generation++;
    assert_int_equal(ckpt_manifest_make(reports, 2, SAMPLE_JOB, "now", &out, &digest), ST_INVALID);
    reports[1].parent = (struct ckpt_parent){ 0 };
    assert_int_equal(ckpt_manifest_make(reports, 2, SAMPLE_JOB, "now", &out, &digest), ST_INVALID);
    reports[0].parent = reports[1].parent = (struct ckpt_parent){ 41, 3 }; /* itself */
    assert_int_equal(ckpt_manifest_make(reports, 2, SAMPLE_JOB, "now", &out, &digest), ST_INVALID);
    for (uint32_t i = 0; i < 2; i++)
        ckpt_report_release(&reports[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_reads_only_the_chunks_that_hold_some_of_it),
        cmocka_unit_test_setup_teardown(any_number_of_threads_reads_the_same, set_up_folder,
                                        store_fixture_tear_down),
        cmocka_unit_test(the_first_damage_is_told_whatever_was_met_first),
        cmocka_unit_test_setup_teardown(any_number_of_threads_finds_the_same_damage, set_up_folder,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(differences_are_read_through_eight_parents, set_up_chain,
                                        tear_down_chain),
        cmocka_unit_test_setup_teardown(too_long_a_chain_is_refused, set_up_chain, tear_down_chain),
        cmocka_unit_test_setup_teardown(missing_parent_is_named, set_up_chain, tear_down_chain),
        cmocka_unit_test_setup_teardown(damage_of_a_parent_is_told_with_its_place, set_up_chain,
                                        tear_down_chain),
        cmocka_unit_test_setup_teardown(
            another_parent_of_the_same_name_is_never_taken_for_the_right_one, set_up_chain,
            tear_down_chain),
        cmocka_unit_test_setup_teardown(failing_reads_of_a_parent_are_no_damage, set_up_chain,
                                        tear_down_chain),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_opened_now_is_no_damage, set_up_chain,
                                        tear_down_chain),
        cmocka_unit_test_setup_teardown(reports_of_other_parents_make_no_manifest, set_up_chain,
                                        tear_down_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
