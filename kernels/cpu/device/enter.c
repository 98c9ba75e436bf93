/*
 * First step of every entry that computes, on its thread.
 *
 * Denormals are flushed to zero and treated as zero. Threads that OpenMP starts inherit the mode
 * from the thread that starts them.
 *
 * oneDNN cuts its work for the number of threads that was asked for and never looks how many came:
 * what the absent ones have is not computed at all. So whatever makes teams smaller is switched off
 * here, where that can be done, and the team is counted when the backend is opened.
 */
#include <immintrin.h>
#include <omp.h>

#include "kernels/cpu/device/cpu.h"

#define FLUSH_MODES (0x8000u | 0x0040u) /* MXCSR: flush to zero, denormals are zero */

void cpu_enter(const struct backend *backend)
{
    unsigned mode = _mm_getcsr();
    if ((mode & FLUSH_MODES) != FLUSH_MODES)
        _mm_setcsr(mode | FLUSH_MODES);
    if (omp_get_dynamic())
        omp_set_dynamic(0);
    if (omp_get_max_active_levels() < 1)
        omp_set_max_active_levels(1);
    if (omp_get_max_threads() != backend->threads)
        omp_set_num_threads(backend->threads);
}

int cpu_team(const struct backend *backend)
{
    int count = 0;
    cpu_enter(backend);
#pragma omp parallel num_threads(backend->threads)
    if (omp_get_thread_num() == 0)
        count = omp_get_num_threads();
    return count;
}
