/*
 * The moves that a job, its generation, a save and a worker may make, a table for each. A row has
 * the states that a move begins in, the state that it leads to, the function that makes it, and
 * when. Each move is looked up as it is made: one that isn't in its table, or that another function
 * makes, is a bug (check_failed), and so is a state whose invariant doesn't hold then (moves.c).
 *
 * The diagrams in jobfsm.h and parts.h are made from these tables (tests/tidy/moves.py). Each is
 * called with X(from, to, function, remark), where B(STATE) adds a state to `from`.
 */
#pragma once

#include "server/jobfsm/ctx.h"

/* Moves between states of a job (enum fsm_state). It begins as QUEUED. */
#define FSM_STATE_MOVES(X, B)                                                                      \
    X(B(QUEUED) | B(RECOVERING), PLACING, fsm_on_placed, "slots were found")                       \
    X(B(PLACING), QUEUED, fsm_unplace, "the store takes no file, or a node leaves; it never ran")  \
    X(B(PLACING), RECOVERING, fsm_unplace, "the same, after a generation")                         \
    X(B(PLACING), QUEUED, fsm_resume, "the coordinator is back; it never ran")                     \
    X(B(PLACING), RECOVERING, fsm_resume, "the coordinator is back")                               \
    X(B(PLACING), FORMING, form_generation, "the store took a file")                               \
    X(B(FORMING), RUNNING, fsm_enter_running, "all ranks are ready")                               \
    X(B(RUNNING), SAVING, fsm_enter_running, "it was to stop or pause, and hasn't saved yet")      \
    X(B(RUNNING), SAVING, find_or_open, "the last save begins")                                    \
    X(B(RUNNING), SAVING, ask_to_leave, "pause, stop, drain")                                      \
    X(B(RUNNING), SAVING, fsm_watch, "its time is over")                                           \
    X(B(RUNNING), SAVING, fsm_end_ranks, "all finished, kill, drain")                              \
    X(FSM_WITH_WORKERS(B), RECOVERING, fsm_end_ranks, "a failure: all workers are ended")          \
    X(FSM_WITH_WORKERS(B), RECOVERING, park, "a failure, or a change: workers go on")              \
    X(B(FORMING) | B(SAVING), RECOVERING, close_generation, "it left without the last step")       \
    X(FSM_NOT_OVER(B), QUEUED, fsm_enter_idle, "drain")                                            \
    X(FSM_NOT_OVER(B), PAUSED, fsm_enter_idle, "pause")                                            \
    X(FSM_NOT_OVER(B), SUCCEEDED, fsm_enter_idle, "the last step is saved")                        \
    X(FSM_NOT_OVER(B), FAILED, fsm_enter_idle, "by its own fault")                                 \
    X(FSM_NOT_OVER(B), STOPPED, fsm_enter_idle, "stop")                                            \
    X(FSM_NOT_OVER(B), KILLED, fsm_enter_idle, "kill")                                             \
    X(B(PAUSED) | B(STOPPED), QUEUED, ask_resume, "from its newest checkpoint")

/* States in which there may be workers, or some are on their way. */
#define FSM_WITH_WORKERS(B) (B(PLACING) | B(FORMING) | B(RUNNING) | B(SAVING))
#define FSM_NOT_OVER(B)     (FSM_WITH_WORKERS(B) | B(QUEUED) | B(RECOVERING) | B(PAUSED))

/* Moves of a job's newest generation (enum fsm_gen). */
#define FSM_GEN_MOVES(X, B)                                                                        \
    X(B(NONE), GONE, fsm_on_placed, "its first one is to form")                                    \
    X(B(GONE), NONE, fsm_unplace, "its first one doesn't form yet")                                \
    X(FSM_GEN_BETWEEN(B), FORMING, form_generation, "the next one; its number rises")              \
    X(B(FORMING), TRAINING, fsm_enter_running, "all ranks are ready")                              \
    X(B(FORMING) | B(TRAINING), PARKING, park, "workers that aren't to blame go on")               \
    X(B(PARKING), PARKING_LATE, fsm_watch_ending, "some haven't parked in time: these are ended")  \
    X(B(TRAINING), LEAVING, fsm_end_ranks, "it has saved: workers leave by themselves")            \
    X(B(LEAVING), ENDING, fsm_watch_ending, "some haven't left in time: these are ended")          \
    X(FSM_GEN_ALIVE(B), ENDING, fsm_end_ranks, "all workers are ended")                            \
    X(FSM_GEN_LEAVES(B), KEPT, close_generation, "all have left; parked workers wait")             \
    X(FSM_GEN_LEAVES(B), SPARES, close_generation, "all have left; spares wait")                   \
    X(FSM_GEN_LEAVES(B), GONE, close_generation, "all have left; another one is to form")          \
    X(B(KEPT), SPARES, fsm_rank_gone, "the last worker that waited went")                          \
    X(B(KEPT) | B(SPARES), GONE, fsm_rank_gone, "the last that waited went")                       \
    X(B(GONE), SPARES, end_turn, "a spare was started")                                            \
    X(FSM_GEN_ALIVE(B) | B(GONE), NONE, fsm_enter_idle, "no other one is to form")

/* No generation trains, and one is to form. */
#define FSM_GEN_BETWEEN(B) (B(GONE) | B(SPARES) | B(KEPT))
/* The generation ends: fsm_ends. */
#define FSM_GEN_LEAVES(B) (B(LEAVING) | B(PARKING) | B(PARKING_LATE) | B(ENDING))
/* There are processes, or may be: fsm_alive. */
#define FSM_GEN_ALIVE(B) (FSM_GEN_LEAVES(B) | B(SPARES) | B(KEPT) | B(FORMING) | B(TRAINING))

/* Moves of a save (enum fsm_save_state). FREE is the state of a place without a save. */
#define FSM_SAVE_MOVES(X, B)                                                                       \
    X(B(FREE), OPENING, find_or_open, "a rank begins; the folder is being made")                   \
    X(B(DROPPED), OPENING, open_save, "ranks, or people, still want it")                           \
    X(B(OPENING), COLLECTING, fsm_on_folder_done, "ranks are told where, write and report")        \
    X(B(COLLECTING), CHECKING, check_save, "the last report is journalled")                        \
    X(B(CHECKING), COMMITTING, fsm_on_check_done, "journalled with the manifest: it decides")      \
    X(B(COMMITTING), COMMITTED, fsm_on_publish_done, "repeated until it succeeds")                 \
    X(B(OPENING) | B(COLLECTING) | B(CHECKING), DROPPING, fsm_save_drop, "it can't be completed")  \
    X(B(COMMITTING), DROPPING, fsm_save_drop, "the folder was removed, and stays gone")            \
    X(B(DROPPING), DROPPED, fsm_on_drop_done, "the folder is gone, or in nobody's way")            \
    X(B(DROPPING), DROPPED, give_up_on, "a rank doesn't say that its file is gone")                \
    X(B(FREE), DROPPED, drop_before_begin, "a rank will not save it")                              \
    X(B(FREE), DROPPED, drop_passed, "a rank has trained past it")

/* Moves of a worker (enum fsm_worker), from one event about it to the next, by whichever
 * functions. */
#define FSM_WORKER_MOVES(X, B)                                                                     \
    X(B(GONE), ORDERED, any, "its agent is told to start it")                                      \
    X(B(GONE) | B(ORDERED), STARTED, any, "it has a process, or is known to have one")             \
    X(B(GONE) | B(ORDERED) | B(STARTED), JOINED, any, "its hello")                                 \
    X(FSM_WORKER_COMES(B), ASSIGNED, any, "all have joined: it is told its part")                  \
    X(FSM_WORKER_COMES(B) | B(ASSIGNED), READY, any,                                               \
      "it has the state; or the coordinator is new")                                               \
    X(FSM_WORKER_COMES(B) | B(ASSIGNED) | B(READY), FINISHED, any, "it ends by itself")            \
    X(FSM_WORKER_LIVES(B) | B(GONE), PARKED, any, "it left its generation; a spare: it is ready")  \
    X(FSM_WORKER_LIVES(B) | B(GONE), LEAVING, any, "it alone is being ended")                      \
    X(B(PARKED), JOINED, any, "a spare has lost its session")                                      \
    X(B(PARKED), READY, any, "no generation followed in time: it ends with the others")            \
    X(FSM_WORKER_LIVES(B) | B(LEAVING), GONE, any, "its process ended, or counts as gone")

#define FSM_WORKER_COMES(B) (B(GONE) | B(ORDERED) | B(STARTED) | B(JOINED))
#define FSM_WORKER_LIVES(B)                                                                        \
    (B(ORDERED) | B(STARTED) | B(JOINED) | B(ASSIGNED) | B(READY) | B(FINISHED) | B(PARKED))

/* Moves the job to that state. To the state it is in: nothing happens. */
#define FSM_MOVE(m, to) fsm_move_by(m, to, __func__)
/* Called after each change of what fsm_gen goes by. */
#define FSM_GEN_MOVED(m) fsm_gen_moved_by(m, __func__)
/* Moves a save. To the state it is in: nothing happens. */
#define FSM_SAVE_MOVE(save, to) fsm_save_move_by(save, to, __func__)

void fsm_move_by(struct fsm *m, enum fsm_state to, const char *function);
void fsm_gen_moved_by(struct fsm *m, const char *function);
void fsm_save_move_by(struct fsm_save *save, enum fsm_save_state to, const char *function);
/* Looks at a worker at the end of an event about it. */
void fsm_worker_moved(struct fsm *m, uint32_t rank);

/* ---- what the states mean ---- */

bool fsm_alive(const struct fsm *m);  /* the job has, or may have, trainers */
bool fsm_spans(const struct fsm *m);  /* the ranks are on two nodes or more */
bool fsm_trains(const struct fsm *m); /* the workers train: RUNNING, SAVING */
bool fsm_all_gone(const struct fsm *m);
/* True if every worker of the generation is gone or, in a generation that parks, has parked. */
bool fsm_all_left(const struct fsm *m);
/* True if workers of the generation before are on their way into the next one, or in it while it
 * forms, with what they trained. */
bool fsm_has_survivors(const struct fsm *m);
/* True if the program of some rank has ended with success, in a job of which nothing is saved. */
bool fsm_some_finished(const struct fsm *m);
void fsm_rank_gone(struct fsm *m, uint32_t rank); /* the rank has no process any more */
/* Counts the spares that live, and those of them that are ready to take a seat. */
uint32_t fsm_spares_live(const struct fsm *m);
uint32_t fsm_spares_ready(const struct fsm *m);
