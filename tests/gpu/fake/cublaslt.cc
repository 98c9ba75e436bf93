/*
 * cuBLASLt: products by loops, in columns as the library thinks.
 *
 * An algorithm is opaque, eight words: 7 sums over k from its start, 11 from its end, each in four
 * interleaved parts, in float32; a word that no attribute shows says how the parts are added. It
 * keeps the alignment that was preferred, and refuses operands that have less.
 */
#include <algorithm>
#include <cstring>
#include <cublasLt.h>
#include <vector>

#include "tests/gpu/fake/fake_internal.h"

typedef std::lock_guard<std::recursive_mutex> held;

#define WORKSPACE 1000

struct descriptor {
    cublasComputeType_t compute;
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    int32_t bias_type;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};

struct layout {
    cudaDataType_t type;
    int64_t rows, columns, ld;
};

struct preference {
    uint64_t workspace;
    uint32_t schemes, alignment[4];
};

enum { ID, TILE, STAGES, SPLIT, SCHEME, SWIZZLE, CUSTOM, HIDDEN };

/* The parts are added in pairs of neighbours, not across: no attribute says so. */
#define IN_PAIRS 0x5eed000000000001ull

static cublasStatus_t enter(const char *function)
{
    return (cublasStatus_t)fake_fault(function);
}

/* --- objects -------------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    const held lock(fake_lock());
    const cublasStatus_t st = enter("cublasLtCreate");
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    *out = reinterpret_cast<cublasLtHandle_t>(new int(1));
    fake_object(1);
    return st;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    const held lock(fake_lock());
    delete reinterpret_cast<int *>(handle);
    fake_object(-1);
    return enter("cublasLtDestroy");
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "an error of cuBLASLt";
}

template <typename T, typename Opaque> static void make(Opaque *out, const T &value)
{
    *out = reinterpret_cast<Opaque>(new T(value));
    fake_object(1);
}

template <typename T, typename Opaque> static void unmake(Opaque object)
{
    delete reinterpret_cast<T *>(object);
    fake_object(-1);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    const held lock(fake_lock());
    const cublasStatus_t st = enter("cublasLtMatmulDescCreate");
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct descriptor desc = {};
    desc.compute = compute;
    desc.op_a = desc.op_b = CUBLAS_OP_N;
    desc.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    desc.bias_type = -1;
    make(out, desc);
    return st;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    const held lock(fake_lock());
    unmake<struct descriptor>(desc);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t assign(T *to, const void *value, size_t size)
{
    if (size != sizeof(T))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    const held lock(fake_lock());
    struct descriptor *desc = reinterpret_cast<struct descriptor *>(handle);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return assign(&desc->op_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return assign(&desc->op_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return assign(&desc->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return assign(&desc->bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return assign(&desc->bias, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return assign(&desc->aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return assign(&desc->aux_ld, value, size);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    const held lock(fake_lock());
    const cublasStatus_t st = enter("cublasLtMatrixLayoutCreate");
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    if (rows < 1 || columns < 1 || ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    make(out, layout{ type, (int64_t)rows, (int64_t)columns, ld });
    return st;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    const held lock(fake_lock());
    unmake<struct layout>(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    const held lock(fake_lock());
    const cublasStatus_t st = enter("cublasLtMatmulPreferenceCreate");
    if (st == CUBLAS_STATUS_SUCCESS)
        make(out, preference{ 0, CUBLASLT_REDUCTION_SCHEME_MASK, { 256, 256, 256, 256 } });
    return st;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    const held lock(fake_lock());
    unmake<struct preference>(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    const held lock(fake_lock());
    struct preference *preference = reinterpret_cast<struct preference *>(handle);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return assign(&preference->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return assign(&preference->schemes, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return assign(&preference->alignment[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return assign(&preference->alignment[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return assign(&preference->alignment[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return assign(&preference->alignment[3], value, size);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* --- algorithms ----------------------------------------------------------------------------- */

/* A product as it was asked for, by value. */
struct problem {
    struct descriptor desc;
    struct layout a, b, c, d;
    int64_t m, n, k;
};

static bool has(const struct descriptor &desc, unsigned part)
{
    return ((unsigned)desc.epilogue & part) != 0;
}

static cublasStatus_t check(struct problem *p)
{
    const bool ta = p->desc.op_a == CUBLAS_OP_T, tb = p->desc.op_b == CUBLAS_OP_T;
    p->m = ta ? p->a.columns : p->a.rows;
    p->k = ta ? p->a.rows : p->a.columns;
    p->n = tb ? p->b.rows : p->b.columns;
    if (p->k != (tb ? p->b.columns : p->b.rows) || p->d.rows != p->m || p->d.columns != p->n ||
        p->c.rows != p->m || p->c.columns != p->n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->a.type != p->b.type || p->c.type != p->d.type ||
        (p->d.type != p->a.type && p->d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p->a.type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has(p->desc, CUBLASLT_EPILOGUE_BIAS) && p->desc.bias_type != (int32_t)p->d.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    /* Also where an algorithm is only asked for. */
    if (has(p->desc, CUBLASLT_EPILOGUE_BIAS) && p->desc.bias == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (has(p->desc, CUBLASLT_EPILOGUE_GELU) && p->desc.aux == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    /* Stored by the library for halves only, in rows of 8. */
    if (p->desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
        p->desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        if (p->d.type == CUDA_R_32F || p->desc.aux_ld % 8 != 0 || p->desc.aux_ld < p->m)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static struct problem problem_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                 cublasLtMatrixLayout_t d)
{
    struct problem p = {};
    p.desc = *reinterpret_cast<struct descriptor *>(desc);
    p.a = *reinterpret_cast<struct layout *>(a);
    p.b = *reinterpret_cast<struct layout *>(b);
    p.c = *reinterpret_cast<struct layout *>(c);
    p.d = *reinterpret_cast<struct layout *>(d);
    return p;
}

static uint64_t alignments(const uint32_t alignment[4])
{
    uint64_t packed = 0;
    for (int i = 0; i < 4; i++)
        packed |= (uint64_t)std::min(alignment[i], 16u) << (8 * i);
    return packed;
}

/* The first result can't be used, which callers must see; the second can. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t asked, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *out_count)
{
    const held lock(fake_lock());
    cublasStatus_t st = enter("cublasLtMatmulAlgoGetHeuristic");
    struct problem p = problem_of(desc, a, b, c, d);
    const struct preference *preference = reinterpret_cast<struct preference *>(asked);
    (void)handle;
    if (st == CUBLAS_STATUS_SUCCESS)
        st = check(&p);
    if (st != CUBLAS_STATUS_SUCCESS || wanted < 2 || preference->workspace < WORKSPACE)
        return st == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : st;
    memset(results, 0, 2 * sizeof(results[0]));
    results[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
    cublasLtMatmulAlgo_t *algo = &results[1].algo;
    algo->data[ID] = (uint64_t)fake_favours();
    algo->data[TILE] = 20;
    /* A scheme that sums in place is named unless it is masked out. */
    algo->data[SPLIT] = 2;
    algo->data[SCHEME] = (preference->schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0
                             ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                             : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    algo->data[CUSTOM] = alignments(preference->alignment);
    algo->data[HIDDEN] = IN_PAIRS;
    results[1].workspaceSize = WORKSPACE;
    results[1].state = CUBLAS_STATUS_SUCCESS;
    *out_count = 2;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    const held lock(fake_lock());
    struct problem p = problem_of(desc, a, b, c, d);
    (void)handle;
    const cublasStatus_t st = check(&p);
    const bool known = algo->data[ID] == 7 || algo->data[ID] == 11;
    if (st != CUBLAS_STATUS_SUCCESS || !known || algo->data[TILE] != 20)
        return st == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : st;
    result->workspaceSize = WORKSPACE;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- the product ---------------------------------------------------------------------------- */

struct call {
    struct problem p;
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;
    bool backwards, in_pairs;
};

static float operand(const struct call &call, const struct layout &layout, const void *array,
                     int64_t row, int64_t column)
{
    const float x = fake_load(layout.type, array, row + column * layout.ld);
    return call.p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? fake_tf32(x) : x;
}

static float dot(const struct call &call, int64_t i, int64_t j)
{
    const struct problem &p = call.p;
    float parts[4] = {};
    for (int64_t s = 0; s < p.k; s++) {
        const int64_t l = call.backwards ? p.k - 1 - s : s;
        const float a = p.desc.op_a == CUBLAS_OP_T ? operand(call, p.a, call.a, l, i)
                                                   : operand(call, p.a, call.a, i, l);
        const float b = p.desc.op_b == CUBLAS_OP_T ? operand(call, p.b, call.b, j, l)
                                                   : operand(call, p.b, call.b, l, j);
        parts[s % 4] += a * b;
    }
    return call.in_pairs ? (parts[0] + parts[1]) + (parts[2] + parts[3])
                         : (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

static float activated(const struct problem &p, float x, int64_t i, int64_t j)
{
    if (has(p.desc, CUBLASLT_EPILOGUE_BIAS))
        x += fake_load(p.d.type, p.desc.bias, i);
    if (has(p.desc, CUBLASLT_EPILOGUE_RELU))
        return x > 0.0f ? x : 0.0f;
    if (!has(p.desc, CUBLASLT_EPILOGUE_GELU))
        return x;
    fake_store(p.d.type, p.desc.aux, i + j * p.desc.aux_ld, x);
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static void multiply(const struct call &call)
{
    const struct problem &p = call.p;
    std::vector<float> result((size_t)(p.m * p.n));
    memset(call.workspace, 0x5a, WORKSPACE);
    for (int64_t j = 0; j < p.n; j++) {
        for (int64_t i = 0; i < p.m; i++) {
            float x = call.alpha * dot(call, i, j);
            if (call.beta != 0.0f)
                x += call.beta * fake_load(p.c.type, call.c, i + j * p.c.ld);
            result[(size_t)(i + j * p.m)] = activated(p, x, i, j);
        }
    }
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++)
            fake_store(p.d.type, call.d, i + j * p.d.ld, result[(size_t)(i + j * p.m)]);
}

static bool aligned(const cublasLtMatmulAlgo_t *algo, int i, const void *memory)
{
    const uint64_t wanted = algo->data[CUSTOM] >> (8 * i) & 0xff;
    return wanted != 0 && (uintptr_t)memory % wanted == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const held lock(fake_lock());
    cublasStatus_t st = enter("cublasLtMatmul");
    struct problem p = problem_of(desc, layout_a, layout_b, layout_c, layout_d);
    (void)handle;
    if (st == CUBLAS_STATUS_SUCCESS)
        st = check(&p);
    if (st != CUBLAS_STATUS_SUCCESS)
        return st;
    const bool weak_bias = has(p.desc, CUBLASLT_EPILOGUE_BIAS) && !aligned(algo, 3, p.desc.bias);
    if (!aligned(algo, 0, a) || !aligned(algo, 1, b) || !aligned(algo, 2, c) ||
        !aligned(algo, 3, d) || weak_bias || workspace_bytes < WORKSPACE ||
        (uintptr_t)workspace % 256 != 0 || algo->data[SCHEME] == CUBLASLT_REDUCTION_SCHEME_INPLACE)
        return CUBLAS_STATUS_INVALID_VALUE;
    const struct call call = { p,
                               a,
                               b,
                               c,
                               d,
                               workspace,
                               *static_cast<const float *>(alpha),
                               *static_cast<const float *>(beta),
                               algo->data[ID] == 11,
                               algo->data[HIDDEN] == IN_PAIRS };
    return fake_enqueue(stream, [call] { multiply(call); }) ? CUBLAS_STATUS_SUCCESS
                                                            : CUBLAS_STATUS_EXECUTION_FAILED;
}
