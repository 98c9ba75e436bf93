/*
 * Inside of a stage, shared by
 *
 *   stage_open.c      cuts and tables
 *   stage_owners.c    buckets, and who updates what
 *   stage_held.c      what a rank has and saves of the state
 *   stage_exchange.c  what stages tell each other beside micro-batches
 */
#pragma once

#include "trainer/stage/stage.h"

#define STAGE_LINE 16 /* elements of a cache line */

/* After the extents and runs are noted. ST_FULL, ST_NO_MEMORY */
MUST_CHECK enum status stage_cut_buckets(struct stage *stage);
MUST_CHECK enum status stage_note_owners(struct stage *stage);
/* Which owner updates that element of the parameters. */
uint32_t stage_owner_of(const struct stage *stage, size_t element);

/* What the stage of a part of the model updates of it in a buffer of the optimizer's, and the
 * chunks of a checkpoint that it saves: those whose first element it updates. */
struct lane_run stage_updated(const struct stage *stage, uint32_t part, uint32_t buffer);
struct lane_run stage_saved(const struct stage *stage, uint32_t part, uint32_t buffer,
                            uint64_t count);
/* Ranks of a stage own parts of that buffer. */
bool stage_is_owned(const struct stage *stage, uint32_t buffer);
/* Notes what this rank has and saves. Errors: ckpt_share_add's */
MUST_CHECK enum status stage_note_held(struct stage *stage);
