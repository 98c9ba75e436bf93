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

static struct coord_meeting *find_meeting(const struct coord_job *job, const char *name,
                                          size_t *out_count)
{
    struct coord_meeting *found = NULL;
    *out_count = 0;
    for (struct coord_meeting *meeting = job->meetings; meeting; meeting = meeting->next) {
        (*out_count)++;
        if (strcmp(meeting->name, name) == 0)
            found = meeting;
    }
    return found;
}

/* Finds the meeting that a sound message is about, or begins it. */
static enum status meeting_of(struct coord_job *job, const Cairn__V1__Meet *meet,
                              struct coord_meeting **out)
{
    const uint32_t ranks = job->m.size;
    const size_t item_size = meet->items.len / ranks;
    size_t count;
    if (!meet->name[0] || strlen(meet->name) >= RENDEZVOUS_NAME ||
        meet->common.len > RENDEZVOUS_COMMON_MAX || item_size > RENDEZVOUS_ITEM_MAX ||
        meet->items.len != ranks * item_size)
        return ST_INVALID;
    struct coord_meeting *meeting = find_meeting(job, meet->name, &count);
    if (meeting) {
        *out = meeting;
        return meeting->item_size == item_size ? ST_OK : ST_INVALID;
    }
    if (count >= RENDEZVOUS_MEETINGS)
        return ST_FULL;
    meeting = calloc(1, sizeof(*meeting) + ranks * sizeof(meeting->ranks[0]));
    if (!meeting)
        return ST_NO_MEMORY;
    meeting->size = ranks;
    meeting->item_size = item_size;
    (void)snprintf(meeting->name, sizeof(meeting->name), "%s", meet->name);
    meeting->next = job->meetings;
    job->meetings = meeting;
    *out = meeting;
    return ST_OK;
}

/* Takes a rank's part; one that is said again is the same. */
static enum status take_part(struct coord_meeting *meeting, uint32_t rank,
                             const Cairn__V1__Meet *meet)
{
    struct coord_meeting_rank *own = &meeting->ranks[rank];
    own->answered = meet->answered;
    if (own->part)
        return ST_OK;
    struct coord_part *part = malloc(sizeof(*part) + meet->common.len + meet->items.len);
    if (!part)
        return ST_NO_MEMORY;
    part->common_size = meet->common.len;
    if (meet->common.len > 0)
        memcpy(part->data, meet->common.data, meet->common.len);
    if (meet->items.len > 0)
        memcpy(part->data + meet->common.len, meet->items.data, meet->items.len);
    own->part = part;
    meeting->came++;
    return ST_OK;
}

/* Says Met to the ranks of [first, end) that have no answer. */
static enum status answer(struct coord *coord, struct coord_job *job,
                          const struct coord_meeting *meeting, uint32_t first, uint32_t end)
{
    const uint32_t ranks = job->m.size;
    const size_t item_size = meeting->item_size;
    auto_free ProtobufCBinaryData *commons = calloc(ranks, sizeof(*commons));
    auto_free uint8_t *items = malloc(ranks * item_size + 1);
    if (!commons || !items)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < ranks; i++) {
        struct coord_part *part = meeting->ranks[i].part;
        commons[i] = (ProtobufCBinaryData){ .len = part->common_size, .data = part->data };
    }
    Cairn__V1__Met met = CAIRN__V1__MET__INIT;
    met.name = (char *)meeting->name;
    met.n_commons = ranks;
    met.commons = commons;
    met.items = (ProtobufCBinaryData){ .len = ranks * item_size, .data = items };
    for (uint32_t to = first; to < end; to++) {
        if (meeting->ranks[to].answered)
            continue;
        for (uint32_t i = 0; i < ranks && item_size > 0; i++) {
            const struct coord_part *part = meeting->ranks[i].part;
            memcpy(items + i * item_size, part->data + part->common_size + to * item_size,
                   item_size);
        }
        coord_send_order(coord, job, to, COORD_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_MET, &met);
    }
    return ST_OK;
}

static void refuse(struct coord *coord, struct coord_job *job, uint32_t rank, const char *name,
                   enum status st)
{
    Cairn__V1__Met met = CAIRN__V1__MET__INIT;
    met.name = (char *)name;
    met.status = st;
    coord_send_order(coord, job, rank, COORD_AT_ONCE, CAIRN__V1__TRAINER_ORDER__BODY_MET, &met);
}

void coord_meet(struct coord *coord, struct coord_job *job, uint32_t rank,
                const Cairn__V1__Meet *meet)
{
    const uint32_t ranks = job->m.size;
    struct coord_meeting *meeting = NULL;
    enum status st = meeting_of(job, meet, &meeting);
    const uint32_t before = st == ST_OK ? meeting->came : 0;
    if (st == ST_OK)
        st = take_part(meeting, rank, meet);
    if (st == ST_OK && meeting->came == ranks) {
        const bool last = before < ranks;
        st = answer(coord, job, meeting, last ? 0 : rank, last ? ranks : rank + 1);
    }
    if (st != ST_OK)
        refuse(coord, job, rank, meet->name, st);
}
