/*
 * Reading every byte of a checkpoint, once: each file's hash is fed with the same bytes that its
 * header, chunks and footer are checked from. After damage it goes on as far as it can, so that one
 * run names everything that is wrong.
 *
 * The files, one after the other, are cut into parts: chunks, or plain stretches of bytes where the
 * tables are damaged. Several threads take parts in order.
 *
 *     a part:  taken  ─▶ read      [verify_parts]  any thread
 *              read   ─▶ hashed    [take_turn]     in order: it waits for its turn
 *              hashed ─▶ done      [decode_part]   any thread, beside others
 *
 * Invariants:
 *  (1) The hasher has been fed with what could be read of the parts before `turn` that are of the
 *      same file.
 *  (2) A call that fails ends the run: no turn is taken any more. Damage ends nothing.
 *  (3) Findings are kept until all threads are done, and reported in the order of the parts.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"
#include "checkpoint/read/open.h"
#include "common/check.h"
#include "common/cleanup.h"

#define KEPT_MAX     1000 /* findings; more are counted */
#define TAKEN_OBJECT 8    /* parts that a thread takes at once from an object store, else one */
#define VERIFY_ALL   UINT32_MAX

struct part {
    struct ckpt_place place;
    bool first, last; /* of its file */
    bool chunk;       /* else bytes that nothing is known about */
};

/* A finding of a thread, kept to be reported in order. */
struct kept_finding {
    size_t part;
    enum status st;
    char what[LIMIT_REASON];
    char file[LIMIT_NAME];
};

struct verifier {
    struct ckpt_reader reader;
    const struct ckpt_read_options *options;
    uint32_t only; /* file that is read; VERIFY_ALL: all */
    struct part *parts;
    size_t part_count;
    struct ckpt_hasher *hasher; /* of the file whose turn it is */
    struct ckpt_hash *pieces; /* of all buffers; NULL: the tables are damaged, or not all is read */
    uint64_t piece_count;
    uint64_t piece_first[CKPT_BUFFERS_MAX];
    size_t taken;         /* parts that a thread takes at once */
    uint32_t crew;        /* threads */
    atomic_size_t next;   /* part that no thread has taken */
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t turned;
    size_t turn;        /* part that may be hashed */
    uint64_t done;      /* parts */
    enum status failed; /* the first call that failed; all stop */
    struct kept_finding *kept;
    size_t kept_count, lost_count;
};

/* ---- manifest and tables ---- */

/* An io_name_fn: remarks on a file that the manifest doesn't name, and that no call left. */
static bool remark_foreign(void *arg, const char *name)
{
    struct verifier *v = arg;
    const struct ckpt_manifest *manifest = &v->reader.manifest;
    uint64_t generation = 0;
    bool known = strcmp(name, CKPT_MANIFEST) == 0 || ckpt_file_is_held(name) ||
                 ckpt_temporary_parse(name, &generation);
    for (uint32_t i = 0; i < manifest->file_count && !known; i++)
        known = strcmp(name, manifest->files[i].name) == 0;
    if (!known) {
        (void)ckpt_finding(&v->reader.findings, ST_OK, name,
                           "the manifest doesn't name it, ignored");
    }
    return true;
}

static enum status check_manifest(struct verifier *v)
{
    struct ckpt_reader *reader = &v->reader;
    const struct io *io = reader->io;
    struct io_stat info;
    enum status st = io->stat(io->self, reader->dir, &info);
    if (st != ST_OK)
        return st;
    struct reason what = { "" };
    st = ckpt_manifest_read(io, reader->dir, &reader->manifest, &what);
    if (st == ST_NOT_FOUND) {
        return ckpt_finding(&reader->findings, ST_INCOMPLETE, CKPT_MANIFEST,
                            "there is none: this is no checkpoint");
    }
    if (ckpt_is_finding(st))
        return ckpt_finding(&reader->findings, st, CKPT_MANIFEST, "%s", what.text);
    if (st != ST_OK)
        return st;
    char base[LIMIT_PATH];
    struct ckpt_folder_name folder;
    st = ckpt_basename(reader->dir, base);
    if (st == ST_OK && ckpt_folder_parse(base, &folder) &&
        (folder.step != reader->manifest.step ||
         folder.generation != reader->manifest.generation)) {
        (void)ckpt_finding(&reader->findings, ST_CORRUPT, CKPT_MANIFEST,
                           "it is of step %" PRIu64 ", generation %" PRIu64, reader->manifest.step,
                           reader->manifest.generation);
    }
    return st;
}

/* The hasher; and, if the tables hold together and all is read, room for the hashes of pieces. */
static enum status prepare_hashes(struct verifier *v)
{
    struct ckpt_reader *reader = &v->reader;
    enum status st = ckpt_hasher_new(&v->hasher);
    if (st != ST_OK || reader->findings.worst != ST_OK)
        return st;
    st = ckpt_reader_join(reader);
    if (st != ST_OK)
        return ckpt_is_finding(st) ? ST_OK : st;
    if (v->only != VERIFY_ALL)
        return ST_OK;
    for (uint32_t b = 0; b < reader->buffer_count; b++) {
        v->piece_first[b] = v->piece_count;
        v->piece_count += ckpt_pieces(reader->buffers[b].count);
    }
    v->pieces = calloc((size_t)v->piece_count + 1, sizeof(*v->pieces));
    return v->pieces == NULL ? ST_NO_MEMORY : ST_OK;
}

/* ---- parts ---- */

/* *out: whether there is a file of the right size. All else was reported when it was opened. */
static enum status file_is_there(const struct ckpt_reader *reader, uint32_t file, bool *out)
{
    const struct ckpt_file *it = &reader->manifest.files[file];
    char path[LIMIT_PATH];
    struct io_stat info = { 0 };
    enum status st = ckpt_path(reader->dir, it->name, path);
    if (st == ST_OK)
        st = reader->io->stat(reader->io->self, path, &info);
    *out = st == ST_OK && !info.is_dir && info.size == it->size;
    return st == ST_NOT_FOUND ? ST_OK : st;
}

static size_t parts_of(const struct ckpt_reader *reader, uint32_t file)
{
    const struct ckpt_shard *shard = &reader->set.shards[file];
    if (shard->size != 0)
        return (size_t)shard->footer.head->chunk_count + 1;
    return (size_t)(reader->manifest.files[file].size / DISK_CHUNK_BYTES) + 2;
}

/* The last part of a file is its end: no bytes, but the footer and the comparison. */
static void add_parts(struct verifier *v, uint32_t file)
{
    const struct ckpt_shard *shard = &v->reader.set.shards[file];
    const uint64_t size = v->reader.manifest.files[file].size;
    const size_t begin = v->part_count;
    for (uint32_t i = 0; shard->size != 0 && i < shard->footer.head->chunk_count; i++) {
        v->parts[v->part_count++] =
            (struct part){ .place = { shard->footer.references[i], file, 0 }, .chunk = true };
    }
    for (uint64_t at = 0; shard->size == 0 && at < size; at += DISK_CHUNK_BYTES) {
        uint64_t left = size - at;
        struct part *part = &v->parts[v->part_count++];
        *part = (struct part){ .place = { .file = file } };
        part->place.reference.offset = at;
        part->place.reference.size = (uint32_t)(left < DISK_CHUNK_BYTES ? left : DISK_CHUNK_BYTES);
    }
    v->parts[v->part_count++] = (struct part){ .place = { .file = file }, .last = true };
    v->parts[begin].first = true;
}

static enum status list_parts(struct verifier *v)
{
    for (uint32_t i = 0; i < v->reader.manifest.file_count; i++) {
        bool there = false;
        if (v->only != VERIFY_ALL && v->only != i)
            continue;
        enum status st = file_is_there(&v->reader, i, &there);
        if (st != ST_OK)
            return st;
        if (!there)
            continue;
        size_t room = v->part_count + parts_of(&v->reader, i);
        struct part *parts = realloc(v->parts, room * sizeof(*parts));
        if (parts == NULL)
            return ST_NO_MEMORY;
        v->parts = parts;
        add_parts(v, i);
        CHECK(v->part_count <= room);
    }
    return ST_OK;
}

/* ---- one part ---- */

static void keep_finding(struct verifier *v, size_t part, enum status st, const char *file,
                         const char *what)
{
    if (v->kept_count == KEPT_MAX) {
        v->lost_count++;
        return;
    }
    struct kept_finding *it = &v->kept[v->kept_count++];
    *it = (struct kept_finding){ .part = part, .st = st };
    (void)snprintf(it->file, sizeof(it->file), "%s", file);
    (void)snprintf(it->what, sizeof(it->what), "%s", what);
}

/* Keeps the damage that the cursor found in the part. Under the lock, like keep_finding. */
static void keep_damage(struct verifier *v, size_t part, enum status st,
                        const struct ckpt_cursor *cursor)
{
    const char *file = NULL, *what = NULL;
    ckpt_cursor_damage(cursor, &file, &what);
    keep_finding(v, part, st, file, what);
}

/* Feeds the part to the hash of its file; at its end that is compared. bytes: NULL where there are
 * none, or they can't be read. */
static void hash_part(struct verifier *v, size_t number, const uint8_t *bytes)
{
    CHECK(v->turn == number);
    const struct part *part = &v->parts[number];
    const struct ckpt_shard *shard = &v->reader.set.shards[part->place.file];
    const struct ckpt_file *file = &v->reader.manifest.files[part->place.file];
    if (part->first) {
        ckpt_hasher_reset(v->hasher);
        if (shard->size != 0)
            ckpt_hasher_add(v->hasher, &shard->header, sizeof(shard->header));
    }
    if (bytes != NULL)
        ckpt_hasher_add(v->hasher, bytes, part->place.reference.size);
    if (!part->last)
        return;
    if (shard->size != 0)
        ckpt_hasher_add(v->hasher, shard->footer.bytes, (size_t)shard->footer.size);
    struct ckpt_hash hash = ckpt_hasher_result(v->hasher);
    if (!ckpt_hash_equal(&hash, &file->hash)) {
        keep_finding(v, number, ST_CORRUPT, file->name,
                     "the bytes don't match the hash in the manifest");
    }
}

/* Waits for the part's turn and hashes its bytes. st: of reading them. False: all stop. */
static bool take_turn(struct verifier *v, size_t number, enum status st, struct ckpt_cursor *cursor,
                      const uint8_t *bytes)
{
    (void)pthread_mutex_lock(&v->lock);
    while (v->turn != number && v->failed == ST_OK)
        (void)pthread_cond_wait(&v->turned, &v->lock);
    if (v->failed == ST_OK && st != ST_OK && !ckpt_is_finding(st))
        v->failed = st;
    if (v->failed == ST_OK && st != ST_OK)
        keep_damage(v, number, st, cursor);
    if (v->failed == ST_OK)
        hash_part(v, number, st == ST_OK ? bytes : NULL);
    v->turn++;
    bool go_on = v->failed == ST_OK;
    (void)pthread_cond_broadcast(&v->turned);
    (void)pthread_mutex_unlock(&v->lock);
    return go_on;
}

static void keep_pieces(struct verifier *v, const struct ckpt_place *place, const uint8_t *raw)
{
    if (v->pieces == NULL || (place->reference.buffer & DISK_BLOB) != 0)
        return;
    struct ckpt_chunk_place it =
        ckpt_shard_place(&v->reader.set.shards[place->file].footer, &place->reference);
    uint64_t first = it.index * (ckpt_chunk_elements(it.dtype) / PIECE_ELEMENTS);
    CHECK(v->piece_first[it.buffer] + first < v->piece_count);
    ckpt_piece_hashes(it.dtype, raw, it.raw_size, v->pieces + v->piece_first[it.buffer] + first);
}

static void decode_part(struct verifier *v, size_t number, struct ckpt_cursor *cursor, uint8_t *raw)
{
    const struct ckpt_place *place = &v->parts[number].place;
    enum status st = ckpt_cursor_decode(cursor, place, raw);
    if (st == ST_OK) {
        keep_pieces(v, place, raw);
        return;
    }
    bool parent_missing = st == ST_INVALID && v->reader.manifest.parent.generation != 0;
    if (parent_missing)
        return; /* that was reported, or follows from damage that was */
    (void)pthread_mutex_lock(&v->lock);
    if (ckpt_is_finding(st) || st == ST_INVALID) {
        keep_damage(v, number, st == ST_INVALID ? ST_CORRUPT : st, cursor);
    } else if (v->failed == ST_OK) {
        v->failed = st;
        (void)pthread_cond_broadcast(&v->turned);
    }
    (void)pthread_mutex_unlock(&v->lock);
}

/* Callback of struct ckpt_upcoming: the place of a part. */
static const struct ckpt_place *part_place(const void *arg, size_t number)
{
    const struct verifier *v = arg;
    const struct ckpt_place *place = &v->parts[number].place;
    return place->reference.size > 0 ? place : NULL;
}

/* Tells the caller's options that bytes were read. False: all threads stop. */
static bool keep_throttle(struct verifier *v, uint64_t bytes)
{
    if (v->options == NULL || v->options->throttle == NULL ||
        v->options->throttle(v->options->throttle_arg, bytes))
        return true;
    (void)pthread_mutex_lock(&v->lock);
    if (v->failed == ST_OK)
        v->failed = ST_CLOSED;
    (void)pthread_cond_broadcast(&v->turned);
    (void)pthread_mutex_unlock(&v->lock);
    return false;
}

/* A ckpt_parallel_fn: takes parts until there are no more, or a call has failed. */
static void verify_parts(void *arg, uint32_t number)
{
    struct verifier *v = arg;
    struct ckpt_cursor *cursor = v->reader.cursors[number];
    auto_free uint8_t *raw = malloc(DISK_CHUNK_BYTES);
    for (size_t i = 0, end = 0;; i++) {
        if (i == end) {
            i = atomic_fetch_add(&v->next, v->taken);
            end = i + v->taken;
        }
        if (i >= v->part_count)
            return;
        const bool all = v->crew == 1 || end > v->part_count;
        const struct ckpt_upcoming upcoming = {
            .at = part_place, .arg = v, .next = i, .end = all ? v->part_count : end
        };
        ckpt_cursor_expect(cursor, &upcoming);
        const struct part *part = &v->parts[i];
        const uint8_t *bytes = NULL;
        enum status st = raw == NULL ? ST_NO_MEMORY : ST_OK;
        if (st == ST_OK && part->place.reference.size > 0)
            st = ckpt_cursor_fetch(cursor, &part->place, &bytes);
        if (!take_turn(v, i, st, cursor, bytes))
            return;
        if (st == ST_OK && part->chunk)
            decode_part(v, i, cursor, raw);
        ckpt_parallel_progress(v->options, &v->lock, &v->done);
        if (!keep_throttle(v, part->place.reference.size))
            return;
    }
}

/* ---- all of them ---- */

static int compare_kept(const void *a, const void *b)
{
    const struct kept_finding *x = a, *y = b;
    return x->part < y->part ? -1 : x->part > y->part;
}

static void report_kept(struct verifier *v)
{
    struct ckpt_findings *findings = &v->reader.findings;
    qsort(v->kept, v->kept_count, sizeof(*v->kept), compare_kept);
    for (size_t i = 0; i < v->kept_count; i++) {
        const struct kept_finding *it = &v->kept[i];
        (void)ckpt_finding(findings, it->st, it->file, "%s", it->what);
    }
    if (v->lost_count > 0) {
        (void)ckpt_finding(findings, ST_CORRUPT, CKPT_MANIFEST, "%zu more chunks are damaged",
                           v->lost_count);
    }
}

static enum status check_files(struct verifier *v)
{
    enum status st = list_parts(v);
    const uint32_t threads = ckpt_parallel_threads(v->options, v->part_count);
    if (st == ST_OK)
        st = ckpt_reader_need_cursors(&v->reader, threads + 1);
    v->kept = calloc(KEPT_MAX, sizeof(*v->kept));
    if (st == ST_OK && v->kept == NULL)
        st = ST_NO_MEMORY;
    if (st != ST_OK)
        return st;
    v->crew = threads + 1;
    v->taken = io_is_object(v->reader.io, v->reader.dir) ? TAKEN_OBJECT : 1;
    ckpt_parallel_run(threads, verify_parts, v);
    report_kept(v);
    return v->failed;
}

static enum status check_digest(struct verifier *v)
{
    struct ckpt_hash scalars;
    enum status st = ckpt_scalars_hash(&v->reader.scalars, &scalars);
    if (st != ST_OK)
        return st;
    const struct ckpt_reader *reader = &v->reader;
    uint64_t pieces[CKPT_BUFFERS_MAX];
    for (uint32_t b = 0; b < reader->buffer_count; b++)
        pieces[b] = ckpt_pieces(reader->buffers[b].count);
    const struct ckpt_hash digest =
        ckpt_digest_of(v->pieces, pieces, reader->buffer_count, &scalars);
    return ckpt_reader_compare(&v->reader, &digest);
}

static enum status verify_all(struct verifier *v)
{
    const struct io *io = v->reader.io;
    enum status st = check_manifest(v);
    const bool named = st == ST_OK;
    const bool all = v->only == VERIFY_ALL;
    if (st == ST_OK && !all && v->only >= v->reader.manifest.file_count)
        return ST_INVALID;
    if (st == ST_OK) {
        st = ckpt_set_open(v->reader.io, v->reader.dir, &v->reader.manifest, &v->reader.findings,
                           &v->reader.set);
    }
    if (st == ST_OK)
        st = prepare_hashes(v);
    if (st == ST_OK)
        st = check_files(v);
    if (st == ST_OK && all && v->reader.findings.worst == ST_OK)
        st = check_digest(v);
    /* Remarks on other files come last: the first line says what is wrong. */
    enum status listed =
        named && all ? io->list(io->self, v->reader.dir, remark_foreign, v) : ST_OK;
    if (st == ST_OK)
        st = listed;
    return st == ST_OK ? v->reader.findings.worst : st;
}

static enum status verify_dir(const struct io *io, const char *dir, uint32_t only,
                              const struct ckpt_read_options *options, ckpt_finding_fn fn,
                              void *arg)
{
    struct verifier *v = calloc(1, sizeof(*v));
    if (v == NULL)
        return ST_NO_MEMORY;
    v->options = options;
    v->only = only;
    (void)pthread_mutex_init(&v->lock, NULL);
    (void)pthread_cond_init(&v->turned, NULL);
    enum status st = ckpt_reader_start(&v->reader, io, dir, fn, arg);
    if (st == ST_OK)
        st = verify_all(v);
    ckpt_hasher_free(v->hasher);
    free(v->parts);
    free(v->pieces);
    free(v->kept);
    ckpt_reader_release(&v->reader);
    (void)pthread_mutex_destroy(&v->lock);
    (void)pthread_cond_destroy(&v->turned);
    free(v);
    return st;
}

enum status ckpt_verify(const struct io *io, const char *dir,
                        const struct ckpt_read_options *options, ckpt_finding_fn fn, void *arg)
{
    return verify_dir(io, dir, VERIFY_ALL, options, fn, arg);
}

enum status ckpt_verify_file(const struct io *io, const char *dir, uint32_t file,
                             const struct ckpt_read_options *options, ckpt_finding_fn fn, void *arg)
{
    return verify_dir(io, dir, file < VERIFY_ALL ? file : VERIFY_ALL - 1, options, fn, arg);
}
