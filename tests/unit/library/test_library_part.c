/* libcairn in one of several processes of a worker: what of their copy file each fills in. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_worker.h"
#include "library/cairn.h"
#include "tests/test.h"

#define PIECES 4

/* One of the two processes of a worker saves many weights. Notes which pieces of them it wrote, and
 * whether its own area is where it belongs. */
static void save_part(const char *folder, uint32_t rank, bool out_wrote[PIECES])
{
    const uint64_t count = (PIECES - 1) * (uint64_t)PIECE_ELEMENTS + 777;
    float *weights = calloc(count, sizeof(*weights));
    const struct cairn_tensor tensor = { .name = "weights",
                                         .dtype = CAIRN_F32,
                                         .kind = CAIRN_REPLICATED,
                                         .ndim = 1,
                                         .shape = { count },
                                         .data = weights };
    struct fake_worker *worker = calloc(1, sizeof(*worker));
    struct cairn *c = NULL;
    *worker = (struct fake_worker){
        .folder = folder, .rank = rank, .size = 2, .processes = 2, .dirty = true
    };
    fake_start(worker);
    assert_int_equal(cairn_open(NULL, &c), CAIRN_OK);
    assert_int_equal(cairn_layout(c, &tensor, 1, 100), CAIRN_OK);
    assert_int_equal(cairn_ready(c, 4, 1000, 10), CAIRN_OK);
    assert_int_equal(cairn_save_begin(c, 5, NULL), CAIRN_OK);
    assert_int_equal(cairn_save_start(c), CAIRN_OK);
    assert_int_equal(cairn_save_copied(c), CAIRN_OK);
    cairn_close(c);
    fake_stop(worker);
    const uint8_t *memory = worker->files[worker->file].memory;
    const struct copy_head *head = (const void *)(memory + sizeof(struct copy_seal));
    const struct copy_extent *extents = (const void *)(memory + head->extents);
    assert_int_equal(head->extent_count, 2);
    for (uint64_t i = 0; i < PIECES; i++) {
        const uint64_t first = i * PIECE_ELEMENTS * sizeof(float);
        const uint64_t last = i + 1 < PIECES ? first + PIECE_ELEMENTS * sizeof(float) : 4 * count;
        out_wrote[i] = memory[extents[0].data + first] == 0;
        assert_int_equal(memory[extents[0].data + last - 1] == 0, out_wrote[i]);
    }
    const uint64_t area = worker->places.buffer_bytes[PLACE_RANKS];
    for (uint32_t i = 0; i < 2; i++) {
        const void *begin = memory + extents[1].data + i * area;
        assert_int_equal(memcmp(begin, "CAIRNARE", 8) == 0, i == rank);
    }
    assert_int_equal(unlink(fake_path(worker)), 0);
    fake_release(worker);
    free(worker);
    free(weights);
}

static void fills_in_its_part_of_the_workers_copy(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-library-XXXXXX";
    bool wrote[2][PIECES];
    assert_non_null(mkdtemp(folder));
    for (uint32_t rank = 0; rank < 2; rank++)
        save_part(folder, rank, wrote[rank]);
    for (int i = 0; i < PIECES; i++) {
        assert_true(wrote[0][i] == (i < PIECES / 2));
        assert_true(wrote[1][i] == (i >= PIECES / 2));
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_in_its_part_of_the_workers_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
