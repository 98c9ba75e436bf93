/*
 * File operations that count what is read and hold it to a rate, over another table.
 *
 * Thread: any.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "common/io.h"

struct throttle {
    struct io io; /* give this on; valid as long as the throttle, which must not move */
    const struct io *inner;
    pthread_mutex_t lock;
    uint64_t rate; /* bytes per second; 0: no limit */
    uint64_t bytes;
    int64_t start_ns;
    void (*progress)(void *arg, uint64_t bytes); /* after reads; may be NULL */
    void *progress_arg;
};

void throttle_init(struct throttle *throttle, const struct io *inner, uint64_t rate);
void throttle_release(struct throttle *throttle);
