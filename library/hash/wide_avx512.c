/* XXH3 compiled for AVX512; choose.c calls it where the machine has that. */
#define XXH_INLINE_ALL
#include "library/hash/wide.h"

XXH64_hash_t wide_avx512_64(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

XXH128_hash_t wide_avx512_128(const void *data, size_t size)
{
    return XXH3_128bits(data, size);
}
