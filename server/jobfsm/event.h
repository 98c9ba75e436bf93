/*
 * Events, which a job's state machine takes, and actions, which it wants carried out.
 *
 * An event is its kind, the time, its sender, and the member of the union that stands beside its
 * kind below. The sender decides what is checked first: what agents and trainers of an older
 * generation say changes nothing.
 *
 * Memory: pointers in an event are borrowed for the call.
 */
#pragma once

#include "server/jobfsm/parts.h"

enum fsm_event_kind {
    /* the scheduler's, and the store's */
    FSM_EV_TICK,    /* -               time passed */
    FSM_EV_PLACED,  /* placed          slots were found */
    FSM_EV_WAITING, /* waiting         there are none */
    FSM_EV_STORE,   /* answer          to what it was asked */
    FSM_EV_NOWHERE, /* -               no node is left but those where it failed */
    FSM_EV_NODE,    /* node            an agent is there: what was held against it is void, but
                         *                 where it was about this very agent */
    FSM_EV_LEAVING, /* leaving         the node of `rank` takes no workers any more, or none of
                         *                 this job, where `rank` is a spare */
    FSM_EV_NOTE,    /* note            something that people should know */
    FSM_EV_PATH,    /* path            two of its generation's nodes can't reach each other */
    FSM_EV_SPARE,   /* placed          a slot for one worker more */
    /* of a rank's process, from its agent */
    FSM_EV_STARTED, /* started */
    FSM_EV_MISSING, /* -               the agent's hello does not list it */
    FSM_EV_EXITED,  /* exited */
    FSM_EV_AGENT,   /* agent           the agent itself falls silent, or is heard again */
    /* of a rank's session */
    FSM_EV_HELLO,        /* hello */
    FSM_EV_SESSION_LOST, /* - */
    FSM_EV_READY,        /* ready */
    FSM_EV_PROGRESS,     /* progress */
    FSM_EV_FAULT,        /* fault */
    FSM_EV_FINISHED,     /* finished   it was told to leave, and does */
    FSM_EV_SAVE_BEGIN,   /* save_begin */
    FSM_EV_SAVE_REPORT,  /* save_report */
    FSM_EV_SAVE_FAILED,  /* save_failed */
    FSM_EV_SAVE_PASSED,  /* save_passed: it is beyond an announced step */
    FSM_EV_SAVE_WANTED,  /* save_wanted: somebody asked the worker for a save, or to leave */
    FSM_EV_READ_BACK,    /* read_back  how far it is with m->read_back */
    FSM_EV_PARKED,       /* parked     it has left the generation, and waits */
    /* what people ask */
    FSM_EV_PAUSE,
    FSM_EV_RESUME,
    FSM_EV_STOP,
    FSM_EV_KILL,
    FSM_EV_SAVE,
    FSM_EV_DRAIN,       /* save, and go on when the coordinator is up again */
    FSM_EV_DRAIN_NOW,   /* no more time: end the trainers */
    FSM_EV_REMOVE_CKPT, /* remove_ckpt */
    FSM_EV_CHECK_CKPT,  /* check_ckpt: read it, set it aside if it is damaged */
    FSM_EV_SET,         /* set: another number of workers */
};

#define FSM_EV_FIRST_ASK FSM_EV_PAUSE

/* The slots that were found: as many as fsm_vacant_ranks says, or fewer, but fsm_least of them.
 * The token is that of the generation to come, or of spares. */
struct fsm_placed {
    const char *const *nodes;
    const uint32_t *slots;
    uint32_t count;
    const char *token;
};

struct fsm_exited {
    enum fsm_exit how;
    int32_t code; /* exit code, or signal */
    const char *message;
    /* of its last words and its flight recorder */
    bool finished;
    uint64_t step;
    const char *phase;             /* or NULL */
    const struct fsm_fault *fault; /* or NULL */
};

struct fsm_hello {
    uint32_t pid;
    bool attached; /* it has an assignment: the session was lost, or the coordinator */
    uint64_t step; /* attached: finished steps */
    bool parked;   /* the worker was of the generation before; attached: it has left this one */
    struct fsm_parked_state parked_state; /* parked */
    const struct fsm_copy *copies;        /* found on its node; holder is not set */
    size_t copy_count;
};

struct fsm_ready {
    uint64_t total_steps, steps_per_epoch; /* total 0: not known */
    uint64_t state_bytes;                  /* of a checkpoint, raw; 0: not known */
    uint64_t last_step;                    /* it ends by itself with this one; 0: not said */
    const char *last_reason;
    const char *pins_differ; /* how its pins differ from the job's; NULL: they don't */
    const char *data_differ; /* how its data do; NULL: they don't, or pins_differ */
};

struct fsm_progress {
    uint64_t step; /* finished */
    const char *phase;
    uint64_t counter;                /* rises with whatever gets on */
    uint64_t saving;                 /* rises with what its saver gets done at the store */
    bool at_store;                   /* its saver has begun something and isn't through with it */
    uint64_t collectives, exchanges; /* as in struct hang_place */
    const char *collective;
    uint64_t audited; /* ranks computed the same up to that step */
    uint32_t lanes;   /* the share with which it computed the steps that were timed; 0: not said */
    struct fsm_timed timed;
};

struct fsm_report {
    uint64_t step;
    int64_t cost_us, write_ms; /* training time that it took; from the folder to the end */
    struct fsm_save_times times;
    const void *record; /* what FSM_ACT_REPORT_ROW journals; the machine doesn't look at it */
};

struct fsm_read_state {
    uint64_t step;
    uint32_t generation; /* of the checkpoint */
    uint32_t shard;      /* done, with damage: the file that was read */
    uint64_t bytes;
    bool done;
    enum status status;  /* the rest with done */
    const char *message; /* one line */
};

/* The answer to an action that asked the store. */
struct fsm_answer {
    enum fsm_task task;
    uint32_t shard;      /* VERIFY: 1 + the only file that was read; 0: all */
    uint64_t step;       /* of the save or checkpoint */
    uint32_t generation; /* of the save or checkpoint; SWEEP: those before it were swept */
    uint32_t try_number; /* of the save; the answer to an earlier one changes nothing */
    enum status status;
    const char *message; /* one line, if status is not ST_OK */
    bool mark_mismatch;  /* with ST_UNREACHABLE: at the store's place is another one, or nothing */
    const char *mark;    /* PROBE, ST_OK: what the store is known by; NULL or "": not said */
    const void *record;  /* CHECK: what the decision journals; the machine doesn't look at it */
    const struct fsm_ckpt *ckpt; /* PUBLISH: what was published */
    uint32_t swept;              /* SWEEP: folders that went */
};

struct fsm_event {
    enum fsm_event_kind kind;
    int64_t now;         /* monotonic ms */
    int64_t wall;        /* Unix ms */
    uint32_t generation; /* STARTED to PARKED: of the process that is spoken of */
    uint32_t rank;       /* of that process */
    const char *by;      /* who asks, if people do, "operator/alice"; NULL: nobody knows */
    union {
        struct fsm_placed placed;
        struct {
            const char *reason; /* why there are no slots */
        } waiting;
        struct {
            const char *name;
            uint64_t agent;
            bool renewed; /* the agent is another one than before, as far as is known */
        } node;
        struct {
            const char *why; /* with the node's name, and how long it waits */
        } leaving;
        struct {
            const char *what, *message;
        } note;
        struct {
            const char *message; /* which two, and what each side saw */
        } path;
        struct {
            uint32_t pid;
        } started;
        struct fsm_exited exited;
        struct {
            enum fsm_agent state;
            const char *saw; /* SILENT, CUT_OFF: others that were asked; "" : nobody was */
        } agent;
        struct fsm_hello hello;
        struct fsm_ready ready;
        struct fsm_progress progress;
        const struct fsm_fault *fault;
        struct {
            uint64_t step;
        } finished, save_begin, remove_ckpt;
        struct fsm_report save_report;
        struct {
            uint64_t step;
            bool full;    /* the store has no room */
            bool removed; /* the rank has no file there (any more) */
            const char *message;
        } save_failed;
        struct {
            uint64_t step; /* the announced one */
            uint64_t at;   /* where the rank is */
        } save_passed;
        struct {
            bool leaves;
            uint64_t grace_ms; /* leaves: within that time */
            const char *why;
        } save_wanted;
        struct fsm_parked_state parked;
        struct fsm_read_state read_back;
        struct fsm_answer answer;
        struct {
            uint64_t step;
            uint32_t generation;
        } check_ckpt;
        struct {
            uint32_t workers;
            bool evens; /* the job file's own shares are for another number of workers */
        } set;
    };
};

/* ---- actions ---- */

#define FSM_ACTIONS_MAX 96

/* The kinds of actions. In fields that are not named, rank is FSM_ALL_RANKS and generation the
 * current one. */
enum fsm_action_kind {
    /* written to the journal, with the state */
    FSM_ACT_EVENT, /* what, step, message: an event for people, in the job's history */
    FSM_ACT_GEN_BEGIN,
    FSM_ACT_GEN_END,    /* of the current generation, with m->cause */
    FSM_ACT_RECOVERY,   /* m->recovered: it is closed, and known to be complete */
    FSM_ACT_SAVE_ROW,   /* step, generation, save_state; FSM_SAVE_FREE deletes */
    FSM_ACT_CKPT_ROW,   /* step, generation: as the catalog has it; not there: deletes */
    FSM_ACT_REPORT_ROW, /* step, generation, rank: the report that the event brought */
    /* carried out afterwards, in order */
    FSM_ACT_SCHEDULE, /* slots were freed or are wanted */
    FSM_ACT_START,    /* trainers of all ranks; those that were kept go on */
    FSM_ACT_PARK,     /* rank: those that are to leave the generation and stay */
    FSM_ACT_END,      /* rank: kills the trainers that are neither gone nor parked */
    FSM_ACT_UNSEEN,   /* rank: counts as gone, and nobody saw that it is: its slot stays held */
    FSM_ACT_CLOSE,    /* rank, message: sessions are told so and closed */
    FSM_ACT_ASSIGN,   /* rank: what it is to do in this generation */
    FSM_ACT_BLAME,    /* rank: the job failed by the fault of its node */
    FSM_ACT_ACCUSE,   /* rank, message: its node computes wrongly, and gets no more work */
    FSM_ACT_CLEAR,    /* no node is blamed any more: the fault was the job's */
    FSM_ACT_SUSPECT,  /* paths between the nodes of the generation may be broken */
    FSM_ACT_FORGET,   /* the job's copies in memory, on nodes that need none of them */
    FSM_ACT_SAVE_AT,  /* step, exit; rank */
    FSM_ACT_STAY,     /* step; rank: the exit announced for it is taken back */
    FSM_ACT_STORE,    /* task, shard: asks the store about step, generation; answer: an event */
    /* to ranks, about a save */
    FSM_ACT_SEND_FOLDER, /* step, there; rank, or all that began it */
    FSM_ACT_SEND_DONE,   /* step, committed; rank */
    FSM_ACT_READ_BACK,   /* step, generation; rank: m->read_back begins, or is said again */
};
#define FSM_ACT_FIRST_OUTSIDE FSM_ACT_SCHEDULE

struct fsm_action {
    enum fsm_action_kind kind;
    uint32_t rank, generation;
    uint64_t step;
    uint32_t shard; /* STORE, VERIFY: 1 + the only file to read; 0: all */
    union {
        enum fsm_task task;             /* STORE */
        enum fsm_save_state save_state; /* SAVE_ROW */
        bool exit;                      /* SAVE_AT: they leave then */
        bool there;                     /* SEND_FOLDER: it is; else the save was dropped */
        bool committed;                 /* SEND_DONE; else it was dropped */
    };
    char what[24]; /* TELL: "saved", "fault", ... */
    char message[LIMIT_REASON];
};

struct fsm_actions {
    size_t count;
    struct fsm_action list[FSM_ACTIONS_MAX];
};
