#include "fake_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"

static void check_ok(enum status st)
{
    if (st != ST_OK) {
        (void)fprintf(stderr, "the fake worker: %s\n", status_string(st));
        abort();
    }
}

/* ---- answers ---- */

struct answer {
    int32_t status;
    char bytes[8192];
    size_t size;
    int fd; /* -1: none */
};

static bool send_parts(int to, const struct wire_head *head, const struct answer *answer,
                       uint32_t fds)
{
    struct iovec parts[2] = { { (void *)head, sizeof(*head) },
                              { (void *)answer->bytes, answer->size } };
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control = { .room = { 0 } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    if (answer->fd >= 0 && fds > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
        struct cmsghdr *it = CMSG_FIRSTHDR(&message);
        it->cmsg_level = SOL_SOCKET;
        it->cmsg_type = SCM_RIGHTS;
        it->cmsg_len = CMSG_LEN(fds * sizeof(int));
        for (uint32_t i = 0; i < fds; i++)
            memcpy(CMSG_DATA(it) + i * sizeof(int), &answer->fd, sizeof(int));
    }
    return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)(sizeof(*head) + answer->size);
}

/* false: the connection is over. */
static bool send_answer(struct fake_worker *w, const struct wire_head *asked, struct answer *answer)
{
    const bool lies = w->lie != FAKE_HONEST && w->lie_at == (enum wire_kind)asked->kind;
    struct wire_head head = { .kind = asked->kind, .number = asked->number };
    uint32_t fds = 1;
    if (lies && w->lie == FAKE_REFUSES) {
        answer->status = CAIRN_REFUSED;
        memcpy(answer->bytes, "not now", 7);
        answer->size = 7;
        answer->fd = -1;
    }
    if (lies && w->lie == FAKE_STATUS)
        answer->status = 17;
    if (lies && w->lie == FAKE_LONG_TEXT) {
        answer->status = CAIRN_IO;
        answer->size = sizeof(answer->bytes);
        memset(answer->bytes, 'a', sizeof(answer->bytes));
    }
    if (lies && w->lie == FAKE_LONGER)
        answer->size++;
    if (lies && w->lie == FAKE_NO_FD)
        fds = 0;
    if (lies && w->lie == FAKE_SOME_FDS)
        fds = 3;
    head.status = answer->status;
    head.size = (uint32_t)answer->size;
    if (lies && w->lie == FAKE_HUGE)
        head.size = UINT32_MAX;
    if (lies && w->lie == FAKE_KIND)
        head.kind++;
    if (lies && w->lie == FAKE_NUMBER)
        head.number--;
    if (lies && w->lie == FAKE_HALF)
        (void)!write(w->connection, &head, sizeof(head) / 2);
    if (lies && (w->lie == FAKE_DIES || w->lie == FAKE_HALF))
        return false;
    return send_parts(w->connection, &head, answer, fds);
}

static void put(struct answer *answer, const void *bytes, size_t size)
{
    CHECK(answer->size + size < sizeof(answer->bytes));
    memcpy(answer->bytes + answer->size, bytes, size);
    answer->size += size;
}

/* ---- requests ---- */

static bool lies(const struct fake_worker *w, enum fake_lie lie)
{
    return w->lie == lie;
}

static uint32_t processes_of(const struct fake_worker *w)
{
    return w->processes > 0 ? w->processes : 1;
}

static void on_hello(struct fake_worker *w, const void *body, struct answer *answer)
{
    memcpy(&w->hello, body, sizeof(w->hello));
    struct wire_welcome it = { .version = WIRE_VERSION + lies(w, FAKE_VERSION),
                               .generation = 3,
                               .rank = lies(w, FAKE_RANK) ? w->size : w->rank,
                               .size = w->size,
                               .source = w->source,
                               .paths = w->path_count + lies(w, FAKE_PATHS),
                               .step = w->step,
                               .memory_generation = 2,
                               .memory_size = w->source == WIRE_MEMORY ? w->path_count : 0,
                               .processes = processes_of(w),
                               .job = "j-test" };
    put(answer, &it, sizeof(it));
    put(answer, w->paths, w->paths_bytes - lies(w, FAKE_PATH_END));
    answer->fd = w->page_fd;
}

static void on_layout(struct fake_worker *w, const char *body)
{
    struct reason why;
    memcpy(&w->layout, body, sizeof(w->layout));
    w->entries = calloc(w->layout.count + 1, sizeof(*w->entries));
    CHECK(w->entries != NULL);
    memcpy(w->entries, body + sizeof(w->layout), w->layout.count * sizeof(*w->entries));
    check_ok(
        layout_places_make(w->entries, w->layout.count, w->layout.blob_bytes, &w->places, &why));
}

static uint64_t area_of(const struct fake_worker *w, uint32_t rank)
{
    return w->areas[rank] > 0 ? w->areas[rank] : w->places.buffer_bytes[PLACE_RANKS];
}

/* The state that this rank saves, without data; share: what it has of it. */
static void describe(struct fake_worker *w, struct ckpt_state *state, struct ckpt_buffer *buffers,
                     struct ckpt_share *share)
{
    uint64_t first = 0, mine = 0, all = 0;
    uint32_t even = 0;
    const uint32_t processes = processes_of(w), worker = w->rank / processes;
    for (uint32_t r = 0; r < w->size; r++) {
        all += area_of(w, r);
        first += r / processes < worker ? area_of(w, r) : 0;
        mine += r / processes == worker ? area_of(w, r) : 0;
    }
    for (uint32_t b = 0; b < PLACE_BUFFERS; b++) {
        const uint64_t bytes = b == PLACE_RANKS ? all : w->places.buffer_bytes[b];
        struct ckpt_buffer *it = &buffers[state->buffer_count];
        if (bytes == 0)
            continue;
        (void)snprintf(it->name, sizeof(it->name), "%s", place_buffer_name(b));
        it->dtype = place_buffer_dtype(b);
        it->count = bytes / ckpt_dtype_size(it->dtype);
        if (b != PLACE_RANKS)
            even |= 1u << state->buffer_count;
        state->buffer_count++;
    }
    state->buffers = buffers;
    check_ok(ckpt_share_even(state, even, worker, w->size / processes, share));
    check_ok(ckpt_share_add(state, state->buffer_count - 1, first, mine, share));
    state->share = share;
}

/* Spoils the head that copy_file_begin wrote. */
static void spoil(struct fake_worker *w, struct copy_file *file)
{
    struct copy_head *head = (void *)(file->memory + sizeof(struct copy_seal));
    struct copy_extent *extents = (void *)(file->memory + head->extents);
    if (lies(w, FAKE_EXTENTS_OUTSIDE))
        head->extents = UINT64_MAX - 7;
    if (lies(w, FAKE_COUNT))
        head->extent_count = UINT32_MAX;
    if (lies(w, FAKE_DATA_OUTSIDE))
        extents[head->extent_count - 1].data = file->size - 64;
    if (lies(w, FAKE_BUFFER))
        extents[0].buffer = 1000;
    if (lies(w, FAKE_OTHER_STEP))
        head->step++;
    if (lies(w, FAKE_OTHER_BUFFERS))
        head->buffers[0].elements++;
}

static void on_begin(struct fake_worker *w, const void *body, struct answer *answer)
{
    struct ckpt_buffer buffers[PLACE_BUFFERS] = { 0 };
    static struct ckpt_share share;
    struct ckpt_state state = { .job = "j-test", .generation = 3 };
    uint8_t sizes[sizeof(struct place_areas) + FAKE_RANKS * sizeof(uint64_t)];
    const struct place_areas areas = { 1, w->size };
    struct ckpt_blob blob = { .name = PLACE_AREAS, .data = sizes };
    share.count = 0;
    memcpy(&w->begun, body, sizeof(w->begun));
    describe(w, &state, buffers, &share);
    state.scalars.step = w->begun;
    state.scalars.loss_scale = 1;
    memcpy(sizes, &areas, sizeof(areas));
    for (uint32_t r = 0; r < w->size; r++) {
        const uint64_t bytes = area_of(w, r);
        memcpy(sizes + sizeof(areas) + r * sizeof(bytes), &bytes, sizeof(bytes));
    }
    blob.size = sizeof(areas) + w->size * sizeof(uint64_t);
    state.blobs = &blob;
    state.blob_count = w->rank == 0 ? 1 : 0;
    w->file = (w->file + 1) % FAKE_FILES;
    struct copy_file *file = &w->files[w->file];
    if (file->memory == NULL) {
        char path[256];
        (void)snprintf(path, sizeof(path), "%s/g3-r%u-%u.copy", w->folder, w->rank, w->file);
        check_ok(copy_file_open(path, ckpt_share_bytes(&state, &share), file));
        if (w->dirty)
            memset(file->memory, 0xab, file->size);
    }
    const uint32_t processes = processes_of(w);
    check_ok(copy_file_begin(file, &state, w->rank / processes, w->size / processes));
    spoil(w, file);
    struct wire_file it = { .file = w->file, .bytes = file->size + lies(w, FAKE_SHORT_FILE) };
    for (uint32_t r = w->rank / processes * processes; r < w->rank; r++)
        it.area += area_of(w, r);
    it.area += lies(w, FAKE_AREA) ? PIECE_ELEMENTS : 0;
    put(answer, &it, sizeof(it));
    answer->fd = open(file->path, O_RDWR | O_CLOEXEC);
    CHECK(answer->fd >= 0);
}

static void on_settle(struct fake_worker *w, struct answer *answer)
{
    const bool first = atomic_load(&w->asked[WIRE_SETTLE]) == 1;
    answer->status = first ? CAIRN_AGAIN : w->settle_status;
    const struct wire_step it = { w->settled };
    if (answer->status == CAIRN_OK)
        put(answer, &it, sizeof(it));
}

static void take(void *out, size_t room, const void *body, size_t size)
{
    CHECK(size == room);
    memcpy(out, body, size);
}

static void handle(struct fake_worker *w, const struct wire_head *head, char *body,
                   struct answer *answer)
{
    const struct wire_due due = { lies(w, FAKE_DUE) ? 99 : w->due, 0 };
    switch ((enum wire_kind)head->kind) {
    case WIRE_HELLO:
        on_hello(w, body, answer);
        break;
    case WIRE_LAYOUT:
        on_layout(w, body);
        break;
    case WIRE_READY:
        take(&w->ready, sizeof(w->ready), body, head->size);
        break;
    case WIRE_DUE:
        put(answer, &due, sizeof(due));
        break;
    case WIRE_BEGIN:
        on_begin(w, body, answer);
        break;
    case WIRE_COPIED:
        take(&w->copied, sizeof(w->copied), body, head->size);
        if (w->copied.status == CAIRN_OK)
            copy_file_seal(&w->files[w->file]);
        break;
    case WIRE_SETTLE:
        on_settle(w, answer);
        break;
    case WIRE_WANT:
        take(&w->want, sizeof(w->want), body, head->size);
        break;
    case WIRE_ROW:
        take(&w->row, sizeof(w->row), body, head->size);
        break;
    case WIRE_FAIL:
        memcpy(w->failed, body, head->size < sizeof(w->failed) ? head->size : 0);
        break;
    case WIRE_LAST: /* the other ranks say so after the first time */
        take(&w->last, sizeof(w->last), body, head->size);
        answer->status = atomic_load(&w->asked[WIRE_LAST]) == 1 ? CAIRN_AGAIN : CAIRN_OK;
        break;
    }
}

/* ---- the thread ---- */

static bool read_all(int fd, void *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        const ssize_t got = read(fd, (char *)bytes + at, size - at);
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

static bool serve(struct fake_worker *w)
{
    struct wire_head head;
    if (!read_all(w->connection, &head, sizeof(head)))
        return false;
    CHECK(head.size <= WIRE_BYTES_MAX && head.kind >= WIRE_HELLO && head.kind <= WIRE_LAST);
    CHECK(head.zero == 0 && head.status == 0);
    char *body = calloc(1, head.size + (size_t)1);
    CHECK(body != NULL);
    bool goes_on = read_all(w->connection, body, head.size);
    struct answer answer = { .fd = -1 };
    if (goes_on) {
        (void)atomic_fetch_add(&w->asked[head.kind], 1);
        handle(w, &head, body, &answer);
        goes_on = send_answer(w, &head, &answer);
    }
    if (answer.fd >= 0 && answer.fd != w->page_fd)
        (void)close(answer.fd);
    free(body);
    return goes_on;
}

static void *run(void *arg)
{
    struct fake_worker *w = arg;
    w->connection = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
    while (w->connection >= 0 && serve(w)) {
    }
    if (w->connection >= 0)
        (void)shutdown(w->connection, SHUT_RDWR);
    return NULL;
}

void fake_start(struct fake_worker *w)
{
    static atomic_uint number;
    char name[100];
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const int size =
        snprintf(name, sizeof(name), "@cairn-test-%d-%u", getpid(), atomic_fetch_add(&number, 1));
    memcpy(address.sun_path + 1, name + 1, (size_t)size - 1);
    w->connection = -1;
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(w->listener, (void *)&address,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)size)) == 0);
    CHECK(listen(w->listener, 4) == 0);
    CHECK(setenv(WIRE_SOCKET_ENV, name, 1) == 0);
    w->page_fd = memfd_create("page", MFD_CLOEXEC);
    CHECK(ftruncate(w->page_fd, WIRE_PAGE_BYTES) == 0);
    w->page = mmap(NULL, WIRE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, w->page_fd, 0);
    CHECK(w->page != MAP_FAILED);
    atomic_store(&w->page->next_due, w->next_due);
    CHECK(pthread_create(&w->thread, NULL, run, w) == 0);
}

void fake_stop(struct fake_worker *w)
{
    (void)shutdown(w->listener, SHUT_RDWR);
    if (w->connection >= 0)
        (void)shutdown(w->connection, SHUT_RDWR);
    CHECK(pthread_join(w->thread, NULL) == 0);
    (void)close(w->listener);
    if (w->connection >= 0)
        (void)close(w->connection);
    (void)close(w->page_fd);
    CHECK(unsetenv(WIRE_SOCKET_ENV) == 0);
}

void fake_release(struct fake_worker *w)
{
    for (uint32_t i = 0; i < FAKE_FILES; i++)
        copy_file_close(&w->files[i]);
    if (w->page != NULL)
        (void)munmap(w->page, WIRE_PAGE_BYTES);
    free(w->entries);
    w->page = NULL;
    w->entries = NULL;
    layout_places_release(&w->places);
}

void fake_await(const struct fake_worker *w, enum wire_kind kind, uint32_t count)
{
    while (atomic_load(&w->asked[kind]) < count) {
        const struct timespec pause = { 0, 1000000 };
        (void)nanosleep(&pause, NULL);
    }
}

const char *fake_path(const struct fake_worker *w)
{
    return w->files[w->file].path;
}
