#include "tests/gpu/emulator/emulated_mma.h"

#include <deque>
#include <utility>
#include <vector>

#define THREADS_MAX 1024

struct copy {
    shared_address to;
    const void *from;
    size_t bytes;
    bool there;
};

/* The state of one thread of the block. */
struct copies {
    std::vector<struct copy> open; /* not committed */
    std::deque<std::vector<struct copy>> groups;
};

static struct copies copies[THREADS_MAX];
static bool copies_early;
static size_t bank_conflicts;

void emulated_copies_early(bool early)
{
    copies_early = early;
}

size_t emulated_copies_left(void)
{
    size_t left = 0;
    for (struct copies &own : copies) {
        left += own.open.size();
        for (const auto &group : own.groups)
            left += group.size();
        own.open.clear();
        own.groups.clear();
    }
    return left;
}

size_t emulated_bank_conflicts(void)
{
    return std::exchange(bank_conflicts, (size_t)0);
}

static void copy_now(const struct copy &copy)
{
    if (copy.there)
        memcpy(copy.to, copy.from, copy.bytes);
    else
        memset(copy.to, 0, copy.bytes);
}

void emulated_copy(shared_address to, const void *from, size_t bytes, bool there)
{
    if ((uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0)
        emulator_fail("a misaligned copy");
    const struct copy copy = { to, from, bytes, there };
    copies[threadIdx.x].open.push_back(copy);
    if (copies_early)
        copy_now(copy);
}

void copies_commit(void)
{
    struct copies &own = copies[threadIdx.x];
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}

void emulated_copies_wait(size_t left)
{
    struct copies &own = copies[threadIdx.x];
    while (own.groups.size() > left) {
        if (!copies_early) {
            for (const struct copy &copy : own.groups.front())
                copy_now(copy);
        }
        own.groups.pop_front();
    }
}

/* Word i of a lane's row g of matrix i, or, transposed, of its column g. */
static void matrices(uint32_t out[4], shared_address row, bool transposed)
{
    shared_address rows[32];
    const unsigned lane = emulator_lane(), g = lane / 4, t = lane % 4;
    if ((uintptr_t)row % 16 != 0)
        emulator_fail("a misaligned row of a matrix");
    emulator_exchange(~0u, &row, sizeof(row), rows);
    for (unsigned i = 0; i < 4; i++) {
        uint16_t half[2];
        for (unsigned j = 0; j < 2; j++) {
            const unsigned down = transposed ? 2 * t + j : g, along = transposed ? g : 2 * t + j;
            memcpy(&half[j], rows[i * 8 + down] + 2 * along, sizeof(half[j]));
        }
        out[i] = half[0] | (uint32_t)half[1] << 16;
    }
    unsigned banks[4] = { 0, 0, 0, 0 };
    for (unsigned i = 0; lane == 0 && i < 32; i++) {
        const unsigned bit = 1u << (uintptr_t)rows[i] / 16 % 8;
        bank_conflicts += (banks[i / 8] & bit) != 0;
        banks[i / 8] |= bit;
    }
}

void load_matrices(uint32_t out[4], shared_address row)
{
    matrices(out, row, false);
}

void load_matrices_transposed(uint32_t out[4], shared_address row)
{
    matrices(out, row, true);
}

struct operands {
    uint32_t a[4], b[2];
};

/* Element (row, k) of a: its lane and word. */
static uint32_t element_a(const struct operands all[32], unsigned row, unsigned k)
{
    const uint32_t word = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
    return k % 2 != 0 ? word >> 16 : word & 0xffff;
}

static uint32_t element_b(const struct operands all[32], unsigned k, unsigned column)
{
    const uint32_t word = all[column * 4 + k % 8 / 2].b[k / 8];
    return k % 2 != 0 ? word >> 16 : word & 0xffff;
}

void emulated_mma(float c[4], const uint32_t a[4], const uint32_t b[2],
                  float (*to_float)(uint32_t half))
{
    struct operands mine, all[32];
    const unsigned lane = emulator_lane();
    memcpy(mine.a, a, sizeof(mine.a));
    memcpy(mine.b, b, sizeof(mine.b));
    emulator_exchange(~0u, &mine, sizeof(mine), all);
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = 0;
        for (unsigned k = 0; k < 16; k++)
            sum += (double)to_float(element_a(all, row, k)) * to_float(element_b(all, k, column));
        c[i] = (float)(c[i] + sum);
    }
}
