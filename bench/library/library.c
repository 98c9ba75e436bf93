/*
 * What libcairn costs a program: a step without anything due, and a save of a state.
 *
 *   library [--mb N] [--saves N]
 *
 *   step       nanoseconds of cairn_step where nothing is due; beside it a store and a load of
 *              memory that nobody else looks at, in the same order
 *   begin      milliseconds of cairn_save_begin and cairn_save_start: what the program waits for
 *   restore    milliseconds until all of it was read from the copy in memory and compared with its
 *              hashes, by another start of the program; beside it the same memcpy
 *   copy       milliseconds until the state may change again, hashes included; beside it a memcpy
 *              of the same bytes to memory that was touched before
 *
 * The median of all saves counts, but for the first two, which map the files. The worker is one of
 * the tests, a thread of this process; its copy files lie in /dev/shm.
 */
#include <getopt.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "library/cairn.h"
#include "tests/unit/library/fake_worker.h"

enum { STEPS = 20000000, TENSORS = 64, SAVES_MAX = 1000 };

static void check(int status)
{
    if (status < 0) {
        (void)fprintf(stderr, "library: %s\n", cairn_why(NULL));
        exit(1);
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

static void bench_steps(struct cairn *c)
{
    static _Atomic uint64_t step, next_due = UINT64_MAX;
    int64_t before = clock_mono_ns();
    for (uint64_t i = 1; i <= STEPS; i++)
        check(cairn_step(c, i));
    const double ours = (double)(clock_mono_ns() - before) / STEPS;
    before = clock_mono_ns();
    for (uint64_t i = 1; i <= STEPS; i++) {
        atomic_store(&step, i);
        CHECK(i < atomic_load(&next_due));
    }
    const double bare = (double)(clock_mono_ns() - before) / STEPS;
    (void)printf("step     %6.1f ns   bare store and load %6.1f ns   ratio %.2f\n", ours, bare,
                 ours / bare);
}

static void bench_saves(struct cairn *c, const void *const *data, uint64_t bytes, uint32_t saves)
{
    static double begins[SAVES_MAX], copies[SAVES_MAX], memcpies[SAVES_MAX];
    uint8_t *other = malloc(bytes);
    CHECK(other != NULL);
    memset(other, 1, bytes);
    for (uint32_t i = 0; i < saves + 2; i++) {
        const int64_t before = clock_mono_ns();
        check(cairn_save_begin(c, STEPS + i, data));
        check(cairn_save_start(c));
        const int64_t started = clock_mono_ns();
        check(cairn_save_copied(c));
        const int64_t copied = clock_mono_ns();
        for (uint32_t t = 0; t < TENSORS; t++)
            memcpy(other + t * (bytes / TENSORS), data[t], bytes / TENSORS);
        const int64_t ended = clock_mono_ns();
        if (i < 2)
            continue;
        begins[i - 2] = (double)(started - before) / 1e6;
        copies[i - 2] = (double)(copied - started) / 1e6;
        memcpies[i - 2] = (double)(ended - copied) / 1e6;
    }
    free(other);
    const double begin = median(begins, saves), copy = median(copies, saves);
    const double yardstick = median(memcpies, saves);
    (void)printf("begin    %6.3f ms   memcpy of %.0f MB %6.1f ms   ratio %.3f\n", begin,
                 (double)bytes / 1e6, yardstick, begin / yardstick);
    (void)printf("copy     %6.1f ms   memcpy %6.1f ms   ratio %.2f\n", copy, yardstick,
                 copy / yardstick);
}

/* Another start of the program, which finds the copy that was sealed last. */
static void bench_restore(const struct fake_worker *before, const struct cairn_tensor *tensors,
                          uint64_t bytes, uint32_t saves)
{
    static struct fake_worker worker = { .size = 1, .source = WIRE_MEMORY, .path_count = 1 };
    struct cairn *c = NULL;
    uint8_t *out = malloc(bytes), *other = malloc(bytes);
    double times[SAVES_MAX], memcpies[SAVES_MAX];
    CHECK(out != NULL && other != NULL);
    memset(out, 1, bytes);
    memset(other, 1, bytes);
    worker.step = STEPS + saves + 1;
    worker.paths_bytes = strlen(fake_path(before)) + 1;
    memcpy(worker.paths, fake_path(before), worker.paths_bytes);
    fake_start(&worker);
    check(cairn_open(NULL, &c));
    for (uint32_t i = 0; i < saves; i++) {
        struct cairn_state *state = NULL;
        const int64_t began = clock_mono_ns();
        check(cairn_restore(c, &state));
        for (uint32_t t = 0; t < TENSORS; t++) {
            check(cairn_state_read(state, tensors[t].name, 0, NULL, NULL,
                                   out + t * (bytes / TENSORS)));
        }
        const int64_t ended = clock_mono_ns();
        memcpy(other, out, bytes);
        memcpies[i] = (double)(clock_mono_ns() - ended) / 1e6;
        times[i] = (double)(ended - began) / 1e6;
        cairn_state_close(state);
    }
    const double restore = median(times, saves), yardstick = median(memcpies, saves);
    (void)printf("restore  %6.1f ms   memcpy %6.1f ms   ratio %.2f\n", restore, yardstick,
                 restore / yardstick);
    cairn_close(c);
    fake_stop(&worker);
    fake_release(&worker);
    free(out);
    free(other);
}

static void usage(void)
{
    (void)fprintf(stderr, "usage: library [--mb N] [--saves N]\n");
    exit(2);
}

int main(int argc, char **argv)
{
    static const struct option options[] = { { "mb", required_argument, NULL, 'm' },
                                             { "saves", required_argument, NULL, 's' },
                                             { NULL, 0, NULL, 0 } };
    uint64_t mb = 256, saves = 20;
    for (int o = 0; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        const uint64_t value = o == '?' ? 0 : strtoull(optarg, NULL, 10);
        if (value == 0 || value > (o == 's' ? SAVES_MAX - 2 : 1u << 20))
            usage();
        *(o == 'm' ? &mb : &saves) = value;
    }
    static struct cairn_tensor tensors[TENSORS];
    static const void *data[TENSORS];
    static struct fake_worker worker = { .size = 1, .next_due = UINT64_MAX };
    char folder[] = "/dev/shm/cairn-bench-XXXXXX";
    struct cairn *c = NULL;
    CHECK(mkdtemp(folder) != NULL);
    worker.folder = folder;
    fake_start(&worker);
    check(cairn_open(NULL, &c));
    for (uint32_t i = 0; i < TENSORS; i++) {
        (void)snprintf(tensors[i].name, sizeof(tensors[i].name), "t%u", i);
        tensors[i].dtype = CAIRN_F32;
        tensors[i].kind = CAIRN_REPLICATED;
        tensors[i].ndim = 1;
        tensors[i].shape[0] = mb * 1000000 / TENSORS / sizeof(float);
        void *bytes = malloc(tensors[i].shape[0] * sizeof(float));
        CHECK(bytes != NULL);
        memset(bytes, (int)i, tensors[i].shape[0] * sizeof(float));
        data[i] = bytes;
    }
    const uint64_t bytes = tensors[0].shape[0] * sizeof(float) * TENSORS;
    check(cairn_layout(c, tensors, TENSORS, 0));
    check(cairn_ready(c, 0, UINT64_MAX, 0));
    bench_steps(c);
    bench_saves(c, data, bytes, (uint32_t)saves);
    fake_await(&worker, WIRE_COPIED, (uint32_t)saves + 2);
    cairn_close(c);
    fake_stop(&worker);
    bench_restore(&worker, tensors, bytes, (uint32_t)saves);
    for (uint32_t i = 0; i < FAKE_FILES; i++)
        (void)unlink(worker.files[i].path);
    (void)rmdir(folder);
    fake_release(&worker);
    return 0;
}
