/*
 * Shared by the files of the server, each above those before it.
 */
#pragma once

#include <jansson.h>
#include <microhttpd.h>
#include <stdatomic.h>

#include "common/buf.h"
#include "common/reason.h"
#include "identity/behalf.h"
#include "observer/http/http.h"
#include "observer/http/tls.h"

#define HTTP_JSON_BYTES ((size_t)64 << 20) /* of an answer */
#define HTTP_NAME_BYTES 128                /* of a job or a node in a path, with the NUL */
#define HTTP_SAVE_MS    170000             /* for a save: the page waits 180 s */

struct http {
    struct http_parts parts;
    struct MHD_Daemon *daemon;
    struct tls *tls; /* NULL: of this machine only, without */
    int64_t started_ms;
    uint16_t port;
    atomic_uint streams;
};

/* The caller of a request, and what he may do. */
struct http_who {
    struct identity_behalf is;      /* role: IDENTITY_NOBODY, or any that a certificate has */
    char cluster[IDENTITY_CLUSTER]; /* cluster of a certificate; else "" */
    int64_t until_s;                /* when the caller's credential ends, Unix time */
    uint32_t keys;                  /* of a session or token: sessions_keys() before; else 0 */
    struct reason refusal;          /* why a certificate won't do; else "" */
};

/* A request that may be answered now. */
struct http_request {
    struct http *http;
    struct MHD_Connection *connection;
    const char *name; /* the segment of the path that says of which job or node; "": none */
    const char *body;
    size_t body_size;
    struct http_who who;
};

typedef enum MHD_Result (*http_handler)(struct http_request *request);

/* ---- reply.c ---- */

/* out is emptied: its bytes belong to the answer. */
enum MHD_Result reply_buf(const struct http_request *request, unsigned code, const char *type,
                          struct buf *out);
/* Answers with a value, which is taken over; NULL is answered as no memory. */
enum MHD_Result reply_json(const struct http_request *request, json_t *value);
enum MHD_Result reply_message(const struct http_request *request, const ProtobufCMessage *message);
/* {"error": "…"} */
enum MHD_Result reply_error(const struct http_request *request, unsigned code, const char *format,
                            ...) __attribute__((format(printf, 3, 4)));
/* Answers with the coordinator's refusal, or with the error that it can't be reached. */
enum MHD_Result reply_result(const struct http_request *request, const struct rpc_result *result);
/* Makes one call of the coordinator on behalf of the caller, an operator or a viewer, and answers
 * with its reply as JSON. */
enum MHD_Result reply_call(const struct http_request *request, const char *method,
                           const ProtobufCMessage *message);
/* Like reply_call, waiting timeout_ms instead of COORDINATOR_CALL_MS. */
enum MHD_Result reply_call_for(const struct http_request *request, const char *method,
                               const ProtobufCMessage *message, int32_t timeout_ms);
/* Adds the headers that every answer of ours has for browsers. keeps: browsers may store the answer
 * and use it again while it is unchanged; nothing in it is about a person or a job. */
void reply_headers(struct MHD_Response *response, bool keeps);
/* The value of a header; NULL: it isn't there. */
const char *request_header(const struct http_request *request, const char *name);

/* The line that gives a browser a session, or takes it away (token "", 0 s). */
#define HTTP_COOKIE (IDENTITY_TOKEN + 128)
void reply_cookie(const struct http_request *request, const char *token, int seconds,
                  char out[HTTP_COOKIE]);

/* A parameter of the query; NULL: it isn't there. */
const char *request_parameter(const struct http_request *request, const char *name);
/* Returns a parameter of the query as a number, `max` at most; `otherwise` where the parameter is
 * missing or no number. */
uint64_t request_number(const struct http_request *request, const char *name, uint64_t otherwise,
                        uint64_t max);

/* ---- get.c, post.c, live.c: handlers ---- */

enum MHD_Result look_page(struct http_request *request);
enum MHD_Result look_open(struct http_request *request);
enum MHD_Result look_alive(struct http_request *request);
enum MHD_Result look_metrics(struct http_request *request);
enum MHD_Result look_session(struct http_request *request);
enum MHD_Result look_jobs(struct http_request *request);
enum MHD_Result look_job(struct http_request *request);
enum MHD_Result look_why(struct http_request *request);
enum MHD_Result look_checkpoints(struct http_request *request);
enum MHD_Result look_curves(struct http_request *request);
enum MHD_Result look_rows(struct http_request *request);
enum MHD_Result look_nodes(struct http_request *request);
enum MHD_Result look_system(struct http_request *request);

/* The job's id, which may take the name's place: what is kept is kept under it, and a name, or the
 * beginning of an id, may come to mean another job. Errors: as coordinator_call */
MUST_CHECK enum status look_job_id(struct http *http, const char *name, char id[HTTP_NAME_BYTES],
                                   struct rpc_result *result);

enum MHD_Result act_sign_out(struct http_request *request);
enum MHD_Result act_pause(struct http_request *request);
enum MHD_Result act_resume(struct http_request *request);
enum MHD_Result act_stop(struct http_request *request);
enum MHD_Result act_save(struct http_request *request);
enum MHD_Result act_drain(struct http_request *request);
enum MHD_Result act_undrain(struct http_request *request);

enum MHD_Result live_all(struct http_request *request);
enum MHD_Result live_job(struct http_request *request);
enum MHD_Result live_logs(struct http_request *request);

/* ---- who.c ---- */

/* Finds out who asks, and fills request->who. */
void who_asks(struct http_request *request);

/* ---- route.c ---- */

/* Finds the handler of a request and calls it if the caller may; else answers with the reason why
 * not. */
enum MHD_Result route_request(struct http_request *request, const char *method, const char *path);
