/*
 * Declarations that the files of the state machine share.
 *
 * The sections stand in the order of their layers, the lowest first: a file calls what stands above
 * its own section, never what stands below. The machine changes only within a turn: one event
 * taken, with the actions that it leads to.
 */
#pragma once

#include "server/jobfsm/jobfsm.h"
#include "server/jobfsm/save_interval.h"

#define FSM_HELLO_MS       60000  /* from the start of a trainer to its hello */
#define FSM_WINDOW_MS      250    /* for the first cause to arrive */
#define FSM_WINDOW_NEW_MS  2000   /* soon after the coordinator's start: agents come back */
#define FSM_SESSION_MS     10000  /* for a lost session to come back, at least */
#define FSM_SILENT_MS      5000   /* config.silent_ms, unless said otherwise */
#define FSM_CUT_OFF_MS     300000 /* a node is waited for that others reach, or train with */
#define FSM_STANDSTILL_MS  3000   /* no progress, on several nodes: are paths broken? */
#define FSM_PINS_MS        5000   /* for the others to say theirs, once some pins differ */
#define FSM_GRACE_MS       10000  /* after the coordinator's start: nobody is judged lost */
#define FSM_MISSING_MS     1000   /* for the exit of a trainer that its agent doesn't list */
#define FSM_LEAVE_MS       10000  /* for trainers to leave after the last commit */
#define FSM_END_AGAIN_MS   2000   /* between two FSM_ACT_END */
#define FSM_PARK_MS        5000   /* for workers to say that they have parked, at least */
#define FSM_PARK_STEPS     3      /* or so many steps, if these take longer */
#define FSM_PARK_MAX_MS    60000  /* but no longer than this */
#define FSM_AWAIT_SAVES_MS 10000  /* at most, for what workers write, if the end is planned */
#define FSM_KEEP_MS        30000  /* for kept workers to find the next generation */
#define FSM_REPLACE_MS     60000  /* slow for so long, a worker is replaced */
#define FSM_USELESS_MS     20000  /* not worth a lane for so long, a worker is left out */
#define FSM_REPLACED_MS    600000 /* between two of these */
#define FSM_NEVER_MS       5000   /* a trainer that never showed up counts as gone */
#define FSM_UNDYING_MS     15000  /* a trainer that SIGKILL doesn't end counts as gone */
#define FSM_ASSUMED_MS     10000  /* for ranks that may have nothing to unlink */
#define FSM_REMOVE_MS      60000  /* for ranks to unlink their files of a dropped save */
#define FSM_PROBE_MS       60000  /* between two questions whether the store answers us */
#define FSM_STUCK_TIMES    4      /* times the wait before a save is dropped, a rank is ended */
#define FSM_SLOW_BYTES_MS  10000  /* a store that takes less in a ms, in an fsync, is stuck */
#define FSM_WATCH_MS       500    /* how often the rules of silence are looked at */
#define FSM_LOOK_MS        20     /* so often after messages of trainers, at most */
#define FSM_BARREN_MAX     10     /* without progress; all by the job's own fault: FAILED */
#define FSM_LACKING_MAX    16     /* nodes that lack what it needs; then it is the job's fault */
#define FSM_LIVE_TRIES     3      /* generations in a row without progress; then none is kept */
/* How much a disagreement of workers counts while what is computed again isn't right, either. One
 * more try follows where nobody can tell who is wrong, three more where that is known: the node may
 * be the only one, and so stay in use. */
#define FSM_WRONG_KNOWN    1
#define FSM_WRONG_UNKNOWN  2
#define FSM_WRONG_MAX      4 /* FAILED */
#define FSM_BUDGET         3 /* failures at the same place; then FAILED */
#define FSM_BACKOFF_MAX_MS 60000
/* The wait after FSM_BARREN_MAX generations without progress: each failure costs a row of the
 * journal, and there is no end. */
#define FSM_BACKOFF_BARREN_MS 300000
#define FSM_DATA_MS           15000 /* until data that differed are looked at again */
#define FSM_STORE_TRIES       5
#define FSM_LEAD_MS           500    /* for workers to hear of an announced save */
#define FSM_PASSES_MAX        16     /* doublings of that */
#define FSM_CHAIN_MAX         7      /* checkpoints that one is read through; the eighth is whole */
#define FSM_READ_MS           300000 /* a rank that reads back says something every second */
#define FSM_READ_TRIES        2      /* in vain in a row; then the coordinator reads */
#define FSM_READ_PACE         1000   /* bytes a rank and ms: it is never spread thinner */

/* The context of one event, which its handlers get. */
struct fsm_ctx {
    struct fsm *m;
    const struct fsm_event *ev; /* NULL: the job is resumed */
    struct fsm_actions *out;
    int64_t now, wall;
};

/* ---- catalog.c: checkpoints and saves of the job; lists and questions ---- */

struct fsm_ckpt *fsm_ckpt_at(struct fsm *m, uint64_t step, uint32_t generation);
/* True if the checkpoint of the job's last step is committed. */
bool fsm_final_committed(const struct fsm *m);
/* True if what the next generation would restore is still to be read after a report of damage, or
 * is read through a checkpoint that is set aside. */
bool fsm_damage_pending(struct fsm *m);
/* True if the checkpoint may hold what was computed wrongly; fsm_distrusts: if any does. */
bool fsm_is_distrusted(const struct fsm *m, const struct fsm_ckpt *ckpt);
bool fsm_distrusts(const struct fsm *m);
/* Returns the checkpoint that ckpt holds differences to, or NULL. */
struct fsm_ckpt *fsm_chain_next(struct fsm *m, const struct fsm_ckpt *ckpt);
/* True if ckpt is `of`, or one that `of` is read through. */
bool fsm_in_chain(struct fsm *m, const struct fsm_ckpt *of, const struct fsm_ckpt *ckpt);
/* True if another checkpoint holds differences to ckpt. */
bool fsm_is_parent(const struct fsm *m, const struct fsm_ckpt *ckpt);
/* True if a save under way may write differences to ckpt. */
bool fsm_is_base(const struct fsm *m, const struct fsm_ckpt *ckpt);
/* Returns the save's place in m->saves, or -1. */
int fsm_save_index(const struct fsm *m, uint64_t step, uint32_t generation);
/* Returns the place of the save that the store's answer is about; -1: there is no such save, or
 * another try of it is under way by now. */
int fsm_answered_save(const struct fsm_ctx *t);
/* True if all ranks have that flag for the save. */
bool fsm_every_rank(const struct fsm *m, int index, uint8_t flag);
/* True while the save can still commit, or is still to be removed; fsm_saves_busy: while any
 * can. */
bool fsm_save_busy(const struct fsm_save *save);
bool fsm_saves_busy(const struct fsm *m);

/* ---- failure_kinds.c: what the kinds of failures mean, and waits after them ---- */

/* Returns how much a report says about the cause. Within the window (FSM_WINDOW_MS) a better
 * one replaces a worse one; one of weight 3 or more needs no window. */
int fsm_fault_weight(const struct fsm_fault *fault);
/* True if the fault uses the job's budget: FSM_BUDGET such faults at one step or phase end the
 * job. */
bool fsm_fault_counts(const struct fsm_fault *fault);
/* Returns the last step known to be correct, m->audit.sure or later. States that differ were equal
 * when they were compared last (good_step), whichever generation did it. Lanes that differ say
 * nothing beyond m->audit.sure, as a generation knows only its own audits of lanes. */
uint64_t fsm_fault_good_step(const struct fsm *m, const struct fsm_fault *fault);
/* True if a broken path between two nodes of the generation shows as such a fault. */
bool fsm_fault_of_paths(const struct fsm_fault *fault);
/* True if workers that are not to blame may go on after the fault. */
bool fsm_fault_outlived(const struct fsm_fault *fault);
/* True if the fault may come from what the job asks for, and not from what happened to it. */
bool fsm_fault_is_own(const struct fsm_fault *fault);
/* True if more than FSM_BARREN_MAX generations in a row made no progress: a person may want to
 * know. */
bool fsm_is_barren(const struct fsm *m);
/* Returns the time from a failure until the next generation; 0 after the first failure in a row. */
int64_t fsm_backoff_ms(const struct fsm *m);

/* ---- state.c: actions, the reason, what a state means, accounts, endings ---- */

struct fsm_action *fsm_act(struct fsm_ctx *t, enum fsm_action_kind kind);
struct fsm_action *fsm_act_on(struct fsm_ctx *t, enum fsm_action_kind kind, uint64_t step,
                              uint32_t generation);
void fsm_ask_store(struct fsm_ctx *t, enum fsm_task task, uint64_t step, uint32_t generation);
/* Adds an event for people to the job's history, at the current step. */
void fsm_tell(struct fsm_ctx *t, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Like fsm_tell, for an explicit step. */
void fsm_tell_of(struct fsm_ctx *t, uint64_t step, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void fsm_text(char *out, size_t capacity, const char *text); /* copies, cuts; NULL: "" */
void fsm_set_reason(struct fsm *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool fsm_alive(const struct fsm *m);  /* the job has, or may have, trainers */
bool fsm_spans(const struct fsm *m);  /* the ranks are on two nodes or more */
bool fsm_trains(const struct fsm *m); /* the workers train: RUNNING, SAVING */
bool fsm_all_gone(const struct fsm *m);
/* True if every worker of the generation is gone or, in a generation that parks, has parked. */
bool fsm_all_left(const struct fsm *m);
/* True if workers of the generation before are on their way into the next one, with what they
 * trained. */
bool fsm_goes_on(const struct fsm *m);
void fsm_rank_gone(struct fsm *m, uint32_t rank); /* the rank has no process any more */
/* Returns where a job goes whose generation saved and left as it was intended. */
enum fsm_state fsm_intended(enum fsm_intent intent);
/* How long a session may be open without a message: longer than its agent may be silent. */
int64_t fsm_mute_ms(const struct fsm *m);
/* How long a lost session has to come back: where there are thousands, each waits for its turn. */
int64_t fsm_session_ms(const struct fsm *m);
bool fsm_is_silent(const struct fsm_ctx *t, const struct fsm_rank *rank);
/* Counts a rank as gone that nobody has seen to be gone: no other trainer gets its slot until
 * somebody has. */
void fsm_count_as_gone(struct fsm_ctx *t, uint32_t rank);
int64_t fsm_lost_total(const struct fsm *m); /* without stalls: these are training */
/* Books the time since the last turn as training or as lost. */
void fsm_account(struct fsm *m, int64_t now);
/* Functions that keep the record of a recovery (server/recovery/recovery.h). Callers: book, before
 * fsm_account; fail, when a generation failed, with m->cause; mend, when the cause is another
 * one. Also end, when the generation is gone, before GEN_END; form, when the next one is formed,
 * before m->cause is cleared; tick, after every event; resume, when the coordinator is back. */
void fsm_recovery_book(struct fsm_ctx *t);
void fsm_recovery_fail(struct fsm_ctx *t, int64_t detect_ms);
void fsm_recovery_mend(struct fsm *m);
void fsm_recovery_end(struct fsm_ctx *t, enum fsm_state to);
void fsm_recovery_form(struct fsm_ctx *t);
void fsm_recovery_tick(struct fsm_ctx *t);
void fsm_recovery_resume(struct fsm_ctx *t);
/* Leaves PLACING: the slots are given back, and the scheduler places the job again. */
void fsm_unplace(struct fsm_ctx *t);
/* Counts the spares that live, and those of them that are ready to take a seat. */
uint32_t fsm_spares_live(const struct fsm *m);
uint32_t fsm_spares_ready(const struct fsm *m);
/* Ends the trainers; then the job goes to `to`. gently: they have FSM_LEAVE_MS to leave by
 * themselves. */
void fsm_end_ranks(struct fsm_ctx *t, enum fsm_state to, bool gently);
/* The job comes to rest, without trainers: QUEUED, PAUSED, or a final state. */
void fsm_rest(struct fsm_ctx *t, enum fsm_state to);

/* ---- park.c: workers that outlive their generation ---- */

/* Ends the generation for that fault. If workers may outlive the fault, those that are not to blame
 * are kept. */
void fsm_end_or_park(struct fsm_ctx *t, enum fsm_state to, const struct fsm_fault *fault);
/* True while a planned change (one without a failure) has to wait for saves that are under way. The
 * caller asks again until it is false. */
bool fsm_park_waits(struct fsm_ctx *t);
/* Parks the generation without a failure, and keeps all workers; fsm_park_but: all but one. */
void fsm_park_all(struct fsm_ctx *t);
void fsm_park_but(struct fsm_ctx *t, uint32_t rank);
/* Ends the workers that are not to go on once more, as an order may have been lost. */
void fsm_park_again(struct fsm_ctx *t);
void fsm_on_parked(struct fsm_ctx *t);
/* Records that the worker has parked (it said so by Parked, or by a hello) and which state it
 * has. */
void fsm_note_parked(struct fsm_ctx *t, uint32_t index, const struct fsm_kept *kept);
/* Begins the time in which kept workers wait for the next generation: all workers have left this
 * one. */
void fsm_keep(struct fsm_ctx *t);
/* True while the job waits for kept workers to say again, after a restart of the coordinator, which
 * state they have. Only then can it decide who goes if there are too many, and who sits where in a
 * pipeline. */
bool fsm_awaits_word(const struct fsm *m);
/* True if kept workers, ready spares and free places together reach config.min. If not, the job
 * waits for workers that are about to be gone, or ready. */
bool fsm_has_room(const struct fsm *m);
/* True in PLACING if a kept worker went since slots were found, and too few workers are left to go
 * on. */
bool fsm_is_vacated(const struct fsm *m);
/* Prepares the ranks of the generation that begins: kept workers go on in their seats, newcomers
 * start in the others. Returns how many are kept. */
uint32_t fsm_regroup(struct fsm_ctx *t);

/* ---- spares.c: workers without a part in the generation ---- */

/* Counts the spares that are not ending. fsm_spares_wanted: the configured spares, one for each
 * worker that is missing, and one to replace a worker that is slow. */
uint32_t fsm_spares_staying(const struct fsm *m);
uint32_t fsm_spares_wanted(const struct fsm *m);
/* True if a worker has been slow for so long (handlers/load_balance.c) that another one is to take
 * its seat. */
bool fsm_replaces(const struct fsm *m, int64_t now);
/* Ends the generation (fsm_end_ranks), and its spares with it. */
void fsm_end_generation(struct fsm_ctx *t, enum fsm_state to, bool gently);
/* Notes that a step is finished of which nobody had heard. After the first new step of a generation
 * more workers may start. */
void fsm_note_reached(struct fsm_ctx *t, uint64_t step);
/* Ends all spares, as the job ends or starts anew; fsm_dismiss: ends one of them. */
void fsm_dismiss_spares(struct fsm_ctx *t);
void fsm_dismiss(struct fsm_ctx *t, uint32_t index);
/* Ends a worker that had a seat and has none in the generation that comes. */
void fsm_let_go(struct fsm_ctx *t, uint32_t index);
/* Adds the actions that make the spare go (OVER and END). */
void fsm_end_spare(struct fsm_ctx *t, uint32_t index);
/* Returns a number that no worker has: `wanted`, if that is free. */
uint32_t fsm_new_number(struct fsm *m, uint32_t wanted);

/* ---- elastic.c: another number of workers ---- */

/* Chooses the ranks of the generation that is about to begin: workers that are kept, those that
 * have slots, and spares. */
void fsm_seat(struct fsm_ctx *t);
/* Gives the ranks of a job that never ran their stages, as many ranks as the job is to have. */
void fsm_cut(struct fsm *m);
/* True if the state that the rank has kept is the one that it is to have; in a pipeline: its stage,
 * of as many as there are. */
bool fsm_has_stage(const struct fsm *m, uint32_t rank);
/* True if all workers could park now, and go on in another generation. It is false while some are
 * away: after a restart of the coordinator they come back first. */
bool fsm_may_regroup(const struct fsm *m);
/* Called after every event: ends the generation if one with another number of workers is to
 * follow. */
void fsm_resize_tick(struct fsm_ctx *t);
int64_t fsm_resize_deadline(const struct fsm *m);

/* ---- save_schedule.c: saves to come ---- */

/* Announces a save for a step beyond every one reported; exit: workers leave after it. */
void fsm_announce(struct fsm_ctx *t, bool exit);
/* Like fsm_announce, for step `from` or a later one. */
void fsm_announce_from(struct fsm_ctx *t, uint64_t from, bool exit);
bool fsm_announced_exit(const struct fsm *m, uint64_t step);
/* True if workers end with the save of that step, or after it: they do nothing but wait for it. */
bool fsm_leaves_at(const struct fsm *m, uint64_t step);
/* Forgets the saves announced for that step; false: there was none. *out_exit: workers were to
 * leave after one of them. */
bool fsm_forget_announced(struct fsm *m, uint64_t step, bool *out_exit);
void fsm_due_tick(struct fsm_ctx *t);
int64_t fsm_due_deadline(const struct fsm *m);
void fsm_due_from(struct fsm_ctx *t); /* the next save by time is counted from now */
void fsm_due_resume(struct fsm_ctx *t);
/* Notes what a save cost, as `every: auto` goes by it. */
void fsm_note_cost(struct fsm_ctx *t, const struct fsm_save *save);
void fsm_note_failure(struct fsm_ctx *t); /* of a failure that cost steps */
void fsm_on_save_wanted(struct fsm_ctx *t);
void fsm_on_leaving(struct fsm_ctx *t);

/* ---- retention.c: which checkpoints stay ---- */

void fsm_ask_verify(struct fsm_ctx *t, struct fsm_ckpt *ckpt);
void fsm_set_aside(struct fsm_ctx *t, struct fsm_ckpt *ckpt, const char *why);
void fsm_drop_orphans(struct fsm_ctx *t); /* sets aside what is read through a bad one */
void fsm_remove_ckpt(struct fsm_ctx *t, struct fsm_ckpt *ckpt);
/* Removes checkpoints that nothing keeps any more, and reads back what that requires. */
void fsm_retain(struct fsm_ctx *t);
/* Ends the read-back by the ranks: they have read what they were to read, or, where `why` is not
 * NULL, it came to nothing for that reason. */
void fsm_read_back_end(struct fsm_ctx *t, const char *why);
/* Repeats READ_BACK to a rank whose session is there again. */
void fsm_read_back_resend(struct fsm_ctx *t, uint32_t rank);
void fsm_read_back_tick(struct fsm_ctx *t); /* after every event */
/* Returns the checkpoint that a save of `step` may write differences to, or NULL. */
const struct fsm_ckpt *fsm_choose_base(struct fsm *m, uint64_t step);

/* ---- corruption.c: checkpoints read back; a store that is away ---- */

/* Forgets the suspicion that the node reads badly; true: there was one. */
bool fsm_unsuspect(struct fsm *m, const char *node);

/* Notes from an answer of the store whether it is away. */
void fsm_note_away(struct fsm_ctx *t);
/* Called when a worker can't restore from the checkpoint that it was given. The coordinator reads
 * it, and those that it is read through, before anything else; only the one file that the fault
 * names, if it names one. */
void fsm_suspect_damage(struct fsm_ctx *t, const struct fsm_fault *fault);
/* Asks again for the reads that failed on the medium. */
void fsm_damage_tick(struct fsm_ctx *t);
void fsm_on_remove_done(struct fsm_ctx *t);
void fsm_on_verify_done(struct fsm_ctx *t);
void fsm_on_read_back(struct fsm_ctx *t);
void fsm_on_quarantine_done(struct fsm_ctx *t);
void fsm_catalog_resume(struct fsm_ctx *t);

/* ---- memory_copies.c: copies in memory ---- */

void fsm_copies_hear(struct fsm_ctx *t);   /* copies that FSM_EV_HELLO offers */
void fsm_copies_choose(struct fsm_ctx *t); /* once, before the first assignment */
void fsm_copies_clear(struct fsm *m);
/* Forgets what this generation would restore from memory. */
void fsm_memory_forget(struct fsm *m);
/* Called before a failure is counted. True if the copies in memory were its cause, or may have
 * been; they are not tried again. */
bool fsm_copies_failed(struct fsm_ctx *t, const struct fsm_fault *fault, bool budget);

/* ---- failure_policy.c: failures ---- */

/* Reports a sign of a failure. The generation fails at once, or a little later where a better sign
 * may follow. */
void fsm_report_fault(struct fsm_ctx *t, const struct fsm_fault *fault);
void fsm_window_tick(struct fsm_ctx *t);
/* Notes that the pins of the event's rank are not the job's: its node is left out. The generation
 * fails a little later, so that nodes of others whose pins differ are left out, too. */
void fsm_note_pins(struct fsm_ctx *t, const char *difference);
/* Called when another rank said its pins: if some differ, the generation fails once all have said
 * theirs. */
void fsm_pins_tick(struct fsm_ctx *t);
#define FSM_NODE_LOST "neither its agent nor the worker was heard"
/* Called while a generation is being ended: the node of the rank is gone. A failure that others saw
 * first (communication, a lost session) is then recorded as the loss of that node. */
void fsm_node_was_lost(struct fsm_ctx *t, uint32_t rank);
/* Handles a broken path between two nodes of the newest generation: it ends the generation, or is
 * why that ended. */
void fsm_on_path(struct fsm_ctx *t);
/* Ends the generation by a failure; the cause decides what comes next. */
void fsm_fail(struct fsm_ctx *t, const struct fsm_fault *reported);
void fsm_on_nowhere(struct fsm_ctx *t);

/* ---- save_abort.c: saves that do not become checkpoints ---- */

int64_t fsm_retry_ms(uint32_t tries);
int fsm_save_new(struct fsm_ctx *t, uint64_t step, enum fsm_save_state state);
void fsm_save_set_state(struct fsm_ctx *t, struct fsm_save *save, enum fsm_save_state state);
void fsm_send_done(struct fsm_ctx *t, uint64_t step, uint32_t rank, bool committed);
void fsm_save_drop(struct fsm_ctx *t, int index, const char *why, bool tell);
void fsm_save_remove(struct fsm_ctx *t, int index); /* once no rank can write there */
/* Gives up a dropped save whose ranks had their time to remove their files; true: it did. */
bool fsm_drop_tick(struct fsm_ctx *t, int index);
void fsm_saves_end(struct fsm_ctx *t); /* all trainers are gone: what is whole commits */
int64_t fsm_saves_deadline(const struct fsm *m);
/* Drops a save for which the store has no room. */
void fsm_save_refuse(struct fsm_ctx *t, int index, const char *why);
/* Notes that the store fails saves: sets the reason and, once until a save commits, tells an event.
 * false: nothing runs that could be saved. */
bool fsm_unsaved(struct fsm_ctx *t, const char *why);
void fsm_room_again(struct fsm_ctx *t, uint64_t step); /* a save committed */
void fsm_on_save_failed(struct fsm_ctx *t);
void fsm_on_drop_done(struct fsm_ctx *t);
void fsm_sweep(struct fsm_ctx *t);       /* after every event */
void fsm_sweep_again(struct fsm_ctx *t); /* a save committed */
void fsm_on_sweep_done(struct fsm_ctx *t);

/* ---- save.c: saves on their way to checkpoints ---- */

void fsm_on_save_begin(struct fsm_ctx *t);
void fsm_on_folder_done(struct fsm_ctx *t);
void fsm_on_save_report(struct fsm_ctx *t);
void fsm_on_save_passed(struct fsm_ctx *t);
/* Drops saves that a rank will never write: it has finished `step`, and begins a save before it
 * goes beyond that save's step. (A rank may have said that it had passed a save, to a coordinator
 * that is gone, while another rank began it.) */
void fsm_saves_beyond(struct fsm_ctx *t, uint32_t rank, uint64_t step);
void fsm_on_check_done(struct fsm_ctx *t);
void fsm_on_publish_done(struct fsm_ctx *t);
void fsm_saves_tick(struct fsm_ctx *t);
void fsm_saves_resume(struct fsm_ctx *t);

/* ---- handlers/generation_start.c: from slots to a running generation ---- */

void fsm_on_placed(struct fsm_ctx *t);
void fsm_on_probed(struct fsm_ctx *t);
void fsm_on_hello(struct fsm_ctx *t);
void fsm_on_ready(struct fsm_ctx *t);
void fsm_enter_running(struct fsm_ctx *t);

/* ---- handlers/generation_end.c ---- */

/* Ends trainers that should have left by now, and counts those as gone of which nobody will ever
 * say that they are. */
void fsm_watch_ending(struct fsm_ctx *t);
/* Watches workers that are kept for the next generation: one that is lost is not kept any longer,
 * and all are ended if that generation doesn't begin in time. */
void fsm_watch_kept(struct fsm_ctx *t);

/* ---- handlers/progress.c ---- */

/* Takes what the event's rank says of its progress. */
void fsm_note_progress(struct fsm_ctx *t, struct fsm_rank *rank);
/* Returns for how long a phase may make no progress: max(floor, 10 x its median); after that it
 * hangs. A few gaps may all be of a standstill that is over: from these no more than twice the
 * floor follows. */
int64_t fsm_hang_ms(const struct fsm *m, const char *phase);

/* ---- handlers/liveness.c: silence, deadlines ---- */

/* Called when the rank of an event says something. If the whole generation was silent until then,
 * what the others say is taken to be on its way, too. */
void fsm_hear(struct fsm_ctx *t);
/* Called when the rank's node is heard again: the worker gets its full time to be heard, too. */
void fsm_rank_heard(struct fsm_ctx *t, uint32_t rank);
/* Checks deadlines and, with `looks`, the rules of silence. */
void fsm_watch(struct fsm_ctx *t, bool looks);

/* ---- handlers/load_balance.c: lanes by speed ---- */

/* Takes how long the rank computed for its lanes, as it said with its progress. */
void fsm_note_timed(struct fsm_ctx *t, struct fsm_rank *rank);
/* Gives each rank its lanes, as a generation begins. */
void fsm_lanes_deal(struct fsm_ctx *t);
/* Checks whether other shares would be faster, after an event at which the rules of silence are
 * checked, too. */
void fsm_lanes_tick(struct fsm_ctx *t);

/* ---- handlers/spare_orders.c: what becomes of spares ---- */

void fsm_on_spare(struct fsm_ctx *t);
/* Handles an event about a spare. */
void fsm_on_spare_event(struct fsm_ctx *t);
/* Watches spares: those that are lost or hang are ended, those that were ended are ended again. */
void fsm_watch_spares(struct fsm_ctx *t);

/* ---- handlers/divergence.c: what two workers computed ---- */

/* Notes that ranks computed the same up to that step. */
void fsm_note_audited(struct fsm_ctx *t, uint64_t step);
/* Called when a generation begins to train, from restore.step on. */
void fsm_audit_begin(struct fsm *m);
/* Called after every event: drops the saves, and sets aside the checkpoints, of what was trained
 * after somebody computed wrongly. */
void fsm_audit_tick(struct fsm_ctx *t);

/* ---- handlers/requests.c: what people ask ---- */

MUST_CHECK enum status fsm_ask(struct fsm_ctx *t);
/* Returns the name of who asks, as people are told it; by: as in struct fsm_event. */
const char *fsm_asker(const char *by);
