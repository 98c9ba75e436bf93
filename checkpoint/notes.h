/*
 * Words of the state beside the skipped steps (struct ckpt_scalars): behind the steps of the list
 * stand notes, each a word with CKPT_SKIPS_NOTE. What they mean is the trainer's affair
 * (trainer/update/history.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"

#define CKPT_SKIPS_NOTE (UINT64_C(1) << 62)

static inline bool ckpt_is_note(uint64_t word)
{
    return (word & CKPT_SKIPS_NOTE) != 0 && (word & CKPT_SKIPS_OLDER) == 0;
}
