#include "tests/gpu/emulator/traffic.h"

#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "tests/gpu/emulator/emulator.h"

#define SECTOR_BYTES 32
#define WORD_BYTES   4
#define THREADS_MAX  1024

typedef std::tuple<enum traffic_kind, unsigned, unsigned> instruction; /* of a warp, its n-th */

static struct {
    bool counts;
    struct traffic sum;
    unsigned touched[TRAFFIC_KINDS][THREADS_MAX];       /* so far, by a thread of the block */
    std::map<instruction, std::set<uintptr_t>> sectors; /* of the block */
    std::set<uintptr_t> last[TRAFFIC_KINDS];            /* words, of the launch */
} state;

void traffic_begin(void)
{
    state.counts = true;
    state.sum = {};
}

struct traffic traffic_end(void)
{
    state.counts = false;
    return state.sum;
}

void traffic_touch(enum traffic_kind kind, const void *place, size_t bytes, bool last)
{
    if (!state.counts)
        return;
    const uintptr_t at = (uintptr_t)place;
    const unsigned thread = emulator_thread(), n = state.touched[kind][thread]++;
    std::set<uintptr_t> *sectors = &state.sectors[{ kind, thread / 32, n }];
    for (uintptr_t s = at / SECTOR_BYTES; s <= (at + bytes - 1) / SECTOR_BYTES; s++)
        sectors->insert(s);
    *(kind == TRAFFIC_LOAD ? &state.sum.loaded_bytes : &state.sum.stored_bytes) += bytes;
    for (uintptr_t word = at / WORD_BYTES; word <= (at + bytes - 1) / WORD_BYTES; word++) {
        state.sum.touched_again += state.last[kind].count(word);
        if (last)
            state.last[kind].insert(word);
    }
    if (last)
        state.sum.streamed_bytes += bytes;
}

void traffic_end_block(void)
{
    if (!state.counts)
        return;
    for (const auto &done : state.sectors) {
        const bool loads = std::get<0>(done.first) == TRAFFIC_LOAD;
        *(loads ? &state.sum.loaded_sectors : &state.sum.stored_sectors) += done.second.size();
    }
    state.sectors.clear();
    memset(state.touched, 0, sizeof(state.touched));
}

void traffic_end_launch(void)
{
    for (auto &places : state.last)
        places.clear();
}
