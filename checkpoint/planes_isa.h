/* The versions of the loops for one instruction set; NULL where this machine lacks it. */
#pragma once

#include "checkpoint/planes.h"

#ifdef __x86_64__
const struct plane_loops *ckpt_loops_avx2(void);
const struct plane_loops *ckpt_loops_avx512bw(void);   /* F, BW, DQ, VL */
const struct plane_loops *ckpt_loops_avx512vbmi(void); /* likewise, VBMI, VBMI2 */
#endif
