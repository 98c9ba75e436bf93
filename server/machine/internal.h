/*
 * What the files of the state machine share.
 *
 * The sections stand from floor to roof: a file calls what stands above its own section, never what
 * stands below. The machine changes only within a turn: one event taken, with the actions that it
 * leads to.
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
#define MACHINE_PARK_STEPS     3      /* ... or so many steps */
#define MACHINE_PARK_MAX_MS    60000  /* ... but no longer */
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
#define MACHINE_STUCK_TIMES    4 /* so often the time in which a save is dropped: then a rank is */
#define MACHINE_SLOW_BYTES_MS  10000 /* a store that takes less in a ms, in an fsync, is stuck */
#define MACHINE_WATCH_MS       500   /* how often the rules of silence are looked at */
#define MACHINE_LOOK_MS        20    /* ... and at what messages of trainers, at most */
#define MACHINE_BARREN_MAX     10    /* without progress; all by the job's own fault: FAILED */
#define MACHINE_LACKING_MAX    16    /* nodes that lack what it needs; then it is the job's fault */
#define MACHINE_LIVE_TRIES     3     /* generations in a row without progress; then none is kept */
/* How much a disagreement of workers counts while what is computed again isn't right, either: once
 * more where nobody tells who is wrong; thrice more where it is known, as its node may be the only
 * one and so stays in use. */
#define MACHINE_WRONG_KNOWN    1
#define MACHINE_WRONG_UNKNOWN  2
#define MACHINE_WRONG_MAX      4 /* FAILED */
#define MACHINE_BUDGET         3 /* failures at the same place; then FAILED */
#define MACHINE_BACKOFF_MAX_MS 60000
/* After MACHINE_BARREN_MAX of them: a failure costs a row of the journal, and there is no end. */
#define MACHINE_BACKOFF_BARREN_MS 300000
#define MACHINE_DATA_MS           15000 /* until data that differed are looked at again */
#define MACHINE_STORE_TRIES       5
#define MACHINE_LEAD_MS           500 /* for workers to hear of an announced save */
#define MACHINE_PASSES_MAX        16  /* doublings of that */
#define MACHINE_CHAIN_MAX         7 /* checkpoints that one is read through; the eighth is whole */
#define MACHINE_READ_MS           300000 /* a rank that reads back says something every second */
#define MACHINE_READ_TRIES        2      /* in vain in a row; then the coordinator reads */
#define MACHINE_READ_PACE         1000   /* bytes a rank and ms: it is never spread thinner */

/* One event taken: what its handlers get. */
struct machine_turn {
    struct machine *m;
    const struct machine_event *ev; /* NULL: the job is resumed */
    struct machine_actions *out;
    int64_t now, wall;
};

/* ---- catalog.c: checkpoints and saves of the job; lists and questions ---- */

struct machine_ckpt *machine_ckpt_at(struct machine *m, uint64_t step, uint32_t generation);
/* The checkpoint of the job's last step is there. */
bool machine_final_committed(const struct machine *m);
/* What the next generation would restore is still to be read after a report of damage, or is read
 * through one that is set aside. */
bool machine_damage_pending(struct machine *m);
/* It holds what was computed wrongly; some does. */
bool machine_is_distrusted(const struct machine *m, const struct machine_ckpt *ckpt);
bool machine_distrusts(const struct machine *m);
/* The one that ckpt holds differences to, or NULL. */
struct machine_ckpt *machine_chain_next(struct machine *m, const struct machine_ckpt *ckpt);
/* ckpt is `of`, or one that `of` is read through. */
bool machine_in_chain(struct machine *m, const struct machine_ckpt *of,
                      const struct machine_ckpt *ckpt);
/* Another one holds differences to ckpt. */
bool machine_is_parent(const struct machine *m, const struct machine_ckpt *ckpt);
/* A save under way may write differences to ckpt. */
bool machine_is_base(const struct machine *m, const struct machine_ckpt *ckpt);
/* Its place in m->saves, or -1. */
int machine_save_index(const struct machine *m, uint64_t step, uint32_t generation);
/* The place of the save that the store's answer is about, or -1: it is another try by now. */
int machine_answered_save(const struct machine_turn *t);
/* All ranks have that flag for the save. */
bool machine_every_rank(const struct machine *m, int index, uint8_t flag);
/* It may still commit, or is still to be removed; the same of any of them. */
bool machine_save_busy(const struct machine_save *save);
bool machine_saves_busy(const struct machine *m);

/* ---- fault.c: what the kinds of failures mean, and waits after them ---- */

/* How much a report says about the cause. Within the window (MACHINE_WINDOW_MS) a better one
 * replaces a worse one; one of weight 3 needs no window. */
int machine_fault_weight(const struct machine_fault *fault);
/* MACHINE_BUDGET of them at one step or phase end the job. */
bool machine_fault_counts(const struct machine_fault *fault);
/* Of what was computed wrongly: up to which step nothing was. What is beyond doubt stays so. States
 * that differ were equal when they were compared last, whichever generation did it; of lanes a
 * generation knows its own audits only. */
uint64_t machine_fault_good_step(const struct machine *m, const struct machine_fault *fault);
/* So a broken path between two of its nodes shows. */
bool machine_fault_of_paths(const struct machine_fault *fault);
/* Workers that are not to blame may go on after it. */
bool machine_fault_outlived(const struct machine_fault *fault);
/* It may be what the job asks for, and not what happened to it. */
bool machine_fault_is_own(const struct machine_fault *fault);
/* So many generations in a row made no progress that a person may want to know. */
bool machine_is_barren(const struct machine *m);
/* From a failure until the next generation. */
int64_t machine_backoff_ms(const struct machine *m);

/* ---- life.c: actions, the reason, what a state means, accounts, endings ---- */

struct machine_action *machine_act(struct machine_turn *t, enum machine_action_kind kind);
struct machine_action *machine_act_on(struct machine_turn *t, enum machine_action_kind kind,
                                      uint64_t step, uint32_t generation);
void machine_ask_store(struct machine_turn *t, enum machine_task task, uint64_t step,
                       uint32_t generation);
/* An event for people, in the job's history. */
void machine_tell(struct machine_turn *t, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same of a step that is not that of now. */
void machine_tell_of(struct machine_turn *t, uint64_t step, const char *what, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));
void machine_text(char *out, size_t capacity, const char *text); /* copies, cuts; NULL: "" */
void machine_set_reason(struct machine *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool machine_alive(const struct machine *m);  /* a generation of it has, or may have, trainers */
bool machine_spans(const struct machine *m);  /* its ranks are on two nodes or more */
bool machine_trains(const struct machine *m); /* its workers train: RUNNING, SAVING */
bool machine_all_gone(const struct machine *m);
/* Every worker of the generation is gone, or has parked where it parks. */
bool machine_all_left(const struct machine *m);
/* Workers of the generation before are on their way into the next one, with what they trained. */
bool machine_goes_on(const struct machine *m);
void machine_rank_gone(struct machine *m, uint32_t rank); /* it has no process any more */
/* Where a job goes whose generation saved and left as it was intended. */
enum machine_state machine_intended(enum machine_intent intent);
/* Of a session without a word: longer than its agent may be silent. */
int64_t machine_mute_ms(const struct machine *m);
/* For a lost session to come back: where there are thousands, each waits for its turn. */
int64_t machine_session_ms(const struct machine *m);
bool machine_is_silent(const struct machine_turn *t, const struct machine_rank *rank);
/* Without having been seen to be gone: no other trainer gets its slot until it was. */
void machine_count_as_gone(struct machine_turn *t, uint32_t rank);
int64_t machine_lost_total(const struct machine *m); /* but for stalls, which are of training */
/* Books the time since the last turn as training or as lost. */
void machine_account(struct machine *m, int64_t now);
/* The record of a recovery (server/recovery/recovery.h): time is booked before machine_account;
 * a generation failed, with m->cause; the cause is another one; the generation is gone, before
 * GEN_END; the next one is formed, before m->cause is cleared; after every event; the coordinator
 * is back. */
void machine_recovery_book(struct machine_turn *t);
void machine_recovery_fail(struct machine_turn *t, int64_t detect_ms);
void machine_recovery_mend(struct machine *m);
void machine_recovery_end(struct machine_turn *t, enum machine_state to);
void machine_recovery_form(struct machine_turn *t);
void machine_recovery_tick(struct machine_turn *t);
void machine_recovery_resume(struct machine_turn *t);
/* PLACING: the slots are given back, and the scheduler places the job again. */
void machine_unplace(struct machine_turn *t);
/* Spares that live; of them, those that are ready to take a seat. */
uint32_t machine_spares_live(const struct machine *m);
uint32_t machine_spares_ready(const struct machine *m);
/* Trainers are to go and the job to end up in `to`; gently: they leave by themselves first. */
void machine_end_ranks(struct machine_turn *t, enum machine_state to, bool gently);
/* The job comes to rest, without trainers: QUEUED, PAUSED, or a final state. */
void machine_rest(struct machine_turn *t, enum machine_state to);

/* ---- park.c: workers that outlive their generation ---- */

/* Ends the generation for that fault; where it may be outlived, workers of it are kept. */
void machine_end_or_park(struct machine_turn *t, enum machine_state to,
                         const struct machine_fault *fault);
/* Without a failure it is planned, and waits for saves that are under way; asked until it may. */
bool machine_park_waits(struct machine_turn *t);
/* The same without a failure: all are kept; all but one. */
void machine_park_all(struct machine_turn *t);
void machine_park_but(struct machine_turn *t, uint32_t rank);
/* Those that are not to go on are ended again, as an order may be lost. */
void machine_park_again(struct machine_turn *t);
void machine_on_parked(struct machine_turn *t);
/* It said so, in whatever way, and what it has. */
void machine_note_parked(struct machine_turn *t, uint32_t index, const struct machine_kept *kept);
/* All have left, and some are kept: from now on they wait. */
void machine_keep(struct machine_turn *t);
/* After a restart of the coordinator: who is to go of those that are too many, and who sits where
 * in a pipeline, is decided once they have said again what they have, or are given up. */
bool machine_awaits_word(const struct machine *m);
/* For as many as it goes on with at least; else it waits for those that are about to be gone, or
 * ready. */
bool machine_has_room(const struct machine *m);
/* PLACING: a kept worker went since slots were found, and there is none for its seat. */
bool machine_is_vacated(const struct machine *m);
/* Seats of the generation that begins: who is kept goes on there, the others are born in it. How
 * many are kept. */
uint32_t machine_regroup(struct machine_turn *t);

/* ---- spares.c: workers without a part in the generation ---- */

/* Those that stay; how many are to: as spares, and for each worker that is missing. */
uint32_t machine_spares_staying(const struct machine *m);
uint32_t machine_spares_wanted(const struct machine *m);
/* A worker has been slow for so long (turn/lanes.c) that another one is to take its seat. */
bool machine_replaces(const struct machine *m, int64_t now);
/* The generation ends (life.c), and spares are to go with it. */
void machine_end_generation(struct machine_turn *t, enum machine_state to, bool gently);
/* A step is finished of which nobody heard before: from the first one of a generation on more
 * workers may start. */
void machine_note_reached(struct machine_turn *t, uint64_t step);
/* They are to go, all of them: the job ends, or starts anew; the same of one. */
void machine_dismiss_spares(struct machine_turn *t);
void machine_dismiss(struct machine_turn *t, uint32_t index);
/* One that had a seat, and has none in the generation that comes: it goes. */
void machine_let_go(struct machine_turn *t, uint32_t index);
/* What it is sent so that it goes. */
void machine_end_spare(struct machine_turn *t, uint32_t index);
/* A number that no worker has. wanted: that one, if it is free. */
uint32_t machine_new_number(struct machine *m, uint32_t wanted);

/* ---- resize.c: another number of workers ---- */

/* Before a generation begins: its ranks, from those that are kept, those that have slots, and
 * spares. */
void machine_seat(struct machine_turn *t);
/* Before the first generation: the stages of as many ranks as the job is to have. */
void machine_cut(struct machine *m);
/* What a rank has kept is what it is to have: of a pipeline, its stage of as many as there are. */
bool machine_has_stage(const struct machine *m, uint32_t rank);
/* All workers could park now, and go on in another generation, but for those that are away: after a
 * restart of the coordinator they come back first. */
bool machine_may_regroup(const struct machine *m);
/* After every event: whether the generation is to be followed by one with another size. */
void machine_resize_tick(struct machine_turn *t);
int64_t machine_resize_deadline(const struct machine *m);

/* ---- announce.c: saves to come ---- */

/* For a step beyond every one reported; exit: workers leave after it. */
void machine_announce(struct machine_turn *t, bool exit);
/* The same, for step `from` or a later one. */
void machine_announce_from(struct machine_turn *t, uint64_t from, bool exit);
bool machine_announced_exit(const struct machine *m, uint64_t step);
/* Workers end with the save of that step, or after it: they do nothing but wait for it. */
bool machine_leaves_at(const struct machine *m, uint64_t step);
/* false: none was announced for that step. */
bool machine_forget_announced(struct machine *m, uint64_t step, bool *out_exit);
void machine_due_tick(struct machine_turn *t);
int64_t machine_due_deadline(const struct machine *m);
void machine_due_from(struct machine_turn *t); /* the next save by time is counted from now */
void machine_due_resume(struct machine_turn *t);
/* What a save cost: `every: auto` goes by it. */
void machine_note_cost(struct machine_turn *t, const struct machine_save *save);
void machine_note_failure(struct machine_turn *t); /* that cost steps */
void machine_on_save_wanted(struct machine_turn *t);
void machine_on_leaving(struct machine_turn *t);

/* ---- keep.c: which checkpoints stay ---- */

void machine_ask_verify(struct machine_turn *t, struct machine_ckpt *ckpt);
void machine_set_aside(struct machine_turn *t, struct machine_ckpt *ckpt, const char *why);
void machine_drop_orphans(struct machine_turn *t); /* sets aside what is read through a bad one */
void machine_remove_ckpt(struct machine_turn *t, struct machine_ckpt *ckpt);
/* Removes what nothing keeps any more, and reads back what that needs. */
void machine_retain(struct machine_turn *t);
/* The ranks have read back what they were to read, or it came to nothing, for the reason why. */
void machine_read_back_end(struct machine_turn *t, const char *why);
/* Of a rank whose session is there again. */
void machine_read_back_resend(struct machine_turn *t, uint32_t rank);
void machine_read_back_tick(struct machine_turn *t); /* after every event */
/* For a save of step to write differences to, or NULL. */
const struct machine_ckpt *machine_choose_base(struct machine *m, uint64_t step);

/* ---- damage.c: checkpoints read back; a store that is away ---- */

/* It isn't suspected of reading badly any more. true: it was. */
bool machine_unsuspect(struct machine *m, const char *node);

/* Whether the store is away, from an answer of it. */
void machine_note_away(struct machine_turn *t);
/* A worker can't restore from the checkpoint that it was given: that is read here, with those that
 * it is read through, before anything else; of each the one file that the fault names, if it does.
 */
void machine_suspect_damage(struct machine_turn *t, const struct machine_fault *fault);
/* Asks again for those reads that failed on the medium. */
void machine_damage_tick(struct machine_turn *t);
void machine_on_remove_done(struct machine_turn *t);
void machine_on_verify_done(struct machine_turn *t);
void machine_on_read_back(struct machine_turn *t);
void machine_on_quarantine_done(struct machine_turn *t);
void machine_catalog_resume(struct machine_turn *t);

/* ---- copies.c: copies in memory ---- */

void machine_copies_hear(struct machine_turn *t);   /* of MACHINE_EV_HELLO */
void machine_copies_choose(struct machine_turn *t); /* before the first assignment */
void machine_copies_clear(struct machine *m);
/* What this generation would restore from memory. */
void machine_memory_forget(struct machine *m);
/* Before it is counted; true: the copies were the cause, or may have been, and won't be again. */
bool machine_copies_failed(struct machine_turn *t, const struct machine_fault *fault, bool budget);

/* ---- recover.c: failures ---- */

/* A sign of one. The generation fails at once, or a little later where a better sign may follow. */
void machine_report_fault(struct machine_turn *t, const struct machine_fault *fault);
void machine_window_tick(struct machine_turn *t);
/* The pins of the rank that speaks are not the job's: its node is left out, and those of the others
 * that differ, too, before the generation fails. */
void machine_note_pins(struct machine_turn *t, const char *difference);
/* Another rank said its pins. */
void machine_pins_tick(struct machine_turn *t);
#define MACHINE_NODE_LOST "neither its agent nor the worker was heard"
/* Of a generation that is being ended: the node of the rank is gone, and what was seen first of it
 * by others (communication, a lost session) is told as that. */
void machine_node_was_lost(struct machine_turn *t, uint32_t rank);
/* Two nodes of the newest generation can't reach each other: that ends it, or is why it ended. */
void machine_on_path(struct machine_turn *t);
/* The generation is over; the cause decides what comes next. */
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
/* true: its ranks had their time for removing their files. */
bool machine_drop_tick(struct machine_turn *t, int index);
void machine_saves_end(struct machine_turn *t); /* all trainers are gone: what is whole commits */
int64_t machine_saves_deadline(const struct machine *m);
/* The store has no room for it. */
void machine_save_refuse(struct machine_turn *t, int index, const char *why);
/* The store fails saves: a reason and, until one commits, one event. false: nothing runs that could
 * be saved. */
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
/* A rank has finished that step: it says that it begins a save before that, so those before it that
 * it didn't begin never come. (It said that it had passed one, and the coordinator that heard it is
 * gone, while another rank began it.) */
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

/* Trainers that should be leaving are ended when it is time, and counted as gone when nobody will
 * ever say that they are. */
void machine_watch_ending(struct machine_turn *t);
/* Workers that are kept for the next generation: who is lost is none of them any more, and none is
 * when it doesn't come. */
void machine_watch_kept(struct machine_turn *t);

/* ---- turn/pace.c ---- */

/* What the event's rank says of its progress. */
void machine_note_progress(struct machine_turn *t, struct machine_rank *rank);
/* No progress for so long is a hang: max(floor, 10 x median of the phase). What is known of a few
 * gaps only may be of a standstill that is over: twice the floor then, at most. */
int64_t machine_hang_ms(const struct machine *m, const char *phase);

/* ---- turn/watch.c: silence, deadlines ---- */

/* The rank of the event says something. The first of a generation that was all silent: what the
 * others say is on its way, too. */
void machine_hear(struct machine_turn *t);
/* Its node is heard again: the worker has all the time to be so, too. */
void machine_rank_heard(struct machine_turn *t, uint32_t rank);
/* looks: at what ranks are silent about, too. */
void machine_watch(struct machine_turn *t, bool looks);

/* ---- turn/lanes.c: lanes by speed ---- */

/* What it said of its share with its progress. */
void machine_note_timed(struct machine_turn *t, struct machine_rank *rank);
/* A generation begins: who carries how many. */
void machine_lanes_deal(struct machine_turn *t);
/* Whether other shares would be faster; after an event with which silence is looked at, too. */
void machine_lanes_tick(struct machine_turn *t);

/* ---- turn/spares.c: what becomes of spares ---- */

void machine_on_spare(struct machine_turn *t);
/* Of an event about one of them. */
void machine_on_spare_event(struct machine_turn *t);
/* Those that are lost, hang, or were ended. */
void machine_watch_spares(struct machine_turn *t);

/* ---- turn/audit.c: what two workers computed ---- */

/* Ranks computed the same up to that step. */
void machine_note_audited(struct machine_turn *t, uint64_t step);
/* A generation trains on from restore.step. */
void machine_audit_begin(struct machine *m);
/* After every event: what was trained since somebody computed wrongly goes. */
void machine_audit_tick(struct machine_turn *t);

/* ---- turn/asks.c: what people ask ---- */

MUST_CHECK enum status machine_ask(struct machine_turn *t);
/* Who asks, as people are told it; by: as in struct machine_event. */
const char *machine_asker(const char *by);
