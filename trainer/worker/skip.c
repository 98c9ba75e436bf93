/* The skip list of a worker: steps that are not trained on. */
#include <stdlib.h>
#include <string.h>

#include "trainer/worker/worker.h"

#define SKIP_MAX 4096

enum status worker_skip_add(struct worker *worker, const uint64_t *steps, size_t count)
{
    struct worker *w = worker;
    for (size_t i = 0; i < count; i++) {
        if (worker_skip_has(w, steps[i]))
            continue;
        if (w->skip_count == SKIP_MAX)
            return ST_FULL;
        uint64_t *more = realloc(w->skip, (w->skip_count + 1) * sizeof(*more));
        if (more == NULL)
            return ST_NO_MEMORY;
        w->skip = more;
        size_t at = worker_skip_before(w, steps[i]);
        memmove(more + at + 1, more + at, (w->skip_count - at) * sizeof(*more));
        more[at] = steps[i];
        w->skip_count++;
    }
    return ST_OK;
}

void worker_skip_clear(struct worker *worker)
{
    worker->skip_count = 0;
}

bool worker_skip_has(const struct worker *worker, uint64_t step)
{
    size_t at = worker_skip_before(worker, step);
    return at < worker->skip_count && worker->skip[at] == step;
}

size_t worker_skip_before(const struct worker *worker, uint64_t step)
{
    size_t n = 0;
    while (n < worker->skip_count && worker->skip[n] < step)
        n++;
    return n;
}
