/*
 * Reading a state: chunks are decoded by several threads while others are read, straight to where
 * they are wanted.
 *
 * Invariants:
 *  (1) Only chunks that hold a part of what is wanted are touched, each once.
 *  (2) Chunks are taken in order, some at once. After an error no more are taken, those taken are
 *      finished up to the first error among them, and that of the first chunk in order that had
 *      one is returned: the same with any number of threads, but for errors that come and go.
 *  (3) Findings come from the caller's thread only.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint/format/hash.h"
#include "checkpoint/read/crew.h"
#include "checkpoint/read/open.h"
#include "checkpoint/read/slice.h"
#include "common/cleanup.h"

/* A part of a buffer, and where it goes. */
struct want {
    uint32_t buffer;
    struct ckpt_slice slice;
    void *out;                /* NULL: it is only hashed */
    struct ckpt_hash *pieces; /* of the whole buffer; NULL: it isn't hashed */
};

/* A chunk that is to be read. */
struct task {
    uint32_t want;
    uint64_t index;
};

#define RUN_MAX 8 /* chunks that a thread takes at once: see struct job */

/* What one thread came to. */
struct outcome {
    enum status st;
    size_t task; /* that failed */
};

struct job {
    struct ckpt_reader *reader;
    const struct want *wants;
    struct task *tasks;
    size_t task_count;
    struct ckpt_cursor *cursors[CKPT_CREW_MAX];
    struct outcome outcomes[CKPT_CREW_MAX];
    uint32_t crew;
    size_t run; /* chunks taken at once: threads that first touch one huge page both clear it */
    const struct ckpt_read_options *options;
    atomic_size_t next;
    atomic_bool stop;
    pthread_mutex_t lock; /* of done, and around progress */
    uint64_t done;
};

/* ---- one chunk ---- */

/* Pages that were never touched come all at once: half the price of a fault for each. */
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

static enum status read_task(const struct job *job, struct ckpt_cursor *cursor, uint8_t *raw,
                             const struct task *task)
{
    const struct want *want = &job->wants[task->want];
    const struct ckpt_buffer *buffer = &job->reader->buffers[want->buffer];
    const uint64_t width = ckpt_dtype_size(buffer->dtype);
    const uint64_t step = ckpt_chunk_elements(buffer->dtype), first = task->index * step;
    const uint64_t count = buffer->count - first < step ? buffer->count - first : step;
    const struct ckpt_slice *slice = &want->slice;
    bool whole = want->out != NULL && slice->runs == 1 && first >= slice->first &&
                 first + count <= slice->first + slice->run;
    uint8_t *to = whole ? (uint8_t *)want->out + (first - slice->first) * width : raw;
    if (whole)
        populate(to, count * width);
    enum status st =
        ckpt_cursor_read(cursor, ckpt_reader_place(job->reader, want->buffer, task->index), to);
    if (st != ST_OK)
        return st;
    if (want->pieces != NULL) {
        ckpt_piece_hashes(buffer->dtype, to, (size_t)(count * width),
                          want->pieces + first / PIECE_ELEMENTS);
    }
    if (!whole && want->out != NULL)
        ckpt_slice_copy(slice, first, count, width, raw, want->out);
    return ST_OK;
}

static void report(struct job *job)
{
    const struct ckpt_read_options *options = job->options;
    if (options == NULL || options->progress == NULL)
        return;
    (void)pthread_mutex_lock(&job->lock);
    options->progress(options->progress_arg, ++job->done);
    (void)pthread_mutex_unlock(&job->lock);
}

static void work(void *arg, uint32_t number)
{
    struct job *job = arg;
    struct outcome *outcome = &job->outcomes[number];
    auto_free uint8_t *raw = malloc(DISK_CHUNK_BYTES);
    if (raw == NULL) {
        *outcome = (struct outcome){ ST_NO_MEMORY, 0 };
        atomic_store(&job->stop, true);
        return;
    }
    for (size_t i = 0, end = 0;; i++) {
        if (i == end) {
            if (atomic_load(&job->stop))
                return;
            i = atomic_fetch_add(&job->next, job->run);
            end = i + job->run;
        }
        if (i >= job->task_count)
            return;
        enum status st = read_task(job, job->cursors[number], raw, &job->tasks[i]);
        if (st != ST_OK) {
            *outcome = (struct outcome){ st, i };
            atomic_store(&job->stop, true);
            return;
        }
        report(job);
    }
}

/* ---- all of them ---- */

/* The chunks of the wants, in order. */
static enum status list_tasks(struct job *job, uint32_t want_count)
{
    uint64_t room = 1;
    for (uint32_t i = 0; i < want_count; i++) {
        const struct ckpt_slice *slice = &job->wants[i].slice;
        uint64_t step = ckpt_chunk_elements(job->reader->buffers[job->wants[i].buffer].dtype);
        if (slice->runs > 0)
            room += (ckpt_slice_end(slice) - 1) / step - slice->first / step + 1;
    }
    job->tasks = malloc((size_t)room * sizeof(*job->tasks));
    if (job->tasks == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < want_count; i++) {
        const struct ckpt_slice *slice = &job->wants[i].slice;
        uint64_t step = ckpt_chunk_elements(job->reader->buffers[job->wants[i].buffer].dtype);
        uint64_t end = slice->runs > 0 ? ckpt_slice_end(slice) : 0;
        for (uint64_t at = slice->first / step; at * step < end; at++) {
            if (ckpt_slice_touches(slice, at * step, step))
                job->tasks[job->task_count++] = (struct task){ i, at };
        }
    }
    return ST_OK;
}

/* Reports what a cursor has found, if st is damage; returns st. */
static enum status report_damage(struct ckpt_reader *reader, const struct ckpt_cursor *cursor,
                                 enum status st)
{
    if (!ckpt_is_damage(st))
        return st;
    const char *file = NULL, *what = NULL;
    ckpt_cursor_damage(cursor, &file, &what);
    return ckpt_finding(&reader->findings, st, file, "%s", what);
}

/* The first error in order, reported. */
static enum status result_of(struct job *job)
{
    const struct outcome *worst = NULL;
    uint32_t number = 0;
    for (uint32_t i = 0; i < job->crew; i++) {
        const struct outcome *it = &job->outcomes[i];
        if (it->st != ST_OK && (worst == NULL || it->task < worst->task)) {
            worst = it;
            number = i;
        }
    }
    return worst == NULL ? ST_OK : report_damage(job->reader, job->cursors[number], worst->st);
}

static enum status read_wants(struct ckpt_reader *reader, const struct want *wants, uint32_t count,
                              const struct ckpt_read_options *options)
{
    struct job job = { .reader = reader, .wants = wants, .options = options };
    enum status st = list_tasks(&job, count);
    uint32_t threads = options == NULL ? 0 : options->threads;
    if (threads > CKPT_CREW_MAX - 1)
        threads = CKPT_CREW_MAX - 1;
    while (threads > 0 && threads >= job.task_count)
        threads--;
    job.crew = threads + 1;
    job.run = job.task_count / job.crew / 4;
    job.run = job.run < 1 ? 1 : job.run > RUN_MAX ? RUN_MAX : job.run;
    for (uint32_t i = 0; i < job.crew && st == ST_OK; i++)
        st = ckpt_reader_cursor(reader, i, &job.cursors[i]);
    if (st == ST_OK) {
        (void)pthread_mutex_init(&job.lock, NULL);
        ckpt_crew_run(threads, work, &job);
        (void)pthread_mutex_destroy(&job.lock);
        st = result_of(&job);
    }
    free(job.tasks);
    return st;
}

enum status ckpt_read_buffer(struct ckpt_reader *reader, const char *name, uint64_t first,
                             uint64_t count, void *out, const struct ckpt_read_options *options)
{
    struct want want = { .slice = ckpt_slice_range(first, count), .out = out };
    while (want.buffer < reader->buffer_count &&
           strcmp(reader->buffers[want.buffer].name, name) != 0)
        want.buffer++;
    if (want.buffer == reader->buffer_count)
        return ST_NOT_FOUND;
    uint64_t room = reader->buffers[want.buffer].count;
    if (count > room || first > room - count)
        return ST_INVALID;
    return read_wants(reader, &want, 1, options);
}

enum status ckpt_read_tensor(struct ckpt_reader *reader, const char *name, const uint64_t *start,
                             const uint64_t *extent, void *out,
                             const struct ckpt_read_options *options)
{
    uint32_t i = 0;
    while (i < reader->tensor_count && strcmp(reader->tensors[i].name, name) != 0)
        i++;
    if (i == reader->tensor_count)
        return ST_NOT_FOUND;
    const struct ckpt_tensor *tensor = &reader->tensors[i];
    for (int32_t d = 0; d < tensor->ndim; d++) {
        if (extent[d] > tensor->dims[d] || start[d] > tensor->dims[d] - extent[d])
            return ST_INVALID;
    }
    struct want want = {
        .buffer = tensor->buffer,
        .slice = ckpt_slice_of(tensor->offset, (uint32_t)tensor->ndim, tensor->dims, start, extent),
        .out = out,
    };
    return read_wants(reader, &want, 1, options);
}

/* ---- the whole state ---- */

/* Reads all buffers, to out[i] unless out is NULL, and hashes what was read. */
static enum status read_all(struct ckpt_reader *reader, void *const *out,
                            const struct ckpt_read_options *options, struct ckpt_hash *digest)
{
    struct want wants[CKPT_BUFFERS_MAX] = { { 0 } };
    uint64_t pieces = 0;
    for (uint32_t i = 0; i < reader->buffer_count; i++)
        pieces += ckpt_pieces(reader->buffers[i].count);
    auto_free struct ckpt_hash *hashes = malloc(((size_t)pieces + 1) * sizeof(*hashes));
    if (hashes == NULL)
        return ST_NO_MEMORY;
    pieces = 0;
    for (uint32_t i = 0; i < reader->buffer_count; i++) {
        wants[i] = (struct want){
            .buffer = i,
            .slice = ckpt_slice_range(0, reader->buffers[i].count),
            .out = out == NULL ? NULL : out[i],
            .pieces = hashes + pieces,
        };
        pieces += ckpt_pieces(reader->buffers[i].count);
    }
    struct ckpt_hash scalars;
    enum status st = read_wants(reader, wants, reader->buffer_count, options);
    if (st == ST_OK)
        st = ckpt_scalars_hash(&reader->scalars, &scalars);
    if (st == ST_OK)
        *digest = ckpt_digest_of(hashes, pieces, &scalars);
    return st;
}

enum status ckpt_read_state(struct ckpt_reader *reader, void *const *out,
                            const struct ckpt_read_options *options)
{
    struct ckpt_hash digest;
    enum status st = read_all(reader, out, options, &digest);
    return st == ST_OK ? ckpt_reader_compare(reader, &digest) : st;
}

enum status ckpt_digest(const struct io *io, const char *dir, struct ckpt_hash *out)
{
    struct ckpt_reader *reader = NULL;
    enum status st = ckpt_open(io, dir, NULL, NULL, &reader);
    if (st == ST_OK)
        st = read_all(reader, NULL, NULL, out);
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
    struct ckpt_cursor *cursor = NULL;
    enum status st = ckpt_reader_cursor(reader, 0, &cursor);
    auto_free char *data = malloc((size_t)blob->size + 1);
    if (st == ST_OK && data == NULL)
        st = ST_NO_MEMORY;
    for (uint64_t at = 0, k = blob->first; at < blob->size && st == ST_OK;
         at += DISK_CHUNK_BYTES, k++)
        st = ckpt_cursor_read(cursor, &reader->set.places[k], data + at);
    if (st != ST_OK)
        return report_damage(reader, cursor, st);
    data[blob->size] = '\0';
    *out = TAKE_PTR(data);
    *out_size = (size_t)blob->size;
    return ST_OK;
}
