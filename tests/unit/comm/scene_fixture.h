/*
 * For tests in which ranks die: each is a forked process, and they and the test take turns.
 */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "comm/comm.h"
#include "tests/unit/comm/comm_fixture.h"

#define LONG_MS 120000

/* Shared with forked ranks. */
struct scene {
    struct shared_rendezvous *shared;
    struct turn {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        int opened, sending;
    } * turn;
    int size;
};

struct scene scene_new(int size);
void scene_free(struct scene *scene);

void count_up(struct turn *turn, int *counter);
void wait_for(struct turn *turn, const int *counter, int value);

/* A child that opens a communicator of all, and exits with what body returns; 100: it can't. */
pid_t fork_rank(const struct scene *scene, int rank,
                int (*body)(const struct scene *scene, struct comm *comm, int rank));
void expect_exit(pid_t child, int expected);
