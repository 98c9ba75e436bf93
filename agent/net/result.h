/*
 * The result of a probe (probe.h) or a measurement (measure.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct probe_result {
    uint64_t id;
    bool reached;
    uint64_t reach_us;       /* round-trip time of a probe that worked */
    uint64_t bytes, took_us; /* what arrived in a measurement that worked, and within which time */
    const char *saw;         /* how long it took, or what went wrong; borrowed for the call */
};
