/*
 * The kernels of sort.cuh.
 */
#include "kernels/cuda/own/sort.cuh"
#include "kernels/cuda/own/vector.cuh"

#define SORT_THREADS 256 /* as many as there are digits */
#define SORT_WARPS   (SORT_THREADS / 32)
#define SORT_ROUNDS  8 /* elements per thread */
#define SORT_TILE    (SORT_THREADS * SORT_ROUNDS)
#define SORT_SCAN    1024
#define SORT_NOBODY  256u /* the digit of lanes beyond the end */

/* A pass's input: tokens, or what the pass before wrote. */
struct sort_input {
    const int32_t *tokens; /* NULL after the first pass */
    const uint32_t *keys;
    const int32_t *places;
    int64_t count, vocab, tiles;
    int shift;
};

DEVICE_INLINE uint32_t key_at(const struct sort_input &in, int64_t i)
{
    if (in.tokens == nullptr)
        return in.keys[i];
    const int32_t token = in.tokens[i];
    return (uint32_t)(token >= 0 && token < in.vocab ? token : in.vocab);
}

DEVICE_INLINE uint32_t digit_at(const struct sort_input &in, int64_t i)
{
    return i < in.count ? key_at(in, i) >> in.shift & 255u : SORT_NOBODY;
}

static __global__ void __launch_bounds__(SORT_THREADS)
    sort_count_kernel(struct sort_input in, uint32_t *digits)
{
    SHARED_ARRAY(uint32_t, count, SORT_THREADS);
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int round = 0; round < SORT_ROUNDS; round++) {
        const int64_t i = (int64_t)blockIdx.x * SORT_TILE + round * SORT_THREADS + threadIdx.x;
        if (i < in.count)
            (void)atomicAdd(&count[digit_at(in, i)], 1u);
    }
    __syncthreads();
    digits[threadIdx.x * in.tiles + blockIdx.x] = count[threadIdx.x];
}

/* An exclusive sum over `total` numbers in place, by one block. */
static __global__ void __launch_bounds__(SORT_SCAN)
    sort_scan_kernel(uint32_t *digits, int64_t total)
{
    SHARED_ARRAY(uint32_t, sums, SORT_SCAN);
    const int t = (int)threadIdx.x;
    const int64_t each = (total + SORT_SCAN - 1) / SORT_SCAN;
    const int64_t first = t * each, end = first + each < total ? first + each : total;
    uint32_t sum = 0;
    for (int64_t i = first; i < end; i++)
        sum += digits[i];
    sums[t] = sum;
    for (int by = 1; by < SORT_SCAN; by *= 2) {
        __syncthreads();
        const uint32_t before = t >= by ? sums[t - by] : 0;
        __syncthreads();
        sums[t] += before;
    }
    sum = sums[t] - sum;
    for (int64_t i = first; i < end; i++) {
        const uint32_t here = digits[i];
        digits[i] = sum;
        sum += here;
    }
}

static __global__ void __launch_bounds__(SORT_THREADS)
    sort_scatter_kernel(struct sort_input in, const uint32_t *digits, uint32_t *keys,
                        int32_t *places)
{
    SHARED_ARRAY(uint32_t, next, SORT_WARPS * SORT_THREADS); /* [warp][digit]: where to write */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t first = (int64_t)blockIdx.x * SORT_TILE + warp * 32 * SORT_ROUNDS + lane;
    uint32_t *const mine = next + warp * SORT_THREADS;
    for (int w = 0; w < SORT_WARPS; w++)
        next[w * SORT_THREADS + threadIdx.x] = 0;
    __syncthreads();
    for (int round = 0; round < SORT_ROUNDS; round++) {
        const uint32_t digit = digit_at(in, first + round * 32);
        if (digit != SORT_NOBODY)
            (void)atomicAdd(&mine[digit], 1u);
    }
    __syncthreads();
    uint32_t at = digits[threadIdx.x * in.tiles + blockIdx.x];
    for (int w = 0; w < SORT_WARPS; w++) {
        const uint32_t count = next[w * SORT_THREADS + threadIdx.x];
        next[w * SORT_THREADS + threadIdx.x] = at;
        at += count;
    }
    __syncthreads();
    for (int round = 0; round < SORT_ROUNDS; round++) {
        const int64_t i = first + round * 32;
        const uint32_t digit = digit_at(in, i);
        const unsigned equals = __match_any_sync(FULL_WARP, digit);
        const unsigned before = equals & ((1u << lane) - 1);
        const bool there = digit != SORT_NOBODY;
        const uint32_t to = there ? mine[digit] + (uint32_t)__popc(before) : 0;
        __syncwarp();
        if (there) {
            keys[to] = key_at(in, i);
            places[to] = in.tokens == nullptr ? in.places[i] : (int32_t)i;
            if (before == 0)
                mine[digit] += (uint32_t)__popc(equals);
        }
        __syncwarp();
    }
}

static int64_t sort_tiles(int64_t count)
{
    return (count + SORT_TILE - 1) / SORT_TILE;
}

size_t sort_layout(int64_t count, void *memory, struct sorted *out)
{
    const size_t bytes = ((size_t)count * 4 + 15) / 16 * 16;
    if (memory != nullptr) {
        char *const base = (char *)memory;
        for (int i = 0; i < 2; i++) {
            out->keys[i] = (uint32_t *)(base + (size_t)i * bytes);
            out->places[i] = (int32_t *)(base + (size_t)(2 + i) * bytes);
        }
        out->digits = (uint32_t *)(base + 4 * bytes);
    }
    return 4 * bytes + (size_t)sort_tiles(count) * SORT_THREADS * sizeof(uint32_t);
}

enum status sort_tokens(const int32_t *tokens, int64_t count, int64_t vocab,
                        const struct sorted *memory, const uint32_t **out_keys,
                        const int32_t **out_places, void *stream)
{
    struct sort_input in = { tokens, nullptr, nullptr, count, vocab, sort_tiles(count), 0 };
    const dim3 grid((unsigned)in.tiles), block(SORT_THREADS);
    int to = 0;
    for (; in.shift == 0 || vocab >> in.shift != 0; in.shift += 8, to = 1 - to) {
        enum status st = launch(sort_count_kernel, grid, block, 0, stream, in, memory->digits);
        if (st == ST_OK)
            st = launch(sort_scan_kernel, dim3(1), dim3(SORT_SCAN), 0, stream, memory->digits,
                        in.tiles * SORT_THREADS);
        if (st == ST_OK)
            st = launch(sort_scatter_kernel, grid, block, 0, stream, in, memory->digits,
                        memory->keys[to], memory->places[to]);
        if (st != ST_OK)
            return st;
        in.tokens = nullptr;
        in.keys = memory->keys[to];
        in.places = memory->places[to];
    }
    *out_keys = in.keys;
    *out_places = in.places;
    return ST_OK;
}
