/* Peaks: kept on a node, where whatever is wrong with them costs a measurement; and measured. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/reason.h"
#include "kernels/module.h"
#include "tests/test.h"
#include "trainer/peak/measure.h"
#include "trainer/peak/peak_cache.h"

#define KEY "version 1, fp32, 2 threads on 3, \"cpu\":{}"

struct fixture {
    char dir[64], folder[80];
    struct peak_place place;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/cairn-peak-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->folder, sizeof(f->folder), "%s/peaks", f->dir);
    f->place = (struct peak_place){ io_system(), f->folder, KEY };
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

/* The one file of the folder. */
static void only_file(const struct fixture *f, char out[128])
{
    char command[160];
    (void)snprintf(command, sizeof(command), "ls -A '%s'", f->folder);
    FILE *list = popen(command, "re");
    char name[32] = "", more[32];
    assert_non_null(list);
    assert_int_equal(fscanf(list, "%31s", name), 1);
    assert_int_equal(fscanf(list, "%31s", more), EOF);
    assert_int_equal(pclose(list), 0);
    (void)snprintf(out, 128, "%s/%s", f->folder, name);
}

static void write_bytes(const char *path, const char *data, size_t size)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void what_was_kept_is_found_by_its_key_alone(void **state)
{
    struct fixture *f = *state;
    double flops = 0;
    char path[128];
    assert_int_equal(peak_find(&f->place, &flops), ST_NOT_FOUND);
    assert_int_equal(peak_keep(&f->place, 107.5e9), ST_OK);
    only_file(f, path); /* nothing temporary is left */
    assert_int_equal(peak_find(&f->place, &flops), ST_OK);
    assert_true(flops == 107.5e9);
    assert_int_equal(peak_keep(&f->place, 1e-3 / 7), ST_OK);
    assert_int_equal(peak_find(&f->place, &flops), ST_OK);
    assert_true(flops == 1e-3 / 7);
    f->place.key = KEY ", crowded";
    assert_int_equal(peak_find(&f->place, &flops), ST_NOT_FOUND);
    f->place.key = "version 1";
    assert_int_equal(peak_find(&f->place, &flops), ST_NOT_FOUND);
    f->place.folder = NULL;
    assert_int_equal(peak_find(&f->place, &flops), ST_NOT_FOUND);
    assert_int_equal(peak_keep(&f->place, 1e9), ST_OK); /* nowhere */
}

static void what_is_no_peak_is_not_kept(void **state)
{
    struct fixture *f = *state;
    static char endless[PEAK_KEY_BYTES + 1];
    memset(endless, 'k', sizeof(endless) - 1);
    assert_int_equal(peak_keep(&f->place, 0), ST_INVALID);
    assert_int_equal(peak_keep(&f->place, -1), ST_INVALID);
    assert_int_equal(peak_keep(&f->place, 1.0 / 0.0), ST_INVALID);
    assert_int_equal(peak_keep(&f->place, 0.0 / 0.0), ST_INVALID);
    f->place.key = "two\nlines";
    assert_int_equal(peak_keep(&f->place, 1e9), ST_INVALID);
    f->place.key = endless;
    assert_int_equal(peak_keep(&f->place, 1e9), ST_INVALID);
    assert_int_not_equal(access(f->folder, F_OK), 0);
}

/* Each byte of it, changed or cut off there. */
static void a_damaged_file_is_as_good_as_none(void **state)
{
    struct fixture *f = *state;
    char path[128], *good = NULL, bad[2048];
    size_t size = 0;
    double flops = 5;
    assert_int_equal(peak_keep(&f->place, 107.5e9), ST_OK);
    only_file(f, path);
    assert_int_equal(io_read_file(io_system(), path, sizeof(bad) - 2, &good, &size), ST_OK);
    for (size_t i = 0; i < size; i++) {
        memcpy(bad, good, size);
        bad[i] ^= 1;
        write_bytes(path, bad, size);
        assert_int_not_equal(peak_find(&f->place, &flops), ST_OK);
        write_bytes(path, good, i);
        assert_int_not_equal(peak_find(&f->place, &flops), ST_OK);
    }
    memcpy(bad, good, size);
    bad[size] = '\n';
    write_bytes(path, bad, size + 1);
    assert_int_not_equal(peak_find(&f->place, &flops), ST_OK);
    memset(bad, 'x', sizeof(bad));
    write_bytes(path, bad, sizeof(bad)); /* longer than any */
    assert_int_not_equal(peak_find(&f->place, &flops), ST_OK);
    assert_true(flops == 5); /* untouched */
    assert_int_equal(peak_keep(&f->place, 2e9), ST_OK);
    assert_int_equal(peak_find(&f->place, &flops), ST_OK);
    assert_true(flops == 2e9);
    free(good);
}

static double measure_on(const struct backend_table *table, enum math math, int threads)
{
    const struct peak_options options = { .table = table, .threads = threads, .math = math };
    double flops = 0;
    assert_int_equal(peak_measure(&options, &flops), ST_OK);
    assert_true(flops > 1e5 && flops < 1e16); /* an emulator, and more than any device */
    return flops;
}

static double measure(const struct backend_table *table, enum math math)
{
    return measure_on(table, math, 1);
}

static void a_processor_is_measured_in_both_of_its_precisions(void **state)
{
    (void)state;
    (void)measure(backend_cpu(), MATH_F32);
    (void)measure(backend_cpu(), MATH_BF16);
}

static atomic_int opened;

static enum status open_counted(const struct backend_options *options, struct backend **out)
{
    atomic_fetch_add(&opened, 1);
    return backend_cpu()->open(options, out);
}

/* Each has a backend of its own, up to a bound; how fast they are is no test's matter. */
static void each_thread_has_products_of_its_own(void **state)
{
    (void)state;
    static const struct {
        int threads, backends;
    } rows[] = { { 1, 1 }, { 2, 2 }, { 3 * PEAK_THREADS_MAX, PEAK_THREADS_MAX } };
    struct backend_table table = *backend_cpu();
    table.open = open_counted;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        atomic_store(&opened, 0);
        (void)measure_on(&table, MATH_F32, rows[i].threads);
        assert_int_equal(atomic_load(&opened), rows[i].backends);
    }
}

static void what_the_backend_cant_do_is_its_error(void **state)
{
    (void)state;
    const struct peak_options options = { .table = backend_cpu(), .threads = 1, .math = MATH_F16 };
    double flops = 5;
    assert_int_equal(peak_measure(&options, &flops), ST_INVALID);
    assert_true(flops == 5);
}

#ifdef MODULE
/* The code path alone: the device is played, so its number means nothing. */
static void a_device_is_measured_in_all_of_its_precisions(void **state)
{
    (void)state;
    const struct module *module = NULL;
    struct reason reason;
    assert_int_equal(setenv("CAIRN_CUDA_MODULE", MODULE, 1), 0);
    assert_int_equal(module_load("cuda", 0, &module, &reason), ST_OK);
    for (enum math math = MATH_F32; math <= MATH_F16; math++)
        (void)measure(module->backend, math);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_kept_is_found_by_its_key_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_peak_is_not_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_damaged_file_is_as_good_as_none, set_up, tear_down),
        cmocka_unit_test(a_processor_is_measured_in_both_of_its_precisions),
        cmocka_unit_test(each_thread_has_products_of_its_own),
        cmocka_unit_test(what_the_backend_cant_do_is_its_error),
#ifdef MODULE
        cmocka_unit_test(a_device_is_measured_in_all_of_its_precisions),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
