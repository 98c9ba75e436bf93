/*
 * The coordinator's side of how ranks find each other, as comm/gloo.c has it: every rank sets where
 * it listens for each other one, in blocks of 256 ranks, then gets from each the block that it is
 * in, one call after the other.
 */
#include <stdio.h>
#include <string.h>

#include "bench/coordinator/fleet.h"
#include "common/unconst.h"

enum { BLOCK_RANKS = 256, ADDRESS_BYTES = 136, PATIENCE_MS = 600000 };

static uint32_t block_size(uint32_t block, uint32_t size)
{
    const uint32_t rest = size - block * BLOCK_RANKS;
    return rest < BLOCK_RANKS ? rest : BLOCK_RANKS;
}

static void call(struct trainer *trainer)
{
    static uint8_t value[BLOCK_RANKS * ADDRESS_BYTES]; /* whose bytes nobody reads */
    struct rendezvous *it = &trainer->meets;
    char key[LIMIT_KV_KEY];
    Cairn__V1__KvRequest request = CAIRN__V1__KV_REQUEST__INIT;
    request.id = ++it->id;
    request.key = key;
    if (it->sets) {
        (void)snprintf(key, sizeof key, "gloo/%u/%u", trainer->rank, it->next);
        request.op = CAIRN__V1__KV_REQUEST__OP__SET;
        request.value.data = value;
        request.value.len = (size_t)block_size(it->next, trainer->size) * ADDRESS_BYTES;
    } else {
        (void)snprintf(key, sizeof key, "gloo/%u/%u", it->next, trainer->rank / BLOCK_RANKS);
        request.op = CAIRN__V1__KV_REQUEST__OP__GET;
        request.timeout_ms = PATIENCE_MS;
    }
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_KV, &request);
}

bool rendezvous_begin(struct trainer *trainer)
{
    trainer->meets = (struct rendezvous){ .sets = true };
    if (trainer->size < 2)
        return false;
    call(trainer);
    return true;
}

bool rendezvous_heard(struct trainer *trainer, const Cairn__V1__TrainerOrder *order)
{
    struct rendezvous *it = &trainer->meets;
    if (order->body_case != CAIRN__V1__TRAINER_ORDER__BODY_KV || order->kv->id != it->id)
        return false;
    if (order->kv->status != ST_OK) {
        (void)fprintf(stderr, "job %s, rank %u: rendezvous: %s\n", trainer->job, trainer->rank,
                      status_string((enum status)order->kv->status));
        trainer_exit(trainer, CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT, 1);
        return false;
    }
    it->next++;
    if (it->sets && it->next * BLOCK_RANKS >= trainer->size) {
        it->sets = false;
        it->next = 0;
    }
    if (!it->sets && it->next == trainer->rank)
        it->next++;
    if (!it->sets && it->next >= trainer->size)
        return true;
    call(trainer);
    return false;
}
