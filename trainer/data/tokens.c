#include "trainer/data/tokens.h"

#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/limits.h"
#include "trainer/data/data_error.h"
#include "trainer/data/sums.h"
#include "trainer/data/token_kind.h"

#define MAGIC        20240520u /* llm.c: tokens of two bytes */
#define MAGIC_WIDE   20240801u /* llm.c: tokens of four bytes */
#define VERSION      1u
#define HEADER_BYTES 1024
#define TRIES        8 /* at a file that is being written */

struct token_file {
    char path[LIMIT_PATH];
    void *map; /* owned: the whole file */
    size_t map_size;
    const uint8_t *data; /* in map */
    uint64_t first;      /* its first token's number in the stream */
    uint64_t count;
    struct sums *sums;   /* owned: of the map; NULL: not loaded */
    struct io_stat seen; /* of the file, before the map was hashed; under the mutex */
    bool sure;           /* seen is of the file that is mapped, and not of one in its place */
};

struct tokens {
    const struct io *io;
    bool text, watched, hashed;
    const char *sums; /* folder */
    void (*progress)(void *arg);
    void *progress_arg;
    pthread_mutex_t mutex;
    struct token_file *files; /* owned; by name */
    size_t file_count, capacity;
    uint64_t count;
};

/* ---- which files ---- */

static enum status add_token_file(struct tokens *t, const char *folder, const char *name)
{
    if (t->file_count == LIMIT_DATA_FILES)
        return ST_FULL;
    if (t->file_count == t->capacity) {
        size_t capacity = t->capacity == 0 ? 1 : 2 * t->capacity;
        struct token_file *files = realloc(t->files, capacity * sizeof(*files));
        if (files == NULL)
            return ST_NO_MEMORY;
        t->files = files;
        t->capacity = capacity;
    }
    struct token_file *file = &t->files[t->file_count];
    memset(file, 0, sizeof(*file));
    int size = snprintf(file->path, sizeof(file->path), "%s%s", folder, name);
    if (size < 0 || (size_t)size >= sizeof(file->path))
        return ST_INVALID;
    t->file_count++;
    return ST_OK;
}

struct search {
    struct tokens *tokens;
    const char *folder; /* with its '/' */
    const char *pattern;
    enum status st;
};

static bool match_name(void *arg, const char *name)
{
    struct search *s = arg;
    if (fnmatch(s->pattern, name, FNM_PERIOD) == 0)
        s->st = add_token_file(s->tokens, s->folder, name);
    return s->st == ST_OK;
}

static int by_file_path(const void *a, const void *b)
{
    const struct token_file *x = a;
    const struct token_file *y = b;
    return strcmp(x->path, y->path);
}

static enum status find_matches(struct tokens *t, const char *path, const char *pattern,
                                struct reason *reason)
{
    char folder[LIMIT_PATH];
    size_t size = (size_t)(pattern - path);
    CHECK(size < sizeof(folder));
    memcpy(folder, path, size);
    folder[size] = '\0';
    struct search search = { .tokens = t, .folder = folder, .pattern = pattern };
    enum status st = t->io->list(t->io->self, folder, match_name, &search);
    if (st == ST_NOT_FOUND) {
        return data_refuse(path,
                           "no such folder; correct the path in the job file (a pattern may "
                           "stand in its last part only)",
                           reason);
    }
    if (st != ST_OK)
        return data_unreadable(path, st, reason);
    if (search.st == ST_FULL)
        return data_refuse(path, "more files than a data set may have; join some of them", reason);
    if (search.st == ST_INVALID)
        return data_refuse(path, "a name that fits is too long; use shorter names", reason);
    if (search.st != ST_OK)
        return data_unreadable(path, search.st, reason);
    if (t->file_count == 0)
        return data_refuse(path, "no file's name fits; correct the path in the job file", reason);
    qsort(t->files, t->file_count, sizeof(*t->files), by_file_path);
    return ST_OK;
}

static enum status find_files(struct tokens *t, const char *path, struct reason *reason)
{
    struct io_stat info;
    enum status st = t->io->stat(t->io->self, path, &info);
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    if (st == ST_NOT_FOUND && slash != NULL && strpbrk(name, "*?[") != NULL)
        return find_matches(t, path, name, reason);
    if (st != ST_OK)
        return data_unreadable(path, st, reason);
    st = add_token_file(t, "", path);
    return st == ST_OK ? ST_OK : data_unreadable(path, st, reason);
}

/* ---- one file ---- */

static uint32_t little_endian_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static enum status read_token_header(struct token_file *file, struct reason *reason)
{
    const char *path = file->path;
    const uint8_t *bytes = file->map;
    if (file->map_size < HEADER_BYTES)
        return data_refuse(path, "ends within its header; write it again", reason);
    if (little_endian_u32(bytes + 4) != VERSION) {
        return data_refuse(path, "its header has a version other than 1; write it as version 1",
                           reason);
    }
    uint64_t count = little_endian_u32(bytes + 8);
    uint64_t there = (file->map_size - HEADER_BYTES) / 2;
    if (count > there || count > INT32_MAX) {
        reason_set(reason,
                   "%s: its header says %llu tokens, but it holds %llu: it was cut short; "
                   "write it again",
                   path, (unsigned long long)count, (unsigned long long)there);
        return ST_CONFIG;
    }
    if (HEADER_BYTES + 2 * count != file->map_size)
        return data_refuse(path, "holds more bytes than its header says; write it again", reason);
    file->data = bytes + HEADER_BYTES;
    file->count = count;
    return ST_OK;
}

/* What kind of file it is, and where its tokens lie. */
static enum status find_tokens(struct token_file *file, bool text, struct reason *reason)
{
    const char *path = file->path;
    const uint8_t *bytes = file->map;
    file->data = bytes;
    if (file->map_size == 0)
        return data_refuse(path, "is empty; remove it or correct the path", reason);
    if (file->map_size >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) {
        return data_refuse(path, "is compressed, but it is not loaded as a whole; unpack it",
                           reason);
    }
    file->count = file->map_size;
    if (text)
        return token_kind_check_text(path, bytes, file->map_size, reason);
    uint32_t magic = file->map_size >= 4 ? little_endian_u32(bytes) : 0;
    if (magic == MAGIC)
        return read_token_header(file, reason);
    if (magic == MAGIC_WIDE) {
        return data_refuse(path,
                           "has tokens of four bytes, which this version does not read; "
                           "write them with two",
                           reason);
    }
    enum status st = token_kind_check(path, bytes, file->map_size, reason);
    if (st != ST_OK)
        return st;
    if (file->map_size % 2 != 0) {
        return data_refuse(path,
                           "has an odd number of bytes, but a token has two; is it a file "
                           "of tokens, and whole?",
                           reason);
    }
    file->count = file->map_size / 2;
    return ST_OK;
}

static enum status open_token_file(struct tokens *t, struct token_file *file, struct reason *reason)
{
    const struct io *io = t->io;
    struct io_stat info;
    const char *path = file->path;
    enum status st = io->stat(io->self, file->path, &info);
    if (st == ST_OK && info.is_dir)
        return data_refuse(path, "is a folder; name the files in it, as in 'FOLDER/*.bin'", reason);
    int fd = -1;
    if (st == ST_OK)
        st = io->open(io->self, file->path, IO_READ, &fd);
    if (st != ST_OK)
        return data_unreadable(path, st, reason);
    st = io->map(io->self, fd, &file->map, &file->map_size);
    (void)io->close(io->self, fd);
    if (st == ST_OK)
        st = io->stat(io->self, file->path, &file->seen);
    if (st != ST_OK)
        return data_unreadable(path, st, reason);
    file->sure = info.inode == file->seen.inode && info.changed_ns == file->seen.changed_ns &&
                 file->seen.size == file->map_size;
    st = find_tokens(file, t->text, reason);
    if (st != ST_OK)
        return st;
    file->first = t->count;
    t->count += file->count;
    return ST_OK;
}

enum status tokens_open(const struct tokens_options *options, struct tokens **out,
                        struct reason *reason)
{
    struct tokens *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return data_unreadable(options->path, ST_NO_MEMORY, reason);
    t->io = options->io;
    t->text = options->text;
    t->watched = options->watched;
    t->sums = options->sums;
    t->progress = options->progress;
    t->progress_arg = options->progress_arg;
    (void)pthread_mutex_init(&t->mutex, NULL);
    enum status st = find_files(t, options->path, reason);
    for (size_t i = 0; st == ST_OK && i < t->file_count; i++)
        st = open_token_file(t, &t->files[i], reason);
    if (st != ST_OK) {
        tokens_close(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

void tokens_close(struct tokens *tokens)
{
    if (tokens == NULL)
        return;
    for (size_t i = 0; i < tokens->file_count; i++) {
        const struct token_file *file = &tokens->files[i];
        if (file->map != NULL)
            (void)tokens->io->unmap(tokens->io->self, file->map, file->map_size);
        sums_free(file->sums);
    }
    (void)pthread_mutex_destroy(&tokens->mutex);
    free(tokens->files);
    free(tokens);
}

uint64_t tokens_count(const struct tokens *tokens)
{
    return tokens->count;
}

/* ---- content ---- */

static struct sums_place place_of(const struct tokens *t, const struct token_file *file)
{
    return (struct sums_place){
        .io = t->io, .folder = file->sure ? t->sums : NULL, .path = file->path, .seen = file->seen
    };
}

/* The file behind the map was not touched since `then`; or another one is in its place, or none. */
static bool is_untouched(const struct io_stat *then, enum status st, const struct io_stat *now)
{
    if (st != ST_OK || then->inode != now->inode)
        return true;
    return then->size == now->size && then->changed_ns == now->changed_ns;
}

static enum status being_written(const struct token_file *file, struct reason *reason)
{
    reason_set(reason, "%s: is being written; start the job when it is whole", file->path);
    return ST_CHANGED;
}

/* Hashes until nobody wrote meanwhile. */
static enum status hash_file(const struct tokens *t, struct token_file *file, struct reason *reason)
{
    for (int i = 0; i < TRIES; i++) {
        struct io_stat now = { 0 };
        sums_free(TAKE_PTR(file->sums));
        enum status st =
            sums_make(file->map, file->map_size, t->progress, t->progress_arg, &file->sums);
        if (st != ST_OK)
            return data_unreadable(file->path, st, reason);
        st = t->io->stat(t->io->self, file->path, &now);
        if (is_untouched(&file->seen, st, &now))
            return ST_OK;
        if (now.size < file->map_size)
            break;
        file->seen = now;
    }
    return being_written(file, reason);
}

static enum status load_token_file(const struct tokens *t, struct token_file *file,
                                   struct reason *reason)
{
    struct sums_place place = place_of(t, file);
    /* Unless blocks are checked as they are read, nobody would look at the file. */
    if (t->watched && sums_find(&place, &file->sums) == ST_OK)
        return ST_OK;
    enum status st = hash_file(t, file, reason);
    if (st != ST_OK)
        return st;
    place = place_of(t, file);
    (void)sums_keep(&place, file->sums); /* else the next start hashes it, too */
    return ST_OK;
}

enum status tokens_load(struct tokens *tokens, struct reason *reason)
{
    CHECK(!tokens->hashed);
    for (size_t i = 0; i < tokens->file_count; i++) {
        enum status st = load_token_file(tokens, &tokens->files[i], reason);
        if (st != ST_OK)
            return st;
    }
    tokens->hashed = true;
    return ST_OK;
}

/* The identity of all files as one: the hash of their identities, their sizes summed up. */
static enum status print_together(const struct tokens *t, struct buf *out)
{
    char name[64];
    struct data_identity all = { 0 };
    struct identity_maker *maker = NULL;
    enum status st = identity_maker_new(&maker);
    if (st != ST_OK)
        return st;
    uint64_t size = 0;
    for (size_t i = 0; i < t->file_count; i++) {
        const struct data_identity *identity = sums_identity(t->files[i].sums);
        size += identity->size;
        identity_maker_add(maker, &identity->size, sizeof(identity->size));
        identity_maker_add(maker, identity->hash.byte, sizeof(identity->hash.byte));
    }
    all = identity_maker_result(maker);
    all.size = size;
    identity_maker_free(maker);
    (void)snprintf(name, sizeof(name), "and %zu files more", t->file_count - 1);
    char first[LIMIT_PATH + sizeof(name) + 1];
    (void)snprintf(first, sizeof(first), "%s %s", t->files[0].path, name);
    return identity_print(&all, first, out);
}

enum status tokens_print_identity(const struct tokens *tokens, struct buf *out)
{
    CHECK(tokens->hashed);
    if (tokens->file_count > TOKENS_NAMED)
        return print_together(tokens, out);
    enum status st = ST_OK;
    for (size_t i = 0; i < tokens->file_count && st == ST_OK; i++) {
        if (i > 0)
            st = buf_append_text(out, ",");
        if (st == ST_OK)
            st = identity_print(sums_identity(tokens->files[i].sums), tokens->files[i].path, out);
    }
    return st;
}

/* ---- reading ---- */

/* The file that holds token `at` of the stream. */
static struct token_file *file_at(const struct tokens *t, uint64_t at)
{
    size_t low = 0;
    size_t high = t->file_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (t->files[middle].first <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &t->files[low];
}

static void copy_tokens(const struct tokens *t, const struct token_file *file, uint64_t first,
                        size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t *p = file->data + (t->text ? 1 : 2) * (first + i);
        out[i] = t->text ? p[0] : p[0] | p[1] << 8;
    }
}

/* ST_AGAIN: the file was touched since `turn` began, so that what was checked before is in doubt. A
 * write moves the time before it moves a byte. */
static enum status look_again(struct tokens *t, struct token_file *file, uint64_t turn)
{
    struct io_stat now = { 0 };
    (void)pthread_mutex_lock(&t->mutex); /* so that nobody's older look follows this one */
    enum status st = t->io->stat(t->io->self, file->path, &now);
    if (!is_untouched(&file->seen, st, &now)) {
        file->seen = now;
        sums_doubt(file->sums);
    }
    st = file->seen.size < file->map_size ? ST_CHANGED : ST_OK; /* less than was mapped */
    if (st == ST_OK && sums_turn(file->sums) != turn)
        st = ST_AGAIN;
    (void)pthread_mutex_unlock(&t->mutex);
    return st;
}

/* The bytes from `bad` on are not what was hashed. What was kept may say so for ever. */
static enum status was_changed(struct tokens *t, const struct token_file *file, uint64_t bad,
                               struct reason *reason)
{
    (void)pthread_mutex_lock(&t->mutex);
    const struct sums_place place = place_of(t, file);
    (void)pthread_mutex_unlock(&t->mutex);
    sums_forget(&place);
    reason_set(
        reason,
        "%s: isn't what was hashed, within %zu bytes from %llu on: it was changed, or its disk "
        "is damaged; put back what it was",
        file->path, SUMS_BLOCK, (unsigned long long)bad);
    return ST_CHANGED;
}

/* What is read is what was hashed: checked before, and not touched until it was read. */
static enum status read_checked(struct tokens *t, struct token_file *file, uint64_t first, size_t n,
                                int32_t *out, struct reason *reason)
{
    const uint64_t width = t->text ? 1 : 2;
    const uint64_t from = (uint64_t)(file->data - (const uint8_t *)file->map) + width * first;
    for (int i = 0; i < TRIES; i++) {
        uint64_t bad = 0;
        const uint64_t turn = sums_turn(file->sums);
        if (!sums_check(file->sums, turn, file->map, from, from + width * n, &bad))
            return was_changed(t, file, bad, reason);
        copy_tokens(t, file, first, n, out);
        enum status st = look_again(t, file, turn);
        if (st == ST_CHANGED) {
            reason_set(reason,
                       "%s: was shortened while the job trained on it; put back what it was",
                       file->path);
        }
        if (st != ST_AGAIN)
            return st;
    }
    return being_written(file, reason);
}

static enum status check_tokens(const struct token_file *file, uint64_t first,
                                const struct tokens_range *range, const int32_t *tokens, size_t n,
                                struct reason *reason)
{
    int32_t highest = 0;
    for (size_t i = 0; i < n; i++)
        highest = tokens[i] > highest ? tokens[i] : highest;
    if (highest < range->vocab)
        return ST_OK;
    size_t i = 0;
    while (tokens[i] < range->vocab)
        i++;
    uint64_t place = first + i;
    reason_set(reason,
               "%s: token %d at position %llu is not below model.vocab (%lld); raise "
               "model.vocab or correct the file",
               file->path, tokens[i], (unsigned long long)place, (long long)range->vocab);
    return ST_CONFIG;
}

enum status tokens_read(struct tokens *tokens, const struct tokens_range *range, int32_t *out,
                        struct reason *reason)
{
    CHECK(range->count <= tokens->count);
    CHECK(range->at <= tokens->count - range->count);
    uint64_t at = range->at;
    uint64_t left = range->count;
    while (left > 0) {
        struct token_file *file = file_at(tokens, at);
        CHECK(at >= file->first);
        CHECK(at - file->first < file->count);
        uint64_t first = at - file->first;
        uint64_t there = file->count - first;
        size_t n = (size_t)(left < there ? left : there);
        enum status st = ST_OK;
        if (tokens->hashed && tokens->watched) {
            st = read_checked(tokens, file, first, n, out, reason);
        } else {
            copy_tokens(tokens, file, first, n, out);
        }
        if (st == ST_OK)
            st = check_tokens(file, first, range, out, n, reason);
        if (st != ST_OK)
            return st;
        out += n;
        at += n;
        left -= n;
    }
    return ST_OK;
}
