#include "trainer/worker/agree.h"

#include <string.h>

enum status agree_exchange(struct worker *worker, const char *name, const struct rank_words *mine,
                           const struct rank_words **out)
{
    struct worker *w = worker;
    const uint32_t rank = w->options.rank;
    *out = mine;
    if (w->options.size == 1)
        return ST_OK;
    memcpy(w->agreement.segments[rank].data, mine, sizeof(*mine));
    progress_collective_begin(w->options.progress, name);
    enum status st =
        gather_exchange(&w->agreement, &w->device, w->comm, rank, WORKER_COMM_TIMEOUT_MS);
    if (st != ST_OK)
        return st;
    progress_collective_end(w->options.progress, name);
    *out = (const void *)w->agreement.data;
    return ST_OK;
}
