/*
 * One run of `cairn`: what its commands share.
 *
 * A command is a row of the table in client/commands.c and a function in a file of client/action,
 * or client/query where it changes nothing, client/ckpt for `cairn ckpt`, client/cert for `cairn
 * cert`; a few that differ by a word share one (client/action/steer.c). It gets the parsed
 * arguments, talks to the coordinator (client/ask/call.h), prints the result to standard output in
 * the format asked for (client/print) and everything else to standard error.
 */
#pragma once

#include <stdbool.h>

#include "client/base/exit.h"
#include "client/base/options.h"
#include "common/limits.h"
#include "common/paths.h"

#define CLIENT_CONTEXT 64 /* bytes of a context's name, with the NUL */

struct client {
    struct arguments args;
    const struct command_table *table;
    const struct command *command; /* NULL: none was named */
    struct paths paths;
    char context[CLIENT_CONTEXT]; /* the one that counts (client/context/choose.h); "": none */
    bool elsewhere;               /* it names the coordinator by an address */
    struct rpc_channel *channel;  /* NULL until the first call */
    bool tls;                     /* the connection speaks TLS */
    struct recorded *recorded;    /* with --bundle, once there was a call (client/ask/recorded.h) */
    struct ckpt_store *store;
    char address[LIMIT_PATH + 16]; /* the coordinator's, once there was a call */
    int signal_fd; /* SIGINT and SIGTERM, once interrupt_catch was called; else -1 */
    bool terminal; /* standard output is one, and TERM isn't dumb */
    bool plain;    /* texts of others are made plain (client/base/plain.h): people read them */
    bool color;
    bool utf8;
};

/* Standard error: "cairn: ...". Texts in it are made plain, as client_note's are. */
void client_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Refuses a command that is about the home of this machine where the context is a coordinator that
 * may be elsewhere. */
enum exit_code client_needs_home(const struct client *client);
/* Returns what a status means for a file that a call named. */
const char *client_file_status(enum status st);
/* Standard error, unless --quiet. */
void client_note(const struct client *client, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
