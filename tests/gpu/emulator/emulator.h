/*
 * Runs CUDA kernels on the CPU: the same source, compiled by the host's C++ compiler with
 * CAIRN_EMULATE.
 *
 * A thread of a block is a fiber that runs until a barrier or a warp exchange; blocks run one after
 * another. Which block comes next, and in which order the threads of a block go on, is drawn anew
 * from the seed at every launch: what depends on it differs from seed to seed.
 *
 * Seen: access outside of emulator_alloc's memory (guard pages behind; marks around, looked at by
 *       emulator_free; with the address sanitizer each byte), shared memory that is read before it
 *       is written (it starts as NaN), barriers that not all threads reach, exchanges whose lanes
 *       disagree, limits of a launch, misaligned vectors.
 * Not:  speed, memory order, what differs in a device's own arithmetic (fused multiply-add,
 *       approximate functions), races between threads that no seed happened to order wrongly.
 * Thread: one.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "common/status.h"
#include "tests/gpu/emulator/traffic.h"
#include "tests/gpu/emulator/types.h"

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* A test's side. */
void emulator_seed(uint64_t seed);
/* Device memory, aligned to `align` (4 .. 16) and to no more; its bytes are drawn from the seed. */
void *emulator_alloc(size_t bytes, size_t align = 16);
void emulator_free(void *memory); /* aborts if something was written around it */
size_t emulator_launches(void);   /* so far */

/* A taker gets launches to run them later, in the order of their stream; NULL: they run at once. */
typedef enum status emulator_taker(void *stream, std::function<void()> run);
void emulator_set_taker(emulator_taker *taker);

/* The kernels' side. */
enum status emulator_submit(void *stream, std::function<void()> run);
void emulator_run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &body);
void *emulator_shared(const void *place, size_t bytes);
void *emulator_shared_dynamic(void);
[[noreturn]] void emulator_fail(const char *what);

#define SHARED_ARRAY(type, name, count)                                                            \
    static const char name##_place = 0;                                                            \
    type *const name = (type *)emulator_shared(&name##_place, sizeof(type) * (count))
#define SHARED_DYNAMIC(type, name) type *const name = (type *)emulator_shared_dynamic()

template <typename... Parameters, typename... Arguments>
static inline enum status launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                 size_t shared, void *stream, Arguments... arguments)
{
    return emulator_submit(stream, [=] {
        emulator_run(grid, block, shared, [&] { kernel(static_cast<Parameters>(arguments)...); });
    });
}

void __syncthreads(void);
void __syncwarp(unsigned mask = ~0u);

/*
 * All lanes of `mask` come with `bytes` (at most 64) each and leave with everyone's: out[lane] is
 * at out + lane·bytes; lanes outside of the mask give nothing.
 */
void emulator_exchange(unsigned mask, const void *mine, size_t bytes, void *out);
unsigned emulator_lane(void);
unsigned emulator_thread(void); /* its number within the block */
/* emulator_exchange in parts: each lane offers its bytes, and others read them until it leaves by
 * __syncwarp(mask). */
void emulator_offer(unsigned mask, const void *mine, size_t bytes);
const void *emulator_offered(unsigned lane);

template <typename T> static inline T emulator_pick(unsigned mask, T value, unsigned from)
{
    if ((mask >> (from & 31) & 1) == 0)
        emulator_fail("a shuffle reads a lane that takes no part");
    emulator_offer(mask, &value, sizeof(value));
    memcpy(&value, emulator_offered(from & 31), sizeof(value));
    __syncwarp(mask);
    return value;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int lane)
{
    return emulator_pick(mask, value, (unsigned)lane);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits)
{
    return emulator_pick(mask, value, emulator_lane() ^ (unsigned)bits);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by)
{
    const unsigned lane = emulator_lane();
    return emulator_pick(mask, value, lane + by < 32 ? lane + by : lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by)
{
    const unsigned lane = emulator_lane();
    return emulator_pick(mask, value, lane >= by ? lane - by : lane);
}
unsigned __ballot_sync(unsigned mask, bool predicate);
unsigned __match_any_sync(unsigned mask, unsigned value);
static inline int __any_sync(unsigned mask, bool predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, bool predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

template <typename T> static inline T atomicAdd(T *to, T value)
{
    static_assert(T(1) / 2 == T(0), "integers only: sums of floats must have an order");
    const T old = *to;
    *to = (T)(old + value);
    return old;
}
static inline unsigned atomicOr(unsigned *to, unsigned value)
{
    const unsigned old = *to;
    *to |= value;
    return old;
}
