/*
 * Counts what our own objects (and the test) allocate; what libraries allocate isn't counted. The
 * test is linked with --wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

/* Starts at 0, or stops. */
void count_allocations(bool on);
/* Since counting was started; stopping keeps the number. */
int counted_allocations(void);
