#include "tests/unit/session/session_orders.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define ORDER(which, name, body)                                                                   \
    order_new(&(Cairn__V1__TrainerOrder){                                                          \
        PROTOBUF_C_MESSAGE_INIT(&cairn__v1__trainer_order__descriptor),                            \
        .body_case = CAIRN__V1__TRAINER_ORDER__BODY_##which, .name = (body) })

Cairn__V1__TrainerOrder *order_new(const Cairn__V1__TrainerOrder *order)
{
    const size_t size = cairn__v1__trainer_order__get_packed_size(order);
    uint8_t *bytes = malloc(size + 1);
    CHECK(bytes != NULL);
    (void)cairn__v1__trainer_order__pack(order, bytes);
    Cairn__V1__TrainerOrder *made = cairn__v1__trainer_order__unpack(NULL, size, bytes);
    CHECK(made != NULL);
    free(bytes);
    return made;
}

Cairn__V1__TrainerOrder *plan_order(Cairn__V1__Plan *plan, uint32_t generation, uint32_t rank,
                                    uint32_t *shares, uint32_t size)
{
    plan->job = (char *)(uintptr_t)JOB;
    plan->generation = generation;
    plan->rank = rank;
    plan->size = size;
    plan->shares = shares;
    plan->n_shares = size;
    return ORDER(PLAN, plan, plan);
}

Cairn__V1__TrainerOrder *folder_order(uint64_t step, const char *dir)
{
    Cairn__V1__SaveFolder folder = CAIRN__V1__SAVE_FOLDER__INIT;
    folder.step = step;
    folder.dir = (char *)(uintptr_t)dir;
    return ORDER(SAVE_FOLDER, save_folder, &folder);
}

Cairn__V1__TrainerOrder *done_order(uint64_t step, bool committed)
{
    Cairn__V1__SaveDone done = CAIRN__V1__SAVE_DONE__INIT;
    done.step = step;
    done.committed = committed;
    return ORDER(SAVE_DONE, save_done, &done);
}

Cairn__V1__TrainerOrder *save_at_order(uint64_t step, bool exits)
{
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT;
    at.step = step;
    at.then = exits ? CAIRN__V1__SAVE_AT__THEN__EXIT : CAIRN__V1__SAVE_AT__THEN__CONTINUE;
    return ORDER(SAVE_AT, save_at, &at);
}

Cairn__V1__TrainerOrder *read_back_order(uint64_t step, const char *dir, uint32_t shards)
{
    Cairn__V1__ReadBack read = CAIRN__V1__READ_BACK__INIT;
    read.step = step;
    read.generation = 1;
    read.dir = (char *)(uintptr_t)dir;
    read.shards = shards;
    return ORDER(READ_BACK, read_back, &read);
}

Cairn__V1__TrainerOrder *stay_order(uint64_t step)
{
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT;
    at.step = step;
    at.then = CAIRN__V1__SAVE_AT__THEN__STAY;
    return ORDER(SAVE_AT, save_at, &at);
}

Cairn__V1__TrainerOrder *joined_order(const char *name, enum status st, uint32_t ranks,
                                      const char *common, const char *items)
{
    ProtobufCBinaryData commons[16];
    Cairn__V1__RendezvousResult joined = CAIRN__V1__RENDEZVOUS_RESULT__INIT;
    CHECK(ranks <= 16);
    for (uint32_t r = 0; r < ranks; r++) {
        commons[r].data = (uint8_t *)(uintptr_t)common;
        commons[r].len = strlen(common);
    }
    joined.name = (char *)(uintptr_t)name;
    joined.status = st;
    joined.n_commons = ranks;
    joined.commons = commons;
    joined.items.data = (uint8_t *)(uintptr_t)items;
    joined.items.len = strlen(items);
    return ORDER(JOINED, joined, &joined);
}

Cairn__V1__TrainerOrder *joined_bytes_order(const char *name, uint32_t ranks,
                                            uint8_t (*commons)[RENDEZVOUS_COMMON_MAX], size_t size,
                                            void *items, size_t items_size)
{
    ProtobufCBinaryData list[2];
    Cairn__V1__RendezvousResult joined = CAIRN__V1__RENDEZVOUS_RESULT__INIT;
    CHECK(ranks <= 2);
    for (uint32_t r = 0; r < ranks; r++)
        list[r] = (ProtobufCBinaryData){ .len = size, .data = commons[r] };
    joined.name = (char *)(uintptr_t)name;
    joined.n_commons = ranks;
    joined.commons = list;
    joined.items = (ProtobufCBinaryData){ .len = items_size, .data = items };
    return ORDER(JOINED, joined, &joined);
}

Cairn__V1__TrainerOrder *metric_ack_order(uint64_t through)
{
    Cairn__V1__MetricAck ack = CAIRN__V1__METRIC_ACK__INIT;
    ack.through_step = through;
    return ORDER(METRIC_ACK, metric_ack, &ack);
}

Cairn__V1__TrainerOrder *over_order(const char *reason)
{
    Cairn__V1__Over over = CAIRN__V1__OVER__INIT;
    over.reason = (char *)(uintptr_t)reason;
    return ORDER(OVER, over, &over);
}

Cairn__V1__TrainerOrder *park_order(const char *reason)
{
    Cairn__V1__Park park = CAIRN__V1__PARK__INIT;
    park.reason = (char *)(uintptr_t)reason;
    return ORDER(PARK, park, &park);
}

Cairn__V1__TrainerOrder *regroup_order(uint32_t generation, uint32_t rank, const char *token)
{
    Cairn__V1__Regroup regroup = CAIRN__V1__REGROUP__INIT;
    regroup.generation = generation;
    regroup.rank = rank;
    regroup.token = (char *)(uintptr_t)token;
    return ORDER(REGROUP, regroup, &regroup);
}
