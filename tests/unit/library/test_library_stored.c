/* A state that was saved by the library is read again: from copies in memory and from a checkpoint,
 * by as many ranks or by others; damage is found. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_worker.h"
#include "library/cairn.h"
#include "stored_world.h"
#include "tests/test.h"

/* ---- what is saved ---- */

enum { ROWS = 37, COLUMNS = 21 };

/* The element at a place of the sharded matrix. */
static int32_t element(uint64_t row, uint64_t column)
{
    return (int32_t)(row * 1000 + column);
}

/* A grid of ranks: 4 as 2 x 2, 3 as 3 x 1, 2 as 1 x 2, uneven. */
static void box_of(uint32_t rank, uint32_t size, uint64_t start[2], uint64_t extent[2])
{
    const uint64_t down = size == 4 ? 2 : size == 3 ? 3 : 1, across = size == 3 ? 1 : size / down;
    const uint64_t r = rank / across, k = rank % across;
    const uint64_t rows = (ROWS + down - 1) / down, columns = (COLUMNS + across - 1) / across;
    start[0] = r * rows;
    start[1] = k * columns;
    extent[0] = start[0] + rows <= ROWS ? rows : ROWS - start[0];
    extent[1] = start[1] + columns <= COLUMNS ? columns : COLUMNS - start[1];
}

static void add_all(struct stored_rank *rank, uint32_t number, uint32_t size)
{
    const uint64_t big[] = { 300, 1000 }, small[] = { 5 }, none[] = { 0, 4 };
    stored_rank_add(rank, "big", CAIRN_F32, CAIRN_REPLICATED, 2, big);
    stored_rank_add(rank, "half", CAIRN_BF16, CAIRN_REPLICATED, 1, small);
    stored_rank_add(rank, "tiny", CAIRN_F8_E4M3FN, CAIRN_REPLICATED, 1, small);
    stored_rank_add(rank, "complex", CAIRN_C128, CAIRN_REPLICATED, 1, small);
    stored_rank_add(rank, "number", CAIRN_I64, CAIRN_REPLICATED, 0, NULL);
    stored_rank_add(rank, "nothing", CAIRN_F32, CAIRN_REPLICATED, 2, none);
    stored_rank_add(rank, "flag", CAIRN_BOOL, CAIRN_REPLICATED, 0, NULL);
    struct cairn_tensor *matrix =
        stored_rank_add(rank, "matrix", CAIRN_I32, CAIRN_SHARDED, 2, (uint64_t[]){ ROWS, COLUMNS });
    box_of(number, size, matrix->start, matrix->extent);
    int32_t *data = stored_rank_data(matrix);
    for (uint64_t r = 0; r < matrix->extent[0]; r++) {
        for (uint64_t k = 0; k < matrix->extent[1]; k++)
            *data++ = element(matrix->start[0] + r, matrix->start[1] + k);
    }
    struct cairn_tensor *own =
        stored_rank_add(rank, "own", CAIRN_U16, CAIRN_PRIVATE, 1, (uint64_t[]){ 10 + number });
    memset(stored_rank_data(own), (int)number + 1, (10 + number) * 2);
    stored_rank_blob(rank, "random", &number, sizeof(number));
    if (number == 1)
        stored_rank_blob(rank, "only one has it", "x", 1);
}

static void save_by(struct stored_world *w, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        add_all(stored_world_rank(w), i, size);
    stored_world_save(w, 40);
}

/* ---- what is read ---- */

static void assert_matrix(struct cairn_state *state, uint32_t size)
{
    for (uint32_t rank = 0; rank < size; rank++) {
        uint64_t start[2], extent[2];
        box_of(rank, size, start, extent);
        int32_t out[ROWS * COLUMNS];
        assert_int_equal(cairn_state_read(state, "matrix", 99, start, extent, out), CAIRN_OK);
        for (uint64_t i = 0; i < extent[0] * extent[1]; i++) {
            assert_int_equal(out[i], element(start[0] + i / extent[1], start[1] + i % extent[1]));
        }
    }
}

/* All of it, as it was saved by `size` ranks. */
static void assert_state(struct stored_world *w, struct cairn_state *state)
{
    struct cairn_state_info info;
    cairn_state_info(state, &info);
    assert_string_equal(info.job, "j-test");
    assert_int_equal(info.step, 40);
    assert_int_equal(info.ranks, w->size);
    assert_int_equal(info.tensors, 7 + 2 * w->size);
    assert_int_equal(info.blobs, w->size + (w->size > 1 ? 1 : 0));
    for (uint64_t i = 0; i < info.tensors; i++) {
        struct cairn_tensor tensor;
        uint32_t rank = 0;
        assert_int_equal(cairn_state_tensor(state, i, &tensor, &rank), CAIRN_OK);
        const struct cairn_tensor *saved = stored_rank_find(&w->ranks[rank], tensor.name);
        assert_memory_equal(tensor.extent, saved->extent, sizeof(tensor.extent));
        assert_int_equal(tensor.dtype, saved->dtype);
        uint8_t *out = malloc(stored_tensor_bytes(saved) + 1);
        const bool sharded = tensor.kind == CAIRN_SHARDED;
        assert_int_equal(cairn_state_read(state, tensor.name, rank, sharded ? tensor.start : NULL,
                                          sharded ? tensor.extent : NULL, out),
                         CAIRN_OK);
        assert_memory_equal(out, saved->data, stored_tensor_bytes(saved));
        free(out);
    }
    for (uint32_t rank = 0; rank < w->size; rank++) {
        uint32_t number = 99;
        assert_int_equal(cairn_state_read_blob(state, "random", rank, &number, sizeof(number)),
                         CAIRN_OK);
        assert_int_equal(number, rank);
    }
    for (uint32_t size = 1; size <= 4; size++)
        assert_matrix(state, size);
}

static void assert_refusals(struct cairn_state *state, uint32_t size)
{
    char out[64];
    struct cairn_tensor tensor;
    uint32_t rank = 0;
    const uint64_t start[2] = { 30, 0 }, extent[2] = { 8, 1 }, huge[2] = { UINT64_MAX, 1 };
    assert_int_equal(cairn_state_read(state, "unknown", 0, NULL, NULL, out), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_state_read(state, "own", size, NULL, NULL, out), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_state_read(state, "matrix", 0, start, extent, out), CAIRN_INVALID);
    assert_int_equal(cairn_state_read(state, "matrix", 0, start, huge, out), CAIRN_INVALID);
    assert_int_equal(cairn_state_read(state, "matrix", 0, start, NULL, out), CAIRN_INVALID);
    assert_int_equal(cairn_state_read_blob(state, "random", 0, out, 3), CAIRN_INVALID);
    assert_int_equal(cairn_state_read_blob(state, "random", size, out, 4), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_state_tensor(state, 1000, &tensor, &rank), CAIRN_NOT_FOUND);
}

static void is_read_from_memory(void **state)
{
    struct stored_world *w = *state;
    for (uint32_t size = 1; size <= 4; size++) {
        stored_world_begin(w, size);
        save_by(w, size);
        struct cairn_state *stored = NULL;
        assert_int_equal(stored_world_restore(w, WIRE_MEMORY, &stored), CAIRN_OK);
        assert_state(w, stored);
        assert_refusals(stored, size);
        cairn_state_close(stored);
        stored_world_end(w);
    }
}

static void is_read_from_a_checkpoint(void **state)
{
    struct stored_world *w = *state;
    for (uint32_t size = 1; size <= 4; size++) {
        stored_world_begin(w, size);
        save_by(w, size);
        stored_world_commit(w);
        struct cairn_state *stored = NULL;
        assert_int_equal(stored_world_restore(w, WIRE_CHECKPOINT, &stored), CAIRN_OK);
        assert_state(w, stored);
        cairn_state_close(stored);
        assert_int_equal(cairn_state_open(w->checkpoint, &stored), CAIRN_OK);
        assert_state(w, stored);
        assert_refusals(stored, size);
        cairn_state_close(stored);
        stored_world_end(w);
    }
}

/* Ranks with the same box (a copy of a shard), one whose box laps over theirs, and a hole. */
static void boxes_may_overlap(void **state)
{
    struct stored_world *w = *state;
    static const uint64_t starts[4] = { 0, 0, 3, 8 }, extents[4] = { 5, 5, 3, 2 };
    stored_world_begin(w, 4);
    for (uint32_t i = 0; i < 4; i++) {
        struct cairn_tensor *it = stored_rank_add(stored_world_rank(w), "row", CAIRN_U8,
                                                  CAIRN_SHARDED, 1, (uint64_t[]){ 10 });
        it->start[0] = starts[i];
        it->extent[0] = extents[i];
        for (uint64_t k = 0; k < extents[i]; k++)
            ((uint8_t *)stored_rank_data(it))[k] = (uint8_t)(starts[i] + k);
    }
    stored_world_save(w, 40);
    struct cairn_state *stored = NULL;
    uint8_t out[10];
    assert_int_equal(stored_world_restore(w, WIRE_MEMORY, &stored), CAIRN_OK);
    assert_int_equal(cairn_state_read(stored, "row", 0, (uint64_t[]){ 0 }, (uint64_t[]){ 6 }, out),
                     CAIRN_OK);
    assert_memory_equal(out, "\0\1\2\3\4\5", 6);
    assert_int_equal(cairn_state_read(stored, "row", 0, (uint64_t[]){ 8 }, (uint64_t[]){ 2 }, out),
                     CAIRN_OK);
    assert_memory_equal(out, "\x8\x9", 2);
    assert_int_equal(cairn_state_read(stored, "row", 0, NULL, NULL, out), CAIRN_NOT_FOUND);
    assert_non_null(strstr(cairn_why(NULL), "nobody"));
    cairn_state_close(stored);
    stored_world_end(w);
}

/* Eight ranks, each with an octant of a tensor of four dimensions; every box of it. */
static void boxes_have_many_dimensions(void **state)
{
    enum { A = 4, B = 5, C = 6, D = 2 };
    struct stored_world *w = *state;
    stored_world_begin(w, 8);
    for (uint32_t i = 0; i < 8; i++) {
        struct cairn_tensor *it = stored_rank_add(stored_world_rank(w), "cube", CAIRN_U16,
                                                  CAIRN_SHARDED, 4, (uint64_t[]){ A, B, C, D });
        const uint64_t cut[3] = { 1, 3, 2 };
        uint16_t *data = stored_rank_data(it);
        for (uint32_t d = 0; d < 3; d++) {
            it->start[d] = (i >> d & 1) != 0 ? cut[d] : 0;
            it->extent[d] = (i >> d & 1) != 0 ? it->shape[d] - cut[d] : cut[d];
        }
        for (uint64_t n = 0; n < stored_tensor_bytes(it) / 2; n++) {
            const uint64_t k = n % D, c = n / D % it->extent[2] + it->start[2];
            const uint64_t b = n / D / it->extent[2] % it->extent[1] + it->start[1];
            const uint64_t a = n / D / it->extent[2] / it->extent[1] + it->start[0];
            data[n] = (uint16_t)(((a * B + b) * C + c) * D + k);
        }
    }
    stored_world_save(w, 40);
    struct cairn_state *stored = NULL;
    assert_int_equal(stored_world_restore(w, WIRE_MEMORY, &stored), CAIRN_OK);
    for (uint64_t n = 0; n < UINT64_C(1) * A * A * B * B * C * C; n++) {
        const uint64_t start[4] = { n % A, n / A % B, n / A / B % C, 0 };
        const uint64_t m = n / A / B / C;
        const uint64_t extent[4] = { m % A + 1, m / A % B + 1, m / A / B % C + 1, 1 + n % D };
        uint16_t out[A * B * C * D];
        if (start[0] + extent[0] > A || start[1] + extent[1] > B || start[2] + extent[2] > C)
            continue;
        assert_int_equal(cairn_state_read(stored, "cube", 0, start, extent, out), CAIRN_OK);
        const uint16_t *at = out;
        for (uint64_t i = 0; i < extent[0] * extent[1] * extent[2] * extent[3]; i++) {
            const uint64_t k = i % extent[3], c = i / extent[3] % extent[2] + start[2];
            const uint64_t b = i / extent[3] / extent[2] % extent[1] + start[1];
            const uint64_t a = i / extent[3] / extent[2] / extent[1] + start[0];
            assert_int_equal(*at++, ((a * B + b) * C + c) * D + k);
        }
    }
    cairn_state_close(stored);
    stored_world_end(w);
}

/* ---- damage ---- */

/* Reads everything; the first error. */
static int read_all(struct stored_world *w, enum wire_source source)
{
    struct cairn_state *stored = NULL;
    struct cairn_tensor tensor;
    uint32_t rank = 0;
    int status = stored_world_restore(w, source, &stored);
    if (status != CAIRN_OK)
        return status;
    for (uint64_t i = 0; cairn_state_tensor(stored, i, &tensor, &rank) == CAIRN_OK; i++) {
        uint8_t *out = malloc(stored_tensor_bytes(&tensor) + 1);
        const bool sharded = tensor.kind == CAIRN_SHARDED;
        const int one = cairn_state_read(stored, tensor.name, rank, sharded ? tensor.start : NULL,
                                         sharded ? tensor.extent : NULL, out);
        status = status == CAIRN_OK ? one : status;
        free(out);
    }
    for (uint32_t r = 0; r < w->size; r++) {
        uint32_t number = 0;
        const int one = cairn_state_read_blob(stored, "random", r, &number, sizeof(number));
        status = status == CAIRN_OK ? one : status;
        assert_true(one != CAIRN_OK || number == r);
    }
    cairn_state_close(stored);
    return status;
}

static void flip(const char *path, uint64_t at)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte = 0;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
}

/* The first and last byte of each of a copy's tensors, its tables, seal and blobs. */
static void a_flipped_byte_in_memory_is_found(void **state)
{
    struct stored_world *w = *state;
    stored_world_begin(w, 2);
    save_by(w, 2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const char *path = stored_world_path(w, rank);
        struct copy_view view;
        uint64_t places[16] = { 3, 100, 64 + 3696 + 4432 + 8 }, count = 3;
        assert_int_equal(copy_view_map(path, &view), ST_OK);
        const struct copy_extent *last =
            &copy_view_extents(&view)[view.head->extent_count - 1]; /* the area */
        places[count++] = copy_view_extents(&view)[0].data;
        places[count++] = last->data;
        places[count++] = last->data + 64 + 20;
        places[count++] = last->data + w->places[rank].blobs + 3;
        places[count++] = last->data + w->places[rank].blobs + 256 * sizeof(struct place_blob);
        places[count++] = last->data + w->places[rank].places[7].offset; /* matrix */
        places[count++] = last->data + w->places[rank].places[8].offset; /* own */
        copy_view_unmap(&view);
        assert_int_equal(read_all(w, WIRE_MEMORY), CAIRN_OK);
        for (uint64_t i = 0; i < count; i++) {
            flip(path, places[i]);
            if (read_all(w, WIRE_MEMORY) != CAIRN_CORRUPT)
                fail_msg("rank %u, byte %llu", rank, (unsigned long long)places[i]);
            assert_string_not_equal(cairn_why(NULL), "");
            flip(path, places[i]);
        }
    }
    assert_int_equal(read_all(w, WIRE_MEMORY), CAIRN_OK);
    assert_int_equal(truncate(stored_world_path(w, 1), 4096), 0);
    assert_int_equal(read_all(w, WIRE_MEMORY), CAIRN_CORRUPT);
    assert_int_equal(unlink(stored_world_path(w, 0)), 0);
    assert_int_equal(read_all(w, WIRE_MEMORY), CAIRN_CORRUPT); /* never: begin anew */
    stored_world_end(w);
}

static void a_flipped_byte_in_a_checkpoint_is_found(void **state)
{
    struct stored_world *w = *state;
    stored_world_begin(w, 2);
    save_by(w, 2);
    stored_world_commit(w);
    assert_int_equal(read_all(w, WIRE_CHECKPOINT), CAIRN_OK);
    for (uint32_t rank = 0; rank < 2; rank++) {
        char path[LIMIT_PATH + 80];
        struct stat about;
        (void)snprintf(path, sizeof(path), "%s/%s", w->checkpoint, w->shards[rank]);
        assert_int_equal(stat(path, &about), 0);
        for (uint64_t at = 0; at < (uint64_t)about.st_size;
             at += (uint64_t)about.st_size / 61 + 1) {
            flip(path, at);
            if (read_all(w, WIRE_CHECKPOINT) == CAIRN_OK) {
                /* Padding is not read; what is read is what was saved (read_all asserts it). */
                struct cairn_state *stored = NULL;
                assert_int_equal(cairn_state_open(w->checkpoint, &stored), CAIRN_OK);
                assert_state(w, stored);
                cairn_state_close(stored);
            } else {
                assert_string_not_equal(cairn_why(NULL), "");
            }
            flip(path, at);
        }
        flip(path, 4096 + 256); /* in the first chunk */
        assert_int_equal(read_all(w, WIRE_CHECKPOINT), CAIRN_CORRUPT);
        flip(path, 4096 + 256);
    }
    assert_int_equal(read_all(w, WIRE_CHECKPOINT), CAIRN_OK);
    stored_world_end(w);
}

static void ranks_that_saved_different_states_are_refused(void **state)
{
    struct stored_world *w = *state;
    for (int what = 0; what < 3; what++) {
        stored_world_begin(w, 2);
        for (uint32_t i = 0; i < 2; i++) {
            struct stored_rank *rank = stored_world_rank(w);
            const uint64_t shape[] = { 8 };
            stored_rank_add(rank, what == 0 && i == 1 ? "b" : "a", CAIRN_F32, CAIRN_REPLICATED, 1,
                            shape);
            stored_rank_add(rank, "c", what == 1 && i == 1 ? CAIRN_I32 : CAIRN_F32, CAIRN_SHARDED,
                            1, shape);
            stored_rank_add(rank, "d", CAIRN_F32,
                            what == 2 && i == 1 ? CAIRN_SHARDED : CAIRN_PRIVATE, 1, shape);
        }
        stored_world_save(w, 40);
        struct cairn_state *stored = NULL;
        assert_int_equal(stored_world_restore(w, WIRE_MEMORY, &stored), CAIRN_CORRUPT);
        stored_world_end(w);
    }
}

static void a_checkpoint_of_a_model_is_read(void **state)
{
    (void)state;
    struct cairn_state *stored = NULL;
    struct cairn_state_info info;
    const char *path = SOURCE_DIR "/tests/golden/checkpoint/v2/j-0123456789/step-000000000040.g2";
    assert_int_equal(cairn_state_open(path, &stored), CAIRN_OK);
    cairn_state_info(stored, &info);
    assert_int_equal(info.step, 40);
    assert_true(info.tensors > 0);
    assert_int_equal(info.blobs, 0);
    for (uint64_t i = 0; i < info.tensors; i++) {
        struct cairn_tensor tensor;
        uint32_t rank = 99;
        assert_int_equal(cairn_state_tensor(stored, i, &tensor, &rank), CAIRN_OK);
        assert_int_equal(tensor.kind, CAIRN_REPLICATED);
        uint8_t *out = malloc(stored_tensor_bytes(&tensor) + 1);
        assert_int_equal(cairn_state_read(stored, tensor.name, 0, NULL, NULL, out), CAIRN_OK);
        free(out);
    }
    cairn_state_close(stored);
    assert_int_equal(cairn_state_open("/nowhere", &stored), CAIRN_NOT_FOUND);
    cairn_state_close(NULL);
}

/* A copy file gets another copy while its first one is being read. */
static void what_is_overwritten_is_not_read(void **state)
{
    struct stored_world *w = *state;
    stored_world_begin(w, 1);
    save_by(w, 1);
    struct cairn_state *stored = NULL;
    assert_int_equal(stored_world_restore(w, WIRE_MEMORY, &stored), CAIRN_OK);
    float *out = malloc(300 * 1000 * sizeof(*out));
    assert_int_equal(cairn_state_read(stored, "big", 0, NULL, NULL, out), CAIRN_OK);
    const struct cairn_tensor *saved = stored_rank_find(&w->ranks[0], "big");
    ((float *)stored_rank_data(saved))[70000] = 1;
    stored_world_save(w, 41);
    stored_world_save(w, 42);
    assert_int_equal(cairn_state_read(stored, "big", 0, NULL, NULL, out), CAIRN_CORRUPT);
    cairn_state_close(stored);
    free(out);
    stored_world_end(w);
}

int main(void)
{
#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, stored_world_set_up, stored_world_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(is_read_from_memory),
        TEST(is_read_from_a_checkpoint),
        TEST(boxes_may_overlap),
        TEST(boxes_have_many_dimensions),
        TEST(a_flipped_byte_in_memory_is_found),
        TEST(a_flipped_byte_in_a_checkpoint_is_found),
        TEST(ranks_that_saved_different_states_are_refused),
        TEST(a_checkpoint_of_a_model_is_read),
        TEST(what_is_overwritten_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
