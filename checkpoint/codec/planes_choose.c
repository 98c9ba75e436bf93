#include "checkpoint/codec/planes_choose.h"

#include "checkpoint/codec/planes_isa.h"

const struct plane_loops *ckpt_loops_at(size_t i)
{
    const struct plane_loops *all[] = {
        ckpt_loops_plain(),
#ifdef __x86_64__
        ckpt_loops_avx2(),
        ckpt_loops_avx512bw(),
        ckpt_loops_avx512vbmi(),
#endif
    };
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        if (all[k] != NULL && i-- == 0)
            return all[k];
    }
    return NULL;
}

const struct plane_loops *ckpt_loops(void)
{
    const struct plane_loops *best = ckpt_loops_plain(), *next = best;
    for (size_t i = 0; next != NULL; i++) {
        best = next;
        next = ckpt_loops_at(i);
    }
    return best;
}
