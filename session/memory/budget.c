#include "session/memory/budget.h"

#include "checkpoint/checkpoint.h"
#include "common/limits.h"
#include "session/copies/copy_file.h"

static size_t writer_bytes(const struct session_wish *wish, uint32_t threads)
{
    const struct ckpt_writer_use use = {
        .threads = threads,
        .share_bytes = wish->share_bytes,
        .base_bytes = !wish->differs          ? 0
                      : wish->state_bytes > 0 ? wish->state_bytes
                                              : 1,
        .object = wish->object,
    };
    return ckpt_writer_bytes(&use);
}

static size_t bytes_of(const struct session_wish *wish, int files, uint32_t threads)
{
    return (size_t)files * copy_file_bytes(wish->share_bytes) +
           2 * (size_t)wish->wards * copy_file_bytes(wish->ward_bytes) +
           writer_bytes(wish, threads);
}

enum status session_budget(const struct session_wish *wish, struct session_budget *out)
{
    const int away = wish->peers ? SESSION_PEER_FILES : 0;
    const int most = (wish->every ? 3 : 2) + away;
    struct session_budget budget = {
        .files = (wish->every ? 2 : 1) + away,
        .ward_files = 2 * (int)wish->wards,
        .file_bytes = copy_file_bytes(wish->share_bytes),
        .ward_file_bytes = copy_file_bytes(wish->ward_bytes),
    };
    budget.least = bytes_of(wish, budget.files, 0);
    if (wish->bytes_max != 0 && budget.least > wish->bytes_max) {
        *out = (struct session_budget){ .least = budget.least };
        return ST_FULL;
    }
    const size_t bound = wish->bytes_max != 0 ? wish->bytes_max : SIZE_MAX;
    while (budget.files < most && bytes_of(wish, budget.files + 1, 0) <= bound)
        budget.files++;
    while (budget.threads < wish->threads &&
           bytes_of(wish, budget.files, budget.threads + 1) <= bound)
        budget.threads++;
    budget.writer_bytes = writer_bytes(wish, budget.threads);
    budget.bytes = bytes_of(wish, budget.files, budget.threads);
    *out = budget;
    return ST_OK;
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
