#include "tests/unit/trainer/relay/relay_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "session/copies/copy_file.h"

#define VALUES 70000u

struct relay_world *relay_world_new(uint32_t ranks)
{
    return relay_world_new_of(ranks, 1);
}

struct relay_world *relay_world_new_of(uint32_t ranks, uint32_t processes)
{
    struct relay_world *r = calloc(1, sizeof(*r));
    CHECK(r != NULL);
    r->w = world_new(0);
    r->w->c.ranks = ranks;
    (void)snprintf(r->copies, sizeof(r->copies), "%s/copies", r->w->c.dir);
    assert_int_equal(mkdir(r->copies, 0700), 0);
    struct session_options options = r->w->options;
    options.generation = 4;
    options.copies = r->copies;
    assert_int_equal(session_open(&options, &r->session), ST_OK);
    assert_int_equal(session_join(r->session, "{}", LONG_MS, &r->assignment), ST_OK);
    r->job = calloc(1, sizeof(*r->job));
    CHECK(r->job != NULL);
    r->job->command.saves = true;
    r->job->command.processes = processes;
    r->job->workers.count = ranks;
    r->job->checkpoint.every = (struct jobspec_duration){ JOBSPEC_STEPS, 5 };
    r->job->checkpoint.memory_every = 1;
    r->job->checkpoint.grace_ms = 1000;
    (void)snprintf(r->job->checkpoint.store, sizeof(r->job->checkpoint.store), "/tmp");
    r->options = (struct relay_options){ .job = r->job,
                                         .session = r->session,
                                         .assignment = &r->assignment,
                                         .copies = r->copies,
                                         .io = io_system(),
                                         .log = &r->w->c.log };
    struct reason why = { "" };
    assert_int_equal(relay_open(&r->options, &r->relay, &why), ST_OK);
    return r;
}

void relay_world_free(struct relay_world *r)
{
    relay_close(r->relay);
    session_close(r->session);
    (void)io_system()->list(NULL, r->copies, remove_name, r->copies);
    (void)rmdir(r->copies);
    world_free(r->w);
    free(r->job);
    free(r);
}

struct relay_news await_news(struct relay_world *r, bool (*holds)(const struct relay_news *news))
{
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    struct relay_news news;
    relay_look(r->relay, &news);
    while (!holds(&news) && clock_mono_ms(clock_system()) < end_ms) {
        (void)usleep(1000);
        relay_look(r->relay, &news);
    }
    assert_true(holds(&news));
    return news;
}

/* ---- the program ---- */

void program_connect(struct relay_world *r, struct program *out)
{
    program_connect_as(r, 0, out);
}

void program_connect_as(struct relay_world *r, uint32_t process, struct program *out)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char name[64];
    (void)snprintf(name, sizeof(name), "%s.%u", relay_name(r->relay), process);
    *out = (struct program){ .fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), .file_fd = -1 };
    memcpy(address.sun_path + 1, name + 1, strlen(name) - 1);
    assert_int_equal(connect(out->fd, (const struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                     0);
}

void program_close(struct program *p)
{
    (void)close(p->fd);
    if (p->file_fd >= 0)
        (void)close(p->file_fd);
    if (p->page != NULL)
        (void)munmap(p->page, WIRE_PAGE_BYTES);
    *p = (struct program){ .fd = -1, .file_fd = -1 };
}

/* Takes the head of an answer, with a descriptor if there is one. */
static bool take_head(struct program *p)
{
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = { .iov_base = &p->head, .iov_len = sizeof(p->head) };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
    };
    if (recvmsg(p->fd, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(p->head))
        return false;
    const struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
    if (beside == NULL)
        return true;
    if (p->file_fd >= 0)
        (void)close(p->file_fd);
    memcpy(&p->file_fd, CMSG_DATA(beside), sizeof(p->file_fd));
    return true;
}

int32_t program_ask(struct program *p, enum wire_kind kind, const void *body, size_t size)
{
    const struct wire_head head = { .size = (uint32_t)size,
                                    .kind = (uint16_t)kind,
                                    .number = ++p->number };
    (void)!send(p->fd, &head, sizeof(head), MSG_NOSIGNAL);
    (void)!send(p->fd, body, size, MSG_NOSIGNAL);
    memset(p->body, 0, sizeof(p->body));
    if (!take_head(p))
        return -1;
    assert_int_equal(p->head.kind, kind);
    assert_int_equal(p->head.number, p->number);
    assert_in_range(p->head.size, 0, sizeof(p->body) - 1);
    if (p->head.size > 0)
        assert_int_equal(recv(p->fd, p->body, p->head.size, MSG_WAITALL), p->head.size);
    return p->head.status;
}

void program_greet(struct program *p)
{
    const struct wire_hello hello = { .version = WIRE_VERSION, .client = "test" };
    assert_int_equal(program_ask(p, WIRE_HELLO, &hello, sizeof(hello)), 0);
    program_map_page(p);
}

void program_map_page(struct program *p)
{
    assert_true(p->file_fd >= 0);
    void *page = mmap(NULL, WIRE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p->file_fd, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    p->page = page;
}

void program_get_ready(struct relay_world *r, struct program *p, uint64_t step)
{
    program_get_ready_as(r, 0, p, step);
}

void program_get_ready_as(struct relay_world *r, uint32_t process, struct program *p, uint64_t step)
{
    struct {
        struct wire_layout layout;
        struct wire_entry entries[2];
    } said = { .layout = { .count = 2, .blob_bytes = 100 } };
    const struct wire_ready ready = { .step = step, .total_steps = 20, .steps_per_epoch = 10 };
    program_connect_as(r, process, p);
    program_greet(p);
    for (uint32_t i = 0; i < 2; i++) {
        struct wire_entry *entry = &said.entries[i];
        (void)snprintf(entry->name, sizeof(entry->name), "tensor.%u", i);
        entry->dtype = CAIRN_F32;
        entry->kind = i == 0 ? CAIRN_REPLICATED : CAIRN_PRIVATE;
        entry->ndim = 1;
        entry->shape[0] = entry->extent[0] = VALUES;
    }
    assert_int_equal(program_ask(p, WIRE_LAYOUT, &said, sizeof(said)), 0);
    assert_int_equal(program_ask(p, WIRE_READY, &ready, sizeof(ready)), 0);
}

int32_t program_say_step(struct program *p, enum wire_kind kind, uint64_t step)
{
    const struct wire_step said = { .step = step };
    return program_ask(p, kind, &said, sizeof(said));
}

void program_fill(const struct program *p)
{
    const struct wire_file *file = (const struct wire_file *)(const void *)p->body;
    uint8_t *memory = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->file_fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    const struct copy_head *head =
        (const struct copy_head *)(const void *)(memory + sizeof(struct copy_seal));
    const struct copy_extent *extents =
        (const struct copy_extent *)(const void *)(memory + head->extents);
    for (uint32_t i = 0; i < head->extent_count; i++) {
        const enum ckpt_dtype dtype = (enum ckpt_dtype)head->buffers[extents[i].buffer].dtype;
        const size_t bytes = (size_t)(extents[i].count * ckpt_dtype_size(dtype));
        memset(memory + extents[i].data, (int)head->step, bytes);
        ckpt_piece_hashes(dtype, memory + extents[i].data, bytes,
                          (struct ckpt_hash *)(void *)(memory + extents[i].hashes));
    }
    assert_int_equal(munmap(memory, file->bytes), 0);
}

int32_t program_say_copied(struct program *p, uint64_t step)
{
    const struct wire_copied copied = { .step = step, .stall_us = 5 };
    return program_ask(p, WIRE_COPIED, &copied, sizeof(copied));
}

uint64_t program_settle(struct program *p, uint64_t step)
{
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    int32_t status = CAIRN_AGAIN;
    while (status == CAIRN_AGAIN && clock_mono_ms(clock_system()) < end_ms)
        status = program_say_step(p, WIRE_SETTLE, step);
    assert_int_equal(status, 0);
    return ((const struct wire_step *)(const void *)p->body)->step;
}
