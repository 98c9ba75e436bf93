/* Event files: their bytes, and one clean curve in both of TensorBoard's readers whatever happened
 * to the job, the observer and the disk. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "common/rng.h"
#include "common/unconst.h"
#include "events_reader.h"
#include "observer/tensorboard/curve.h"
#include "observer/tensorboard/record.h"
#include "observer/tensorboard/tensorboard.h"
#include "tests/test.h"

#define FIRST_FILE "events.out.tfevents.1700000000.cairn.000001"
#define STEPS      100 /* of most jobs here */

struct bench {
    char dir[64], folder[96];
    struct log log;
    int told; /* reads what is logged */
    int lines;
    struct tensorboard *tb;
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/cairn-events-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->folder, sizeof(b->folder), "%s/tensorboard/job", b->dir);
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    b->told = fds[0];
    b->log = (struct log){ .fd = fds[1], .program = "test", .rank = -1, .generation = -1 };
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    char command[96];
    tensorboard_close(b->tb);
    (void)close(b->log.fd);
    (void)close(b->told);
    (void)snprintf(command, sizeof(command), "rm -rf %s", b->dir);
    assert_int_equal(system(command), 0);
    free(b);
    return 0;
}

static void reopen(struct bench *b)
{
    tensorboard_close(b->tb);
    b->tb = NULL;
    assert_int_equal(tensorboard_open(b->folder, &b->log, &b->tb), ST_OK);
}

static void path_in(const struct bench *b, const char *name, char out[256])
{
    (void)snprintf(out, 256, "%s/%s", b->folder, name);
}

/* Returns the number of lines in the log so far. */
static int count_lines(struct bench *b)
{
    char text[4096];
    ssize_t size = read(b->told, text, sizeof(text));
    for (; size > 0; size = read(b->told, text, sizeof(text))) {
        for (ssize_t i = 0; i < size; i++)
            b->lines += text[i] == '\n';
    }
    return b->lines;
}

/* ---- rows ---- */

static const char *const phases[] = { "data",          "forward",   "backward",
                                      "communication", "optimizer", "another" };
#define PHASES (sizeof(phases) / sizeof(phases[0]))

struct row {
    Cairn__V1__MetricRow row;
    Cairn__V1__Eval eval;
    Cairn__V1__Phase phase[PHASES], *list[PHASES];
};

/* Makes the row of a step in a generation: the same values for the same arguments, others for
 * others. evaluated: has an evaluation. */
static const Cairn__V1__MetricRow *make_row(struct row *r, uint32_t generation, uint64_t step,
                                            bool evaluated)
{
    r->row = (Cairn__V1__MetricRow)CAIRN__V1__METRIC_ROW__INIT;
    r->eval = (Cairn__V1__Eval)CAIRN__V1__EVAL__INIT;
    for (size_t i = 0; i < PHASES; i++) {
        r->phase[i] = (Cairn__V1__Phase)CAIRN__V1__PHASE__INIT;
        r->phase[i].name = unconst(phases[i]);
        r->phase[i].ms = 250 * (double)i;
        r->list[i] = &r->phase[i];
    }
    r->row.step = step;
    r->row.generation = generation;
    r->row.loss = (float)step + (float)generation / 128;
    r->row.lr = 0.5f;
    r->row.grad_norm = NAN;
    r->row.samples_per_s = 1000;
    r->row.step_ms = 500;
    r->row.wall_ms = INT64_C(1700000000000) + (int64_t)step * 10;
    r->row.n_phases = PHASES;
    r->row.phases = r->list;
    if (evaluated) {
        r->row.eval__case = CAIRN__V1__METRIC_ROW__EVAL__EVAL;
        r->row.eval = &r->eval;
        r->eval.loss = 2 * (double)r->row.loss;
        r->eval.accuracy = 0.25;
    }
    return &r->row;
}

static void add(struct bench *b, uint32_t generation, uint64_t step, bool evaluated)
{
    struct row r;
    assert_int_equal(tensorboard_add(b->tb, make_row(&r, generation, step, evaluated)), ST_OK);
}

/* What the curve must be: of each step the generation that computed it last. */
struct truth {
    uint64_t step;
    uint32_t generation[STEPS + 1];
    bool evaluated[STEPS + 1];
};

static void truth_put(struct truth *t, uint32_t generation, uint64_t step, bool evaluated)
{
    t->step = step;
    t->generation[step] = generation;
    t->evaluated[step] = evaluated;
}

static void check(const struct bench *b, const struct truth *t)
{
    struct events *events = events_read(b->folder);
    assert_int_equal(events->twice, 0);
    for (enum reader_kind kind = READER_PYTHON; kind < READERS; kind++) {
        for (uint64_t step = 1; step <= STEPS + 1; step++) {
            struct row r;
            const bool there = step <= t->step, evaluated = there && t->evaluated[step];
            assert_int_equal(events_has(events, kind, "train/loss", step), there);
            assert_int_equal(events_has(events, kind, "val/loss", step), evaluated);
            assert_int_equal(events_has(events, kind, "val/accuracy", step), evaluated);
            if (!there)
                continue;
            (void)make_row(&r, t->generation[step], step, evaluated);
            assert_true(events_value(events, kind, "train/loss", step) == (double)r.row.loss);
            if (evaluated)
                assert_true(events_value(events, kind, "val/loss", step) == r.eval.loss);
        }
    }
    events_free(events);
}

/* ---- tests ---- */

/* The record is one of TensorBoard's own tests, the sum of "123456789" RFC 3720's. */
static void test_known_bytes(void **state)
{
    static const uint8_t record[] = "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22"
                                    "\x09\0\0\x80\x38\x99\xd6\xd7\x41\x1a\x0d"
                                    "brain.Event:2\x12\x4b\x36\xab";
    const uint32_t crc = UINT32_C(0xe3069283);
    struct row r;
    struct buf out;
    (void)state;
    assert_int_equal(tensorboard_masked_crc("123456789", 9),
                     (uint32_t)(((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8)));
    buf_init(&out, 4096);
    (void)make_row(&r, 1, 1, false);
    r.row.wall_ms = INT64_C(1599759586000);
    assert_int_equal(tensorboard_put_version(&r.row, &out), ST_OK);
    assert_int_equal(out.size, sizeof(record) - 1);
    assert_memory_equal(out.data, record, out.size);
    for (size_t i = 0; i < 8 * out.size; i++) { /* no bit of it may be another */
        const void *data = NULL;
        size_t at = 0, size = 0;
        out.data[i / 8] = (char)(out.data[i / 8] ^ (1 << i % 8));
        assert_false(tensorboard_record_next(out.data, out.size, &at, &data, &size));
        out.data[i / 8] = (char)(out.data[i / 8] ^ (1 << i % 8));
    }
    buf_release(&out);
}

static void test_a_row_is_values(void **state)
{
    struct bench *b = *state;
    struct row r;
    reopen(b);
    assert_int_equal(tensorboard_next_step(b->tb), 1);
    assert_int_equal(tensorboard_generation(b->tb), 0);
    assert_int_equal(access(b->folder, F_OK), -1);
    add(b, 3, 1, true);
    (void)make_row(&r, 3, 2, false);
    r.row.loss = INFINITY;
    r.row.lr = 0;
    assert_int_equal(tensorboard_add(b->tb, &r.row), ST_OK);
    assert_int_equal(tensorboard_flush(b->tb), ST_OK);
    struct events *events = events_read(b->folder);
    for (enum reader_kind kind = READER_PYTHON; kind < READERS; kind++) {
        assert_true(events_value(events, kind, "train/loss", 1) == 1 + 3 / 128.0);
        assert_true(events_value(events, kind, "val/loss", 1) == 2 + 6 / 128.0);
        assert_true(events_value(events, kind, "val/accuracy", 1) == 0.25);
        assert_true(events_value(events, kind, "optim/lr", 1) == 0.5);
        assert_true(events_value(events, kind, "perf/samples_per_second", 1) == 1000);
        assert_true(events_value(events, kind, "time/step", 1) == 0.5);
        assert_true(events_value(events, kind, "time/forward", 1) == 0.25);
        assert_true(isinf(events_value(events, kind, "train/loss", 2)));
        assert_true(events_value(events, kind, "optim/lr", 2) == 0);
        assert_int_equal(events_count(events, kind, "optim/grad_norm"), 0); /* not known */
        assert_int_equal(events_count(events, kind, "time/another"), 0);
        assert_int_equal(events_count(events, kind, "val/loss"), 1);
    }
    assert_int_equal(events->events, 4); /* a version, a START, two rows */
    events_free(events);
    assert_int_equal(tensorboard_next_step(b->tb), 3);
    assert_int_equal(tensorboard_generation(b->tb), 3);
    r.row.step = 0;
    assert_int_equal(tensorboard_add(b->tb, &r.row), ST_INVALID);
    r.row.step = UINT64_MAX;
    assert_int_equal(tensorboard_add(b->tb, &r.row), ST_INVALID);
}

static void test_a_job_that_goes_back(void **state)
{
    struct bench *b = *state;
    struct truth t = { 0 };
    uint64_t next = 1;
    reopen(b);
    for (uint32_t generation = 1; generation <= 40; generation++) {
        const struct rng_counter words = rng_words(7, generation, 0, 0, 0);
        const uint64_t to = next + words.word[0] % (STEPS - next + 1);
        for (uint64_t step = next; step <= to; step++) { /* evaluates at other steps each time */
            const bool evaluated = step % (7 + 13 * (generation % 5)) == 0;
            add(b, generation, step, evaluated);
            truth_put(&t, generation, step, evaluated);
        }
        if (words.word[1] % 3 == 0) {
            reopen(b);
            assert_int_equal(tensorboard_next_step(b->tb), to + 1);
            assert_int_equal(tensorboard_generation(b->tb), generation);
        }
        assert_int_equal(tensorboard_flush(b->tb), ST_OK);
        check(b, &t);
        next = 1 + words.word[2] % to; /* it goes back, or is where it was */
    }
    struct events *events = events_read(b->folder);
    assert_int_equal(events->files, 1);
    assert_int_equal(events->starts, 40);
    events_free(events);
}

/* From next_step, or from where the generation begins that the files don't know yet. */
static void feed(struct bench *b, const struct truth *t, uint64_t began)
{
    uint64_t from = tensorboard_next_step(b->tb);
    if (tensorboard_generation(b->tb) != t->generation[t->step] && began < from)
        from = began;
    for (uint64_t step = from; step <= t->step; step++)
        add(b, t->generation[step], step, t->evaluated[step]);
    assert_int_equal(tensorboard_flush(b->tb), ST_OK);
}

static void write_file(const char *path, const char *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void empty_folder(struct bench *b)
{
    tensorboard_close(b->tb);
    b->tb = NULL;
    DIR *dir = opendir(b->folder);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (entry->d_name[0] != '.')
            assert_int_equal(unlinkat(dirfd(dir), entry->d_name, 0), 0);
    }
    assert_int_equal(closedir(dir), 0);
}

/* A machine stops at any byte of what is written, also of what is written after that. */
static void test_cut_at_every_byte(void **state)
{
    struct bench *b = *state;
    struct truth t = { 0 };
    char first[256], second[256], *whole = NULL, *now = NULL;
    size_t size = 0, now_size = 0;
    reopen(b);
    for (uint64_t step = 1; step <= 6; step++) {
        add(b, 1, step, step == 5);
        truth_put(&t, 1, step, step == 5);
    }
    for (uint64_t step = 4; step <= 7; step++) {
        add(b, 2, step, step == 6);
        truth_put(&t, 2, step, step == 6);
    }
    assert_int_equal(tensorboard_flush(b->tb), ST_OK);
    path_in(b, FIRST_FILE, first);
    path_in(b, "events.out.tfevents.1700000000.cairn.000002", second);
    assert_int_equal(io_read_file(io_system(), first, 1 << 20, &whole, &size), ST_OK);
    assert_true(size > 2000);
    for (size_t cut = 0; cut <= size; cut++) {
        empty_folder(b);
        write_file(first, whole, cut);
        reopen(b);
        feed(b, &t, 4);
        check(b, &t);
        assert_int_equal(io_read_file(io_system(), first, 1 << 20, &now, &now_size), ST_OK);
        assert_true(now_size >= cut); /* what was written is never changed */
        assert_memory_equal(now, whole, cut);
        free(now);
        if (access(second, F_OK) == 0 && cut % 7 == 0) { /* and once more, in the next one */
            struct stat info;
            assert_int_equal(stat(second, &info), 0);
            assert_int_equal(truncate(second, (off_t)(cut % (size_t)info.st_size)), 0);
            reopen(b);
            feed(b, &t, 4);
            check(b, &t);
        }
    }
    free(whole);
}

static void test_garbage_at_the_end(void **state)
{
    struct bench *b = *state;
    struct truth t = { 0 };
    char path[256], zeros[300] = { 0 };
    path_in(b, FIRST_FILE, path);
    reopen(b);
    add(b, 1, 1, false);
    truth_put(&t, 1, 1, false);
    reopen(b);
    FILE *file = fopen(path, "ab"); /* as some file systems leave it after a power failure */
    assert_non_null(file);
    assert_int_equal(fwrite(zeros, 1, sizeof(zeros), file), sizeof(zeros));
    assert_int_equal(fclose(file), 0);
    reopen(b);
    assert_int_equal(tensorboard_next_step(b->tb), 2);
    truth_put(&t, 1, 2, true);
    feed(b, &t, 1);
    check(b, &t);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_a_disk_that_is_full_for_a_while(void **state)
{
    struct bench *b = *state;
    struct truth t = { 0 };
    struct row r;
    enum status st = ST_OK;
    (void)signal(SIGXFSZ, SIG_IGN);
    reopen(b);
    add(b, 1, 1, false);
    assert_int_equal(tensorboard_flush(b->tb), ST_OK);
    for (uint64_t step = 1; step <= STEPS; step++)
        truth_put(&t, 1, step, step % 10 == 0);
    for (rlim_t bytes = 1000; bytes < 3000; bytes += 97) { /* a bit more each time */
        const uint64_t step = tensorboard_next_step(b->tb);
        limit_files(bytes);
        add(b, 1, step, step % 10 == 0);
        st = tensorboard_flush(b->tb);
    }
    assert_true(st != ST_OK && st != ST_CLOSED);
    const int told = count_lines(b);
    assert_true(told % 2 == 1);
    assert_int_equal(tensorboard_flush(b->tb), st);
    assert_int_equal(count_lines(b), told);
    st = ST_OK;
    for (uint64_t step = tensorboard_next_step(b->tb); st == ST_OK; step++) /* of a second job */
        st = tensorboard_add(b->tb, make_row(&r, 2, step, false));
    assert_int_equal(st, ST_FULL);
    const uint64_t next = tensorboard_next_step(b->tb);
    assert_true(next > 500 && next < 2000);
    assert_int_equal(tensorboard_add(b->tb, make_row(&r, 2, next, false)), ST_FULL);
    assert_int_equal(tensorboard_next_step(b->tb), next);
    limit_files(RLIM_INFINITY);
    assert_int_equal(tensorboard_flush(b->tb), ST_OK);
    assert_int_equal(count_lines(b), told + 1);
    for (uint64_t step = 2; step <= STEPS; step++)
        add(b, 1, step, step % 10 == 0);
    reopen(b);
    check(b, &t);
    struct events *events = events_read(b->folder);
    assert_int_equal(events->torn, 0);
    assert_int_equal(events->files, 1);
    events_free(events);
}

static void test_full_from_the_start_and_ended_so(void **state)
{
    struct bench *b = *state;
    struct truth t = { 0 };
    (void)signal(SIGXFSZ, SIG_IGN);
    for (uint64_t step = 1; step <= 8; step++)
        truth_put(&t, 1, step, false);
    for (rlim_t bytes = 0; bytes < 1200; bytes += 100) {
        limit_files(bytes);
        reopen(b);
        add(b, 1, tensorboard_next_step(b->tb), false);
        assert_int_equal(tensorboard_flush(b->tb) == ST_CLOSED, false);
    }
    limit_files(RLIM_INFINITY);
    reopen(b);
    feed(b, &t, 1);
    check(b, &t);
}

static void test_files_that_others_touch(void **state)
{
    struct bench *b = *state;
    struct tensorboard *second = NULL;
    struct truth t = { 0 };
    char path[256];
    path_in(b, FIRST_FILE, path);
    for (uint64_t step = 1; step <= 5; step++)
        truth_put(&t, 1, step, false);
    reopen(b);
    add(b, 1, 1, false);
    assert_int_equal(tensorboard_flush(b->tb), ST_OK);
    assert_int_equal(tensorboard_open(b->folder, &b->log, &second), ST_EXISTS);
    assert_int_equal(truncate(path, 20), 0);
    add(b, 1, 2, false);
    assert_int_equal(tensorboard_flush(b->tb), ST_CLOSED);
    assert_int_equal(tensorboard_flush(b->tb), ST_CLOSED);
    reopen(b);
    assert_int_equal(tensorboard_next_step(b->tb), 1);
    feed(b, &t, 1);
    check(b, &t);
    char command[160];
    (void)snprintf(command, sizeof(command), "rm -rf %s", b->folder);
    assert_int_equal(system(command), 0);
    add(b, 1, 6, false);
    assert_int_equal(tensorboard_flush(b->tb), ST_CLOSED);
    struct row r;
    assert_int_equal(tensorboard_add(b->tb, make_row(&r, 1, 7, false)), ST_CLOSED);
    reopen(b);
    feed(b, &t, 1);
    check(b, &t);
}

/* TIME is the first row's: a clock that was set back, or other names, change no order. */
static void test_names(void **state)
{
    struct bench *b = *state;
    struct row r;
    char path[256];
    reopen(b);
    add(b, 1, 1, false);
    reopen(b);
    path_in(b, FIRST_FILE, path);
    assert_int_equal(truncate(path, 60), 0);
    path_in(b, "events.out.tfevents.1800000000.host", path);
    write_file(path, "", 0);
    path_in(b, "events.out.tfevents.1800000000.cairn.00000x", path);
    write_file(path, "", 0);
    reopen(b);
    (void)make_row(&r, 1, 1, false);
    r.row.wall_ms = -5;
    assert_int_equal(tensorboard_add(b->tb, &r.row), ST_OK);
    assert_int_equal(tensorboard_flush(b->tb), ST_OK);
    path_in(b, "events.out.tfevents.1700000000.cairn.000002", path);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_many_steps(void **state)
{
    struct bench *b = *state;
    const uint64_t full = TENSORBOARD_ROWS, steps = READER_STEPS - 1;
    reopen(b);
    for (uint64_t step = 1; step <= steps; step++) {
        add(b, 1, step, step == full + 1);
        if (step == full + full / 2 + 1)
            reopen(b); /* that step has no row */
    }
    assert_int_equal(tensorboard_next_step(b->tb), steps + 1);
    reopen(b);
    assert_true(tensorboard_next_step(b->tb) <= steps + 1 &&
                tensorboard_next_step(b->tb) > steps - 4);
    struct events *events = events_read(b->folder);
    assert_true(events->files == 2 || events->files == 3);
    assert_int_equal(events->twice, 0);
    const uint64_t rows = full + 1 + full / 2 + (steps - 2 * full) / 4;
    assert_int_equal(events_count(events, READER_PYTHON, "train/loss"), rows);
    assert_int_equal(events_count(events, READER_RUST, "train/loss"), rows);
    assert_true(events_has(events, READER_RUST, "val/loss", full + 1));
    assert_false(events_has(events, READER_RUST, "train/loss", full + 3));
    events_free(events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_bytes),
        cmocka_unit_test_setup_teardown(test_a_row_is_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_job_that_goes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_at_every_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage_at_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_disk_that_is_full_for_a_while, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_from_the_start_and_ended_so, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files_that_others_touch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_steps, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
