/*
 * A program that says anything to its worker (library/wire/wire.h): any bytes, or requests of any
 * kind and content, at any stage; and that writes anything to the memory that the two share.
 *
 *     byte 0    how far the program keeps to the protocol; bit 7: what follows are raw bytes;
 *               bit 5: the worker runs a second process, which keeps to it
 *     records   a kind, a byte for the size, then the bytes
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/trainer/relay/relay_world.h"

struct bytes {
    const uint8_t *data;
    size_t size;
};

static struct bytes take(struct bytes *from, size_t size)
{
    const struct bytes part = { from->data, size < from->size ? size : from->size };
    from->data += part.size;
    from->size -= part.size;
    return part;
}

static uint8_t take_byte(struct bytes *from)
{
    const struct bytes one = take(from, 1);
    return one.size > 0 ? one.data[0] : 0;
}

static bool is_ready(const struct relay_news *news)
{
    return news->ready || news->failed;
}

static void begin_save(struct program *p, unsigned stage)
{
    atomic_store(&p->page->step, 5);
    if (stage > 2 && program_say_step(p, WIRE_DUE, 5) == 0)
        (void)program_say_step(p, WIRE_BEGIN, 5);
}

/* Brings the processes to a stage: connected, greeted, ready, in a save. */
static void begin(struct relay_world *r, struct program *p, uint32_t count, unsigned stage)
{
    for (uint32_t i = 0; i < count; i++) {
        if (stage < 2) {
            program_connect_as(r, i, &p[i]);
            if (stage > 0)
                program_greet(&p[i]);
        } else {
            program_get_ready_as(r, i, &p[i], 0);
        }
    }
    if (stage >= 2)
        (void)await_news(r, is_ready);
    for (uint32_t i = 0; i < count && stage >= 2; i++)
        begin_save(&p[i], stage);
}

/* Whatever comes back, until the other side ends the connection. */
static void drain(struct program *p)
{
    uint8_t some[4096];
    (void)shutdown(p->fd, SHUT_WR);
    while (recv(p->fd, some, sizeof(some), 0) > 0) {
    }
}

/* The copy file that the program got, as it has mapped it. */
struct shared {
    uint8_t *memory; /* NULL: none */
    size_t size;
};

static struct shared map_file(const struct program *p)
{
    const struct wire_file *file = (const struct wire_file *)(const void *)p->body;
    if (p->head.kind != WIRE_BEGIN || p->head.status != 0)
        return (struct shared){ .size = 0 };
    uint8_t *memory = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->file_fd, 0);
    CHECK(memory != MAP_FAILED);
    return (struct shared){ memory, file->bytes };
}

/* Changes some bytes: most of them near the begin, where the tables are. */
static void scribble(const struct shared *shared, struct bytes bytes)
{
    for (size_t i = 0; shared->memory != NULL && i < bytes.size; i++) {
        const size_t at = i * 97 + bytes.data[0] * (size_t)13;
        shared->memory[i % 4 == 0 ? (at << 12) % shared->size : at % shared->size] ^= bytes.data[i];
    }
}

/* Sends a request of any kind; false: the connection has ended. */
static bool ask(struct program *p, struct bytes *from, const struct shared *shared, bool *settled)
{
    static const size_t sizes[] = { 0,
                                    sizeof(struct wire_hello),
                                    16 + sizeof(struct wire_entry),
                                    24,
                                    8,
                                    8,
                                    sizeof(struct wire_copied),
                                    8,
                                    sizeof(struct wire_want),
                                    sizeof(struct wire_row),
                                    20 };
    uint8_t body[1024] = { 0 };
    const uint8_t kind = take_byte(from) % 12, how = take_byte(from);
    const size_t size = kind < 11 && how < 200 ? sizes[kind] : (size_t)how * 4;
    const struct bytes content = take(from, how % 5 == 0 ? size : how % 5 * 3);
    if (kind == WIRE_SETTLE && *settled)
        return true; /* it takes its time */
    *settled = *settled || kind == WIRE_SETTLE;
    if (content.size > 0)
        memcpy(body, content.data, content.size);
    if (kind == WIRE_LAYOUT && how % 3 == 0)
        body[0] = 1;
    scribble(shared, content);
    const struct wire_head head = { .size = (uint32_t)size, .kind = kind, .number = 7 };
    (void)!send(p->fd, &head, sizeof(head), MSG_NOSIGNAL);
    (void)!send(p->fd, body, size, MSG_NOSIGNAL);
    struct wire_head answer;
    if (recv(p->fd, &answer, sizeof(answer), MSG_WAITALL) != (ssize_t)sizeof(answer))
        return false;
    CHECK(answer.kind == kind && answer.number == 7 && answer.size <= 4095);
    return answer.size == 0 ||
           recv(p->fd, p->body, answer.size, MSG_WAITALL) == (ssize_t)answer.size;
}

/* The fuzzer's timer interrupts what waits; it may do so in another thread. */
static void leave_timer_to_others(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGALRM);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 4096)
        return 0;
    struct bytes from = { data + 1, size - 1 };
    leave_timer_to_others();
    const uint32_t count = (data[0] & 0x20) != 0 ? 2 : 1;
    struct relay_world *r = relay_world_new_of(1, count);
    struct program both[2];
    struct program *const p = both;
    struct relay_news news;
    bool settled = false, goes_on = true;
    begin(r, both, count, data[0] % 4);
    const struct shared shared = map_file(p);
    scribble(&shared, from);
    if (p->page != NULL)
        memcpy(p->page, from.data, from.size < 40 && data[0] & 0x40 ? from.size : 0);
    if ((data[0] & 0x80) != 0) {
        (void)!send(p->fd, from.data, from.size, MSG_NOSIGNAL);
    } else {
        while (goes_on && from.size > 0)
            goes_on = ask(p, &from, &shared, &settled);
    }
    relay_look(r->relay, &news);
    drain(p);
    relay_look(r->relay, &news);
    if (shared.memory != NULL)
        CHECK(munmap(shared.memory, shared.size) == 0);
    for (uint32_t i = 0; i < count; i++)
        program_close(&both[i]);
    relay_world_free(r);
    return 0;
}
