#include "common/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE  ((size_t)2 * 1024 * 1024)
#define SMALL_PAGE ((size_t)4096)

/* Half a huge page and more is worth a whole one. */
size_t pages_bytes(size_t size)
{
    const size_t unit = size < HUGE_PAGE / 2 ? SMALL_PAGE : HUGE_PAGE;
    return (size + unit - 1) / unit * unit;
}

/* A huge page starts at a multiple of its size: more is mapped, and what is too much given back. */
static enum status map(size_t size, int protection, int flags, uint8_t **out)
{
    const size_t whole = pages_bytes(size);
    if (size == 0 || whole < size || whole > SIZE_MAX - HUGE_PAGE)
        return ST_INVALID;
    uint8_t *mapped =
        mmap(NULL, whole + HUGE_PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (mapped == MAP_FAILED)
        return ST_NO_MEMORY;
    const size_t before = (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        (void)munmap(mapped, before);
    if (before < HUGE_PAGE)
        (void)munmap(mapped + before + whole, HUGE_PAGE - before);
    *out = mapped + before;
    return ST_OK;
}

enum status pages_alloc(size_t size, void **out)
{
    uint8_t *mapped = NULL;
    enum status st = map(size, PROT_READ | PROT_WRITE, 0, &mapped);
    if (st != ST_OK)
        return st;
    const size_t whole = pages_bytes(size);
    (void)madvise(mapped, whole, MADV_HUGEPAGE); /* small ones do as well, slower */
    memset(mapped, 0, whole);
    *out = mapped;
    return ST_OK;
}

enum status pages_reserve(size_t size, void **out)
{
    uint8_t *mapped = NULL;
    enum status st = map(size, PROT_NONE, MAP_NORESERVE, &mapped);
    if (st == ST_OK)
        *out = mapped;
    return st;
}

enum status pages_back(void *data, size_t first, size_t bytes)
{
    const size_t into = first % SMALL_PAGE;
    uint8_t *at = (uint8_t *)data + first;
    if (mprotect(at - into, into + bytes, PROT_READ | PROT_WRITE) != 0)
        return ST_NO_MEMORY;
    (void)madvise(at - into, into + bytes, MADV_HUGEPAGE);
    memset(at, 0, bytes);
    return ST_OK;
}

void pages_free(void *data, size_t size)
{
    if (data != NULL)
        (void)munmap(data, pages_bytes(size));
}

enum status pages_of_file(int fd, size_t size)
{
    int error = EINTR;
    while (error == EINTR)
        error = posix_fallocate(fd, 0, (off_t)size);
    return error == 0 ? ST_OK : status_from_errno(error);
}
