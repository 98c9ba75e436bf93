#include "tests/unit/session/copies/copies_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "tests/test.h"

void copies_fill(struct copies *s, uint64_t step)
{
    for (size_t i = 0; i < s->count; i++)
        s->values[i] = (float)i + 0.001f * (float)step;
    for (size_t i = 0; i < COPIES_SMALL; i++)
        s->small[i] = (float)(i * step);
    s->state.scalars.step = step;
}

struct copies *copies_new(size_t count)
{
    struct copies *s = calloc(1, sizeof(*s));
    CHECK(s != NULL);
    s->count = count;
    (void)snprintf(s->dir, sizeof(s->dir), "/tmp/cairn-copies-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->values = calloc(count, sizeof(float));
    CHECK(s->values != NULL);
    s->buffers[0] = (struct ckpt_buffer){
        .name = "parameters", .dtype = CKPT_F32, .count = count, .data = s->values
    };
    s->buffers[1] = (struct ckpt_buffer){
        .name = "statistics", .dtype = CKPT_F32, .count = COPIES_SMALL, .data = s->small
    };
    s->skip[0] = 3;
    s->skip[1] = 5;
    s->blob = (struct ckpt_blob){ .name = "pins.json", .data = "{\"a\":1}", .size = 7 };
    s->state = (struct ckpt_state){
        .job = COPIES_JOB,
        .generation = 4,
        .buffers = s->buffers,
        .buffer_count = 2,
        .blobs = &s->blob,
        .blob_count = 1,
        .scalars = { .seed = 9, .loss_scale = 1024, .skip = s->skip, .skip_count = 2 }
    };
    copies_fill(s, 7);
    return s;
}

void copies_free(struct copies *s)
{
    char command[COPIES_PATH];
    (void)snprintf(command, sizeof(command), "rm -r %s", s->dir);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): our own folder */
    free(s->values);
    free(s);
}

void copies_path(const struct copies *s, uint32_t generation, uint32_t rank, int number,
                 char out[COPIES_PATH])
{
    (void)snprintf(out, COPIES_PATH, "%s/g%u-r%u-%d.copy", s->dir, generation, rank, number);
}

size_t copies_share_bytes(const struct copies *s, uint32_t rank, uint32_t size)
{
    struct ckpt_share share;
    assert_int_equal(ckpt_share_of(&s->state, rank, size, &share), ST_OK);
    return (size_t)ckpt_share_bytes(&s->state, &share);
}

void copies_write(const struct copies *s, const char *path, uint32_t rank, uint32_t size)
{
    struct copy_file file;
    assert_int_equal(copy_file_open(path, copies_share_bytes(s, rank, size), &file), ST_OK);
    assert_int_equal(copy_file_begin(&file, &s->state, rank, size), ST_OK);
    copy_file_fill(&file);
    copy_file_seal(&file);
    copy_file_close(&file);
}

void copies_check(const struct copies *s, const struct copy_view *view)
{
    assert_string_equal(view->head->job, COPIES_JOB);
    const struct copy_extent *extents = copy_view_extents(view);
    for (uint32_t i = 0; i < view->head->extent_count; i++) {
        size_t size = 0;
        const void *data = copy_view_data(view, i, &size);
        const float *from = s->buffers[extents[i].buffer].data;
        assert_int_equal(size, extents[i].count * sizeof(float));
        assert_memory_equal(data, from + extents[i].first, size);
        assert_int_equal(copy_view_check_data(view, i, 0, data, size), ST_OK);
    }
    struct ckpt_scalars scalars;
    copy_view_scalars(view, &scalars);
    assert_int_equal(scalars.step, s->state.scalars.step);
    assert_int_equal(scalars.seed, 9);
    assert_true(scalars.loss_scale == 1024);
    assert_int_equal(scalars.skip_count, 2);
    assert_int_equal(scalars.skip[1], 5);
    size_t size = 0;
    const char *pins = copy_view_blob(view, "pins.json", &size);
    assert_non_null(pins);
    assert_memory_equal(pins, "{\"a\":1}", size);
    assert_null(copy_view_blob(view, "other", &size));
}

bool copies_damaged(const char *path)
{
    struct copy_view view;
    if (copy_view_map(path, &view) != ST_OK)
        return true;
    bool found = false;
    for (uint32_t i = 0; i < view.head->extent_count; i++) {
        size_t size = 0;
        const void *data = copy_view_data(&view, i, &size);
        found = found || copy_view_check_data(&view, i, 0, data, size) == ST_CORRUPT;
    }
    copy_view_unmap(&view);
    return found;
}

void copies_flip(const char *path, size_t at, uint8_t bits)
{
    uint8_t byte = 0;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
}
