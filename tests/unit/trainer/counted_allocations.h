/*
 * Counts, or fails, what our own objects (and the test) allocate; what libraries allocate isn't.
 * The test is linked with --wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

/* Starts at 0, or stops. */
void count_allocations(bool on);
/* Since counting was started; stopping keeps the number. */
int counted_allocations(void);

/* Has the allocation of that number fail, from 0 on, of the threads whose names begin so; NULL: of
 * this one. Only one fails. */
void fail_allocation(int number, const char *threads);
/* Ends that; returns whether it has failed. */
bool allocation_failed(void);
