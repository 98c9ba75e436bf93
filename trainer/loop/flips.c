#include "trainer/loop/flips.h"

#include "common/fault.h"

void flip_gradient(const struct worker *worker, float *lane)
{
    const size_t begin = worker->bucket_begin[worker->bucket_count - 1];
    const size_t end = worker->layout.loss_at;
    if (begin < end && worker->device.table->host_memory)
        fault_flip("trainer.gradient", lane + begin, end - begin);
}

void flip_loss(const struct worker *worker, float *lane)
{
    if (worker->device.table->host_memory)
        fault_flip("trainer.loss", &lane[worker->layout.loss_at], 1);
}

/* Flips a bit of a buffer of the training state, which is as large as the parameters. A job without
 * it has nothing to flip. */
static void flip_buffer(struct worker *worker, const char *point, const char *buffer)
{
    const bool may = worker->device.table->host_memory && worker->held == NULL;
    float *words = may ? optimizer_buffer(worker->optimizer, buffer) : NULL;
    if (words != NULL)
        fault_flip(point, words, worker->layout.param_count);
}

void flip_state(struct worker *worker)
{
    flip_buffer(worker, "trainer.weight", "parameters");
    flip_buffer(worker, "trainer.moment", "momentum");
}

void flip_snapshot(struct worker *worker)
{
    flip_buffer(worker, "trainer.snapshot", "parameters");
}
