/*
 * The command line `cairn`: what its commands share.
 *
 * A command is a row of the table in commands.c and a function in the file of its noun. It gets the
 * parsed arguments, talks to the coordinator through client_call or a stream, prints the result to
 * standard output in the format asked for and everything else to standard error.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/paths.h"
#include "common/status.h"
#include "rpc/client.h"

/* Scripts rely on these (docs/architecture.md, README). */
enum exit_code {
    EXIT_DONE = 0,
    EXIT_INTERNAL = 1,
    EXIT_DIFFERENT = 1, /* of `ckpt diff`, as diff and cmp */
    EXIT_USAGE = 2,     /* usage or job file */
    EXIT_NOT_FOUND = 3,
    EXIT_REFUSED = 4,     /* not in this state, not for this caller */
    EXIT_UNREACHABLE = 5, /* no coordinator answers */
    EXIT_DAMAGED = 8,     /* a checkpoint is damaged */
    EXIT_FAILED = 10,     /* waited for a job: FAILED */
    EXIT_STOPPED = 11,    /* waited for a job: STOPPED or KILLED */
    EXIT_TIMED_OUT = 124, /* --timeout is over */
    EXIT_DETACHED = 130,  /* Ctrl-C; the job goes on */
};

enum exit_code exit_of_code(enum rpc_code code);
enum exit_code exit_of_status(enum status st);

enum output_format { OUTPUT_TABLE, OUTPUT_WIDE, OUTPUT_JSON, OUTPUT_JSONL, OUTPUT_NAME };

#define ARGUMENTS_MAX 64 /* --set of one call */
#define WORDS_MAX     8  /* job, file and so on of one call */

/* What options.c fills. Absent numbers are -1, absent texts NULL. */
struct arguments {
    const char *addr;
    enum output_format output;
    bool no_color, quiet, watch, help;
    bool wait, follow, foreground, force;
    const char *sets[ARGUMENTS_MAX];
    size_t set_count;
    const char *listen;
    const char *device;
    const char *names, *dtype, *only; /* of an export */
    const char *job_file, *to;        /* of an import */
    const char *sort;
    int64_t rank, attempt, slots, ranks, rate;
    int64_t timeout_ms;
    const char *words[WORDS_MAX];
    size_t word_count;
};

struct client {
    struct arguments args;
    const struct command *command;
    struct paths paths;
    struct rpc_channel *channel; /* NULL until the first call */
    struct ckpt_store *store;
    char target[LIMIT_PATH + 16];
    int signal_fd; /* SIGINT and SIGTERM, once client_catch_signals was called; else -1 */
    bool terminal; /* standard output is one, and TERM isn't dumb */
    bool color;
    bool utf8;
};

/* The whole program. */
int client_main(int argc, char **argv);

/* Standard error: "cairn: ...". */
void client_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Standard error, unless --quiet. */
void client_note(const struct client *client, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- talking to the coordinator (call.c) ---- */

/*
 * One call of the Control service. While a supervisor of this home lives, an unreachable
 * coordinator is tried again for some seconds: it is being restarted. A failure is reported on
 * standard error. out_reply: protobuf_c_message_free_unpacked(reply, NULL).
 */
enum exit_code client_call(struct client *client, const char *method,
                           const ProtobufCMessage *request, int32_t timeout_ms,
                           ProtobufCMessage **out_reply);

/* As client_call, silent and once: for polling. */
enum rpc_code client_try(struct client *client, const char *method, const ProtobufCMessage *request,
                         int32_t timeout_ms, ProtobufCMessage **out_reply);

/* Waits for the coordinator to answer, and asks it how many agents it has. */
enum rpc_code client_probe(struct client *client, int32_t timeout_ms, uint32_t *out_agents);

/* Opens a server stream, waiting wait_ms for a coordinator that isn't there (0: not at all);
 * nothing is reported. */
enum rpc_code client_stream(struct client *client, const char *method,
                            const ProtobufCMessage *request, int32_t wait_ms,
                            struct rpc_stream **out, struct rpc_result *result);

/* Says why a call failed; returns its exit code. */
enum exit_code client_report(const struct client *client, const struct rpc_result *result);

/* From here on Ctrl-C doesn't end the process but shows in client_interrupted. Before any call. */
bool client_catch_signals(struct client *client);
bool client_interrupted(const struct client *client);

/* 32 random hex digits and a NUL: the same call made twice counts once. */
void client_idempotency_key(char out[33]);

/* ---- processes of an embedded home (home.c) ---- */

/* The pid of the supervisor that holds HOME/supervisor.lock; 0: none does. */
int64_t home_supervisor(const struct paths *paths);
