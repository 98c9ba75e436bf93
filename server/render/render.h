/*
 * Jobs, checkpoints and nodes as the messages of control.proto.
 *
 * What the core knows is taken on its thread. What only the journal knows, a job's history, is
 * added on any thread, from a connection of that thread's own (journal_open_beside): a thousand
 * events take milliseconds.
 *
 * Memory: what comes back is on the heap, to be freed by the message's free_unpacked(…, NULL).
 *         NULL: no memory.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "server/coord/coord.h"

#define RENDER_EVENTS     1000 /* the newest events of a job that its history shows */
#define RENDER_CKPTS      100  /* the newest checkpoints of a job that is shown alone */
#define RENDER_RECOVERIES 64   /* the newest recoveries, likewise */
#define RENDER_PAGE       1000 /* jobs, checkpoints */

/* Writes "2026-01-02T03:04:05.678Z"; 0: "". */
void render_time(int64_t wall_ms, char out[32]);
char *render_time_text(int64_t wall_ms); /* that time as a copy, for a message's field */

/* Returns a job with its newest ckpts_max checkpoints, without its history. core: may be NULL for a
 * job that ended. */
Cairn__V1__Job *render_job(const struct coord *coord, struct coord_job *job, size_t ckpts_max);
Cairn__V1__Checkpoint *render_ckpt(const struct coord_job *job, const struct fsm_ckpt *ckpt);
/*
 * Renders the checkpoints after the token, newest first; size 0: RENDER_PAGE of them.
 * Errors: ST_INVALID  no token of ours; ST_NO_MEMORY
 */
MUST_CHECK enum status render_ckpts(const struct coord_job *job, size_t size, const char *token,
                                    Cairn__V1__ListCheckpointsReply **out);
Cairn__V1__Node *render_node(struct coord *coord, struct coord_node *node);

/* The facts, beside the journal's, that a job's history is told with, as the core has them. */
struct render_history {
    char job[16];
    uint32_t generation;      /* the newest */
    bool over;                /* the job has ended */
    struct recovery recovery; /* the newest: its row is written when it is closed */
};
struct render_history render_history_of(const struct coord_job *job);
/*
 * Adds the newest events and recoveries to the job's message.
 * Errors: those of the journal; ST_NO_MEMORY
 */
MUST_CHECK enum status render_history(const struct render_history *of, struct journal *journal,
                                      Cairn__V1__Job *out);
/* Returns a generation; its nodes only if their list is short: a job of 1,024 workers has 64 of
 * these in a reply. */
Cairn__V1__Generation *render_generation(const struct journal_generation *row);
int64_t render_lasted_ms(const struct journal_generation *row); /* once it has ended */
Cairn__V1__Recovery *render_recovery(const struct recovery *r);
/* Reads a record as the journal has it; takes the job's own if it is still under way. false: it is
 * none. */
bool render_read_recovery(const struct render_history *of, uint32_t generation, const char *text,
                          struct recovery *out);
/* Lists the seconds of each part. */
bool render_parts(const int64_t ms[RECOVERY_PARTS], size_t *out_count,
                  Cairn__V1__LostSeconds ***out);

/* The explanation of a job: what happened, where each second went, first cause first; also as a
 * text for people. */
struct explain;
/* Begins the explanation with what the core knows. core: as of render_job; spare_node: there are
 * nodes beside one. */
struct explain *explain_begin(const struct coord *coord, struct coord_job *job, bool spare_node);
/* Adds what the journal says, and ends the explanation. Errors: the journal's, ST_NO_MEMORY */
MUST_CHECK enum status explain_end(struct explain *explain, struct journal *journal,
                                   Cairn__V1__ExplainJobReply **out);
void explain_free(struct explain *explain); /* one that isn't ended; NULL is fine */

/* Returns all that the coordinator has of a job in memory as a JSON object, on the heap; NULL: no
 * memory. Secrets (tokens) are left out. */
char *render_debug(const struct coord *coord, const struct coord_job *job);

/* Says why a job is as it is and, if its store is full, what people can do about that. core: as of
 * render_job. */
void render_reason(const struct coord *coord, const struct coord_job *job, struct reason *out);
/* Says what makes room in a full store: "'cairn ckpt rm JOB@STEP' ..." */
void render_space_hint(const struct coord_job *job, struct reason *out);

/* Returns a copy on the heap for a message's field; NULL: no memory. */
char *render_text(const char *value);
