/* Copies that another process fills in, and steps that another process does. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "session/internal.h"
#include "tests/unit/session/session_world.h"

/* The other process: it has the file's descriptor, and writes what its tables ask for. */
struct filler {
    struct world *w;
    struct training training;
    bool gives_up, lies;
    size_t filled; /* bytes */
};

static void write_extent(struct filler *f, uint8_t *memory, const struct copy_extent *extent)
{
    const uint8_t *from = (const uint8_t *)(f->training.values + extent->first);
    struct ckpt_hash *hashes = (struct ckpt_hash *)(void *)(memory + extent->hashes);
    const size_t bytes = (size_t)extent->count * sizeof(float);
    memcpy(memory + extent->data, from, bytes);
    ckpt_piece_hashes(CKPT_F32, from, bytes, hashes);
    hashes[0].byte[3] ^= f->lies;
    f->filled += bytes;
}

static enum status fill(void *arg, uint64_t *out_stall_us)
{
    struct filler *f = arg;
    uint32_t number = 0;
    const struct copy_file *file = session_snapshot_file(f->w->session, &number);
    *out_stall_us = 1234;
    if (f->gives_up)
        return ST_CLOSED;
    assert_true(file->shared);
    uint8_t *memory = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    struct copy_head *head = (struct copy_head *)(void *)(memory + sizeof(struct copy_seal));
    struct copy_extent *extents = (struct copy_extent *)(void *)(memory + head->extents);
    for (uint32_t i = 0; i < head->extent_count; i++)
        write_extent(f, memory, &extents[i]);
    memset(extents, 0xff, head->extent_count * sizeof(*extents)); /* nobody goes by them */
    head->extents = UINT64_MAX;
    assert_int_equal(munmap(memory, file->size), 0);
    return ST_OK;
}

static struct filler *filler_new(void)
{
    struct filler *f = calloc(1, sizeof(*f));
    CHECK(f != NULL);
    f->w = joined();
    training_init(&f->training, 5);
    const struct session_ready ready = { .total_steps = 20,
                                         .step = 2,
                                         .save_every = 5,
                                         .pins = "{}",
                                         .snapshot_bytes_max = ELEMENTS * sizeof(float),
                                         .shared = true };
    assert_int_equal(session_set_ready(f->w->session, &ready), ST_OK);
    return f;
}

static void filler_free(struct filler *f)
{
    world_free(f->w);
    free(f->training.values);
    free(f);
}

static enum status save_filled(struct filler *f)
{
    f->training.buffer.data = NULL; /* the state is elsewhere */
    const struct session_snapshot snapshot = {
        .state = &f->training.state, .saves = true, .fill = fill, .arg = f
    };
    enum status st = session_snapshot_begin(f->w->session, &snapshot);
    return st == ST_OK ? session_snapshot_wait(f->w->session) : st;
}

static void what_another_process_fills_in_is_saved(void **state)
{
    (void)state;
    struct filler *f = filler_new();
    uint64_t committed = 0;
    assert_int_equal(save_filled(f), ST_OK);
    assert_int_equal(f->filled, ELEMENTS * sizeof(float));
    assert_int_equal(session_settle(f->w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 5);
    assert_int_equal(f->w->c.reports, 1);
    assert_int_equal(f->w->c.report.raw_bytes, ELEMENTS * sizeof(float));
    filler_free(f);
}

static void what_it_gives_up_is_no_save(void **state)
{
    (void)state;
    struct filler *f = filler_new();
    f->gives_up = true;
    assert_int_equal(save_filled(f), ST_CLOSED);
    f->gives_up = false; /* nor does it keep anything from the next one */
    assert_int_equal(save_filled(f), ST_OK);
    await(f->w, &f->w->c.reports, 1);
    assert_int_equal(f->w->c.begins, 1);
    filler_free(f);
}

static void data_that_are_not_what_was_hashed_are_not_saved(void **state)
{
    (void)state;
    struct filler *f = filler_new();
    f->lies = true;
    assert_int_equal(save_filled(f), ST_OK);
    await(f->w, &f->w->c.fails, 1);
    assert_int_equal(f->w->c.reports, 0);
    filler_free(f);
}

/* The memory has no name, and a size for good. */
static void memory_without_a_folder_cannot_be_shrunk(void **state)
{
    (void)state;
    struct copy_file file;
    assert_int_equal(copy_file_open_shared(NULL, 1000, &file), ST_OK);
    assert_int_not_equal(ftruncate(file.fd, 0), 0);
    assert_int_equal(file.memory[file.size - 1], 0);
    copy_file_close(&file);
}

/* ---- followed ---- */

static void await_due(const _Atomic uint64_t *next_due, uint64_t step)
{
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    while (atomic_load(next_due) != step && clock_mono_ms(clock_system()) < end_ms)
        (void)usleep(1000);
    assert_int_equal(atomic_load(next_due), step);
}

static void order(struct world *w, uint64_t step, bool exits)
{
    (void)pthread_mutex_lock(&w->c.mutex);
    order_save_at(&w->c, step, exits);
    (void)pthread_mutex_unlock(&w->c.mutex);
}

static void who_does_the_steps_knows_when_something_is_due(void **state)
{
    (void)state;
    struct filler *f = filler_new();
    struct session *session = f->w->session;
    _Atomic uint64_t reached = 2, next_due = 77;
    const struct session_followed followed = { .reached = &reached, .next_due = &next_due };
    session_follow(session, &followed);
    assert_int_equal(atomic_load(&next_due), 5);
    order(f->w, 4, false);
    await_due(&next_due, 4);
    atomic_store(&reached, 4);
    assert_int_equal(session_due_at(session, 4), SESSION_DUE_SAVE);
    assert_int_equal(atomic_load(&next_due), 5);
    atomic_store(&reached, 6); /* it was asked for 5 by nobody */
    order(f->w, 6, true);      /* too late */
    await(f->w, &f->w->c.passed, 1);
    assert_int_equal(atomic_load(&next_due), 5); /* it may not have looked yet */
    assert_int_equal(session_due_at(session, 6), SESSION_DUE_NOTHING);
    order(f->w, 8, true);
    await_due(&next_due, 8);
    atomic_store(&reached, 8);
    assert_int_equal(session_due_at(session, 8), SESSION_DUE_SAVE_AND_EXIT);
    assert_int_equal(atomic_load(&next_due), 10);
    atomic_store(&reached, UINT64_MAX); /* a lie: the last step is the last */
    order(f->w, 12, false);
    await(f->w, &f->w->c.passed, 2);
    assert_int_equal(atomic_load(&next_due), 10);
    assert_int_equal(session_due_at(session, 20), SESSION_DUE_SAVE);
    assert_int_equal(atomic_load(&next_due), 20); /* once more, if the save is dropped */
    session_follow(session, NULL);
    filler_free(f);
}

static void what_is_asked_too_late_is_told_with_the_next_step(void **state)
{
    (void)state;
    struct filler *f = filler_new();
    struct session *session = f->w->session;
    _Atomic uint64_t reached = 2, next_due = 0;
    const struct session_followed followed = { .reached = &reached, .next_due = &next_due };
    session_follow(session, &followed);
    order(f->w, 3, false);
    await_due(&next_due, 3);
    atomic_store(&reached, 4); /* 3 was finished before the order was seen */
    assert_int_equal(session_due_at(session, 4), SESSION_DUE_NOTHING);
    await(f->w, &f->w->c.passed, 1);
    session_follow(session, NULL);
    filler_free(f);
}

static void once_the_generation_has_ended_every_step_asks(void **state)
{
    (void)state;
    struct filler *f = filler_new();
    _Atomic uint64_t reached = 2, next_due = 77;
    const struct session_followed followed = { .reached = &reached, .next_due = &next_due };
    session_follow(f->w->session, &followed);
    (void)pthread_mutex_lock(&f->w->c.mutex);
    order_over(&f->w->c, "enough");
    (void)pthread_mutex_unlock(&f->w->c.mutex);
    await_due(&next_due, 0);
    assert_int_equal(save_filled(f), ST_STALE);
    session_follow(f->w->session, NULL);
    filler_free(f);
}

static void a_save_that_finds_no_room_in_time_is_late(void **state)
{
    (void)state;
    struct filler *f = filler_new();
    const struct session_snapshot first = {
        .state = &f->training.state, .saves = true, .fill = fill, .arg = f
    };
    f->w->c.gives_folders = false;
    assert_int_equal(save_filled(f), ST_OK);
    f->training.state.scalars.step = 10;
    assert_int_equal(save_filled(f), ST_OK);
    struct session_snapshot last = first;
    last.last = true;
    last.patience_ms = 50;
    f->training.state.scalars.step = 20;
    assert_int_equal(session_snapshot_begin(f->w->session, &last), ST_TIMED_OUT);
    filler_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_another_process_fills_in_is_saved),
        cmocka_unit_test(what_it_gives_up_is_no_save),
        cmocka_unit_test(data_that_are_not_what_was_hashed_are_not_saved),
        cmocka_unit_test(memory_without_a_folder_cannot_be_shrunk),
        cmocka_unit_test(who_does_the_steps_knows_when_something_is_due),
        cmocka_unit_test(what_is_asked_too_late_is_told_with_the_next_step),
        cmocka_unit_test(once_the_generation_has_ended_every_step_asks),
        cmocka_unit_test(a_save_that_finds_no_room_in_time_is_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
