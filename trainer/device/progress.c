#include "trainer/device/progress.h"

#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"

static const char *phase_name(enum phase phase)
{
    static const char *const names[PHASE_COUNT] = {
        [PHASE_FORMING] = "forming",
        [PHASE_RESTORE] = "restore",
        [PHASE_DATA] = "data",
        [PHASE_FORWARD] = "forward",
        [PHASE_BACKWARD] = "backward",
        [PHASE_REDUCE] = "reduce",
        [PHASE_UPDATE] = "update",
        [PHASE_SAVE] = "save",
        [PHASE_EVALUATION] = "evaluation",
        [PHASE_FINISHING] = "finishing",
        [PHASE_AUDIT] = "audit",
        [PHASE_SPARE] = "spare",
    };
    CHECK(phase < PHASE_COUNT);
    return names[phase];
}

void progress_init(struct progress *progress, struct session *session, struct flight *flight,
                   uint32_t rank, uint32_t generation)
{
    progress->session = session;
    progress->flight = flight;
    progress->rank = rank;
    progress->generation = generation;
    progress->phase = PHASE_FORMING;
    progress->collective = 0;
    progress_clear(progress);
    atomic_store(&progress->stopped, false);
    progress_step(progress, 0);
    progress_phase(progress, PHASE_FORMING);
}

void progress_rank(struct progress *progress, uint32_t rank)
{
    progress->rank = rank;
    progress_step(progress, progress->step);
}

static void tell(const struct progress *progress, const char *where)
{
    flight_mark(progress->flight, FLIGHT_PHASE, progress->step, 0, where);
    if (progress->session != NULL)
        session_mark(progress->session, progress->step, where);
}

void progress_phase(struct progress *progress, enum phase phase)
{
    int64_t now = clock_mono_ns();
    progress->spent_ns[progress->phase] += now - progress->since_ns;
    progress->since_ns = now;
    progress->phase = phase;
    tell(progress, phase_name(phase));
}

void progress_pipe(struct progress *progress, bool inside)
{
    tell(progress, inside ? "pipe" : phase_name(progress->phase));
}

void progress_step(struct progress *progress, uint64_t step)
{
    progress->step = step;
    fault_context((int64_t)progress->rank, (int64_t)progress->generation, (int64_t)step);
}

void progress_clear(struct progress *progress)
{
    memset(progress->spent_ns, 0, sizeof(progress->spent_ns));
    progress->since_ns = clock_mono_ns();
}

double progress_ms(const struct progress *progress, enum phase phase)
{
    return (double)progress->spent_ns[phase] / 1e6;
}

int64_t progress_lanes_us(const struct progress *progress)
{
    return (progress->spent_ns[PHASE_DATA] + progress->spent_ns[PHASE_FORWARD] +
            progress->spent_ns[PHASE_BACKWARD]) /
           1000;
}

void progress_tick(void *progress)
{
    struct progress *p = progress;
    (void)atomic_fetch_add_explicit(&p->ticks, 1, memory_order_relaxed);
}

void progress_stop(struct progress *progress)
{
    atomic_store(&progress->stopped, true);
}

bool progress_stopped(const struct progress *progress)
{
    return atomic_load(&progress->stopped);
}

void progress_collective_begin(struct progress *progress, const char *name)
{
    progress->collective++;
    flight_mark(progress->flight, FLIGHT_COLLECTIVE_BEGIN, progress->step, progress->collective,
                name);
    if (progress->session != NULL)
        session_mark_collective(progress->session, name, true);
}

void progress_collective_end(struct progress *progress, const char *name)
{
    flight_mark(progress->flight, FLIGHT_COLLECTIVE_END, progress->step, progress->collective,
                name);
    if (progress->session != NULL)
        session_mark_collective(progress->session, name, false);
}

void progress_exchange(void *progress, bool inside)
{
    const struct progress *p = progress;
    if (p->session != NULL)
        session_mark_exchange(p->session, inside);
}
