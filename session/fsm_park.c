/* The end of this rank's part in the generation: it is over, or the process goes on in the next
 * one. States: fsm_state.h. */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "session/fsm.h"

void session_fsm_end(struct session_fsm *fsm, const char *reason)
{
    if (fsm->over)
        return;
    fsm->over = true;
    reason_set(&fsm->over_reason, "%s", reason);
}

/* ---- local calls ---- */

void session_fsm_offer_state(struct session_fsm *fsm, const struct session_parked *parked)
{
    CHECK(fsm->pins == NULL);
    fsm->offers_state = true;
    fsm->offered = *parked;
    fsm->last_words_version++; /* the last words before are of another generation */
}

void session_fsm_parked(struct session_fsm *fsm, const struct session_parked *kept)
{
    struct session_park_record *park = &fsm->park;
    CHECK(fsm->over || park->state != SESSION_PARK_NONE);
    if (park->state != SESSION_PARK_ASKED)
        return;
    park->state = SESSION_PARK_PARKED;
    park->parked = kept->complete ? *kept : (struct session_parked){ .step = kept->step };
    park->said = false;
    fsm->fault.known = false; /* of the generation; what this process dies of later is another */
    fsm->last_words_version++;
}

bool session_fsm_regrouped(const struct session_fsm *fsm, uint32_t *out_generation,
                           uint32_t *out_number, char *out_token)
{
    const struct session_park_record *park = &fsm->park;
    if (fsm->over || park->state != SESSION_PARK_REGROUPED)
        return false;
    *out_generation = park->generation;
    *out_number = park->number;
    memcpy(out_token, park->token, sizeof(park->token));
    return true;
}

/* ---- orders ---- */

/* Begins to park. Rounds stay as they are, since a thread that waits in one still reads it;
 * nothing is said of them. */
void session_order_park(struct session_fsm *fsm, const Cairn__V1__Park *park)
{
    fsm->park.said = false;
    if (session_fsm_ended(fsm))
        return;
    fsm->park.state = SESSION_PARK_ASKED;
    reason_set(&fsm->park.reason, "%s", park->reason);
    fsm->park.of_hang = park->kind == CAIRN__V1__FAULT_KIND__HANG;
    session_saves_give_up(fsm);
    memset(fsm->announced, 0, sizeof(fsm->announced));
    fsm->read.fresh = false;
    fsm->last_words_version++;
}

void session_order_regroup(struct session_fsm *fsm, const Cairn__V1__Regroup *regroup)
{
    struct session_park_record *park = &fsm->park;
    const bool again = park->state == SESSION_PARK_REGROUPED;
    if (!again && park->state != SESSION_PARK_PARKED)
        return;
    if (again && regroup->generation <= park->generation)
        return;
    if (regroup->generation <= fsm->generation || regroup->rank >= LIMIT_NUMBERS ||
        strlen(regroup->token) >= sizeof(park->token)) {
        session_fsm_end(fsm, "the coordinator's order to go on makes no sense");
        return;
    }
    park->state = SESSION_PARK_REGROUPED;
    park->generation = regroup->generation;
    park->number = regroup->rank;
    memcpy(park->token, regroup->token, strlen(regroup->token) + 1);
}

/* ---- saying it ---- */

bool session_fill_parked(const struct session_fsm *fsm, Cairn__V1__Parked *out)
{
    const bool parked = fsm->park.state >= SESSION_PARK_PARKED;
    const struct session_parked *from = parked ? &fsm->park.parked : &fsm->offered;
    if (!parked && (!fsm->offers_state || fsm->assigned != NULL))
        return false;
    cairn__v1__parked__init(out);
    out->step = from->step;
    out->complete = from->complete;
    out->computed_by = from->computed_by;
    out->part = from->part;
    out->parts = from->parts;
    return true;
}

bool session_out_parked(const struct session_fsm *fsm, struct session_out *out)
{
    if (fsm->park.state < SESSION_PARK_PARKED || fsm->park.said)
        return false;
    (void)session_fill_parked(fsm, &out->parked);
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED;
    out->message.parked = &out->parked;
    out->kind = SESSION_OUT_PARKED;
    return true;
}
