#include "comm/sum.h"

#ifdef __SSE__
#include <xmmintrin.h>

#define FLUSH_MODES 0x8040u /* MXCSR: flush to zero, denormals are zero */
#endif

/* The loop isn't inlined: the additions must stay between the changes of mode. */
static void __attribute__((noinline))
add_loop(float *out, const float *a, const float *b, size_t count)
{
    /* Element i depends on element i only, also where out is a or b. */
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

void sum_f32(float *out, const float *a, const float *b, size_t count)
{
#ifdef __SSE__
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH_MODES);
    add_loop(out, a, b, count);
    _mm_setcsr(mode);
#else
    add_loop(out, a, b, count);
#endif
}
