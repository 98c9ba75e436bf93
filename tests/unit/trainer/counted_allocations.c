#include "tests/unit/trainer/counted_allocations.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- the one that fails ---- */

static atomic_int until_failure = -1; /* allocations; -1: none fails, or it has */
static atomic_bool failing;
static char failing_threads[16]; /* "": the one that asked */
static pthread_t asker;

void fail_allocation(int number, const char *threads)
{
    (void)snprintf(failing_threads, sizeof(failing_threads), "%s", threads != NULL ? threads : "");
    asker = pthread_self();
    atomic_store(&until_failure, number);
    atomic_store(&failing, true);
}

bool allocation_failed(void)
{
    atomic_store(&failing, false);
    return atomic_load(&until_failure) < 0;
}

static bool is_meant(void)
{
    char name[16] = "";
    if (failing_threads[0] == '\0')
        return pthread_equal(asker, pthread_self()) != 0;
    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
           strncmp(name, failing_threads, strlen(failing_threads)) == 0;
}

/* Counts; returns whether this one fails. */
static bool count_one(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&allocations, 1);
    return atomic_load(&failing) && atomic_load(&until_failure) >= 0 && is_meant() &&
           atomic_fetch_sub(&until_failure, 1) == 0;
}

void *__wrap_malloc(size_t size)
{
    return count_one() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return count_one() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return count_one() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return count_one() ? NULL : __real_aligned_alloc(alignment, size);
}
