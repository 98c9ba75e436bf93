/* The versions of the loops for one instruction set; NULL where this machine lacks it. */
#pragma once

#include "checkpoint/planes.h"

#ifdef __x86_64__
const struct plane_loops *ckpt_loops_avx2(void);
const struct plane_loops *ckpt_loops_avx512bw(void);   /* F, BW, DQ, VL */
const struct plane_loops *ckpt_loops_avx512vbmi(void); /* likewise, VBMI, VBMI2 */

/* Of the latter two tables; as in struct plane_loops. The first needs VBMI2. */
void ckpt_count_avx512(const uint8_t *bytes, size_t count, uint32_t seen[256]);
void ckpt_put_codes_avx512(const struct huffman_code *code, const uint8_t *bytes, size_t count,
                           uint8_t *out, size_t size[4]);
#endif
