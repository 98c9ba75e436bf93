#include "server/containers/timers.h"

#include <stdlib.h>

#include "common/check.h"

void timers_release(struct timers *timers)
{
    free(timers->list);
    *timers = (struct timers){ 0 };
}

enum status timers_reserve(struct timers *timers, size_t capacity)
{
    if (capacity <= timers->capacity)
        return ST_OK;
    if (capacity < 2 * timers->capacity)
        capacity = 2 * timers->capacity;
    struct timer **more = realloc(timers->list, capacity * sizeof(void *));
    if (more == NULL)
        return ST_NO_MEMORY;
    timers->list = more;
    timers->capacity = capacity;
    return ST_OK;
}

static void put(struct timers *timers, size_t index, struct timer *timer)
{
    timers->list[index] = timer;
    timer->place = index + 1;
}

/* Puts the timer at index, or above it: parents that are later come down. */
static void rise(struct timers *timers, size_t index, struct timer *timer)
{
    while (index > 0 && timers->list[(index - 1) / 2]->at > timer->at) {
        put(timers, index, timers->list[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    put(timers, index, timer);
}

/* Puts the timer at index, or below it: children that are earlier come up. */
static void sink(struct timers *timers, size_t index, struct timer *timer)
{
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= timers->count)
            break;
        if (child + 1 < timers->count && timers->list[child + 1]->at < timers->list[child]->at)
            child++;
        if (timers->list[child]->at >= timer->at)
            break;
        put(timers, index, timers->list[child]);
        index = child;
    }
    put(timers, index, timer);
}

static void take_out(struct timers *timers, struct timer *timer)
{
    CHECK(timer->place <= timers->count);
    size_t index = timer->place - 1;
    struct timer *last = timers->list[--timers->count];
    timer->place = 0;
    if (last == timer)
        return;
    rise(timers, index, last);
    sink(timers, last->place - 1, last);
}

void timers_set(struct timers *timers, struct timer *timer, int64_t at)
{
    if (timer->place > 0 && timer->at == at && at != TIMERS_NEVER)
        return;
    if (at == TIMERS_NEVER) {
        if (timer->place > 0)
            take_out(timers, timer);
        timer->at = at;
        return;
    }
    timer->at = at;
    if (timer->place == 0) {
        CHECK(timers->count < timers->capacity);
        timer->place = ++timers->count;
    }
    rise(timers, timer->place - 1, timer);
    sink(timers, timer->place - 1, timer);
}

struct timer *timers_first(const struct timers *timers)
{
    return timers->count > 0 ? timers->list[0] : NULL;
}

int64_t timers_at(const struct timers *timers)
{
    return timers->count > 0 ? timers->list[0]->at : TIMERS_NEVER;
}
