#include "comm/sum.h"

void sum_f32(float *out, const float *a, const float *b, size_t count)
{
    /* Element i depends on element i only, also where out is a or b. */
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}
