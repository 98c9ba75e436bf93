#include "kernels/cpu/gemm/dnn.h"

#include <stdlib.h>

#include "common/check.h"

enum status dnn_status(dnnl_status_t status)
{
    switch (status) {
    case dnnl_success:
        return ST_OK;
    case dnnl_out_of_memory:
        return ST_NO_MEMORY;
    case dnnl_invalid_arguments:
    case dnnl_unimplemented:
        return ST_INVALID;
    case dnnl_iterator_ends:
    case dnnl_runtime_error:
    case dnnl_not_required:
        return ST_DEVICE;
    }
    return ST_DEVICE;
}

enum status dnn_new(struct dnn **out_dnn)
{
    struct dnn *dnn = calloc(1, sizeof(*dnn));
    if (dnn == NULL)
        return ST_NO_MEMORY;
    /* An environment variable (ONEDNN_DEFAULT_FPMATH_MODE) could change the mode's usual value. */
    dnnl_status_t st = dnnl_set_default_fpmath_mode(dnnl_fpmath_mode_strict);
    if (st == dnnl_success)
        st = dnnl_engine_create(&dnn->engine, dnnl_cpu, 0);
    if (st == dnnl_success)
        st = dnnl_stream_create(&dnn->stream, dnn->engine, dnnl_stream_default_flags);
    if (st != dnnl_success) {
        dnn_free(dnn);
        return dnn_status(st);
    }
    *out_dnn = dnn;
    return ST_OK;
}

void dnn_free(struct dnn *dnn)
{
    if (dnn == NULL)
        return;
    if (dnn->stream != NULL)
        (void)dnnl_stream_destroy(dnn->stream);
    if (dnn->engine != NULL)
        (void)dnnl_engine_destroy(dnn->engine);
    free(dnn);
}

enum status dnn_attr_new(bool sum, dnnl_primitive_attr_t *out_attr)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(&attr);
    if (st != dnnl_success)
        return dnn_status(st);
    st = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (st == dnnl_success && sum) {
        dnnl_post_ops_t ops = NULL;
        st = dnnl_post_ops_create(&ops);
        if (st == dnnl_success)
            st = dnnl_post_ops_append_sum(ops, 1.0f);
        if (st == dnnl_success)
            st = dnnl_primitive_attr_set_post_ops(attr, ops);
        if (ops != NULL)
            (void)dnnl_post_ops_destroy(ops);
    }
    if (st != dnnl_success) {
        (void)dnnl_primitive_attr_destroy(attr);
        return dnn_status(st);
    }
    *out_attr = attr;
    return ST_OK;
}

enum status dnn_op_init(struct dnn *dnn, struct dnn_op *op, dnnl_primitive_desc_t desc)
{
    *op = (struct dnn_op){ 0 };
    dnnl_status_t st = dnnl_primitive_create(&op->primitive, desc);
    (void)dnnl_primitive_desc_destroy(desc);
    if (st != dnnl_success)
        return dnn_status(st);
    const_dnnl_primitive_desc_t own = NULL;
    st = dnnl_primitive_get_primitive_desc(op->primitive, &own);
    if (st == dnnl_success)
        st = dnnl_primitive_desc_query(own, dnnl_query_impl_info_str, 0, &op->implementation);
    if (st != dnnl_success) {
        dnn_op_release(op);
        return dnn_status(st);
    }
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(own, dnnl_query_scratchpad_md, 0);
    op->scratch_bytes = pad == NULL ? 0 : dnnl_memory_desc_get_size(pad);
    if (op->scratch_bytes == 0)
        return ST_OK;
    enum status bound = dnn_op_bind(dnn, op, DNNL_ARG_SCRATCHPAD, pad);
    if (bound != ST_OK)
        dnn_op_release(op);
    return bound;
}

void dnn_op_release(struct dnn_op *op)
{
    for (int i = 0; i < op->arg_count; i++)
        (void)dnnl_memory_destroy(op->args[i].memory);
    if (op->primitive != NULL)
        (void)dnnl_primitive_destroy(op->primitive);
    *op = (struct dnn_op){ 0 };
}

enum status dnn_op_bind(struct dnn *dnn, struct dnn_op *op, int arg, const dnnl_memory_desc_t *desc)
{
    CHECK(op->arg_count < DNN_ARGS_MAX);
    dnnl_memory_t memory = NULL;
    dnnl_status_t st = dnnl_memory_create(&memory, desc, dnn->engine, DNNL_MEMORY_NONE);
    if (st != dnnl_success)
        return dnn_status(st);
    op->args[op->arg_count++] = (dnnl_exec_arg_t){ .arg = arg, .memory = memory };
    return ST_OK;
}

enum status dnn_op_set(struct dnn_op *op, int arg, const void *data)
{
    for (int i = 0; i < op->arg_count; i++) {
        if (op->args[i].arg == arg)
            return dnn_status(dnnl_memory_set_data_handle(op->args[i].memory, (void *)data));
    }
    CHECK(arg < 0); /* the argument was never bound */
    return ST_INVALID;
}

enum status dnn_op_run(struct dnn *dnn, struct dnn_op *op, void *scratch)
{
    if (op->scratch_bytes > 0) {
        enum status st = dnn_op_set(op, DNNL_ARG_SCRATCHPAD, scratch);
        if (st != ST_OK)
            return st;
    }
    dnnl_status_t st = dnnl_primitive_execute(op->primitive, dnn->stream, op->arg_count, op->args);
    if (st == dnnl_success)
        st = dnnl_stream_wait(dnn->stream);
    return st == dnnl_success ? ST_OK : ST_DEVICE;
}

enum status dnn_reorder_init(struct dnn *dnn, struct dnn_op *op, const dnnl_memory_desc_t *from,
                             const dnnl_memory_desc_t *to, bool sum)
{
    dnnl_primitive_attr_t attr = NULL;
    enum status st = dnn_attr_new(sum, &attr);
    if (st != ST_OK)
        return st;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t made =
        dnnl_reorder_primitive_desc_create(&desc, from, dnn->engine, to, dnn->engine, attr);
    (void)dnnl_primitive_attr_destroy(attr);
    if (made != dnnl_success)
        return dnn_status(made);
    st = dnn_op_init(dnn, op, desc);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_FROM, from);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_TO, to);
    if (st != ST_OK)
        dnn_op_release(op);
    return st;
}
