/*
 * Ranks that restore the same state from one store: each all of it, as it was, against each an even
 * part and the rest from the others (trainer/state/part_exchange.h), in one run.
 *
 *     restore [--ranks N] [--mb N] [--rounds N] [--threads N] [--store MB/s,…] [--dir DIR]
 *
 * The state is bench/checkpoint's, of 1500 MB, written by as many ranks. --store: what the store
 * gives all ranks together, in megabytes a second, as a queue that every read goes through; 0: the
 * page cache. Ranks are processes on this machine, connected by Gloo on loopback, each with memory
 * that was never touched. A time is from when all begin until all have the state. Bytes are those
 * that reads brought, of all ranks, by the size of the checkpoint's files. Medians of the rounds,
 * which are interleaved.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/checkpoint_state.h"
#include "common/buf.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "tests/unit/comm/comm_fixture.h"
#include "trainer/state/part_exchange.h"

#define LIST_MAX   8
#define ROUNDS_MAX 16
#define NS         INT64_C(1000000000)

struct options {
    uint32_t ranks, rounds, threads;
    size_t megabytes;
    double store[LIST_MAX]; /* MB/s */
    uint32_t store_count;
    const char *dir;
};

/* The state that all processes share. */
static struct measurement {
    pthread_barrier_t barrier;
    atomic_int_fast64_t free_at_ns; /* when the store has sent what it was asked for */
    atomic_uint_fast64_t read_bytes;
    double store; /* MB/s; 0: no limit */
    double seconds;
} * measurement;

static struct bench_state state;
static char checkpoint[512];
static uint64_t file_bytes;

/* ---- the store ---- */

static enum status slow_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                              size_t *out_size)
{
    const enum status st = io_system()->pread(self, fd, data, size, at, out_size);
    if (st != ST_OK)
        return st;
    measurement->read_bytes += *out_size;
    if (measurement->store == 0)
        return ST_OK;
    const int64_t takes = (int64_t)((double)*out_size / measurement->store * 1e3);
    const int64_t now = clock_mono_ns();
    int64_t before = measurement->free_at_ns, until = 0;
    do
        until = (before > now ? before : now) + takes;
    while (!atomic_compare_exchange_weak(&measurement->free_at_ns, &before, until));
    const struct timespec pause = { (time_t)((until - now) / NS), (until - now) % NS };
    (void)nanosleep(&pause, NULL);
    return ST_OK;
}

static void save(const struct options *o)
{
    auto_buf struct buf bytes;
    struct ckpt_hash digest;
    struct ckpt_report *reports = calloc(o->ranks, sizeof(*reports));
    CHECK(reports != NULL);
    buf_init(&bytes, (size_t)LIMIT_MANIFEST_BYTES);
    CHECK(ckpt_folder_create(io_system(), checkpoint) == ST_OK);
    for (uint32_t r = 0; r < o->ranks; r++) {
        CHECK(ckpt_shard_write(io_system(), checkpoint, &state.state, r, o->ranks, NULL,
                               &reports[r]) == ST_OK);
    }
    CHECK(ckpt_manifest_make(reports, o->ranks, "bench", "now", &bytes, &digest) == ST_OK);
    CHECK(ckpt_manifest_publish(io_system(), checkpoint, bytes.data, bytes.size) == ST_OK);
    for (uint32_t r = 0; r < o->ranks; r++)
        ckpt_report_release(&reports[r]);
    free(reports);
}

/* ---- a rank ---- */

/* Rank r's even part of all buffers, as pieces of where they are wanted. */
static size_t pieces_of(uint32_t rank, uint32_t ranks, void *const *out, struct part_piece *pieces)
{
    struct ckpt_share share = { .count = 0 };
    CHECK(ckpt_share_even(&state.state, CKPT_ALL_BUFFERS, rank, ranks, &share) == ST_OK);
    for (uint32_t i = 0; i < share.count; i++) {
        pieces[i] = (struct part_piece){ .rank = rank,
                                         .data = (float *)out[share.extent[i].buffer] +
                                                 share.extent[i].first,
                                         .bytes = (size_t)share.extent[i].count * sizeof(float) };
    }
    return share.count;
}

static void read_part(const struct options *o, struct comm *comm, uint32_t rank, void *const *out,
                      struct ckpt_reader *reader)
{
    struct ckpt_share own = { .count = 0 };
    struct part_piece *pieces = calloc((size_t)o->ranks * 3, sizeof(*pieces));
    struct reason reason;
    size_t count = 0;
    uint32_t blamed = 0;
    CHECK(pieces != NULL);
    for (uint32_t r = 0; r < o->ranks; r++)
        count += pieces_of(r, o->ranks, out, pieces + count);
    CHECK(ckpt_share_even(&state.state, CKPT_ALL_BUFFERS, rank, o->ranks, &own) == ST_OK);
    const struct ckpt_read_options read = { .threads = o->threads, .held = &own };
    CHECK(ckpt_read_state(reader, out, &read) == ST_OK);
    const struct part_exchange_options exchange = { .table = comm_gloo(),
                                                    .comm = comm,
                                                    .rank = rank,
                                                    .size = o->ranks,
                                                    .pieces = pieces,
                                                    .piece_count = count };
    CHECK(part_exchange(&exchange, &blamed, &reason) == ST_OK);
    free(pieces);
}

static void run_rank(const struct options *o, struct shared_rendezvous *shared, uint32_t rank,
                     bool parts)
{
    struct io io = *io_system();
    struct comm *comm = NULL;
    struct ckpt_reader *reader = NULL;
    void *out[3];
    const size_t bytes = state.count * sizeof(float);
    io.pread = slow_pread;
    for (int i = 0; i < 3; i++) {
        out[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(out[i] != MAP_FAILED);
        (void)madvise(out[i], bytes, MADV_HUGEPAGE); /* as a worker's buffers have them */
    }
    CHECK(gloo_open_rank(shared, (int)rank, (int)o->ranks, 60000, &comm) == ST_OK);
    (void)pthread_barrier_wait(&measurement->barrier);
    const int64_t begin_ns = clock_mono_ns();
    CHECK(ckpt_open(&io, checkpoint, NULL, NULL, &reader) == ST_OK);
    if (parts) {
        read_part(o, comm, rank, out, reader);
    } else {
        const struct ckpt_read_options read = { .threads = o->threads };
        CHECK(ckpt_read_state(reader, out, &read) == ST_OK);
    }
    (void)pthread_barrier_wait(&measurement->barrier);
    if (rank == 0)
        measurement->seconds = (double)(clock_mono_ns() - begin_ns) / 1e9;
    for (int i = 0; i < 3; i++)
        CHECK(memcmp(out[i], state.data[i], bytes) == 0);
    ckpt_close(reader);
    comm_gloo()->close(comm);
    _exit(0);
}

struct figure {
    double seconds, bytes; /* bytes: of the files' */
};

static struct figure measure(const struct options *o, bool parts)
{
    struct shared_rendezvous *shared = shared_rendezvous_new();
    measurement->free_at_ns = 0;
    measurement->read_bytes = 0;
    for (uint32_t r = 0; r < o->ranks; r++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            run_rank(o, shared, r, parts);
    }
    for (uint32_t r = 0; r < o->ranks; r++) {
        int status = 0;
        CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    shared_rendezvous_free(shared);
    return (struct figure){ measurement->seconds,
                            (double)measurement->read_bytes / (double)file_bytes };
}

/* ---- all of it ---- */

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

static void run_store(const struct options *o, double store)
{
    double all[ROUNDS_MAX], parts[ROUNDS_MAX], ratios[ROUNDS_MAX];
    struct figure a = { 0 }, p = { 0 };
    measurement->store = store;
    for (uint32_t i = 0; i < o->rounds; i++) {
        a = measure(o, false);
        p = measure(o, true);
        all[i] = a.seconds;
        parts[i] = p.seconds;
        ratios[i] = p.seconds / a.seconds;
    }
    const double each = median(all, o->rounds), shared = median(parts, o->rounds);
    const double ratio = median(ratios, o->rounds);
    (void)fprintf(stderr, "%12.0f  %11.3f  %5.2f  %11.3f  %5.2f  %5.2f\n", store, each, a.bytes,
                  shared, p.bytes, ratio);
    (void)printf("{\"ranks\": %u, \"state_mb\": %zu, \"store_mb_per_s\": %.0f, \"each_s\": %.4f, "
                 "\"each_files\": %.3f, \"parts_s\": %.4f, \"parts_files\": %.3f, "
                 "\"ratio\": %.3f}\n",
                 o->ranks, o->megabytes, store, each, a.bytes, shared, p.bytes, ratio);
    (void)fflush(stdout);
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option names[] = { { "ranks", required_argument, NULL, 'n' },
                                           { "mb", required_argument, NULL, 'm' },
                                           { "rounds", required_argument, NULL, 'r' },
                                           { "threads", required_argument, NULL, 't' },
                                           { "store", required_argument, NULL, 's' },
                                           { "dir", required_argument, NULL, 'd' },
                                           { NULL, 0, NULL, 0 } };
    bool good = true;
    for (int c = 0; good && (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        char *text = optarg;
        if (c == 'n')
            o->ranks = (uint32_t)strtoul(text, NULL, 10);
        else if (c == 'm')
            o->megabytes = strtoul(text, NULL, 10);
        else if (c == 'r')
            o->rounds = (uint32_t)strtoul(text, NULL, 10);
        else if (c == 't')
            o->threads = (uint32_t)strtoul(text, NULL, 10);
        else if (c == 'd')
            o->dir = text;
        else
            good = c == 's';
        for (o->store_count = c == 's' ? 0 : o->store_count; c == 's' && text != NULL;) {
            good = o->store_count < LIST_MAX;
            if (!good)
                break;
            o->store[o->store_count++] = strtod(strsep(&text, ","), NULL);
        }
    }
    if (!good || o->ranks < 2 || o->ranks > SHARED_RANKS || o->megabytes < 1 || o->rounds < 1 ||
        o->rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "usage: restore [--ranks N] [--mb N] [--rounds N] [--threads N] "
                              "[--store MB/s,...] [--dir DIR]\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options o = { .ranks = 4,
                         .rounds = 3,
                         .threads = 1,
                         .megabytes = 1500,
                         .store = { 0, 1000, 300 },
                         .store_count = 3,
                         .dir = "/tmp" };
    char folder[400], command[500];
    parse(argc, argv, &o);
    (void)snprintf(folder, sizeof(folder), "%s/cairn-restore-XXXXXX", o.dir);
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", folder);
    measurement =
        mmap(NULL, sizeof(*measurement), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(measurement != MAP_FAILED);
    pthread_barrierattr_t shared;
    CHECK(pthread_barrierattr_init(&shared) == 0);
    CHECK(pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_barrier_init(&measurement->barrier, &shared, o.ranks) == 0);
    const char *wrong = bench_state_make(&state, NULL, o.megabytes * 1000000 / 12);
    CHECK(wrong == NULL);
    save(&o);
    measurement->store = 0;
    struct ckpt_reader *reader = NULL;
    CHECK(ckpt_open(io_system(), checkpoint, NULL, NULL, &reader) == ST_OK);
    const struct ckpt_manifest *manifest = ckpt_reader_manifest(reader);
    for (uint32_t i = 0; i < manifest->file_count; i++)
        file_bytes += manifest->files[i].size;
    ckpt_close(reader);
    (void)fprintf(stderr, "%u ranks, %zu MB of state, %.0f MB of files\n", o.ranks, o.megabytes,
                  (double)file_bytes / 1e6);
    (void)fprintf(stderr, "store, MB/s:  each all, s  files  in parts, s  files  ratio\n");
    for (uint32_t i = 0; i < o.store_count; i++)
        run_store(&o, o.store[i]);
    bench_state_release(&state);
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command) == 0 ? 0 : 1; /* NOLINT(cert-env33-c): our own folder */
}
