/*
 * What the builders have in common: checks of their inputs, and appending to the tape's arrays.
 * Only for tape*.c.
 */
#pragma once

#include "trainer/tape/tape.h"

/* Keeps the first mistake; returns -1. */
int build_refuse(struct tape *tape, enum status st);
/* No mistake so far, and such a value exists. */
bool build_known(const struct tape *tape, int value);
bool build_has_dims(const struct tape *tape, int value, int ndim);
bool build_same_dims(const struct tape *tape, int left, int right);
const int64_t *build_dims(const struct tape *tape, int value);

/* A node with the given inputs (second may be -1) and no parameters yet, or NULL. */
struct tape_node *build_node(struct tape *tape, enum op op, int x, int second);
/* The output of the newest node; its value. */
int build_out(struct tape *tape, int ndim, const int64_t *dims, bool batched);

struct build_tensor {
    const char *suffix;
    enum tape_kind kind;
    enum tape_init init;
    int64_t fan_in;
    float std;
    int ndim;
    int64_t dims[TENSOR_DIMS_MAX];
};

/* Of the newest node, named NAME.suffix; its index. */
int build_param(struct tape *tape, const char *name, const struct build_tensor *spec);
int build_stat(struct tape *tape, const char *name, const struct build_tensor *spec);
