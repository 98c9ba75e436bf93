/*
 * The record of a node on which jobs failed by the node's fault: a process that can't be started,
 * no hello, a GPU that is gone, data that isn't there.
 *
 * A job that fails there again counts once. Each of them weighs 1, half of it FLEET_HALF_LIFE_MS
 * later, and is forgotten after FLEET_FORGET_MS: a node gets its next chance by itself. If
 * FLEET_DRAIN_JOBS different jobs failed, the node is drained: it takes a job only if no other node
 * ever could. A failure that the job repeats elsewhere is the job's fault, and is taken back.
 *
 * Pure: the time comes as an argument (monotonic ms). Kept in memory only: after a restart of the
 * coordinator a bad node shows again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FLEET_HALF_LIFE_MS (5 * 60 * 1000)
#define FLEET_FORGET_MS    (INT64_C(1000) * 60 * 30)
#define FLEET_DRAIN_JOBS   3
#define FLEET_FAULTS_MAX   16 /* of more the oldest is forgotten: long drained */
#define FLEET_JOB_BYTES    16

struct fleet_fault {
    char job[FLEET_JOB_BYTES];
    int64_t at;
};

struct fleet_record {
    struct fleet_fault faults[FLEET_FAULTS_MAX]; /* the oldest first */
    uint32_t count;
    bool drained; /* set by the owner: the last node of its kind isn't */
};

/* Notes that the job failed on the node. true: the node is due to be drained. */
bool fleet_blame(struct fleet_record *record, const char *job, int64_t now);
/* Takes back a job's failure there, as the job was the cause; undoes the drain if too few others
 * are left. */
void fleet_clear(struct fleet_record *record, const char *job);
/* Forgets all failures: the machine was started anew, or the agent is of another version. */
void fleet_forgive(struct fleet_record *record);
/* Forgets what is old. true: the node was drained and isn't any more. */
bool fleet_age(struct fleet_record *record, int64_t now);
/* Returns the sum of the weights. */
double fleet_penalty(const struct fleet_record *record, int64_t now);
