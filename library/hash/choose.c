/* What the archives of other libraries lack: the names that checkpoint/format/hash.c calls by way of
 * xxHash's own header, and one of jansson's. */
#include <stdbool.h>
#include <xxh_x86dispatch.h>

#include "library/hash/wide.h"

#undef XXH3_64bits
#undef XXH3_128bits
#undef XXH3_128bits_update

enum vectors { SSE2, AVX2, AVX512 };

static enum vectors vectors(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return AVX512;
    return __builtin_cpu_supports("avx2") ? AVX2 : SSE2;
}

XXH64_hash_t XXH3_64bits_dispatch(const void *input, size_t len)
{
    switch (vectors()) {
    case AVX512:
        return wide_avx512_64(input, len);
    case AVX2:
        return wide_avx2_64(input, len);
    case SSE2:
        break;
    }
    return XXH3_64bits(input, len);
}

XXH128_hash_t XXH3_128bits_dispatch(const void *input, size_t len)
{
    switch (vectors()) {
    case AVX512:
        return wide_avx512_128(input, len);
    case AVX2:
        return wide_avx2_128(input, len);
    case SSE2:
        break;
    }
    return XXH3_128bits(input, len);
}

XXH_errorcode XXH3_128bits_update_dispatch(XXH3_state_t *state, const void *input, size_t len)
{
    return XXH3_128bits_update(state, input, len);
}

/* ---- jansson's archive ---- */

/* What json_loadf compares a file with, in place of stdin: nobody here calls it. It stands in this
 * file because every module that links libcairn.a needs this one. */
extern void *library_no_stdin __attribute__((visibility("hidden")));
void *library_no_stdin;
