#include "client/print/usage.h"

#include <math.h>
#include <stdio.h>

#include "client/print/format.h"

static void put_nothing(char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "-");
}

/* ---- workers ---- */

void cell_worker_cores(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Worker *worker = row;
    if (worker->usage == NULL || !isfinite(worker->usage->cores)) {
        put_nothing(out, capacity);
    } else {
        (void)snprintf(out, capacity, "%.2f", worker->usage->cores);
    }
}

void cell_worker_memory(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__WorkerUsage *usage = ((const Cairn__V1__Worker *)row)->usage;
    char used[32], limit[32];
    if (usage == NULL) {
        put_nothing(out, capacity);
        return;
    }
    (void)format_bytes(usage->memory_bytes, used, sizeof(used));
    if (usage->memory_limit__case == CAIRN__V1__WORKER_USAGE__MEMORY_LIMIT__MEMORY_LIMIT_BYTES) {
        (void)snprintf(out, capacity, "%s of %s", used,
                       format_bytes(usage->memory_limit_bytes, limit, sizeof(limit)));
    } else {
        (void)snprintf(out, capacity, "%s", used);
    }
}

void cell_worker_sent(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Worker *worker = row;
    if (worker->sent__case == CAIRN__V1__WORKER__SENT__SENT_BYTES) {
        (void)format_bytes(worker->sent_bytes, out, capacity);
    } else {
        put_nothing(out, capacity);
    }
}

void cell_worker_received(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Worker *worker = row;
    if (worker->received__case == CAIRN__V1__WORKER__RECEIVED__RECEIVED_BYTES) {
        (void)format_bytes(worker->received_bytes, out, capacity);
    } else {
        put_nothing(out, capacity);
    }
}

void cell_worker_peak(const void *row, char *out, size_t capacity)
{
    static const char *const units[] = { "GFLOP/s", "TFLOP/s", "PFLOP/s" };
    const Cairn__V1__Worker *worker = row;
    double value = worker->peak_flops / 1e9;
    size_t unit = 0;
    if (worker->peak_flops__case != CAIRN__V1__WORKER__PEAK_FLOPS__PEAK_FLOPS) {
        put_nothing(out, capacity);
        return;
    }
    for (; value >= 999.95 && unit < 2; unit++)
        value /= 1000;
    (void)snprintf(out, capacity, "%.1f %s", value, units[unit]);
}

/* ---- nodes ---- */

void cell_node_cores(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)row)->usage;
    if (usage == NULL || !isfinite(usage->cores)) {
        put_nothing(out, capacity);
    } else {
        (void)snprintf(out, capacity, "%.1f/%u", usage->cores, usage->cores_count);
    }
}

void cell_node_memory(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)row)->usage;
    char used[32], all[32];
    if (usage == NULL || usage->memory_bytes == 0 ||
        usage->memory_available_bytes > usage->memory_bytes) {
        put_nothing(out, capacity);
        return;
    }
    (void)snprintf(
        out, capacity, "%s of %s",
        format_bytes(usage->memory_bytes - usage->memory_available_bytes, used, sizeof(used)),
        format_bytes(usage->memory_bytes, all, sizeof(all)));
}

static void put_rate(double bytes_per_s, char *out, size_t capacity)
{
    char bytes[32];
    if (!(bytes_per_s >= 0 && bytes_per_s < 1e18)) {
        put_nothing(out, capacity);
    } else {
        (void)snprintf(out, capacity, "%s/s",
                       format_bytes((uint64_t)bytes_per_s, bytes, sizeof(bytes)));
    }
}

void cell_node_received(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)row)->usage;
    put_rate(usage == NULL ? (double)NAN : usage->received_bytes_per_s, out, capacity);
}

void cell_node_sent(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__NodeUsage *usage = ((const Cairn__V1__Node *)row)->usage;
    put_rate(usage == NULL ? (double)NAN : usage->sent_bytes_per_s, out, capacity);
}

/* Writes the use of each GPU, one after the other; cut if there is no room for more. */
void cell_node_gpu_use(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Node *node = row;
    size_t used = 0;
    put_nothing(out, capacity);
    for (size_t i = 0; i < node->n_gpus && used < capacity; i++) {
        const Cairn__V1__Gpu *gpu = node->gpus[i];
        char use[32] = "-", power[32] = "";
        if (gpu->utilization__case == CAIRN__V1__GPU__UTILIZATION__UTILIZATION)
            (void)snprintf(use, sizeof(use), "%.0f %%", 100 * gpu->utilization);
        if (gpu->power__case == CAIRN__V1__GPU__POWER__POWER_WATTS)
            (void)snprintf(power, sizeof(power), " %.0f W", gpu->power_watts);
        const int size =
            snprintf(out + used, capacity - used, "%s%s%s", i == 0 ? "" : ", ", use, power);
        used += size > 0 ? (size_t)size : 0;
    }
}

/* ---- a job ---- */

char *format_mfu(const Cairn__V1__Job *job, char *out, size_t capacity)
{
    out[0] = '\0';
    if (job->mfu__case == CAIRN__V1__JOB__MFU__MFU && isfinite(job->mfu))
        (void)snprintf(out, capacity, "MFU %.1f %%", 100 * job->mfu);
    return out;
}
