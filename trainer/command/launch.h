/*
 * Where a job's own program stands among the others, and the environment that tells it so: that of
 * torchrun ("Environment Variables" in torch.distributed's documentation of Elastic Launch), so
 * that scripts for torchrun start unchanged.
 *
 * A worker runs `processes` copies of the program. Ranks count them worker by worker; local ranks
 * count those of one node. A node is a machine as the coordinator names it.
 */
#pragma once

#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"
#include "common/rendezvous.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "session/session.h"

#define LAUNCH_HOST 64

/* A worker's place in its generation. */
struct launch_place {
    uint32_t size, rank;             /* of processes; rank: of the worker's first one */
    uint32_t local_size, local_rank; /* among processes of its node; likewise */
    uint32_t node_count, node_rank;  /* among nodes, in the order of their first ranks */
    char master_host[LAUNCH_HOST];   /* where rank 0 is to listen, a port that was free */
    uint32_t master_port;
    char gpus[LIMIT_REASON]; /* CUDA_VISIBLE_DEVICES of the node's workers, in the order of their
                              * local ranks; "": no GPU */
    char relay[64];          /* relay_name; "": nobody serves the program */
};

/* How soon the program's rank 0 listened at MASTER_PORT (first.h). */
struct launch_listening {
    uint32_t generation; /* of the start that showed it; 0: none did */
    uint32_t ms;         /* after its start; 0: not soon */
};

/*
 * Exchanges with all workers of the generation what follows from their nodes. gpu: this worker's
 * CUDA_VISIBLE_DEVICES; "": none. listening: what this worker has seen; becomes the newest that any
 * worker has.
 * Errors: of a round (common/rendezvous.h); ST_IO: no port can be bound; ST_TOO_LONG: a name
 */
MUST_CHECK enum status launch_meet(const struct rendezvous *rendezvous,
                                   const struct session_assignment *assignment, uint32_t processes,
                                   const char *gpu, int64_t timeout_ms,
                                   struct launch_listening *listening, struct launch_place *out,
                                   struct reason *out_why);

/* Makes the environment of the worker's process number `local`: this process's own, the job's
 * settings, and what says where it stands. worker: value of PATHS_WORKER_ENV. Freed with
 * launch_free. */
MUST_CHECK enum status launch_environment(const struct jobspec *job,
                                          const struct session_assignment *assignment,
                                          const struct launch_place *place, uint32_t local,
                                          const char *worker, char ***out);
/* Makes the arguments of the program: the job's, or the shell's. Freed with launch_free. */
MUST_CHECK enum status launch_arguments(const struct jobspec *job, char ***out);
/* NULL is fine. */
void launch_free(char **list);
