#include "server/jobfsm/inspect/blocked.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/park.h"
#include "server/jobfsm/state.h"

const char *fsm_block_name(enum fsm_block by)
{
    static const char *const names[] = {
        [FSM_BLOCK_NONE] = "",
        [FSM_BLOCK_WORKERS] = "workers",
        [FSM_BLOCK_SAVE] = "save",
        [FSM_BLOCK_BACKOFF] = "backoff",
        [FSM_BLOCK_ROOM] = "room",
        [FSM_BLOCK_STATE] = "state",
        [FSM_BLOCK_STORE] = "store",
        [FSM_BLOCK_CHECKPOINT] = "checkpoint",
        [FSM_BLOCK_SLOTS] = "slots",
        [FSM_BLOCK_FORMING] = "forming",
        [FSM_BLOCK_PATH] = "path",
        [FSM_BLOCK_QUEUE] = "queue",
        [FSM_BLOCK_DRAINING] = "draining",
        [FSM_BLOCK_UNREADABLE] = "unreadable",
    };
    CHECK(by <= FSM_BLOCK_UNREADABLE);
    return names[by];
}

/* Says what blocks the job. at: when that ends by itself; 0: nobody knows. */
static void __attribute__((format(printf, 5, 6)))
say(struct fsm_blocked *out, enum fsm_block by, int64_t now, int64_t at, const char *format, ...)
{
    char text[LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    out->by = by;
    out->for_ms = at > now ? at - now : 0;
    fsm_text(out->text, sizeof(out->text), text);
}

static double seconds(const struct fsm_blocked *out)
{
    return (double)out->for_ms / 1e3;
}

/* Adds to the text when the wait ends, if that is known. */
static void add_time(struct fsm_blocked *out, const char *what)
{
    char text[LIMIT_REASON];
    if (out->for_ms == 0)
        return;
    (void)snprintf(text, sizeof(text), "%.400s; %s in %.1f s", out->text, what, seconds(out));
    fsm_text(out->text, sizeof(out->text), text);
}

/* ---- a generation that ends ---- */

static bool has_left(const struct fsm *m, uint32_t rank)
{
    return m->ranks[rank].gone || (m->ending.parks && m->ranks[rank].parked);
}

static void by_workers(const struct fsm *m, int64_t now, struct fsm_blocked *out)
{
    uint32_t first = m->size, count = 0;
    for (uint32_t i = m->size; i-- > 0;) {
        count += !has_left(m, i);
        first = has_left(m, i) ? first : i;
    }
    CHECK(first < m->size);
    const struct fsm_rank *rank = &m->ranks[first];
    const enum fsm_gen gen = fsm_gen(m);
    const bool by_itself = gen == FSM_GEN_LEAVING || gen == FSM_GEN_PARKING;
    const int64_t killed = m->ending.ended_at + FSM_UNKILLABLE_MS;
    const int64_t gone = killed > m->grace_until ? killed : m->grace_until;
    say(out, FSM_BLOCK_WORKERS, now, by_itself ? m->ending.hard_at : gone,
        "%u of %u workers of generation %u %s; the first of them is rank %u on node %s%s", count,
        m->size, m->generation,
        gen == FSM_GEN_LEAVING      ? "have not left yet"
        : gen == FSM_GEN_PARKING    ? "have not parked yet"
        : count == 1 && m->size > 1 ? "is being ended"
                                    : "are being ended",
        first, rank->node, rank->agent >= FSM_AGENT_SILENT ? ", whose agent is silent" : "");
    add_time(out, by_itself ? "those that are left then are ended" : "it counts as gone");
}

/* ---- saves ---- */

static const char *save_is(enum fsm_save_state state)
{
    switch (state) {
    case FSM_SAVE_OPENING:
        return "its folder is being made";
    case FSM_SAVE_COLLECTING:
        return "its workers write";
    case FSM_SAVE_CHECKING:
        return "its files are being checked";
    case FSM_SAVE_COMMITTING:
        return "its manifest is being published";
    case FSM_SAVE_DROPPING:
        return "it is dropped, and its files are being removed";
    case FSM_SAVE_FREE:
    case FSM_SAVE_COMMITTED:
    case FSM_SAVE_DROPPED:
        break;
    }
    return "it is over";
}

/* false: no save is under way. */
static bool by_save(const struct fsm *m, int64_t now, struct fsm_blocked *out)
{
    const struct fsm_save *save = NULL;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *other = &m->saves[i];
        if (fsm_save_busy(other) && (save == NULL || other->step < save->step))
            save = other;
    }
    if (save == NULL)
        return false;
    say(out, FSM_BLOCK_SAVE, now, save->retry_at,
        "the checkpoint of step %llu is not done: %s%s%s%s%.300s", (unsigned long long)save->step,
        save_is(save->state), save->failures > 0 ? "; it failed " : "",
        save->failures == 1  ? "once"
        : save->failures > 1 ? "several times"
                             : "",
        save->message[0] ? ": " : "", save->message);
    add_time(out, "the store is asked again");
    return true;
}

/* ---- a job that waits ---- */

static void by_checkpoint(const struct fsm *m, int64_t now, struct fsm_blocked *out)
{
    const struct fsm_ckpt *newest = fsm_newest(m);
    const unsigned long long step = newest != NULL ? (unsigned long long)newest->step : 0;
    if (fsm_distrusts(m)) {
        say(out, FSM_BLOCK_CHECKPOINT, now, 0,
            "checkpoints after step %llu hold what was computed wrongly, and are set aside first",
            (unsigned long long)m->audit.good_step);
    } else if (newest != NULL && newest->state != FSM_CKPT_GOOD) {
        say(out, FSM_BLOCK_CHECKPOINT, now, 0,
            "the checkpoint of step %llu is damaged, and is set aside first", step);
    } else {
        say(out, FSM_BLOCK_CHECKPOINT, now, 0,
            "the checkpoint of step %llu, or one that it builds on, is read first, as a worker "
            "found it damaged",
            step);
    }
}

static void by_word(const struct fsm *m, int64_t now, struct fsm_blocked *out)
{
    uint32_t silent = 0;
    while (silent + 1 < m->size && (m->ranks[silent].gone || m->ranks[silent].joined))
        silent++;
    say(out, FSM_BLOCK_STATE, now, m->ending.survivors_until,
        "rank %u on node %s has not said again which state it has", silent, m->ranks[silent].node);
    add_time(out, "nobody waits for it any more");
}

static void by_waiting(const struct fsm *m, int64_t now, struct fsm_blocked *out)
{
    if (now < m->retry_at && m->probe_failed) {
        say(out, FSM_BLOCK_STORE, now, m->retry_at, "the checkpoint store takes no file");
        add_time(out, "it is asked again");
        return;
    }
    if (now < m->retry_at) {
        say(out, FSM_BLOCK_BACKOFF, now, m->retry_at, "it waits before it tries again, after %s",
            m->cause.kind != FSM_FAULT_NONE ? fsm_fault_name(m->cause.kind) : "the last try");
        add_time(out, "it tries");
        return;
    }
    out->by = FSM_BLOCK_SLOTS;
    if (m->state == FSM_QUEUED)
        return;
    if (fsm_distrusts(m) || fsm_damage_pending((struct fsm *)m)) { /* which only looks */
        by_checkpoint(m, now, out);
    } else if (fsm_awaits_word(m)) {
        by_word(m, now, out);
    } else if (!fsm_reaches_min(m)) {
        say(out, FSM_BLOCK_ROOM, now, 0,
            "workers that end, or that start, hold places of the %u workers that it needs at least",
            m->config.min);
    }
}

/* ---- a generation that forms, or saves ---- */

static const char *worker_is(enum fsm_worker worker)
{
    switch (worker) {
    case FSM_WORKER_ORDERED:
        return "its agent has not started it yet";
    case FSM_WORKER_STARTED:
        return "it has not said hello yet";
    case FSM_WORKER_JOINED:
        return "it has joined, and waits for its part";
    case FSM_WORKER_ASSIGNED:
        return "it prepares";
    case FSM_WORKER_PARKED:
        return "it is parked";
    case FSM_WORKER_LEAVING:
        return "it is being ended";
    case FSM_WORKER_GONE:
        return "it is gone";
    case FSM_WORKER_READY:
    case FSM_WORKER_FINISHED:
        break;
    }
    return "it is ready";
}

/* Names the worker that is least far: the others wait for it. */
static void by_forming(const struct fsm *m, int64_t now, struct fsm_blocked *out)
{
    uint32_t last = 0, ready = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        ready += m->ranks[i].ready;
        if (fsm_worker(&m->ranks[i]) < fsm_worker(&m->ranks[last]))
            last = i;
    }
    const struct fsm_rank *rank = &m->ranks[last];
    const enum fsm_worker worker = fsm_worker(rank);
    const bool comes = worker == FSM_WORKER_ORDERED || worker == FSM_WORKER_STARTED;
    const int64_t at = m->started_at + FSM_HELLO_MS;
    const bool prepares = worker == FSM_WORKER_ASSIGNED && rank->phase[0] != '\0';
    if (worker == FSM_WORKER_ASSIGNED && m->config.program && !m->config.saves_nothing) {
        say(out, FSM_BLOCK_FORMING, now, 0,
            "%u of %u workers are ready; rank %u on node %s: since the generation began, %.0f s "
            "ago, "
            "its program has not called cairn_ready",
            ready, m->size, last, rank->node, (double)(now - m->started_at) / 1e3);
        return;
    }
    say(out, FSM_BLOCK_FORMING, now, comes ? at : 0,
        "%u of %u workers are ready; rank %u on node %s: %s%s%s", ready, m->size, last, rank->node,
        worker_is(worker), prepares ? ", " : "", prepares ? rank->phase : "");
    add_time(out, "it counts as failed");
}

void fsm_blocked(const struct fsm *m, int64_t now, struct fsm_blocked *out)
{
    *out = (struct fsm_blocked){ .by = FSM_BLOCK_NONE };
    switch (fsm_gen(m)) {
    case FSM_GEN_LEAVING:
    case FSM_GEN_PARKING:
    case FSM_GEN_PARKING_LATE:
    case FSM_GEN_ENDING:
        if (!fsm_all_left(m)) {
            by_workers(m, now, out);
        } else {
            (void)by_save(m, now, out);
        }
        return;
    case FSM_GEN_GONE:
    case FSM_GEN_SPARES:
    case FSM_GEN_KEPT:
        if (m->state == FSM_PLACING) {
            say(out, FSM_BLOCK_STORE, now, 0,
                "it has slots; the checkpoint store is asked whether it takes a file");
        } else {
            by_waiting(m, now, out);
        }
        return;
    case FSM_GEN_FORMING:
        by_forming(m, now, out);
        return;
    case FSM_GEN_TRAINING:
        if (m->state == FSM_SAVING)
            (void)by_save(m, now, out);
        return;
    case FSM_GEN_NONE:
        if (m->state == FSM_QUEUED)
            by_waiting(m, now, out);
        return;
    }
}
