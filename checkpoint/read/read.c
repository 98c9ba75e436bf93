/*
 * Reading a state, a part of it, or a blob: chunks are decoded by several threads while others are
 * read, straight to where they are wanted.
 *
 * Invariants:
 *  (1) Only chunks that hold a part of what is wanted are touched, each once.
 *  (2) Threads take chunks in the order in which they lie in the files, several at once. After an
 *      error no more are taken; those taken are read up to the first error among them. The error of
 *      the first chunk in order that had one is returned: the same with any number of threads, but
 *      for errors that come and go.
 *  (3) Findings are reported by the caller's thread only.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint/format/hash.h"
#include "checkpoint/read/open.h"
#include "common/check.h"
#include "common/cleanup.h"

/* Elements [first, first + count) of a buffer, and where they go. */
struct wanted {
    uint32_t buffer;
    uint64_t first, count;
    void *out;                /* NULL: it is only hashed */
    struct ckpt_hash *pieces; /* of the whole buffer; NULL: it isn't hashed */
};

/* A chunk that is to be read. */
struct chunk_task {
    const struct ckpt_place *place;
    uint32_t wanted; /* number of the struct wanted that it is for */
};

/* Chunks that a thread takes at once: see struct reading. */
#define TAKEN_MAX        8
#define TAKEN_MAX_OBJECT 32 /* from an object store: what it fetches ahead at a time */

/* Outcome of a thread's work. */
struct thread_outcome {
    enum status st;
    size_t task; /* that failed */
};

struct reading {
    struct ckpt_reader *reader;
    const struct wanted *wanted;
    struct chunk_task *tasks;
    size_t task_count;
    struct thread_outcome outcomes[CKPT_CREW_MAX];
    uint32_t crew; /* threads, the caller's among them */
    /* Chunks that a thread takes at once, for two threads that touch a huge page first both clear
     * it. */
    size_t taken;
    const struct ckpt_read_options *options;
    atomic_size_t next;
    atomic_bool stop;
    pthread_mutex_t lock; /* of done, and around progress */
    uint64_t done;
};

/* ---- one chunk ---- */

/* Touches pages that were never touched, all at once: half the price of a fault for each. */
static void populate(uint8_t *to, uint64_t size)
{
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = 4096, first = ((uintptr_t)to + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)to + size) / page * page;
    if (end > first)
        (void)madvise(to + (first - (uintptr_t)to), end - first, MADV_POPULATE_WRITE);
#else
    (void)to;
    (void)size;
#endif
}

static enum status read_chunk(const struct reading *reading, struct ckpt_cursor *cursor,
                              uint8_t *raw, const struct chunk_task *task)
{
    const struct wanted *wanted = &reading->wanted[task->wanted];
    const struct ckpt_buffer *buffer = &reading->reader->buffers[wanted->buffer];
    const uint64_t width = ckpt_dtype_size(buffer->dtype);
    const uint64_t chunk = ckpt_chunk_elements(buffer->dtype);
    const uint64_t first = task->place->reference.index * chunk;
    const uint64_t count = buffer->count - first < chunk ? buffer->count - first : chunk;
    const uint64_t end = wanted->first + wanted->count;
    const uint64_t from = first > wanted->first ? first : wanted->first;
    const uint64_t stop = first + count < end ? first + count : end;
    uint8_t *out = wanted->out;
    if (out != NULL)
        out += (from - wanted->first) * width;
    const bool all_wanted = out != NULL && stop - from == count;
    uint8_t *to = all_wanted ? out : raw;
    if (all_wanted)
        populate(to, count * width);
    enum status st = ckpt_cursor_read(cursor, task->place, to);
    if (st != ST_OK)
        return st;
    if (wanted->pieces != NULL) {
        ckpt_piece_hashes(buffer->dtype, to, (size_t)(count * width),
                          wanted->pieces + first / PIECE_ELEMENTS);
    }
    if (!all_wanted && out != NULL)
        memcpy(out, raw + (from - first) * width, (size_t)((stop - from) * width));
    return ST_OK;
}

/* Callback of struct ckpt_upcoming: the place of chunk task number `number`. */
static const struct ckpt_place *task_place(const void *arg, size_t number)
{
    const struct reading *reading = arg;
    return reading->tasks[number].place;
}

/* A ckpt_parallel_fn: takes chunks until there are no more, or one can't be read. */
static void read_chunks(void *arg, uint32_t number)
{
    struct reading *reading = arg;
    struct thread_outcome *outcome = &reading->outcomes[number];
    auto_free uint8_t *raw = malloc(DISK_CHUNK_BYTES);
    if (raw == NULL) {
        *outcome = (struct thread_outcome){ ST_NO_MEMORY, 0 };
        atomic_store(&reading->stop, true);
        return;
    }
    for (size_t i = 0, end = 0;; i++) {
        if (i == end) {
            if (atomic_load(&reading->stop))
                return;
            i = atomic_fetch_add(&reading->next, reading->taken);
            end = i + reading->taken;
        }
        if (i >= reading->task_count)
            return;
        struct ckpt_cursor *cursor = reading->reader->cursors[number];
        const bool all = reading->crew == 1 || end > reading->task_count;
        const struct ckpt_upcoming upcoming = {
            .at = task_place, .arg = reading, .next = i, .end = all ? reading->task_count : end
        };
        ckpt_cursor_expect(cursor, &upcoming);
        enum status st = read_chunk(reading, cursor, raw, &reading->tasks[i]);
        if (st != ST_OK) {
            *outcome = (struct thread_outcome){ st, i };
            atomic_store(&reading->stop, true);
            return;
        }
        ckpt_parallel_progress(reading->options, &reading->lock, &reading->done);
    }
}

/* ---- all chunks ---- */

static uint64_t chunk_of(const struct reading *reading, const struct wanted *wanted)
{
    return ckpt_chunk_elements(reading->reader->buffers[wanted->buffer].dtype);
}

/* Compares by file, then by place in it: with many extents a buffer's neighbours lie in other
 * files. */
static int compare_tasks(const void *a, const void *b)
{
    const struct ckpt_place *x = ((const struct chunk_task *)a)->place;
    const struct ckpt_place *y = ((const struct chunk_task *)b)->place;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->reference.offset < y->reference.offset ? -1
                                                     : x->reference.offset > y->reference.offset;
}

/* The chunks of all that is wanted, in order. */
static enum status list_tasks(struct reading *reading, uint32_t wanted_count)
{
    uint64_t room = 1;
    for (uint32_t i = 0; i < wanted_count; i++) {
        const struct wanted *wanted = &reading->wanted[i];
        uint64_t chunk = chunk_of(reading, wanted);
        if (wanted->count > 0)
            room += (wanted->first + wanted->count - 1) / chunk - wanted->first / chunk + 1;
    }
    reading->tasks = malloc((size_t)room * sizeof(*reading->tasks));
    if (reading->tasks == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < wanted_count; i++) {
        const struct wanted *wanted = &reading->wanted[i];
        uint64_t chunk = chunk_of(reading, wanted);
        uint64_t end = wanted->count > 0 ? wanted->first + wanted->count : 0;
        for (uint64_t at = wanted->first / chunk; at * chunk < end; at++) {
            reading->tasks[reading->task_count++] =
                (struct chunk_task){ ckpt_reader_place(reading->reader, wanted->buffer, at), i };
        }
    }
    CHECK(reading->task_count < room);
    qsort(reading->tasks, reading->task_count, sizeof(*reading->tasks), compare_tasks);
    return ST_OK;
}

/* Reports what a cursor has found, if st is damage; returns st. */
static enum status report_damage(struct ckpt_reader *reader, const struct ckpt_cursor *cursor,
                                 enum status st)
{
    if (!ckpt_is_finding(st))
        return st;
    const char *file = NULL, *what = NULL;
    ckpt_cursor_damage(cursor, &file, &what);
    return ckpt_finding(&reader->findings, st, file, "%s", what);
}

/* The first error in order, reported. */
static enum status first_error(const struct reading *reading)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i < reading->crew; i++) {
        const struct thread_outcome *it = &reading->outcomes[i], *best = &reading->outcomes[first];
        if (it->st != ST_OK && (best->st == ST_OK || it->task < best->task))
            first = i;
    }
    const struct thread_outcome *failed = &reading->outcomes[first];
    if (ckpt_is_damage(failed->st))
        reading->reader->damaged = 1 + task_place(reading, failed->task)->file;
    return report_damage(reading->reader, reading->reader->cursors[first], failed->st);
}

static enum status read_wanted(struct ckpt_reader *reader, const struct wanted *wanted,
                               uint32_t count, const struct ckpt_read_options *options)
{
    struct reading reading = { .reader = reader, .wanted = wanted, .options = options };
    enum status st = list_tasks(&reading, count);
    const uint32_t threads = ckpt_parallel_threads(options, reading.task_count);
    reading.crew = threads + 1;
    reading.taken = reading.task_count / reading.crew / 4;
    const size_t most = io_is_object(reader->io, reader->dir) ? TAKEN_MAX_OBJECT : TAKEN_MAX;
    reading.taken = reading.taken < 1 ? 1 : reading.taken > most ? most : reading.taken;
    if (st == ST_OK)
        st = ckpt_reader_need_cursors(reader, reading.crew);
    if (st == ST_OK) {
        (void)pthread_mutex_init(&reading.lock, NULL);
        ckpt_parallel_run(threads, read_chunks, &reading);
        (void)pthread_mutex_destroy(&reading.lock);
        for (uint32_t i = 0; i < reading.crew; i++)
            ckpt_cursor_expect(reader->cursors[i], NULL);
        st = first_error(&reading);
    }
    free(reading.tasks);
    return st;
}

enum status ckpt_read_buffer(struct ckpt_reader *reader, const char *name, uint64_t first,
                             uint64_t count, void *out, const struct ckpt_read_options *options)
{
    struct wanted wanted = { .first = first, .count = count, .out = out };
    while (wanted.buffer < reader->buffer_count &&
           strcmp(reader->buffers[wanted.buffer].name, name) != 0)
        wanted.buffer++;
    if (wanted.buffer == reader->buffer_count)
        return ST_NOT_FOUND;
    uint64_t room = reader->buffers[wanted.buffer].count;
    if (count > room || first > room - count)
        return ST_INVALID;
    return read_wanted(reader, &wanted, 1, options);
}

/* ---- the whole state ---- */

/* Reads all buffers, to out[i] unless out is NULL, and hashes what was read. */
static enum status read_whole(struct ckpt_reader *reader, void *const *out,
                              const struct ckpt_read_options *options, struct ckpt_hash *digest)
{
    struct wanted wanted[CKPT_BUFFERS_MAX] = { { 0 } };
    uint64_t all = 0, pieces[CKPT_BUFFERS_MAX];
    for (uint32_t i = 0; i < reader->buffer_count; i++) {
        pieces[i] = ckpt_pieces(reader->buffers[i].count);
        all += pieces[i];
    }
    auto_free struct ckpt_hash *hashes = malloc(((size_t)all + 1) * sizeof(*hashes));
    if (hashes == NULL)
        return ST_NO_MEMORY;
    all = 0;
    for (uint32_t i = 0; i < reader->buffer_count; i++) {
        wanted[i] = (struct wanted){
            .buffer = i,
            .count = reader->buffers[i].count,
            .out = out == NULL ? NULL : out[i],
            .pieces = hashes + all,
        };
        all += pieces[i];
    }
    struct ckpt_hash scalars;
    enum status st = read_wanted(reader, wanted, reader->buffer_count, options);
    if (st == ST_OK)
        st = ckpt_scalars_hash(&reader->scalars, &scalars);
    if (st == ST_OK)
        *digest = ckpt_digest_of(hashes, pieces, reader->buffer_count, &scalars);
    return st;
}

/* The extents of held, each to its place in out. */
static enum status read_held(struct ckpt_reader *reader, void *const *out,
                             const struct ckpt_read_options *options)
{
    const struct ckpt_share *held = options->held;
    const struct ckpt_state state = { .buffers = reader->buffers,
                                      .buffer_count = reader->buffer_count };
    enum status st = ckpt_share_check(&state, held);
    if (st != ST_OK)
        return st;
    auto_free struct wanted *wanted = calloc((size_t)held->count + 1, sizeof(*wanted));
    if (wanted == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < held->count; i++) {
        const struct ckpt_extent *extent = &held->extent[i];
        const uint64_t skipped =
            extent->first * ckpt_dtype_size(reader->buffers[extent->buffer].dtype);
        wanted[i] = (struct wanted){
            .buffer = extent->buffer,
            .first = extent->first,
            .count = extent->count,
            .out = out == NULL || out[extent->buffer] == NULL
                       ? NULL
                       : (uint8_t *)out[extent->buffer] + skipped,
        };
    }
    return read_wanted(reader, wanted, held->count, options);
}

uint32_t ckpt_reader_damaged(const struct ckpt_reader *reader)
{
    return reader->damaged;
}

enum status ckpt_read_state(struct ckpt_reader *reader, void *const *out,
                            const struct ckpt_read_options *options)
{
    struct ckpt_hash digest;
    if (options != NULL && options->held != NULL)
        return read_held(reader, out, options);
    enum status st = read_whole(reader, out, options, &digest);
    return st == ST_OK ? ckpt_reader_compare(reader, &digest) : st;
}

enum status ckpt_digest(const struct io *io, const char *dir, struct ckpt_hash *out)
{
    struct ckpt_reader *reader = NULL;
    enum status st = ckpt_open(io, dir, NULL, NULL, &reader);
    if (st == ST_OK)
        st = read_whole(reader, NULL, NULL, out);
    ckpt_close(reader);
    return st;
}

/* ---- blobs ---- */

enum status ckpt_read_blob(struct ckpt_reader *reader, const char *name, char **out,
                           size_t *out_size)
{
    uint32_t i = 0;
    while (i < reader->set.blob_count && strcmp(reader->set.blobs[i].name, name) != 0)
        i++;
    if (i == reader->set.blob_count)
        return ST_NOT_FOUND;
    const struct ckpt_set_blob *blob = &reader->set.blobs[i];
    enum status st = ckpt_reader_need_cursors(reader, 1);
    auto_free char *data = malloc((size_t)blob->size + 1);
    if (st == ST_OK && data == NULL)
        st = ST_NO_MEMORY;
    for (uint64_t at = 0, k = blob->first; at < blob->size && st == ST_OK;
         at += DISK_CHUNK_BYTES, k++)
        st = ckpt_cursor_read(reader->cursors[0], &reader->set.places[k], data + at);
    if (st != ST_OK)
        return report_damage(reader, reader->cursors[0], st);
    data[blob->size] = '\0';
    *out = TAKE_PTR(data);
    *out_size = (size_t)blob->size;
    return ST_OK;
}
