/*
 * What the files of the state machine share: job_machine.c (life, dispatch), job_form.c,
 * job_memory.c (copies in memory),
 * job_asks.c (what people ask),
 * job_recovery.c (failures), job_saves.c, job_saves_time.c and job_due.c (saves), job_catalog.c and
 * job_keep.c (checkpoints), job_sweep.c (leftovers), job_time.c (deadlines, accounts, pace).
 */
#pragma once

#include "server/machine/interval.h"
#include "server/machine/machine.h"

#define JM_HELLO_MS       60000 /* from the start of a trainer to its hello */
#define JM_WINDOW_MS      250   /* for the first cause to arrive */
#define JM_SESSION_MS     10000 /* for a lost session to come back */
#define JM_SILENT_MS      5000  /* an agent or a trainer without a sign */
#define JM_GRACE_MS       10000 /* after the coordinator's start */
#define JM_MISSING_MS     1000  /* for the exit of a trainer that its agent doesn't list */
#define JM_LEAVE_MS       10000 /* for trainers to leave after the last commit */
#define JM_END_AGAIN_MS   2000  /* ACT_END is repeated */
#define JM_NEVER_MS       5000  /* a trainer that never showed up counts as gone */
#define JM_ASSUMED_MS     10000 /* for ranks that may have nothing to unlink */
#define JM_REMOVE_MS      60000 /* for ranks to unlink a dropped save */
#define JM_WATCH_MS       500   /* how often rules of silence are looked at */
#define JM_BARREN_MAX     10
#define JM_BUDGET         3
#define JM_BACKOFF_MAX_MS 60000
#define JM_STORE_TRIES    5
#define JM_LEAD_MS        500 /* for workers to hear of a save */
#define JM_PASSES_MAX     16  /* doublings of that */

struct jm_step {
    struct job_machine *m;
    const struct job_event *ev;
    struct jm_actions *out;
    int64_t now;
};

/* ---- actions ---- */
struct jm_action *jm_act(struct jm_step *s, enum jm_action_kind kind);
struct jm_action *jm_act_on(struct jm_step *s, enum jm_action_kind kind, uint64_t step,
                            uint32_t generation);
void jm_event(struct jm_step *s, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void jm_text(char *out, size_t capacity, const char *text); /* copies, cuts; NULL: "" */

/* ---- job_form.c ---- */
void jm_on_placed(struct jm_step *s);
void jm_on_probed(struct jm_step *s);
void jm_note_away(struct jm_step *s);
void jm_on_hello(struct jm_step *s);
void jm_on_ready(struct jm_step *s);
void jm_form(struct jm_step *s);
void jm_running(struct jm_step *s);

/* ---- job_memory.c ---- */
void jm_memory_hear(struct jm_step *s);   /* of EV_HELLO */
void jm_memory_choose(struct jm_step *s); /* before the first plan of a generation */
void jm_memory_forget(struct job_machine *m);
/* Before it is counted; true: the copies were the cause, or may have been, and won't be again. */
bool jm_memory_failed(struct jm_step *s, const struct jm_fault *fault, bool budget);

/* ---- job_machine.c ---- */
/* Trainers are to go and the job to end up in `to`; gently: they leave by themselves first. */
void jm_end_generation(struct jm_step *s, enum job_state to, bool gently);
void jm_enter_final(struct jm_step *s, enum job_state to);
bool jm_all_gone(const struct job_machine *m);
void jm_set_reason(struct job_machine *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool jm_alive(const struct job_machine *m); /* a generation of it has, or may have, trainers */

/* ---- job_asks.c ---- */
MUST_CHECK enum status jm_ask(struct jm_step *s);

/* ---- job_recovery.c ---- */
void jm_fault_report(struct jm_step *s,
                     const struct jm_fault *fault); /* may wait for a better one */
void jm_fail(struct jm_step *s, const struct jm_fault *reported);
void jm_window(struct jm_step *s);
int64_t jm_backoff_ms(const struct job_machine *m);

/* ---- job_saves.c ---- */
void jm_on_begin(struct jm_step *s);
void jm_on_report(struct jm_step *s);
void jm_on_failed(struct jm_step *s);
void jm_on_passed(struct jm_step *s);
void jm_on_folder(struct jm_step *s);
void jm_on_checked(struct jm_step *s);
void jm_on_published(struct jm_step *s);
void jm_on_removed(struct jm_step *s);
int jm_find_save(const struct job_machine *m, uint64_t step, uint32_t generation);
void jm_save_set_state(struct jm_step *s, struct jm_save *save, enum jm_save_state state);
bool jm_announced_exit(const struct job_machine *m, uint64_t step);
void jm_save_drop(struct jm_step *s, int index, const char *why, bool tell);
void jm_save_remove(struct jm_step *s, int index); /* once no rank can write into it any more */
void jm_save_again(struct jm_step *s, int index);
void jm_save_check(struct jm_step *s, int index);
bool jm_every_rank(const struct job_machine *m, int index, uint8_t flag);
void jm_send_done(struct jm_step *s, uint64_t step, uint32_t rank, bool committed);
bool jm_forget_announced(struct job_machine *m, uint64_t step, bool *out_exit);

/* ---- job_saves_time.c ---- */
void jm_announce(struct jm_step *s, bool exit);
void jm_saves_tick(struct jm_step *s);
void jm_saves_end(struct jm_step *s);             /* all trainers are gone: what is whole commits */
bool jm_saves_busy(const struct job_machine *m);  /* one may still commit or be removed */
bool jm_store_holds(const struct job_machine *m); /* workers may be waiting for the store */
void jm_saves_attach(struct jm_step *s, uint32_t rank); /* tells a rank that is back */
void jm_saves_resume(struct jm_step *s);
int64_t jm_saves_deadline(const struct job_machine *m);

/* ---- job_due.c ---- */
void jm_due_tick(struct jm_step *s);
int64_t jm_due_deadline(const struct job_machine *m);
void jm_due_from(struct jm_step *s); /* the next save by time is counted from now */
void jm_due_resume(struct jm_step *s);
void jm_note_cost(struct jm_step *s, const struct jm_save *save);
void jm_note_failure(struct jm_step *s); /* that cost steps */
void jm_on_wanted(struct jm_step *s);
void jm_save_refuse(struct jm_step *s, int index, const char *why);
void jm_room_again(struct jm_step *s, uint64_t step); /* a save committed */
/* The store fails saves: a reason and, until one commits, one event. false: nothing runs that could
 * be saved. */
bool jm_unsaved(struct jm_step *s, const char *why);

/* ---- job_keep.c ---- */
void jm_retain(struct jm_step *s);
void jm_remove_ckpt(struct jm_step *s, struct jm_ckpt *ckpt);
bool jm_is_parent(const struct job_machine *m, const struct jm_ckpt *ckpt); /* one is read through
                                                                                it */
bool jm_is_base(const struct job_machine *m, const struct jm_ckpt *ckpt); /* of a save under way */
bool jm_in_chain(struct job_machine *m, const struct jm_ckpt *of, const struct jm_ckpt *ckpt);
struct jm_ckpt *jm_chain_next(struct job_machine *m, const struct jm_ckpt *ckpt); /* or NULL */
/* For a save of step to write differences to, or NULL. */
const struct jm_ckpt *jm_choose_base(struct job_machine *m, uint64_t step);

/* ---- job_catalog.c ---- */
struct jm_ckpt *jm_ckpt_at(struct job_machine *m, uint64_t step, uint32_t generation);
void jm_ask_verify(struct jm_step *s, struct jm_ckpt *ckpt);
void jm_drop_orphans(struct jm_step *s); /* sets aside what is read through a bad one */
void jm_on_verified(struct jm_step *s);
void jm_on_quarantined(struct jm_step *s);
void jm_on_ckpt_removed(struct jm_step *s, struct jm_ckpt *ckpt);
void jm_suspect_damage(struct jm_step *s);
void jm_damage_tick(struct jm_step *s);
void jm_catalog_resume(struct jm_step *s);
bool jm_damage_pending(const struct job_machine *m);
bool jm_final_committed(const struct job_machine *m);

/* ---- job_sweep.c ---- */
void jm_sweep(struct jm_step *s);       /* after every event */
void jm_sweep_again(struct jm_step *s); /* a save committed */
void jm_on_swept(struct jm_step *s);

/* ---- job_time.c ---- */
void jm_account(struct job_machine *m, int64_t now);
void jm_note_progress(struct jm_step *s, struct jm_rank *rank);
void jm_watch(struct jm_step *s);
