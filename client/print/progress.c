#include "client/print/progress.h"

#include <math.h>
#include <string.h>

#include "common/check.h"

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

void progress_add(struct progress *progress, uint32_t generation, uint64_t step, float loss,
                  int64_t wall_ms)
{
    CHECK(progress->window_next < PROGRESS_WINDOW);
    CHECK(progress->window_count <= PROGRESS_WINDOW);
    if (generation < progress->generation)
        return;
    if (generation > progress->generation) {
        progress->generation = generation;
        progress->attempt_steps = 0;
        progress->window_count = progress->window_next = 0;
    }
    add_loss(progress, step, loss);
    progress->attempt_steps++;
    if (progress->attempt_steps <= PROGRESS_SKIP)
        return;
    progress->window[progress->window_next].step = step;
    progress->window[progress->window_next].wall_ms = wall_ms;
    progress->window_next = (progress->window_next + 1) % PROGRESS_WINDOW;
    if (progress->window_count < PROGRESS_WINDOW)
        progress->window_count++;
}

double progress_eta(const struct progress *progress, uint64_t total_steps)
{
    if (progress->window_count < PROGRESS_LEAST || total_steps == 0)
        return NAN;
    size_t newest = (progress->window_next + PROGRESS_WINDOW - 1) % PROGRESS_WINDOW;
    size_t oldest =
        (progress->window_next + PROGRESS_WINDOW - progress->window_count) % PROGRESS_WINDOW;
    uint64_t step = progress->window[newest].step;
    int64_t ms = progress->window[newest].wall_ms - progress->window[oldest].wall_ms;
    if (step <= progress->window[oldest].step || ms < 0)
        return NAN;
    if (step >= total_steps)
        return 0;
    double per_step = (double)ms / 1e3 / (double)(step - progress->window[oldest].step);
    return per_step * (double)(total_steps - step);
}
