/*
 * The three services over gRPC: handlers that call the core, and the streams that it feeds.
 *
 * Streams are not told of every change: the core counts versions, api_pump looks at them and sends
 * what is new, at most every API_UPDATE_MS. A reader that is slow gets fewer updates, not more
 * memory.
 *
 * Thread: the core's.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "rpc/server.h"
#include "server/core/core.h"

#define API_UPDATE_MS   100 /* between two updates of a watch */
#define API_BACKLOG_MS  10  /* until a reader that lags is looked at again */
#define API_QUEUE_MAX   48  /* messages that wait in a call */
#define API_STREAMS_MAX 4096
#define API_PAGE_BYTES                                                                             \
    (LIMIT_MESSAGE_BYTES / 2) /* a page's last job may be over it: 1.2 MB at most */
#define API_DETAIL_MAX 6000   /* of an error: it travels in a header */

struct api;

struct api_service_control {
    Cairn__V1__Control_Service service; /* first: handlers get its address */
    struct api *api;
};

struct api_service_sessions {
    union {
        Cairn__V1__Fleet_Service fleet; /* first, too */
        Cairn__V1__Training_Service training;
    } service;
    struct api *api;
};

enum api_stream_kind { API_WATCH, API_METRICS, API_SAVE, API_CHECK, API_DRAIN, API_LOGS };

struct api_logs;

/* A call that is answered later, or more than once. */
struct api_stream {
    struct api_stream *next;
    enum api_stream_kind kind;
    struct rpc_call *call;
    bool over; /* on_done ran: to be freed */
    char job[16];
    bool follow, first;
    int64_t at; /* not before */
    uint64_t version, rows_version;
    uint64_t next_step;    /* METRICS, WATCH: of the next row; SAVE: the least that counts; CHECK */
    uint32_t generation;   /* CHECK */
    uint32_t reads;        /* CHECK: of the checkpoint, when it was asked */
    uint64_t refused;      /* SAVE: by the store, when it was asked */
    int64_t until;         /* DRAIN */
    bool hurried;          /* DRAIN: trainers are being ended */
    uint32_t trainers;     /* DRAIN: at its start */
    int64_t begun_wall;    /* DRAIN */
    struct api_logs *logs; /* LOGS; owned */
};

struct api {
    struct core *core;
    const struct log *log;
    struct api_service_control control;
    struct api_service_sessions sessions[2]; /* of agents, of trainers */
    struct api_stream *streams;
    size_t stream_count;
    uint64_t log_id;
    bool closing;
};

/* Adds the three services to the server; core is set before it starts. */
MUST_CHECK enum status api_open(struct api *api, struct rpc_server *server);
/* After every round of the loop: sends what is new. */
void api_pump(struct api *api);
int64_t api_deadline(const struct api *api);
/* Ends all streams: before the server stops. */
void api_close(struct api *api);

/* ---- between the files of the api ---- */

/* NULL, and the call ended: not found, or out of bounds. */
struct core_job *api_job(struct api *api, struct rpc_call *call, const char *name);
struct api_stream *api_stream_new(struct api *api, struct rpc_call *call, enum api_stream_kind kind,
                                  const char *job);
void api_refuse(struct rpc_call *call, enum rpc_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* api_sessions.c */
MUST_CHECK enum status api_sessions_open(struct api *api, struct rpc_server *server);
/* api_streams.c */
void api_watch_pump(struct api *api, struct api_stream *stream, int64_t now);
void api_metrics_pump(struct api *api, struct api_stream *stream, int64_t now);
void api_save_pump(struct api *api, struct api_stream *stream);
void api_check_pump(struct api *api, struct api_stream *stream);
void api_drain_pump(struct api *api, struct api_stream *stream, int64_t now);
void api_drain_begin(struct api *api, struct rpc_call *call, uint32_t timeout_ms);
/* api_logs.c */
void api_logs_begin(struct api *api, struct rpc_call *call, struct core_job *job,
                    const Cairn__V1__StreamLogsRequest *request);
void api_logs_pump(struct api *api, struct api_stream *stream, int64_t now);
void api_logs_free(struct api_logs *logs);
void api_logs_chunk(struct api *api, const Cairn__V1__LogChunk *chunk);
