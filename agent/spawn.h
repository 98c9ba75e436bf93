/*
 * Making a trainer's process: posix_spawn in a process group of its own, output into its log file,
 * token by an inherited descriptor.
 *
 * The log file is opened with a flock that the trainer inherits with its output: whoever gets that
 * lock knows that no such process exists, not even one that is just being made (spawn_is_alive).
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "agent/ref.h"
#include "common/reason.h"

#define SPAWN_ENV_MAX 64

struct spawn_request {
    const char *program; /* path of cairn-trainer */
    const struct ref *ref;
    const struct ref_files *files; /* the folder exists */
    const char *coordinator;
    const char *token;
    const char *tls_ca; /* file of authorities; "": plaintext */
    const char *sums;   /* folder for hashes of data, made when it is needed */
    const char *peaks;  /* folder for the measured speeds of its devices, likewise */
    const char *ports;  /* "A-B": where it may listen; "": anywhere */
    const char *copies; /* folder for copies in memory; NULL: none */
    uint32_t threads;   /* 0: 1 */
    char *const
        *env; /* KEY=VALUE, what the job sets, beside what passes (common/host/environment.h) */
    size_t env_count;
    const char *gpu; /* UUID of the only one that it may see; "": none */
    /* This node's address. With a GPU, NCCL uses the interface that has this address, unless the
     * job's or our own environment names others. */
    const char *host;
};

/*
 * Errors: ST_INVALID   a variable that a job may not set, or too many
 *         ST_EXISTS    its process exists already
 *         others       of open, pipe, posix_spawn
 */
MUST_CHECK enum status spawn_trainer(const struct spawn_request *request, pid_t *out_pid,
                                     struct reason *out_why);

/* Whether some process holds the log file's lock. */
bool spawn_is_alive(const char *log_path);
