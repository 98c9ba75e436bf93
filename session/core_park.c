/* The end of this rank's part in the generation: it is over, or the process goes on in the next
 * one. States: core_state.h. */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "session/core.h"

void session_core_end(struct session_core *core, const char *reason)
{
    if (core->over)
        return;
    core->over = true;
    reason_set(&core->over_reason, "%s", reason);
}

/* ---- local calls ---- */

void session_core_offer_state(struct session_core *core, const struct session_parked *parked)
{
    CHECK(core->pins == NULL);
    core->offers_state = true;
    core->offered = *parked;
    core->last_words_version++; /* the last words before are of another generation */
}

void session_core_parked(struct session_core *core, const struct session_parked *kept)
{
    struct session_park_record *park = &core->park;
    CHECK(core->over || park->state != SESSION_PARK_NONE);
    if (park->state != SESSION_PARK_ASKED)
        return;
    park->state = SESSION_PARK_PARKED;
    park->parked = kept->whole ? *kept : (struct session_parked){ .step = kept->step };
    park->said = false;
    core->fault.known = false; /* of the generation; what this process dies of later is another */
    core->last_words_version++;
}

bool session_core_regrouped(const struct session_core *core, uint32_t *out_generation,
                            uint32_t *out_number, char *out_token)
{
    const struct session_park_record *park = &core->park;
    if (core->over || park->state != SESSION_PARK_REGROUPED)
        return false;
    *out_generation = park->generation;
    *out_number = park->number;
    memcpy(out_token, park->token, sizeof(park->token));
    return true;
}

/* ---- orders ---- */

/* Begins to park. Meetings stay as they are, since a thread that waits in one still reads it;
 * nothing is said of them. */
void session_order_park(struct session_core *core, const Cairn__V1__Park *park)
{
    core->park.said = false;
    if (session_core_ended(core))
        return;
    core->park.state = SESSION_PARK_ASKED;
    reason_set(&core->park.reason, "%s", park->reason);
    session_saves_give_up(core);
    memset(core->announced, 0, sizeof(core->announced));
    core->read.fresh = false;
    core->last_words_version++;
}

void session_order_regroup(struct session_core *core, const Cairn__V1__Regroup *regroup)
{
    struct session_park_record *park = &core->park;
    const bool again = park->state == SESSION_PARK_REGROUPED;
    if (!again && park->state != SESSION_PARK_PARKED)
        return;
    if (again && regroup->generation <= park->generation)
        return;
    if (regroup->generation <= core->generation || regroup->rank >= LIMIT_NUMBERS ||
        strlen(regroup->token) >= sizeof(park->token)) {
        session_core_end(core, "the coordinator's order to go on makes no sense");
        return;
    }
    park->state = SESSION_PARK_REGROUPED;
    park->generation = regroup->generation;
    park->number = regroup->rank;
    memcpy(park->token, regroup->token, strlen(regroup->token) + 1);
}

/* ---- saying it ---- */

bool session_fill_parked(const struct session_core *core, Cairn__V1__Parked *out)
{
    const bool parked = core->park.state >= SESSION_PARK_PARKED;
    const struct session_parked *from = parked ? &core->park.parked : &core->offered;
    if (!parked && (!core->offers_state || core->assigned != NULL))
        return false;
    cairn__v1__parked__init(out);
    out->step = from->step;
    out->whole = from->whole;
    out->computed_by = from->computed_by;
    out->part = from->part;
    out->parts = from->parts;
    return true;
}

bool session_out_parked(const struct session_core *core, struct session_out *out)
{
    if (core->park.state < SESSION_PARK_PARKED || core->park.said)
        return false;
    (void)session_fill_parked(core, &out->parked);
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED;
    out->message.parked = &out->parked;
    out->kind = SESSION_OUT_PARKED;
    return true;
}
