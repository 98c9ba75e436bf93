/*
 * The difference of two checkpoints, tensor by tensor.
 *
 * Tensors belong together by name. Values are compared where the shapes are equal; of types that
 * differ, as float32 (types that aren't float are compared with their like only). What no tensor of
 * the table has (sharded and private tensors and blobs of a program) is compared, too: as a tensor
 * with the name of its buffer in brackets, "(ranks)", or of a part of it, "(float32 from 128)".
 *
 * Memory: tensors are read by parts; the list is owned by the caller.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"

enum compare_kind {
    COMPARE_EQUAL,   /* in every bit */
    COMPARE_DIFFERS, /* in values */
    COMPARE_SHAPE,   /* other shapes, or types without a common one: values weren't compared */
    COMPARE_ONLY_A,
    COMPARE_ONLY_B,
};

struct compare_tensor {
    char name[LIMIT_NAME];
    enum compare_kind kind;
    enum ckpt_dtype dtype_a, dtype_b; /* 0: it isn't there */
    int32_t ndim;                     /* of a's; of b's, if a has none */
    uint64_t dims[4];
    uint64_t elements;
    uint64_t differing;  /* elements whose bits differ (of other types: whose values do) */
    uint64_t bits;       /* that differ; 0 between types */
    uint64_t not_finite; /* differing elements of which one is no finite number: not in the rest */
    double max_abs;
    double norm_difference, norm_a; /* Euclidean */
};

/* norm_difference / norm_a; infinite if only norm_a is 0. */
double compare_relative(const struct compare_tensor *tensor);

/* Compares the tensors in the order of a, then lists those that are only in b. progress: may be
 * NULL; bytes compared of a. */
MUST_CHECK enum status compare_tensors(struct ckpt_reader *a, struct ckpt_reader *b,
                                       void (*progress)(void *arg, uint64_t bytes), void *arg,
                                       struct compare_tensor **out, uint32_t *out_count);
