/*
 * The rendezvous of a generation: its ranks bring their parts, and are answered when all have. What
 * each brought for each is turned round here, so that a rank gets only what is for it.
 *
 * Nothing of it is journalled. A rank says its part again with every new session, for as long as
 * the generation lives: so a coordinator that was restarted has them all again.
 */
#include "server/coord/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/coord/orders.h"

static struct coord_rendezvous_round *find_round(const struct coord_job *job, const char *name,
                                                 size_t *out_count)
{
    struct coord_rendezvous_round *found = NULL;
    *out_count = 0;
    for (struct coord_rendezvous_round *round = job->rounds; round != NULL; round = round->next) {
        (*out_count)++;
        if (strcmp(round->name, name) == 0)
            found = round;
    }
    return found;
}

/* Finds the round that a sound message is about, or begins it. */
static enum status round_of(struct coord_job *job, const Cairn__V1__RendezvousJoin *join,
                            struct coord_rendezvous_round **out)
{
    const uint32_t ranks = job->m.size;
    const size_t item_size = join->items.len / ranks;
    size_t count;
    if (!join->name[0] || strlen(join->name) >= RENDEZVOUS_NAME ||
        join->common.len > RENDEZVOUS_COMMON_MAX || item_size > RENDEZVOUS_ITEM_MAX ||
        join->items.len != ranks * item_size)
        return ST_INVALID;
    struct coord_rendezvous_round *round = find_round(job, join->name, &count);
    if (round != NULL) {
        *out = round;
        return round->item_size == item_size ? ST_OK : ST_INVALID;
    }
    if (count >= RENDEZVOUS_ROUNDS)
        return ST_FULL;
    round = calloc(1, sizeof(*round) + ranks * sizeof(round->ranks[0]));
    if (round == NULL)
        return ST_NO_MEMORY;
    round->size = ranks;
    round->item_size = item_size;
    (void)snprintf(round->name, sizeof(round->name), "%s", join->name);
    round->next = job->rounds;
    job->rounds = round;
    *out = round;
    return ST_OK;
}

/* Takes a rank's part; one that is said again is the same. */
static enum status take_part(struct coord_rendezvous_round *round, uint32_t rank,
                             const Cairn__V1__RendezvousJoin *join)
{
    struct coord_rendezvous_rank *own = &round->ranks[rank];
    own->answered = join->answered;
    if (own->part != NULL)
        return ST_OK;
    struct coord_part *part = malloc(sizeof(*part) + join->common.len + join->items.len);
    if (part == NULL)
        return ST_NO_MEMORY;
    part->common_size = join->common.len;
    if (join->common.len > 0)
        memcpy(part->data, join->common.data, join->common.len);
    if (join->items.len > 0)
        memcpy(part->data + join->common.len, join->items.data, join->items.len);
    own->part = part;
    round->came++;
    return ST_OK;
}

/* Says RendezvousResult to the ranks of [first, end) that have no answer. */
static enum status answer(struct coord *coord, struct coord_job *job,
                          const struct coord_rendezvous_round *round, uint32_t first, uint32_t end)
{
    const uint32_t ranks = job->m.size;
    const size_t item_size = round->item_size;
    auto_free ProtobufCBinaryData *commons = calloc(ranks, sizeof(*commons));
    auto_free uint8_t *items = malloc(ranks * item_size + 1);
    if (commons == NULL || items == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < ranks; i++) {
        struct coord_part *part = round->ranks[i].part;
        commons[i] = (ProtobufCBinaryData){ .len = part->common_size, .data = part->data };
    }
    Cairn__V1__RendezvousResult joined = CAIRN__V1__RENDEZVOUS_RESULT__INIT;
    joined.name = (char *)round->name;
    joined.n_commons = ranks;
    joined.commons = commons;
    joined.items = (ProtobufCBinaryData){ .len = ranks * item_size, .data = items };
    for (uint32_t to = first; to < end; to++) {
        if (round->ranks[to].answered)
            continue;
        for (uint32_t i = 0; i < ranks && item_size > 0; i++) {
            const struct coord_part *part = round->ranks[i].part;
            memcpy(items + i * item_size, part->data + part->common_size + to * item_size,
                   item_size);
        }
        coord_send_order(coord, job, to, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_JOINED,
                         &joined);
    }
    return ST_OK;
}

static void refuse(struct coord *coord, struct coord_job *job, uint32_t rank, const char *name,
                   enum status st)
{
    Cairn__V1__RendezvousResult joined = CAIRN__V1__RENDEZVOUS_RESULT__INIT;
    joined.name = (char *)name;
    joined.status = st;
    coord_send_order(coord, job, rank, COORD_COMMIT_SOON, CAIRN__V1__TRAINER_ORDER__BODY_JOINED,
                     &joined);
}

void coord_rendezvous_join(struct coord *coord, struct coord_job *job, uint32_t rank,
                           const Cairn__V1__RendezvousJoin *join)
{
    const uint32_t ranks = job->m.size;
    struct coord_rendezvous_round *round = NULL;
    enum status st = round_of(job, join, &round);
    const uint32_t before = st == ST_OK ? round->came : 0;
    if (st == ST_OK)
        st = take_part(round, rank, join);
    if (st == ST_OK && round->came == ranks) {
        const bool last = before < ranks;
        st = answer(coord, job, round, last ? 0 : rank, last ? ranks : rank + 1);
    }
    if (st != ST_OK)
        refuse(coord, job, rank, join->name, st);
}
