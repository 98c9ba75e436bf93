/*
 * The rendezvous: a small map that all ranks of a generation share, to find each other's addresses.
 * The coordinator holds it, one per job and generation, and forgets it with the generation: no key
 * of an old generation can reach a new one. session/kv.c is the trainers' end of it.
 *
 * Thread: callable from any thread.
 * Errors: ST_STALE      the generation is over
 *         ST_TIMED_OUT  the deadline passed
 *         ST_NOT_FOUND  get or cas of a key that isn't there
 *         ST_FULL       out buffer too small, or LIMIT_KV_* exceeded
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct kv {
    void *self;
    enum status (*set)(void *self, const char *key, const void *value, size_t size);
    /* Waits up to timeout_ms (0: doesn't wait) for the key; out_size is the value's size. */
    enum status (*get)(void *self, const char *key, void *out, size_t capacity, size_t *out_size,
                       int64_t timeout_ms);
    /* Adds to a decimal counter (absent: 0); out_value is the sum. */
    enum status (*add)(void *self, const char *key, int64_t delta, int64_t *out_value);
    enum status (*remove)(void *self, const char *key);
};
