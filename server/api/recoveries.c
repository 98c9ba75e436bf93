/* A job's recoveries as messages: from the journal, the newest as the job has it. */
#include <stdlib.h>

#include "server/api/render.h"
#include "server/machine/codec.h"
#include "server/story/story.h"

bool render_parts(const int64_t ms[RECOVERY_PARTS], size_t *out_count,
                  Cairn__V1__LostSeconds ***out)
{
    Cairn__V1__LostSeconds **list = calloc(RECOVERY_PARTS, sizeof(void *));
    *out = list;
    for (int i = 0; list && i < RECOVERY_PARTS; i++) {
        Cairn__V1__LostSeconds *one = malloc(sizeof *one);
        if (!one)
            return false;
        cairn__v1__lost_seconds__init(one);
        list[(*out_count)++] = one;
        one->cause = render_text(recovery_part_name((enum recovery_part)i));
        one->seconds = (double)ms[i] / 1e3;
        if (!one->cause)
            return false;
    }
    return list != NULL;
}

static const char *state_name(enum recovery_state state)
{
    switch (state) {
    case RECOVERY_NONE:
        break;
    case RECOVERY_ENDING:
        return "ending";
    case RECOVERY_FORMING:
        return "forming";
    case RECOVERY_DONE:
        return "done";
    case RECOVERY_CUT:
        return "cut";
    }
    return "";
}

Cairn__V1__Recovery *render_recovery(const struct recovery *r)
{
    char at[32];
    Cairn__V1__Recovery *out = malloc(sizeof *out);
    if (!out)
        return NULL;
    cairn__v1__recovery__init(out);
    render_time(r->wall_ms, at);
    out->generation = r->generation;
    out->ended = r->ended;
    out->kind = render_text(r->generation > 0 ? recovery_kind_name(r->kind) : "");
    out->rank = r->rank == RECOVERY_ALL_RANKS ? -1 : (int32_t)r->rank;
    out->node = render_text(r->node);
    out->cause = render_text(story_cause(r->fault));
    out->message = render_text(r->message);
    out->phase = render_text(r->phase);
    out->time = render_text(at);
    out->step = r->step;
    out->steps_lost = recovery_steps_lost(r);
    out->state = render_text(state_name(r->state));
    if (render_parts(r->ms, &out->n_seconds, &out->seconds) && out->kind && out->node &&
        out->cause && out->message && out->phase && out->time && out->state)
        return out;
    cairn__v1__recovery__free_unpacked(out, NULL);
    return NULL;
}

bool render_read_recovery(const struct core_job *job, uint32_t generation, const char *text,
                          struct recovery *out)
{
    if (!text[0])
        return false;
    if (generation == job->m.recovery.generation && recovery_open(&job->m.recovery)) {
        *out = job->m.recovery; /* its row is written when it is closed */
        return true;
    }
    return machine_decode_recovery(out, text) == ST_OK;
}

struct listing {
    const struct core_job *job;
    Cairn__V1__Job *out;
    bool failed;
};

static bool add_recovery(void *arg, uint32_t generation, const char *text)
{
    struct listing *listing = arg;
    struct recovery r;
    if (!render_read_recovery(listing->job, generation, text, &r))
        return true;
    Cairn__V1__Recovery *one = render_recovery(&r);
    listing->failed = one == NULL;
    if (one)
        listing->out->recoveries[listing->out->n_recoveries++] = one;
    return one != NULL;
}

bool render_recoveries(struct core *core, const struct core_job *job, Cairn__V1__Job *out)
{
    struct listing listing = { .job = job, .out = out };
    out->recoveries = calloc(RENDER_RECOVERIES, sizeof(void *));
    if (!out->recoveries)
        return false;
    return journal_each_recovery(core_options(core)->journal, job->id, RENDER_RECOVERIES,
                                 add_recovery, &listing) == ST_OK &&
           !listing.failed;
}
