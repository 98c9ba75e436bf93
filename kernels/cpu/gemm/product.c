#include "kernels/cpu/gemm/product.h"

#include "common/check.h"

enum product_layout { PRODUCT_TRANSPOSED = 1, PRODUCT_HALF = 2 };

static enum product_layout layout_of(bool transposed, bool half)
{
    return (transposed ? PRODUCT_TRANSPOSED : 0) | (half ? PRODUCT_HALF : 0);
}

bool product_has_half(void)
{
    const unsigned avx512 = (unsigned)dnnl_cpu_isa_avx512_core;
    return ((unsigned)dnnl_get_effective_cpu_isa() & avx512) == avx512;
}

/* Describes [rows, columns], or [batch, rows, columns] unless batch is 0. */
static enum status product_matrix(dnnl_memory_desc_t *desc, int64_t batch, int64_t rows,
                                  int64_t columns, enum product_layout layout)
{
    const dnnl_data_type_t type = (layout & PRODUCT_HALF) != 0 ? dnnl_bf16 : dnnl_f32;
    const bool transposed = (layout & PRODUCT_TRANSPOSED) != 0;
    if (batch == 0) {
        const dnnl_dims_t dims = { rows, columns };
        return dnn_status(
            dnnl_memory_desc_init_by_tag(desc, 2, dims, type, transposed ? dnnl_ba : dnnl_ab));
    }
    const dnnl_dims_t dims = { batch, rows, columns };
    return dnn_status(
        dnnl_memory_desc_init_by_tag(desc, 3, dims, type, transposed ? dnnl_acb : dnnl_abc));
}

enum status product_init(struct dnn *dnn, struct dnn_op *op, const struct product *p)
{
    dnnl_memory_desc_t a, b, c, bias;
    CHECK(!p->bias || p->batch == 0);
    enum status st = product_matrix(&a, p->batch, p->m, p->k, layout_of(p->a_transposed, p->half));
    if (st == ST_OK)
        st = product_matrix(&b, p->batch, p->k, p->n, layout_of(p->b_transposed, p->half));
    if (st == ST_OK)
        st = product_matrix(&c, p->batch, p->m, p->n, layout_of(false, p->half_out));
    if (st == ST_OK)
        st = product_matrix(&bias, 0, 1, p->n, layout_of(false, false));
    if (st != ST_OK)
        return st;
    dnnl_matmul_desc_t matmul;
    st = dnn_status(dnnl_matmul_desc_init(&matmul, &a, &b, p->bias ? &bias : NULL, &c));
    if (st != ST_OK)
        return st;
    dnnl_primitive_attr_t attr = NULL;
    st = dnn_attr_new(p->sum, &attr);
    if (st != ST_OK)
        return st;
    dnnl_primitive_desc_t desc = NULL;
    st = dnn_status(dnnl_primitive_desc_create(&desc, &matmul, attr, dnn->engine, NULL));
    (void)dnnl_primitive_attr_destroy(attr);
    if (st == ST_OK)
        st = dnn_op_init(dnn, op, desc);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_SRC, &a);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_WEIGHTS, &b);
    if (st == ST_OK && p->bias)
        st = dnn_op_bind(dnn, op, DNNL_ARG_BIAS, &bias);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_DST, &c);
    if (st != ST_OK)
        dnn_op_release(op);
    return st;
}

static bool has_bias(const struct dnn_op *op)
{
    for (int i = 0; i < op->arg_count; i++) {
        if (op->args[i].arg == DNNL_ARG_BIAS)
            return true;
    }
    return false;
}

enum status product_run(struct dnn *dnn, struct dnn_op *op, const void *a, const void *b,
                        const float *bias, void *c, void *scratch)
{
    enum status st = dnn_op_set(op, DNNL_ARG_SRC, a);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_WEIGHTS, b);
    if (st == ST_OK && has_bias(op))
        st = dnn_op_set(op, DNNL_ARG_BIAS, bias);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_DST, c);
    if (st == ST_OK)
        st = dnn_op_run(dnn, op, scratch);
    return st;
}

enum status product_f32(const struct product *p, const float *a, const float *b, float *c)
{
    CHECK(p->batch == 0);
    CHECK(!p->half);
    CHECK(!p->bias);
    return dnn_status(dnnl_sgemm(p->a_transposed ? 'T' : 'N', p->b_transposed ? 'T' : 'N', p->m,
                                 p->n, p->k, 1.0f, a, p->a_transposed ? p->m : p->k, b,
                                 p->b_transposed ? p->k : p->n, p->sum ? 1.0f : 0.0f, c, p->n));
}
