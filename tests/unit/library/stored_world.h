/*
 * A job of some ranks for one test: what each has, saved by the library through a fake worker, one
 * rank after the other, since a process has one connection; and opened again.
 *
 * What isn't expected to fail here is asserted.
 */
#pragma once

#include <stdint.h>

#include "common/limits.h"
#include "fake_worker.h"
#include "library/cairn.h"

#define STORED_TENSORS 16
#define STORED_BLOBS   4

struct stored_rank {
    struct cairn_tensor tensors[STORED_TENSORS];
    uint32_t tensor_count;
    struct {
        const char *name;
        char data[16];
        size_t size;
    } blobs[STORED_BLOBS];
    uint32_t blob_count;
};

struct stored_world {
    char folder[64];
    char checkpoint[LIMIT_PATH];
    char shards[FAKE_RANKS][64]; /* names of the checkpoint's files */
    uint32_t size, made;
    struct stored_rank ranks[FAKE_RANKS];
    struct fake_worker workers[FAKE_RANKS];
    struct layout_places places[FAKE_RANKS];
    uint64_t step;
};

int stored_world_set_up(void **state);
int stored_world_tear_down(void **state);
/* Begins with ranks that have nothing; stored_world_end frees them and removes all files. */
void stored_world_begin(struct stored_world *w, uint32_t size);
void stored_world_end(struct stored_world *w);
/* Returns the next rank, to be given tensors. */
struct stored_rank *stored_world_rank(struct stored_world *w);

/* Adds a tensor with data that depends on its name, owned by the rank; a sharded one's box is all
 * of it until the test narrows it. */
struct cairn_tensor *stored_rank_add(struct stored_rank *rank, const char *name, int dtype,
                                     int kind, uint32_t ndim, const uint64_t *shape);
void stored_rank_blob(struct stored_rank *rank, const char *name, const void *data, size_t size);
const struct cairn_tensor *stored_rank_find(const struct stored_rank *rank, const char *name);
void *stored_rank_data(const struct cairn_tensor *tensor);
uint64_t stored_tensor_bytes(const struct cairn_tensor *tensor);

/* Saves a step by all ranks: copies in memory. */
void stored_world_save(struct stored_world *w, uint64_t step);
const char *stored_world_path(const struct stored_world *w, uint32_t rank);
/* Makes a checkpoint of them. */
void stored_world_commit(struct stored_world *w);
/* Opens what was saved, as rank 0 of a new start. */
int stored_world_restore(struct stored_world *w, enum wire_source source, struct cairn_state **out);
