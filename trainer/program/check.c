#include "trainer/program/check.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "comm/comm.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/limits.h"
#include "identity/invite.h"
#include "kernels/backend.h"
#include "kernels/module.h"
#include "trainer/program/check_rendezvous.h"

#define RANKS_MAX     CHECK_RANKS_MAX
#define BYTES_MIN     ((size_t)64 << 10)
#define BYTES_MAX     ((size_t)64 << 20)
#define SIZES_MAX     8
#define COPY_BYTES    ((size_t)256 << 20)
#define COPIES        8
#define OPEN_MS       INT64_C(60000)
#define EXCHANGE_MS   INT64_C(60000)
#define MEASURE_WAITS 2                  /* at the barrier, per call of measure */
#define REPEAT_NS     INT64_C(100000000) /* a size is measured for about this time, */
#define REPEATS_MIN   2
#define REPEATS_MAX   64 /* but not more often than this */

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_REFUSED = 4 };

/* Measurements of one size: rank 0's times, which differ from the others' by one exchange at
 * most. */
struct exchange {
    size_t bytes;
    double reduce_s, all_to_all_s;
};

struct check {
    const struct check_options *options;
    const struct module *module; /* NULL: cpu */
    const struct backend_table *table;
    const struct comm_table *comm;
    struct check_rendezvous *rendezvous;
    pthread_barrier_t barrier;
    int ranks;
    char secret[IDENTITY_SECRET]; /* of this run */
    size_t size_count;
    struct exchange exchanges[SIZES_MAX];
    double copy_bytes_per_s[RANKS_MAX];
};

/* A rank of the check: a thread with a device and its communicator. */
struct check_rank {
    struct check *check;
    pthread_t thread;
    struct backend *backend;
    struct stream *stream;
    struct comm *comm;
    char *data, *other; /* BYTES_MAX each, device memory */
    int number;
    enum status st;
    char why[LIMIT_REASON];
};

static double seconds_since(int64_t start_ns)
{
    return (double)(clock_mono_ns() - start_ns) / 1e9;
}

static void note_failure(struct check_rank *r, enum status st, const char *what)
{
    if (r->st != ST_OK)
        return;
    const char *more = r->comm != NULL ? r->check->comm->why(r->comm) : status_string(st);
    r->st = st;
    (void)snprintf(r->why, sizeof(r->why), "rank %d: %s: %s", r->number, what, more);
}

/* ---- one device ---- */

static enum status measure_copy(struct check_rank *r)
{
    const struct check *c = r->check;
    const struct vector_table *vector = &c->table->vector;
    void *from = NULL;
    void *to = NULL;
    enum status st = c->table->alloc(r->backend, COPY_BYTES, &from);
    if (st == ST_OK)
        st = c->table->alloc(r->backend, COPY_BYTES, &to);
    if (st == ST_OK)
        st = vector->copy(r->backend, to, from, COPY_BYTES, r->stream);
    if (st == ST_OK)
        st = c->table->stream_sync(r->backend, r->stream);
    int64_t start = clock_mono_ns();
    for (int i = 0; st == ST_OK && i < COPIES; i++)
        st = vector->copy(r->backend, to, from, COPY_BYTES, r->stream);
    if (st == ST_OK)
        st = c->table->stream_sync(r->backend, r->stream);
    if (st == ST_OK) { /* read and written */
        r->check->copy_bytes_per_s[r->number] =
            2.0 * COPIES * (double)COPY_BYTES / seconds_since(start);
    }
    if (from != NULL)
        c->table->free(r->backend, from);
    if (to != NULL)
        c->table->free(r->backend, to);
    return st;
}

static enum status open_rank_device(struct check_rank *r)
{
    const struct check *c = r->check;
    struct backend_options options = { .ordinal = c->module != NULL ? r->number : 0, .threads = 1 };
    enum status st = c->table->open(&options, &r->backend);
    if (st == ST_OK)
        st = c->table->stream_new(r->backend, &r->stream);
    if (st == ST_OK)
        st = c->table->alloc(r->backend, BYTES_MAX, (void **)&r->data);
    if (st == ST_OK)
        st = c->table->alloc(r->backend, BYTES_MAX, (void **)&r->other);
    return st == ST_OK ? measure_copy(r) : st;
}

static void close_rank_device(struct check_rank *r)
{
    const struct backend_table *table = r->check->table;
    if (r->comm != NULL)
        r->check->comm->close(r->comm);
    if (r->data != NULL)
        table->free(r->backend, r->data);
    if (r->other != NULL)
        table->free(r->backend, r->other);
    if (r->stream != NULL)
        table->stream_free(r->backend, r->stream);
    if (r->backend != NULL)
        table->close(r->backend);
}

/* ---- between devices ---- */

static enum status open_rank_comm(struct check_rank *r)
{
    const struct check *c = r->check;
    const struct rendezvous rendezvous = check_rendezvous_of(c->rendezvous, r->number);
    struct comm_options options = {
        .rendezvous = &rendezvous,
        .round_name = "check",
        .rank = r->number,
        .size = c->ranks,
        .host = "127.0.0.1",
        .secret = c->secret,
        .timeout_ms = OPEN_MS,
        .device = { .table = c->table, .backend = r->backend, .stream = r->stream },
    };
    return c->comm->open(&options, &r->comm);
}

static enum status reduce_once(struct check_rank *r, size_t bytes)
{
    return r->check->comm->all_reduce_f32(r->comm, (float *)(void *)r->data, bytes / sizeof(float),
                                          EXCHANGE_MS);
}

static enum status all_to_all_once(struct check_rank *r, size_t bytes)
{
    struct comm_segment send[RANKS_MAX];
    struct comm_segment recv[RANKS_MAX];
    size_t part = bytes / (size_t)r->check->ranks / sizeof(float) * sizeof(float);
    for (int i = 0; i < r->check->ranks; i++) {
        send[i] = (struct comm_segment){ r->data + (size_t)i * part, part };
        recv[i] = (struct comm_segment){ r->other + (size_t)i * part, part };
    }
    return r->check->comm->all_to_all_v(r->comm, send, recv, EXCHANGE_MS);
}

/*
 * Seconds of one exchange: the mean over a number of them. The number is the same on all ranks: it
 * follows from a first exchange, which rank 0 timed while all others waited at the barrier.
 */
static enum status measure(struct check_rank *r, enum status (*once)(struct check_rank *, size_t),
                           size_t bytes, double *seconds)
{
    const struct comm_table *comm = r->check->comm;
    int64_t start = clock_mono_ns();
    enum status st = once(r, bytes);
    if (st == ST_OK)
        st = comm->wait(r->comm, EXCHANGE_MS);
    if (r->number == 0)
        *seconds = seconds_since(start);
    (void)pthread_barrier_wait(&r->check->barrier);
    double count = (double)REPEAT_NS / 1e9 / *seconds;
    int repeats = count < REPEATS_MAX ? (int)count : REPEATS_MAX;
    if (repeats < REPEATS_MIN)
        repeats = REPEATS_MIN;
    (void)pthread_barrier_wait(&r->check->barrier);
    start = clock_mono_ns();
    for (int i = 0; st == ST_OK && i < repeats; i++)
        st = once(r, bytes);
    if (st == ST_OK)
        st = comm->wait(r->comm, EXCHANGE_MS);
    if (r->number == 0)
        *seconds = seconds_since(start) / repeats;
    return st;
}

static void exchange_all(struct check_rank *r)
{
    struct check *c = r->check;
    enum status st = open_rank_comm(r);
    if (st != ST_OK) {
        note_failure(r, st, "opening a communicator");
        check_rendezvous_go_stale(c->rendezvous);
    }
    /* A rank that failed goes on round the others at the barriers. */
    for (size_t i = 0; i < c->size_count; i++) {
        struct exchange *e = &c->exchanges[i];
        if (r->st != ST_OK) {
            for (int waits = 0; waits < 2 * MEASURE_WAITS; waits++)
                (void)pthread_barrier_wait(&c->barrier);
            continue;
        }
        st = measure(r, reduce_once, e->bytes, &e->reduce_s);
        if (st != ST_OK)
            note_failure(r, st, "all-reduce");
        st = measure(r, all_to_all_once, e->bytes, &e->all_to_all_s);
        if (st != ST_OK)
            note_failure(r, st, "all-to-all");
    }
}

static void *rank_main(void *arg)
{
    struct check_rank *r = arg;
    enum status st = open_rank_device(r);
    if (st != ST_OK) {
        note_failure(r, st, "opening the device");
        check_rendezvous_go_stale(r->check->rendezvous);
    }
    (void)pthread_barrier_wait(&r->check->barrier);
    if (r->check->ranks > 1)
        exchange_all(r);
    close_rank_device(r);
    return NULL;
}

/* ---- results ---- */

static double bus_factor(int ranks)
{
    return (double)(ranks - 1) / ranks;
}

static void print_devices(const struct check *c)
{
    (void)printf("%-4s  %-28s %10s %12s\n", "RANK", "DEVICE", "MEMORY", "COPY");
    for (int i = 0; i < c->ranks; i++) {
        struct module_device device = { .name = "host memory" };
        struct reason reason;
        if (c->module != NULL)
            (void)!c->module->device(i, &device, &reason);
        char memory[32] = "-";
        if (device.memory_bytes > 0) {
            (void)snprintf(memory, sizeof(memory), "%.1f GiB",
                           (double)device.memory_bytes / (1024.0 * 1024 * 1024));
        }
        (void)printf("%-4d  %-28s %10s %7.1f GB/s\n", i, device.name, memory,
                     c->copy_bytes_per_s[i] / 1e9);
    }
}

static void print_exchanges(const struct check *c)
{
    double bus = bus_factor(c->ranks);
    (void)printf("\n%d ranks over %s\n%12s  %32s  %32s\n%12s  %10s %10s %10s  %10s %10s %10s\n",
                 c->ranks, c->comm->name, "", "all-reduce", "all-to-all", "BYTES", "TIME us",
                 "ALG GB/s", "BUS GB/s", "TIME us", "ALG GB/s", "BUS GB/s");
    for (size_t i = 0; i < c->size_count; i++) {
        const struct exchange *e = &c->exchanges[i];
        double reduce = (double)e->bytes / e->reduce_s / 1e9;
        double all = (double)e->bytes / e->all_to_all_s / 1e9;
        (void)printf("%12zu  %10.1f %10.2f %10.2f  %10.1f %10.2f %10.2f\n", e->bytes,
                     e->reduce_s * 1e6, reduce, reduce * 2 * bus, e->all_to_all_s * 1e6, all,
                     all * bus);
    }
}

static void print_check_json(const struct check *c)
{
    double bus = bus_factor(c->ranks);
    (void)printf("{\"device\":\"%s\",\"transport\":\"%s\",\"ranks\":%d,\"copy_bytes_per_s\":[",
                 c->options->device, c->comm->name, c->ranks);
    for (int i = 0; i < c->ranks; i++)
        (void)printf("%s%.0f", i > 0 ? "," : "", c->copy_bytes_per_s[i]);
    (void)printf("],\"exchanges\":[");
    for (size_t i = 0; c->ranks > 1 && i < c->size_count; i++) {
        const struct exchange *e = &c->exchanges[i];
        double reduce = (double)e->bytes / e->reduce_s;
        double all = (double)e->bytes / e->all_to_all_s;
        (void)printf("%s{\"bytes\":%zu,\"all_reduce_s\":%.9f,\"all_reduce_algbw\":%.0f,"
                     "\"all_reduce_busbw\":%.0f,\"all_to_all_s\":%.9f,\"all_to_all_algbw\":%.0f,"
                     "\"all_to_all_busbw\":%.0f}",
                     i > 0 ? "," : "", e->bytes, e->reduce_s, reduce, reduce * 2 * bus,
                     e->all_to_all_s, all, all * bus);
    }
    (void)printf("]}\n");
}

/* ---- running ---- */

/* Finds the tables, and how many ranks there are. False: refused; *code is the exit code. */
static bool choose_tables(struct check *c, int *code)
{
    struct reason reason;
    c->ranks = c->options->ranks;
    if (strcmp(c->options->device, "cpu") == 0) {
        c->table = backend_cpu();
        c->comm = comm_gloo();
        c->ranks = c->ranks > 0 ? c->ranks : 2;
        return true;
    }
    int count = 0;
    enum status st = module_load(c->options->device, 0, &c->module, &reason);
    if (st == ST_OK)
        st = c->module->device_count(&count, &reason);
    if (st == ST_OK && c->module->comm == NULL) {
        reason_set(&reason, "the module was built without NCCL");
        st = ST_REFUSED;
    }
    if (st == ST_OK && c->ranks > count) {
        reason_set(&reason, "%d ranks, but this machine has %d devices", c->ranks, count);
        st = ST_REFUSED;
    }
    if (st != ST_OK) {
        (void)fprintf(stderr, "cairn-trainer: %s\n", reason.text);
        *code = st == ST_INVALID ? EXIT_USAGE : EXIT_REFUSED;
        return false;
    }
    c->table = c->module->backend;
    c->comm = c->module->comm;
    if (c->ranks == 0)
        c->ranks = count < RANKS_MAX ? count : RANKS_MAX;
    return true;
}

static int run_ranks(struct check *c, struct check_rank *ranks)
{
    int started = 0;
    while (started < c->ranks) {
        struct check_rank *r = &ranks[started];
        *r = (struct check_rank){ .check = c, .number = started };
        CHECK(pthread_create(&r->thread, NULL, rank_main, r) == 0); /* the barrier counts on all */
        started++;
    }
    int code = EXIT_DONE;
    for (int i = 0; i < started; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        if (ranks[i].st != ST_OK) {
            (void)fprintf(stderr, "cairn-trainer: %s\n", ranks[i].why);
            code = EXIT_FAILED;
        }
    }
    return code;
}

int check_run(const struct check_options *options)
{
    struct check c = { .options = options };
    int code = EXIT_DONE;
    if (options->ranks < 0 || options->ranks > RANKS_MAX) {
        (void)fprintf(stderr, "cairn-trainer: --ranks must be 1 to %d\n", RANKS_MAX);
        return EXIT_USAGE;
    }
    if (!choose_tables(&c, &code))
        return code;
    for (size_t bytes = BYTES_MIN; bytes <= BYTES_MAX && c.size_count < SIZES_MAX; bytes *= 4)
        c.exchanges[c.size_count++].bytes = bytes;
    uint8_t random[32];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random) ||
        check_rendezvous_new(c.ranks, &c.rendezvous) != ST_OK)
        return EXIT_FAILED;
    identity_secret_make(random, c.secret);
    (void)pthread_barrier_init(&c.barrier, NULL, (unsigned)c.ranks);
    struct check_rank ranks[RANKS_MAX];
    code = run_ranks(&c, ranks);
    if (code == EXIT_DONE && options->json) {
        print_check_json(&c);
    } else if (code == EXIT_DONE) {
        print_devices(&c);
        if (c.ranks > 1)
            print_exchanges(&c);
    }
    (void)pthread_barrier_destroy(&c.barrier);
    check_rendezvous_free(c.rendezvous);
    return code;
}
