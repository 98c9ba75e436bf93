#include "client/print/progress.h"

#include <string.h>

void progress_init(struct progress *progress)
{
    memset(progress, 0, sizeof(*progress));
}

static void add_loss(struct progress *progress, uint64_t step, float loss)
{
    while (progress->loss_count > 0 && progress->loss_steps[progress->loss_count - 1] >= step)
        progress->loss_count--;
    if (progress->loss_count == PROGRESS_LOSSES) {
        size_t half = PROGRESS_LOSSES / 2;
        memmove(progress->losses, progress->losses + half, half * sizeof(progress->losses[0]));
        memmove(progress->loss_steps, progress->loss_steps + half,
                half * sizeof(progress->loss_steps[0]));
        progress->loss_count = half;
    }
    progress->losses[progress->loss_count] = loss;
    progress->loss_steps[progress->loss_count++] = step;
}

void progress_add(struct progress *progress, uint32_t generation, uint64_t step, float loss)
{
    if (generation < progress->generation)
        return;
    progress->generation = generation;
    add_loss(progress, step, loss);
}
