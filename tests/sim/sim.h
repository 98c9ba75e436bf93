/*
 * A simulated world around the real coordinator core and the real worker session: one seed decides
 * every delay, crash, lost connection and full disk, so that a seed that fails fails again.
 *
 *   coordinator  server/coord with its real journal (a file); what comes to it is committed one by
 *                one or, in four of ten worlds, in groups; it may crash before a commit, and at any
 *                of its outputs
 *   workers      session/fsm.h over simulated connections; they "train" by counting
 *   agents       trainers outlive them; they repeat an exit until it is acknowledged
 *   paths        between nodes, in some worlds: cut for a while or for good, one way or both; in
 *                some between a node and the coordinator, for a while, and machines lose power
 *   store        a model of folders, files and manifests, with full disks, damage, late answers
 *   memory       copies of states on the machines' tmpfs, some of them damaged
 *   wrong        workers that compute something else than others would, in some worlds
 *   plain        in some worlds jobs of which nothing is saved (worker/sim_plain.c)
 *   programs     in some worlds programs that are saved (worker/sim_program.c)
 *   queues       in some worlds more jobs than slots, and nodes that never come back
 *   users        ask for things, in half of the worlds, whose jobs have spares, for other
 *                numbers of workers, too; they see that the promises made to them are kept
 *
 * The promises are checked after every event (sim_coordinator_check), where an order leaves
 * (sim_coordinator.c), and where the store changes (sim_store.c). One that isn't kept prints the
 * seed, the time and the promise, and ends the process.
 *
 * Units: milliseconds of simulated time. Memory: objects of the world live until its end.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/clock.h"
#include "session/session.h"

#define SIM_JOBS     8 /* at most; in most worlds 4 */
#define SIM_NODES    6 /* the same: 3 */
#define SIM_RANKS    4 /* of a generation; spares are beside them */
#define SIM_LANES    8
#define SIM_NO_RANK  UINT32_MAX
#define SIM_FOLDERS  4096
#define SIM_SLOTS    4
#define SIM_TRAINERS 4096

struct sim;
struct sim_conn;
struct sim_trainer;
struct sim_node;
struct coord_conn;
struct store_task;

typedef void (*sim_fn)(struct sim *sim, void *arg, uint64_t number);

/* What every job keeps. */
#define SIM_KEEP_LAST  3
#define SIM_KEEP_EVERY 60

struct sim_options {
    uint64_t seed;
    int64_t chaos_ms; /* failures happen before; then the jobs must come to their end */
    bool calm;        /* only failures that must not cost a generation */
    bool once;        /* one lane is computed wrongly, once, wherever something may be wrong */
    bool queue;       /* every world is crowded (sim_queue.c) */
    bool plain;       /* worlds have jobs of which nothing is saved */
    bool programs;    /* worlds have programs that are saved */
    bool verbose;
};

/* What was asked of the coordinator's job, as far as the world knows. */
struct sim_job {
    char id[16];
    bool submitted;
    uint32_t ranks; /* that it is to have, as it was acknowledged last */
    uint32_t asked; /* or so many: the coordinator died before it said so; 0: it said so */
    uint32_t min, spares;
    uint32_t floor;         /* with fewer no generation forms; 0: with fewer than it is to have */
    bool is_set;            /* users ask for other numbers of workers */
    char spares_token[72];  /* with the newest order to start one */
    uint32_t planned, size; /* plans of this generation left, for so many ranks */
    int64_t set_at;         /* it was to have another number since then */
    uint32_t formed_in;     /* the newest generation that was seen */
    int64_t formed_at;      /* ... for the first time */
    int64_t short_since;    /* it trains on with too few or too many, and nothing is in its way */
    int64_t crowd_since;    /* it has more processes than it is to have */
    uint64_t total, every;  /* every 0: by time, every_ms */
    int64_t every_ms;
    bool delta;
    int64_t saved_at;     /* a save of it was published last, or it began to run */
    int64_t hangs_since;  /* some of its savers hang, not all; 0: not so */
    uint32_t generation;  /* highest that was started */
    uint32_t ordered;     /* highest of which an order to start left the coordinator */
    uint64_t acked;       /* newest step that anybody was told is committed, and is undamaged */
    uint32_t acked_by;    /* the generation that saved it */
    bool killed, stopped; /* asked by the user */
    uint64_t stop_step;   /* it trained when it was asked to stop, and had finished this step */
    bool user_error;      /* its trainers report one */
    bool failed;          /* it was seen to have */
    bool ran;             /* so its data are pinned */
    uint32_t judged;      /* the newest generation that was seen to end */
    uint32_t hang_judged; /* ... by a hang */
    uint32_t trained_in;  /* the newest generation that was seen to train */
    uint32_t stepped_in;  /* the newest generation that reported a step to the coordinator */
    uint64_t stepped;
    int64_t stepped_at; /* the newest report of one */
    int64_t parks_since,
        kept_since;   /* its workers; the newest time when they didn't, and weren't */
    uint32_t cut_off; /* generations that ended by a node that lives, and rightly */
    /* Damage that was found in copies: by which generation last, in whose copies, of which step,
     * and how often in the same ones. */
    uint32_t memory_bad_in, memory_bad_of, memory_bad_times;
    uint64_t memory_bad_step;
    bool by_speed;       /* its shares */
    bool owns;           /* its ranks own parts of the state */
    uint32_t stages;     /* of a pipeline; 0: it is none */
    bool slowed;         /* one of its workers is slower than the others, or was */
    uint32_t moved_in;   /* the newest generation whose lanes are to move */
    uint64_t moved_by;   /* ... by the coordinator after so many crashes */
    int64_t moved_at;    /* ... since then; 0: never */
    int64_t waits_since; /* it waits for a slow worker, and nothing is in the way of other shares */
    uint32_t memory_of;  /* this generation restores memory_step from copies */
    uint64_t memory_step;
    uint64_t audit_every, checksum_every;
    uint32_t distrusted; /* what generations up to this one computed last, audits found wrong */
    uint64_t good_step;  /* ... after this step */
    uint32_t wrong_in;   /* the newest generation in which a worker computes lanes wrongly */
    uint64_t wrong_at;   /* ... since this step */
    uint32_t began_in;   /* the newest generation that began at a step, began_at */
    uint64_t began_at;
    bool began_tainted;
    bool waited;        /* QUEUED, when it was looked at last */
    int64_t gone_since; /* it is to go on with other workers since then; 0: it isn't */
    bool plain;         /* nothing is saved of it: its workers run a program, for run_ms */
    bool says_steps;    /* which says steps */
    int64_t run_ms;
    bool program;      /* its workers run a program, which is saved */
    uint32_t budget;   /* failures in a row; 0: as models have it */
    uint32_t early_in; /* the newest generation that leaves early, with the save of early_at */
    uint64_t early_at;
    uint64_t promised; /* its program says so many steps, and ends by itself after `total`; 0: no */
    bool pauses;       /* it was asked to, in generation pause_in ... */
    uint32_t pause_in;
    uint64_t pause_by; /* ... and after so many crashes of the coordinator */
    bool succeeded;
    bool laundered; /* something is wrong in its state, and nobody can find that out any more */
};

/* What a node, or a worker on it, computes wrongly (worker/sim_audit.c). */
enum sim_wrong { SIM_WRONG_NOTHING, SIM_WRONG_LANES, SIM_WRONG_ONCE, SIM_WRONG_STATE };

/* What is wrong with a node for the whole run. */
enum sim_flaw { SIM_NO_FLAW, SIM_STARTS_NOTHING, SIM_HAS_NO_DATA };
#define SIM_FLAW "a flaw of this node" /* in the message of each failure of it */

struct sim_folder {
    uint32_t job;
    uint64_t step;
    uint32_t generation, try_number;
    bool there, manifest, bad, damaged;
    bool removing;        /* asked for, when it might be */
    bool published;       /* once; retention may have removed it since */
    bool read_back;       /* all of it, by the coordinator or file by file */
    bool late;            /* a late call made it: nobody sweeps it any more */
    uint32_t read_files;  /* a bit each */
    uint64_t parent_step; /* it holds differences to this one; generation 0: to none */
    uint32_t parent_generation;
    uint32_t shards;           /* from the time of its publication */
    uint64_t file[SIM_RANKS];  /* content; 0: no file */
    uint64_t taint[SIM_RANKS]; /* of the states that they are of */
    uint64_t digest;           /* of the manifest */
};

struct sim {
    struct sim_options options;
    uint64_t random;
    int64_t now, started;
    struct clock clock;
    /* events */
    struct sim_event *heap;
    size_t event_count, event_capacity;
    uint64_t event_order;
    uint64_t events_run;
    /* world */
    struct sim_job jobs[SIM_JOBS];
    uint32_t job_count;
    struct sim_node *nodes[SIM_NODES];
    uint32_t node_count;
    bool crowded;              /* more jobs than slots, and nodes that never come back */
    uint64_t starts, hopeless; /* jobs that waited and got slots; that waited in vain */
    enum sim_flaw flaw;        /* of nodes[flawed] */
    uint32_t flawed;
    uint32_t slots;                          /* of each node */
    int64_t cut_until[SIM_NODES][SIM_NODES]; /* the path from the first to the second */
    uint64_t cuts, probes;
    bool breaks_control; /* this world cuts nodes off from the coordinator, and off power */
    int64_t unheard_until[SIM_NODES], deaf_until[SIM_NODES]; /* what it says, what it is told */
    uint64_t cut_offs, power_cuts;
    int64_t clear_since; /* the coordinator runs, and hears a node that may witness */
    struct sim_trainer *trainers[SIM_TRAINERS];
    size_t trainer_count;
    struct sim_folder folders[SIM_FOLDERS];
    size_t folder_count;
    bool store_full;
    uint32_t edited[SIM_NODES]; /* the data there; 0: they are as they were */
    uint32_t lanes;             /* of its jobs: as many as workers at most, or more */
    bool resizes;               /* this world has jobs with spares, or with numbers that change */
    int64_t savers_hang_until;  /* the store answers the coordinator, but no worker */
    bool chaos;
    bool was_unplugged; /* the coordinator, for a while */
    /* coordinator */
    struct coordinator *coordinator;
    uint32_t group_max; /* calls of the core between two commits */
    uint64_t crashes, faults, commits, restores;
    char path[256]; /* of its journal */
    struct sim_memory *memory;
    uint64_t memory_restores, live_restores, swept, read_backs;
    uint64_t stalls_blamed, stalls_missed; /* ranks that hung in a step, by evidence; not */
    uint64_t spares_started, seats_taken, sets, resized, moves;
    enum sim_wrong wrong;
    uint32_t wrong_node;
    bool wrong_now, wrong_done; /* it has begun; the one lane was computed */
    uint32_t once_job;          /* plus one: of whose workers one is wrong; 0: not known yet */
    uint64_t once_wait;         /* steps of it until then */
    double once_chance;         /* that the one lane is audited in that step */
    bool once_found;            /* it was */
    uint64_t wrong_found, wrong_unseen;
    struct sim_round *rounds; /* [2][SIM_JOBS] the newest of each, and the ones before */
};

/* ---- sim.c: time, chance ---- */
uint64_t sim_random(struct sim *sim);
uint64_t sim_below(struct sim *sim, uint64_t n);
/* When something that hangs goes on: within max_ms, and with the chaos. */
int64_t sim_hang_end(struct sim *sim, int64_t max_ms);
bool sim_chance(struct sim *sim, uint32_t per_mille);
void sim_at(struct sim *sim, int64_t delay_ms, sim_fn fn, void *arg, uint64_t number);
void sim_fail(struct sim *sim, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
void sim_say(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
int sim_job_at(const struct sim *sim, const char *id); /* -1 */
/* The state after a step is a function of job and step alone: what exactness means. */
uint64_t sim_state(uint32_t job, uint64_t step);
uint64_t sim_part(uint64_t state, uint32_t rank);
/* The loss in the row of a step. */
float sim_loss(uint64_t step);

/* ---- sim_coordinator.c ---- */
void sim_coordinator_start(struct sim *sim);
void sim_coordinator_crash(struct sim *sim);  /* now; restarts after a while */
void sim_coordinator_unplug(struct sim *sim); /* its network: what is sent meanwhile comes later */
void sim_coordinator_freeze(struct sim *sim); /* SIGSTOP, and SIGCONT after a while */
bool sim_coordinator_up(const struct sim *sim);
void sim_coordinator_submit(struct sim *sim, uint32_t job);
bool sim_coordinator_runs(const struct sim *sim); /* it is up, hears, and is heard */
void sim_coordinator_chaos(struct sim *sim);      /* asks something, as users do */
/* All jobs ended (or are paused when they may be). */
bool sim_coordinator_done(struct sim *sim);
void sim_coordinator_check(struct sim *sim);
void sim_coordinator_stuck(struct sim *sim) __attribute__((noreturn)); /* says what doesn't end */
void sim_coordinator_free(struct sim *sim);
void sim_coordinator_drop(sim_fn fn, void *arg); /* an event that is not run any more */
void sim_coordinator_end(struct sim *sim);       /* the last checks */

/* Connections. The far end (an agent, a trainer) gets orders, packed, and hears of the end. */
struct sim_far_ops {
    void (*order)(struct sim *sim, void *far, const uint8_t *data, size_t size);
    void (*closed)(struct sim *sim, void *far);
};
/* NULL: the coordinator is down. */
struct sim_conn *sim_connect(struct sim *sim, bool agent, uint32_t node, const char *token,
                             const struct sim_far_ops *ops, void *far);
void sim_vanish(struct sim_conn *conn); /* that end: nobody hears of it */
void sim_send(struct sim *sim, struct sim_conn *conn, const ProtobufCMessage *message);
void sim_hang_up(struct sim *sim, struct sim_conn *conn); /* by that end: ops.closed isn't called */
void sim_cut(struct sim *sim, struct sim_conn *conn);     /* the network: both hear of it */

/* ---- sim_store.c ---- */
void sim_store_submit(struct sim *sim, struct store_task *task);
void sim_store_run(struct sim *sim, struct store_task *task);
/* A task that hangs, or whose coordinator is dead: what it looks at first, and what it does long
 * after. */
void sim_store_begin(struct sim *sim, struct store_task *task);
void sim_store_late(struct sim *sim, struct store_task *task);
/* A checkpoint that the catalog has holds what its ranks wrote. */
void sim_store_check(struct sim *sim, const struct sim_folder *folder);
struct sim_folder *sim_folder_at(struct sim *sim, const char *dir);
/* Returns, of the tries of that save, the published one, or the first. */
struct sim_folder *sim_folder_of(struct sim *sim, uint32_t job, uint64_t step, uint32_t generation);
void sim_store_damage(struct sim *sim);
/* No good checkpoint of that step is there any more, and the disk damaged a later one: retention,
 * which removed it for those that came after it, could not know. */
bool sim_store_lost(struct sim *sim, uint32_t job, uint64_t step);
/* What reading one file comes to. */
enum status sim_folder_read(struct sim *sim, struct sim_folder *folder, uint32_t file);
/* Damaged, or read through one that is. */
bool sim_folder_damaged(struct sim *sim, const struct sim_folder *folder);

/* ---- worker/sim_memory.c ---- */
struct sim_trainer_view;
bool sim_memory_used(uint32_t job);
/* A finished step's share. */
void sim_memory_put(struct sim *sim, const struct sim_trainer_view *view);
size_t sim_memory_list(struct sim *sim, const struct sim_node *node, uint32_t job,
                       struct session_copy *out, size_t capacity);
/* Checks what a plan promises of its copies; false: one is damaged, or gone with its machine.
 * taint: of the state that they are together. */
bool sim_memory_restore(struct sim *sim, uint32_t job, const struct session_assignment *plan,
                        uint64_t *taint);
void sim_memory_forget(struct sim *sim, const struct sim_node *node, int job); /* -1: all */
void sim_memory_free(struct sim *sim);

/* ---- sim_agent.c ---- */
struct sim_node *sim_node_new(struct sim *sim, uint32_t index);
void sim_node_free(struct sim_node *node);
uint32_t sim_node_data(const struct sim *sim, const struct sim_node *node);
void sim_agent_crash(struct sim *sim, struct sim_node *node);
/* SIGTERM to an agent that leaves: it comes back later. */
void sim_agent_leave(struct sim *sim, struct sim_node *node);
void sim_node_crash(struct sim *sim, struct sim_node *node);     /* the machine: trainers, too */
void sim_node_power_cut(struct sim *sim, struct sim_node *node); /* the same, and nobody hears */
void sim_node_die(struct sim *sim, struct sim_node *node);       /* for good */
bool sim_node_is_gone(const struct sim_node *node);
void sim_agent_cut(struct sim *sim, struct sim_node *node);
bool sim_node_up(const struct sim_node *node, int64_t *out_since);
/* True if the node has been there for a while, and has no flaw. */
bool sim_node_serves(struct sim *sim, const struct sim_node *node);
enum sim_flaw sim_node_flaw(struct sim *sim, const struct sim_node *node);
/* A process of the node is gone. */
void sim_agent_exited(struct sim *sim, struct sim_trainer *trainer);

bool sim_node_leaves(const struct sim_node *node);
uint32_t sim_node_index(const struct sim_node *node);
const char *sim_node_name(const struct sim_node *node);

/* ---- sim_netpaths.c ---- */
struct coord;
/* Whether this world has paths that break; after its flaw is known. */
void sim_netpaths_begin(struct sim *sim);
/* What the first sends reaches the second. */
bool sim_path_works(const struct sim *sim, uint32_t from, uint32_t to);
/* Two nodes of that generation don't reach each other, so nothing that it does together gets on. */
bool sim_netpaths_hold_up(const struct sim *sim, uint32_t job, uint32_t generation);
/* How long what goes that way is under way until it is mended. */
int64_t sim_control_away_ms(const struct sim *sim, uint32_t node, bool to_core);
/* An order to start a trainer leaves: not across a path that is known to be cut. */
void sim_netpaths_check_start(struct sim *sim, struct coord *coord, const char *job,
                              uint32_t generation);

/* ---- sim_queue.c ---- */
/* How many jobs and nodes, and slots of each. */
void sim_queue_begin(struct sim *sim);
/* After each event: no job that was to go on lost its slots to one that waited. */
void sim_queue_look(struct sim *sim, struct coord *coord);
struct coord_job;
/* True if the job waits for more slots than the living nodes have: the others come to their end
 * beside it. */
bool sim_queue_is_hopeless(const struct sim *sim, const struct coord_job *of);

/* ---- sim_parked.c ---- */
typedef struct Cairn__V1__Plan Cairn__V1__Plan;
/* A plan leaves: no step that one of its workers has is lost. */
void sim_parked_check(struct sim *sim, struct coord *coord, uint32_t job,
                      const Cairn__V1__Plan *plan);
/* The worker of that rank in that generation, or with that number (and a part in it): running; or
 * NULL. */
const struct sim_trainer_view *sim_member(const struct sim *sim, uint32_t job, uint32_t generation,
                                          uint32_t rank);
const struct sim_trainer_view *sim_worker(const struct sim *sim, uint32_t job, uint32_t generation,
                                          uint32_t number);
struct fsm;
/* The process that the coordinator means by that place in its table; runs: a running one. NULL:
 * there is none. */
const struct sim_trainer_view *sim_process(const struct sim *sim, uint32_t job, const struct fsm *m,
                                           uint32_t index, bool runs);
/* A rank takes the state of its plan from those who have it: false: one of them is gone. */
bool sim_live_restore(struct sim *sim, const struct sim_trainer_view *view,
                      const struct session_assignment *plan);

struct coord_job;
typedef struct Cairn__V1__TrainerRef Cairn__V1__TrainerRef;
/* After each event: who counts as parked has parked, nobody parks or is kept for long, and who
 * begins to train counts as no further than it is. */
void sim_parked_look(struct sim *sim, uint32_t job, const struct coord_job *of);
/* An agent is told to end that one, a worker that its generation is over: not one that is kept. */
void sim_parked_check_end(struct sim *sim, struct coord *coord, const Cairn__V1__TrainerRef *ref);
void sim_parked_check_over(struct sim *sim, struct coord *coord,
                           const struct sim_trainer_view *view);
/* A worker begins in its generation: nobody else has its number; nor its rank, once it has one. */
void sim_parked_check_member(struct sim *sim, const struct sim_trainer_view *view);

/* ---- worker/sim_spare.c ---- */
/* Whether this world has spares, and numbers of workers that change; before jobs are submitted. */
void sim_spare_begin(struct sim *sim);
/* After each event: how many processes it has, and that it comes to as many workers as it is to
 * have. */
void sim_spare_look(struct sim *sim, uint32_t job, const struct coord_job *of);
/* A plan leaves: every rank is one worker, every lane is one rank's. */
void sim_spare_check_plan(struct sim *sim, struct coord *coord, uint32_t job,
                          const Cairn__V1__Plan *plan);
/* Until it waits for a seat; false: it does, or is none. */
bool sim_spare_run(struct sim *sim, struct sim_trainer *trainer);

/* ---- worker/sim_plain.c ---- */
/* Which jobs of this world are plain; after all else is known of them. */
void sim_plain_begin(struct sim *sim);
/* fewer: what its file says of other numbers of workers. */
void sim_plain_print(const struct sim_job *job, uint32_t index, const char *fewer, char *out,
                     size_t capacity);
#define SIM_PLAIN_PINS "{\"cpu\":1}"
/* A worker of such a job, in a tick, from its plan on; false: it is none, or has no plan. */
bool sim_plain_run(struct sim *sim, struct sim_trainer *trainer);
/* How long a program takes that is told to end. */
int64_t sim_plain_end_ms(struct sim *sim);
/* The worker is told that its generation is over; false: it runs no program, and may go at once. */
bool sim_plain_over(struct sim *sim, struct sim_trainer *trainer);
void sim_plain_check_task(struct sim *sim, const char *job); /* the store is asked */
/* An agent is told to end that one: not while it leaves by itself. */
void sim_plain_check_end(struct sim *sim, struct coord *coord, const Cairn__V1__TrainerRef *ref);
/* A user asks it to pause: what it is before that. */
void sim_plain_asked(struct sim *sim, uint32_t job, const struct fsm *m);
/* Checks a job that ran and was just asked to pause or stop: its workers leave by themselves. */
void sim_plain_check_told(struct sim *sim, uint32_t job, const struct fsm *m);
/* After each event: nothing is saved, a pause holds, and a success is one. */
void sim_plain_look(struct sim *sim, uint32_t job, const struct coord_job *of);

/* ---- worker/sim_program.c ---- */
/* Which jobs of this world are programs; after all else is known of them. */
void sim_program_begin(struct sim *sim);
/* fewer, every: what its file says of other numbers of workers, and of when it saves. */
void sim_program_print(const struct sim_job *job, uint32_t index, const char *fewer,
                       const char *every, char *out, size_t capacity);
/* True if the program of a worker that trains has just failed, or ended too early. */
bool sim_program_fails(struct sim *sim, struct sim_trainer *trainer);
/* True if the worker saves the step that it has, and leaves, before the step that is announced. */
bool sim_program_ends(struct sim *sim, struct sim_trainer *trainer);
bool sim_program_leaves_early(struct sim *sim, const struct sim_trainer *trainer);
/* A plan leaves: no worker is a source, and copies are restored where they can be. */
void sim_program_check_plan(struct sim *sim, struct coord *coord, uint32_t job,
                            const Cairn__V1__Plan *plan);
/* After each event: a success is one. */
void sim_program_look(struct sim *sim, uint32_t job, const struct coord_job *of);

/* ---- worker/sim_lanes.c ---- */
struct session_fsm;
/* Whether workers of this world become slow. */
void sim_lanes_begin(struct sim *sim);
uint32_t sim_lanes_speed(void);
/* A worker has computed its lanes of a step. */
void sim_lanes_stepped(struct sim *sim, const struct sim_trainer_view *view,
                       struct session_fsm *coord);
/* After each event: lanes move with a reason, and where there is one. */
void sim_lanes_look(struct sim *sim, uint32_t index, const struct coord_job *of);

/* ---- worker/sim_stages.c ---- */
/* Which jobs of this world are pipelines; after its audits are known. */
void sim_stages_begin(struct sim *sim);
/* What its file says in `parallel`. */
void sim_stages_print(const struct sim_job *job, char *out, size_t capacity);
uint32_t sim_stages_of(const struct session_assignment *plan, uint32_t rank);
/* The worker has the state of its stage. */
void sim_stages_take(struct sim_trainer_view *view, const struct session_assignment *plan);
/* check_live checks a plan that goes on from workers; check_seats, with every plan, who sits
 * where. */
void sim_stages_check_live(struct sim *sim, const struct sim_trainer_view *view,
                           const struct session_assignment *plan);
void sim_stages_check_seats(struct sim *sim, uint32_t job, const struct fsm *m);

/* ---- worker/sim_audit.c ---- */
/* Whether something computes wrongly in this world; after its flaw and its slots are known. */
void sim_audit_begin(struct sim *sim);
/* True if the node takes no workers any more, as one computed wrongly there. */
bool sim_audit_drained(const struct sim *sim, uint32_t node);
/* A worker finishes a step; false: lanes differ, which it reports. */
bool sim_audit_step(struct sim *sim, struct sim_trainer *trainer);
/* The states of all ranks are compared after its newest step, or, first, before the first one. */
bool sim_audit_compares(const struct sim *sim, const struct sim_trainer *trainer);
bool sim_audit_compare(struct sim *sim, struct sim_trainer *trainer, bool first);
/* The taint of a state that is made of parts with these taints. */
uint64_t sim_audit_blend(const uint64_t *taints, uint32_t count);
void sim_audit_from_peers(struct sim *sim, struct sim_trainer *trainer,
                          const struct session_assignment *plan);
/* From a checkpoint, or copies in memory, that this generation made. */
void sim_audit_restored(struct sim *sim, struct sim_trainer *trainer, uint64_t step,
                        uint32_t made_by, uint64_t taint);
/* After each event: who is called wrong is; and what is trusted then is right. */
void sim_audit_look(struct sim *sim, uint32_t index, const struct coord_job *of);
void sim_audit_end(struct sim *sim, uint32_t index, const struct fsm *m);
const char *sim_audit_kind(const struct sim *sim); /* "nothing", "every lane", ... */

/* ---- worker/sim_hang.c ---- */
struct session_progress;
/* A rank that computes the next step for ever, and talks. */
void sim_hang_stall(struct sim *sim, struct sim_trainer_view *view);
/* A worker trains its step since `ms`; false: it gets no further. In time it comes to the step's
 * reduction. */
bool sim_hang_computes(const struct sim_trainer_view *view, struct session_progress *progress,
                       int64_t ms);
/* A worker has finished a step. trains: and goes on with the next. */
void sim_hang_stepped(struct sim *sim, struct sim_trainer_view *view,
                      struct session_progress *progress, bool trains);
/* After each event: who is blamed for a hang isn't one that the others would have waited for. */
void sim_hang_check(struct sim *sim, uint32_t job, const struct coord_job *of);

/* ---- sim_silence.c ---- */
/* The trainer said how far it is, and the core heard it. */
void sim_silence_hear(struct sim *sim, const struct coord_job *job, uint32_t generation,
                      uint64_t step);
/* After each event: who lives is not called lost while its job gets on; who is dead is. */
void sim_silence_check(struct sim *sim, uint32_t job, const struct coord_job *of);
void sim_silence_look(struct sim *sim); /* once, before those */

/* ---- worker/sim_trainer.c ---- */
struct sim_start {
    uint32_t job;
    uint32_t generation, number, slot;
    bool spare; /* it has no part in that generation */
    char token[SESSION_TOKEN];
};
struct sim_trainer *sim_trainer_new(struct sim *sim, struct sim_node *node,
                                    const struct sim_start *start);
void sim_trainer_free(struct sim_trainer *trainer);
enum sim_exit { SIM_RUNS, SIM_EXIT, SIM_SIGNAL };
struct sim_trainer_view {
    struct sim_node *node;
    struct sim_start start; /* its generation and token are those of now */
    uint32_t rank, size;    /* in it, once it has its plan: before, and of a spare, SIM_NO_RANK */
    uint32_t birth;         /* the generation that it was started for */
    uint32_t pid;
    bool dismissed;       /* it was a spare, and the coordinator was seen to have no use for it */
    int64_t disturbed_at; /* something was done to it; 0: nothing was */
    enum sim_exit exit;
    int code; /* or signal */
    bool hung, ready, acked, finished;
    bool stalls_next, stalls; /* its step thread hangs in the computation of the next step; now */
    bool was_hung;
    int64_t woke_at;           /* when a hang ended */
    int64_t saver_hangs_until; /* its node doesn't reach the store */
    bool unkillable;           /* it waits in the kernel: no signal ends it */
    uint32_t data;             /* as it found them */
    uint32_t lane_us;          /* that it takes for a lane */
    uint64_t step;
    bool unwinds;         /* it leaves its generation, and gives its state to nobody */
    bool parked;          /* its step thread has unwound, and it heard of no next generation */
    bool complete;        /* it has the state after `step` */
    uint32_t computed_by; /* the generation that computed it */
    uint32_t part,
        parts;      /* of what ranks own, or of stages, it has this one of so many; 0, 0: all */
    uint64_t taint; /* of that state */
    bool is_wrong;  /* it computed a lane wrongly, or a bit of its state flipped */
};
struct sim_trainer_view *sim_trainer_view(struct sim_trainer *trainer);
void sim_trainer_kill(struct sim *sim, struct sim_trainer *trainer, int signal);
/* SIGUSR1; or SIGTERM, which it dies of when no save came within its time of grace. */
void sim_trainer_notice(struct sim *sim, struct sim_trainer *trainer, bool leaves);
void sim_trainer_hang(struct sim *sim, struct sim_trainer *trainer);
/* In state D for a while, then it dies. */
void sim_trainer_unkillable(struct sim *sim, struct sim_trainer *trainer);
/* With its machine. */
void sim_trainer_perish(struct sim *sim, struct sim_trainer *trainer);
void sim_trainer_vanish(struct sim_trainer *trainer); /* its session, on this side */
/* The trainer's saver gets nothing done at the store, for a while or for good. */
void sim_trainer_saver_hang(struct sim *sim, struct sim_trainer *trainer);
void sim_trainer_cut(struct sim *sim, struct sim_trainer *trainer);
/* Last words, packed; *out: free(). */
void sim_trainer_words(struct sim_trainer *trainer, uint8_t **out, size_t *out_size);
