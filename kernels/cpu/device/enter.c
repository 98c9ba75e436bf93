/*
 * What every entry that computes does first on its thread.
 *
 * Denormals are flushed to zero and treated as zero. Threads that OpenMP starts inherit the mode
 * from the thread that starts them.
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
    if (omp_get_max_threads() != backend->threads)
        omp_set_num_threads(backend->threads);
}
