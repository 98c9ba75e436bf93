/*
 * One node's agent: starts trainers, sees them end, reports, and adopts what ran before it.
 *
 * Everything runs on one libuv loop, but the link's thread (link.h). What the coordinator must hear
 * whatever happens (exits) is kept and repeated until it is acknowledged; all else is told anew by
 * the hello of the next stream.
 */
#pragma once

#include <uv.h>

#include "agent/copies.h"
#include "agent/gpu.h"
#include "agent/link.h"
#include "agent/proc.h"
#include "agent/record.h"
#include "common/io.h"
#include "common/log.h"
#include "common/paths.h"

struct trainer;

struct agent_options {
    const char *node;
    const char *coordinator; /* "unix:/…" or "HOST:PORT" */
    const char *token;       /* for TCP; or NULL */
    const char *host;        /* this node's address for the data plane */
    const char *program;     /* path of cairn-trainer */
    uint32_t slots;          /* for CPU shares; each GPU is one more after them */
    const char *nvml;        /* another library than the driver's; NULL: the driver's */
};

struct agent {
    struct agent_options options; /* texts are borrowed */
    struct paths paths;
    struct copies copies;
    const struct io *io;
    struct log log;
    char boot_id[BOOT_ID_TEXT];
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t beat;
    int watchdog_fd; /* or -1 */
    uv_poll_t signals;
    int signal_fd;
    int lock_fd;
    struct link *link;
    uint64_t epoch; /* of the stream that had its hello; 0: none */
    struct trainer *trainers;
    size_t trainer_count;
    struct oom_watch oom;
    struct gpu_watch *gpus; /* NULL: none */
};

/*
 * Runs until SIGTERM or SIGINT, which must be blocked in every thread. Trainers go on.
 * Errors: ST_EXISTS  another agent of this name runs in this home
 *         others     the home can't be used; logged
 */
MUST_CHECK enum status agent_run(const struct agent_options *options);

/* messages.c: what is said. Each is dropped when no stream is open. */
void agent_send(struct agent *agent, Cairn__V1__AgentMessage *message);
void agent_say_hello(struct agent *agent);
void agent_say_beat(struct agent *agent);
void agent_say_started(struct agent *agent, struct trainer *trainer);
void agent_say_exited(struct agent *agent, struct trainer *trainer);
/* An exit of which nothing is kept: of a trainer that isn't known here, or wasn't started. */
void agent_say_none(struct agent *agent, struct ref *ref, Cairn__V1__TrainerExited__Cause cause,
                    const char *message);
void agent_say_log(struct agent *agent, const Cairn__V1__LogRequest *request);
