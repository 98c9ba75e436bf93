/*
 * A coordinator's orders as they come off the wire: made, packed and unpacked, so that whoever
 * takes one may free it as any other.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cairn/v1/training.pb-c.h"
#include "common/rendezvous.h"
#include "common/status.h"

#define JOB "j-0123456789"

Cairn__V1__TrainerOrder *order_new(const Cairn__V1__TrainerOrder *order);

/* A rank of that generation of JOB, with so many lanes per rank; the rest of plan as it is. */
Cairn__V1__TrainerOrder *plan_order(Cairn__V1__Plan *plan, uint32_t generation, uint32_t rank,
                                    uint32_t *shares, uint32_t size);
Cairn__V1__TrainerOrder *folder_order(uint64_t step, const char *dir);
Cairn__V1__TrainerOrder *done_order(uint64_t step, bool committed);
Cairn__V1__TrainerOrder *save_at_order(uint64_t step, bool exits);
Cairn__V1__TrainerOrder *stay_order(uint64_t step); /* no exit after it */
Cairn__V1__TrainerOrder *read_back_order(uint64_t step, const char *dir, uint32_t shards);
/* Every rank brought `common`; items: of all ranks. */
Cairn__V1__TrainerOrder *joined_order(const char *name, enum status st, uint32_t ranks,
                                      const char *common, const char *items);
Cairn__V1__TrainerOrder *joined_bytes_order(const char *name, uint32_t ranks,
                                            uint8_t (*commons)[RENDEZVOUS_COMMON_MAX], size_t size,
                                            void *items, size_t items_size);
Cairn__V1__TrainerOrder *metric_ack_order(uint64_t through);
Cairn__V1__TrainerOrder *over_order(const char *reason);
Cairn__V1__TrainerOrder *park_order(const char *reason);
Cairn__V1__TrainerOrder *regroup_order(uint32_t generation, uint32_t rank, const char *token);
