#include "tests/unit/checkpoint/store_fixture.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/format/names.h"
#include "tests/test.h"

struct store_fixture *store_fixture_new(enum store_fixture_place place, uint64_t elements)
{
    struct store_fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->io = io_system();
    (void)snprintf(f->store, sizeof(f->store), "%s",
                   place == STORE_IN_MEMORY ? SAMPLE_STORE : "/tmp/cairn-store-XXXXXX");
    if (place == STORE_IN_MEMORY) {
        f->memory = memory_io_new();
        f->io = memory_io_table(f->memory);
    } else {
        assert_non_null(mkdtemp(f->store));
    }
    sample_init(&f->sample, elements, 40, 2);
    return f;
}

void store_fixture_free(struct store_fixture *f)
{
    if (f->memory == NULL)
        remove_tree(f->store);
    if (f->memory != NULL)
        assert_int_equal(memory_io_open_files(f->memory), 0);
    memory_io_free(f->memory);
    sample_release(&f->sample);
    free(f);
}

int store_fixture_tear_down(void **state)
{
    store_fixture_free(*state);
    return 0;
}

void store_fixture_save(struct store_fixture *f, uint32_t ranks,
                        const struct sample_options *options)
{
    struct sample_options here = options == NULL ? (struct sample_options){ 0 } : *options;
    here.store = f->store;
    assert_int_equal(sample_save(f->io, &f->sample, ranks, &here, f->dir), ST_OK);
}

void store_fixture_assert_saved(struct store_fixture *f, const char *dir)
{
    bool equal = false;
    assert_int_equal(sample_compare(f->io, dir, &f->sample, &equal), ST_OK);
    assert_true(equal);
    assert_int_equal(ckpt_verify(f->io, dir, NULL, NULL, NULL), ST_OK);
}

void store_fixture_note(void *fixture, const char *line)
{
    struct store_fixture *f = fixture;
    size_t used = strlen(f->lines);
    assert_true(strlen(line) > 0);
    (void)snprintf(f->lines + used, sizeof(f->lines) - used, "%s\n", line);
}

enum status store_fixture_verify(struct store_fixture *f, const char *dir,
                                 const struct ckpt_read_options *options)
{
    f->lines[0] = '\0';
    return ckpt_verify(f->io, dir, options, store_fixture_note, f);
}

void store_fixture_path(const char *dir, const char *name, char out[LIMIT_PATH])
{
    assert_true(snprintf(out, LIMIT_PATH, "%.500s/%s", dir, name) < LIMIT_PATH);
}

void store_fixture_shard(const char *dir, uint32_t rank, uint32_t ranks, char out[LIMIT_PATH])
{
    char name[64];
    ckpt_shard_name(rank, ranks, name);
    store_fixture_path(dir, name, out);
}

void store_fixture_flip(struct store_fixture *f, const char *path, uint64_t at, uint8_t mask)
{
    if (f->memory != NULL) {
        memory_io_damage(f->memory, path, at, mask);
        return;
    }
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ mask, file), EOF);
    assert_int_equal(fclose(file), 0);
}

size_t resident_bytes(void)
{
    unsigned long whole = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &whole, &resident), 2);
    assert_int_equal(fclose(file), 0);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)kind, (void)place;
    return remove(path);
}

void remove_tree(const char *path)
{
    assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}
