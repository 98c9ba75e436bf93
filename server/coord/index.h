/* The core's tables of jobs: how one is found, what is kept of it, which worker has which rank. */
#pragma once

#include "server/coord/state.h"

struct coord_job *coord_job_at(struct coord *coord, const char *id); /* NULL: there is none */
/*
 * Makes a job that is in no table yet: QUEUED. It takes spec over, whatever comes back.
 * row: all but state; borrowed.
 */
MUST_CHECK enum status coord_job_new(struct coord *coord, const struct journal_job *row,
                                     struct jobspec *spec, struct coord_job **out);
void coord_job_free(struct coord_job *job);
MUST_CHECK enum status coord_add_job(struct coord *coord, struct coord_job *job);
void coord_remove_job(struct coord *coord, struct coord_job *job);
/*
 * Called after anything that may have changed when the job wants its next tick, whether it wants
 * slots or is over, and which slots its ranks hold. Its cost does not grow with jobs or nodes.
 */
void coord_job_moved(struct coord *coord, struct coord_job *job);
/* Returns when the job wants a tick; coord_job_queues: whether it wants slots, now or soon. */
int64_t coord_job_deadline(const struct coord_job *job);
bool coord_job_queues(const struct coord_job *job);
/* Notes that all jobs that wait have something else to say. */
void coord_queue_moved(struct coord *coord);
/* Called when a generation begins: sessions follow their workers to these workers' new ranks. */
void coord_reattach_connections(struct coord *coord, struct coord_job *job);
/* Forgets the rounds of a generation. */
void coord_forget_rendezvous(struct coord_job *job);
/* Ends what the job knows of a session, if it still has this one. The stream may go on. */
void coord_detach(struct coord_conn *conn);
/* True if an agent or a trainer is of our major and minor version; "" is 0.1. */
bool coord_version_fits(const char *theirs);
/* Returns the version that was said; for "" the one that it counts as. */
const char *coord_version_text(const char *theirs);
