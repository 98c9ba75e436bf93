#include "session/memory/budget.h"

#include "checkpoint/checkpoint.h"
#include "common/limits.h"
#include "session/copies/copy_file.h"

#define MIB (1024.0 * 1024.0)

static size_t writer_bytes(const struct session_demand *demand, uint32_t threads)
{
    const struct ckpt_writer_use use = {
        .threads = threads,
        .share_bytes = demand->share_bytes,
        .base_bytes = !demand->differs          ? 0
                      : demand->state_bytes > 0 ? demand->state_bytes
                                                : 1,
        .object = demand->object,
    };
    return ckpt_writer_bytes(&use);
}

/* A copy must not be overwritten before the next one is complete. */
static int files_least(const struct session_demand *demand)
{
    return (demand->every ? 2 : 1) + (demand->peers ? SESSION_PEER_FILES : 0);
}

static size_t bytes_of(const struct session_demand *demand, int files, uint32_t threads)
{
    return (size_t)files * copy_file_bytes(demand->share_bytes) +
           2 * (size_t)demand->peer_copies * copy_file_bytes(demand->peer_copy_bytes) +
           writer_bytes(demand, threads);
}

enum status session_budget(const struct session_demand *demand, struct session_budget *out)
{
    const int most = files_least(demand) + 1;
    struct session_budget budget = {
        .files = files_least(demand),
        .peer_copy_files = 2 * (int)demand->peer_copies,
        .file_bytes = copy_file_bytes(demand->share_bytes),
        .peer_copy_file_bytes = copy_file_bytes(demand->peer_copy_bytes),
    };
    budget.least = bytes_of(demand, budget.files, 0);
    if (demand->bytes_max != 0 && budget.least > demand->bytes_max) {
        *out = (struct session_budget){ .least = budget.least };
        return ST_FULL;
    }
    const size_t bound = demand->bytes_max != 0 ? demand->bytes_max : SIZE_MAX;
    while (budget.files < most && bytes_of(demand, budget.files + 1, 0) <= bound)
        budget.files++;
    while (budget.threads < demand->threads &&
           bytes_of(demand, budget.files, budget.threads + 1) <= bound)
        budget.threads++;
    budget.writer_bytes = writer_bytes(demand, budget.threads);
    budget.bytes = bytes_of(demand, budget.files, budget.threads);
    *out = budget;
    return ST_OK;
}

/* ---- of a generation ---- */

void session_do_without(enum session_lack lack, struct session_demand *demand)
{
    if (lack >= SESSION_LACK_PEERS) {
        demand->peers = false;
        demand->peer_copies = 0;
    }
    if (lack >= SESSION_LACK_EVERY)
        demand->every = false;
    if (lack >= SESSION_LACK_BOUND && demand->bytes_max != 0) {
        const size_t least = bytes_of(demand, files_least(demand), 0);
        demand->bytes_max = least > demand->bytes_max ? least : demand->bytes_max;
    }
}

size_t session_least(const struct session_demand *demands, uint32_t count, enum session_lack lack)
{
    size_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct session_demand demand = demands[i];
        session_do_without(lack < SESSION_LACK_BOUND ? lack : SESSION_LACK_EVERY, &demand);
        const size_t least = bytes_of(&demand, files_least(&demand), 0);
        most = least > most ? least : most;
    }
    return most;
}

enum session_lack session_lack_of(const struct session_demand *demands, uint32_t count)
{
    enum session_lack lack = SESSION_LACK_NOTHING;
    const size_t bound = count > 0 ? demands[0].bytes_max : 0;
    while (bound != 0 && lack < SESSION_LACK_BOUND && session_least(demands, count, lack) > bound)
        lack++;
    return lack;
}

void session_lack_describe(enum session_lack lack, size_t least, uint32_t workers,
                           struct reason *out)
{
    static const char *const kinds[] = { "", "copies at other nodes", "copies between checkpoints",
                                         "a checkpoint" };
    reason_set(out, "with %u worker%s one needs %.1f MiB of checkpoint.memory for %s: %s", workers,
               workers == 1 ? "" : "s", (double)least / MIB, kinds[lack],
               lack == SESSION_LACK_BOUND ? "it takes more than is allowed" : "there are none");
}

enum status session_bound_check(const struct session_demand *demands, uint32_t count,
                                struct reason *reason)
{
    const enum session_lack most = SESSION_LACK_PEERS;
    if (session_lack_of(demands, count) <= most)
        return ST_OK;
    reason_set(reason,
               "checkpoint.memory: a worker needs %.1f MiB at least to save its share of the state",
               (double)session_least(demands, count, most) / MIB);
    return ST_CONFIG;
}

enum status session_share_check(uint64_t share_bytes, uint64_t state_bytes, struct reason *reason)
{
    const double gib = 1024.0 * 1024.0 * 1024.0;
    const uint64_t most = LIMIT_SHARE_BYTES, workers = state_bytes / most + 1;
    if (share_bytes <= most)
        return ST_OK;
    reason_set(reason,
               "workers.count: a worker's share of the training state is %.2f GiB of %.2f GiB, but "
               "one of more than %.2f GiB can't be saved; use at least %llu workers",
               (double)share_bytes / gib, (double)state_bytes / gib, (double)most / gib,
               (unsigned long long)workers);
    return ST_CONFIG;
}
