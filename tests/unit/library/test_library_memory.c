/* Every allocation of libcairn's, and of what it calls, fails once: it says so, and nothing is left
 * (with AddressSanitizer). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_worker.h"
#include "library/cairn.h"
#include "library/stored/stored.h"
#include "library/stored/why.h"
#include "stored_world.h"
#include "tests/test.h"
#include "tests/unit/trainer/counted_allocations.h"

#define SWEEP_MAX 10000

static void add_all(struct stored_rank *rank, uint32_t number)
{
    const uint64_t big[] = { 100, 1000 }, matrix[] = { 8, 6 };
    stored_rank_add(rank, "big", CAIRN_F32, CAIRN_REPLICATED, 2, big);
    stored_rank_add(rank, "complex", CAIRN_C128, CAIRN_REPLICATED, 1, matrix);
    struct cairn_tensor *it = stored_rank_add(rank, "matrix", CAIRN_I32, CAIRN_SHARDED, 2, matrix);
    it->start[0] = UINT64_C(4) * number;
    it->extent[0] = 4;
    stored_rank_add(rank, "own", CAIRN_U16, CAIRN_PRIVATE, 1, matrix);
    stored_rank_blob(rank, "random", &number, sizeof(number));
}

/* ---- a program's life ---- */

static int live(struct cairn **c, const struct cairn_tensor *tensors)
{
    static const char *const names[] = { "loss" };
    const double loss = 1;
    int status = cairn_open(NULL, c);
    if (status == CAIRN_OK)
        status = cairn_layout(*c, tensors, 2, 100);
    if (status == CAIRN_OK)
        status = cairn_ready(*c, 4, 1000, 10);
    if (status == CAIRN_OK)
        status = cairn_step(*c, 5);
    if (status >= CAIRN_OK)
        status = cairn_save_begin(*c, 5, NULL);
    if (status == CAIRN_OK)
        status = cairn_save_blob(*c, "random", "0123", 4);
    if (status == CAIRN_OK)
        status = cairn_save_start(*c);
    if (status == CAIRN_OK)
        status = cairn_save_copied(*c);
    if (status == CAIRN_OK)
        status = cairn_log(*c, 5, names, &loss, 1);
    return status == CAIRN_OK ? cairn_finish(*c, 5) : status;
}

static void a_connection_says_that_there_is_no_memory(void **state)
{
    (void)state;
    static const float weights[1000];
    static const int64_t own[5];
    const struct cairn_tensor tensors[] = { { .name = "weights",
                                              .dtype = CAIRN_F32,
                                              .kind = CAIRN_REPLICATED,
                                              .ndim = 1,
                                              .shape = { 1000 },
                                              .data = weights },
                                            { .name = "own",
                                              .dtype = CAIRN_I64,
                                              .kind = CAIRN_PRIVATE,
                                              .ndim = 1,
                                              .shape = { 5 },
                                              .data = own } };
    char folder[] = "/tmp/cairn-library-XXXXXX";
    assert_non_null(mkdtemp(folder));
    bool failed = true;
    int number = 0;
    for (; failed && number < SWEEP_MAX; number++) {
        struct fake_worker *worker = calloc(1, sizeof(*worker));
        *worker = (struct fake_worker){ .folder = folder, .size = 1, .settled = 5 };
        fake_start(worker);
        struct cairn *c = NULL;
        fail_allocation(number, NULL);
        const int status = live(&c, tensors);
        failed = allocation_failed();
        assert_int_equal(status, failed ? CAIRN_NO_MEMORY : CAIRN_OK);
        assert_true(!failed || library_why()[0] != '\0');
        cairn_close(c);
        fake_stop(worker);
        if (worker->files[worker->file].memory != NULL)
            assert_int_equal(unlink(fake_path(worker)), 0);
        fake_release(worker);
        free(worker);
    }
    assert_in_range(number, 10, SWEEP_MAX - 1);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- a stored state ---- */

static int read_all(struct cairn_state *state)
{
    static char out[100 * 1000 * 4];
    struct cairn_tensor tensor;
    uint32_t rank = 0;
    int status = CAIRN_OK;
    for (uint64_t i = 0; status == CAIRN_OK && cairn_state_tensor(state, i, &tensor, &rank) == 0;
         i++)
        status = cairn_state_read(state, tensor.name, rank, NULL, NULL, out);
    return status == CAIRN_OK ? cairn_state_read_blob(state, "random", 1, out, 4) : status;
}

static int open_memory(const struct stored_world *w, struct cairn_state **out)
{
    char paths[2 * LIMIT_PATH];
    size_t size = 0;
    struct reason why = { "" };
    for (uint32_t rank = 0; rank < 2; rank++) {
        const char *path = stored_world_path(w, rank);
        memcpy(paths + size, path, strlen(path) + 1);
        size += strlen(path) + 1;
    }
    return library_status(stored_open_memory(paths, 2, out, &why));
}

static void sweep(struct stored_world *w, bool memory)
{
    bool failed = true;
    int number = 0;
    for (; failed && number < SWEEP_MAX; number++) {
        struct cairn_state *state = NULL;
        fail_allocation(number, NULL);
        int status = memory ? open_memory(w, &state) : cairn_state_open(w->checkpoint, &state);
        if (status == CAIRN_OK)
            status = read_all(state);
        failed = allocation_failed();
        if (status != (failed ? CAIRN_NO_MEMORY : CAIRN_OK))
            fail_msg("allocation %d: status %d, failed %d", number, status, failed);
        cairn_state_close(state);
    }
    assert_in_range(number, 5, SWEEP_MAX - 1);
}

static void a_stored_state_says_that_there_is_no_memory(void **state)
{
    struct stored_world *w = *state;
    stored_world_begin(w, 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        add_all(stored_world_rank(w), rank);
    stored_world_save(w, 40);
    stored_world_commit(w);
    sweep(w, true);
    sweep(w, false);
    stored_world_end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_says_that_there_is_no_memory),
        cmocka_unit_test_setup_teardown(a_stored_state_says_that_there_is_no_memory,
                                        stored_world_set_up, stored_world_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
