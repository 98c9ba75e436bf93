/* What the files of the simulated worker share. */
#pragma once

#include "session/core.h"
#include "tests/sim/sim.h"

enum stage { JOINING, FORMING, TRAINING, SETTLING, WAITING_OVER, PARKING, PARKED, LEFT };

struct sim_trainer {
    struct sim_trainer_view view; /* first */
    struct session_core core;
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
    uint64_t stored;     /* a checkpoint of this step is in the store, or copies of it are */
    int64_t all_came_at; /* to the meeting that this one waits in; 0: they didn't */
    int64_t peers_at;    /* from when on it comes to the second meeting; 0: it was there */
    char id[16];
};

/* ---- sim_saver.c: what runs beside the step thread ---- */
void sim_saver_run(struct sim *sim, struct sim_trainer *t);
void sim_reader_run(struct sim *sim, struct sim_trainer *t);
