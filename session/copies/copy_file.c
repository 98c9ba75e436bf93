#include "session/copies/copy_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "common/pages.h"
#include "session/copies/copy_guard.h"

static const uint8_t magic[8] = "CAIRNMEM";

static size_t aligned(size_t size, size_t to)
{
    return (size + to - 1) / to * to;
}

/* The extents, hashes of at least 64 KiB each, the skip list and the blobs. */
static size_t beside_bytes(size_t share_bytes)
{
    const size_t pieces = share_bytes / PIECE_ELEMENTS + CKPT_BUFFERS_MAX;
    const size_t extents = CKPT_EXTENTS_MAX * sizeof(struct copy_extent);
    return aligned(COPY_BESIDE + extents + pieces * sizeof(struct ckpt_hash) + COPY_ROOM,
                   COPY_PAGE);
}

size_t copy_file_bytes(size_t share_bytes)
{
    return beside_bytes(share_bytes) +
           aligned(share_bytes + CKPT_BUFFERS_MAX * (size_t)COPY_ALIGN, COPY_PAGE);
}

static struct copy_seal *seal_of(const struct copy_file *file)
{
    return (struct copy_seal *)(void *)file->memory;
}

static struct copy_head *head_of(const struct copy_file *file)
{
    return (struct copy_head *)(void *)(file->memory + sizeof(struct copy_seal));
}

/* ---- open and close ---- */

/* Opens the file at path, or memory without a name. It is allocated before it is mapped: a tmpfs
 * that fills up later is no SIGBUS. */
static enum status open_file(const char *path, size_t size, int *out_fd)
{
    int fd = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)
                          : memfd_create("cairn-copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return status_from_errno(errno);
    enum status st =
        ftruncate(fd, (off_t)size) == 0 ? pages_of_file(fd, size) : status_from_errno(errno);
    if (st == ST_OK && path == NULL &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        st = status_from_errno(errno);
    if (st != ST_OK) {
        (void)close(fd);
        if (path != NULL)
            (void)unlink(path);
        return st;
    }
    *out_fd = fd;
    return ST_OK;
}

void copy_file_break(struct copy_file *file)
{
    memset(seal_of(file), 0, sizeof(struct copy_seal));
    __sync_synchronize(); /* the seal goes before what it stood for */
}

static enum status open_size(const char *path, size_t size, bool shared, struct copy_file *out)
{
    struct copy_file file = { .size = size, .named = path != NULL, .shared = shared };
    int fd = -1;
    if (path != NULL) {
        if (strlen(path) >= sizeof(file.path))
            return ST_FULL;
        memcpy(file.path, path, strlen(path) + 1);
    }
    if (path != NULL || shared) {
        enum status st = open_file(path, file.size, &fd);
        if (st != ST_OK)
            return st;
    }
    void *memory = mmap(NULL, file.size, PROT_READ | PROT_WRITE,
                        fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (fd >= 0 && (!shared || memory == MAP_FAILED))
        (void)close(fd);
    if (memory == MAP_FAILED) {
        if (path != NULL)
            (void)unlink(path); /* room that nobody would use */
        return ST_NO_MEMORY;
    }
    file.fd = shared ? fd : -1;
    file.memory = memory;
    if (shared && path != NULL)
        copy_guard_add(memory, file.size);
    copy_file_break(&file);
#ifdef MADV_POPULATE_WRITE
    (void)madvise(memory, file.size, MADV_POPULATE_WRITE); /* older kernels: at the first copy */
#endif
    *out = file;
    return ST_OK;
}

enum status copy_file_open_size(const char *path, size_t size, struct copy_file *out)
{
    return open_size(path, size, false, out);
}

static enum status open_share(const char *path, size_t share_bytes, bool shared,
                              struct copy_file *out)
{
    enum status st = open_size(path, copy_file_bytes(share_bytes), shared, out);
    if (st != ST_OK)
        return st;
    out->data_offset = beside_bytes(share_bytes);
    out->room = out->data_offset - COPY_BESIDE;
    return ST_OK;
}

enum status copy_file_open(const char *path, size_t share_bytes, struct copy_file *out)
{
    return open_share(path, share_bytes, false, out);
}

enum status copy_file_open_shared(const char *path, size_t share_bytes, struct copy_file *out)
{
    return open_share(path, share_bytes, true, out);
}

void copy_file_close(struct copy_file *file)
{
    if (file->memory != NULL && file->shared)
        copy_guard_remove(file->memory);
    if (file->memory != NULL)
        (void)munmap(file->memory, file->size);
    file->memory = NULL;
    if (file->shared)
        (void)close(file->fd);
    file->shared = false;
    free(file->tensors);
    file->tensors = NULL;
    file->tensor_room = 0;
}

/* ---- writing ---- */

/* Room in the part beside; 0: none is left. */
static size_t take_space(const struct copy_file *file, size_t *at, uint64_t size)
{
    const size_t here = aligned(*at, 8);
    if (here > file->data_offset || size > file->data_offset - here)
        return 0;
    *at = here + (size_t)size;
    return here;
}

/* at: beside, data. The extents of a buffer lie one after the other: all but its last are multiples
 * of COPY_ALIGN, and their hashes of 8. */
static enum status put_extent(struct copy_file *file, uint32_t i, struct copy_extent *out,
                              size_t at[2])
{
    const struct ckpt_extent *from = &file->share.extent[i];
    const uint64_t width = ckpt_dtype_size(file->buffers[from->buffer].dtype);
    const uint64_t bytes = from->count * width;
    const size_t hashes =
        take_space(file, &at[0], ckpt_pieces(from->count) * sizeof(struct ckpt_hash));
    if (hashes == 0 || at[1] > file->size || bytes > file->size - at[1])
        return ST_FULL;
    *out = (struct copy_extent){ .buffer = from->buffer,
                                 .first = from->first,
                                 .count = from->count,
                                 .data = at[1],
                                 .hashes = hashes };
    struct copy_place *place = &file->places[from->buffer];
    if (place->data == 0)
        *place = (struct copy_place){ .data = at[1], .hashes = hashes };
    at[1] += aligned((size_t)bytes, COPY_ALIGN);
    return ST_OK;
}

static enum status put_share(struct copy_file *file, const struct ckpt_state *state, uint32_t rank,
                             uint32_t size, size_t at[2])
{
    struct copy_head *head = head_of(file);
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *from = &state->buffers[i];
        struct copy_buffer *to = &head->buffers[i];
        memcpy(to->name, from->name, strnlen(from->name, sizeof(to->name) - 1));
        to->dtype = (uint32_t)from->dtype;
        to->elements = from->count;
        file->buffers[i] = *from;
    }
    enum status st = ckpt_share_of(state, rank, size, &file->share);
    if (st != ST_OK)
        return st;
    const size_t extents = take_space(file, &at[0], file->share.count * sizeof(struct copy_extent));
    struct copy_extent *list = (struct copy_extent *)(void *)(file->memory + extents);
    head->extent_count = file->share.count;
    head->extents = extents;
    memset(file->places, 0, sizeof(file->places));
    st = extents == 0 ? ST_FULL : ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < file->share.count; i++)
        st = put_extent(file, i, &list[i], at);
    return st;
}

static enum status put_blobs(struct copy_file *file, const struct ckpt_state *state, size_t *at)
{
    struct copy_head *head = head_of(file);
    const uint64_t skip_bytes = state->scalars.skip_count * sizeof(uint64_t);
    head->skip = take_space(file, at, skip_bytes);
    if (head->skip == 0 || state->blob_count > COPY_BLOBS_MAX)
        return ST_FULL;
    if (skip_bytes > 0)
        memcpy(file->memory + head->skip, state->scalars.skip, (size_t)skip_bytes);
    file->state.scalars.skip = (const uint64_t *)(const void *)(file->memory + head->skip);
    for (uint32_t i = 0; i < state->blob_count; i++) {
        const struct ckpt_blob *from = &state->blobs[i];
        struct copy_blob *to = &head->blobs[i];
        to->offset = take_space(file, at, from->size);
        if (to->offset == 0)
            return ST_FULL;
        memcpy(to->name, from->name, strnlen(from->name, sizeof(to->name) - 1));
        to->size = from->size;
        if (from->size > 0)
            memcpy(file->memory + to->offset, from->data, (size_t)from->size);
        file->blobs[i] = *from;
        file->blobs[i].data = file->memory + to->offset;
    }
    file->state.blobs = file->blobs;
    return ST_OK;
}

/* Copies the tensors for the thread that writes the copy to the store, when the state's own may be
 * gone. There are as many at every step. */
static enum status put_tensors(struct copy_file *file, const struct ckpt_state *state)
{
    if (state->tensor_count > file->tensor_room) {
        struct ckpt_tensor *more =
            realloc(file->tensors, state->tensor_count * sizeof(*file->tensors));
        if (more == NULL)
            return ST_NO_MEMORY;
        file->tensors = more;
        file->tensor_room = state->tensor_count;
    }
    if (state->tensor_count > 0)
        memcpy(file->tensors, state->tensors, state->tensor_count * sizeof(*file->tensors));
    file->state.tensors = file->tensors;
    return ST_OK;
}

static void put_scalars(struct copy_head *head, const struct ckpt_state *state)
{
    const struct ckpt_scalars *s = &state->scalars;
    memcpy(head->job, state->job, strnlen(state->job, sizeof(head->job) - 1));
    head->generation = state->generation;
    head->step = s->step;
    head->seed = s->seed;
    head->epoch = s->epoch;
    head->epoch_step = s->epoch_step;
    head->loss_scale = s->loss_scale;
    head->loss_scale_good_steps = s->loss_scale_good_steps;
    head->skip_count = s->skip_count;
    head->buffer_count = state->buffer_count;
    head->blob_count = state->blob_count;
}

enum status copy_file_begin(struct copy_file *file, const struct ckpt_state *state, uint32_t rank,
                            uint32_t size)
{
    CHECK(state->buffer_count <= CKPT_BUFFERS_MAX);
    struct copy_head *head = head_of(file);
    copy_file_break(file);
    memset(head, 0, sizeof(*head));
    put_scalars(head, state);
    head->rank = rank;
    head->size = size;
    head->data_offset = file->data_offset;
    file->state = *state;
    file->state.buffers = file->buffers;
    file->state.share = &file->share;
    file->state.held = NULL;
    size_t at[2] = { COPY_BESIDE, file->data_offset };
    enum status st = put_share(file, state, rank, size, at);
    if (st == ST_OK)
        st = put_blobs(file, state, &at[0]);
    if (st == ST_OK)
        st = put_tensors(file, state);
    file->head_size = at[0];
    return st;
}

/* A piece at a time: what was hashed is still in the cache when it is copied. */
static void copy_extent(struct copy_file *file, uint32_t i)
{
    const struct ckpt_extent *extent = &file->share.extent[i];
    const struct ckpt_buffer *buffer = &file->buffers[extent->buffer];
    const struct copy_place *place = &file->places[extent->buffer];
    const struct ckpt_extent *first =
        &file->share.extent[ckpt_share_find(&file->share, extent->buffer, 0)];
    const size_t width = (size_t)ckpt_dtype_size(buffer->dtype);
    const uint8_t *from =
        (const uint8_t *)buffer->data + ckpt_share_offset(&file->state, &file->share, i) * width;
    uint64_t before = 0; /* elements of the buffer's extents before this one */
    for (const struct ckpt_extent *one = first; one < extent; one++)
        before += one->count;
    struct ckpt_hash *hashes = (struct ckpt_hash *)(void *)(file->memory + place->hashes);
    uint8_t *to = file->memory + place->data + before * width;
    hashes += before / PIECE_ELEMENTS;
    const size_t bytes = (size_t)extent->count * width, piece = PIECE_ELEMENTS * width;
    for (size_t at = 0, n = 0; at < bytes; at += piece, n++) {
        const size_t part = bytes - at < piece ? bytes - at : piece;
        hashes[n] = ckpt_hash_of(from + at, part);
        memcpy(to + at, from + at, part);
    }
}

void copy_file_filled(struct copy_file *file)
{
    for (uint32_t i = 0; i < file->state.buffer_count; i++) {
        struct ckpt_buffer *buffer = &file->buffers[i];
        const struct copy_place *place = &file->places[i];
        const bool none = place->data == 0;
        buffer->data = none ? NULL : file->memory + place->data;
        buffer->pieces =
            none ? NULL : (const struct ckpt_hash *)(const void *)(file->memory + place->hashes);
        buffer->packed = true;
    }
}

void copy_file_fill(struct copy_file *file)
{
    for (uint32_t i = 0; i < file->share.count; i++)
        copy_extent(file, i);
    copy_file_filled(file);
}

void copy_file_seal(struct copy_file *file)
{
    struct copy_seal seal = { .version = COPY_VERSION,
                              .head_size = file->head_size,
                              .file_size = file->size };
    CHECK(seal.head_size >= COPY_BESIDE); /* copy_file_begin set it */
    CHECK(seal.head_size <= file->data_offset);
    memcpy(seal.magic, magic, sizeof(seal.magic));
    seal.head = ckpt_hash_of(head_of(file), seal.head_size - sizeof(seal));
    seal.check = ckpt_check_of(&seal, offsetof(struct copy_seal, check));
    copy_file_accept(file, &seal);
}

const struct ckpt_state *copy_file_state(const struct copy_file *file)
{
    return &file->state;
}

/* ---- reading ---- */

static bool is_inside(uint64_t offset, uint64_t size, uint64_t first, uint64_t end)
{
    return offset >= first && offset <= end && size <= end - offset;
}

static bool is_sound_text(const char *text)
{
    return text[0] != '\0' && memchr(text, '\0', LIMIT_NAME) != NULL;
}

static bool is_sound_buffer(const struct copy_buffer *b)
{
    return is_sound_text(b->name) && ckpt_dtype_size((enum ckpt_dtype)b->dtype) > 0 &&
           b->elements <= UINT64_MAX / 16;
}

static bool is_sound_extent(const struct copy_extent *extent, const struct ckpt_buffer *buffer,
                            const struct copy_seal *seal, uint64_t data_offset)
{
    return extent->hashes % 8 == 0 &&
           is_inside(extent->data, extent->count * ckpt_dtype_size(buffer->dtype), data_offset,
                     seal->file_size) &&
           is_inside(extent->hashes, ckpt_pieces(extent->count) * sizeof(struct ckpt_hash),
                     COPY_BESIDE, seal->head_size);
}

/* Checks the extents, after the buffers were checked. */
static bool are_sound_extents(const struct copy_seal *seal, const struct copy_head *head)
{
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX] = { 0 };
    const struct ckpt_state state = { .buffers = buffers, .buffer_count = head->buffer_count };
    struct ckpt_share share = { .count = head->extent_count };
    const struct copy_extent *extents =
        (const struct copy_extent *)(const void *)((const uint8_t *)head - sizeof(*seal) +
                                                   head->extents);
    if (head->extent_count > CKPT_EXTENTS_MAX || head->extents % 8 != 0 ||
        !is_inside(head->extents, head->extent_count * sizeof(*extents), COPY_BESIDE,
                   seal->head_size))
        return false;
    for (uint32_t i = 0; i < head->buffer_count; i++) {
        buffers[i].dtype = (enum ckpt_dtype)head->buffers[i].dtype;
        buffers[i].count = head->buffers[i].elements;
    }
    for (uint32_t i = 0; i < share.count; i++) {
        share.extent[i] =
            (struct ckpt_extent){ extents[i].buffer, extents[i].first, extents[i].count };
    }
    bool sound = ckpt_share_check(&state, &share) == ST_OK;
    for (uint32_t i = 0; sound && i < share.count; i++)
        sound = is_sound_extent(&extents[i], &buffers[extents[i].buffer], seal, head->data_offset);
    return sound;
}

static bool is_sound(const struct copy_seal *seal, const struct copy_head *head)
{
    bool sound =
        is_sound_text(head->job) && head->rank < head->size && head->size <= LIMIT_RANKS &&
        head->buffer_count <= CKPT_BUFFERS_MAX && head->blob_count <= COPY_BLOBS_MAX &&
        head->data_offset >= seal->head_size && head->data_offset <= seal->file_size &&
        head->skip % 8 == 0 && head->skip_count <= CKPT_SKIPS_MAX &&
        is_inside(head->skip, head->skip_count * sizeof(uint64_t), COPY_BESIDE, seal->head_size);
    for (uint32_t i = 0; sound && i < head->buffer_count; i++)
        sound = is_sound_buffer(&head->buffers[i]);
    sound = sound && are_sound_extents(seal, head);
    for (uint32_t i = 0; sound && i < head->blob_count; i++) {
        const struct copy_blob *blob = &head->blobs[i];
        sound = is_sound_text(blob->name) &&
                is_inside(blob->offset, blob->size, COPY_BESIDE, seal->head_size);
    }
    return sound;
}

/* seal: that of memory, or the one that memory is to have. */
static enum status parse_view(const struct copy_seal *seal, const void *memory, size_t size,
                              size_t file_size, struct copy_view *out)
{
    const struct copy_head *head =
        (const struct copy_head *)(const void *)((const uint8_t *)memory + sizeof(*seal));
    static const uint8_t none[8] = { 0 };
    if (size < COPY_BESIDE || memcmp(seal->magic, none, sizeof(none)) == 0)
        return ST_INCOMPLETE;
    if (memcmp(seal->magic, magic, sizeof(magic)) != 0 ||
        seal->check != ckpt_check_of(seal, offsetof(struct copy_seal, check)))
        return ST_CORRUPT;
    if (seal->version != COPY_VERSION || seal->features != 0)
        return ST_VERSION;
    if (seal->file_size != file_size || seal->head_size < COPY_BESIDE || seal->head_size > size)
        return ST_CORRUPT;
    const struct ckpt_hash hash = ckpt_hash_of(head, seal->head_size - sizeof(*seal));
    if (!ckpt_hash_equal(&hash, &seal->head) || !is_sound(seal, head))
        return ST_CORRUPT;
    *out = (struct copy_view){ .memory = memory, .size = file_size, .seal = seal, .head = head };
    return ST_OK;
}

enum status copy_view_parse(const void *memory, size_t size, size_t file_size,
                            struct copy_view *out)
{
    return parse_view(memory, memory, size, file_size, out);
}

enum status copy_view_map(const char *path, struct copy_view *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* nobody writes a FIFO */
    if (fd < 0)
        return status_from_errno(errno);
    struct stat about;
    enum status st = fstat(fd, &about) == 0 ? ST_OK : status_from_errno(errno);
    if (st == ST_OK && (!S_ISREG(about.st_mode) || about.st_size < (off_t)COPY_BESIDE))
        st = ST_INCOMPLETE;
    void *memory = MAP_FAILED;
    if (st == ST_OK) {
        memory = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, fd, 0);
        st = memory == MAP_FAILED ? ST_NO_MEMORY : ST_OK;
    }
    (void)close(fd);
    if (st != ST_OK)
        return st;
    st = copy_view_parse(memory, (size_t)about.st_size, (size_t)about.st_size, out);
    if (st != ST_OK)
        (void)munmap(memory, (size_t)about.st_size);
    return st;
}

void copy_view_unmap(struct copy_view *view)
{
    if (view->memory != NULL)
        (void)munmap((void *)view->memory, view->size);
    *view = (struct copy_view){ .size = 0 };
}

const struct copy_extent *copy_view_extents(const struct copy_view *view)
{
    return (const struct copy_extent *)(const void *)(view->memory + view->head->extents);
}

static size_t width_of(const struct copy_view *view, const struct copy_extent *extent)
{
    return (size_t)ckpt_dtype_size((enum ckpt_dtype)view->head->buffers[extent->buffer].dtype);
}

const void *copy_view_data(const struct copy_view *view, uint32_t extent, size_t *out_size)
{
    const struct copy_extent *it = &copy_view_extents(view)[extent];
    *out_size = (size_t)it->count * width_of(view, it);
    return view->memory + it->data;
}

enum status copy_view_check_data(const struct copy_view *view, uint32_t extent, uint64_t offset,
                                 const void *data, size_t size)
{
    const struct copy_extent *it = &copy_view_extents(view)[extent];
    const size_t piece = PIECE_ELEMENTS * width_of(view, it);
    const uint8_t *from = data;
    const struct ckpt_hash *hashes =
        (const struct ckpt_hash *)(const void *)(view->memory + it->hashes) + offset / piece;
    CHECK(offset % piece == 0);
    for (size_t at = 0, n = 0; at < size; at += piece, n++) {
        const struct ckpt_hash hash =
            ckpt_hash_of(from + at, size - at < piece ? size - at : piece);
        if (!ckpt_hash_equal(&hash, &hashes[n]))
            return ST_CORRUPT;
    }
    return ST_OK;
}

void copy_view_scalars(const struct copy_view *view, struct ckpt_scalars *out)
{
    const struct copy_head *head = view->head;
    *out =
        (struct ckpt_scalars){ .seed = head->seed,
                               .step = head->step,
                               .epoch = head->epoch,
                               .epoch_step = head->epoch_step,
                               .loss_scale = head->loss_scale,
                               .loss_scale_good_steps = head->loss_scale_good_steps,
                               .skip = (const uint64_t *)(const void *)(view->memory + head->skip),
                               .skip_count = head->skip_count };
}

const void *copy_view_blob(const struct copy_view *view, const char *name, size_t *out_size)
{
    for (uint32_t i = 0; i < view->head->blob_count; i++) {
        const struct copy_blob *blob = &view->head->blobs[i];
        if (strcmp(blob->name, name) != 0)
            continue;
        *out_size = (size_t)blob->size;
        return view->memory + blob->offset;
    }
    return NULL;
}

/* ---- receiving ---- */

enum status copy_file_check(const struct copy_file *file, const struct copy_seal *seal,
                            struct copy_view *out)
{
    struct copy_view view;
    enum status st = parse_view(seal, file->memory, file->size, file->size, &view);
    for (uint32_t i = 0; st == ST_OK && i < view.head->extent_count; i++) {
        size_t size = 0;
        const void *data = copy_view_data(&view, i, &size);
        st = copy_view_check_data(&view, i, 0, data, size);
    }
    if (st == ST_OK)
        *out = view;
    return st;
}

void copy_file_accept(struct copy_file *file, const struct copy_seal *seal)
{
    __sync_synchronize(); /* the seal comes after what it stands for */
    memcpy(file->memory, seal, sizeof(*seal));
}
