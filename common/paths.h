/*
 * Where things are. CAIRN_HOME=DIR puts everything under DIR; without it DIR is cairn/ in the XDG
 * state folder, or /var/lib/cairn for root.
 *
 *   DIR/cairnd.sock              the coordinator's socket, however long DIR is (rpc/client.h)
 *   DIR/cairnd.addr              address of the TCP listener, if there is one
 *   DIR/token                    bearer token of the TCP listener, mode 0600
 *   DIR/tls/                     certificates and keys (client/cert/folder.h, agent/join/join.h)
 *   DIR/page                     address of the page (observer/main.c)
 *   DIR/observer/                who may look at it (observer/http/session.h)
 *   DIR/supervisor.lock          held by the supervisor of `cairn up`; holds its pid
 *   DIR/state/cairnd.db          the journal
 *   DIR/log/cairnd.log           likewise agent.log, observer.log, supervisor.log; NAME.1: before
 *   DIR/jobs/JOB/gG/rR.log       output of rank R of generation G
 *   DIR/jobs/JOB/gG/rR.words     its last words (training.proto, LastWords)
 *   DIR/jobs/JOB/gG/rR.flight    its flight recorder (flight.h)
 *   DIR/jobs/JOB/gG/rR.program   empty; it is there if that worker ran a program of the job's own
 *   DIR/sums/NODE/HASH.sums      hashes of a data file (trainer/data/sums.h); may be removed
 *   DIR/agent/JOB.gG.rR.json     a running trainer, for adoption (agent/record.h)
 *   DIR/agent/NODE.copies        another folder for copies in memory (agent/copies.h)
 *
 * Copies in memory lie on tmpfs: in CAIRN_COPIES, else in /dev/shm/cairn-UID-HASH, the hash being
 * that of DIR; there
 *
 *   NODE/JOB/gG-rR-N.copy        copy file N of rank R of generation G (session/copies/copy_file.h)
 */
#pragma once

#include <stddef.h>

#include "common/status.h"

/* The variable of the environment by which all that comes of a worker's program is known: its value
 * is the path of the worker's last words. */
#define PATHS_WORKER_ENV "CAIRN_WORKER"

struct paths {
    char home[768]; /* absolute */
};

MUST_CHECK enum status paths_open(struct paths *paths);

/* Writes "HOME/<format…>" into out. ST_FULL: out is too small. */
MUST_CHECK enum status paths_join(const struct paths *paths, char *out, size_t capacity,
                                  const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The folder of copies in memory: CAIRN_COPIES, else /dev/shm/cairn-UID-HASH. Not made here. */
MUST_CHECK enum status paths_copies(const struct paths *paths, char *out, size_t capacity);

/* The address to reach the coordinator: "unix:DIR/cairnd.sock". */
MUST_CHECK enum status paths_socket(const struct paths *paths, char *out, size_t capacity);
