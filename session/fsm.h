/*
 * The trainer's end of the Training protocol as a pure state machine: orders, local calls and the
 * time go in, messages come out. It has no thread, clock, socket or file; the caller holds a lock.
 *
 *     fsm_state.h      what it remembers, with the states of a save and the invariants
 *     fsm_events.c     what it hears: the link, calls of the step thread, announced saves, orders
 *     fsm_saves.c      saves
 *     fsm_files.c      copy files: which may be written to, which copy lies where
 *     fsm_park.c       the generation's end, for the process or with it going on
 *     fsm_messages.c   what it says, and the last words
 *
 * Messages are pulled: session_fsm_next fills in the one to send now, session_fsm_sent says that
 * it was taken. One that was not taken is offered again; one that needs an answer is offered again
 * on every new connection until the answer came.
 */
#pragma once

#include "session/fsm_state.h"

/* ---- lifecycle, link ---- */

MUST_CHECK enum status session_fsm_init(struct session_fsm *fsm, const char *job,
                                        uint32_t generation, uint32_t number, uint32_t pid,
                                        int64_t now_ms);
void session_fsm_release(struct session_fsm *fsm);

void session_fsm_link_up(struct session_fsm *fsm);
void session_fsm_link_down(struct session_fsm *fsm, int64_t now_ms);
/* Time passes: forgets what no answer came to. Before session_fsm_next. */
void session_fsm_tick(struct session_fsm *fsm, int64_t now_ms);
/* The generation is over for this rank, for a reason that no order gave. */
void session_fsm_end(struct session_fsm *fsm, const char *reason);

/* Fills in the message to send now; false: none. The link is up. */
bool session_fsm_next(const struct session_fsm *fsm, const struct session_progress *progress,
                      int64_t now_ms, struct session_out *out);
void session_fsm_sent(struct session_fsm *fsm, const struct session_out *out, int64_t now_ms);
/* Takes ownership of order. */
void session_fsm_order(struct session_fsm *fsm, Cairn__V1__TrainerOrder *order, int64_t now_ms);

/* ---- local calls ---- */

/* Sets the copies that hello offers; call before session_fsm_hello. */
MUST_CHECK enum status session_fsm_offer(struct session_fsm *fsm, const struct session_copy *copies,
                                         size_t count);
/* Sets the state that this process kept of an earlier generation; call before
 * session_fsm_hello. */
void session_fsm_offer_state(struct session_fsm *fsm, const struct session_parked *parked);
MUST_CHECK enum status session_fsm_hello(struct session_fsm *fsm, const char *pins);
/* Returns the coordinator's assignment (message Plan); call once it came. ST_INVALID: it makes no
 * sense. */
MUST_CHECK enum status session_fsm_assignment(const struct session_fsm *fsm,
                                              struct session_assignment *out);
MUST_CHECK enum status session_fsm_ready(struct session_fsm *fsm,
                                         const struct session_ready *ready);
void session_fsm_row(struct session_fsm *fsm, const struct session_row *row, int64_t wall_ms);
/* Adds one more step to the time of this rank's lanes. */
void session_fsm_note_lanes(struct session_fsm *fsm, uint32_t lanes, int64_t us);
void session_fsm_fault(struct session_fsm *fsm, const struct session_fault_record *fault);
/* After session_fsm_ready: `step` is the last one instead. */
void session_fsm_last(struct session_fsm *fsm, uint64_t step, const char *reason);
void session_fsm_wanted(struct session_fsm *fsm, bool leaves, uint64_t grace_ms,
                        const char *reason);
void session_fsm_finished(struct session_fsm *fsm, uint64_t step);

/* Returns the order to read a checkpoint back that came since the last call; false: none. */
bool session_fsm_read_order(struct session_fsm *fsm, struct readback_order *out);
void session_fsm_read_news(struct session_fsm *fsm, const struct readback_news *news);
/* True if a shard is being written. */
bool session_fsm_writes(const struct session_fsm *fsm);

/*
 * The round of that name, begun with this part if it isn't yet. Answered, its parts are taken by
 * session_fsm_rendezvous_result. Errors: those of common/rendezvous.h
 */
MUST_CHECK enum status session_fsm_rendezvous_join(struct session_fsm *fsm, const char *name,
                                                   const struct rendezvous_part *mine,
                                                   uint32_t ranks,
                                                   const struct session_rendezvous_round **out);
/* out: [ranks]. ST_INVALID: the answer makes no sense. */
MUST_CHECK enum status session_fsm_rendezvous_result(const struct session_rendezvous_round *round,
                                                     struct rendezvous_got *out);

/* ---- parking (its states are in fsm_state.h) ---- */

/* Answers an order Park, once the step thread neither reads nor writes the state any more. Only the
 * first call counts. */
void session_fsm_parked(struct session_fsm *fsm, const struct session_parked *kept);
/* Returns the generation in which this process goes on; token: [SESSION_TOKEN]. false: unknown yet,
 * or over. */
bool session_fsm_regrouped(const struct session_fsm *fsm, uint32_t *out_generation,
                           uint32_t *out_number, char *out_token);

/* ---- saves ---- */

enum session_due session_fsm_due(struct session_fsm *fsm, uint64_t step);
/* Takes it that nothing was due, or was asked for, up to `step` finished steps. */
void session_fsm_reached(struct session_fsm *fsm, uint64_t step);
/* Returns the first step, after that which was asked for or reached, at which session_fsm_due may
 * say or hear something; 0: ended; UINT64_MAX: none. */
uint64_t session_fsm_next_due(const struct session_fsm *fsm);
/* Like session_fsm_due, for any step, which may lie ahead; announced saves don't count. */
enum session_due session_fsm_due_by_rule(const struct session_fsm *fsm, uint64_t step);
/* Sets the number of copy files, and how many of them saves may hold. Before the first save. */
void session_fsm_files(struct session_fsm *fsm, int file_count, int saves_max);
/* Notes that a copy file lies in this process's own memory, and why: progress says it from now on,
 * where ready had nothing to say. */
void session_fsm_copies_alone(struct session_fsm *fsm, const struct reason *why);
/* Takes a copy file that no save needs, for a copy of that step: the one with the oldest copy.
 * ST_AGAIN: all are needed. ST_STALE: ended. */
MUST_CHECK enum status session_fsm_copy_begin(struct session_fsm *fsm, uint64_t step,
                                              int *out_file);
void session_fsm_copied(struct session_fsm *fsm, int file, bool ok);
/* Returns the newest complete copy; -1: there is none. */
int session_fsm_newest(const struct session_fsm *fsm);
/* Returns the complete copy of that step, or -1. */
int session_fsm_complete_copy(const struct session_fsm *fsm, uint64_t step);
/*
 * last: nothing comes after it, so that it waits for a copy file as long as it takes.
 * Errors: ST_AGAIN    later
 *         ST_REFUSED  late: those before are under way (never of the last)
 *         ST_EXISTS   that step is written already
 *         ST_STALE    ended
 */
MUST_CHECK enum status session_fsm_save_begin(struct session_fsm *fsm, uint64_t step, bool last,
                                              int *out_index);
/* Saves a complete copy, beyond those that saves may hold.
 * Errors: ST_EXISTS  it is saved, or is being saved; ST_INCOMPLETE  there is no such copy (any
 *         more); ST_AGAIN  a copy is being made; ST_STALE */
MUST_CHECK enum status session_fsm_save_again(struct session_fsm *fsm, uint64_t step);
/* Gives up that step's save; the coordinator will hear of it. */
void session_fsm_save_late(struct session_fsm *fsm, uint64_t step);
/* ok false: the copy failed, there is no such save. */
void session_fsm_save_copied(struct session_fsm *fsm, int index, bool ok);
/* Returns the record that the saver must work on, or -1. WRITING: write the snapshot into dir.
 * REMOVING: unlink the file in dir. */
int session_fsm_saver_work(struct session_fsm *fsm);
/* Takes ownership of report. */
void session_fsm_save_written(struct session_fsm *fsm, int index, Cairn__V1__SaveReport *report);
/* why: for people; cut to LIMIT_REASON. */
void session_fsm_save_failed(struct session_fsm *fsm, int index, enum status st, const char *why,
                             bool removed);
void session_fsm_save_removed(struct session_fsm *fsm, int index);
/* True if the saver writes or removes a shard: a wait for a save is then a wait for the store. */
bool session_fsm_at_store(const struct session_fsm *fsm);
/* True if no save is under way. A save that gave way to a newer one and only lacks an answer
 * doesn't count. */
bool session_fsm_settled(const struct session_fsm *fsm);

/* ---- what outlives a message ---- */

/* Returns the writer's report of a shard as a message; NULL: no memory. Free it as an unpacked
 * one. */
Cairn__V1__SaveReport *session_report_new(const struct ckpt_report *report, int64_t write_ms);
/* Packs the last words; *out: free(). */
MUST_CHECK enum status session_fsm_last_words(const struct session_fsm *fsm,
                                              const struct session_progress *progress,
                                              uint8_t **out, size_t *out_size);
