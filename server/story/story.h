/*
 * The story of a job in words: its recoveries one by one, what they cost by cause, and what people
 * can do about it.
 *
 * Pure: only records go in (server/recovery/recovery.h), only text comes out.
 * Errors: those of the buffer that is written to.
 */
#pragma once

#include "common/buf.h"
#include "common/reason.h"
#include "server/jobfsm/parts.h"
#include "server/recovery/recovery.h"

#define STORY_FAULTS (FSM_FAULT_WRONG + 1)
#define STORY_NODES  32 /* blamed ones that are counted; more aren't */
#define STORY_ADVICE (STORY_FAULTS + 2)

/* The cost of all recoveries of one cause. */
struct story_loss {
    uint32_t count;
    uint64_t steps; /* steps that were trained again */
    int64_t ms[RECOVERY_PARTS];
    /* of the newest of them */
    uint32_t rank, ended;
    char node[LIMIT_NAME];
};

struct story {
    struct story_loss of[STORY_FAULTS]; /* by enum fsm_fault_kind; NONE: as planned */
    struct story_node {
        char name[LIMIT_NAME];
        uint32_t count;
    } nodes[STORY_NODES];
    uint32_t node_count;
    int64_t stored_ms; /* of the replays those from a checkpoint, or from the beginning */
};

/* Returns the name that people and programs know a cause by: "planned" for none. */
const char *story_cause(uint32_t fault);

/* Adds a recovery; they come in the order of time. */
void story_add(struct story *story, const struct recovery *r);
/* Writes one line, without its time: what failed, who is blamed and what was seen, what was done,
 * from which step. It ends with how many steps are trained again, and the seconds by part. over:
 * the job has ended. */
MUST_CHECK enum status story_recovery(const struct recovery *r, bool over, struct buf *out);
/* Writes a table, a row for each cause there was; nothing if there was none. */
MUST_CHECK enum status story_losses(const struct story *story, struct buf *out);

/* The facts that the advice depends on, beside the story. */
struct story_facts {
    const char *job; /* as commands name it */
    bool spare_node; /* there are nodes beside the one that is blamed */
    bool copies;     /* the job keeps copies in memory */
    bool command;    /* the job runs a program of the user's */
    bool saves;      /* the job has checkpoints */
};
struct story_advice {
    const char *about;  /* the cause, "replay", or "node" */
    struct reason text; /* one line */
};
/* Advises what people can do: one piece for each cause where there is something. Returns how
 * many. */
uint32_t story_advise(const struct story *story, const struct story_facts *facts,
                      struct story_advice out[STORY_ADVICE]);
