/*
 * Inside of a stage, shared by
 *
 *   stage_open.c      cuts and tables
 *   stage_owners.c    buckets, and which stage or rank updates which elements
 *   stage_held.c      what a rank has and saves of the state
 *   stage_exchange.c  what stages tell each other beside micro-batches
 */
#pragma once

#include "trainer/stage/stage.h"

#define STAGE_LINE 16 /* elements of a cache line */

/* Cut the buckets and note their owners, after the slices and extents are noted. ST_FULL,
 * ST_NO_MEMORY */
MUST_CHECK enum status stage_cut_buckets(struct stage *stage);
MUST_CHECK enum status stage_note_owners(struct stage *stage);
/* Returns the owner that updates that element of the parameters. */
uint32_t stage_owner_of(const struct stage *stage, size_t element);

/* Return the elements of a buffer of the optimizer's that the stage of a part updates, and those of
 * the chunks of a checkpoint that it saves: chunks whose first element it updates. */
struct lane_extent stage_updated(const struct stage *stage, uint32_t part, uint32_t buffer);
struct lane_extent stage_saved(const struct stage *stage, uint32_t part, uint32_t buffer,
                               uint64_t count);
/* True if ranks of a stage own parts of that buffer. */
bool stage_is_owned(const struct stage *stage, uint32_t buffer);
/* Notes the parts of the state that this rank has and saves. Errors: ckpt_share_add's */
MUST_CHECK enum status stage_note_held(struct stage *stage);
