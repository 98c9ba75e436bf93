#include "tests/unit/trainer/counted_allocations.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_bool counting;
static atomic_int allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void count_allocations(bool on)
{
    if (on)
        atomic_store(&allocations, 0);
    atomic_store(&counting, on);
}

int counted_allocations(void)
{
    return atomic_load(&allocations);
}

static void count_one(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&allocations, 1);
}

void *__wrap_malloc(size_t size)
{
    count_one();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    count_one();
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    count_one();
    return __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    count_one();
    return __real_aligned_alloc(alignment, size);
}
