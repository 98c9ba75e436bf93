/*
 * The contents of a job's store: checkpoints that were committed, and saves under way. These are
 * lists and questions only: nothing in here decides.
 */
#include "server/jobfsm/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

/* ---- checkpoints ---- */

/* The order of the catalog: by step, then generation. */
static int compare_ckpts(const void *a, const void *b)
{
    const struct fsm_ckpt *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->generation > y->generation) - (x->generation < y->generation);
}

enum status fsm_add_ckpt(struct fsm *m, const struct fsm_ckpt *ckpt)
{
    if (m->catalog_count >= FSM_CATALOG_MAX)
        return ST_FULL;
    if (m->catalog_count == m->catalog_capacity) {
        size_t capacity = m->catalog_capacity ? 2 * m->catalog_capacity : 8;
        struct fsm_ckpt *more = realloc(m->catalog, capacity * sizeof(*more));
        if (more == NULL)
            return ST_NO_MEMORY;
        m->catalog = more;
        m->catalog_capacity = capacity;
    }
    CHECK(m->catalog_count < m->catalog_capacity);
    size_t at = m->catalog_count++;
    for (; at > 0; at--) {
        if (compare_ckpts(&m->catalog[at - 1], ckpt) < 0)
            break;
        m->catalog[at] = m->catalog[at - 1];
    }
    m->catalog[at] = *ckpt;
    return ST_OK;
}

const struct fsm_ckpt *fsm_newest(const struct fsm *m)
{
    for (size_t i = m->catalog_count; i > 0; i--) {
        if (m->catalog[i - 1].state == FSM_CKPT_GOOD)
            return &m->catalog[i - 1];
    }
    return NULL;
}

struct fsm_ckpt *fsm_ckpt_at(struct fsm *m, uint64_t step, uint32_t generation)
{
    struct fsm_ckpt key = { .step = step, .generation = generation };
    if (m->catalog_count == 0)
        return NULL;
    return bsearch(&key, m->catalog, m->catalog_count, sizeof(key), compare_ckpts);
}

const struct fsm_ckpt *fsm_find_ckpt(const struct fsm *m, uint64_t step, uint32_t generation)
{
    return fsm_ckpt_at((struct fsm *)m, step, generation);
}

uint64_t fsm_last_step(const struct fsm *m)
{
    const bool ends = m->last.step > 0 && m->last.generation == m->generation;
    return ends ? m->last.step : m->total_steps;
}

bool fsm_is_last(const struct fsm *m, uint64_t step)
{
    const uint64_t last = fsm_last_step(m);
    return last > 0 && step >= last;
}

bool fsm_final_committed(const struct fsm *m)
{
    const struct fsm_ckpt *newest = fsm_newest(m);
    return newest != NULL && fsm_is_last(m, newest->step);
}

/* ---- chains: checkpoints that are read through others ---- */

struct fsm_ckpt *fsm_chain_next(struct fsm *m, const struct fsm_ckpt *ckpt)
{
    return ckpt->parent_generation == 0
               ? NULL
               : fsm_ckpt_at(m, ckpt->parent_step, ckpt->parent_generation);
}

bool fsm_in_chain(struct fsm *m, const struct fsm_ckpt *of, const struct fsm_ckpt *ckpt)
{
    for (int i = 0; of != NULL && i <= FSM_CHAIN_MAX; i++) {
        if (of == ckpt)
            return true;
        of = fsm_chain_next(m, of);
    }
    return false;
}

/* A checkpoint's own suspicion, and what is set aside, are all that counts: whatever else is being
 * read, or set aside, changes nothing about what a generation would restore. */
bool fsm_damage_pending(struct fsm *m)
{
    struct fsm_ckpt *restored = fsm_ckpt_at(m, m->restore.step, m->restore.generation);
    const struct fsm_ckpt *c = fsm_newest(m);
    for (; c != NULL; c = fsm_chain_next(m, c)) {
        if (c->state != FSM_CKPT_GOOD)
            return true;
        if (m->damage_suspected && c->suspected && fsm_in_chain(m, restored, c))
            return true;
    }
    return false;
}

bool fsm_is_distrusted(const struct fsm *m, const struct fsm_ckpt *ckpt)
{
    return ckpt->state == FSM_CKPT_GOOD && ckpt->generation <= m->audit.generation &&
           ckpt->step > m->audit.good_step;
}

bool fsm_distrusts(const struct fsm *m)
{
    bool found = false;
    for (size_t i = 0; i < m->catalog_count && !found; i++)
        found = fsm_is_distrusted(m, &m->catalog[i]);
    return found;
}

bool fsm_is_parent(const struct fsm *m, const struct fsm_ckpt *ckpt)
{
    for (size_t i = 0; i < m->catalog_count; i++) {
        const struct fsm_ckpt *other = &m->catalog[i];
        bool reads = other->state == FSM_CKPT_GOOD || other->state == FSM_CKPT_REMOVING;
        if (reads && other->parent_generation == ckpt->generation &&
            other->parent_step == ckpt->step && other->parent_generation > 0)
            return true;
    }
    return false;
}

/* ---- saves ---- */

int fsm_save_index(const struct fsm *m, uint64_t step, uint32_t generation)
{
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        if (save->state != FSM_SAVE_FREE && save->step == step && save->generation == generation)
            return i;
    }
    return -1;
}

const struct fsm_save *fsm_find_save(const struct fsm *m, uint64_t step, uint32_t generation)
{
    int index = fsm_save_index(m, step, generation);
    return index < 0 ? NULL : &m->saves[index];
}

int fsm_answered_save(const struct fsm_ctx *t)
{
    const struct fsm_answer *answer = &t->ev->answer;
    int index = fsm_save_index(t->m, answer->step, answer->generation);
    return index >= 0 && t->m->saves[index].try_number == answer->try_number ? index : -1;
}

uint32_t fsm_folder_try(const struct fsm *m, uint64_t step, uint32_t generation)
{
    const struct fsm_ckpt *ckpt = fsm_find_ckpt(m, step, generation);
    const struct fsm_save *save = fsm_find_save(m, step, generation);
    return ckpt != NULL ? ckpt->try_number : save != NULL ? save->try_number : 0;
}

bool fsm_every_rank(const struct fsm *m, int index, uint8_t flag)
{
    CHECK(index >= 0);
    CHECK(index < FSM_SAVES_MAX);
    for (uint32_t i = 0; i < m->size; i++) {
        if (!(m->ranks[i].save_flags[index] & flag))
            return false;
    }
    return true;
}

bool fsm_save_busy(const struct fsm_save *save)
{
    switch (save->state) {
    case FSM_SAVE_OPENING:
    case FSM_SAVE_COLLECTING:
    case FSM_SAVE_CHECKING:
    case FSM_SAVE_COMMITTING:
    case FSM_SAVE_DROPPING:
        return true;
    case FSM_SAVE_FREE:
    case FSM_SAVE_COMMITTED:
    case FSM_SAVE_DROPPED:
        break;
    }
    return false;
}

bool fsm_saves_busy(const struct fsm *m)
{
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        if (fsm_save_busy(&m->saves[i]))
            return true;
    }
    return false;
}

bool fsm_is_base(const struct fsm *m, const struct fsm_ckpt *ckpt)
{
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        bool open = save->state >= FSM_SAVE_OPENING && save->state <= FSM_SAVE_COMMITTING;
        if (open && save->base_generation == ckpt->generation && save->base_step == ckpt->step)
            return true;
    }
    return false;
}
