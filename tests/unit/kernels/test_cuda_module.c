/*
 * The loader of device modules: what it says where something is missing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/module.h"
#include "tests/test.h"

static enum status load_from(const char *path, int ordinal, struct reason *reason)
{
    const struct module *module = NULL;
    *reason = (struct reason){ 0 };
    assert_int_equal(
        path == NULL ? unsetenv("CAIRN_CUDA_MODULE") : setenv("CAIRN_CUDA_MODULE", path, 1), 0);
    enum status st = module_load("cuda", ordinal, &module, reason);
    assert_true((st == ST_OK) == (module != NULL));
    return st;
}

static void assert_says(const struct reason *reason, const char *part)
{
    if (strstr(reason->text, part) == NULL)
        fail_msg("\"%s\" is not in: %s", part, reason->text);
}

static void only_cuda_is_a_kind_of_module(void **state)
{
    (void)state;
    const struct module *module = NULL;
    struct reason reason;
    assert_int_equal(module_load("tpu", 0, &module, &reason), ST_INVALID);
    assert_says(&reason, "tpu");
    assert_int_equal(module_load("cpu", 0, &module, &reason), ST_INVALID);
    assert_null(module);
}

static void a_missing_module_is_named_with_a_way_out(void **state)
{
    (void)state;
    struct reason reason;
    assert_int_equal(load_from("/nowhere/cairn-cuda.so", 0, &reason), ST_NOT_FOUND);
    assert_says(&reason, "/nowhere/cairn-cuda.so");
    assert_says(&reason, "device: cpu");
}

static void without_a_name_it_is_sought_beside_the_program(void **state)
{
    (void)state;
    struct reason reason;
    /* Tests lie in a folder of their own, where there is none. */
    assert_int_equal(load_from(NULL, 0, &reason), ST_NOT_FOUND);
    assert_says(&reason, "/tests/cairn-cuda.so");
    assert_int_equal(load_from("", 0, &reason), ST_NOT_FOUND);
    assert_says(&reason, "/tests/cairn-cuda.so");
}

static void a_file_that_is_no_library_is_refused(void **state)
{
    (void)state;
    struct reason reason;
    assert_int_equal(load_from(SOURCE_DIR "/README.md", 0, &reason), ST_NOT_FOUND);
    assert_says(&reason, "README.md");
}

static void a_path_that_is_too_long_is_not_there(void **state)
{
    (void)state;
    struct reason reason;
    char path[LIMIT_PATH + 10];
    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(load_from(path, 0, &reason), ST_NOT_FOUND);
}

static void a_module_of_another_build_is_refused(void **state)
{
    (void)state;
    struct reason reason;
    assert_int_equal(load_from(MODULE_OTHER, 0, &reason), ST_VERSION);
    assert_says(&reason, "another version");
    assert_int_equal(load_from(MODULE_EMPTY, 0, &reason), ST_VERSION);
}

static void a_library_that_the_module_needs_is_named(void **state)
{
    (void)state;
    struct reason reason;
    assert_int_equal(load_from(MODULE_LACKING, 0, &reason), ST_NOT_FOUND);
    assert_says(&reason, "libcairn_absent.so");
    assert_says(&reason, "LD_LIBRARY_PATH");
}

/* The real one, where it was built: this machine may have a driver, a GPU, or neither. */
static void the_real_module_loads_or_says_what_the_machine_lacks(void **state)
{
    (void)state;
#ifdef MODULE_REAL
    struct reason reason;
    const enum status st = load_from(MODULE_REAL, 0, &reason);
    if (st == ST_OK)
        return;
    assert_true(st == ST_NOT_FOUND || st == ST_REFUSED);
    assert_true(strstr(reason.text, "driver") != NULL || strstr(reason.text, "GPU") != NULL);
    assert_says(&reason, "device: cpu");
    printf("%s\n", reason.text);
#else
    skip();
#endif
}

static void the_fake_describes(const char *words)
{
    assert_int_equal(setenv("CAIRN_FAKE_CUDA", words, 1), 0);
}

/* One description per process: the fake reads it when first used. */
static void a_device_that_is_too_old_is_refused_with_its_capability(void **state)
{
    (void)state;
#ifdef MODULE_FAKE
    struct reason reason;
    the_fake_describes("capability=75,devices=2");
    assert_int_equal(load_from(MODULE_FAKE, 1, &reason), ST_REFUSED);
    assert_says(&reason, "7.5");
    assert_says(&reason, "8.0");
    assert_says(&reason, "GPU 1");
    assert_int_equal(load_from(MODULE_FAKE, 2, &reason), ST_NOT_FOUND);
    assert_says(&reason, "GPU 2 was asked for, but there are 2");
    assert_int_equal(load_from(MODULE_FAKE, -1, &reason), ST_NOT_FOUND);
#else
    (void)the_fake_describes;
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_cuda_is_a_kind_of_module),
        cmocka_unit_test(a_missing_module_is_named_with_a_way_out),
        cmocka_unit_test(without_a_name_it_is_sought_beside_the_program),
        cmocka_unit_test(a_file_that_is_no_library_is_refused),
        cmocka_unit_test(a_path_that_is_too_long_is_not_there),
        cmocka_unit_test(a_module_of_another_build_is_refused),
        cmocka_unit_test(a_library_that_the_module_needs_is_named),
        cmocka_unit_test(the_real_module_loads_or_says_what_the_machine_lacks),
        cmocka_unit_test(a_device_that_is_too_old_is_refused_with_its_capability),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
