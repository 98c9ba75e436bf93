/*
 * What kernels ask of the device's memory by load and store (kernels/cuda/own/vector.cuh).
 *
 * A warp's access moves each sector of 32 bytes once that one of its lanes touches. The n-th access
 * of a kind of its lanes is taken for one instruction, which it is where they all go one way.
 * Thread: the emulator's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct traffic {
    uint64_t loaded_bytes, loaded_sectors, stored_bytes, stored_sectors;
    uint64_t streamed_bytes; /* of accesses that say that their place is not touched again ... */
    uint64_t touched_again;  /* ... and accesses to such a place, later in the launch */
};

/* A test's side: of the launches between the two. */
void traffic_begin(void);
struct traffic traffic_end(void);

/* The kernels' side. last: nobody does that to this place again in this launch. */
enum traffic_kind { TRAFFIC_LOAD, TRAFFIC_STORE, TRAFFIC_KINDS };
void traffic_touch(enum traffic_kind kind, const void *place, size_t bytes, bool last);

/* The emulator's side. */
void traffic_end_block(void);
void traffic_end_launch(void);

#ifdef __cplusplus
}
#endif
