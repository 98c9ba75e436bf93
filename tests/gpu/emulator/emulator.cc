/*
 * Fibers for the threads of one block, and memory whose borders are watched.
 *
 * 1. One fiber or the scheduler runs at a time. A fiber gives way only in give_way(); the scheduler
 *    visits the runnable ones in an order drawn for the block.
 * 2. A barrier is released by the last fiber that arrives: all of the block, or the lanes of its
 *    mask. If a round of the scheduler finds nobody runnable, somebody waits for ever: abort.
 * 3. A fiber outlives its block: it takes the next thread of its number when there is one.
 */
#include "tests/gpu/emulator/emulator.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "kernels/cuda/own/launch.h"
#include "tests/gpu/emulator/traffic.h"

#define STACK_BYTES   (256 * 1024)
#define THREADS_MAX   1024
#define EXCHANGE_MAX  64
#define SHARED_STATIC (48 * 1024)
#define SHARED_MAX    (227 * 1024)
#define GUARD_BYTES   (64 * 1024) /* on both sides of an allocation; nobody may touch them */
#define MARK          0xa5

enum fiber_state { READY, AT_BARRIER, AT_WARP, DONE };

struct fiber {
    ucontext_t context;
    void *rsp; /* x86-64: instead of the context */
    char *stack;
    void *fake_stack; /* the address sanitizer's */
    enum fiber_state state;
    unsigned mask; /* AT_WARP: of whom it waits for */
    uint3 index;
};

struct warp {
    unsigned arrived;
    alignas(16) unsigned char slot[32][EXCHANGE_MAX];
};

struct shared_array {
    unsigned char *base;
    size_t bytes;
};

/* One launch at a time; the whole machine. */
static struct fsm {
    std::mt19937_64 random;
    std::vector<struct fiber> fibers;
    std::vector<struct warp> warps;
    std::map<const void *, struct shared_array> shared;
    std::map<const void *, size_t> shared_of_block;
    struct shared_array dynamic;
    const std::function<void()> *body;
    ucontext_t scheduler;
    void *scheduler_rsp;
    void *scheduler_fake_stack;
    const void *scheduler_bottom;
    size_t scheduler_size;
    size_t current; /* fiber */
    size_t threads, at_barrier, done, launches;
} machine;

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

void emulator_fail(const char *what)
{
    (void)fprintf(stderr, "emulator: %s (block %u %u %u, thread %u %u %u)\n", what, blockIdx.x,
                  blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    abort();
}

/* Switching. */

#if defined(__x86_64__)
extern "C" void emulator_switch(void **save, void *to);
__asm__(".text\n.p2align 4\n.globl emulator_switch\n.type emulator_switch, @function\n"
        "emulator_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emulator_switch, . - emulator_switch\n");
#endif

static void switch_begin(void **fake_stack, const void *bottom, size_t size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#else
    (void)fake_stack;
    (void)bottom;
    (void)size;
#endif
}

static void switch_end(void *fake_stack, const void **bottom, size_t *size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
#else
    (void)fake_stack;
    (void)bottom;
    (void)size;
#endif
}

static void to_fiber(size_t number)
{
    struct fiber *f = &machine.fibers[number];
    machine.current = number;
    threadIdx = f->index;
    switch_begin(&machine.scheduler_fake_stack, f->stack, STACK_BYTES);
#if defined(__x86_64__)
    emulator_switch(&machine.scheduler_rsp, f->rsp);
#else
    (void)swapcontext(&machine.scheduler, &f->context);
#endif
    switch_end(machine.scheduler_fake_stack, nullptr, nullptr);
}

/* Gives way; on return the scheduler has chosen this fiber again. */
static void give_way(void)
{
    struct fiber *f = &machine.fibers[machine.current];
    switch_begin(&f->fake_stack, machine.scheduler_bottom, machine.scheduler_size);
#if defined(__x86_64__)
    emulator_switch(&f->rsp, machine.scheduler_rsp);
#else
    (void)swapcontext(&f->context, &machine.scheduler);
#endif
    switch_end(f->fake_stack, &machine.scheduler_bottom, &machine.scheduler_size);
}

static void fiber_main(void)
{
    switch_end(nullptr, &machine.scheduler_bottom, &machine.scheduler_size);
    for (;;) {
        (*machine.body)();
        machine.fibers[machine.current].state = DONE;
        machine.done++;
        give_way();
    }
}

static void fiber_init(struct fiber *f)
{
    void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED)
        emulator_fail("no memory for a stack");
    f->stack = (char *)stack;
#if defined(__x86_64__)
    void **top = (void **)(f->stack + STACK_BYTES) - 1; /* as a call leaves it: 8 modulo 16 */
    top[0] = nullptr;                                   /* fiber_main returns to nobody */
    top[-1] = (void *)fiber_main;
    f->rsp = top - 7;
#else
    (void)getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
}

/* Barriers. */

void __syncthreads(void)
{
    machine.fibers[machine.current].state = AT_BARRIER;
    machine.at_barrier++;
    if (machine.done != 0)
        emulator_fail("a barrier that a thread has left out");
    if (machine.at_barrier == machine.threads) {
        machine.at_barrier = 0;
        for (size_t i = 0; i < machine.threads; i++)
            machine.fibers[i].state = READY;
    }
    give_way();
}

unsigned emulator_thread(void)
{
    return (unsigned)machine.current;
}

unsigned emulator_lane(void)
{
    return (unsigned)machine.current % 32;
}

void __syncwarp(unsigned mask)
{
    const size_t first = machine.current / 32 * 32;
    struct warp *warp = &machine.warps[first / 32];
    if ((mask >> emulator_lane() & 1) == 0)
        emulator_fail("a lane outside of its own mask");
    machine.fibers[machine.current].state = AT_WARP;
    machine.fibers[machine.current].mask = mask;
    warp->arrived |= 1u << emulator_lane();
    if ((warp->arrived & mask) == mask) {
        warp->arrived &= ~mask;
        for (size_t lane = 0; lane < 32; lane++) {
            struct fiber *f = &machine.fibers[first + lane];
            if ((mask >> lane & 1) == 0)
                continue;
            if (f->mask != mask)
                emulator_fail("the lanes of an exchange have different masks");
            f->state = READY;
        }
    }
    give_way();
}

void emulator_offer(unsigned mask, const void *mine, size_t bytes)
{
    if (bytes > EXCHANGE_MAX)
        emulator_fail("an exchange of too many bytes");
    memcpy(machine.warps[machine.current / 32].slot[emulator_lane()], mine, bytes);
    __syncwarp(mask);
}

const void *emulator_offered(unsigned lane)
{
    return machine.warps[machine.current / 32].slot[lane];
}

void emulator_exchange(unsigned mask, const void *mine, size_t bytes, void *out)
{
    emulator_offer(mask, mine, bytes);
    for (size_t lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) != 0)
            memcpy((char *)out + lane * bytes, emulator_offered((unsigned)lane), bytes);
        else
            memset((char *)out + lane * bytes, 0xff, bytes);
    }
    __syncwarp(mask);
}

unsigned __ballot_sync(unsigned mask, bool predicate)
{
    unsigned char all[32], mine = predicate;
    unsigned ballot = 0;
    emulator_exchange(mask, &mine, 1, all);
    for (unsigned lane = 0; lane < 32; lane++)
        ballot |= all[lane] == 1 ? 1u << lane : 0;
    return ballot;
}

unsigned __match_any_sync(unsigned mask, unsigned value)
{
    unsigned all[32], same = 0;
    emulator_exchange(mask, &value, sizeof(value), all);
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) != 0 && all[lane] == value)
            same |= 1u << lane;
    }
    return same;
}

/* Memory: [guard][marks ... memory][guard]. */

struct region {
    unsigned char *base; /* behind the first guard */
    size_t size;         /* between the guards */
    size_t bytes;
    unsigned char *memory;
};

static std::map<void *, struct region> regions;

void emulator_seed(uint64_t seed)
{
    machine.random.seed(seed);
}

void *emulator_alloc(size_t bytes, size_t align)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t rounded = (bytes + align - 1) / align * align;
    const size_t size = (rounded + 64 + page - 1) / page * page;
    void *map =
        mmap(nullptr, size + 2 * GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        emulator_fail("no memory");
    struct region r = { (unsigned char *)map + GUARD_BYTES, size, bytes, nullptr };
    if (mprotect(r.base, size, PROT_READ | PROT_WRITE) != 0)
        emulator_fail("no memory");
    r.memory = r.base + size - rounded;
    memset(r.base, MARK, size);
    for (size_t i = 0; i < bytes; i++)
        r.memory[i] = (unsigned char)machine.random();
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(r.base, (size_t)(r.memory - r.base));
    __asan_poison_memory_region(r.memory + bytes, rounded - bytes);
#endif
    regions[r.memory] = r;
    return r.memory;
}

void emulator_free(void *memory)
{
    if (memory == nullptr)
        return;
    const auto found = regions.find(memory);
    if (found == regions.end())
        emulator_fail("freed what was not allocated");
    const struct region r = found->second;
    regions.erase(found);
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(r.base, r.size);
#endif
    for (unsigned char *p = r.base; p < r.base + r.size; p++) {
        if (*p != MARK && (p < r.memory || p >= r.memory + r.bytes))
            emulator_fail("something was written around an allocation");
    }
    (void)munmap(r.base - GUARD_BYTES, r.size + 2 * GUARD_BYTES);
}

size_t emulator_launches(void)
{
    return machine.launches;
}

static void shared_renew(struct shared_array *array)
{
    if (array->base != nullptr)
        memset(array->base, 0xff, array->bytes);
}

void *emulator_shared(const void *place, size_t bytes)
{
    struct shared_array *array = &machine.shared[place];
    if (array->base == nullptr) {
        array->base = (unsigned char *)emulator_alloc(bytes);
        array->bytes = bytes;
        shared_renew(array);
    }
    if (array->bytes != bytes)
        emulator_fail("a shared array changes its size");
    return array->base;
}

void *emulator_shared_dynamic(void)
{
    if (machine.dynamic.base == nullptr)
        emulator_fail("a launch without dynamic shared memory");
    return machine.dynamic.base;
}

/* Runs. */

static void check_limits(dim3 grid, dim3 block, size_t shared)
{
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535)
        emulator_fail("a grid beyond the limits");
    const size_t threads = (size_t)block.x * block.y * block.z;
    if (threads < 1 || threads > THREADS_MAX || threads % 32 != 0 || block.z > 64)
        emulator_fail("a block beyond the limits");
    if (shared > SHARED_MAX)
        emulator_fail("too much shared memory");
}

static void block_begin(dim3 block)
{
    machine.at_barrier = 0;
    machine.done = 0;
    for (size_t i = 0; i < machine.threads; i++) {
        const unsigned n = (unsigned)i;
        machine.fibers[i].state = READY;
        machine.fibers[i].index = { n % block.x, n / block.x % block.y, n / block.x / block.y };
    }
    for (struct warp &warp : machine.warps)
        warp.arrived = 0;
    for (auto &array : machine.shared)
        shared_renew(&array.second);
    shared_renew(&machine.dynamic);
}

static void block_run(const std::vector<size_t> &order)
{
    while (machine.done < machine.threads) {
        bool ran = false;
        for (size_t number : order) {
            if (machine.fibers[number].state != READY)
                continue;
            to_fiber(number);
            ran = true;
        }
        if (!ran)
            emulator_fail("threads wait for each other for ever");
    }
}

/* The threads of a block in the order of their warps, both shuffled. */
static std::vector<size_t> thread_order(void)
{
    std::vector<size_t> warps(machine.threads / 32), order;
    std::iota(warps.begin(), warps.end(), (size_t)0);
    std::shuffle(warps.begin(), warps.end(), machine.random);
    for (size_t warp : warps) {
        for (size_t lane = 0; lane < 32; lane++)
            order.push_back(warp * 32 + lane);
        std::shuffle(order.end() - 32, order.end(), machine.random);
    }
    return order;
}

static void shared_end(size_t dynamic)
{
    size_t sum = 0;
    for (auto &array : machine.shared) {
        sum += array.second.bytes;
        emulator_free(array.second.base);
    }
    machine.shared.clear();
    emulator_free(machine.dynamic.base);
    machine.dynamic = {};
    if (dynamic <= LAUNCH_SHARED_UNASKED && sum + dynamic > SHARED_STATIC)
        emulator_fail("shared memory that nobody asked for");
    if (sum > SHARED_STATIC || sum + dynamic > SHARED_MAX)
        emulator_fail("too much shared memory");
}

static emulator_taker *taker;

void emulator_set_taker(emulator_taker *to)
{
    taker = to;
}

enum status emulator_submit(void *stream, std::function<void()> run)
{
    if (taker != nullptr)
        return taker(stream, std::move(run));
    run();
    return ST_OK;
}

void emulator_run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &body)
{
    check_limits(grid, block, shared);
    machine.launches++;
    machine.threads = (size_t)block.x * block.y * block.z;
    machine.warps.resize(machine.threads / 32);
    if (machine.fibers.empty()) {
        machine.fibers.resize(THREADS_MAX);
        for (struct fiber &f : machine.fibers)
            fiber_init(&f);
    }
    machine.body = &body;
    if (shared > 0)
        machine.dynamic = { (unsigned char *)emulator_alloc(shared, 128), shared };
    gridDim = grid;
    blockDim = block;
    std::vector<size_t> blocks((size_t)grid.x * grid.y * grid.z);
    std::iota(blocks.begin(), blocks.end(), (size_t)0);
    std::shuffle(blocks.begin(), blocks.end(), machine.random);
    for (size_t number : blocks) {
        blockIdx = { (unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                     (unsigned)(number / grid.x / grid.y) };
        block_begin(block);
        block_run(thread_order());
        traffic_end_block();
    }
    traffic_end_launch();
    shared_end(shared);
}
