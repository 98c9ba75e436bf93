/*
 * Time, as a table so that tests can drive it.
 *
 * Units: milliseconds. mono_ms never goes back; wall_ms is Unix time, for people only.
 * Thread: any.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
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

/* A condition whose waits end at times of clock_mono_ns. pthread_cond_destroy ends it. */
void clock_cond_init(pthread_cond_t *cond);
/* Waits, under mutex, until cond is signalled or the time has come. false: the time has come. */
bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns);
