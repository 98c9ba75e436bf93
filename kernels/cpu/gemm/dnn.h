/*
 * The part of oneDNN (2.6, its C API) that we use: the engine, and primitives whose memory objects
 * are made in advance, so that running one allocates neither memory of ours nor a scratchpad.
 *
 * A primitive (struct dnn_op) goes through
 *
 *   dnn_op_init   the primitive exists, its scratchpad is an argument
 *   dnn_op_bind   once per argument: its layout is known, its memory not yet
 *   dnn_op_set    before each run, per argument: where it lies this time
 *   dnn_op_run
 *
 * Only files that include this header, product.h or kernels/cpu/conv/conv_dnn.h know oneDNN.
 */
#pragma once

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define DNN_ARGS_MAX 8

struct dnn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

/* A primitive with its arguments; all zero: there is none. */
struct dnn_op {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[DNN_ARGS_MAX];
    int arg_count;
    size_t scratch_bytes;
    const char *implementation; /* borrowed from the primitive */
};

/* ST_NO_MEMORY; ST_INVALID for what oneDNN refuses; ST_DEVICE for every other error. */
enum status dnn_status(dnnl_status_t status);

MUST_CHECK enum status dnn_new(struct dnn **out_dnn);
void dnn_free(struct dnn *dnn);

/* The attributes that all our primitives have: the scratchpad is the caller's. With `sum` the
 * result is added to what the destination holds. The caller destroys them. */
MUST_CHECK enum status dnn_attr_new(bool sum, dnnl_primitive_attr_t *out_attr);

/* Makes the primitive and its scratchpad argument. `desc` is destroyed, on failure too. */
MUST_CHECK enum status dnn_op_init(struct dnn *dnn, struct dnn_op *op, dnnl_primitive_desc_t desc);
void dnn_op_release(struct dnn_op *op);

/* Adds an argument; dnn_op_set says where it lies, before each run. */
MUST_CHECK enum status dnn_op_bind(struct dnn *dnn, struct dnn_op *op, int arg,
                                   const dnnl_memory_desc_t *desc);
MUST_CHECK enum status dnn_op_set(struct dnn_op *op, int arg, const void *data);

/* Runs it, and waits. scratch: scratch_bytes, aligned to 64. */
MUST_CHECK enum status dnn_op_run(struct dnn *dnn, struct dnn_op *op, void *scratch);

/* A reorder from one layout to another, its arguments DNNL_ARG_FROM and DNNL_ARG_TO bound. */
MUST_CHECK enum status dnn_reorder_init(struct dnn *dnn, struct dnn_op *op,
                                        const dnnl_memory_desc_t *from,
                                        const dnnl_memory_desc_t *to, bool sum);
