/*
 * What the files of the core share: core.c (life, time), core_load.c (the journal read),
 * core_apply.c (event, journal, actions), core_store.c, core_fleet.c, core_training.c,
 * core_memory.c, core_schedule.c, core_asks.c.
 */
#pragma once

#include "server/core/core.h"

#define CORE_JOBS_MAX     JOURNAL_JOBS_MAX
#define CORE_NODE_MS      5000  /* without a beat: silent */
#define CORE_LATE_MS      2000  /* a tick so late: it was us who did not run */
#define CORE_GRACE_MS     10000 /* after the start */
#define CORE_ROWS_MS      200   /* rows are journalled together */
#define CORE_ROWS_MAX     4096
#define CORE_WAITS_MAX    8192 /* GETs of one job */
#define CORE_KV_MS_MAX    600000
#define CORE_DRAIN_MS_MAX 60000 /* a drain that nobody ends is forgotten */

struct core {
    struct core_options options;
    enum status failed;
    struct core_job **jobs; /* ascending by seq */
    size_t job_count, job_capacity;
    struct core_node **nodes;
    size_t node_count;
    int64_t seq_last;
    int64_t started_at;
    int64_t draining_until; /* 0: no */
    int64_t promised_at;    /* when core_tick was to be called; INT64_MAX: not at all */
    bool schedule_needed;
    bool applying;
    struct jm_actions actions;
    struct store_task *checked;          /* the CHECK whose answer is being applied */
    const Cairn__V1__SaveReport *report; /* that an event brought */
};

static inline int64_t core_now(const struct core *core)
{
    return clock_mono_ms(core->options.clock);
}

/* ---- core.c ---- */
struct core_job *core_job_at(struct core *core, const char *id);
/* Gives up: nothing leaves any more. */
void core_fail(struct core *core, enum status st, const char *doing);
MUST_CHECK enum status core_add_job(struct core *core, struct core_job *job);
void core_job_free(struct core_job *job);
/* At the end of every entry: places jobs if slots changed. */
void core_settle(struct core *core);
struct jm_config core_config(const struct core *core, const struct job *spec);

/* ---- core_load.c ---- */
MUST_CHECK enum status core_load(struct core *core);

/* ---- core_apply.c ---- */
struct job_event core_event(const struct core *core, enum job_event_kind kind);
enum status core_apply(struct core *core, struct core_job *job, struct job_event *event);
void core_resume(struct core *core, struct core_job *job);
void core_flush_rows(struct core *core, struct core_job *job);

/* ---- core_store.c ---- */
void core_submit_store(struct core *core, struct core_job *job, const struct jm_action *act);

/* ---- core_fleet.c ---- */
struct core_node *core_node_at(struct core *core, const char *name);
struct core_node *core_node_make(struct core *core, const char *name); /* NULL: LIMIT_NODES */
void core_send_start(struct core *core, struct core_job *job, uint32_t rank);
void core_send_end(struct core *core, struct core_job *job, uint32_t rank);
void core_nodes_tick(struct core *core);

/* ---- core_training.c ---- */
void core_send_order(struct core_job *job, uint32_t rank, Cairn__V1__TrainerOrder *order);
void core_send_plan(struct core *core, struct core_job *job, uint32_t rank);
void core_send_over(struct core_job *job, const char *reason);
void core_waits_tick(struct core *core, struct core_job *job);
void core_forget_kv(struct core_job *job);
struct jm_fault core_fault(const Cairn__V1__Fault *in);
void core_take_report(struct core *core, struct core_job *job, uint32_t rank,
                      const Cairn__V1__SaveReport *report);

/* ---- core_memory.c ---- */
/* What a plan says of nodes and copies in memory; borrows from the machine. */
struct core_places {
    char **nodes;
    uint32_t *holders;
    Cairn__V1__MemoryRestore memory;
};
MUST_CHECK enum status core_places_list(struct job_machine *m, struct core_places *out);
void core_places_release(struct core_places *places);
/* NULL: none; else free(). */
struct jm_copy *core_copies_offered(const Cairn__V1__TrainerHello *hello, size_t *out_count);
/* Tells every agent that is there; another tells of it in its hello. */
void core_send_forget(struct core *core, const struct core_job *job);
/* Which copies on a node, of those that its hello names, nobody needs. */
void core_check_copies(struct core *core, struct core_node *node,
                       const Cairn__V1__AgentHello *hello);

/* ---- core_schedule.c ---- */
void core_schedule(struct core *core);
/* Random hex digits, capacity - 1 of them: an even number, 64 at most. */
void core_nonce(struct core *core, char *out, size_t capacity);

/* core_gpu.c: what a hello or a beat says of a node's GPUs. */
void core_take_gpus(struct core *core, struct core_node *node, Cairn__V1__Gpu *const *gpus,
                    size_t count);
/* Whether it has slots of this device kind. */
bool core_node_has(const struct core_node *node, const char *device);
