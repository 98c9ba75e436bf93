#include "common/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/pages.h"

_Static_assert(sizeof(struct flight_record) == 64, "layout");
_Static_assert(offsetof(struct flight_record, name) == 40, "layout");
_Static_assert(sizeof(struct flight_header) == 136, "layout");
_Static_assert(offsetof(struct flight_header, marks) == 128, "layout");
_Static_assert(FLIGHT_BYTES == 69632, "layout");

struct flight {
    uint8_t *map;
};

static void copy_text(char *to, size_t capacity, const char *from)
{
    size_t n = strnlen(from, capacity - 1);
    memcpy(to, from, n);
    memset(to + n, 0, capacity - n);
}

enum status flight_open(const char *path, const char *job, uint64_t generation, uint32_t rank,
                        struct flight **out)
{
    (void)unlink(path); /* a reader of the old file keeps what it has open */
    auto_close int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return status_from_errno(errno);
    enum status st = pages_of_file(fd, FLIGHT_BYTES);
    if (st != ST_OK)
        return st;
    struct flight *flight = calloc(1, sizeof(*flight));
    if (flight == NULL)
        return ST_NO_MEMORY;
    void *map = mmap(NULL, FLIGHT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        free(flight);
        return status_from_errno(errno);
    }
    flight->map = map;
    struct flight_header *header = map;
    header->record_size = sizeof(struct flight_record);
    header->record_count = FLIGHT_RECORDS;
    header->pid = (uint32_t)getpid();
    header->rank = rank;
    header->generation = generation;
    copy_text(header->job, sizeof(header->job), job);
    memcpy(header->magic, FLIGHT_MAGIC, sizeof(header->magic));
    *out = flight;
    return ST_OK;
}

void flight_close(struct flight *flight)
{
    if (flight == NULL)
        return;
    (void)munmap(flight->map, FLIGHT_BYTES);
    free(flight);
}

static struct flight_record *entry_of(uint8_t *map, uint64_t number)
{
    size_t at = (size_t)((number - 1) % FLIGHT_RECORDS) * sizeof(struct flight_record);
    return (struct flight_record *)(void *)(map + FLIGHT_HEADER_BYTES + at);
}

void flight_mark(struct flight *flight, enum flight_kind kind, uint64_t step, uint64_t value,
                 const char *name)
{
    if (flight == NULL)
        return;
    struct flight_header *header = (struct flight_header *)(void *)flight->map;
    uint64_t number = __atomic_add_fetch(&header->marks, 1, __ATOMIC_RELAXED);
    struct flight_record *r = entry_of(flight->map, number);
    __atomic_store_n(&r->number, 0, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_release);
    r->mono_ns = clock_mono_ns();
    r->step = step;
    r->kind = (uint32_t)kind;
    r->value = value;
    copy_text(r->name, sizeof(r->name), name);
    __atomic_store_n(&r->number, number, __ATOMIC_RELEASE);
}

enum status flight_read(const struct io *io, const char *path, struct flight_dump *out)
{
    auto_free char *bytes = NULL;
    size_t size = 0;
    enum status st = io_read_file(io, path, FLIGHT_BYTES, &bytes, &size);
    if (st != ST_OK)
        return st;
    struct flight_header header;
    if (size != FLIGHT_BYTES)
        return ST_CORRUPT;
    memcpy(&header, bytes, sizeof(header));
    if (memcmp(header.magic, FLIGHT_MAGIC, sizeof(header.magic)) != 0 ||
        header.record_size != sizeof(struct flight_record) || header.record_count != FLIGHT_RECORDS)
        return ST_CORRUPT;
    header.job[sizeof(header.job) - 1] = '\0';
    out->header = header;
    out->count = 0;
    uint64_t first = header.marks > FLIGHT_RECORDS ? header.marks - FLIGHT_RECORDS + 1 : 1;
    for (uint64_t n = first; n - first < FLIGHT_RECORDS && n <= header.marks; n++) {
        struct flight_record r = *entry_of((uint8_t *)bytes, n);
        if (r.number != n)
            continue;
        r.name[FLIGHT_NAME - 1] = '\0';
        out->records[out->count++] = r;
    }
    return ST_OK;
}
