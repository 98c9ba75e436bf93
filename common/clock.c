#include "common/clock.h"

#include <time.h>

#include "common/check.h"

static int64_t read_ns(clockid_t id)
{
    struct timespec now = { 0 };
    (void)clock_gettime(id, &now); /* can't fail for the clocks used here */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t system_mono_ms(void *self)
{
    (void)self;
    return read_ns(CLOCK_MONOTONIC) / 1000000;
}

static int64_t system_wall_ms(void *self)
{
    (void)self;
    return read_ns(CLOCK_REALTIME) / 1000000;
}

const struct clock *clock_system(void)
{
    static const struct clock clock = { .mono_ms = system_mono_ms, .wall_ms = system_wall_ms };
    return &clock;
}

int64_t clock_mono_ms(const struct clock *clock)
{
    return clock->mono_ms(clock->self);
}

int64_t clock_wall_ms(const struct clock *clock)
{
    return clock->wall_ms(clock->self);
}

int64_t clock_mono_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t clock_thread_ns(void)
{
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

void clock_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    CHECK(pthread_condattr_init(&attributes) == 0);
    CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(cond, &attributes) == 0);
    (void)pthread_condattr_destroy(&attributes);
}

bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    const struct timespec until = { (time_t)(until_ns / 1000000000),
                                    (long)(until_ns % 1000000000) };
    return pthread_cond_timedwait(cond, mutex, &until) == 0;
}
