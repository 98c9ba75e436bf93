/* A job's events, generations and recoveries as messages: from the journal, the newest recovery as
 * the job has it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/jobfsm/persist.h"
#include "server/render/render.h"
#include "server/story/story.h"

bool render_parts(const int64_t ms[RECOVERY_PARTS], size_t *out_count,
                  Cairn__V1__LostSeconds ***out)
{
    Cairn__V1__LostSeconds **list = calloc(RECOVERY_PARTS, sizeof(void *));
    *out = list;
    for (int i = 0; list != NULL && i < RECOVERY_PARTS; i++) {
        Cairn__V1__LostSeconds *one = malloc(sizeof(*one));
        if (one == NULL)
            return false;
        cairn__v1__lost_seconds__init(one);
        list[(*out_count)++] = one;
        one->cause = render_text(recovery_part_name((enum recovery_part)i));
        one->seconds = (double)ms[i] / 1e3;
        if (one->cause == NULL)
            return false;
    }
    return list != NULL;
}

/* ---- generations ---- */

#define NODES_BYTES ((size_t)16 * 1024) /* 1,024 names of 15 bytes, 64 times: 1 MiB */

static int compare_names(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Counts the nodes of a list with commas; ends its names. */
static void count_nodes(char *list, Cairn__V1__Generation *out)
{
    const char *names[LIMIT_RANKS];
    uint32_t count = 0;
    char *rest = NULL;
    for (char *name = strtok_r(list, ",", &rest); name != NULL && count < LIMIT_RANKS;
         name = strtok_r(NULL, ",", &rest))
        names[count++] = name;
    qsort(names, count, sizeof(names[0]), compare_names);
    out->workers = count;
    for (uint32_t i = 0; i < count; i++)
        out->node_count += i == 0 || strcmp(names[i], names[i - 1]) != 0;
}

int64_t render_lasted_ms(const struct journal_generation *row)
{
    return row->end_ms > row->begin_ms ? row->end_ms - row->begin_ms : 0;
}

Cairn__V1__Generation *render_generation(const struct journal_generation *row)
{
    Cairn__V1__Generation *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__generation__init(out);
    char *nodes = strdup(row->nodes);
    if (nodes != NULL)
        count_nodes(nodes, out);
    out->generation = row->generation;
    out->from_step = row->restore_step;
    out->to_step = row->end_ms != 0 ? row->end_step : 0;
    out->begin = render_time_text(row->begin_ms);
    out->end = render_time_text(row->end_ms != 0 ? row->begin_ms + render_lasted_ms(row) : 0);
    out->nodes = render_text(strlen(row->nodes) <= NODES_BYTES ? row->nodes : "");
    out->cause = render_text(row->cause);
    out->message = render_text(row->message);
    const bool counted = nodes != NULL;
    free(nodes);
    if (counted && out->begin != NULL && out->end != NULL && out->nodes != NULL &&
        out->cause != NULL && out->message != NULL)
        return out;
    cairn__v1__generation__free_unpacked(out, NULL);
    return NULL;
}

/* ---- recoveries ---- */

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
    Cairn__V1__Recovery *out = malloc(sizeof(*out));
    if (out == NULL)
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
    if (render_parts(r->ms, &out->n_seconds, &out->seconds) && out->kind != NULL &&
        out->node != NULL && out->cause != NULL && out->message != NULL && out->phase != NULL &&
        out->time != NULL && out->state != NULL)
        return out;
    cairn__v1__recovery__free_unpacked(out, NULL);
    return NULL;
}

struct render_history render_history_of(const struct coord_job *job)
{
    struct render_history out = { .generation = job->m.generation,
                                  .over = fsm_state_final(job->m.state),
                                  .recovery = job->m.recovery };
    (void)snprintf(out.job, sizeof(out.job), "%s", job->id);
    return out;
}

bool render_read_recovery(const struct render_history *of, uint32_t generation, const char *text,
                          struct recovery *out)
{
    if (!text[0])
        return false;
    if (generation == of->recovery.generation && recovery_open(&of->recovery)) {
        *out = of->recovery;
        return true;
    }
    return fsm_decode_recovery(out, text) == ST_OK;
}

/* ---- both ---- */

struct listing {
    const struct render_history *of;
    Cairn__V1__Job *out;
    bool failed;
};

static bool add_recovery(void *arg, uint32_t generation, const char *text)
{
    struct listing *listing = arg;
    struct recovery r;
    if (!render_read_recovery(listing->of, generation, text, &r))
        return true;
    Cairn__V1__Recovery *one = render_recovery(&r);
    listing->failed = one == NULL;
    if (one != NULL)
        listing->out->recoveries[listing->out->n_recoveries++] = one;
    return one != NULL;
}

static bool add_event(void *arg, const struct journal_event *row)
{
    struct listing *listing = arg;
    Cairn__V1__Event *event = malloc(sizeof(*event));
    listing->failed = event == NULL;
    if (event == NULL)
        return false;
    cairn__v1__event__init(event);
    event->time = render_time_text(row->wall_ms);
    event->generation = row->generation;
    event->step = row->step;
    event->kind = render_text(row->kind);
    event->message = render_text(row->message);
    listing->out->events[listing->out->n_events++] = event;
    return true;
}

enum status render_history(const struct render_history *of, struct journal *journal,
                           Cairn__V1__Job *out)
{
    struct listing listing = { .of = of, .out = out };
    out->events = calloc(RENDER_EVENTS, sizeof(void *));
    out->recoveries = calloc(RENDER_RECOVERIES, sizeof(void *));
    if (out->events == NULL || out->recoveries == NULL)
        return ST_NO_MEMORY;
    enum status st = journal_each_event(journal, of->job, RENDER_EVENTS, add_event, &listing);
    if (st == ST_OK && !listing.failed)
        st = journal_each_recovery(journal, of->job, RENDER_RECOVERIES, add_recovery, &listing);
    return st == ST_OK && listing.failed ? ST_NO_MEMORY : st;
}
