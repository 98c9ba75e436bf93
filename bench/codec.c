/*
 * The checkpoint codec on any arrays: ratio and speed of one core, beside plain zstd and memcpy.
 *
 *   codec [--dtype f32|bf16|f16] [--level fast|default|max] [--base FILE]... FILE...
 *
 * The files are raw little-endian arrays, together at least one number and at most 2 GiB; a rest
 * that is no whole number is an error. They are cut into chunks as a checkpoint's buffers are. The
 * k-th --base is an earlier state of the k-th file, of the same size: the levels are then also
 * measured as differences to it.
 *
 * Values are over all files together: ratio, and GB/s of raw bytes in the processor time of one
 * pinned thread, the best of the rounds; rounds of all methods are interleaved, buffers touched
 * before, files smaller than 32 MB repeated to that size so that no second-level cache holds them.
 * The yardstick of a level is plain zstd -1 on the same chunks. "bound" is the order-0 entropy of
 * the sign-rotated byte planes in blocks of 32768 words, as a ratio: what a coder of single bytes
 * can reach.
 */
#include "checkpoint/codec/codec.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <zstd.h>

#include "checkpoint/codec/planes_choose.h"

#define FILES_MAX   64
#define BYTES_MAX   ((size_t)2 << 30)
#define BYTES_MIN   ((size_t)32 << 20)
#define ROUNDS      7
#define ROUNDS_SLOW 2 /* of zstd -3 */
#define BLOCK       32768u
#define CHUNKS_MAX  4096 /* that repetition makes of small files */

struct file {
    const char *path;
    uint8_t *data, *base; /* base: NULL without one */
    size_t size;
};

/* A chunk of a file, and where it is stored. */
struct coded {
    const struct file *file;
    size_t at, size;
    uint8_t *out;
    struct disk_chunk head; /* of zstd only stored_size */
};

enum method_kind { METHOD_COPY, METHOD_PLAIN, METHOD_LEVEL, METHOD_DELTA };

struct method {
    char name[24];
    enum method_kind kind;
    int level; /* enum ckpt_level or zstd's */
    int rounds;
    struct ckpt_codec *codec;
    double encode, decode; /* best, seconds */
    size_t stored;
    size_t stored_of[FILES_MAX];
};

#define METHODS_MAX 9

struct bench {
    enum ckpt_dtype dtype;
    int level; /* -1: all */
    struct file files[FILES_MAX];
    size_t file_count, base_count, bytes; /* bytes: of all files once */
    const char *bases[FILES_MAX];
    struct coded *chunks;
    size_t chunk_count, chunks_once; /* once: without repetitions, which come last */
    struct method methods[METHODS_MAX];
    size_t method_count;
    uint8_t *out, *back;
    ZSTD_CCtx *zstd;
    ZSTD_DCtx *unzstd;
};

static _Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static _Noreturn void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fputs("codec: ", stderr);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Touched, on huge pages where the machine gives them. */
static uint8_t *take(size_t size)
{
    size_t room = (size + ((size_t)2 << 20) - 1) & ~(((size_t)2 << 20) - 1);
    uint8_t *memory = aligned_alloc((size_t)2 << 20, room);
    if (memory == NULL)
        fail("no memory for %zu bytes", size);
    (void)madvise(memory, room, MADV_HUGEPAGE);
    memset(memory, 1, room);
    return memory;
}

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *in = fopen(path, "rb");
    struct stat info;
    if (in == NULL || fstat(fileno(in), &info) != 0)
        fail("%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        fail("%s: not a file of bytes", path);
    if (info.st_size == 0)
        fail("%s: the file is empty", path);
    if ((uint64_t)info.st_size > BYTES_MAX)
        fail("%s: larger than 2 GiB", path);
    *size = (size_t)info.st_size;
    uint8_t *data = take(*size);
    if (fread(data, 1, *size, in) != *size)
        fail("%s: it can't be read to its end", path);
    (void)fclose(in);
    return data;
}

static void read_files(struct bench *b)
{
    size_t width = (size_t)ckpt_dtype_size(b->dtype);
    if (b->base_count > b->file_count)
        fail("more --base than files");
    for (size_t i = 0; i < b->file_count; i++) {
        struct file *file = &b->files[i];
        file->data = read_file(file->path, &file->size);
        if (file->size % width != 0)
            fail("%s: %zu bytes aren't whole numbers of %zu bytes each", file->path, file->size,
                 width);
        b->bytes += file->size;
        if (b->bytes > BYTES_MAX)
            fail("the files have more than 2 GiB together");
        size_t base_size = file->size;
        if (i < b->base_count)
            file->base = read_file(b->bases[i], &base_size);
        if (base_size != file->size)
            fail("%s: not as long as %s", b->bases[i], file->path);
    }
}

/* Returns the most bytes that any method needs for a coded chunk. */
static size_t room_of(size_t size)
{
    return ZSTD_compressBound(size) + DISK_STORED_MAX - DISK_CHUNK_BYTES;
}

/* Every file, and all of them again until they are large enough. */
static void cut(struct bench *b)
{
    size_t times = b->bytes >= BYTES_MIN ? 1 : (BYTES_MIN + b->bytes - 1) / b->bytes;
    for (size_t i = 0; i < b->file_count; i++)
        b->chunks_once += (b->files[i].size + DISK_CHUNK_BYTES - 1) / DISK_CHUNK_BYTES;
    if (times > 1 && times * b->chunks_once > CHUNKS_MAX)
        times = (CHUNKS_MAX + b->chunks_once - 1) / b->chunks_once;
    b->chunks = calloc(b->chunks_once * times, sizeof(*b->chunks));
    if (b->chunks == NULL)
        fail("no memory");
    b->out =
        take(times * (b->bytes + b->chunks_once * (room_of(DISK_CHUNK_BYTES) - DISK_CHUNK_BYTES)));
    uint8_t *out = b->out;
    b->back = take(b->bytes + DISK_CHUNK_BYTES);
    for (size_t t = 0; t < times; t++) {
        for (size_t i = 0; i < b->file_count; i++) {
            const struct file *file = &b->files[i];
            for (size_t at = 0; at < file->size; at += DISK_CHUNK_BYTES) {
                size_t left = file->size - at;
                b->chunks[b->chunk_count] = (struct coded){
                    .file = file,
                    .at = at,
                    .size = left < DISK_CHUNK_BYTES ? left : DISK_CHUNK_BYTES,
                    .out = out,
                };
                out += room_of(b->chunks[b->chunk_count++].size);
            }
        }
    }
}

static void must(enum status st, const char *what)
{
    if (st != ST_OK)
        fail("%s: %s", what, status_string(st));
}

static void encode(struct bench *b, const struct method *m, struct coded *chunk)
{
    const uint8_t *raw = chunk->file->data + chunk->at;
    const uint8_t *base = m->kind == METHOD_DELTA ? chunk->file->base + chunk->at : NULL;
    size_t done = 0;
    switch (m->kind) {
    case METHOD_COPY:
        memcpy(chunk->out, raw, chunk->size);
        chunk->head.stored_size = (uint32_t)chunk->size;
        break;
    case METHOD_PLAIN:
        done = ZSTD_compressCCtx(b->zstd, chunk->out, room_of(chunk->size), raw, chunk->size,
                                 m->level);
        if (ZSTD_isError(done))
            fail("zstd: %s", ZSTD_getErrorName(done));
        chunk->head.stored_size = (uint32_t)done;
        break;
    case METHOD_LEVEL:
    case METHOD_DELTA:
        must(ckpt_encode(m->codec, b->dtype, raw, base, (uint32_t)chunk->size, &chunk->head,
                         chunk->out),
             m->name);
    }
}

static void decode(struct bench *b, const struct method *m, const struct coded *chunk, uint8_t *out)
{
    const uint8_t *base = m->kind == METHOD_DELTA ? chunk->file->base + chunk->at : NULL;
    size_t done = 0;
    switch (m->kind) {
    case METHOD_COPY:
        memcpy(out, chunk->out, chunk->size);
        break;
    case METHOD_PLAIN:
        done =
            ZSTD_decompressDCtx(b->unzstd, out, chunk->size, chunk->out, chunk->head.stored_size);
        if (done != chunk->size)
            fail("zstd doesn't give back what it got");
        break;
    case METHOD_LEVEL:
    case METHOD_DELTA:
        must(ckpt_decode(m->codec, &chunk->head, chunk->out, base, out), m->name);
    }
}

/* Runs one round of a method; the first one also checks that every byte comes back. */
static void run_method(struct bench *b, struct method *m, int round)
{
    double start = now();
    for (size_t i = 0; i < b->chunk_count; i++)
        encode(b, m, &b->chunks[i]);
    double middle = now();
    for (size_t i = 0, at = 0; i < b->chunk_count; i++) {
        at = i % b->chunks_once == 0 ? 0 : at;
        decode(b, m, &b->chunks[i], b->back + at);
        at += b->chunks[i].size;
    }
    double end = now();
    m->encode = round == 0 || middle - start < m->encode ? middle - start : m->encode;
    m->decode = round == 0 || end - middle < m->decode ? end - middle : m->decode;
    if (round > 0)
        return;
    for (size_t i = 0, at = 0; i < b->chunks_once; i++) {
        const struct coded *chunk = &b->chunks[i];
        if (memcmp(b->back + at, chunk->file->data + chunk->at, chunk->size) != 0)
            fail("%s: %s didn't come back as it was", m->name, chunk->file->path);
        at += chunk->size;
        m->stored += chunk->head.stored_size;
        m->stored_of[chunk->file - b->files] += chunk->head.stored_size;
    }
}

static void add_method(struct bench *b, const char *name, enum method_kind kind, int level)
{
    struct method *m = &b->methods[b->method_count++];
    *m = (struct method){ .kind = kind, .level = level, .rounds = ROUNDS };
    (void)snprintf(m->name, sizeof(m->name), "%s", name);
    if (kind == METHOD_PLAIN)
        m->rounds = level > 1 ? ROUNDS_SLOW : ROUNDS - 2;
    if (kind == METHOD_LEVEL || kind == METHOD_DELTA)
        must(ckpt_codec_new((enum ckpt_level)level, &m->codec), "codec");
}

static const struct {
    const char *name;
    enum ckpt_level level;
} levels[] = { { "fast", CKPT_FAST }, { "default", CKPT_DEFAULT }, { "max", CKPT_MAX } };

static void add_methods(struct bench *b)
{
    add_method(b, "memcpy", METHOD_COPY, 0);
    add_method(b, "zstd -1", METHOD_PLAIN, 1);
    add_method(b, "zstd -3", METHOD_PLAIN, 3);
    for (size_t i = 0; i < 3; i++) {
        if (b->level < 0 || b->level == (int)levels[i].level)
            add_method(b, levels[i].name, METHOD_LEVEL, (int)levels[i].level);
    }
    for (size_t i = 0; i < 3 && b->base_count == b->file_count; i++) {
        char name[24];
        (void)snprintf(name, sizeof(name), "delta/%s", levels[i].name);
        if (b->level < 0 || b->level == (int)levels[i].level)
            add_method(b, name, METHOD_DELTA, (int)levels[i].level);
    }
}

static double entropy(const uint8_t *bytes, size_t count)
{
    size_t seen[256] = { 0 };
    double bits = 0;
    for (size_t i = 0; i < count; i++)
        seen[bytes[i]]++;
    for (size_t i = 0; i < 256; i++) {
        if (seen[i] > 0)
            bits -= (double)seen[i] * log2((double)seen[i] / (double)count);
    }
    return bits / 8;
}

/* Bytes that a file's planes need at least, coded byte by byte. */
static double bound(const struct bench *b, const struct file *file)
{
    static uint8_t planes[4 * BLOCK];
    uint8_t *const plane[4] = { planes, planes + BLOCK, planes + 2 * BLOCK, planes + 3 * BLOCK };
    size_t width = (size_t)ckpt_dtype_size(b->dtype), count = file->size / width;
    double bytes = 0;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t size = count - at < BLOCK ? count - at : BLOCK;
        if (width == 4) {
            (void)ckpt_loops()->split4(file->data + at * width, size, 1, plane);
        } else {
            (void)ckpt_loops()->split2(file->data + at * width, size, 1, plane);
        }
        for (size_t p = 0; p < width; p++)
            bytes += entropy(plane[p], size);
    }
    return bytes;
}

static void report(const char *method, const char *what, const char *unit, double value,
                   double yardstick)
{
    char name[48];
    (void)snprintf(name, sizeof(name), "%s/%s", method, what);
    json_t *line = json_pack("{s:s, s:s, s:f, s:s, s:s, s:f, s:f}", "bench", "codec", "case", name,
                             "value", value, "unit", unit, "yardstick", "zstd -1",
                             "yardstick_value", yardstick, "ratio", value / yardstick);
    char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    if (text != NULL)
        (void)printf("%s\n", text);
    free(text);
    json_decref(line);
}

static void report_all(const struct bench *b)
{
    double least = 0, whole = 0;
    (void)fprintf(stderr, "loops: %s\n%-16s %9s", ckpt_loops()->name, "ratio of", "bound");
    for (size_t k = 1; k < b->method_count; k++)
        (void)fprintf(stderr, " %13s", b->methods[k].name);
    (void)fputc('\n', stderr);
    for (size_t i = 0; i < b->file_count; i++) {
        const struct file *file = &b->files[i];
        const char *slash = strrchr(file->path, '/');
        double bytes = bound(b, file);
        least += bytes;
        (void)fprintf(stderr, "%-16s %9.4f", slash == NULL ? file->path : slash + 1,
                      (double)file->size / bytes);
        for (size_t k = 1; k < b->method_count; k++)
            (void)fprintf(stderr, " %13.4f",
                          (double)file->size / (double)b->methods[k].stored_of[i]);
        (void)fputc('\n', stderr);
    }
    for (size_t i = 0; i < b->chunk_count; i++)
        whole += (double)b->chunks[i].size;
    const struct method *plain = &b->methods[1];
    (void)fprintf(stderr, "bound of all: %.4f\n\n%-16s %9s %13s %13s\n", (double)b->bytes / least,
                  "all files", "ratio", "encode GB/s", "decode GB/s");
    for (size_t k = 0; k < b->method_count; k++) {
        const struct method *m = &b->methods[k];
        (void)fprintf(stderr, "%-16s %9.4f %13.2f %13.2f\n", m->name,
                      (double)b->bytes / (double)m->stored, whole / m->encode / 1e9,
                      whole / m->decode / 1e9);
        if (m->kind != METHOD_LEVEL && m->kind != METHOD_DELTA)
            continue;
        report(m->name, "ratio", "ratio", (double)b->bytes / (double)m->stored,
               (double)b->bytes / (double)plain->stored);
        report(m->name, "encode", "GB/s", whole / m->encode / 1e9, whole / plain->encode / 1e9);
        report(m->name, "decode", "GB/s", whole / m->decode / 1e9, whole / plain->decode / 1e9);
    }
}

static void pin(void)
{
    int cpu = sched_getcpu();
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)(cpu < 0 ? 0 : cpu), &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        (void)fprintf(stderr, "codec: not pinned to a core: %s\n", strerror(errno));
}

static void parse(struct bench *b, int argc, char **argv)
{
    static const struct option options[] = {
        { "dtype", required_argument, NULL, 'd' },
        { "level", required_argument, NULL, 'l' },
        { "base", required_argument, NULL, 'b' },
        { NULL, 0, NULL, 0 },
    };
    static const char usage[] = "usage: codec [--dtype f32|bf16|f16] [--level fast|default|max] "
                                "[--base FILE]... FILE...";
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'd') {
            b->dtype = strcmp(optarg, "bf16") == 0  ? CKPT_BF16
                       : strcmp(optarg, "f16") == 0 ? CKPT_F16
                                                    : CKPT_F32;
            if (b->dtype == CKPT_F32 && strcmp(optarg, "f32") != 0)
                fail("no dtype %s; %s", optarg, usage);
        } else if (c == 'l') {
            for (size_t i = 0; i < 3; i++)
                b->level = strcmp(optarg, levels[i].name) == 0 ? (int)levels[i].level : b->level;
            if (b->level < 0)
                fail("no level %s; %s", optarg, usage);
        } else if (c == 'b' && b->base_count < FILES_MAX) {
            b->bases[b->base_count++] = optarg;
        } else {
            fail("%s", usage);
        }
    }
    for (; optind < argc; optind++) {
        if (b->file_count == FILES_MAX)
            fail("more than %d files", FILES_MAX);
        b->files[b->file_count++].path = argv[optind];
    }
    if (b->file_count == 0)
        fail("%s", usage);
}

int main(int argc, char **argv)
{
    static struct bench bench = { .dtype = CKPT_F32, .level = -1 };
    struct bench *b = &bench;
    parse(b, argc, argv);
    pin();
    read_files(b);
    cut(b);
    b->zstd = ZSTD_createCCtx();
    b->unzstd = ZSTD_createDCtx();
    if (b->zstd == NULL || b->unzstd == NULL)
        fail("no memory");
    add_methods(b);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t k = 0; k < b->method_count; k++) {
            if (round < b->methods[k].rounds)
                run_method(b, &b->methods[k], round);
        }
    }
    report_all(b);
    for (size_t k = 0; k < b->method_count; k++)
        ckpt_codec_free(b->methods[k].codec);
    for (size_t i = 0; i < b->file_count; i++) {
        free(b->files[i].data);
        free(b->files[i].base);
    }
    (void)ZSTD_freeCCtx(b->zstd);
    (void)ZSTD_freeDCtx(b->unzstd);
    free(b->chunks);
    free(b->out);
    free(b->back);
    return 0;
}
