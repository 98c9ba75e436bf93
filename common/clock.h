/*
 * Time, as a table so that tests can drive it.
 *
 * Units: milliseconds. mono_ms never goes back; wall_ms is Unix time, for people only.
 * Thread: any.
 */
#pragma once

#include <stdint.h>

struct clock {
    void *self;
    int64_t (*mono_ms)(void *self);
    int64_t (*wall_ms)(void *self);
};

/* The machine's clock. Borrowed for ever. */
const struct clock *clock_system(void);

int64_t clock_mono_ms(const struct clock *clock);
int64_t clock_wall_ms(const struct clock *clock);

/* Monotonic nanoseconds of the machine, for measuring phases. */
int64_t clock_mono_ns(void);
/* Processor time of the calling thread, user and system. */
int64_t clock_thread_ns(void);
