/* Copy files: what is complete, what is damaged, what is used again. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/session/copies/copies_fixture.h"

/* ---- no more room to map anything ---- */

void *__real_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset);

static bool no_map;

void *__wrap_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset)
{
    return no_map ? MAP_FAILED : __real_mmap(at, size, access, flags, fd, offset);
}

static void a_copy_is_read_as_it_was_taken(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    for (uint32_t rank = 0; rank < 3; rank++) {
        char path[COPIES_PATH];
        struct copy_view view;
        copies_path(s, 4, rank, 0, path);
        copies_write(s, path, rank, 3);
        assert_int_equal(copy_view_map(path, &view), ST_OK);
        copies_check(s, &view);
        copy_view_unmap(&view);
    }
    copies_free(s);
}

static void what_is_copied_is_saved_with_the_hashes_of_the_source(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    struct copy_file file;
    assert_int_equal(copy_file_open(NULL, copies_share_bytes(s, 0, 1), &file), ST_OK);
    assert_int_equal(copy_file_begin(&file, &s->state, 0, 1), ST_OK);
    copy_file_fill(&file);
    const struct ckpt_state *copy = copy_file_state(&file);
    struct ckpt_hash wanted, made;
    assert_int_equal(ckpt_state_digest(&s->state, &wanted), ST_OK);
    assert_int_equal(ckpt_state_digest(copy, &made), ST_OK);
    assert_memory_equal(&made, &wanted, sizeof(made));
    assert_non_null(copy->buffers[0].pieces);
    assert_true(copy->buffers[0].data != s->buffers[0].data);
    copy_file_close(&file);
    copies_free(s);
}

/* A worker that took a snapshot may have let go of its state before the copy is written. */
static void a_copy_has_tensors_of_its_own(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    struct ckpt_tensor tensors[] = {
        { .name = "a", .ndim = 1, .dims = { 6 } },
        { .name = "b", .offset = 6, .ndim = 2, .dims = { 2, 3 } },
    };
    const struct ckpt_tensor was[] = { tensors[0], tensors[1] };
    struct copy_file file;
    assert_int_equal(copy_file_open(NULL, copies_share_bytes(s, 0, 1), &file), ST_OK);
    s->state.tensors = tensors;
    for (s->state.tensor_count = 1; s->state.tensor_count <= 2; s->state.tensor_count++) {
        const uint32_t count = s->state.tensor_count;
        memcpy(tensors, was, sizeof(tensors));
        assert_int_equal(copy_file_begin(&file, &s->state, 0, 1), ST_OK);
        copy_file_fill(&file);
        memset(tensors, 0xff, sizeof(tensors));
        assert_int_equal(copy_file_state(&file)->tensor_count, count);
        assert_memory_equal(copy_file_state(&file)->tensors, was, count * sizeof(was[0]));
    }
    copy_file_close(&file);
    copies_free(s);
}

static void a_copy_that_was_being_taken_is_not_whole(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    char path[COPIES_PATH];
    struct copy_file file;
    struct copy_view view;
    copies_path(s, 4, 0, 0, path);
    assert_int_equal(copy_file_open(path, copies_share_bytes(s, 0, 1), &file), ST_OK);
    assert_int_equal(copy_view_map(path, &view), ST_INCOMPLETE);
    assert_int_equal(copy_file_begin(&file, &s->state, 0, 1), ST_OK);
    assert_int_equal(copy_view_map(path, &view), ST_INCOMPLETE);
    copy_file_fill(&file);
    assert_int_equal(copy_view_map(path, &view), ST_INCOMPLETE);
    copy_file_seal(&file);
    assert_int_equal(copy_view_map(path, &view), ST_OK);
    copy_view_unmap(&view);
    copies_fill(s, 8);
    assert_int_equal(copy_file_begin(&file, &s->state, 0, 1), ST_OK); /* the old one goes first */
    assert_int_equal(copy_view_map(path, &view), ST_INCOMPLETE);
    copy_file_fill(&file);
    copy_file_seal(&file);
    assert_int_equal(copy_view_map(path, &view), ST_OK);
    copies_check(s, &view);
    copy_view_unmap(&view);
    copy_file_close(&file);
    copies_free(s);
}

/* Flips every byte that is used in seal, head, tables, hashes, skip list and blobs; of the data one
 * in 97, and the borders of pieces. */
static void every_flipped_byte_is_found(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    char path[COPIES_PATH];
    struct copy_view view;
    copies_path(s, 4, 0, 0, path);
    copies_write(s, path, 0, 1);
    assert_int_equal(copy_view_map(path, &view), ST_OK);
    const size_t head_size = view.seal->head_size, first = copy_view_extents(&view)[0].data;
    const size_t end = first + COPIES_COUNT * sizeof(float), piece = PIECE_ELEMENTS * sizeof(float);
    copy_view_unmap(&view);
    assert_false(copies_damaged(path));
    for (size_t at = 0; at < head_size; at++) {
        copies_flip(path, at, (uint8_t)(1u << (at % 8)));
        assert_true(copies_damaged(path));
        copies_flip(path, at, (uint8_t)(1u << (at % 8)));
    }
    for (size_t at = first; at < end;
         at += at + piece < end && (at - first) % piece == 0 ? 1 : 9973) {
        copies_flip(path, at, 0x10);
        assert_true(copies_damaged(path));
        copies_flip(path, at, 0x10);
    }
    copies_flip(path, end - 1, 1);
    assert_true(copies_damaged(path));
    copies_flip(path, end - 1, 1);
    assert_false(copies_damaged(path));
    copies_free(s);
}

static void a_file_that_was_cut_is_not_whole(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    char path[COPIES_PATH];
    struct copy_view view;
    struct stat about;
    copies_path(s, 4, 0, 0, path);
    copies_write(s, path, 0, 1);
    assert_int_equal(stat(path, &about), 0);
    for (off_t size = about.st_size - 1; size > 0; size -= about.st_size / 41 + 1) {
        assert_int_equal(truncate(path, size), 0);
        assert_int_not_equal(copy_view_map(path, &view), ST_OK);
    }
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(copy_view_map(path, &view), ST_INCOMPLETE);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(copy_view_map(path, &view), ST_NOT_FOUND);
    copies_free(s);
}

/* A FIFO that nobody writes holds up no hello. */
static void what_is_no_file_is_no_copy(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    char path[COPIES_PATH];
    struct copy_view view;
    copies_path(s, 4, 0, 0, path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(copy_view_map(path, &view), ST_INCOMPLETE);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_not_equal(copy_view_map(path, &view), ST_OK);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_int_not_equal(copy_view_map(path, &view), ST_OK);
    copies_free(s);
}

static void a_front_that_was_sent_is_parsed_like_the_file(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    char path[COPIES_PATH];
    struct copy_view view, front;
    copies_path(s, 4, 0, 0, path);
    copies_write(s, path, 0, 1);
    assert_int_equal(copy_view_map(path, &view), ST_OK);
    const size_t size = view.seal->head_size;
    uint8_t *memory = malloc(size);
    CHECK(memory != NULL);
    memcpy(memory, view.memory, size);
    assert_int_equal(copy_view_parse(memory, size, view.size, &front), ST_OK);
    const size_t bytes = COPIES_COUNT * sizeof(float), piece = PIECE_ELEMENTS * sizeof(float);
    assert_int_equal(copy_view_check_data(&front, 0, 0, s->values, bytes), ST_OK);
    s->values[PIECE_ELEMENTS - 1] += 1;
    assert_int_equal(copy_view_check_data(&front, 0, 0, s->values, bytes), ST_CORRUPT);
    assert_int_equal(copy_view_check_data(&front, 0, 0, s->values, piece), ST_CORRUPT);
    assert_int_equal(
        copy_view_check_data(&front, 0, piece, s->values + PIECE_ELEMENTS, bytes - piece), ST_OK);
    assert_int_equal(copy_view_parse(memory, size, view.size + 1, &front), ST_CORRUPT);
    assert_int_equal(copy_view_parse(memory, size - 1, view.size, &front), ST_CORRUPT);
    memory[size - 1] ^= 1;
    assert_int_equal(copy_view_parse(memory, size, view.size, &front), ST_CORRUPT);
    free(memory);
    copy_view_unmap(&view);
    copies_free(s);
}

static void more_than_was_announced_is_refused(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    struct copy_file file;
    assert_int_equal(copy_file_open(NULL, 4096, &file), ST_OK);
    assert_int_equal(copy_file_begin(&file, &s->state, 0, 1), ST_FULL);
    copy_file_close(&file);
    assert_int_equal(copy_file_open(NULL, copies_share_bytes(s, 0, 1), &file), ST_OK);
    s->blob.size = 2 * COPY_ROOM;
    assert_int_equal(copy_file_begin(&file, &s->state, 0, 1), ST_FULL);
    copy_file_close(&file);
    copies_free(s);
}

/* ---- a folder ---- */

static void whole_copies_of_the_job_are_offered(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    char path[COPIES_PATH];
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (int i = 0; i < 2; i++) {
            copies_fill(s, 7 + (uint64_t)i);
            copies_path(s, 4, rank, i, path);
            copies_write(s, path, rank, 2);
        }
    }
    copies_path(s, 4, 1, 1, path);
    copies_flip(path, 100, 1); /* damaged */
    copies_path(s, 3, 0, 0, path);
    copies_write(s, path, 0, 2); /* says generation 4: moved */
    copies_path(s, 4, 0, 2, path);
    copies_write(s, path, 0, 2); /* once more step 8 */
    struct session_copy *list = NULL;
    size_t count = 0;
    assert_int_equal(copy_folder_list(s->dir, COPIES_JOB, &list, &count), ST_OK);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        struct copy_view view;
        assert_int_equal(list[i].generation, 4);
        assert_int_equal(list[i].size, 2);
        assert_true(list[i].step == 7 || (list[i].step == 8 && list[i].rank == 0));
        assert_int_equal(copy_folder_find(s->dir, COPIES_JOB, &list[i], &view), ST_OK);
        assert_int_equal(view.head->step, list[i].step);
        copy_view_unmap(&view);
        list[i].step = 99;
        assert_int_equal(copy_folder_find(s->dir, COPIES_JOB, &list[i], &view), ST_INCOMPLETE);
    }
    free(list);
    assert_int_equal(copy_folder_list(s->dir, "j-another", &list, &count), ST_OK);
    assert_int_equal(count, 0);
    free(list);
    assert_int_equal(copy_folder_list("/nowhere", COPIES_JOB, &list, &count), ST_OK);
    assert_int_equal(count, 0);
    assert_true(copy_folder_bytes(s->dir) > 0);
    assert_int_equal(copy_folder_bytes("/nowhere"), 0);
    assert_int_equal(copy_folder_bytes(NULL), 0);
    free(list);
    copies_free(s);
}

static bool is_there(const struct copies *s, uint32_t generation, uint32_t rank, int number)
{
    char path[COPIES_PATH];
    copies_path(s, generation, rank, number, path);
    return access(path, F_OK) == 0;
}

static void older_slots_are_used_again_and_removed_but_what_is_restored_from(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    char path[COPIES_PATH];
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (int i = 0; i < 3; i++) {
            copies_fill(s, 7 + (uint64_t)i);
            copies_path(s, 4, rank, i, path);
            copies_write(s, path, rank, 2);
        }
    }
    const struct session_copy kept = { .generation = 4, .step = 8, .size = 2 };
    const size_t bytes = copy_file_bytes(copies_share_bytes(s, 0, 2));
    copies_path(s, 5, 0, 0, path);
    assert_false(copy_folder_reuse(s->dir, 5, 0, &kept, bytes + 4096, path));
    assert_true(copy_folder_reuse(s->dir, 5, 0, &kept, bytes, path));
    copies_path(s, 5, 0, 1, path);
    assert_true(copy_folder_reuse(s->dir, 5, 0, &kept, bytes, path));
    copies_path(s, 5, 0, 2, path);
    assert_false(copy_folder_reuse(s->dir, 5, 0, &kept, bytes, path)); /* kept */
    assert_true(is_there(s, 5, 0, 0) && is_there(s, 5, 0, 1) && is_there(s, 4, 0, 1));
    struct session_copy *list =
        NULL; /* what was renamed is nobody's copy until it is sealed anew */
    size_t count = 0;
    assert_int_equal(copy_folder_list(s->dir, COPIES_JOB, &list, &count), ST_OK);
    assert_int_equal(count, 4);
    free(list);
    copy_folder_clean(s->dir, 5, 1, &kept);
    assert_true(is_there(s, 4, 1, 1));
    assert_false(is_there(s, 4, 1, 0) || is_there(s, 4, 1, 2));
    copy_folder_clean(s->dir, 5, SESSION_RANK_ANY, NULL);
    assert_false(is_there(s, 4, 0, 1) || is_there(s, 4, 1, 1));
    assert_true(is_there(s, 5, 0, 0));
    copy_folder_forget(s->dir, 5, 0);
    assert_false(is_there(s, 5, 0, 0) || is_there(s, 5, 0, 1));
    copies_free(s);
}

static void without_room_to_map_nothing_is_left_behind_or_lost(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    const struct session_copy kept = { .generation = 4, .step = 7, .size = 1 };
    struct copy_file file;
    char path[COPIES_PATH];
    copies_path(s, 4, 0, 0, path);
    copies_write(s, path, 0, 1);
    copies_path(s, 5, 0, 0, path);
    no_map = true;
    copy_folder_clean(s->dir, 5, 0, &kept); /* what is kept can't be told from the others */
    assert_false(
        copy_folder_reuse(s->dir, 5, 0, &kept, copy_file_bytes(copies_share_bytes(s, 0, 1)), path));
    assert_int_equal(copy_file_open(path, copies_share_bytes(s, 0, 1), &file), ST_NO_MEMORY);
    no_map = false;
    assert_true(is_there(s, 4, 0, 0));
    assert_false(is_there(s, 5, 0, 0));
    copies_free(s);
}

/* A file whose bytes behind the seal came from another node's; the seal comes last. */
struct received {
    struct copies *s;
    char path[COPIES_PATH]; /* of to */
    struct copy_view from;
    struct copy_file to;
    struct copy_seal seal;
};

static void receive(struct received *r)
{
    char path[COPIES_PATH];
    r->s = copies_new(COPIES_COUNT);
    copies_path(r->s, 4, 1, 0, path);
    copies_path(r->s, 4, 1, 8, r->path);
    copies_write(r->s, path, 1, 3);
    assert_int_equal(copy_view_map(path, &r->from), ST_OK);
    assert_int_equal(copy_file_open_size(r->path, r->from.size, &r->to), ST_OK);
    r->seal = *r->from.seal;
    copy_file_break(&r->to);
    memcpy(r->to.memory + sizeof(r->seal), r->from.memory + sizeof(r->seal),
           r->from.size - sizeof(r->seal));
}

static void received_free(struct received *r)
{
    copy_view_unmap(&r->from);
    copy_file_close(&r->to);
    copies_free(r->s);
}

static void what_another_node_sent_is_whole_only_after_all_of_it_was_checked(void **state)
{
    (void)state;
    struct received r;
    struct copy_view view;
    receive(&r);
    assert_int_equal(copy_file_check(&r.to, &r.seal, &view), ST_OK);
    copies_check(r.s, &view);
    assert_int_equal(copy_view_map(r.path, &view), ST_INCOMPLETE);
    copy_file_accept(&r.to, &r.seal);
    assert_int_equal(copy_view_map(r.path, &view), ST_OK);
    copies_check(r.s, &view);
    copy_view_unmap(&view);
    copy_file_break(&r.to);
    assert_int_equal(copy_view_map(r.path, &view), ST_INCOMPLETE);
    received_free(&r);
}

static void expect_noticed(struct received *r, size_t at, uint8_t bits)
{
    struct copy_view view;
    r->to.memory[at] ^= bits;
    assert_int_equal(copy_file_check(&r->to, &r->seal, &view), ST_CORRUPT);
    r->to.memory[at] ^= bits;
}

static void any_bit_that_changed_on_the_way_is_noticed(void **state)
{
    (void)state;
    struct received r;
    struct copy_view view;
    receive(&r);
    for (size_t at = sizeof(r.seal); at < r.seal.head_size; at += 13)
        expect_noticed(&r, at, 16);
    for (uint32_t i = 0; i < r.from.head->extent_count; i++) {
        const struct copy_extent *extent = &copy_view_extents(&r.from)[i];
        for (size_t at = 0; at < extent->count * sizeof(float); at += 4 + extent->count / 7)
            expect_noticed(&r, extent->data + at, 1);
    }
    for (size_t at = 0; at < sizeof(r.seal); at++) {
        struct copy_seal bad = r.seal;
        ((uint8_t *)&bad)[at] ^= 2;
        assert_int_not_equal(copy_file_check(&r.to, &bad, &view), ST_OK);
    }
    assert_int_equal(copy_file_check(&r.to, &r.seal, &view), ST_OK);
    received_free(&r);
}

/* Before it is mapped: what is written to later would be a SIGBUS. */
static void a_file_system_without_room_is_found_before_the_file_is_used(void **state)
{
    (void)state;
    struct copies *s = copies_new(COPIES_COUNT);
    struct copy_file file = { .memory = NULL };
    struct rlimit limit;
    struct stat about;
    char path[COPIES_PATH];
    copies_path(s, 4, 0, 0, path);
    const size_t share = copies_share_bytes(s, 0, 1);
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct rlimit less = { copy_file_bytes(share) - 1, limit.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
    assert_int_equal(copy_file_open(path, share, &file), ST_FULL);
    assert_null(file.memory);
    assert_int_equal(stat(path, &about), -1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(copy_file_open(path, share, &file), ST_OK);
    assert_int_equal(stat(path, &about), 0);
    assert_true((size_t)about.st_blocks * 512 >= copy_file_bytes(share)); /* all of it has room */
    copy_file_close(&file);
    copies_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_is_read_as_it_was_taken),
        cmocka_unit_test(what_is_copied_is_saved_with_the_hashes_of_the_source),
        cmocka_unit_test(a_copy_has_tensors_of_its_own),
        cmocka_unit_test(a_file_system_without_room_is_found_before_the_file_is_used),
        cmocka_unit_test(a_copy_that_was_being_taken_is_not_whole),
        cmocka_unit_test(every_flipped_byte_is_found),
        cmocka_unit_test(a_file_that_was_cut_is_not_whole),
        cmocka_unit_test(what_is_no_file_is_no_copy),
        cmocka_unit_test(a_front_that_was_sent_is_parsed_like_the_file),
        cmocka_unit_test(more_than_was_announced_is_refused),
        cmocka_unit_test(whole_copies_of_the_job_are_offered),
        cmocka_unit_test(older_slots_are_used_again_and_removed_but_what_is_restored_from),
        cmocka_unit_test(without_room_to_map_nothing_is_left_behind_or_lost),
        cmocka_unit_test(what_another_node_sent_is_whole_only_after_all_of_it_was_checked),
        cmocka_unit_test(any_bit_that_changed_on_the_way_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
