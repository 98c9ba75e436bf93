/*
 * The three services over gRPC. Control (`cairn` and other callers): handlers that ask the core,
 * and calls that wait for what it does. Fleet and Training: connections of agents and trainers.
 *
 * Calls that wait are not told of every change: the core counts versions, api_pump looks at them
 * and sends what is new, at most every API_UPDATE_MS. A slow reader gets fewer updates; it doesn't
 * cost more memory.
 *
 * Thread: the core's.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "identity/files.h"
#include "rpc/server.h"
#include "server/api/access.h"
#include "server/api/invites.h"
#include "server/api/later.h"
#include "server/coord/coord.h"

#define API_UPDATE_MS   100 /* between two updates of a watch */
#define API_BACKLOG_MS  10  /* until a reader that lags is looked at again */
#define API_QUEUE_MAX   48  /* messages that wait in a call */
#define API_STREAMS_MAX 4096
#define API_PAGE_BYTES                                                                             \
    (LIMIT_MESSAGE_BYTES / 2) /* a page's last job may be over it: 1.2 MB at most */
#define API_LOADS_MAX  32   /* jobs that ended and a page reads whole, as no summary is kept yet */
#define API_DETAIL_MAX 8192 /* of an error: more than of it travels (rpc_detail_size) */

struct api;

struct api_service_control {
    Cairn__V1__Control_Service service; /* first: handlers get its address */
    void (*invoke)(ProtobufCService *service, unsigned method, const ProtobufCMessage *input,
                   ProtobufCClosure closure, void *call); /* a handler, without the cork */
    struct api *api;
};

/* Fleet or Training: a call is a connection of an agent or a trainer. */
struct api_service_connections {
    union {
        Cairn__V1__Fleet_Service fleet; /* first, too */
        Cairn__V1__Training_Service training;
    } service;
    struct api *api;
};

/* A call of Control that waits for its group's commit. */
struct api_corked {
    struct rpc_call *call;  /* a reference */
    char about[LIMIT_NAME]; /* the job or node, as far as it is known: for the audit log */
    struct later *later;    /* the answer that is begun; owned; NULL: the call is answered */
};

enum api_stream_kind {
    API_WATCH,
    API_METRICS,
    API_SAVE,
    API_CHECK,
    API_DRAIN,
    API_LOGS,
    API_PAIRS
};

struct api_logs;

/* A call that is answered later, or more than once. */
struct api_stream {
    struct api_stream *next;
    enum api_stream_kind kind;
    struct rpc_call *call;
    bool over; /* the call is done, and the stream to be freed */
    char job[16];
    int64_t at;       /* not looked at before */
    int64_t until_ms; /* Unix time: of the caller's certificate */
    union {
        struct {
            bool begun;
            uint64_t version;   /* of the job, as it was sent last */
            uint64_t next_step; /* of the next row */
        } watch;
        struct {
            bool follow, caught_up; /* caught_up: all rows went at least once */
            uint64_t rows_version;  /* of the job, as it was sent last */
            uint64_t next_step;
        } metrics;
        struct fsm_awaited save;
        struct {
            uint64_t step;
            uint32_t generation;
            uint32_t reads; /* of the checkpoint, when it was asked */
        } check;
        struct {
            int64_t until;
            bool hurried;      /* trainers are being ended */
            uint32_t trainers; /* at its start */
        } drain;
        struct api_logs *logs; /* owned; NULL: there was no memory */
        bool begun;            /* the check of pairs is this call's */
    };
};

struct api {
    struct coord *coord;
    const struct log *log;
    const struct identity_files *tls; /* files that TCP is served with; NULL: no TLS */
    int64_t renew_at;                 /* the next look at the own certificate */
    const char *address;              /* HOST:PORT of TCP, with tls; borrowed */
    const char *advertise;            /* HOST:PORT by which others reach it; NULL: address */
    const char *paths; /* paths that job files of remote people may name; NULL: any; borrowed */
    bool commands;     /* where these aren't any: such a job file may have a command all the same */
    struct invites invites;
    struct api_service_control control;
    struct api_service_connections connections[2]; /* of agents, of trainers */
    struct api_stream *streams;
    size_t stream_count;
    struct auditlog *auditlog; /* borrowed */
    struct api_corked *corked; /* of this group */
    size_t corked_count, corked_capacity;
    struct later_queue *later; /* NULL: the coordinator ends */
    uint64_t log_id;
    bool closing;
};

/* Adds the three services to the server, of a core that is set. */
MUST_CHECK enum status api_open(struct api *api, struct rpc_server *server);
/* Called after coord_commit: answers the group's calls of Control, and notes them in the audit log.
 * Nobody is told by a call, nor reads, what isn't journalled. */
void api_release(struct api *api);
/* Called after that: sends what is new to the streams. */
void api_pump(struct api *api);
int64_t api_deadline(const struct api *api);
/* True if somebody called, or the next piece of a log is to be asked for: the group is to end. */
bool api_waits(const struct api *api);
/* Ends all streams: before the server stops. */
void api_close(struct api *api);
void api_free(struct api *api); /* what the api itself holds */
/* coord_options.summary: a packed cairn.v1.Job. */
MUST_CHECK enum status api_summary(void *arg, struct coord_job *job, struct buf *out);

/* ---- between the files of the api, from floor to roof ---- */

/* ---- cork.c ---- */

/* Takes the place of Control's invoke: every handler is called by it. */
void api_invoke_corked(ProtobufCService *service, unsigned method, const ProtobufCMessage *input,
                       ProtobufCClosure closure, void *call);
/* Has the call that is being handled answered by what its handler began; NULL: there was no
 * memory. */
void api_later(struct api *api, struct rpc_call *call, struct later *later);
/* ---- calls.c ---- */

/* Notes which job or node the call of Control that is being handled is about: for the audit log. */
void api_about(struct api *api, const char *about);
void api_refuse(struct rpc_call *call, enum rpc_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Returns the job of that name; NULL, and the call ended: there is none, or several. */
struct coord_job *api_job(struct api *api, struct rpc_call *call, const char *name);
/* Like api_job, to look at the job: one that has ended stays in the journal. false: the call
 * ended. */
bool api_seek(struct api *api, struct rpc_call *call, const char *name, struct later_of *out);
/* Like api_job, if something is to be done with the job: NULL also if it can't be read. */
struct coord_job *api_job_to_change(struct api *api, struct rpc_call *call, const char *name);
/* Answers with the job as it is. */
void api_reply_job(struct api *api, struct coord_job *job, Cairn__V1__Job_Closure reply,
                   void *call);
/* True if a call with that key was about this job before: it is answered, not done again. */
bool api_is_repeated(struct api *api, const char *key, const char *job);
/* False, and the call ended: the job is over, and another one writes to its folder. */
bool api_can_resume(struct api *api, void *call, const struct coord_job *job);
/* Makes a stream of the call. NULL, and the call ended: there are too many, or the coordinator
 * ends. */
struct api_stream *api_stream_new(struct api *api, struct rpc_call *call, enum api_stream_kind kind,
                                  const char *job);

/* ---- set.c ---- */

void api_set_job(Cairn__V1__Control_Service *service, const Cairn__V1__SetJobRequest *in,
                 Cairn__V1__Job_Closure reply, void *call);
void api_remove_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                    Cairn__V1__Job_Closure reply, void *call);

/* ---- list.c ---- */

/* Returns a page of jobs, to be freed by free_unpacked; NULL: no memory, or the journal failed. */
Cairn__V1__ListJobsReply *api_list(struct api *api, size_t size, const char *token);
/* DebugJob: all that the coordinator has of a job in memory. */
void api_debug_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                   Cairn__V1__DebugJobReply_Closure reply, void *call);

/* Returns the job of a stream; NULL, and the call ended: it was forgotten meanwhile, or can't be
 * read. */
struct coord_job *api_stream_job(struct api *api, struct api_stream *stream);

/* ---- connections.c ---- */

MUST_CHECK enum status api_connections_open(struct api *api, struct rpc_server *server);

/* ---- admit.c: who is let in ---- */

void api_forget_node(Cairn__V1__Control_Service *service, const Cairn__V1__ForgetNodeRequest *in,
                     Cairn__V1__Node_Closure reply, void *call);
void api_invite_nodes(Cairn__V1__Control_Service *service, const Cairn__V1__InviteNodesRequest *in,
                      Cairn__V1__InviteNodesReply_Closure reply, void *call);
/* Renews the coordinator's own certificate in the last third of its life. */
void api_renew_own(const struct identity_files *tls, const struct log *log);
#define API_RENEW_MS 3600000 /* between two looks */
void api_join(Cairn__V1__Fleet_Service *service, const Cairn__V1__JoinRequest *in,
              Cairn__V1__JoinReply_Closure reply, void *call);
void api_renew(Cairn__V1__Fleet_Service *service, const Cairn__V1__RenewRequest *in,
               Cairn__V1__JoinReply_Closure reply, void *call);

/* ---- streams.c ---- */

void api_watch_pump(struct api *api, struct api_stream *stream, int64_t now);
void api_metrics_pump(struct api *api, struct api_stream *stream, int64_t now);
void api_save_pump(struct api *api, struct api_stream *stream);
void api_check_pump(struct api *api, struct api_stream *stream);
void api_drain_begin(struct api *api, struct rpc_call *call, uint32_t timeout_ms);
void api_drain_pump(struct api *api, struct api_stream *stream, int64_t now);

/* ---- logs.c ---- */

void api_logs_begin(struct api *api, struct rpc_call *call, struct coord_job *job,
                    const Cairn__V1__StreamLogsRequest *request);
void api_logs_pump(struct api *api, struct api_stream *stream, int64_t now);
/* True if the next piece is to be asked for, or sent. */
bool api_logs_go_on(const struct api_stream *stream, int64_t now);
void api_logs_free(struct api_logs *logs);
/* Takes a piece of a log that came from an agent. */
void api_logs_chunk(struct api *api, const Cairn__V1__LogChunk *chunk);

/* ---- pairs.c ---- */

void api_check_paths(Cairn__V1__Control_Service *service, const Cairn__V1__CheckPathsRequest *in,
                     Cairn__V1__CheckPathsUpdate_Closure reply, void *call);
void api_pairs_pump(struct api *api, struct api_stream *stream);
/* Called when the call is over: so is the check, if it is this call's. */
void api_pairs_over(struct api *api, const struct api_stream *stream);
