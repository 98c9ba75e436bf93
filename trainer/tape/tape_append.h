/*
 * Functions that the builders of tape.h share: checks of their inputs, and appending to the tape's
 * arrays. Only for tape_*.c.
 */
#pragma once

#include "trainer/tape/tape.h"

#define TAPE_NORM_EPSILON 1e-5f

/* Keeps the first mistake; returns -1. */
int tape_refuse(struct tape *tape, enum status st);
/* True if there was no mistake so far, and such a value exists. */
bool tape_has_value(const struct tape *tape, int value);
/* tape_has_value, and the value has ndim dims; both are values, with the same dims. */
bool tape_has_dims(const struct tape *tape, int value, int ndim);
bool tape_same_dims(const struct tape *tape, int left, int right);
const int64_t *tape_dims(const struct tape *tape, int value);

/* A node that reads x and, unless it is -1, second; without parameters yet. NULL: refused. */
struct tape_node *tape_append_node(struct tape *tape, enum op op, int x, int second);
/* Makes the output of the newest node, float32; returns its value, or -1. */
int tape_append_value(struct tape *tape, int ndim, const int64_t *dims, bool batched);

struct tape_tensor_spec {
    const char *suffix; /* "weight", "bias", … */
    enum tape_kind kind;
    enum tape_init init;
    int64_t fan_in; /* uniform */
    float std;      /* normal */
    int ndim;
    int64_t dims[TENSOR_DIMS_MAX];
};

/* Adds a parameter, or statistic, of the newest node, named NAME.suffix; returns its index. */
int tape_append_param(struct tape *tape, const char *name, const struct tape_tensor_spec *spec);
int tape_append_stat(struct tape *tape, const char *name, const struct tape_tensor_spec *spec);
