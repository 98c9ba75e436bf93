/* The plan of a generation: whether it makes sense, and as the step thread gets it. */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "session/fsm.h"

/* Returns the lanes of `count` ranks from `from` on; 0: a rank has none, or they are too many. */
static uint32_t sum_shares(const Cairn__V1__Plan *plan, size_t from, uint32_t count)
{
    uint64_t lanes = 0;
    for (size_t r = from; r < from + count; r++) {
        if (plan->shares[r] == 0)
            return 0;
        lanes += plan->shares[r];
    }
    return lanes <= LIMIT_LANES ? (uint32_t)lanes : 0;
}

/* True if the plan's only stage is the whole model, with all ranks. */
static bool is_whole(const Cairn__V1__Plan *plan)
{
    return plan->stages[0]->workers == plan->size && plan->stages[0]->first_node == 0;
}

/* Whether the stages are made of all ranks, one after the other, of each of which the shares are
 * all lanes; and where each begins. */
static bool read_stages(const Cairn__V1__Plan *plan, struct session_assignment *out)
{
    const size_t count = plan->n_stages;
    size_t from = 0;
    uint32_t lanes = 0;
    if (count <= 1)
        return sum_shares(plan, 0, plan->size) > 0 && (count == 0 || is_whole(plan));
    if (count > LIMIT_STAGES)
        return false;
    const bool cut = plan->stages[1]->first_node > 0;
    for (size_t s = 0; s < count; s++) {
        const Cairn__V1__Stage *stage = plan->stages[s];
        const uint32_t before = s == 0 ? 0 : plan->stages[s - 1]->first_node;
        const bool ascends = s > 0 && cut ? stage->first_node > before : stage->first_node == 0;
        if (!ascends || stage->workers == 0 || stage->workers > plan->size - from)
            return false;
        const uint32_t sum = sum_shares(plan, from, stage->workers);
        if (sum == 0 || (s > 0 && sum != lanes))
            return false;
        lanes = sum;
        from += stage->workers;
        out->stages[s] =
            (struct session_stage){ .workers = stage->workers, .first_node = stage->first_node };
    }
    out->stage_count = (uint32_t)count;
    return from == plan->size;
}

/* Somebody in each stage has its state. */
static bool has_each_stage(const Cairn__V1__LiveRestore *live,
                           const struct session_assignment *plan)
{
    uint32_t end = 0;
    size_t i = 0;
    for (uint32_t s = 0; live != NULL && s < plan->stage_count; s++) {
        const uint32_t begin = end;
        end += plan->stages[s].workers;
        if (i == live->n_sources || live->sources[i] < begin || live->sources[i] >= end)
            return false;
        while (i < live->n_sources && live->sources[i] < end)
            i++;
    }
    return true;
}

enum status session_fsm_assignment(const struct session_fsm *fsm, struct session_assignment *out)
{
    CHECK(fsm->assigned != NULL);
    const Cairn__V1__Plan *plan = fsm->assigned->plan;
    bool sound = plan->size >= 1 && plan->size <= LIMIT_RANKS && plan->rank < plan->size &&
                 plan->generation == fsm->generation && plan->n_shares == plan->size &&
                 strcmp(plan->job, fsm->job) == 0 && strlen(plan->job) < LIMIT_NAME;
    const Cairn__V1__MemoryRestore *memory = plan->memory;
    if (memory != NULL) {
        sound = sound && memory->size >= 1 && memory->size <= LIMIT_RANKS &&
                memory->n_holders == memory->size && memory->generation < plan->generation &&
                plan->n_nodes == plan->size;
        for (size_t i = 0; sound && i < memory->n_holders; i++)
            sound = memory->holders[i] < plan->size;
    }
    const Cairn__V1__LiveRestore *live = plan->live;
    if (live != NULL) {
        sound = sound && live->n_sources >= 1 && live->sources[live->n_sources - 1] < plan->size;
        for (size_t i = 1; sound && i < live->n_sources; i++)
            sound = live->sources[i - 1] < live->sources[i];
    }
    memset(out, 0, sizeof(*out));
    if (!sound || !read_stages(plan, out) || !has_each_stage(live, out))
        return ST_INVALID;
    (void)snprintf(out->job, sizeof(out->job), "%s", plan->job);
    out->generation = plan->generation;
    out->size = plan->size;
    out->rank = plan->rank;
    out->shares = plan->shares;
    out->job_file = plan->job_file;
    out->restore = plan->restore;
    out->restore_step = plan->restore_step;
    if (memory != NULL) {
        out->memory = (struct session_copy){ .generation = memory->generation,
                                             .step = memory->step,
                                             .size = memory->size };
        out->holders = memory->holders;
    }
    if (live != NULL) {
        out->live_step = live->step;
        out->live_sources = live->sources;
        out->live_source_count = live->n_sources;
    }
    out->nodes = plan->n_nodes == plan->size ? plan->nodes : NULL;
    out->skip = plan->skip;
    out->skip_count = plan->n_skip;
    out->host = plan->host;
    out->store_id = plan->store_id;
    out->metric_step = plan->metric_step;
    out->data_known = plan->data_known;
    out->spare = plan->spare;
    return ST_OK;
}
