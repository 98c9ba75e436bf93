/*
 * For tests of comm: a kv in memory that forked processes share, and a communicator between ranks
 * of one process that copies from buffer to buffer.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/kv.h"

#define SHARED_KEYS  64
#define SHARED_VALUE 2048

struct shared_kv {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stale;
    int waiting; /* calls of get that wait now */
    int used;
    struct {
        char key[64];
        size_t size;
        uint8_t value[SHARED_VALUE];
    } entry[SHARED_KEYS];
};

/* Shared with children that are forked later. */
struct shared_kv *shared_kv_new(void);
void shared_kv_free(struct shared_kv *shared);
struct kv shared_kv_table(struct shared_kv *shared);
void shared_kv_go_stale(struct shared_kv *shared);

/* A rank of gloo over the shared kv, on loopback. */
enum status gloo_open_rank(struct shared_kv *shared, int rank, int size, int64_t timeout_ms,
                           struct comm **out);

/* Ranks of one process; every collective is a meeting of all. */
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
