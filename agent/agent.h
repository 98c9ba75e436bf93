/*
 * One node's agent: starts trainers, sees them end, reports, and adopts those that run already.
 *
 *     loop.c         the loop: orders, beats, signals
 *     trainer.h      one trainer, from the order to start it until its exit is acknowledged
 *     messages.h     what is said
 *     link.h         the stream to the coordinator, on a thread of its own
 *     net/probe.h    whether this node and another one reach each other
 *     telemetry/gpu.h    GPUs and their health, on a thread of its own
 *     telemetry/usage.h  what the node and its trainers use
 *     leave.h        its end, where that is the end of its trainers
 *     logs/old.h     what workers of old jobs wrote is removed, on a thread of libuv's
 *
 * All else runs on one libuv loop. What the coordinator must hear whatever happens (exits) is kept
 * and repeated until it is acknowledged; all else is said anew by the hello of the next stream.
 */
#pragma once

#include <uv.h>

#include "agent/copies.h"
#include "agent/link.h"
#include "agent/logs/old.h"
#include "agent/net/address.h"
#include "agent/net/probe.h"
#include "agent/record.h"
#include "agent/telemetry/gpu.h"
#include "agent/telemetry/proc.h"
#include "agent/telemetry/usage.h"
#include "common/host/watchdog.h"
#include "common/io.h"
#include "common/log.h"
#include "common/paths.h"
#include "identity/files.h"

#define FORMERLY_MAX 8 /* of more the others stay known as lost */

struct agent_options {
    const char *node;
    const char *coordinator;   /* "unix:/…" or "HOST:PORT" */
    const char *token_file;    /* for TCP on loopback; or NULL */
    struct identity_files tls; /* for TCP beyond it; or all NULL */
    /* This node's address for the data plane: host names it, interface is what address_of_interface
     * takes. Both NULL: the local address of the way to the coordinator. */
    const char *host, *interface;
    const char *ports;         /* "A-B": where trainers listen for other nodes'; "": anywhere */
    const char *program;       /* path of cairn-trainer */
    uint32_t slots;            /* for CPU shares; each GPU is one more after them */
    const char *nvml;          /* another library than the driver's; NULL: the driver's */
    bool leaves;               /* on SIGTERM, with its trainers saved (leave.h); else they run on */
    uint32_t grace_ms;         /* leaves: within that time */
    struct watchdog *watchdog; /* open; of whoever started the agent */
};

/* One trainer; trainer.h has its states. */
struct trainer {
    struct trainer *next;
    struct agent *agent;
    struct record record;
    struct ref_files files;
    int pidfd;                  /* -1: not made, or exited, or the system refuses them */
    int sent;                   /* the last signal that we sent; 0: none */
    char why_ended[LIMIT_NAME]; /* why we sent it, where it was our own idea; or "" */
    struct usage_process usage; /* the newest sample */
    bool watched;     /* the process runs; two handles are open: grace, and poll or looks */
    uv_poll_t poll;   /* of pidfd */
    uv_timer_t looks; /* without a pidfd */
    uv_timer_t grace; /* until SIGKILL */
    unsigned handles; /* open libuv handles of the trainer */
    bool forgotten;   /* freed when the last handle is closed */
};

enum leave_state { LEAVE_NOT, LEAVE_WAITS, LEAVE_KILLS, LEAVE_SAID, LEAVE_AWAY };

/* The agent's end; leave.h has its states. */
struct leave {
    enum leave_state state;
    bool stays;           /* afterwards this process waits to be told what is next */
    const char *reason;   /* the signal's name; static */
    int64_t since, until; /* monotonic ms; until: the state's own end */
    uv_timer_t timer;
};

struct agent {
    struct agent_options options; /* texts are borrowed */
    struct leave leave;
    struct paths paths;
    struct copies copies;
    const struct io *io;
    struct log log;
    char boot_id[BOOT_ID_TEXT];
    char pid_space[PID_SPACE_TEXT]; /* in which it counts processes */
    bool first;                     /* process 1: orphans become its children */
    uint64_t started_ms;            /* since boot, suspended time included */
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t beat;
    int64_t beat_at, beat_ms; /* not before; from one to the next, 0: each time */
    uv_poll_t signals;
    int signal_fd;
    int lock_fd;
    char formerly[FORMERLY_MAX][LIMIT_NAME]; /* names of this home's agents that run no more */
    size_t formerly_count;                   /* 0 once a coordinator knows */
    struct link *link;
    char host[ADDRESS_TEXT]; /* the address in the newest hello */
    uint64_t epoch;          /* number of the stream that had its hello (link.h); 0: none is open */
    struct trainer *trainers; /* a list */
    size_t trainer_count;
    struct oom_watch oom;
    struct old_logs logs; /* while logs_work is under way: that thread's */
    uv_work_t logs_work;
    bool logs_busy;
    int64_t logs_at;  /* not before */
    struct log_over { /* the log of a worker that wrote too much, while turned over */
        uv_work_t work;
        char path[LIMIT_PATH];
        bool busy, turned;
        enum status status;
        int64_t at; /* not before */
    } log_over;
    struct usage_machine usage;   /* the newest sample */
    bool usage_new;               /* and not said since */
    struct gpu_watch *gpus;       /* NULL: none */
    struct probes *probes;        /* NULL: there is no socket for them */
    char probes_at[ADDRESS_TEXT]; /* the host that it was opened for */
};

/*
 * Runs until SIGINT, or SIGTERM where no supervisor lives; both must be blocked in every thread,
 * SIGUSR1, too.
 * Trainers go on, unless it leaves.
 * Errors: ST_EXISTS  another agent of this name runs in this home
 *         others     the home can't be used; logged
 */
MUST_CHECK enum status agent_run(const struct agent_options *options);
