/*
 * XXH3 by the widest vectors that the machine has, for libcairn: Debian's archive of xxHash lacks
 * what its shared library has under these names. The hashes are the same with any vectors.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>
#include <xxhash.h>

XXH64_hash_t wide_avx2_64(const void *data, size_t size);
XXH128_hash_t wide_avx2_128(const void *data, size_t size);
XXH64_hash_t wide_avx512_64(const void *data, size_t size);
XXH128_hash_t wide_avx512_128(const void *data, size_t size);
