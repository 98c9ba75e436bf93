/*
 * fleet: plays agents and trainers to a real coordinator, many in one process.
 *
 *   main.c        arguments; the commands `play`, `submit`, `probe`
 *   loop.c        peers: who has a stream to the coordinator; one thread hears and speaks for all
 *   agent.c       an agent: hello, beats, trainers started and ended as it is told
 *   trainer.c     a trainer: hello, plan, ready, steps, beats, rows
 *   rendezvous.c  how trainers find each other, the coordinator's side of it: their addresses
 *   save.c        saves: the file in the store's folder, its report
 *   control.c     what a person's program asks: submissions, and calls for their latency
 *
 * Nothing is computed: a step takes step_ms, a share of a checkpoint is a file of some bytes with
 * a report as long as that of a real one. Every agent and every trainer has a connection of its
 * own, as in reality. All processes of a machine have the same clock, and a job's steps are counted
 * from the arrival of its plan, so its ranks keep step without speaking to each other.
 *
 * Thread: all of it on the one that runs fleet_play, but opening of streams, and gRPC's own.
 */
#pragma once

#include <pthread.h>
#include <stdio.h>

#include "cairn/v1/control.pb-c.h"
#include "cairn/v1/fleet.pb-c.h"
#include "cairn/v1/training.pb-c.h"
#include "common/clock.h"
#include "common/limits.h"
#include "identity/make.h"
#include "rpc/client.h"

struct fleet;
struct agent;
struct trainer;

struct fleet_options {
    const char *target;    /* "unix:/…", "ipv4:127.0.0.1:7000" */
    const char *token;     /* of agents and of people, NULL: none */
    const char *tls;       /* folder of an authority, where agents make their certificates; NULL:
                              without TLS */
    uint32_t first, nodes; /* numbers of the nodes that this process plays */
    uint32_t slots;        /* of each */
    uint32_t step_ms;
    uint32_t beat_ms; /* between two reports of progress of a trainer */
    uint32_t pieces;  /* of 65536 elements, whose hashes are in one rank's report of a save */
    uint32_t openers; /* threads */
    int watched;      /* process whose processor time is noted with each event; 0: none */
};

/* ---- loop.c ---- */

/* This end of a stream to the coordinator. Embedded in agent and trainer. */
struct peer;
struct peer_ops {
    void (*opened)(struct peer *peer);
    void (*heard)(struct peer *peer, const ProtobufCMessage *message);
    void (*lost)(struct peer *peer,
                 enum rpc_code code);                /* the stream is opened again, unless closed */
    void (*tick)(struct peer *peer, int64_t now_ns); /* every 10 ms while it is open */
    void (*release)(struct peer *peer);              /* frees it */
};

enum peer_state { PEER_OPENING, PEER_UP, PEER_PAUSED, PEER_CLOSED };

struct peer {
    const struct peer_ops *ops;
    struct fleet *fleet;
    const ProtobufCServiceDescriptor *service;
    const struct identity_files *tls; /* NULL: without */
    char token[72];                   /* "": none */
    enum peer_state state;
    int64_t again_ns; /* PEER_PAUSED: it is opened then */
    bool released;
    struct peer *next; /* of the fleet */
    struct rpc_channel *channel;
    struct rpc_stream *stream;
    /* under the fleet's mutex */
    bool opening, queued;
    struct peer *next_open, *next_ready;
};

struct fleet {
    struct fleet_options options;
    struct peer *peers;
    pthread_mutex_t mutex;
    pthread_cond_t changed, work;
    struct peer *ready, **ready_end;   /* something came */
    struct peer *to_open, **open_last; /* wait for an opener */
    bool stopping;
    pthread_t threads[64];
    struct identity_pem authority;
    char ca[LIMIT_PATH];
    struct identity_files strangers; /* of trainers: the authority alone */
    char known_job[16]; /* the newest job file that was read: its id, and what it says */
    uint64_t total_steps, save_every;
    uint32_t pid_last; /* of trainers */
    /* counted */
    uint64_t beats, rows, started, losses;
};

/* Plays until stdin ends, then drops everything. */
int fleet_play(const struct fleet_options *options);
/* service, tls (borrowed), token: of its stream. It is opened at once. */
void peer_open(struct peer *peer, struct fleet *fleet, const struct peer_ops *ops,
               const ProtobufCServiceDescriptor *service, const struct identity_files *tls,
               const char *token);
/* False: it isn't open, the message is lost. */
bool peer_send(struct peer *peer, const ProtobufCMessage *message);
void peer_close(struct peer *peer);
/* After peer_close, too: nobody needs it any more. */
void peer_release(struct peer *peer);

/* A line {"t": ns, "cpu": ns of the watched process, "core": of its first thread, "ev": …}. */
void fleet_trace(struct fleet *fleet, const char *event, const char *job, uint32_t rank,
                 uint64_t step);

/* ---- agent.c ---- */

struct agent {
    struct peer peer;
    uint32_t number;
    char name[32], host[32];
    char cert[LIMIT_PATH], key[LIMIT_PATH];
    struct identity_files tls;
    struct trainer *trainers;
    int64_t beat_ns; /* the next one */
};

void agent_new(struct fleet *fleet, uint32_t number);
void agent_send_exited(struct trainer *trainer);

/* ---- rendezvous.c ---- */

/* The plan is known. false: there is nothing to do, it has met all. */
bool rendezvous_say(struct trainer *trainer);
/* true: it has met all. */
bool rendezvous_heard(struct trainer *trainer, const Cairn__V1__TrainerOrder *order);

/* ---- trainer.c ---- */

enum trainer_stage { TRAINER_HELLO, TRAINER_MEETS, TRAINER_TRAINS, TRAINER_LEAVES, TRAINER_GONE };

struct trainer {
    struct peer peer;
    struct agent *agent;
    struct trainer *next; /* of the agent */
    char job[16];
    uint32_t generation, rank, size, slot, pid;
    enum trainer_stage stage;
    int64_t trains_ns; /* when it began to train: all ranks had their answer, and go in step */
    int64_t beat_ns, leave_ns;
    uint64_t step, total_steps, save_every, counter;
    uint64_t announced; /* step of an announced save, 0: none */
    bool leaves;        /* with it */
    bool finished;      /* the last step is saved */
    Cairn__V1__TrainerExited__Cause cause;
    int code, signal;
    char dir[LIMIT_PATH]; /* of the newest save */
};

struct trainer *trainer_new(struct agent *agent, const Cairn__V1__StartTrainer *order);
bool trainer_say(struct trainer *trainer, Cairn__V1__TrainerMessage__BodyCase body, void *message);
/* Ends a trainer: its process is gone, and its agent reports that until the report is
 * acknowledged. */
void trainer_exit(struct trainer *trainer, Cairn__V1__TrainerExited__Cause cause, int code);
void trainer_say_ready(struct trainer *trainer);

/* ---- save.c ---- */

void save_begin(struct trainer *trainer, uint64_t step);
void save_folder(struct trainer *trainer, const Cairn__V1__SaveFolder *order);
void save_done(struct trainer *trainer, const Cairn__V1__SaveDone *order);
/* Reports at once that the trainer has read its share. */
void save_read_back(struct trainer *trainer, const Cairn__V1__ReadBack *order);

/* ---- control.c ---- */

/* Submits the job file count times, one call after the other; a line {"id", "ms"} each. */
int control_submit(const struct fleet_options *options, const char *file, uint32_t count);
/* Small calls, per_second of them, over seconds; at the end {"p50_ms", "p99_ms", …}. A call that
 * comes late because of the one before counts from when it was due. seconds 0: a single one, as
 * soon as a server is there: {"t": ns}. */
int control_probe(const struct fleet_options *options, uint32_t per_second, uint32_t seconds);
