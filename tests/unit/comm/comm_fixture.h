/*
 * For tests of comm: a rendezvous in memory that forked processes share, and a communicator between
 * ranks of one process that copies from buffer to buffer.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/rendezvous.h"

#define SHARED_RANKS 16

struct shared_rendezvous {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stale;
    int waiting; /* calls of meet that wait now */
    struct shared_member {
        struct shared_rendezvous *shared;
        int rank;
    } members[SHARED_RANKS];
    struct {
        char name[RENDEZVOUS_NAME];
        int came;
        struct {
            bool came;
            size_t common_size;
            uint8_t common[RENDEZVOUS_COMMON_MAX];
            uint8_t items[SHARED_RANKS][RENDEZVOUS_ITEM_MAX];
        } parts[SHARED_RANKS];
    } meetings[RENDEZVOUS_ROUNDS];
};

/* Shared with children that are forked later. */
struct shared_rendezvous *shared_rendezvous_new(void);
void shared_rendezvous_free(struct shared_rendezvous *shared);
/* The rendezvous as that rank sees it. */
struct rendezvous shared_rendezvous_of(struct shared_rendezvous *shared, int rank);
void shared_rendezvous_go_stale(struct shared_rendezvous *shared);
/* A rank brings a part with nothing in it, and doesn't wait. */
void shared_rendezvous_bring_nothing(struct shared_rendezvous *shared, const char *name, int rank,
                                     int ranks);

/* Options of a communicator of some ranks (comm_options); members NULL: of all. */
struct comm_some {
    const char *round_name;
    const int *members;
    int member_count;
    const bool *connected;
};

/* A rank of gloo over the shared rendezvous, on loopback. */
enum status gloo_open_some(struct shared_rendezvous *shared, const struct comm_some *some, int rank,
                           int size, int64_t timeout_ms, struct comm **out);
/* Like gloo_open_some, for a communicator of all ranks. */
enum status gloo_open_rank(struct shared_rendezvous *shared, int rank, int size, int64_t timeout_ms,
                           struct comm **out);

/* Ranks of one process; every collective is a round of all. */
struct local_hub {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int size, arrived;
    uint64_t meetings;
    const struct comm_segment *send[64];
    bool gather;
};

void local_hub_init(struct local_hub *hub, int size);
void local_hub_release(struct local_hub *hub);
struct comm *local_comm_new(struct local_hub *hub, int rank);
void local_comm_free(struct comm *comm);
const struct comm_table *local_comm_table(void);
