/*
 * How much data gets from this node to another one: the sender's side. The other node's listener
 * (probe.h) takes the data, and answers how much arrived.
 *
 * A connection begins with a token that the other agent was told to expect. Then data follow for
 * `ms`, `bytes_max` at most. The answer says how much arrived, and within which time: 16 bytes, two
 * numbers of 64 bits, little-endian: bytes, and microseconds.
 *
 * States of one: resolving the host -> connecting -> sending -> waiting for the answer -> over:
 * `done` was called, and it is freed once libuv has closed its handles.
 *
 * Bounds: MEASURES_MAX at a time, of more the newest is left unanswered; MEASURE_END_MS each.
 *
 * Thread: the loop's; nothing waits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "agent/net/result.h"

#define MEASURES_MAX      4
#define MEASURE_MS_MAX    1000
#define MEASURE_BYTES_MAX (UINT64_C(64) * 1024 * 1024)
#define MEASURE_END_MS    3000
#define MEASURE_TOKEN     16
#define MEASURE_ANSWER    16

struct measure;

struct measures {
    uv_loop_t *loop;
    void (*done)(void *arg, const struct probe_result *result);
    void (*empty)(void *arg); /* after each that was freed and was the last */
    void *arg;
    struct measure *list;
    unsigned count;
    bool closing;
};

struct measure_ask {
    uint64_t id;
    const char *host;
    uint32_t port;
    const uint8_t *token; /* MEASURE_TOKEN bytes */
    uint32_t ms;
    uint64_t bytes_max;
};

void measures_start(struct measures *measures, const struct measure_ask *ask);
/* Ends all without another word; the loop has to run until `list` is empty. */
void measures_close(struct measures *measures);

void measure_answer_write(uint64_t bytes, uint64_t us, uint8_t out[MEASURE_ANSWER]);
