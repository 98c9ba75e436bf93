/*
 * A small checkpoint with every byte changed, one at a time, and cut off at every byte (at level
 * default, and as a difference): verify finds each, and a restore refuses each. With
 * CAIRN_TEST_FULL every bit of every byte is changed by itself, and all levels are cut off.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/read/cursor.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define RANKS  2
#define CODECS 16 /* more than there are */

/* How the checkpoint is written. */
struct kind {
    const char *name;
    enum ckpt_level level;
    bool differs; /* from a parent */
    bool full, cuts;
};

struct world {
    const struct kind *kind;
    struct store_fixture *f;
    char parent[LIMIT_PATH];
};

struct counts {
    uint64_t changes, refused, right, cuts;
};

static enum status verify(const struct world *world, const char *dir)
{
    return store_fixture_verify(world->f, dir, NULL);
}

static void set_up(struct world *world, const struct kind *kind)
{
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, 200);
    struct sample before = f->sample;
    struct sample_options options = { .level = kind->level };
    *world = (struct world){ .kind = kind, .f = f };
    if (kind->differs) {
        store_fixture_save(f, RANKS, &options);
        memcpy(world->parent, f->dir, sizeof(world->parent));
        assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &options.write.base), ST_OK);
    }
    sample_init_near(&f->sample, &before, 41, 2);
    sample_release(&before);
    store_fixture_save(f, RANKS, &options);
    ckpt_close(options.write.base);
    store_fixture_assert_saved(f, f->dir);
}

/* Which codecs the chunks are of: what a sweep of this kind has swept. */
static void tell_codecs(const struct world *world, char out[64])
{
    static const size_t codec_at = offsetof(struct disk_chunk, codec);
    struct ckpt_reader *reader = NULL;
    struct ckpt_cursor *cursor = NULL;
    bool seen[256] = { false };
    assert_int_equal(ckpt_open(world->f->io, world->f->dir, NULL, NULL, &reader), ST_OK);
    assert_int_equal(ckpt_cursor_new(reader, &cursor), ST_OK);
    for (uint64_t i = 0; i < reader->set.place_count; i++) {
        const uint8_t *stored = NULL;
        assert_int_equal(ckpt_cursor_fetch(cursor, &reader->set.places[i], &stored), ST_OK);
        seen[stored[codec_at]] = true;
    }
    if (world->kind->differs)
        assert_true(seen[DISK_DELTA]);
    out[0] = '\0';
    for (int codec = 0; codec < CODECS; codec++) {
        size_t used = strlen(out);
        if (seen[codec])
            (void)snprintf(out + used, 64 - used, "%s%d", used > 0 ? ", " : "", codec);
    }
    ckpt_cursor_free(cursor);
    ckpt_close(reader);
}

/* A restore refuses, or (where that may be) gives the right state all the same. */
static void restore(struct world *world, bool must_refuse, struct counts *counts)
{
    bool equal = false;
    enum status st = sample_compare(world->f->io, world->f->dir, &world->f->sample, &equal);
    bool refused = status_scope(st) == SCOPE_CHECKPOINT;
    if (!refused && (must_refuse || st != ST_OK || !equal))
        fail_msg("a restore gave %s, %s", status_string(st), equal ? "equal" : "different");
    counts->refused += refused;
    counts->right += !refused;
}

/* One file of the checkpoint in dir; another's damage a restore of world->dir may not notice. */
static void change_every_byte(struct world *world, const char *dir, const char *name,
                              struct counts *counts)
{
    bool own = strcmp(dir, world->f->dir) == 0;
    bool every_bit = world->kind->full || strcmp(name, "manifest.json") == 0;
    char path[LIMIT_PATH];
    size_t size = 0;
    store_fixture_path(dir, name, path);
    uint8_t *bytes = memory_io_bytes(world->f->memory, path, &size);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) {
        for (int bit = 0; bit < (every_bit ? 8 : 1); bit++) {
            int place = every_bit ? bit : (int)((i * 5 + i / 8) % 8);
            uint8_t mask = (uint8_t)(!every_bit && i % 11 == 0 ? 0xff : 1 << place);
            bytes[i] ^= mask;
            enum status st = verify(world, dir);
            if (status_scope(st) != SCOPE_CHECKPOINT || world->f->lines[0] == '\0')
                fail_msg("byte %zu of %s: verify says %s", i, name, status_string(st));
            restore(world, own, counts);
            bytes[i] ^= mask;
            counts->changes++;
        }
    }
}

static void cut_at_every_byte(struct world *world, const char *name, struct counts *counts)
{
    char path[LIMIT_PATH];
    size_t size = 0;
    store_fixture_path(world->f->dir, name, path);
    const uint8_t *bytes = memory_io_bytes(world->f->memory, path, &size);
    auto_free uint8_t *copy = calloc(size + 1, 1);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    for (size_t keep = 0; keep <= size + 1; keep++) {
        if (keep == size)
            continue;
        memory_io_put(world->f->memory, path, copy, keep);
        enum status st = verify(world, world->f->dir);
        if (status_scope(st) != SCOPE_CHECKPOINT || world->f->lines[0] == '\0')
            fail_msg("%s cut to %zu bytes: verify says %s", name, keep, status_string(st));
        struct counts ignored = { 0 };
        restore(world, true, &ignored);
        counts->cuts++;
    }
    memory_io_put(world->f->memory, path, copy, size);
}

static void sweep(void **state)
{
    static const char *const files[] = { "manifest.json", "shard-00000-of-00002.cairn",
                                         "shard-00001-of-00002.cairn" };
    const struct kind *kind = *state;
    struct world world;
    struct counts own = { 0 }, others = { 0 };
    char codecs[64];
    set_up(&world, kind);
    tell_codecs(&world, codecs);
    for (size_t i = 0; i < 3; i++) {
        change_every_byte(&world, world.f->dir, files[i], &own);
        if (kind->cuts || kind->full)
            cut_at_every_byte(&world, files[i], &own);
        if (kind->differs)
            change_every_byte(&world, world.parent, files[i], &others);
    }
    assert_int_equal(verify(&world, world.f->dir), ST_OK);
    assert_int_equal(own.refused, own.changes);
    print_message("%s (codecs %s): %llu changes, each found and refused; %llu cuts, likewise\n",
                  kind->name, codecs, (unsigned long long)own.changes,
                  (unsigned long long)own.cuts);
    if (kind->differs) {
        print_message("  of the parent: %llu changes found, %llu refused by a restore of the "
                      "child, %llu of no matter to it\n",
                      (unsigned long long)others.changes, (unsigned long long)others.refused,
                      (unsigned long long)others.right);
    }
    store_fixture_free(world.f);
}

/* The stored golden chunks have every codec and every mode of a plane, also those that only larger
 * states come to. */
static void every_change_of_a_golden_chunk_is_found(void **state)
{
    const struct kind *kind = *state;
    struct ckpt_codec *codec = NULL;
    glob_t found;
    uint64_t changes = 0;
    auto_free uint8_t *raw = calloc(DISK_CHUNK_BYTES, 1);
    auto_free uint8_t *base = calloc(DISK_CHUNK_BYTES, 1);
    assert_non_null(raw);
    assert_non_null(base);
    assert_int_equal(ckpt_codec_new(CKPT_DEFAULT, &codec), ST_OK);
    assert_int_equal(glob(SOURCE_DIR "/tests/golden/checkpoint/chunks/*.chunk", 0, NULL, &found),
                     0);
    for (size_t f = 0; f < found.gl_pathc; f++) {
        auto_free char *bytes = NULL;
        size_t size = 0;
        struct disk_chunk head;
        assert_int_equal(io_read_file(io_system(), found.gl_pathv[f], 1 << 20, &bytes, &size),
                         ST_OK);
        memcpy(&head, bytes, sizeof(head));
        const struct ckpt_chunk_place place = { head.buffer, head.index,
                                                (enum ckpt_dtype)head.dtype, head.raw_size };
        for (size_t i = 0; i < 8 * size; i += kind->full ? 1 : 9) {
            const char *what = NULL;
            bytes[i / 8] ^= (char)(1 << i % 8);
            enum status st = ckpt_chunk_read(codec, &place, (const uint8_t *)bytes, (uint32_t)size,
                                             base, raw, &what);
            bytes[i / 8] ^= (char)(1 << i % 8);
            if (st != ST_CORRUPT || what == NULL)
                fail_msg("bit %zu of %s: %s", i, found.gl_pathv[f], status_string(st));
            changes++;
        }
    }
    assert_true(found.gl_pathc >= 9);
    print_message("%zu golden chunks: %llu changes, each found\n", found.gl_pathc,
                  (unsigned long long)changes);
    globfree(&found);
    ckpt_codec_free(codec);
}

int main(void)
{
    const bool full = getenv("CAIRN_TEST_FULL") != NULL;
    struct kind kinds[] = {
        { "level default", CKPT_DEFAULT, false, full, true },
        { "level fast", CKPT_FAST, false, full, false },
        { "level max", CKPT_MAX, false, full, false },
        { "a difference, level default", CKPT_DEFAULT, true, full, true },
        { "a difference, level max", CKPT_MAX, true, full, false },
    };
    const struct CMUnitTest tests[] = {
        { "every_change_is_found_and_refused_at_level_default", sweep, NULL, NULL, &kinds[0] },
        { "every_change_is_found_and_refused_at_level_fast", sweep, NULL, NULL, &kinds[1] },
        { "every_change_is_found_and_refused_at_level_max", sweep, NULL, NULL, &kinds[2] },
        { "every_change_is_found_and_refused_in_a_difference", sweep, NULL, NULL, &kinds[3] },
        { "every_change_is_found_and_refused_in_a_difference_at_level_max", sweep, NULL, NULL,
          &kinds[4] },
        { "every_change_of_a_golden_chunk_is_found", every_change_of_a_golden_chunk_is_found, NULL,
          NULL, &kinds[0] },
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
