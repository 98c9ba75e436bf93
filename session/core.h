/*
 * The trainer's end of the Training protocol as a pure state machine: orders, local calls and the
 * time go in, messages come out. It has no thread, clock, socket or file; the caller holds a lock.
 *
 *     core_state.h      what it remembers, with the states of a save and the invariants
 *     core_events.c     what it hears: the link, calls of the step thread, announced saves, orders
 *     core_saves.c      saves
 *     core_files.c      copy files: which may be written to, which copy lies where
 *     core_park.c       the generation's end, for the process or with it going on
 *     core_messages.c   what it says, and the last words
 *
 * Messages are pulled: session_core_next fills in the one to send now, session_core_sent says that
 * it was taken. One that was not taken is offered again; one that needs an answer is offered again
 * on every new connection until the answer came.
 */
#pragma once

#include "session/core_state.h"

/* ---- lifecycle, link ---- */

MUST_CHECK enum status session_core_init(struct session_core *core, const char *job,
                                         uint32_t generation, uint32_t number, uint32_t pid,
                                         int64_t now_ms);
void session_core_release(struct session_core *core);

void session_core_link_up(struct session_core *core);
void session_core_link_down(struct session_core *core, int64_t now_ms);
/* Time passes: forgets what no answer came to. Before session_core_next. */
void session_core_tick(struct session_core *core, int64_t now_ms);
/* The generation is over for this rank, for a reason that no order gave. */
void session_core_end(struct session_core *core, const char *reason);

/* Fills in the message to send now; false: none. The link is up. */
bool session_core_next(const struct session_core *core, const struct session_progress *progress,
                       int64_t now_ms, struct session_out *out);
void session_core_sent(struct session_core *core, const struct session_out *out, int64_t now_ms);
/* Takes ownership of order. */
void session_core_order(struct session_core *core, Cairn__V1__TrainerOrder *order, int64_t now_ms);

/* ---- local calls ---- */

/* Sets the copies that hello offers; call before session_core_hello. */
MUST_CHECK enum status session_core_offer(struct session_core *core,
                                          const struct session_copy *copies, size_t count);
/* Sets the state that this process kept of an earlier generation; call before
 * session_core_hello. */
void session_core_offer_state(struct session_core *core, const struct session_parked *parked);
MUST_CHECK enum status session_core_hello(struct session_core *core, const char *pins);
/* Returns the coordinator's assignment (message Plan); call once it came. ST_INVALID: it makes no
 * sense. */
MUST_CHECK enum status session_core_assignment(const struct session_core *core,
                                               struct session_assignment *out);
MUST_CHECK enum status session_core_ready(struct session_core *core,
                                          const struct session_ready *ready);
void session_core_row(struct session_core *core, const struct session_row *row, int64_t wall_ms);
/* Adds one more step to the time of this rank's lanes. */
void session_core_note_lanes(struct session_core *core, uint32_t lanes, int64_t us);
void session_core_fault(struct session_core *core, const struct session_fault_record *fault);
void session_core_wanted(struct session_core *core, bool leaves, uint64_t grace_ms,
                         const char *reason);
void session_core_finished(struct session_core *core, uint64_t step);

/* Returns the order to read a checkpoint back that came since the last call; false: none. */
bool session_core_read_order(struct session_core *core, struct readback_order *out);
void session_core_read_news(struct session_core *core, const struct readback_news *news);
/* True if a shard is being written. */
bool session_core_writes(const struct session_core *core);

/*
 * The meeting of that name, begun with this part if it isn't yet. Answered, its parts are taken by
 * session_core_met. Errors: those of common/rendezvous.h
 */
MUST_CHECK enum status session_core_meet(struct session_core *core, const char *name,
                                         const struct rendezvous_part *mine, uint32_t ranks,
                                         const struct session_meeting **out);
/* out: [ranks]. ST_INVALID: the answer makes no sense. */
MUST_CHECK enum status session_core_met(const struct session_meeting *meeting,
                                        struct rendezvous_got *out);

/* ---- parking (its states are in core_state.h) ---- */

/* Answers an order Park, once the step thread neither reads nor writes the state any more. Only the
 * first call counts. */
void session_core_parked(struct session_core *core, const struct session_parked *kept);
/* Returns the generation in which this process goes on; token: [SESSION_TOKEN]. false: unknown yet,
 * or over. */
bool session_core_regrouped(const struct session_core *core, uint32_t *out_generation,
                            uint32_t *out_number, char *out_token);

/* ---- saves ---- */

enum session_due session_core_due(struct session_core *core, uint64_t step);
/* Like session_core_due, for any step, which may lie ahead; announced saves don't count. */
enum session_due session_core_due_by_rule(const struct session_core *core, uint64_t step);
/* Sets the number of copy files, and how many of them saves may hold. Before the first save. */
void session_core_files(struct session_core *core, int file_count, int saves_max);
/* Takes a copy file that no save needs, for a copy of that step: the one with the oldest copy.
 * ST_AGAIN: all are needed. ST_STALE: ended. */
MUST_CHECK enum status session_core_copy_begin(struct session_core *core, uint64_t step,
                                               int *out_file);
void session_core_copied(struct session_core *core, int file, bool ok);
/* Returns the newest whole copy; -1: there is none. */
int session_core_newest(const struct session_core *core);
/* Returns the whole copy of that step, or -1. */
int session_core_whole(const struct session_core *core, uint64_t step);
/*
 * last: nothing comes after it, so that it waits for a copy file as long as it takes.
 * Errors: ST_AGAIN    later
 *         ST_REFUSED  late: those before are under way (never of the last)
 *         ST_EXISTS   that step is written already
 *         ST_STALE    ended
 */
MUST_CHECK enum status session_core_save_begin(struct session_core *core, uint64_t step, bool last,
                                               int *out_index);
/* Gives up that step's save; the coordinator will hear of it. */
void session_core_save_late(struct session_core *core, uint64_t step);
/* ok false: the copy failed, there is no such save. */
void session_core_save_copied(struct session_core *core, int index, bool ok);
/* Returns the record that the saver must work on, or -1. WRITING: write the snapshot into dir.
 * REMOVING: unlink the file in dir. */
int session_core_saver_work(struct session_core *core);
/* Takes ownership of report. */
void session_core_save_written(struct session_core *core, int index, Cairn__V1__SaveReport *report);
/* why: for people; cut to LIMIT_REASON. */
void session_core_save_failed(struct session_core *core, int index, enum status st, const char *why,
                              bool removed);
void session_core_save_removed(struct session_core *core, int index);
/* True if the saver writes or removes a shard: a wait for a save is then a wait for the store. */
bool session_core_at_store(const struct session_core *core);
/* True if no save is under way. A save that gave way to a newer one and only lacks an answer
 * doesn't count. */
bool session_core_settled(const struct session_core *core);

/* ---- what outlives a message ---- */

/* Returns the writer's report of a shard as a message; NULL: no memory. Free it as an unpacked
 * one. */
Cairn__V1__SaveReport *session_report_new(const struct ckpt_report *report, int64_t write_ms);
/* Packs the last words; *out: free(). */
MUST_CHECK enum status session_core_last_words(const struct session_core *core,
                                               const struct session_progress *progress,
                                               uint8_t **out, size_t *out_size);
