/*
 * The lowest layer of the state machine: what its states are and mean. Every move of a job, a
 * generation, a save and a worker is looked up in its table, and the new state's invariant is
 * checked.
 */
#include "server/jobfsm/moves.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

/* ---- names ---- */

static const char *const state_names[] = {
    [FSM_NONE] = "JOB_STATE_UNSPECIFIED",
    [FSM_QUEUED] = "QUEUED",
    [FSM_PLACING] = "PLACING",
    [FSM_FORMING] = "FORMING",
    [FSM_RUNNING] = "RUNNING",
    [FSM_SAVING] = "SAVING",
    [FSM_RECOVERING] = "RECOVERING",
    [FSM_PAUSED] = "PAUSED",
    [FSM_SUCCEEDED] = "SUCCEEDED",
    [FSM_FAILED] = "FAILED",
    [FSM_STOPPED] = "STOPPED",
    [FSM_KILLED] = "KILLED",
};

const char *fsm_state_name(enum fsm_state state)
{
    return state_names[state];
}

bool fsm_state_final(enum fsm_state state)
{
    return state >= FSM_SUCCEEDED;
}

const char *fsm_gen_name(enum fsm_gen gen)
{
    static const char *const gen_names[] = {
        [FSM_GEN_NONE] = "NONE",
        [FSM_GEN_GONE] = "GONE",
        [FSM_GEN_SPARES] = "SPARES",
        [FSM_GEN_KEPT] = "KEPT",
        [FSM_GEN_FORMING] = "FORMING",
        [FSM_GEN_TRAINING] = "TRAINING",
        [FSM_GEN_LEAVING] = "LEAVING",
        [FSM_GEN_PARKING] = "PARKING",
        [FSM_GEN_PARKING_LATE] = "PARKING_LATE",
        [FSM_GEN_ENDING] = "ENDING",
    };
    return gen_names[gen];
}

const char *fsm_save_state_name(enum fsm_save_state state)
{
    static const char *const save_names[] = {
        [FSM_SAVE_FREE] = "FREE",
        [FSM_SAVE_OPENING] = "OPENING",
        [FSM_SAVE_COLLECTING] = "COLLECTING",
        [FSM_SAVE_CHECKING] = "CHECKING",
        [FSM_SAVE_COMMITTING] = "COMMITTING",
        [FSM_SAVE_COMMITTED] = "COMMITTED",
        [FSM_SAVE_DROPPING] = "DROPPING",
        [FSM_SAVE_DROPPED] = "DROPPED",
    };
    return save_names[state];
}

const char *fsm_worker_name(enum fsm_worker state)
{
    static const char *const worker_names[] = {
        [FSM_WORKER_GONE] = "GONE",         [FSM_WORKER_ORDERED] = "ORDERED",
        [FSM_WORKER_STARTED] = "STARTED",   [FSM_WORKER_JOINED] = "JOINED",
        [FSM_WORKER_ASSIGNED] = "ASSIGNED", [FSM_WORKER_READY] = "READY",
        [FSM_WORKER_FINISHED] = "FINISHED", [FSM_WORKER_PARKED] = "PARKED",
        [FSM_WORKER_LEAVING] = "LEAVING",
    };
    return worker_names[state];
}

/* ---- what a state means ---- */

static bool is_ready_spare(const struct fsm_rank *spare)
{
    return !spare->gone && spare->parked && !spare->ended;
}

uint32_t fsm_spares_live(const struct fsm *m)
{
    uint32_t live = 0;
    for (uint32_t i = m->size; i < m->count; i++)
        live += !m->ranks[i].gone;
    return live;
}

uint32_t fsm_spares_ready(const struct fsm *m)
{
    uint32_t ready = 0;
    for (uint32_t i = m->size; i < m->count; i++)
        ready += is_ready_spare(&m->ranks[i]);
    return ready;
}

bool fsm_spans(const struct fsm *m)
{
    bool spans = false;
    for (uint32_t i = 1; i < m->size && !spans; i++)
        spans = strcmp(m->ranks[i].node, m->ranks[0].node) != 0;
    return spans;
}

bool fsm_trains(const struct fsm *m)
{
    return m->state == FSM_RUNNING || m->state == FSM_SAVING;
}

bool fsm_all_gone(const struct fsm *m)
{
    return m->gone_count == m->size;
}

bool fsm_all_left(const struct fsm *m)
{
    uint32_t left = m->gone_count;
    for (uint32_t i = 0; m->ending.parks && i < m->size; i++)
        left += m->ranks[i].parked && !m->ranks[i].gone;
    return left == m->size;
}

enum fsm_gen fsm_gen(const struct fsm *m)
{
    if (fsm_ends(m) && m->ending.parks)
        return m->ending.hard_at != 0 ? FSM_GEN_PARKING : FSM_GEN_PARKING_LATE;
    if (fsm_ends(m))
        return m->ending.hard_at != 0 ? FSM_GEN_LEAVING : FSM_GEN_ENDING;
    switch (m->state) {
    case FSM_FORMING:
        return FSM_GEN_FORMING;
    case FSM_RUNNING:
    case FSM_SAVING:
        return FSM_GEN_TRAINING;
    case FSM_PLACING:
    case FSM_RECOVERING:
        if (!fsm_all_gone(m))
            return FSM_GEN_KEPT;
        return fsm_spares_live(m) > 0 ? FSM_GEN_SPARES : FSM_GEN_GONE;
    case FSM_NONE:
    case FSM_QUEUED:
    case FSM_PAUSED:
    case FSM_SUCCEEDED:
    case FSM_FAILED:
    case FSM_STOPPED:
    case FSM_KILLED:
        break;
    }
    return FSM_GEN_NONE;
}

bool fsm_alive(const struct fsm *m)
{
    return fsm_gen(m) >= FSM_GEN_SPARES;
}

bool fsm_is_cut_short(const struct fsm *m, uint32_t rank)
{
    const enum fsm_gen gen = fsm_gen(m);
    return (gen == FSM_GEN_ENDING || gen == FSM_GEN_PARKING_LATE) && !m->ranks[rank].parked;
}

bool fsm_is_over(const struct fsm *m, uint32_t rank)
{
    const bool told = m->config.saves_nothing && fsm_gen(m) == FSM_GEN_LEAVING;
    return told || fsm_is_cut_short(m, rank);
}

bool fsm_has_waiting(const struct fsm *m)
{
    const enum fsm_gen gen = fsm_gen(m);
    return gen == FSM_GEN_KEPT || gen == FSM_GEN_SPARES;
}

bool fsm_has_survivors(const struct fsm *m)
{
    const enum fsm_gen gen = fsm_gen(m);
    bool survivors = false;
    for (uint32_t i = 0; gen == FSM_GEN_FORMING && i < m->size; i++)
        survivors = survivors || (!m->ranks[i].gone && m->ranks[i].birth < m->generation);
    return survivors || gen == FSM_GEN_KEPT || gen == FSM_GEN_PARKING ||
           gen == FSM_GEN_PARKING_LATE;
}

bool fsm_some_finished(const struct fsm *m)
{
    bool some = false;
    for (uint32_t i = 0; m->config.saves_nothing && i < m->size && !some; i++)
        some = m->ranks[i].finished;
    return some;
}

enum fsm_worker fsm_worker(const struct fsm_rank *rank)
{
    if (rank->gone)
        return FSM_WORKER_GONE;
    if (rank->ended)
        return FSM_WORKER_LEAVING;
    if (rank->parked)
        return FSM_WORKER_PARKED;
    if (rank->finished)
        return FSM_WORKER_FINISHED;
    if (rank->ready)
        return FSM_WORKER_READY;
    if (rank->assigned)
        return FSM_WORKER_ASSIGNED;
    if (rank->joined)
        return FSM_WORKER_JOINED;
    return rank->started ? FSM_WORKER_STARTED : FSM_WORKER_ORDERED;
}

void fsm_rank_gone(struct fsm *m, uint32_t rank)
{
    m->gone_count += rank < m->size && !m->ranks[rank].gone;
    m->ranks[rank].gone = true;
    FSM_GEN_MOVED(m);
}

bool fsm_alive_rank(const struct fsm *m, uint32_t rank)
{
    if (rank == FSM_ALL_RANKS)
        return fsm_alive(m) && (!fsm_all_gone(m) || fsm_spares_live(m) > 0);
    CHECK(rank < m->count);
    return fsm_alive(m) && !m->ranks[rank].gone;
}

bool fsm_holds_slot(const struct fsm *m, uint32_t rank)
{
    const struct fsm_rank *of = &m->ranks[rank];
    const bool is_new = m->state == FSM_PLACING && of->birth > m->generation;
    return rank < m->count && (is_new || (fsm_alive(m) && !of->gone));
}

/* ---- the tables ---- */

struct move {
    uint32_t from; /* bits of states */
    int to;
    const char *function;
};

/* The moves of one kind of thing; the names of its states are those of their enum. */
struct move_table {
    const char *what;
    const struct move *moves;
    size_t count;
    const char *(*name)(int state);
};

#define BIT_OF_STATE(state)  (1U << FSM_##state)
#define BIT_OF_GEN(state)    (1U << FSM_GEN_##state)
#define BIT_OF_SAVE(state)   (1U << FSM_SAVE_##state)
#define BIT_OF_WORKER(state) (1U << FSM_WORKER_##state)

#define STATE_MOVE(from, to, function, remark)  { from, FSM_##to, #function },
#define GEN_MOVE(from, to, function, remark)    { from, FSM_GEN_##to, #function },
#define SAVE_MOVE(from, to, function, remark)   { from, FSM_SAVE_##to, #function },
#define WORKER_MOVE(from, to, function, remark) { from, FSM_WORKER_##to, NULL },

static const struct move state_moves[] = { FSM_STATE_MOVES(STATE_MOVE, BIT_OF_STATE) };
static const struct move gen_moves[] = { FSM_GEN_MOVES(GEN_MOVE, BIT_OF_GEN) };
static const struct move save_moves[] = { FSM_SAVE_MOVES(SAVE_MOVE, BIT_OF_SAVE) };
static const struct move worker_moves[] = { FSM_WORKER_MOVES(WORKER_MOVE, BIT_OF_WORKER) };

static const char *name_of_state(int state)
{
    return fsm_state_name((enum fsm_state)state);
}

static const char *name_of_gen(int state)
{
    return fsm_gen_name((enum fsm_gen)state);
}

static const char *name_of_save(int state)
{
    return fsm_save_state_name((enum fsm_save_state)state);
}

static const char *name_of_worker(int state)
{
    return fsm_worker_name((enum fsm_worker)state);
}

#define TABLE(what, moves, name)                                                                   \
    {                                                                                              \
        what, moves, sizeof(moves) / sizeof((moves)[0]), name                                      \
    }

static const struct move_table states = TABLE("job", state_moves, name_of_state);
static const struct move_table gens = TABLE("generation", gen_moves, name_of_gen);
static const struct move_table saves = TABLE("save", save_moves, name_of_save);
static const struct move_table workers = TABLE("worker", worker_moves, name_of_worker);

static void __attribute__((noreturn))
refuse(const struct move_table *table, int from, int to, const char *function, const char *why)
{
    char text[256];
    (void)snprintf(text, sizeof(text), "a %s moves from %s to %s in %s: %s", table->what,
                   table->name(from), table->name(to), function != NULL ? function : "an event",
                   why);
    check_failed(text, __FILE__, __LINE__);
}

/* Checks that the table has the move. */
static void look_up(const struct move_table *table, int from, int to, const char *function)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct move *move = &table->moves[i];
        if (move->to == to && (move->from >> from & 1) &&
            (move->function == NULL || (function != NULL && strcmp(move->function, function) == 0)))
            return;
    }
    refuse(table, from, to, function, "that isn't in its table (moves.h)");
}

/* ---- a job ---- */

void fsm_move_by(struct fsm *m, enum fsm_state to, const char *function)
{
    const enum fsm_state from = m->state;
    if (from == to)
        return;
    look_up(&states, (int)from, (int)to, function);
    m->state = to;
    if (to == FSM_RUNNING && fsm_ends(m))
        refuse(&states, (int)from, (int)to, function, "its generation ends");
    if (to == FSM_FORMING && m->generation == 0)
        refuse(&states, (int)from, (int)to, function, "there is no generation");
    if (fsm_state_final(to) && !fsm_all_gone(m))
        refuse(&states, (int)from, (int)to, function, "it has workers"); /* invariant 5 */
}

/* ---- its generation ---- */

/* Returns what is wrong with a generation in that state; NULL: nothing is. */
static const char *wrong_with_gen(const struct fsm *m, enum fsm_gen gen)
{
    switch (gen) {
    case FSM_GEN_NONE:
        return m->state == FSM_QUEUED || m->state == FSM_PAUSED || fsm_state_final(m->state)
                   ? NULL
                   : "the job is under way";
    case FSM_GEN_GONE:
    case FSM_GEN_SPARES:
        return fsm_all_gone(m) ? NULL : "a worker of it is there";
    case FSM_GEN_KEPT:
        for (uint32_t i = 0; i < m->size; i++) {
            if (!m->ranks[i].gone && !m->ranks[i].parked)
                return "a worker of it has not parked";
        }
        return NULL;
    case FSM_GEN_FORMING:
    case FSM_GEN_TRAINING:
        return m->generation > 0 && m->token[0] != '\0' ? NULL : "it has no number, or no token";
    case FSM_GEN_LEAVING:
    case FSM_GEN_ENDING:
        return m->state == FSM_RUNNING ? "the job is RUNNING, as if nothing ended" : NULL;
    case FSM_GEN_PARKING:
    case FSM_GEN_PARKING_LATE:
        return m->state == FSM_RECOVERING ? NULL : "the job doesn't recover";
    }
    return "no such state";
}

void fsm_gen_moved_by(struct fsm *m, const char *function)
{
    const enum fsm_gen from = m->gen, to = fsm_gen(m);
    if (from == to)
        return;
    look_up(&gens, (int)from, (int)to, function);
    m->gen = to;
    const char *wrong = wrong_with_gen(m, to);
    if (wrong != NULL)
        refuse(&gens, (int)from, (int)to, function, wrong);
}

/* ---- a save ---- */

void fsm_save_move_by(struct fsm_save *save, enum fsm_save_state to, const char *function)
{
    const enum fsm_save_state from = save->state;
    if (from == to)
        return;
    look_up(&saves, (int)from, (int)to, function);
    save->state = to;
    if (save->generation == 0)
        refuse(&saves, (int)from, (int)to, function, "it is of no generation");
}

/* ---- a worker ---- */

void fsm_worker_moved(struct fsm *m, uint32_t rank)
{
    if (rank >= m->count)
        return; /* a spare that was forgotten */
    struct fsm_rank *of = &m->ranks[rank];
    const enum fsm_worker from = of->worker, to = fsm_worker(of);
    if (from == to)
        return;
    look_up(&workers, (int)from, (int)to, NULL);
    of->worker = to;
    if (to == FSM_WORKER_PARKED && of->ended)
        refuse(&workers, (int)from, (int)to, NULL, "it is to go");
    if (to == FSM_WORKER_READY && !of->started)
        refuse(&workers, (int)from, (int)to, NULL, "it was never started");
}
