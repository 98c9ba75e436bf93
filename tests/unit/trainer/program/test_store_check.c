/* What a worker finds at the store before its first step, and whose fault it is then. */
#include <stdio.h>
#include <string.h>

#include "checkpoint/store/store.h"
#include "tests/crash/memory_io.h"
#include "tests/test.h"
#include "trainer/program/store_check.h"

#define STORE "/store"
#define JOB   "j-0123456789"
#define MARK  "00112233445566778899aabbccddeeff"
#define OTHER "ffeeddccbbaa99887766554433221100"

struct world {
    struct memory_io *memory;
    struct io io;
    const struct io *below;
    enum status on_create;
    uint32_t created, removed;
    char path[LIMIT_PATH]; /* of what was created */
    struct session_assignment assignment;
    struct reason reason;
    bool of_node;
};

static enum status open_file(void *self, const char *path, int flags, int *out_fd)
{
    struct world *w = self;
    if ((flags & IO_CREATE_NEW) == 0)
        return w->below->open(w->below->self, path, flags, out_fd);
    w->created++;
    (void)snprintf(w->path, sizeof(w->path), "%s", path);
    return w->on_create != ST_OK ? w->on_create
                                 : w->below->open(w->below->self, path, flags, out_fd);
}

static enum status unlink_file(void *self, const char *path)
{
    struct world *w = self;
    w->removed++;
    assert_string_equal(path, w->path);
    return w->below->unlink(w->below->self, path);
}

static enum status close_file(void *self, int fd)
{
    const struct world *w = self;
    return w->below->close(w->below->self, fd);
}

static enum status read_file(void *self, int fd, void *data, size_t size, uint64_t at,
                             size_t *out_size)
{
    const struct world *w = self;
    return w->below->pread(w->below->self, fd, data, size, at, out_size);
}

static enum status stat_file(void *self, const char *path, struct io_stat *out)
{
    const struct world *w = self;
    return w->below->stat(w->below->self, path, out);
}

static char *const nodes[] = { "a", "b", "a" };

static struct world w;

static int set_up(void **state)
{
    (void)state;
    w = (struct world){ .memory = memory_io_new() };
    w.below = memory_io_table(w.memory);
    assert_int_equal(ckpt_store_id_write(w.below, STORE, JOB, MARK), ST_OK);
    w.io = (struct io){ .self = &w,
                        .open = open_file,
                        .close = close_file,
                        .pread = read_file,
                        .stat = stat_file,
                        .unlink = unlink_file };
    w.assignment = (struct session_assignment){
        .job = JOB, .generation = 7, .size = 3, .nodes = nodes, .store_id = MARK
    };
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(memory_io_open_files(w.memory), 0);
    memory_io_free(w.memory);
    return 0;
}

static enum status look(uint32_t rank)
{
    w.assignment.rank = rank;
    w.created = w.removed = 0;
    return store_check(&w.io, STORE, &w.assignment, &w.of_node, &w.reason);
}

static void one_worker_of_each_node_writes_a_file_that_goes_again(void **state)
{
    (void)state;
    uint64_t generation = 0;
    uint64_t before = memory_io_hash(w.memory, "/");
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(look(rank), ST_OK);
        assert_int_equal(w.created, rank < 2);
        assert_int_equal(w.removed, rank < 2);
        assert_int_equal(memory_io_hash(w.memory, "/"), before);
    }
    /* Left by one that is killed, it is swept. */
    assert_non_null(strstr(w.path, STORE "/" JOB "/.probe."));
    assert_true(ckpt_temporary_parse(strrchr(w.path, '/') + 1, &generation));
    assert_int_equal(generation, 7);
    assert_false(w.of_node);
}

static void a_node_that_may_not_write_is_named_with_its_user(void **state)
{
    (void)state;
    w.on_create = ST_REFUSED;
    assert_int_equal(look(1), ST_REFUSED);
    assert_true(w.of_node);
    assert_non_null(strstr(w.reason.text, "node b, uid "));
    assert_non_null(strstr(w.reason.text, "may not write to " STORE "/" JOB));
}

/* Saves tell, and training goes on meanwhile. */
static void other_troubles_of_writing_are_no_reason_not_to_begin(void **state)
{
    (void)state;
    static const enum status troubles[] = { ST_FULL, ST_IO, ST_AWAY, ST_FORGOTTEN, ST_TIMED_OUT };
    for (size_t i = 0; i < sizeof(troubles) / sizeof(troubles[0]); i++) {
        w.on_create = troubles[i];
        assert_int_equal(look(0), ST_OK);
        assert_false(w.of_node);
    }
}

static void another_store_is_not_written_to(void **state)
{
    (void)state;
    w.assignment.store_id = OTHER;
    assert_int_equal(look(0), ST_UNREACHABLE);
    assert_non_null(strstr(w.reason.text, "node a sees at"));
    assert_int_equal(w.created, 0);
    w.assignment.store_id = "";
    assert_int_equal(look(0), ST_OK); /* nothing is known of it */
    assert_int_equal(w.created, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_worker_of_each_node_writes_a_file_that_goes_again),
        TEST(a_node_that_may_not_write_is_named_with_its_user),
        TEST(other_troubles_of_writing_are_no_reason_not_to_begin),
        TEST(another_store_is_not_written_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
