/*
 * Whole saves and restores of a trained state, against plain write + fsync and plain read of the
 * same raw bytes, in one run; and the bound that the decoder sets.
 *
 *   checkpoint [--data DIR] [--mb N] [--gpt2] [--levels NAME,…] [--threads N,…] [--rounds N]
 *              [--dir DIR] [--codec]
 *
 * The state is parameters and both moments of Adam: simulated, or the raw float32 files of DIR
 * (w_*.f32, m_*.f32, v_*.f32), repeated up to --mb megabytes (150). --gpt2 takes as many elements
 * as GPT-2 124M has: 1.5 GB. Threads are those beside the caller's: 0 is one core.
 *
 * A save is one rank's file with its fsync, by a writer that is made before, as a job's is. A
 * restore is opening, reading all buffers to memory that was never touched, and the comparison of
 * the digest; the files are in the page cache. Plain reading is into fresh memory, too, by one
 * thread and by as many as the restore has. "of the decoder" is the restore's share of what its
 * threads decode from memory to memory that stays in their caches, with all hashes: no reader is
 * faster. GB/cs is per second of processor time. Rounds are interleaved; values and ratios are
 * medians. --codec then runs bench/codec, which lies beside this program, on up to 16 MB of each
 * buffer: ratio, encode and decode of a core.
 */
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/checkpoint_state.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/read/cursor.h"
#include "common/buf.h"
#include "common/clock.h"

#define LIST_MAX    8
#define ROUNDS_MAX  64
#define BLOCK       ((size_t)4 << 20)
#define GPT2_COUNT  ((size_t)124439808)
#define CODEC_COUNT ((size_t)4 << 20) /* elements of each buffer that bench/codec gets */

struct options {
    const char *data, *dir;
    size_t count; /* elements of each buffer */
    enum ckpt_level levels[LIST_MAX];
    uint32_t level_count;
    uint32_t threads[LIST_MAX];
    uint32_t thread_count;
    uint32_t rounds;
    bool codec;
};

/* Seconds of every round, by the clock and of the processor (all threads). */
struct series {
    double seconds[ROUNDS_MAX], processor[ROUNDS_MAX];
    uint32_t count;
};

struct figures {
    struct series save, restore, verify, decode;
    double stored;
};

struct world {
    struct options options;
    struct bench_state state;
    char folder[512]; /* of the checkpoint's store */
    char raw[600];    /* the file of raw bytes */
    double bytes;     /* raw */
    struct series write;
    struct series read[LIST_MAX]; /* by threads */
    struct figures figures[3][LIST_MAX];
};

static const char *const level_names[] = { "default", "fast", "max" };

static void fail(const char *what)
{
    (void)fprintf(stderr, "checkpoint: %s\n", what);
    exit(2);
}

static void need(enum status st, const char *what)
{
    if (st == ST_OK)
        return;
    (void)fprintf(stderr, "checkpoint: %s: %s\n", what, status_string(st));
    exit(1);
}

struct moment {
    double clock, processor;
};

static struct moment now(void)
{
    struct timespec used = { 0 };
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (struct moment){ (double)clock_mono_ns() / 1e9,
                            (double)used.tv_sec + (double)used.tv_nsec / 1e9 };
}

static void add(struct series *series, struct moment since)
{
    if (series->count == ROUNDS_MAX)
        return;
    series->seconds[series->count] = now().clock - since.clock;
    series->processor[series->count++] = now().processor - since.processor;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_of(const double *values, uint32_t count)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof(*values));
    qsort(sorted, count, sizeof(*sorted), compare);
    return count == 0 ? 0 : sorted[count / 2];
}

static double median(const struct series *series)
{
    return median_of(series->seconds, series->count);
}

/* Median of the rounds' quotients: how many times as fast `ours` is. */
static double ratio(const double *ours, const double *theirs, uint32_t count)
{
    double quotients[ROUNDS_MAX];
    for (uint32_t i = 0; i < count; i++)
        quotients[i] = theirs[i] / ours[i];
    return median_of(quotients, count);
}

static void *fresh(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("no memory");
    return memory;
}

/* ---- plain files ---- */

static void write_plain(struct world *w)
{
    (void)unlink(w->raw);
    const struct moment begin = now();
    int fd = open(w->raw, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    bool good = fd >= 0;
    for (int i = 0; i < 3 && good; i++) {
        const char *data = (const char *)w->state.data[i];
        const size_t size = w->state.count * sizeof(float);
        for (size_t at = 0; at < size && good; at += BLOCK) {
            const size_t part = size - at < BLOCK ? size - at : BLOCK;
            good = write(fd, data + at, part) == (ssize_t)part;
        }
    }
    good = good && fsync(fd) == 0;
    if (fd < 0 || close(fd) != 0 || !good)
        fail("the raw file can't be written");
    add(&w->write, begin);
}

struct plain_part {
    int fd;
    char *to;
    size_t first, size;
    pthread_t thread;
};

static void *read_part(void *arg)
{
    const struct plain_part *part = arg;
    for (size_t at = 0; at < part->size; at += BLOCK) {
        const size_t size = part->size - at < BLOCK ? part->size - at : BLOCK;
        const size_t from = part->first + at;
        if (pread(part->fd, part->to + from, size, (off_t)from) != (ssize_t)size)
            fail("the raw file can't be read");
    }
    return NULL;
}

static void read_plain(struct world *w, uint32_t threads, struct series *out)
{
    struct plain_part parts[CKPT_CREW_MAX];
    const size_t bytes = (size_t)w->bytes, each = bytes / (threads + 1) / BLOCK * BLOCK;
    const struct moment begin = now();
    int fd = open(w->raw, O_RDONLY | O_CLOEXEC);
    char *memory = fresh(bytes);
    for (uint32_t i = 0; i <= threads; i++) {
        parts[i] = (struct plain_part){ .fd = fd, .to = memory, .first = i * each };
        parts[i].size = i < threads ? each : bytes - i * each;
        if (i > 0 && pthread_create(&parts[i].thread, NULL, read_part, &parts[i]) != 0)
            fail("no thread");
    }
    (void)read_part(&parts[0]);
    for (uint32_t i = 1; i <= threads; i++)
        (void)pthread_join(parts[i].thread, NULL);
    add(out, begin);
    (void)close(fd);
    (void)munmap(memory, bytes);
}

/* ---- ours ---- */

static void save(struct world *w, enum ckpt_level level, uint32_t threads, struct figures *f)
{
    const struct io *io = io_system();
    char dir[LIMIT_PATH];
    struct ckpt_writer *writer = NULL;
    struct ckpt_report report;
    struct ckpt_hash digest;
    auto_buf struct buf manifest;
    need(ckpt_folder_path(w->folder, "bench", 1000, 1, 0, dir, sizeof(dir)), "save");
    need(ckpt_remove(io, dir), "save");
    need(ckpt_folder_create(io, dir), "save");
    need(ckpt_writer_new(level, threads, &writer), "save");
    const struct moment begin = now();
    need(ckpt_writer_write(writer, io, dir, &w->state.state, 0, 1, NULL, &report), "save");
    add(&f->save, begin);
    ckpt_writer_free(writer);
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    need(ckpt_manifest_make(&report, 1, "bench", "2026-01-01T00:00:00Z", &manifest, &digest),
         "save");
    need(ckpt_manifest_publish(io, dir, manifest.data, manifest.size), "save");
    f->stored = (double)report.size;
    ckpt_report_release(&report);
}

static void restore(struct world *w, const char *dir, uint32_t threads, struct figures *f)
{
    const struct ckpt_read_options options = { .threads = threads };
    const size_t bytes = w->state.count * sizeof(float);
    struct ckpt_reader *reader = NULL;
    void *out[3];
    const struct moment begin = now();
    need(ckpt_open(io_system(), dir, NULL, NULL, &reader), "restore");
    for (int i = 0; i < 3; i++)
        out[i] = fresh(bytes);
    need(ckpt_read_state(reader, out, &options), "restore");
    ckpt_close(reader);
    add(&f->restore, begin);
    for (int i = 0; i < 3; i++) {
        if (memcmp(out[i], w->state.data[i], bytes) != 0)
            fail("what was restored isn't what was saved");
        (void)munmap(out[i], bytes);
    }
}

static void verify(const char *dir, uint32_t threads, struct figures *f)
{
    const struct ckpt_read_options options = { .threads = threads };
    const struct moment begin = now();
    need(ckpt_verify(io_system(), dir, &options, NULL, NULL), "verify");
    add(&f->verify, begin);
}

/* ---- the decoder's bound ---- */

struct decoder {
    const struct ckpt_reader *reader;
    uint32_t number, step; /* chunks number, number + step, … */
    pthread_t thread;
    double seconds; /* in decoding, not in reading */
};

static void *decode_some(void *arg)
{
    struct decoder *d = arg;
    const struct ckpt_set *set = &d->reader->set;
    struct ckpt_cursor *cursor = NULL;
    struct ckpt_hash hashes[DISK_CHUNK_BYTES / PIECE_ELEMENTS];
    uint8_t *raw = malloc(DISK_CHUNK_BYTES);
    need(raw == NULL ? ST_NO_MEMORY : ckpt_cursor_new(d->reader, &cursor), "decode");
    for (uint64_t i = d->number; i < set->place_count; i += d->step) {
        const struct ckpt_place *place = &set->places[i];
        const uint8_t *stored = NULL;
        need(ckpt_cursor_fetch(cursor, place, &stored), "decode");
        const struct moment begin = now();
        need(ckpt_cursor_decode(cursor, place, raw), "decode");
        const struct ckpt_chunk_place it =
            ckpt_shard_place(&set->shards[place->file].footer, &place->reference);
        ckpt_piece_hashes(it.dtype, raw, it.raw_size, hashes);
        d->seconds += now().clock - begin.clock;
    }
    ckpt_cursor_free(cursor);
    free(raw);
    return NULL;
}

static void decode(const char *dir, uint32_t threads, struct figures *f)
{
    struct decoder decoders[CKPT_CREW_MAX];
    struct ckpt_reader *reader = NULL;
    double slowest = 0;
    need(ckpt_open(io_system(), dir, NULL, NULL, &reader), "decode");
    for (uint32_t i = 0; i <= threads; i++) {
        decoders[i] = (struct decoder){ .reader = reader, .number = i, .step = threads + 1 };
        if (i > 0 && pthread_create(&decoders[i].thread, NULL, decode_some, &decoders[i]) != 0)
            fail("no thread");
    }
    (void)decode_some(&decoders[0]);
    for (uint32_t i = 1; i <= threads; i++)
        (void)pthread_join(decoders[i].thread, NULL);
    for (uint32_t i = 0; i <= threads; i++)
        slowest = decoders[i].seconds > slowest ? decoders[i].seconds : slowest;
    if (f->decode.count < ROUNDS_MAX)
        f->decode.seconds[f->decode.count++] = slowest;
    ckpt_close(reader);
}

/* ---- all of it ---- */

static void forget(struct world *w)
{
    memset(&w->write, 0, sizeof(w->write));
    memset(w->read, 0, sizeof(w->read));
    memset(w->figures, 0, sizeof(w->figures));
}

static void run_rounds(struct world *w)
{
    const struct options *o = &w->options;
    char dir[LIMIT_PATH];
    need(ckpt_folder_path(w->folder, "bench", 1000, 1, 0, dir, sizeof(dir)), "folder");
    for (uint32_t round = 0; round <= o->rounds; round++) {
        (void)fprintf(stderr, "round %u of %u\n", round, o->rounds);
        if (round == 1)
            forget(w); /* round 0 warms up: memory that the machine has never used is slow */
        write_plain(w);
        for (uint32_t l = 0; l < o->level_count; l++) {
            for (uint32_t t = 0; t < o->thread_count; t++) {
                struct figures *f = &w->figures[l][t];
                save(w, o->levels[l], o->threads[t], f);
                struct figures warm = { .stored = 0 };
                verify(dir, o->threads[t], &warm); /* into the page cache */
                if (l == 0)
                    read_plain(w, o->threads[t], &w->read[t]);
                restore(w, dir, o->threads[t], f);
                verify(dir, o->threads[t], f);
                decode(dir, o->threads[t], f);
            }
        }
    }
}

static void row(const char *name, double value, const char *unit, const char *yardstick,
                double yardstick_value, double quotient)
{
    (void)printf("{\"bench\":\"checkpoint\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", name,
                 value, unit);
    if (yardstick == NULL) {
        (void)printf(",\"yardstick\":null,\"yardstick_value\":null,\"ratio\":null}\n");
        (void)fprintf(stderr, "%-34s %8.2f %-5s\n", name, value, unit);
        return;
    }
    (void)printf(",\"yardstick\":\"%s\",\"yardstick_value\":%.6g,\"ratio\":%.4g}\n", yardstick,
                 yardstick_value, quotient);
    (void)fprintf(stderr, "%-34s %8.2f %-5s %-22s %8.2f %7.3f\n", name, value, unit, yardstick,
                  yardstick_value, quotient);
}

static void speed(const struct world *w, const char *name, const struct series *ours,
                  const char *yardstick, const struct series *theirs)
{
    if (theirs == NULL) {
        row(name, w->bytes / median(ours) / 1e9, "GB/s", NULL, 0, 0);
        return;
    }
    row(name, w->bytes / median(ours) / 1e9, "GB/s", yardstick, w->bytes / median(theirs) / 1e9,
        ratio(ours->seconds, theirs->seconds, ours->count));
}

/* Writes a row like the one above, in processor time, which others on the machine disturb less. */
static void cost(const struct world *w, const char *name, const struct series *ours,
                 const char *yardstick, const struct series *theirs)
{
    row(name, w->bytes / median_of(ours->processor, ours->count) / 1e9, "GB/cs", yardstick,
        w->bytes / median_of(theirs->processor, theirs->count) / 1e9,
        ratio(ours->processor, theirs->processor, ours->count));
}

static void report(const struct world *w, uint32_t l, uint32_t t)
{
    const struct options *o = &w->options;
    const struct figures *f = &w->figures[l][t];
    const struct series *one = NULL;
    char name[96], yardstick[64];
    for (uint32_t i = 0; i < o->thread_count; i++)
        one = o->threads[i] == 0 ? &w->read[i] : one;
    const char *level = level_names[o->levels[l]];
    const uint32_t cores = o->threads[t] + 1;
    if (t == 0) {
        (void)snprintf(name, sizeof(name), "%s/ratio", level);
        row(name, w->bytes / f->stored, "", NULL, 0, 0);
    }
    (void)snprintf(name, sizeof(name), "%s/save, %u threads", level, cores);
    speed(w, name, &f->save, "write + fsync", &w->write);
    (void)snprintf(name, sizeof(name), "%s/restore, %u threads", level, cores);
    if (one != NULL)
        speed(w, name, &f->restore, "read, 1 thread", one);
    (void)snprintf(yardstick, sizeof(yardstick), "read, %u threads", cores);
    if (cores > 1 || one == NULL)
        speed(w, name, &f->restore, yardstick, &w->read[t]);
    if (one != NULL)
        (void)snprintf(yardstick, sizeof(yardstick), "read, 1 thread");
    (void)snprintf(name, sizeof(name), "%s/restore, %u threads, processor", level, cores);
    cost(w, name, &f->restore, yardstick, one != NULL ? one : &w->read[t]);
    (void)snprintf(name, sizeof(name), "%s/restore, %u of the decoder", level, cores);
    speed(w, name, &f->restore, "decoder", &f->decode);
    (void)snprintf(name, sizeof(name), "%s/verify, %u threads", level, cores);
    speed(w, name, &f->verify, NULL, NULL);
}

/* ---- the codec by itself ---- */

static void put_array(const struct world *w, int number, char path[700])
{
    const size_t count = w->state.count < CODEC_COUNT ? w->state.count : CODEC_COUNT;
    (void)snprintf(path, 700, "%s/%d.f32", w->folder, number);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(w->state.data[number], sizeof(float), count, file) != count ||
        fclose(file) != 0)
        fail("an array can't be written for bench/codec");
}

static void run_codec(const struct world *w)
{
    char self[512], paths[3][700], command[4096];
    ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash == NULL)
        fail("/proc/self/exe can't be read");
    *slash = '\0';
    for (int i = 0; i < 3; i++)
        put_array(w, i, paths[i]);
    (void)snprintf(command, sizeof(command), "'%s/codec' --dtype f32 '%s' '%s' '%s'", self,
                   paths[0], paths[1], paths[2]);
    (void)fflush(stdout);
    if (system(command) != 0) /* NOLINT(cert-env33-c): a program of our own */
        (void)fprintf(stderr, "checkpoint: bench/codec failed; its figures are missing\n");
    for (int i = 0; i < 3; i++)
        (void)unlink(paths[i]);
}

/* ---- the command line ---- */

static void parse_levels(struct options *o, char *text)
{
    o->level_count = 0;
    for (char *next = text, *name = NULL; (name = strsep(&next, ",")) != NULL;) {
        uint32_t level = 0;
        while (level < 3 && strcmp(name, level_names[level]) != 0)
            level++;
        if (level == 3 || o->level_count == 3)
            fail("levels are default, fast and max");
        o->levels[o->level_count++] = (enum ckpt_level)level;
    }
}

static void parse_threads(struct options *o, char *text)
{
    o->thread_count = 0;
    for (char *next = text, *name = NULL; (name = strsep(&next, ",")) != NULL;) {
        unsigned long threads = strtoul(name, NULL, 10);
        if (threads > CKPT_THREADS_MAX || o->thread_count == LIST_MAX)
            fail("too many threads");
        o->threads[o->thread_count++] = (uint32_t)threads;
    }
}

static struct options parse(int argc, char **argv)
{
    static const struct option known[] = {
        { "data", required_argument, NULL, 'd' },
        { "mb", required_argument, NULL, 'm' },
        { "gpt2", no_argument, NULL, 'g' },
        { "levels", required_argument, NULL, 'l' },
        { "threads", required_argument, NULL, 't' },
        { "rounds", required_argument, NULL, 'r' },
        { "dir", required_argument, NULL, 'f' },
        { "codec", no_argument, NULL, 'c' },
        { NULL, 0, NULL, 0 },
    };
    struct options o = {
        .dir = ".",
        .count = (size_t)150000000 / 12,
        .levels = { CKPT_DEFAULT, CKPT_FAST, CKPT_MAX },
        .level_count = 3,
        .threads = { 0, 1 },
        .thread_count = 2,
        .rounds = 5,
    };
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'd':
            o.data = optarg;
            break;
        case 'm':
            o.count = (size_t)strtoul(optarg, NULL, 10) * 1000000 / 12;
            break;
        case 'g':
            o.count = GPT2_COUNT;
            break;
        case 'l':
            parse_levels(&o, optarg);
            break;
        case 't':
            parse_threads(&o, optarg);
            break;
        case 'r':
            o.rounds = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'f':
            o.dir = optarg;
            break;
        case 'c':
            o.codec = true;
            break;
        default:
            exit(2);
        }
    }
    if (o.count == 0 || o.rounds == 0 || o.rounds > ROUNDS_MAX)
        fail("nothing to do");
    return o;
}

int main(int argc, char **argv)
{
    struct world *w = calloc(1, sizeof(*w));
    if (w == NULL)
        fail("no memory");
    w->options = parse(argc, argv);
    (void)snprintf(w->folder, sizeof(w->folder), "%.400s/checkpoint-XXXXXX", w->options.dir);
    if (mkdtemp(w->folder) == NULL)
        fail("no folder can be made in --dir");
    (void)snprintf(w->raw, sizeof(w->raw), "%s/raw", w->folder);
    const char *what = bench_state_make(&w->state, w->options.data, w->options.count);
    if (what != NULL)
        fail(what);
    w->bytes = 3.0 * (double)w->state.count * sizeof(float);
    run_rounds(w);
    (void)fprintf(stderr, "\n%.0f MB of state\n%-34s %14s %-22s %8s %7s\n", w->bytes / 1e6, "case",
                  "value", "yardstick", "value", "ratio");
    for (uint32_t l = 0; l < w->options.level_count; l++) {
        for (uint32_t t = 0; t < w->options.thread_count; t++)
            report(w, l, t);
    }
    if (w->options.codec)
        run_codec(w);
    char dir[LIMIT_PATH], job[LIMIT_PATH];
    need(ckpt_folder_path(w->folder, "bench", 1000, 1, 0, dir, sizeof(dir)), "folder");
    need(ckpt_remove(io_system(), dir), "clean up");
    (void)snprintf(job, sizeof(job), "%s/bench", w->folder);
    (void)rmdir(job);
    (void)unlink(w->raw);
    (void)rmdir(w->folder);
    bench_state_release(&w->state);
    free(w);
    return 0;
}
