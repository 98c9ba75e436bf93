/*
 * cuBLASLt's matrices lie column by column, so it sees each of ours as its transpose. We ask it for
 * dᵀ = bᵀ · aᵀ:
 *
 *   cuBLASLt   A   B   D   m         n      k       bias along m
 *   here       b   a   d   columns   rows   depth   bias [columns]
 */
#include "kernels/cuda/library/product.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "kernels/cuda/device/cuda.h"

#define RESULTS_MAX 8

/* An algorithm is opaque: all of its words are its choice, and are given back as they are (cuBLAS
 * library documentation, cublasLtMatmulAlgo_t: it may be stored and restored for use with the same
 * version of the library, which open_libraries sees to). */
#define ALGORITHM_WORDS 8

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGORITHM_WORDS * sizeof(int64_t) &&
                   ALGORITHM_WORDS <= CHOICE_NUMBERS_MAX,
               "a choice holds an algorithm");

static cublasComputeType_t compute_type(enum math math)
{
    return math == MATH_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static void key_print(char key[CHOICE_KEY_MAX], const struct cuda_product_spec *spec)
{
    static const char *const epilogues[] = {
        [PRODUCT_PLAIN] = "", [PRODUCT_RELU] = " relu", [PRODUCT_GELU] = " gelu"
    };
    const int length = snprintf(
        key, CHOICE_KEY_MAX, "product %lld.%lld.%lld %c%c %s %s%s%s%s%s", (long long)spec->rows,
        (long long)spec->columns, (long long)spec->depth, spec->a_transposed ? 't' : 'n',
        spec->b_transposed ? 't' : 'n', cuda_math_name(spec->math), dtype_name(spec->out),
        epilogues[spec->epilogue], spec->bias ? " bias" : "", spec->weak_b ? " weak-b" : "",
        spec->weak_d ? " weak-d" : "");
    if (spec->pitch_a != 0) {
        (void)snprintf(key + length, CHOICE_KEY_MAX - (size_t)length, " pitch %lld",
                       (long long)spec->pitch_a);
    }
}

static cublasLtEpilogue_t epilogue_of(const struct cuda_product_spec *spec)
{
    switch (spec->epilogue) {
    case PRODUCT_PLAIN:
        break;
    case PRODUCT_RELU:
        return spec->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case PRODUCT_GELU:
        return spec->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    }
    return spec->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t product_set(cublasLtMatmulDesc_t desc,
                                  cublasLtMatmulDescAttributes_t attribute, const void *value,
                                  size_t size)
{
    return cublasLtMatmulDescSetAttribute(desc, attribute, value, size);
}

/* `somewhere`: stands for the bias and aux of later calls, since algorithms are refused where they
 * are NULL. */
static cublasStatus_t product_describe(struct cuda_product *p, const struct cuda_product_spec *spec,
                                       const void *somewhere)
{
    const cublasOperation_t a = spec->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = spec->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(spec);
    cublasStatus_t st = cublasLtMatmulDescCreate(&p->desc, compute_type(spec->math), CUDA_R_32F);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = product_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = product_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = product_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (st == CUBLAS_STATUS_SUCCESS && spec->bias) {
        const int32_t type = (int32_t)cuda_type(spec->out);
        st = product_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
        if (st == CUBLAS_STATUS_SUCCESS) {
            st = product_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &somewhere,
                             sizeof(somewhere));
        }
    }
    if (st == CUBLAS_STATUS_SUCCESS && spec->epilogue == PRODUCT_GELU) {
        const int64_t ld = spec->columns;
        st = product_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof(ld));
        if (st == CUBLAS_STATUS_SUCCESS) {
            st = product_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &somewhere,
                             sizeof(somewhere));
        }
    }
    return st;
}

/* A row-major [rows, columns] as cuBLASLt sees it; pitch 0: columns. */
static cublasStatus_t product_layout(cublasLtMatrixLayout_t *out, enum dtype dtype, int64_t rows,
                                     int64_t columns, int64_t pitch)
{
    return cublasLtMatrixLayoutCreate(out, cuda_type(dtype), (uint64_t)columns, (uint64_t)rows,
                                      pitch == 0 ? columns : pitch);
}

static cublasStatus_t product_lay_out(struct cuda_product *p, const struct cuda_product_spec *spec)
{
    const enum dtype in = cuda_math_dtype(spec->math);
    cublasStatus_t st = product_layout(&p->a, in, spec->b_transposed ? spec->columns : spec->depth,
                                       spec->b_transposed ? spec->depth : spec->columns, 0);
    if (st == CUBLAS_STATUS_SUCCESS) {
        st = product_layout(&p->b, in, spec->a_transposed ? spec->depth : spec->rows,
                            spec->a_transposed ? spec->rows : spec->depth, spec->pitch_a);
    }
    if (st == CUBLAS_STATUS_SUCCESS)
        st = product_layout(&p->d, spec->out, spec->rows, spec->columns, 0);
    return st;
}

static cublasStatus_t product_prefer(cublasLtMatmulPreference_t preference,
                                     const struct cuda_product_spec *spec)
{
    const uint64_t workspace = CUDA_WORKSPACE_MAX;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t alignment[4] = { spec->weak_b ? 4 : 16, 16, spec->weak_d ? 4 : 16,
                                    spec->weak_d ? 4 : 16 };
    static const cublasLtMatmulPreferenceAttributes_t attribute[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    cublasStatus_t st = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    if (st == CUBLAS_STATUS_SUCCESS) {
        st = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes));
    }
    for (int i = 0; i < 4 && st == CUBLAS_STATUS_SUCCESS; i++) {
        st = cublasLtMatmulPreferenceSetAttribute(preference, attribute[i], &alignment[i],
                                                  sizeof(alignment[i]));
    }
    return st;
}

/* Takes the first of the heuristic's results that can be run. ST_NOT_FOUND: there is none. */
static enum status product_ask(struct backend *backend, const struct cuda_product_spec *spec,
                               struct cuda_product *p)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t results[RESULTS_MAX];
    int count = 0;
    enum status st = CUDA_LT_STATUS(backend, cublasLtMatmulPreferenceCreate(&preference),
                                    "cublasLtMatmulPreferenceCreate");
    if (st != ST_OK)
        return st;
    cublasStatus_t found = product_prefer(preference, spec);
    if (found == CUBLAS_STATUS_SUCCESS) {
        found = cublasLtMatmulAlgoGetHeuristic(backend->lt, p->desc, p->a, p->b, p->d, p->d,
                                               preference, RESULTS_MAX, results, &count);
    }
    (void)cublasLtMatmulPreferenceDestroy(preference);
    st = CUDA_LT_STATUS(backend, found, "cublasLtMatmulAlgoGetHeuristic");
    if (st != ST_OK)
        return st == ST_INVALID ? ST_NOT_FOUND : st;
    for (int i = 0; i < count; i++) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS) {
            p->algo = results[i].algo;
            p->workspace_bytes = results[i].workspaceSize;
            return ST_OK;
        }
    }
    return ST_NOT_FOUND;
}

/* Takes a choice's algorithm, if this library and device can run it. */
static bool product_take(struct backend *backend, const struct choice *choice,
                         struct cuda_product *p)
{
    cublasLtMatmulHeuristicResult_t result = { 0 };
    if (choice->count != ALGORITHM_WORDS)
        return false;
    memcpy(&p->algo, choice->numbers, sizeof(p->algo));
    const cublasStatus_t st =
        cublasLtMatmulAlgoCheck(backend->lt, p->desc, p->a, p->b, p->d, p->d, &p->algo, &result);
    if (st != CUBLAS_STATUS_SUCCESS || result.workspaceSize > CUDA_WORKSPACE_MAX)
        return false;
    p->workspace_bytes = result.workspaceSize;
    return true;
}

static enum status product_choose(struct backend *backend, const struct cuda_product_spec *spec,
                                  struct cuda_product *p)
{
    struct choice choice = { 0 };
    key_print(choice.key, spec);
    const struct choice *made = choices_find(&backend->choices, choice.key);
    if (made != NULL && product_take(backend, made, p))
        return ST_OK;
    struct choice stored;
    if (made == NULL && choices_stored(&backend->choices, choice.key, &stored) &&
        product_take(backend, &stored, p))
        return choices_add(&backend->choices, &stored);
    enum status st = product_ask(backend, spec, p);
    if (st != ST_OK || made != NULL)
        return st;
    choice.count = ALGORITHM_WORDS;
    memcpy(choice.numbers, &p->algo, sizeof(p->algo));
    return choices_add(&backend->choices, &choice);
}

enum status cuda_product_init(struct backend *backend, const struct cuda_product_spec *spec,
                              struct cuda_product *out)
{
    struct cuda_product p = { 0 };
    enum status st =
        CUDA_LT_STATUS(backend, product_describe(&p, spec, backend->fault), "cublasLtMatmulDesc");
    if (st == ST_OK)
        st = CUDA_LT_STATUS(backend, product_lay_out(&p, spec), "cublasLtMatrixLayout");
    if (st == ST_OK)
        st = product_choose(backend, spec, &p);
    if (st != ST_OK) {
        cuda_product_release(&p);
        return st;
    }
    *out = p;
    return ST_OK;
}

void cuda_product_release(struct cuda_product *product)
{
    if (product->d != NULL)
        (void)cublasLtMatrixLayoutDestroy(product->d);
    if (product->b != NULL)
        (void)cublasLtMatrixLayoutDestroy(product->b);
    if (product->a != NULL)
        (void)cublasLtMatrixLayoutDestroy(product->a);
    if (product->desc != NULL)
        (void)cublasLtMatmulDescDestroy(product->desc);
    *product = (struct cuda_product){ 0 };
}

enum status cuda_product_run(struct backend *backend, const struct cuda_product *product,
                             const struct cuda_product_operands *o, cudaStream_t stream)
{
    const float one = 1.0f, beta = o->c == NULL ? 0.0f : 1.0f;
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;
    if (o->bias != NULL) {
        st = product_set(product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o->bias,
                         sizeof(o->bias));
    }
    if (st == CUBLAS_STATUS_SUCCESS && o->aux != NULL) {
        st = product_set(product->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &o->aux,
                         sizeof(o->aux));
    }
    if (st == CUBLAS_STATUS_SUCCESS) {
        st = cublasLtMatmul(backend->lt, product->desc, &one, o->b, product->a, o->a, product->b,
                            &beta, o->c == NULL ? o->d : o->c, product->d, o->d, product->d,
                            &product->algo, o->workspace, product->workspace_bytes, stream);
    }
    return CUDA_LAUNCHED(backend, CUDA_LT_STATUS(backend, st, "cublasLtMatmul"), "cublasLtMatmul");
}
