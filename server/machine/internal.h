/*
 * Declarations that the files of the state machine share.
 *
 * The sections stand in the order of their layers, the lowest first: a file calls what stands above
 * its own section, never what stands below. The machine changes only within a turn: one event
 * taken, with the actions that it leads to.
 */
#pragma once

#include "server/machine/interval.h"
#include "server/machine/machine.h"

#define MACHINE_HELLO_MS       60000  /* from the start of a trainer to its hello */
#define MACHINE_WINDOW_MS      250    /* for the first cause to arrive */
#define MACHINE_WINDOW_NEW_MS  2000   /* soon after the coordinator's start: agents come back */
#define MACHINE_SESSION_MS     10000  /* for a lost session to come back, at least */
#define MACHINE_SILENT_MS      5000   /* config.silent_ms, unless said otherwise */
#define MACHINE_CUT_OFF_MS     300000 /* a node is waited for that others reach, or train with */
#define MACHINE_STANDSTILL_MS  3000   /* no progress, on several nodes: are paths broken? */
#define MACHINE_PINS_MS        5000   /* for the others to say theirs, once some pins differ */
#define MACHINE_GRACE_MS       10000  /* after the coordinator's start: nobody is judged lost */
#define MACHINE_MISSING_MS     1000   /* for the exit of a trainer that its agent doesn't list */
#define MACHINE_LEAVE_MS       10000  /* for trainers to leave after the last commit */
#define MACHINE_END_AGAIN_MS   2000   /* between two MACHINE_ACT_END */
#define MACHINE_PARK_MS        5000   /* for workers to say that they have parked, at least */
#define MACHINE_PARK_STEPS     3      /* or so many steps, if these take longer */
#define MACHINE_PARK_MAX_MS    60000  /* but no longer than this */
#define MACHINE_AWAIT_SAVES_MS 10000  /* at most, for what workers write, if the end is planned */
#define MACHINE_KEEP_MS        30000  /* for kept workers to find the next generation */
#define MACHINE_REPLACE_MS     60000  /* slow for so long, a worker is replaced */
#define MACHINE_USELESS_MS     20000  /* not worth a lane for so long, a worker is left out */
#define MACHINE_REPLACED_MS    600000 /* between two of these */
#define MACHINE_NEVER_MS       5000   /* a trainer that never showed up counts as gone */
#define MACHINE_UNDYING_MS     15000  /* a trainer that SIGKILL doesn't end counts as gone */
#define MACHINE_ASSUMED_MS     10000  /* for ranks that may have nothing to unlink */
#define MACHINE_REMOVE_MS      60000  /* for ranks to unlink their files of a dropped save */
#define MACHINE_PROBE_MS       60000  /* between two questions whether the store answers us */
#define MACHINE_STUCK_TIMES    4      /* times the wait before a save is dropped, a rank is ended */
#define MACHINE_SLOW_BYTES_MS  10000  /* a store that takes less in a ms, in an fsync, is stuck */
#define MACHINE_WATCH_MS       500    /* how often the rules of silence are looked at */
#define MACHINE_LOOK_MS        20     /* so often after messages of trainers, at most */
#define MACHINE_BARREN_MAX     10     /* without progress; all by the job's own fault: FAILED */
#define MACHINE_LACKING_MAX    16 /* nodes that lack what it needs; then it is the job's fault */
#define MACHINE_LIVE_TRIES     3  /* generations in a row without progress; then none is kept */
/* How much a disagreement of workers counts while what is computed again isn't right, either. One
 * more try follows where nobody can tell who is wrong, three more where that is known: the node may
 * be the only one, and so stay in use. */
#define MACHINE_WRONG_KNOWN    1
#define MACHINE_WRONG_UNKNOWN  2
#define MACHINE_WRONG_MAX      4 /* FAILED */
#define MACHINE_BUDGET         3 /* failures at the same place; then FAILED */
#define MACHINE_BACKOFF_MAX_MS 60000
/* The wait after MACHINE_BARREN_MAX generations without progress: each failure costs a row of the
 * journal, and there is no end. */
#define MACHINE_BACKOFF_BARREN_MS 300000
#define MACHINE_DATA_MS           15000 /* until data that differed are looked at again */
#define MACHINE_STORE_TRIES       5
#define MACHINE_LEAD_MS           500 /* for workers to hear of an announced save */
#define MACHINE_PASSES_MAX        16  /* doublings of that */
#define MACHINE_CHAIN_MAX         7 /* checkpoints that one is read through; the eighth is whole */
#define MACHINE_READ_MS           300000 /* a rank that reads back says something every second */
#define MACHINE_READ_TRIES        2      /* in vain in a row; then the coordinator reads */
#define MACHINE_READ_PACE         1000   /* bytes a rank and ms: it is never spread thinner */

/* The context of one event, which its handlers get. */
struct machine_turn {
    struct machine *m;
    const struct machine_event *ev; /* NULL: the job is resumed */
    struct machine_actions *out;
    int64_t now, wall;
};

/* ---- catalog.c: checkpoints and saves of the job; lists and questions ---- */

struct machine_ckpt *machine_ckpt_at(struct machine *m, uint64_t step, uint32_t generation);
/* True if the checkpoint of the job's last step is committed. */
bool machine_final_committed(const struct machine *m);
/* True if what the next generation would restore is still to be read after a report of damage, or
 * is read through a checkpoint that is set aside. */
bool machine_damage_pending(struct machine *m);
/* True if the checkpoint may hold what was computed wrongly; machine_distrusts: if any does. */
bool machine_is_distrusted(const struct machine *m, const struct machine_ckpt *ckpt);
bool machine_distrusts(const struct machine *m);
/* Returns the checkpoint that ckpt holds differences to, or NULL. */
struct machine_ckpt *machine_chain_next(struct machine *m, const struct machine_ckpt *ckpt);
/* True if ckpt is `of`, or one that `of` is read through. */
bool machine_in_chain(struct machine *m, const struct machine_ckpt *of,
                      const struct machine_ckpt *ckpt);
/* True if another checkpoint holds differences to ckpt. */
bool machine_is_parent(const struct machine *m, const struct machine_ckpt *ckpt);
/* True if a save under way may write differences to ckpt. */
bool machine_is_base(const struct machine *m, const struct machine_ckpt *ckpt);
/* Returns the save's place in m->saves, or -1. */
int machine_save_index(const struct machine *m, uint64_t step, uint32_t generation);
/* Returns the place of the save that the store's answer is about; -1: there is no such save, or
 * another try of it is under way by now. */
int machine_answered_save(const struct machine_turn *t);
/* True if all ranks have that flag for the save. */
bool machine_every_rank(const struct machine *m, int index, uint8_t flag);
/* True while the save can still commit, or is still to be removed; machine_saves_busy: while any
 * can. */
bool machine_save_busy(const struct machine_save *save);
bool machine_saves_busy(const struct machine *m);

/* ---- fault.c: what the kinds of failures mean, and waits after them ---- */

/* Returns how much a report says about the cause. Within the window (MACHINE_WINDOW_MS) a better
 * one replaces a worse one; one of weight 3 or more needs no window. */
int machine_fault_weight(const struct machine_fault *fault);
/* True if the fault uses the job's budget: MACHINE_BUDGET such faults at one step or phase end the
 * job. */
bool machine_fault_counts(const struct machine_fault *fault);
/* Returns the last step known to be correct, m->audit.sure or later. States that differ were equal
 * when they were compared last (good_step), whichever generation did it. Lanes that differ say
 * nothing beyond m->audit.sure, as a generation knows only its own audits of lanes. */
uint64_t machine_fault_good_step(const struct machine *m, const struct machine_fault *fault);
/* True if a broken path between two nodes of the generation shows as such a fault. */
bool machine_fault_of_paths(const struct machine_fault *fault);
/* True if workers that are not to blame may go on after the fault. */
bool machine_fault_outlived(const struct machine_fault *fault);
/* True if the fault may come from what the job asks for, and not from what happened to it. */
bool machine_fault_is_own(const struct machine_fault *fault);
/* True if more than MACHINE_BARREN_MAX generations in a row made no progress: a person may want to
 * know. */
bool machine_is_barren(const struct machine *m);
/* Returns the time from a failure until the next generation; 0 after the first failure in a row. */
int64_t machine_backoff_ms(const struct machine *m);

/* ---- life.c: actions, the reason, what a state means, accounts, endings ---- */

struct machine_action *machine_act(struct machine_turn *t, enum machine_action_kind kind);
struct machine_action *machine_act_on(struct machine_turn *t, enum machine_action_kind kind,
                                      uint64_t step, uint32_t generation);
void machine_ask_store(struct machine_turn *t, enum machine_task task, uint64_t step,
                       uint32_t generation);
/* Adds an event for people to the job's history, at the current step. */
void machine_tell(struct machine_turn *t, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Like machine_tell, for an explicit step. */
void machine_tell_of(struct machine_turn *t, uint64_t step, const char *what, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));
void machine_text(char *out, size_t capacity, const char *text); /* copies, cuts; NULL: "" */
void machine_set_reason(struct machine *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool machine_alive(const struct machine *m);  /* the job has, or may have, trainers */
bool machine_spans(const struct machine *m);  /* the ranks are on two nodes or more */
bool machine_trains(const struct machine *m); /* the workers train: RUNNING, SAVING */
bool machine_all_gone(const struct machine *m);
/* True if every worker of the generation is gone or, in a generation that parks, has parked. */
bool machine_all_left(const struct machine *m);
/* True if workers of the generation before are on their way into the next one, with what they
 * trained. */
bool machine_goes_on(const struct machine *m);
void machine_rank_gone(struct machine *m, uint32_t rank); /* the rank has no process any more */
/* Returns where a job goes whose generation saved and left as it was intended. */
enum machine_state machine_intended(enum machine_intent intent);
/* How long a session may be open without a message: longer than its agent may be silent. */
int64_t machine_mute_ms(const struct machine *m);
/* How long a lost session has to come back: where there are thousands, each waits for its turn. */
int64_t machine_session_ms(const struct machine *m);
bool machine_is_silent(const struct machine_turn *t, const struct machine_rank *rank);
/* Counts a rank as gone that nobody has seen to be gone: no other trainer gets its slot until
 * somebody has. */
void machine_count_as_gone(struct machine_turn *t, uint32_t rank);
int64_t machine_lost_total(const struct machine *m); /* without stalls: these are training */
/* Books the time since the last turn as training or as lost. */
void machine_account(struct machine *m, int64_t now);
/* Functions that keep the record of a recovery (server/recovery/recovery.h). Callers: book, before
 * machine_account; fail, when a generation failed, with m->cause; mend, when the cause is another
 * one. Also end, when the generation is gone, before GEN_END; form, when the next one is formed,
 * before m->cause is cleared; tick, after every event; resume, when the coordinator is back. */
void machine_recovery_book(struct machine_turn *t);
void machine_recovery_fail(struct machine_turn *t, int64_t detect_ms);
void machine_recovery_mend(struct machine *m);
void machine_recovery_end(struct machine_turn *t, enum machine_state to);
void machine_recovery_form(struct machine_turn *t);
void machine_recovery_tick(struct machine_turn *t);
void machine_recovery_resume(struct machine_turn *t);
/* Leaves PLACING: the slots are given back, and the scheduler places the job again. */
void machine_unplace(struct machine_turn *t);
/* Counts the spares that live, and those of them that are ready to take a seat. */
uint32_t machine_spares_live(const struct machine *m);
uint32_t machine_spares_ready(const struct machine *m);
/* Ends the trainers; then the job goes to `to`. gently: they have MACHINE_LEAVE_MS to leave by
 * themselves. */
void machine_end_ranks(struct machine_turn *t, enum machine_state to, bool gently);
/* The job comes to rest, without trainers: QUEUED, PAUSED, or a final state. */
void machine_rest(struct machine_turn *t, enum machine_state to);

/* ---- park.c: workers that outlive their generation ---- */

/* Ends the generation for that fault. If workers may outlive the fault, those that are not to blame
 * are kept. */
void machine_end_or_park(struct machine_turn *t, enum machine_state to,
                         const struct machine_fault *fault);
/* True while a planned change (one without a failure) has to wait for saves that are under way. The
 * caller asks again until it is false. */
bool machine_park_waits(struct machine_turn *t);
/* Parks the generation without a failure, and keeps all workers; machine_park_but: all but one. */
void machine_park_all(struct machine_turn *t);
void machine_park_but(struct machine_turn *t, uint32_t rank);
/* Ends the workers that are not to go on once more, as an order may have been lost. */
void machine_park_again(struct machine_turn *t);
void machine_on_parked(struct machine_turn *t);
/* Records that the worker has parked (it said so by Parked, or by a hello) and which state it
 * has. */
void machine_note_parked(struct machine_turn *t, uint32_t index, const struct machine_kept *kept);
/* Begins the time in which kept workers wait for the next generation: all workers have left this
 * one. */
void machine_keep(struct machine_turn *t);
/* True while the job waits for kept workers to say again, after a restart of the coordinator, which
 * state they have. Only then can it decide who goes if there are too many, and who sits where in a
 * pipeline. */
bool machine_awaits_word(const struct machine *m);
/* True if kept workers, ready spares and free places together reach config.min. If not, the job
 * waits for workers that are about to be gone, or ready. */
bool machine_has_room(const struct machine *m);
/* True in PLACING if a kept worker went since slots were found, and too few workers are left to go
 * on. */
bool machine_is_vacated(const struct machine *m);
/* Prepares the ranks of the generation that begins: kept workers go on in their seats, newcomers
 * start in the others. Returns how many are kept. */
uint32_t machine_regroup(struct machine_turn *t);

/* ---- spares.c: workers without a part in the generation ---- */

/* Counts the spares that are not ending. machine_spares_wanted: the configured spares, one for each
 * worker that is missing, and one to replace a worker that is slow. */
uint32_t machine_spares_staying(const struct machine *m);
uint32_t machine_spares_wanted(const struct machine *m);
/* True if a worker has been slow for so long (turn/lanes.c) that another one is to take its
 * seat. */
bool machine_replaces(const struct machine *m, int64_t now);
/* Ends the generation (machine_end_ranks), and its spares with it. */
void machine_end_generation(struct machine_turn *t, enum machine_state to, bool gently);
/* Notes that a step is finished of which nobody had heard. After the first new step of a generation
 * more workers may start. */
void machine_note_reached(struct machine_turn *t, uint64_t step);
/* Ends all spares, as the job ends or starts anew; machine_dismiss: ends one of them. */
void machine_dismiss_spares(struct machine_turn *t);
void machine_dismiss(struct machine_turn *t, uint32_t index);
/* Ends a worker that had a seat and has none in the generation that comes. */
void machine_let_go(struct machine_turn *t, uint32_t index);
/* Adds the actions that make the spare go (OVER and END). */
void machine_end_spare(struct machine_turn *t, uint32_t index);
/* Returns a number that no worker has: `wanted`, if that is free. */
uint32_t machine_new_number(struct machine *m, uint32_t wanted);

/* ---- resize.c: another number of workers ---- */

/* Chooses the ranks of the generation that is about to begin: workers that are kept, those that
 * have slots, and spares. */
void machine_seat(struct machine_turn *t);
/* Gives the ranks of a job that never ran their stages, as many ranks as the job is to have. */
void machine_cut(struct machine *m);
/* True if the state that the rank has kept is the one that it is to have; in a pipeline: its stage,
 * of as many as there are. */
bool machine_has_stage(const struct machine *m, uint32_t rank);
/* True if all workers could park now, and go on in another generation. It is false while some are
 * away: after a restart of the coordinator they come back first. */
bool machine_may_regroup(const struct machine *m);
/* Called after every event: ends the generation if one with another number of workers is to
 * follow. */
void machine_resize_tick(struct machine_turn *t);
int64_t machine_resize_deadline(const struct machine *m);

/* ---- announce.c: saves to come ---- */

/* Announces a save for a step beyond every one reported; exit: workers leave after it. */
void machine_announce(struct machine_turn *t, bool exit);
/* Like machine_announce, for step `from` or a later one. */
void machine_announce_from(struct machine_turn *t, uint64_t from, bool exit);
bool machine_announced_exit(const struct machine *m, uint64_t step);
/* True if workers end with the save of that step, or after it: they do nothing but wait for it. */
bool machine_leaves_at(const struct machine *m, uint64_t step);
/* Forgets the saves announced for that step; false: there was none. *out_exit: workers were to
 * leave after one of them. */
bool machine_forget_announced(struct machine *m, uint64_t step, bool *out_exit);
void machine_due_tick(struct machine_turn *t);
int64_t machine_due_deadline(const struct machine *m);
void machine_due_from(struct machine_turn *t); /* the next save by time is counted from now */
void machine_due_resume(struct machine_turn *t);
/* Notes what a save cost, as `every: auto` goes by it. */
void machine_note_cost(struct machine_turn *t, const struct machine_save *save);
void machine_note_failure(struct machine_turn *t); /* of a failure that cost steps */
void machine_on_save_wanted(struct machine_turn *t);
void machine_on_leaving(struct machine_turn *t);

/* ---- keep.c: which checkpoints stay ---- */

void machine_ask_verify(struct machine_turn *t, struct machine_ckpt *ckpt);
void machine_set_aside(struct machine_turn *t, struct machine_ckpt *ckpt, const char *why);
void machine_drop_orphans(struct machine_turn *t); /* sets aside what is read through a bad one */
void machine_remove_ckpt(struct machine_turn *t, struct machine_ckpt *ckpt);
/* Removes checkpoints that nothing keeps any more, and reads back what that requires. */
void machine_retain(struct machine_turn *t);
/* Ends the read-back by the ranks: they have read what they were to read, or, where `why` is not
 * NULL, it came to nothing for that reason. */
void machine_read_back_end(struct machine_turn *t, const char *why);
/* Repeats READ_BACK to a rank whose session is there again. */
void machine_read_back_resend(struct machine_turn *t, uint32_t rank);
void machine_read_back_tick(struct machine_turn *t); /* after every event */
/* Returns the checkpoint that a save of `step` may write differences to, or NULL. */
const struct machine_ckpt *machine_choose_base(struct machine *m, uint64_t step);

/* ---- damage.c: checkpoints read back; a store that is away ---- */

/* Forgets the suspicion that the node reads badly; true: there was one. */
bool machine_unsuspect(struct machine *m, const char *node);

/* Notes from an answer of the store whether it is away. */
void machine_note_away(struct machine_turn *t);
/* Called when a worker can't restore from the checkpoint that it was given. The coordinator reads
 * it, and those that it is read through, before anything else; only the one file that the fault
 * names, if it names one. */
void machine_suspect_damage(struct machine_turn *t, const struct machine_fault *fault);
/* Asks again for the reads that failed on the medium. */
void machine_damage_tick(struct machine_turn *t);
void machine_on_remove_done(struct machine_turn *t);
void machine_on_verify_done(struct machine_turn *t);
void machine_on_read_back(struct machine_turn *t);
void machine_on_quarantine_done(struct machine_turn *t);
void machine_catalog_resume(struct machine_turn *t);

/* ---- copies.c: copies in memory ---- */

void machine_copies_hear(struct machine_turn *t);   /* copies that MACHINE_EV_HELLO offers */
void machine_copies_choose(struct machine_turn *t); /* once, before the first assignment */
void machine_copies_clear(struct machine *m);
/* Forgets what this generation would restore from memory. */
void machine_memory_forget(struct machine *m);
/* Called before a failure is counted. True if the copies in memory were its cause, or may have
 * been; they are not tried again. */
bool machine_copies_failed(struct machine_turn *t, const struct machine_fault *fault, bool budget);

/* ---- recover.c: failures ---- */

/* Reports a sign of a failure. The generation fails at once, or a little later where a better sign
 * may follow. */
void machine_report_fault(struct machine_turn *t, const struct machine_fault *fault);
void machine_window_tick(struct machine_turn *t);
/* Notes that the pins of the event's rank are not the job's: its node is left out. The generation
 * fails a little later, so that nodes of others whose pins differ are left out, too. */
void machine_note_pins(struct machine_turn *t, const char *difference);
/* Called when another rank said its pins: if some differ, the generation fails once all have said
 * theirs. */
void machine_pins_tick(struct machine_turn *t);
#define MACHINE_NODE_LOST "neither its agent nor the worker was heard"
/* Called while a generation is being ended: the node of the rank is gone. A failure that others saw
 * first (communication, a lost session) is then recorded as the loss of that node. */
void machine_node_was_lost(struct machine_turn *t, uint32_t rank);
/* Handles a broken path between two nodes of the newest generation: it ends the generation, or is
 * why that ended. */
void machine_on_path(struct machine_turn *t);
/* Ends the generation by a failure; the cause decides what comes next. */
void machine_fail(struct machine_turn *t, const struct machine_fault *reported);
void machine_on_nowhere(struct machine_turn *t);

/* ---- drop.c: saves that do not become checkpoints ---- */

int64_t machine_retry_ms(uint32_t tries);
int machine_save_new(struct machine_turn *t, uint64_t step, enum machine_save_state state);
void machine_save_set_state(struct machine_turn *t, struct machine_save *save,
                            enum machine_save_state state);
void machine_send_done(struct machine_turn *t, uint64_t step, uint32_t rank, bool committed);
void machine_save_drop(struct machine_turn *t, int index, const char *why, bool tell);
void machine_save_remove(struct machine_turn *t, int index); /* once no rank can write there */
/* Gives up a dropped save whose ranks had their time to remove their files; true: it did. */
bool machine_drop_tick(struct machine_turn *t, int index);
void machine_saves_end(struct machine_turn *t); /* all trainers are gone: what is whole commits */
int64_t machine_saves_deadline(const struct machine *m);
/* Drops a save for which the store has no room. */
void machine_save_refuse(struct machine_turn *t, int index, const char *why);
/* Notes that the store fails saves: sets the reason and, once until a save commits, tells an event.
 * false: nothing runs that could be saved. */
bool machine_unsaved(struct machine_turn *t, const char *why);
void machine_room_again(struct machine_turn *t, uint64_t step); /* a save committed */
void machine_on_save_failed(struct machine_turn *t);
void machine_on_drop_done(struct machine_turn *t);
void machine_sweep(struct machine_turn *t);       /* after every event */
void machine_sweep_again(struct machine_turn *t); /* a save committed */
void machine_on_sweep_done(struct machine_turn *t);

/* ---- saves.c: saves on their way to checkpoints ---- */

void machine_on_save_begin(struct machine_turn *t);
void machine_on_folder_done(struct machine_turn *t);
void machine_on_save_report(struct machine_turn *t);
void machine_on_save_passed(struct machine_turn *t);
/* Drops saves that a rank will never write: it has finished `step`, and begins a save before it
 * goes beyond that save's step. (A rank may have said that it had passed a save, to a coordinator
 * that is gone, while another rank began it.) */
void machine_saves_beyond(struct machine_turn *t, uint32_t rank, uint64_t step);
void machine_on_check_done(struct machine_turn *t);
void machine_on_publish_done(struct machine_turn *t);
void machine_saves_tick(struct machine_turn *t);
void machine_saves_resume(struct machine_turn *t);

/* ---- turn/form.c: from slots to a running generation ---- */

void machine_on_placed(struct machine_turn *t);
void machine_on_probed(struct machine_turn *t);
void machine_on_hello(struct machine_turn *t);
void machine_on_ready(struct machine_turn *t);
void machine_enter_running(struct machine_turn *t);

/* ---- turn/leave.c ---- */

/* Ends trainers that should have left by now, and counts those as gone of which nobody will ever
 * say that they are. */
void machine_watch_ending(struct machine_turn *t);
/* Watches workers that are kept for the next generation: one that is lost is not kept any longer,
 * and all are ended if that generation doesn't begin in time. */
void machine_watch_kept(struct machine_turn *t);

/* ---- turn/pace.c ---- */

/* Takes what the event's rank says of its progress. */
void machine_note_progress(struct machine_turn *t, struct machine_rank *rank);
/* Returns for how long a phase may make no progress: max(floor, 10 x its median); after that it
 * hangs. A few gaps may all be of a standstill that is over: from these no more than twice the
 * floor follows. */
int64_t machine_hang_ms(const struct machine *m, const char *phase);

/* ---- turn/watch.c: silence, deadlines ---- */

/* Called when the rank of an event says something. If the whole generation was silent until then,
 * what the others say is taken to be on its way, too. */
void machine_hear(struct machine_turn *t);
/* Called when the rank's node is heard again: the worker gets its full time to be heard, too. */
void machine_rank_heard(struct machine_turn *t, uint32_t rank);
/* Checks deadlines and, with `looks`, the rules of silence. */
void machine_watch(struct machine_turn *t, bool looks);

/* ---- turn/lanes.c: lanes by speed ---- */

/* Takes how long the rank computed for its lanes, as it said with its progress. */
void machine_note_timed(struct machine_turn *t, struct machine_rank *rank);
/* Gives each rank its lanes, as a generation begins. */
void machine_lanes_deal(struct machine_turn *t);
/* Checks whether other shares would be faster, after an event at which the rules of silence are
 * checked, too. */
void machine_lanes_tick(struct machine_turn *t);

/* ---- turn/spares.c: what becomes of spares ---- */

void machine_on_spare(struct machine_turn *t);
/* Handles an event about a spare. */
void machine_on_spare_event(struct machine_turn *t);
/* Watches spares: those that are lost or hang are ended, those that were ended are ended again. */
void machine_watch_spares(struct machine_turn *t);

/* ---- turn/audit.c: what two workers computed ---- */

/* Notes that ranks computed the same up to that step. */
void machine_note_audited(struct machine_turn *t, uint64_t step);
/* Called when a generation begins to train, from restore.step on. */
void machine_audit_begin(struct machine *m);
/* Called after every event: drops the saves, and sets aside the checkpoints, of what was trained
 * after somebody computed wrongly. */
void machine_audit_tick(struct machine_turn *t);

/* ---- turn/asks.c: what people ask ---- */

MUST_CHECK enum status machine_ask(struct machine_turn *t);
/* Returns the name of who asks, as people are told it; by: as in struct machine_event. */
const char *machine_asker(const char *by);
