/*
 * How long to wait before what failed is tried again.
 *
 * Thread: any.
 */
#pragma once

#include <stdint.h>
#include <sys/random.h>

/* Returns the wait after so many failures in a row: first_ms after one (or none), and after each
 * further one `factor` times as long, most_ms at most. */
static inline int64_t backoff_ms(int64_t first_ms, int64_t factor, uint32_t failures,
                                 int64_t most_ms)
{
    int64_t ms = first_ms;
    for (uint32_t i = 1; i < failures && ms < most_ms; i++)
        ms *= factor;
    return ms < most_ms ? ms : most_ms;
}

#define BACKOFF_CONNECT_MIN_MS 100
#define BACKOFF_CONNECT_MS     1000  /* the spread, until the coordinator has told one */
#define BACKOFF_CONNECT_MAX_MS 60000 /* the largest spread */
/* Returns the wait before the coordinator is connected to again: at random within the spread that
 * it has told (0: none yet), for when it ended, thousands come back. */
static inline int64_t backoff_connect_ms(uint32_t spread_ms)
{
    uint32_t number = 0;
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
        number = 0; /* as good as any */
    if (spread_ms == 0)
        spread_ms = BACKOFF_CONNECT_MS;
    if (spread_ms > BACKOFF_CONNECT_MAX_MS)
        spread_ms = BACKOFF_CONNECT_MAX_MS;
    return BACKOFF_CONNECT_MIN_MS + (int64_t)(number % spread_ms);
}
