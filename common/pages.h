/*
 * Large buffers on huge pages where the kernel has them: direct writes from small pages take up to
 * twice as long, for every page is pinned by itself.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>

#include "common/status.h"

/* Whole pages, huge ones if size is worth it; zeroed and touched, so that the first use meets no
 * page fault. Freed by pages_free with the same size; NULL is fine there. */
MUST_CHECK enum status pages_alloc(size_t size, void **out);
void pages_free(void *data, size_t size);

/*
 * Addresses for size bytes without memory: touching them is a segmentation fault. pages_back gives
 * bytes [first, first + bytes) memory, as pages_alloc does, and with them what else is in their
 * small pages; what had some keeps its content. pages_free with that size frees all.
 */
MUST_CHECK enum status pages_reserve(size_t size, void **out);
MUST_CHECK enum status pages_back(void *data, size_t first, size_t bytes);

/* Gives a file that is to be mapped its room, however often signals interrupt it: what fills up
 * later is no SIGBUS. ST_FULL, ST_IO and the like */
MUST_CHECK enum status pages_of_file(int fd, size_t size);

/* Returns how many bytes of memory pages_alloc takes for size bytes. */
size_t pages_bytes(size_t size);
