/*
 * From READY on: the ranks of the generation compare what they described and agree how often copies
 * are taken; the session is ready; once every rank has copies of its own, older ones go.
 *
 *     layout    what all have alike, and the bytes of each rank's area
 *     areas     of workers that run several processes: the bytes of the area of each
 *     copies    how many steps from one copy to the next
 *     copied    the newest step that each rank has a copy of
 *     all-copied  every rank has one of the newest of these
 */
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "session/memory/headroom.h"
#include "trainer/relay/internal.h"

/* What a rank brings to the round "layout": of its first process. */
struct part {
    uint64_t area, step, total_steps, steps_per_epoch;
    struct ckpt_hash hash;
};
_Static_assert(sizeof(struct part) <= RENDEZVOUS_COMMON_MAX, "a part fits into a round");

/* What it brings to the round "areas": in chunks. */
struct part_areas {
    uint32_t chunks[RELAY_PROCESSES_MAX];
};
_Static_assert(sizeof(struct part_areas) <= RENDEZVOUS_COMMON_MAX, "a part fits into a round");

/* Says what differs between two ranks; NULL: nothing. */
static const char *find_difference(const struct part *a, const struct part *b)
{
    if (memcmp(&a->hash, &b->hash, sizeof(a->hash)) != 0)
        return "describe different replicated tensors";
    if (a->total_steps != b->total_steps)
        return "train for different numbers of steps";
    if (a->step != b->step)
        return "begin at different steps";
    return a->steps_per_epoch != b->steps_per_epoch ? "have epochs of different lengths" : NULL;
}

static uint64_t area_of(const struct relay_process *p)
{
    return p->saved.places.buffer_bytes[PLACE_RANKS];
}

static struct part part_of(const struct relay_process *p)
{
    return (struct part){ .area = area_of(p),
                          .step = p->began.step,
                          .total_steps = p->began.total_steps,
                          .steps_per_epoch = p->began.steps_per_epoch,
                          .hash = p->saved.hash };
}

/* ST_CONFIG: two ranks say what can't be; that was noted. */
static enum status compare(struct relay *r, uint32_t a_rank, const struct part *a, uint32_t b_rank,
                           const struct part *b)
{
    const char *difference = find_difference(a, b);
    if (difference == NULL)
        return ST_OK;
    relay_fail(r,
               "the programs of rank %u and rank %u %s (%llu tensors here, step %llu of %llu; %llu "
               "of %llu)",
               a_rank, b_rank, difference, (unsigned long long)r->saved->count,
               (unsigned long long)a->step, (unsigned long long)a->total_steps,
               (unsigned long long)b->step, (unsigned long long)b->total_steps);
    return ST_CONFIG;
}

/* Compares the worker's own processes. */
static enum status compare_own(struct relay *r)
{
    const uint32_t rank = r->options.assignment->rank * r->count;
    const struct part first = part_of(&r->processes[0]);
    enum status st = ST_OK;
    for (uint32_t i = 1; i < r->count && st == ST_OK; i++) {
        const struct part other = part_of(&r->processes[i]);
        st = compare(r, rank, &first, rank + i, &other);
    }
    return st;
}

/* Exchanges the bytes of all areas, of workers with several processes. */
static enum status meet_areas(struct relay *r, struct rendezvous_got *got, uint64_t *areas)
{
    const uint64_t chunk = ckpt_chunk_elements(CKPT_U8);
    struct part_areas mine = { .chunks = { 0 } };
    for (uint32_t i = 0; i < r->count; i++)
        mine.chunks[i] = (uint32_t)(area_of(&r->processes[i]) / chunk);
    const enum status st = relay_meet(r, "areas", &mine, sizeof(mine), got);
    for (uint32_t w = 0; st == ST_OK && w < r->options.assignment->size; w++) {
        struct part_areas other;
        memcpy(&other, got[w].common, sizeof(other));
        for (uint32_t i = 0; i < r->count; i++)
            areas[(size_t)w * r->count + i] = other.chunks[i] * chunk;
    }
    return st;
}

static enum status meet_layout(struct relay *r)
{
    const struct session_assignment *a = r->options.assignment;
    const struct part mine = part_of(&r->processes[0]);
    struct reason why = { "" };
    auto_free struct rendezvous_got *got = calloc(a->size, sizeof(*got));
    auto_free uint64_t *areas = calloc((size_t)a->size * r->count, sizeof(*areas));
    if (got == NULL || areas == NULL)
        return ST_NO_MEMORY;
    enum status st = compare_own(r);
    if (st == ST_OK)
        st = relay_meet(r, "layout", &mine, sizeof(mine), got);
    struct part first = mine;
    for (uint32_t i = 0; i < a->size && st == ST_OK; i++) {
        struct part other;
        memcpy(&other, got[i].common, sizeof(other));
        first = i == 0 ? other : first;
        areas[(size_t)i * r->count] = other.area;
        st = compare(r, 0, &first, i * r->count, &other);
    }
    if (st == ST_OK && r->count > 1)
        st = meet_areas(r, got, areas);
    if (st != ST_OK)
        return st;
    st = saved_deal(r->saved, areas, a->rank, a->size, r->count, &why);
    if (st == ST_CONFIG)
        relay_fail(r, "%s", why.text);
    return st;
}

/* ---- memory ---- */

static enum ckpt_level level_of(enum jobspec_level level)
{
    switch (level) {
    case JOBSPEC_LEVEL_FAST:
        return CKPT_FAST;
    case JOBSPEC_LEVEL_MAX:
        return CKPT_MAX;
    case JOBSPEC_LEVEL_NONE:
    case JOBSPEC_LEVEL_DEFAULT:
        break;
    }
    return CKPT_DEFAULT;
}

/* Fits the demands of all ranks into checkpoint.memory. */
static enum status fit_memory(struct relay *r, struct session_ready *ready, enum session_lack *lack,
                              struct reason *out_why)
{
    const uint32_t size = r->options.assignment->size;
    const bool begins =
        r->processes[0].began.step == 0 && size >= (uint32_t)r->options.job->workers.count;
    auto_free struct session_demand *demands = calloc(size, sizeof(*demands));
    if (demands == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < size; i++) {
        demands[i] = session_demand_of(ready);
        demands[i].share_bytes = (size_t)saved_share_bytes(r->saved, i);
        demands[i].every = r->options.job->checkpoint.memory_every > 0;
    }
    enum status st = begins ? session_bound_check(demands, size, out_why) : ST_OK;
    if (st != ST_OK)
        return st;
    struct session_demand *mine = &demands[r->options.assignment->rank];
    *lack = session_lack_of(demands, size);
    if (*lack != SESSION_LACK_NOTHING) {
        session_lack_describe(*lack, session_least(demands, size, *lack - 1), size, out_why);
        session_do_without(*lack, mine);
        ready->memory_bytes_max = mine->bytes_max;
    }
    return ST_OK;
}

static uint32_t workers_here(const struct session_assignment *a)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < a->size; i++)
        count += a->nodes == NULL || strcmp(a->nodes[i], a->nodes[a->rank]) == 0;
    return count;
}

/* Whether this node has room for copies every so many steps. */
static bool has_room(const struct relay *r, const struct session_ready *ready, struct reason *why)
{
    const struct session_assignment *a = r->options.assignment;
    const struct session_headroom headroom = session_headroom_measure(r->options.copies);
    struct session_demand demand = session_demand_of(ready);
    struct session_budget budget;
    demand.every = true;
    if (r->options.job->checkpoint.memory_every == JOBSPEC_EVERY_AUTO)
        return session_headroom_holds(&headroom, &demand, workers_here(a), &budget, why);
    return session_budget(&demand, &budget) == ST_OK &&
           session_headroom_fits(&headroom, &budget, workers_here(a), why);
}

/* Agrees how often copies are taken: as the job says, each step where it doesn't, never where some
 * node has no room. */
static enum status agree_copies(struct relay *r, enum session_lack lack,
                                struct session_ready *ready, struct reason *why)
{
    const int64_t every = r->options.job->checkpoint.memory_every;
    const uint32_t size = r->options.assignment->size;
    if (every == 0)
        reason_set(why, "checkpoint.memory_every: none");
    if (every == 0 || lack >= SESSION_LACK_EVERY)
        return ST_OK; /* on all ranks */
    auto_free struct rendezvous_got *got = calloc(size, sizeof(*got));
    if (got == NULL)
        return ST_NO_MEMORY;
    uint8_t fits = has_room(r, ready, why);
    enum status st = relay_meet(r, "copies", &fits, sizeof(fits), got);
    for (uint32_t i = 0; st == ST_OK && i < size; i++)
        fits = fits && got[i].common[0] != 0;
    if (st == ST_OK && fits)
        ready->memory_every = every == JOBSPEC_EVERY_AUTO ? 1 : (uint64_t)every;
    if (st == ST_OK && !fits && why->text[0] == '\0')
        reason_set(why, "another node has no room for them");
    return st;
}

static enum status get_ready(struct relay *r)
{
    const struct jobspec *job = r->options.job;
    const enum jobspec_unit unit = job->checkpoint.every.unit;
    const bool by_time = unit == JOBSPEC_MS || unit == JOBSPEC_AUTO; /* announced, then */
    struct reason why = { "" };
    enum session_lack lack = SESSION_LACK_NOTHING;
    struct session_ready ready = { .total_steps = r->processes[0].began.total_steps,
                                   .steps_per_epoch = r->processes[0].began.steps_per_epoch,
                                   .state_bytes = saved_state_bytes(r->saved),
                                   .step = r->processes[0].began.step,
                                   .pins = "{}",
                                   .level = level_of(job->checkpoint.level),
                                   .threads = (uint32_t)job->checkpoint.threads,
                                   .differs = job->checkpoint.delta,
                                   .snapshot_bytes_max =
                                       (size_t)saved_share_bytes(r->saved, r->saved->rank),
                                   .memory_bytes_max = (size_t)job->checkpoint.memory_bytes,
                                   .shared = true };
    enum status st = ST_OK;
    if (!by_time && jobspec_duration_steps(&job->checkpoint.every, ready.steps_per_epoch,
                                           &ready.save_every) != ST_OK) {
        reason_set(&why, "checkpoint.every: epochs, and the program has none");
        st = ST_CONFIG;
    }
    if (st == ST_OK)
        st = session_share_check(ready.snapshot_bytes_max, ready.state_bytes, &why);
    if (st == ST_OK && ready.memory_bytes_max != 0)
        st = fit_memory(r, &ready, &lack, &why);
    if (st == ST_OK)
        st = agree_copies(r, lack, &ready, &why);
    ready.memory_reason = why.text;
    if (st == ST_OK)
        st = session_set_ready(r->options.session, &ready);
    if (st == ST_CONFIG || st == ST_FULL)
        relay_fail(r, "%s", why.text[0] != '\0' ? why.text : status_string(st));
    return st;
}

/* ---- older copies ---- */

/* Waits for a copy of a step after `after`. */
static enum status await_copy(struct relay *r, uint64_t after, uint64_t *out_step)
{
    const struct copy_file *file = NULL;
    enum status st = session_keep_newest(r->options.session, after, &file);
    if (st != ST_OK)
        return st;
    *out_step = copy_file_state(file)->scalars.step;
    session_unkeep(r->options.session, file);
    return ST_OK;
}

/* What this generation was restored from goes once every rank has a copy of its own of the same
 * step: whoever dies before, all go on from the older ones. */
static enum status let_older_go(struct relay *r)
{
    const uint32_t size = r->options.assignment->size;
    uint64_t mine = 0, newest = 0;
    auto_free struct rendezvous_got *got = calloc(size, sizeof(*got));
    if (got == NULL)
        return ST_NO_MEMORY;
    enum status st = await_copy(r, r->processes[0].began.step, &mine);
    if (st == ST_OK)
        st = relay_meet(r, "copied", &mine, sizeof(mine), got);
    for (uint32_t i = 0; st == ST_OK && i < size; i++) {
        uint64_t step = 0;
        memcpy(&step, got[i].common, sizeof(step));
        newest = step > newest ? step : newest;
    }
    if (st == ST_OK && mine < newest)
        st = await_copy(r, newest - 1, &mine);
    if (st == ST_OK)
        st = relay_meet(r, "all-copied", &mine, sizeof(mine), got);
    if (st == ST_OK)
        session_peers_complete(r->options.session);
    return st;
}

void *relay_form(void *relay)
{
    struct relay *r = relay;
    (void)pthread_setname_np(pthread_self(), "cairn-form");
    enum status st = meet_layout(r);
    if (st == ST_OK)
        st = get_ready(r);
    if (st == ST_OK) {
        (void)pthread_mutex_lock(&r->mutex);
        r->formed = true;
        (void)pthread_mutex_unlock(&r->mutex);
        session_follow(r->options.session, &r->processes[0].followed);
        LOG_INFO(r->options.log, "the program trains from step %llu of %llu, %.1f MB of state",
                 (unsigned long long)r->processes[0].began.step,
                 (unsigned long long)r->processes[0].began.total_steps,
                 (double)saved_state_bytes(r->saved) / 1e6);
        st = let_older_go(r);
        if (st == ST_OK)
            relay_watch_exits(r);
    } else if (st != ST_STALE && st != ST_CONFIG && st != ST_FULL) {
        relay_fail(r, "the programs of all ranks couldn't agree: %s", status_string(st));
    }
    return NULL;
}
