#include "trainer/worker/progress.h"

#include <string.h>

#include "common/clock.h"
#include "common/fault.h"

const char *phase_name(enum phase phase)
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
    };
    return names[phase];
}

void marks_init(struct marks *marks, struct session *session, struct flight *flight, uint32_t rank,
                uint32_t generation)
{
    *marks = (struct marks){ .session = session,
                             .flight = flight,
                             .rank = rank,
                             .generation = generation,
                             .since_ns = clock_mono_ns() };
    marks_step(marks, 0);
    marks_phase(marks, PHASE_FORMING);
}

void marks_phase(struct marks *marks, enum phase phase)
{
    int64_t now = clock_mono_ns();
    marks->spent_ns[marks->phase] += now - marks->since_ns;
    marks->since_ns = now;
    marks->phase = phase;
    flight_mark(marks->flight, FLIGHT_PHASE, marks->step, 0, phase_name(phase));
    if (marks->session != NULL)
        session_mark(marks->session, marks->step, phase_name(phase));
}

void marks_step(struct marks *marks, uint64_t step)
{
    marks->step = step;
    fault_context((int64_t)marks->rank, (int64_t)marks->generation, (int64_t)step);
}

void marks_clear(struct marks *marks)
{
    memset(marks->spent_ns, 0, sizeof(marks->spent_ns));
    marks->since_ns = clock_mono_ns();
}

double marks_ms(const struct marks *marks, enum phase phase)
{
    return (double)marks->spent_ns[phase] / 1e6;
}

void marks_tick(void *marks)
{
    struct marks *m = marks;
    if (m->session != NULL)
        session_tick(m->session);
}

void marks_collective_begin(struct marks *marks, const char *name)
{
    marks->collective++;
    flight_mark(marks->flight, FLIGHT_COLLECTIVE_BEGIN, marks->step, marks->collective, name);
}

void marks_collective_end(struct marks *marks, const char *name)
{
    flight_mark(marks->flight, FLIGHT_COLLECTIVE_END, marks->step, marks->collective, name);
}
