/*
 * Whatever happens to the files of a checkpoint is found, and never read as if it were good.
 * Changes of single bytes are in test_ckpt_sweep.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/disk.h"
#include "checkpoint/format/hash.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define RANKS 2

/* A small checkpoint of two ranks. */
static int set_up(void **state)
{
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, 300);
    store_fixture_save(f, RANKS, NULL);
    store_fixture_assert_saved(f, f->dir);
    *state = f;
    return 0;
}

static enum status verify(struct store_fixture *f)
{
    return store_fixture_verify(f, f->dir, NULL);
}

static void path_of(const struct store_fixture *f, const char *name, char out[LIMIT_PATH])
{
    store_fixture_path(f->dir, name, out);
}

static void shard_path(const struct store_fixture *f, uint32_t rank, char out[LIMIT_PATH])
{
    store_fixture_shard(f->dir, rank, RANKS, out);
}

/* Damage is found by verify, and a restore fails, or gives the right state all the same. */
static void assert_found(struct store_fixture *f)
{
    enum status st = verify(f);
    assert_int_equal(status_scope(st), SCOPE_CHECKPOINT);
    assert_true(strlen(f->lines) > 0);
    bool equal = false;
    st = sample_compare(f->io, f->dir, &f->sample, &equal);
    assert_true(status_scope(st) == SCOPE_CHECKPOINT || (st == ST_OK && equal));
}

static void missing_pieces_are_told_from_damage(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH], job[LIMIT_PATH];
    shard_path(f, 1, path);
    assert_int_equal(f->io->unlink(f->io->self, path), ST_OK);
    assert_int_equal(verify(f), ST_INCOMPLETE);
    assert_string_equal(f->lines, "shard-00001-of-00002.cairn: the file is missing\n");
    assert_int_equal(f->io->mkdir(f->io->self, path), ST_OK);
    assert_int_equal(verify(f), ST_CORRUPT);
    (void)snprintf(job, sizeof(job), "%s/%s", SAMPLE_STORE, SAMPLE_JOB);
    assert_true(snprintf(f->dir, sizeof(f->dir), "%.500s/step-000000000001.g1", job) > 0);
    assert_int_equal(verify(f), ST_NOT_FOUND);
    assert_int_equal(f->io->mkdir(f->io->self, f->dir), ST_OK);
    assert_int_equal(verify(f), ST_INCOMPLETE);
    assert_string_equal(f->lines, "manifest.json: there is none: this is no checkpoint\n");
}

static enum status verify_file(struct store_fixture *f, uint32_t file,
                               const struct ckpt_read_options *options)
{
    f->lines[0] = '\0';
    return ckpt_verify_file(f->io, f->dir, file, options, store_fixture_note, f);
}

/* One file is read, with none of the bytes of others; all of them together are everything. */
static void a_single_file_is_read_and_its_damage_is_nobody_elses(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH];
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(verify_file(f, rank, NULL), ST_OK);
    assert_int_equal(verify_file(f, RANKS, NULL), ST_INVALID);
    assert_int_equal(verify_file(f, UINT32_MAX, NULL), ST_INVALID);
    shard_path(f, 1, path);
    store_fixture_flip(f, path, 4096 + 104 + 50, 1);
    assert_int_equal(verify_file(f, 0, NULL), ST_OK);
    assert_int_equal(verify_file(f, 1, NULL), ST_CORRUPT);
    assert_non_null(strstr(f->lines, "shard-00001-of-00002.cairn: "));
    assert_int_equal(verify(f), ST_CORRUPT);
    for (uint32_t threads = 0; threads < 3; threads++) {
        const struct ckpt_read_options options = { .threads = threads };
        struct ckpt_reader *reader = NULL;
        assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &reader), ST_OK);
        assert_int_equal(ckpt_reader_damaged(reader), 0);
        assert_int_equal(ckpt_read_state(reader, NULL, &options), ST_CORRUPT);
        assert_int_equal(ckpt_reader_damaged(reader), 2);
        ckpt_close(reader);
    }
}

struct throttle {
    uint64_t bytes, most;
};

static bool count_bytes(void *arg, uint64_t bytes)
{
    struct throttle *throttle = arg;
    throttle->bytes += bytes;
    return throttle->bytes < throttle->most;
}

static void reading_can_be_paced_and_stopped(void **state)
{
    struct store_fixture *f = *state;
    struct throttle throttle = { .most = UINT64_MAX };
    struct ckpt_read_options options = { .throttle = count_bytes, .throttle_arg = &throttle };
    assert_int_equal(verify_file(f, 0, &options), ST_OK);
    assert_true(throttle.bytes > 0);
    throttle = (struct throttle){ .most = 1 };
    assert_int_equal(verify_file(f, 0, &options), ST_CLOSED);
    assert_string_equal(f->lines, "");
    options.threads = 2;
    throttle = (struct throttle){ .most = 1 };
    assert_int_equal(ckpt_verify(f->io, f->dir, &options, NULL, NULL), ST_CLOSED);
}

static void rehash_manifest(char *text, size_t size)
{
    char hex[33];
    struct ckpt_hash hash = ckpt_hash_of(text, size - (sizeof(",\"xxh3_128\":\"") - 1 + 32 + 3));
    ckpt_hash_text(&hash, hex);
    memcpy(text + size - 35, hex, 32);
}

/* Makes the manifest agree with the files again, as a forger would. */
static void reseal(struct store_fixture *f)
{
    char path[LIMIT_PATH], name[LIMIT_PATH], hex[33];
    size_t size = 0, shard_size = 0;
    path_of(f, "manifest.json", path);
    char *text = (char *)memory_io_bytes(f->memory, path, &size);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        shard_path(f, rank, name);
        const uint8_t *bytes = memory_io_bytes(f->memory, name, &shard_size);
        struct ckpt_hash hash = ckpt_hash_of(bytes, shard_size);
        ckpt_hash_text(&hash, hex);
        char *entry = memmem(text, size, strrchr(name, '/') + 1, 26);
        assert_non_null(entry);
        entry = strstr(entry, "xxh3_128\":\"");
        assert_non_null(entry);
        memcpy(entry + 11, hex, 32);
    }
    rehash_manifest(text, size);
}

/* What isn't there takes no memory, however large the manifest says that it is. */
static void a_missing_file_of_any_size_is_missing(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH], text[4096];
    size_t size = 0;
    path_of(f, "manifest.json", path);
    const char *bytes = (const char *)memory_io_bytes(f->memory, path, &size);
    const char *at = memmem(bytes, size, "\"size\":", 7);
    assert_non_null(at);
    const char *rest = at + 7 + strspn(at + 7, "0123456789");
    int whole = snprintf(text, sizeof(text), "%.*s%" PRIi64 "%.*s", (int)(at + 7 - bytes), bytes,
                         INT64_MAX, (int)(bytes + size - rest), rest);
    assert_in_range(whole, 1, sizeof(text) - 1);
    rehash_manifest(text, (size_t)whole);
    memory_io_put(f->memory, path, text, (size_t)whole);
    assert_int_equal(verify(f), ST_INCOMPLETE);
    shard_path(f, 0, path);
    assert_int_equal(f->io->unlink(f->io->self, path), ST_OK);
    assert_int_equal(verify(f), ST_INCOMPLETE);
}

static void file_of_another_save_is_found_even_if_the_manifest_agrees(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH];
    size_t size = 0;
    static const char *const lines[] = { "the file is of another job",
                                         "the file is of another step or generation",
                                         "the file is of another step or generation",
                                         "the file is of another rank" };
    for (int kind = 0; kind < 4; kind++) {
        struct sample other;
        struct memory_io *memory = memory_io_new();
        const struct io *io = memory_io_table(memory);
        sample_init(&other, 300, kind == 1 ? 41 : 40, kind == 2 ? 3 : 2);
        if (kind == 0)
            other.state.job[2] = 'x';
        assert_int_equal(io_mkdir_all(io, "/d"), ST_OK);
        struct ckpt_report report;
        assert_int_equal(
            ckpt_shard_write(io, "/d", &other.state, kind == 3 ? 1 : 0, RANKS, NULL, &report),
            ST_OK);
        char from[64];
        (void)snprintf(from, sizeof(from), "/d/%.50s", report.file);
        const uint8_t *bytes = memory_io_bytes(memory, from, &size);
        shard_path(f, 0, path);
        size_t old_size = 0;
        const uint8_t *old = memory_io_bytes(f->memory, path, &old_size);
        auto_free uint8_t *copy = malloc(old_size);
        assert_non_null(copy);
        memcpy(copy, old, old_size);
        memory_io_put(f->memory, path, bytes, size);
        assert_found(f);
        if (size == old_size) {
            reseal(f);
            assert_found(f);
            assert_non_null(strstr(f->lines, lines[kind]));
        }
        memory_io_put(f->memory, path, copy, old_size);
        reseal(f);
        assert_int_equal(verify(f), ST_OK);
        ckpt_report_release(&report);
        sample_release(&other);
        memory_io_free(memory);
    }
}

/* Where the tables of a footer lie. */
static struct disk_trailer trailer_of(const uint8_t *bytes, size_t size)
{
    struct disk_trailer trailer;
    memcpy(&trailer, bytes + size - sizeof(trailer), sizeof(trailer));
    return trailer;
}

/* Makes a footer's and a header's hashes right again. */
static void rehash(uint8_t *bytes, size_t size)
{
    struct disk_trailer trailer = trailer_of(bytes, size);
    size_t hashed =
        (size_t)trailer.footer_size - sizeof(trailer) + offsetof(struct disk_trailer, hash);
    struct ckpt_hash hash = ckpt_hash_of(bytes + trailer.footer_offset, hashed);
    memcpy(bytes + trailer.footer_offset + hashed, hash.byte, sizeof(hash.byte));
    uint64_t check = ckpt_check_of(bytes, offsetof(struct disk_header, check));
    memcpy(bytes + offsetof(struct disk_header, check), &check, sizeof(check));
}

struct forgery {
    const char *line; /* that verify must print */
    size_t at;        /* in the footer, or from the file's start */
    bool in_header;
    uint64_t value; /* added there, 4 bytes */
    enum status st;
};

static void forged_tables_are_refused(void **state)
{
    struct store_fixture *f = *state;
    const size_t scalars = sizeof(struct disk_footer);
    const size_t buffers = scalars + sizeof(struct disk_scalars) + 2 * sizeof(uint64_t);
    const size_t chunks = buffers + SAMPLE_BUFFERS * sizeof(struct disk_buffer);
    char path[LIMIT_PATH];
    size_t size = 0;
    shard_path(f, 0, path);
    uint8_t *bytes = memory_io_bytes(f->memory, path, &size);
    struct disk_trailer trailer = trailer_of(bytes, size);
    uint32_t chunk_count = 0;
    memcpy(&chunk_count, bytes + trailer.footer_offset + 20, sizeof(chunk_count));
    const size_t tensors = chunks + chunk_count * sizeof(struct disk_reference);
    const struct forgery forgeries[] = {
        { "another version", offsetof(struct disk_header, version), true, 1, ST_VERSION },
        { "another version", offsetof(struct disk_header, features), true, 4, ST_VERSION },
        { "a constant", offsetof(struct disk_header, chunk_bytes), true, 1, ST_CORRUPT },
        { "over its limit", 16, false, 100, ST_CORRUPT },
        { "contradict", 16, false, 1, ST_CORRUPT },
        { "contradict", 20, false, 0x7fffffff, ST_CORRUPT },
        { "over its limit", 24, false, 0x7fffffff, ST_CORRUPT },
        { "sum", 40, false, 1, ST_CORRUPT },
        { "skip list", scalars + 48, false, 1, ST_CORRUPT },
        { "a buffer's entry", buffers + 120, false, 1, ST_CORRUPT },
        { "a buffer's entry", buffers + 136 + 4, false, 0x7fffffff, ST_CORRUPT },
        { "that this version doesn't know", buffers + 128, false, 77, ST_VERSION },
        { "hole", chunks, false, 1, ST_CORRUPT },
        { "can't be", chunks + 8, false, 1, ST_CORRUPT },
        { "can't be", chunks + 16, false, 90, ST_CORRUPT },
        { "hole", chunks + 20, false, 1, ST_CORRUPT },
        { "a tensor's entry", tensors + 132, false, 90, ST_CORRUPT },
        { "a tensor's entry", tensors + 136, false, 100000, ST_CORRUPT },
        { "a tensor's entry", tensors + 292, false, 0x7fffffff, ST_CORRUPT },
        { "that this version doesn't know", tensors + 148, false, 1, ST_VERSION },
        { "that this version doesn't know", tensors + 160, false, 1, ST_VERSION }, /* a part */
    };
    for (size_t i = 0; i < sizeof(forgeries) / sizeof(forgeries[0]); i++) {
        const struct forgery *it = &forgeries[i];
        uint8_t *at = bytes + it->at + (it->in_header ? 0 : trailer.footer_offset);
        uint32_t before = 0, after = 0;
        memcpy(&before, at, sizeof(before));
        after = before + (uint32_t)it->value;
        memcpy(at, &after, sizeof(after));
        rehash(bytes, size);
        reseal(f);
        assert_int_equal(verify(f), it->st);
        if (strstr(f->lines, it->line) == NULL)
            fail_msg("forgery %zu: %s", i, f->lines);
        bool equal = false;
        assert_int_equal(sample_compare(f->io, f->dir, &f->sample, &equal), it->st);
        memcpy(at, &before, sizeof(before));
        rehash(bytes, size);
        reseal(f);
    }
    assert_int_equal(verify(f), ST_OK);
}

/* A name that two tensors have is no name. */
static void a_tensor_that_lies_in_two_places_is_refused(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH];
    size_t size = 0;
    shard_path(f, 0, path);
    uint8_t *bytes = memory_io_bytes(f->memory, path, &size);
    struct disk_trailer trailer = trailer_of(bytes, size);
    struct disk_footer head;
    memcpy(&head, bytes + trailer.footer_offset, sizeof(head));
    assert_true(head.tensor_count >= 2);
    uint8_t *tensors = bytes + trailer.footer_offset + sizeof(head) + sizeof(struct disk_scalars) +
                       head.skip_count * sizeof(uint64_t) +
                       head.buffer_count * sizeof(struct disk_buffer) +
                       head.chunk_count * sizeof(struct disk_reference);
    memcpy(tensors + sizeof(struct disk_tensor), tensors, DISK_NAME);
    rehash(bytes, size);
    reseal(f);
    assert_int_equal(verify(f), ST_CORRUPT);
    assert_non_null(strstr(f->lines, "has two places"));
}

/* After a step of the program, forth or back: what the other one wrote is refused, and nothing bad
 * is said of it. */
static void another_version_is_refused_with_both_and_is_no_damage(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH];
    size_t size = 0, count = 0;
    path_of(f, "manifest.json", path);
    char *text = (char *)memory_io_bytes(f->memory, path, &size);
    char *version = memmem(text, size, "\"cairn_checkpoint\":2", 20);
    assert_non_null(version);
    version[19] = '7';
    rehash_manifest(text, size);
    assert_int_equal(verify(f), ST_VERSION);
    assert_non_null(strstr(f->lines, "of format version 7, this build reads 2"));
    struct ckpt_entry *entries = NULL;
    assert_int_equal(ckpt_list(f->io, f->store, SAMPLE_JOB, &entries, &count), ST_OK);
    assert_int_equal(count, 1);
    assert_int_equal(entries[0].manifest, ST_VERSION);
    assert_false(entries[0].damaged);
    free(entries);
    version[19] = '0';
    rehash_manifest(text, size);
    assert_int_equal(verify(f), ST_CORRUPT); /* no version is called so */
    version[19] = '1';
    rehash_manifest(text, size);
    assert_int_equal(verify(f), ST_VERSION);
    assert_non_null(strstr(f->lines, "of format version 1, this build reads 2"));
    version[19] = '2';
    rehash_manifest(text, size);
    shard_path(f, 0, path);
    uint8_t *bytes = memory_io_bytes(f->memory, path, &size);
    bytes[offsetof(struct disk_header, version)] = 3;
    rehash(bytes, size);
    reseal(f);
    memory_io_damage(f->memory, path, size / 2, 1); /* found, but this version can't tell */
    assert_int_equal(verify(f), ST_VERSION);
    assert_non_null(strstr(f->lines, "3 with features 0, this build reads 2 with features 0x1"));
    assert_int_equal(status_scope(ST_VERSION), SCOPE_JOB);
}

/* All checks of bytes pass; only the digest tells. */
static void state_that_isnt_the_one_of_the_digest_is_found(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH];
    size_t size = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        shard_path(f, rank, path);
        uint8_t *bytes = memory_io_bytes(f->memory, path, &size);
        bytes[trailer_of(bytes, size).footer_offset + sizeof(struct disk_footer)] ^= 1; /* seed */
        rehash(bytes, size);
    }
    reseal(f);
    assert_int_equal(verify(f), ST_CORRUPT);
    assert_non_null(strstr(f->lines, "its digest isn't that of the stored bytes"));
}

static void files_that_the_manifest_doesnt_name_are_ignored_and_listed(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH];
    path_of(f, "notes.txt", path);
    memory_io_put(f->memory, path, "mine", 4);
    assert_int_equal(verify(f), ST_OK);
    assert_string_equal(f->lines, "notes.txt: the manifest doesn't name it, ignored\n");
}

static void failing_reads_are_no_damage(void **state)
{
    struct store_fixture *f = *state;
    static const enum memory_io_fault faults[] = { MEMORY_IO_EIO, MEMORY_IO_SHORT,
                                                   MEMORY_IO_AGAIN };
    memory_io_arm(f->memory, MEMORY_IO_NONE, 0);
    assert_int_equal(verify(f), ST_OK);
    uint64_t calls = memory_io_calls(f->memory);
    for (size_t k = 0; k < 3; k++) {
        for (uint64_t n = 1; n <= calls; n++) {
            bool equal = true;
            memory_io_arm(f->memory, faults[k], n);
            enum status st = verify(f);
            assert_true(st == ST_OK || (k == 0 && st == ST_IO));
            memory_io_arm(f->memory, faults[k], n);
            st = sample_compare(f->io, f->dir, &f->sample, &equal);
            assert_true((st == ST_OK && equal) || (k == 0 && st == ST_IO));
            assert_int_equal(memory_io_open_files(f->memory), 0);
        }
    }
    memory_io_arm(f->memory, MEMORY_IO_NONE, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(missing_pieces_are_told_from_damage, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(a_single_file_is_read_and_its_damage_is_nobody_elses,
                                        set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(reading_can_be_paced_and_stopped, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(file_of_another_save_is_found_even_if_the_manifest_agrees,
                                        set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(a_missing_file_of_any_size_is_missing, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(forged_tables_are_refused, set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(another_version_is_refused_with_both_and_is_no_damage,
                                        set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(a_tensor_that_lies_in_two_places_is_refused, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(state_that_isnt_the_one_of_the_digest_is_found, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(files_that_the_manifest_doesnt_name_are_ignored_and_listed,
                                        set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(failing_reads_are_no_damage, set_up,
                                        store_fixture_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
