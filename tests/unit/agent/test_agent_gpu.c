/* The agent's view of GPUs, over a driver that is a test's own (tests/unit/agent/fake_nvml.c). */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/telemetry/gpu.h"
#include "agent/telemetry/nvml.h"
#include "common/clock.h"
#include "tests/test.h"

#define WAIT_MS 30000

static const struct log *quiet(void)
{
    static struct log log;
    log = log_open("test");
    return &log;
}

static int set_up(void **state)
{
    char *dir = strdup("/tmp/cairn-nvml-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(setenv("FAKE_NVML_DIR", dir, 1), 0);
    *state = dir;
    return 0;
}

static int tear_down(void **state)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", (char *)*state);
    assert_int_equal(system(command), 0);
    free(*state);
    return 0;
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[128];
    char whole[128];
    (void)snprintf(path, sizeof(path), "%s/%s.new", dir, name);
    (void)snprintf(whole, sizeof(whole), "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(path, whole), 0);
}

/* Until the driver has told it. */
static void wait_until_taken(const char *dir, const char *name)
{
    char path[128];
    const int64_t end = clock_mono_ms(clock_system()) + WAIT_MS;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    while (access(path, F_OK) == 0 && clock_mono_ms(clock_system()) < end)
        (void)poll(NULL, 0, 10);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Reads until a GPU has a problem, and returns which. */
static size_t wait_for_problem(struct gpu_watch *watch, struct gpu_state *gpus)
{
    int64_t end = clock_mono_ms(clock_system()) + WAIT_MS;
    while (clock_mono_ms(clock_system()) < end) {
        size_t count = gpu_read(watch, gpus, LIMIT_GPUS);
        for (size_t i = 0; i < count; i++) {
            if (gpus[i].problem[0] != '\0')
                return i;
        }
        (void)poll(NULL, 0, 10);
    }
    fail_msg("no problem within %d ms", WAIT_MS);
    return 0;
}

static struct gpu_watch *open_fake(void)
{
    struct gpu_watch *watch = NULL;
    assert_int_equal(gpu_watch_open(FAKE_NVML, quiet(), &watch), ST_OK);
    assert_non_null(watch);
    return watch;
}

static void a_machine_without_a_driver_has_no_gpus(void **state)
{
    (void)state;
    struct gpu_watch *watch = NULL;
    struct gpu_state gpus[LIMIT_GPUS];
    assert_int_equal(gpu_watch_open("/nowhere/libnvidia-ml.so.1", quiet(), &watch), ST_OK);
    assert_null(watch);
    assert_int_equal(gpu_read(watch, gpus, LIMIT_GPUS), 0);
    gpu_watch_close(watch);
    struct nvml nvml;
    assert_int_equal(nvml_open("libz.so.1", &nvml), ST_VERSION);
}

static void gpus_are_told_with_what_they_are(void **state)
{
    (void)state;
    struct gpu_watch *watch = open_fake();
    struct gpu_state gpus[LIMIT_GPUS];
    assert_int_equal(gpu_read(watch, gpus, LIMIT_GPUS), 2);
    assert_int_equal(gpu_read(watch, gpus, 1), 1);
    assert_int_equal(gpu_read(watch, gpus, LIMIT_GPUS), 2);
    assert_string_equal(gpus[1].name, "NVIDIA Fake");
    assert_string_equal(gpus[1].uuid, "GPU-fake-1");
    assert_string_equal(gpus[1].driver, "580.00");
    assert_int_equal(gpus[1].capability, 90);
    assert_int_equal(gpus[1].memory_bytes, 8ull << 30);
    assert_int_equal(gpus[1].temperature, 41);
    assert_false(gpus[1].throttled);
    assert_string_equal(gpus[1].problem, "");
    assert_true(gpus[0].utilization == 0.97 && gpus[0].power_watts == 310.5);
    assert_true(isnan(gpus[1].utilization) && isnan(gpus[1].power_watts)); /* not 0 */
    gpu_watch_close(watch);
}

static void an_xid_of_broken_hardware_is_a_problem_for_good(void **state)
{
    struct gpu_watch *watch = open_fake();
    struct gpu_state gpus[LIMIT_GPUS];
    put(*state, "xid", "0 31\n"); /* an application's fault */
    wait_until_taken(*state, "xid");
    put(*state, "xid", "1 79\n");
    assert_int_equal(wait_for_problem(watch, gpus), 1);
    assert_string_equal(gpus[1].problem, "Xid 79: the GPU has fallen off the bus");
    assert_string_equal(gpus[0].problem, "");
    gpu_watch_close(watch);
}

static void only_a_new_ecc_error_is_a_problem(void **state)
{
    put(*state, "ecc", "0 3\n");
    struct gpu_watch *watch = open_fake();
    struct gpu_state gpus[LIMIT_GPUS];
    assert_int_equal(gpu_read(watch, gpus, LIMIT_GPUS), 2);
    assert_int_equal(gpus[0].ecc_errors, 3);
    assert_string_equal(gpus[0].problem, "");
    put(*state, "ecc", "0 4\n");
    assert_int_equal(wait_for_problem(watch, gpus), 0);
    assert_string_equal(gpus[0].problem, "a new uncorrected ECC error");
    gpu_watch_close(watch);
}

static void a_driver_that_hangs_holds_up_nobody(void **state)
{
    struct gpu_watch *watch = open_fake();
    struct gpu_state gpus[LIMIT_GPUS];
    put(*state, "hang", "");
    assert_int_equal(wait_for_problem(watch, gpus), 0);
    assert_string_equal(gpus[0].problem, "the driver does not answer");
    gpu_watch_close(watch); /* returns */
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/hang", (char *)*state);
    assert_int_equal(unlink(path), 0);
}

static void a_driver_that_lacks_what_we_can_do_without_has_its_gpus(void **state)
{
    (void)state;
    struct gpu_watch *watch = NULL;
    struct gpu_state gpus[LIMIT_GPUS];
    assert_int_equal(gpu_watch_open(FAKE_NVML_BARE, quiet(), &watch), ST_OK);
    assert_non_null(watch);
    assert_int_equal(gpu_read(watch, gpus, LIMIT_GPUS), 2);
    assert_string_equal(gpus[1].uuid, "GPU-fake-1");
    assert_int_equal(gpus[1].capability, 90);
    assert_string_equal(gpus[1].name, "");
    assert_true(isnan(gpus[0].utilization) && isnan(gpus[0].power_watts));
    assert_string_equal(gpus[1].problem, "");
    gpu_watch_close(watch);
}

static void a_gpu_that_cant_be_opened_keeps_its_number(void **state)
{
    put(*state, "shut", "0 0\n");
    struct gpu_watch *watch = open_fake();
    struct gpu_state gpus[LIMIT_GPUS];
    assert_int_equal(gpu_read(watch, gpus, LIMIT_GPUS), 2);
    assert_string_equal(gpus[0].problem, "the driver can't open it");
    assert_string_equal(gpus[1].uuid, "GPU-fake-1");
    assert_string_equal(gpus[1].problem, "");
    gpu_watch_close(watch);
}

static void only_gpus_that_a_scheduler_gave_are_lent(void **state)
{
    static const struct {
        const char *list;
        size_t count;
        const char *first;
    } cases[] = {
        { "1", 1, "GPU-fake-1" },
        { "0,1", 2, "GPU-fake-0" },
        { "GPU-fake-1", 1, "GPU-fake-1" },
        { "", 0, "" },
        { "NoDevFiles", 0, "" },
        { "-1", 0, "" },
        { "1,7", 1, "GPU-fake-1" },
        { "GPU-", 0, "" },
        { "10", 0, "" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gpu_watch *watch = NULL;
        struct gpu_state gpus[LIMIT_GPUS] = { { .uuid = "" } };
        assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", cases[i].list, 1), 0);
        assert_int_equal(gpu_watch_open(FAKE_NVML, quiet(), &watch), ST_OK);
        assert_int_equal(gpu_read(watch, gpus, LIMIT_GPUS), cases[i].count);
        assert_string_equal(gpus[0].uuid, cases[i].first);
        gpu_watch_close(watch);
    }
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_machine_without_a_driver_has_no_gpus, set_up, tear_down),
        cmocka_unit_test_setup_teardown(gpus_are_told_with_what_they_are, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_xid_of_broken_hardware_is_a_problem_for_good, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(only_a_new_ecc_error_is_a_problem, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_driver_that_hangs_holds_up_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_driver_that_lacks_what_we_can_do_without_has_its_gpus,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_gpu_that_cant_be_opened_keeps_its_number, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(only_gpus_that_a_scheduler_gave_are_lent, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
