/* What the files of the simulated worker share. */
#pragma once

#include "session/fsm.h"
#include "tests/sim/sim.h"

enum stage {
    JOINING,
    BUILDING, /* a spare does */
    FORMING,
    TRAINING,
    SETTLING,
    ENDING, /* the program was told to go */
    WAITING_OVER,
    PARKING,
    PARKED,
    LEFT
};

struct sim_trainer {
    struct sim_trainer_view view; /* first */
    struct session_fsm fsm;
    struct sim_conn *conn;
    struct session_progress progress;
    enum stage stage;
    int64_t die_at; /* SIGTERM: its time of grace ends; 0: none came */
    int64_t connect_at, stage_since, write_until, retry_at;
    int saving;         /* index of the save that the saver works on; -1 */
    int64_t read_until; /* it reads a checkpoint back; 0: it doesn't */
    struct readback_order read;
    uint64_t total, every;
    bool leave;
    bool lasts;               /* it said that its step is the last one, and waits for the others */
    uint64_t stored;          /* a checkpoint of this step is in the store, or copies of it are */
    int64_t all_came_at;      /* to the round that this one waits in; 0: they didn't */
    int64_t peers_at;         /* from when on it comes to the second round; 0: it was there */
    uint32_t restored_shards; /* files of the checkpoint that it restores */
    int64_t ends_at;          /* of a plain job: its program ends */
    bool waits;               /* ... and the worker stays, once it has */
    int64_t built_at;         /* BUILDING: a spare is ready then */
    bool begins, compares;    /* its first step is to come; states are compared before it goes on */
    bool goes_on;             /* it brought its state along */
    uint64_t save_taint[SESSION_SAVES_MAX]; /* of the states that its saves are of */
    char id[16];
};

/* ---- sim_trainer.c ---- */
#define SIM_OUTSIDE    "something outside killed the program"     /* in a fault's message */
#define SIM_STAYS      "the program failed, and its worker stays" /* likewise */
#define SIM_PINS_BYTES 96
/* The pins of the trainer's node as it is now. */
void sim_trainer_pins(struct sim *sim, struct sim_trainer *t, char *out);
void sim_trainer_fault(struct sim *sim, struct sim_trainer *t, Cairn__V1__FaultKind kind,
                       const char *message);
void sim_trainer_leave(struct sim *sim, struct sim_trainer *t, enum sim_exit how, int code);

/* ---- sim_steps.c ---- */
#define SIM_DAMAGE "shard is damaged"
/* FORMING, TRAINING, SETTLING: what it does in a tick. */
void sim_form(struct sim *sim, struct sim_trainer *t);
void sim_train(struct sim *sim, struct sim_trainer *t);
void sim_settle(struct sim *sim, struct sim_trainer *t);

/* ---- sim_rendezvous.c ---- */
/* A worker comes to that round of its generation. Returns whether it has the others' parts: an
 * answer that doesn't come though all have come is lost. */
bool sim_meets(struct sim *sim, struct sim_trainer *t, const char *name);

/* ---- sim_saver.c: what runs beside the step thread ---- */
void sim_saver_run(struct sim *sim, struct sim_trainer *t);
void sim_reader_run(struct sim *sim, struct sim_trainer *t);
