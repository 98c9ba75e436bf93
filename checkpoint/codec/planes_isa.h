/*
 * Declarations that the versions of the loops share: each version's table, the names of instruction
 * sets, and the loops that two tables have. For planes_*.c alone; all others ask planes_choose.h.
 */
#pragma once

#include "checkpoint/codec/planes.h"

/* The table of the definition itself. */
const struct plane_loops *ckpt_loops_plain(void);

#ifdef __x86_64__
#define BW_ISA "avx512f,avx512bw,avx512dq,avx512vl"

#define AVX2 __attribute__((target("avx2")))
#define BW   __attribute__((target(BW_ISA)))
#define VBMI __attribute__((target(BW_ISA ",avx512vbmi,avx512vbmi2")))

#define BW_INLINE   static inline __attribute__((always_inline)) BW
#define VBMI_INLINE static inline __attribute__((always_inline)) VBMI

/* A version's table; NULL where this machine lacks it. */
const struct plane_loops *ckpt_loops_avx2(void);
const struct plane_loops *ckpt_loops_avx512bw(void);   /* F, BW, DQ, VL */
const struct plane_loops *ckpt_loops_avx512vbmi(void); /* likewise, VBMI, VBMI2 */

/* Loops of AVX2's table that avx512bw's table has as well, as in struct plane_loops. */
void ckpt_pack7_avx2(const uint8_t *plane, size_t count, uint8_t *out);
void ckpt_unpack7_avx2(const uint8_t *packed, size_t count, uint8_t *out);
size_t ckpt_nibbles_avx2(const uint8_t *bytes, size_t count, uint8_t top, uint8_t *codes,
                         uint8_t *escapes);
bool ckpt_unnibbles_avx2(const uint8_t *codes, const uint8_t *escapes, size_t escape_count,
                         size_t count, uint8_t top, uint8_t *bytes);

/* Loops of AVX-512's tables, in a file of their own. ckpt_count_avx512 needs VBMI2, so only one
 * table has it. */
void ckpt_count_avx512(const uint8_t *bytes, size_t count, uint32_t seen[256]);
void ckpt_put_codes_avx512(const struct huffman_code *code, const uint8_t *bytes, size_t count,
                           uint8_t *out, size_t size[4]);
#endif
