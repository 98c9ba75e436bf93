/*
 * What the content of a file of the data is known by: its size and its hash. Of a compressed file
 * it is the content that is read, whatever compressed it.
 *
 * Thread: one per identity.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/buf.h"
#include "common/status.h"

struct data_identity {
    uint64_t size;
    struct ckpt_hash hash;
};

/* Content that comes in parts. */
struct identity_maker;
MUST_CHECK enum status identity_maker_new(struct identity_maker **out);
void identity_maker_free(struct identity_maker *maker);
void identity_maker_add(struct identity_maker *maker, const void *data, size_t size);
struct data_identity identity_maker_result(const struct identity_maker *maker);

/* Appends "PATH SIZE HASH" as a JSON string: what two nodes must have in common. */
MUST_CHECK enum status identity_print(const struct data_identity *identity, const char *path,
                                      struct buf *out);
