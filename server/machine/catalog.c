/*
 * The contents of a job's store: checkpoints that were committed, and saves under way. These are
 * lists and questions only: nothing in here decides.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/machine/internal.h"

/* ---- checkpoints ---- */

/* The order of the catalog: by step, then generation. */
static int compare_ckpts(const void *a, const void *b)
{
    const struct machine_ckpt *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->generation > y->generation) - (x->generation < y->generation);
}

enum status machine_add_ckpt(struct machine *m, const struct machine_ckpt *ckpt)
{
    if (m->catalog_count >= MACHINE_CATALOG_MAX)
        return ST_FULL;
    if (m->catalog_count == m->catalog_capacity) {
        size_t capacity = m->catalog_capacity ? 2 * m->catalog_capacity : 8;
        struct machine_ckpt *more = realloc(m->catalog, capacity * sizeof *more);
        if (!more)
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

const struct machine_ckpt *machine_newest(const struct machine *m)
{
    for (size_t i = m->catalog_count; i > 0; i--) {
        if (m->catalog[i - 1].state == MACHINE_CKPT_GOOD)
            return &m->catalog[i - 1];
    }
    return NULL;
}

struct machine_ckpt *machine_ckpt_at(struct machine *m, uint64_t step, uint32_t generation)
{
    struct machine_ckpt key = { .step = step, .generation = generation };
    if (m->catalog_count == 0)
        return NULL;
    return bsearch(&key, m->catalog, m->catalog_count, sizeof key, compare_ckpts);
}

const struct machine_ckpt *machine_find_ckpt(const struct machine *m, uint64_t step,
                                             uint32_t generation)
{
    return machine_ckpt_at((struct machine *)m, step, generation);
}

bool machine_final_committed(const struct machine *m)
{
    const struct machine_ckpt *newest = machine_newest(m);
    return newest && m->total_steps > 0 && newest->step >= m->total_steps;
}

/* ---- chains: checkpoints that are read through others ---- */

struct machine_ckpt *machine_chain_next(struct machine *m, const struct machine_ckpt *ckpt)
{
    return ckpt->parent_generation == 0
               ? NULL
               : machine_ckpt_at(m, ckpt->parent_step, ckpt->parent_generation);
}

bool machine_in_chain(struct machine *m, const struct machine_ckpt *of,
                      const struct machine_ckpt *ckpt)
{
    for (int i = 0; of && i <= MACHINE_CHAIN_MAX; i++) {
        if (of == ckpt)
            return true;
        of = machine_chain_next(m, of);
    }
    return false;
}

/* A checkpoint's own suspicion, and what is set aside, are all that counts: whatever else is being
 * read, or set aside, changes nothing about what a generation would restore. */
bool machine_damage_pending(struct machine *m)
{
    struct machine_ckpt *restored = machine_ckpt_at(m, m->restore.step, m->restore.generation);
    const struct machine_ckpt *c = machine_newest(m);
    for (; c; c = machine_chain_next(m, c)) {
        if (c->state != MACHINE_CKPT_GOOD)
            return true;
        if (m->damage_suspected && c->suspected && machine_in_chain(m, restored, c))
            return true;
    }
    return false;
}

bool machine_is_distrusted(const struct machine *m, const struct machine_ckpt *ckpt)
{
    return ckpt->state == MACHINE_CKPT_GOOD && ckpt->generation <= m->audit.generation &&
           ckpt->step > m->audit.good_step;
}

bool machine_distrusts(const struct machine *m)
{
    bool found = false;
    for (size_t i = 0; i < m->catalog_count && !found; i++)
        found = machine_is_distrusted(m, &m->catalog[i]);
    return found;
}

bool machine_is_parent(const struct machine *m, const struct machine_ckpt *ckpt)
{
    for (size_t i = 0; i < m->catalog_count; i++) {
        const struct machine_ckpt *other = &m->catalog[i];
        bool reads = other->state == MACHINE_CKPT_GOOD || other->state == MACHINE_CKPT_REMOVING;
        if (reads && other->parent_generation == ckpt->generation &&
            other->parent_step == ckpt->step && other->parent_generation > 0)
            return true;
    }
    return false;
}

/* ---- saves ---- */

int machine_save_index(const struct machine *m, uint64_t step, uint32_t generation)
{
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &m->saves[i];
        if (save->state != MACHINE_SAVE_FREE && save->step == step &&
            save->generation == generation)
            return i;
    }
    return -1;
}

const struct machine_save *machine_find_save(const struct machine *m, uint64_t step,
                                             uint32_t generation)
{
    int index = machine_save_index(m, step, generation);
    return index < 0 ? NULL : &m->saves[index];
}

int machine_answered_save(const struct machine_turn *t)
{
    const struct machine_answer *answer = &t->ev->answer;
    int index = machine_save_index(t->m, answer->step, answer->generation);
    return index >= 0 && t->m->saves[index].retry == answer->retry ? index : -1;
}

uint32_t machine_folder_try(const struct machine *m, uint64_t step, uint32_t generation)
{
    const struct machine_ckpt *ckpt = machine_find_ckpt(m, step, generation);
    const struct machine_save *save = machine_find_save(m, step, generation);
    return ckpt ? ckpt->retry : save ? save->retry : 0;
}

bool machine_every_rank(const struct machine *m, int index, uint8_t flag)
{
    CHECK(index >= 0);
    CHECK(index < MACHINE_SAVES_MAX);
    for (uint32_t i = 0; i < m->size; i++) {
        if (!(m->ranks[i].save_flags[index] & flag))
            return false;
    }
    return true;
}

bool machine_save_busy(const struct machine_save *save)
{
    switch (save->state) {
    case MACHINE_SAVE_OPENING:
    case MACHINE_SAVE_COLLECTING:
    case MACHINE_SAVE_CHECKING:
    case MACHINE_SAVE_COMMITTING:
    case MACHINE_SAVE_DROPPING:
        return true;
    case MACHINE_SAVE_FREE:
    case MACHINE_SAVE_COMMITTED:
    case MACHINE_SAVE_DROPPED:
        break;
    }
    return false;
}

bool machine_saves_busy(const struct machine *m)
{
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        if (machine_save_busy(&m->saves[i]))
            return true;
    }
    return false;
}

bool machine_is_base(const struct machine *m, const struct machine_ckpt *ckpt)
{
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &m->saves[i];
        bool open = save->state >= MACHINE_SAVE_OPENING && save->state <= MACHINE_SAVE_COMMITTING;
        if (open && save->base_generation == ckpt->generation && save->base_step == ckpt->step)
            return true;
    }
    return false;
}
