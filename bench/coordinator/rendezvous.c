/*
 * The coordinator's side of how ranks find each other, as comm/gloo.c has it over IPv4: every rank
 * brings its host and a port for each other one, and has all in one answer. It is said again with
 * every session.
 */
#include <stdio.h>
#include <string.h>

#include "bench/coordinator/fleet.h"
#include "common/unconst.h"

enum { HOST_BYTES = 4, PORT_BYTES = 2 };

bool rendezvous_say(struct trainer *trainer)
{
    static uint8_t bytes[LIMIT_RANKS * PORT_BYTES]; /* that nobody reads */
    if (trainer->size < 2)
        return false;
    Cairn__V1__RendezvousJoin join = CAIRN__V1__RENDEZVOUS_JOIN__INIT;
    join.name = unconst("workers");
    join.common = (ProtobufCBinaryData){ .len = HOST_BYTES, .data = bytes };
    join.items = (ProtobufCBinaryData){ .len = (size_t)trainer->size * PORT_BYTES, .data = bytes };
    join.answered = trainer->stage > TRAINER_MEETS;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_JOIN, &join);
    return true;
}

bool rendezvous_heard(struct trainer *trainer, const Cairn__V1__TrainerOrder *order)
{
    if (order->body_case != CAIRN__V1__TRAINER_ORDER__BODY_JOINED)
        return false;
    if (order->joined->status == ST_OK && order->joined->n_commons == trainer->size)
        return true;
    (void)fprintf(stderr, "job %s, rank %u: rendezvous: %s\n", trainer->job, trainer->rank,
                  status_string((enum status)order->joined->status));
    trainer_exit(trainer, CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT, 1);
    return false;
}
