/* Copies in memory: what is said of them, to workers and agents. */
#include <stdlib.h>
#include <string.h>

#include "server/core/internal.h"

#define COPIES_MAX 4096 /* of one hello */

enum status core_places_list(struct job_machine *m, struct core_places *out)
{
    const uint32_t ranks = m->config.ranks;
    struct core_places places = {
        .nodes = calloc(ranks, sizeof *places.nodes), /* NOLINT(bugprone-sizeof-expression) */
        .holders = calloc(ranks, sizeof *places.holders),
    };
    if (!places.nodes || !places.holders) {
        core_places_release(&places);
        return ST_NO_MEMORY;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        places.nodes[i] = m->ranks[i].node;
        places.holders[i] = m->ranks[i].holder;
    }
    cairn__v1__memory_restore__init(&places.memory);
    places.memory.generation = m->memory_generation;
    places.memory.step = m->restore_step;
    places.memory.size = ranks;
    places.memory.holders = places.holders;
    places.memory.n_holders = ranks;
    *out = places;
    return ST_OK;
}

void core_places_release(struct core_places *places)
{
    free(places->nodes);
    free(places->holders);
}

struct jm_copy *core_copies_offered(const Cairn__V1__TrainerHello *hello, size_t *out_count)
{
    const size_t count = hello->n_copies < COPIES_MAX ? hello->n_copies : COPIES_MAX;
    struct jm_copy *list = count > 0 ? calloc(count, sizeof *list) : NULL;
    *out_count = list ? count : 0;
    for (size_t i = 0; i < *out_count; i++) {
        const Cairn__V1__MemoryCopy *from = hello->copies[i];
        list[i] = (struct jm_copy){ .step = from->step,
                                    .generation = from->generation,
                                    .rank = from->rank,
                                    .size = from->size };
    }
    return list;
}

static void send_forget(const struct core_node *node, const char *job)
{
    Cairn__V1__ForgetCopies forget = CAIRN__V1__FORGET_COPIES__INIT;
    forget.job = (char *)job;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_FORGET;
    order.forget = &forget;
    if (node->conn)
        node->conn->ops->send(node->conn, &order.base);
}

/* What lies there is made there, or a generation that comes may start from it. */
static bool needs_copies(const struct core_job *job, const struct core_node *node)
{
    const struct job_machine *m = &job->m;
    if (m->state == JOB_PLACING || m->state == JOB_RECOVERING)
        return true;
    if (!jm_alive_rank(m, JM_ALL))
        return false;
    bool runs_there = false;
    for (uint32_t r = 0; r < m->config.ranks; r++)
        runs_there = runs_there || strcmp(m->ranks[r].node, node->name) == 0;
    return runs_there || !m->committed;
}

void core_send_forget(struct core *core, const struct core_job *job)
{
    for (size_t i = 0; i < core->node_count; i++) {
        if (!needs_copies(job, core->nodes[i]))
            send_forget(core->nodes[i], job->id);
    }
}

void core_check_copies(struct core *core, struct core_node *node,
                       const Cairn__V1__AgentHello *hello)
{
    for (size_t i = 0; i < hello->n_copies; i++) {
        const struct core_job *job = core_job_at(core, hello->copies[i]);
        if (!job || !needs_copies(job, node))
            send_forget(node, hello->copies[i]);
    }
}
