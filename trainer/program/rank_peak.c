/* The most that a rank could compute: what the operations of its job's steps are held against. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "trainer/peak/measure.h"
#include "trainer/program/rank_parts.h"

#define DEVICE_TEXT 512

/* Processors that this process may run on, as bits of their numbers, hexadecimal, lowest first. */
static uint32_t read_cores(char *out, size_t capacity)
{
    cpu_set_t set;
    uint32_t count = 0;
    out[0] = '\0';
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 0;
    size_t size = 0, used = 0;
    for (size_t digit = 0; digit < 2 * sizeof(set) && size + 1 < capacity; digit++) {
        unsigned bits = 0;
        for (size_t i = 0; i < 4; i++)
            bits |= CPU_ISSET(4 * digit + i, &set) ? 1U << i : 0;
        out[size++] = "0123456789abcdef"[bits];
        used = bits != 0 ? size : used;
        count += (uint32_t)__builtin_popcount(bits);
    }
    out[used] = '\0';
    return count;
}

/* Workers of this job on this rank's node. */
static uint32_t workers_here(const struct session_assignment *a)
{
    uint32_t count = 0;
    if (a->nodes == NULL)
        return 1;
    for (uint32_t i = 0; i < a->size; i++)
        count += strcmp(a->nodes[i], a->nodes[a->rank]) == 0;
    return count;
}

/* Writes what the peak depends on, as a line. *share: the part of the peak that this worker can
 * have where workers on the machine have more threads than there are processors. false: it can't
 * tell. */
static bool describe(const struct rank *r, char key[PEAK_KEY_BYTES], double *share)
{
    static const char *const maths[] = { "fp32", "tf32", "bf16", "fp16" };
    const struct worker *w = r->worker;
    const uint32_t threads = (uint32_t)r->job->workers.threads;
    const uint32_t wanted = workers_here(&r->assignment) * threads;
    char device[DEVICE_TEXT], cores[2 * sizeof(cpu_set_t) + 1];
    const uint32_t core_count = read_cores(cores, sizeof(cores));
    if (device_text(&w->device, device, sizeof(device)) != ST_OK)
        return false;
    const bool host = w->device.table->host_memory;
    *share = host && core_count > 0 && wanted > core_count ? (double)core_count / wanted : 1;
    const int size =
        snprintf(key, PEAK_KEY_BYTES, "version %s, %s, %u threads on %s, %s", CAIRN_VERSION,
                 maths[w->settings.math], host ? threads : 0, host ? cores : "", device);
    return size > 0 && size < PEAK_KEY_BYTES;
}

/* Nothing waits yet that ran before. (Where nothing is known, a start from the seed may measure,
 * too: what failed had finished no step that counts.) */
static bool may_measure(const struct rank *r, bool known)
{
    const struct session_assignment *a = &r->assignment;
    const bool seed = !rank_is_live(r) && a->memory.generation == 0 && a->restore[0] == '\0';
    return a->generation == 1 || (seed && !known);
}

static void measure(struct rank *r, const struct peak_place *place)
{
    const struct device *device = &r->worker->device;
    const struct peak_options options = { .table = device->table,
                                          .ordinal = device->ordinal < 0 ? 0 : device->ordinal,
                                          .threads = (int)r->job->workers.threads,
                                          .math = r->worker->settings.math };
    double flops = 0;
    const int64_t begin_ms = clock_mono_ms(clock_system());
    enum status st = peak_measure(&options, &flops);
    if (st != ST_OK) {
        LOG_WARN(r->log, "the most that could be computed here can't be measured: %s, ignoring",
                 status_string(st));
        return;
    }
    LOG_DEBUG(r->log, "its processors could compute %.1f GFLOP/s at most, as measured in %lld ms",
              flops / 1e9, (long long)(clock_mono_ms(clock_system()) - begin_ms));
    if (flops <= r->peak.flops)
        return; /* something disturbed it */
    r->peak.flops = flops;
    st = peak_keep(place, flops);
    if (st != ST_OK) {
        LOG_WARN(r->log, "%s: the measured peak isn't kept: %s, ignoring", place->folder,
                 status_string(st));
    }
}

double rank_peak_flops(struct rank *r)
{
    char key[PEAK_KEY_BYTES], call[IO_CALL];
    double share = 1;
    if (!describe(r, key, &share))
        return 0;
    (void)snprintf(call, sizeof(call), "%ld", (long)getpid());
    struct io io = *io_system();
    io.call = call; /* others on this node may keep theirs at the same time */
    const struct peak_place place = { .io = &io, .folder = r->options->peaks, .key = key };
    if (strcmp(key, r->peak.key) != 0) {
        memcpy(r->peak.key, key, sizeof(key));
        r->peak.flops = 0;
        (void)!peak_find(&place, &r->peak.flops); /* not found: not known */
    }
    if (may_measure(r, r->peak.flops > 0))
        measure(r, &place);
    return r->peak.flops * share;
}
