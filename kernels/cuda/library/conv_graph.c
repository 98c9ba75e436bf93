/*
 * The first engine that cuDNN's heuristic names for the shape and that has no note against it: that
 * it adds in any order, sums in half, or rounds its operands.
 *
 * cuDNN's descriptors are made in this order, and kept until the plan is released:
 *
 *   three tensors, a convolution → operation → graph → engine, knobs → configuration → plan
 *
 * A descriptor can't be changed once it is finalized. One is made of a configuration that the
 * heuristic gave only to read its numbers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/library/conv_parts.h"

#define MADE_MAX    64
#define RESULTS_MAX 16
#define KNOBS_MAX   16
#define ALIGNMENT   16

_Static_assert(1 + 2 * KNOBS_MAX <= CHOICE_NUMBERS_MAX, "a choice holds an engine and its knobs");
_Static_assert(KNOBS_MAX + 16 <= MADE_MAX, "what a plan is made of is kept");

enum tensor_id { ID_X = 1, ID_WEIGHTS, ID_Y };

/* Making descriptors: the first error stays, and nothing is done after it. */
struct maker {
    cudnnStatus_t st;
    cudnnBackendDescriptor_t made[MADE_MAX];
    int count;
};

static cudnnBackendDescriptor_t make(struct maker *m, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (m->st == CUDNN_STATUS_SUCCESS && m->count == MADE_MAX)
        m->st = CUDNN_STATUS_NOT_SUPPORTED;
    if (m->st == CUDNN_STATUS_SUCCESS)
        m->st = cudnnBackendCreateDescriptor(type, &made);
    if (m->st == CUDNN_STATUS_SUCCESS)
        m->made[m->count++] = made;
    return m->st == CUDNN_STATUS_SUCCESS ? made : NULL;
}

static void set(struct maker *m, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (m->st == CUDNN_STATUS_SUCCESS)
        m->st = cudnnBackendSetAttribute(of, name, type, count, values);
}

static void set_one(struct maker *m, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                    cudnnBackendDescriptor_t value)
{
    set(m, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(struct maker *m, cudnnBackendDescriptor_t made)
{
    if (m->st == CUDNN_STATUS_SUCCESS)
        m->st = cudnnBackendFinalize(made);
}

/* Returns how many there are, which may be more than the `most` that come. */
static int64_t get(struct maker *m, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t most, void *values)
{
    int64_t count = 0;
    if (m->st == CUDNN_STATUS_SUCCESS)
        m->st = cudnnBackendGetAttribute(of, name, type, most, &count, values);
    return m->st == CUDNN_STATUS_SUCCESS ? count : 0;
}

/* Destroys what was made from `from` on, in turn. */
static void unmake(struct maker *m, int from)
{
    while (m->count > from)
        (void)cudnnBackendDestroyDescriptor(m->made[--m->count]);
}

/* --- what is to be computed ----------------------------------------------------------------- */

static cudnnBackendDescriptor_t make_tensor(struct maker *m, const struct cuda_conv_spec *spec,
                                            enum tensor_id id, const int64_t dims[4])
{
    const int64_t unique = id, alignment = ALIGNMENT;
    const int64_t c = dims[1], h = dims[2], w = dims[3];
    const int64_t planar[4] = { c * h * w, h * w, w, 1 }, inner[4] = { h * w * c, 1, w * c, c };
    const cudnnDataType_t type = cudnn_type(cuda_math_dtype(spec->math));
    cudnnBackendDescriptor_t made = make(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(m, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(m, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set(m, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, spec->planar ? planar : inner);
    set(m, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &unique);
    set(m, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    finalize(m, made);
    return made;
}

static cudnnBackendDescriptor_t make_convolution(struct maker *m, const struct cuda_conv_spec *spec)
{
    const int64_t dims = 2, pads[2] = { spec->pad, spec->pad };
    const int64_t strides[2] = { spec->stride, spec->stride }, ones[2] = { 1, 1 };
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t made = make(m, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(m, made, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    set(m, made, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    set(m, made, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(m, made, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    set(m, made, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    set(m, made, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    set(m, made, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    finalize(m, made);
    return made;
}

/* cuDNN's names of the operation of a direction, and of its parts. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t convolution, x, weights, y, alpha, beta;
    const char *name;
} directions[CUDA_CONV_DIRECTIONS] = {
    [CUDA_CONV_FORWARD] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, "forward" },
    [CUDA_CONV_DATA] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, "data" },
    [CUDA_CONV_WEIGHTS] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, "weights" },
};

static cudnnBackendDescriptor_t make_graph(struct maker *m, struct backend *backend,
                                           const struct cuda_conv_spec *spec)
{
    const int64_t x[4] = { spec->n, spec->c, spec->h, spec->w };
    const int64_t weights[4] = { spec->k, spec->c, spec->kernel, spec->kernel };
    const int64_t y[4] = { spec->n, spec->k, spec->p, spec->q };
    const float one = 1.0f, zero = 0.0f;
    cudnnBackendDescriptor_t tensors[3];
    tensors[0] = make_tensor(m, spec, ID_X, x);
    tensors[1] = make_tensor(m, spec, ID_WEIGHTS, weights);
    tensors[2] = make_tensor(m, spec, ID_Y, y);
    cudnnBackendDescriptor_t convolution = make_convolution(m, spec);
    cudnnBackendDescriptor_t operation = make(m, directions[spec->direction].type);
    set_one(m, operation, directions[spec->direction].convolution, convolution);
    set_one(m, operation, directions[spec->direction].x, tensors[0]);
    set_one(m, operation, directions[spec->direction].weights, tensors[1]);
    set_one(m, operation, directions[spec->direction].y, tensors[2]);
    set(m, operation, directions[spec->direction].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    set(m, operation, directions[spec->direction].beta, CUDNN_TYPE_FLOAT, 1, &zero);
    finalize(m, operation);
    cudnnBackendDescriptor_t graph = make(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(m, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &backend->cudnn);
    set_one(m, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    finalize(m, graph);
    return graph;
}

/* Whether an engine that can't be made is no matter of the engine: then another one, which computes
 * other bits, is no way out. What the driver refuses of an engine's code (5xxx) is the engine's
 * matter, unless the device is lost: then every call says so. */
static bool is_of_the_machine(cudnnStatus_t st)
{
    if (st < CUDNN_STATUS_EXECUTION_FAILED)
        return cuda_dnn_lacks_memory(st);
    (void)cudaGetLastError(); /* of the refusal, if it isn't sticky */
    return cudaDeviceSynchronize() != cudaSuccess;
}

static void key_print(char key[CHOICE_KEY_MAX], const struct cuda_conv_spec *spec)
{
    (void)snprintf(key, CHOICE_KEY_MAX, "conv %s %lld.%lld.%lld.%lld %lld.%d.%d.%d %s%s",
                   directions[spec->direction].name, (long long)spec->n, (long long)spec->c,
                   (long long)spec->h, (long long)spec->w, (long long)spec->k, spec->kernel,
                   spec->stride, spec->pad, cuda_math_name(spec->math),
                   spec->planar ? " nchw" : "");
}

/* --- who computes it ------------------------------------------------------------------------ */

/* Rules out engines whose bits depend on more than their operands, or that compute less precisely
 * than asked. */
static bool notes_allow(struct maker *m, cudnnBackendDescriptor_t engine, enum math math)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    const int64_t count = get(m, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                              CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    if (m->st != CUDNN_STATUS_SUCCESS || count > CUDNN_NUMERICAL_NOTE_TYPE_COUNT)
        return false;
    for (int64_t i = 0; i < count; i++) {
        const bool rounds = notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
                            notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
                            notes[i] == CUDNN_NUMERICAL_NOTE_FFT ||
                            notes[i] == CUDNN_NUMERICAL_NOTE_WINOGRAD;
        if (rounds || notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
            (math == MATH_F32 && notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
            return false;
    }
    return true;
}

static void read_knobs(struct maker *m, cudnnBackendDescriptor_t config, struct choice *out)
{
    cudnnBackendDescriptor_t knobs[KNOBS_MAX] = { NULL };
    for (int i = 0; i < KNOBS_MAX; i++)
        knobs[i] = make(m, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    const int64_t count = get(m, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, KNOBS_MAX, knobs);
    if (count > KNOBS_MAX)
        m->st = CUDNN_STATUS_NOT_SUPPORTED;
    for (int64_t i = 0; m->st == CUDNN_STATUS_SUCCESS && i < count; i++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        int64_t value = 0;
        (void)get(m, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
        (void)get(m, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
        out->numbers[out->count++] = (int64_t)type;
        out->numbers[out->count++] = value;
    }
}

/* The numbers of a configuration: its engine, then each knob's type and value. False: it can't be
 * used, or not be read, which is out_st where it is the machine's doing. */
static bool read_config(cudnnBackendDescriptor_t config, enum math math, struct choice *out,
                        cudnnStatus_t *out_st)
{
    struct maker m = { .st = CUDNN_STATUS_SUCCESS };
    int64_t index = 0;
    cudnnBackendDescriptor_t engine = make(&m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    (void)get(&m, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    (void)get(&m, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    bool good = notes_allow(&m, engine, math);
    out->count = 0;
    out->numbers[out->count++] = index;
    if (good)
        read_knobs(&m, config, out);
    good = good && m.st == CUDNN_STATUS_SUCCESS;
    if (is_of_the_machine(m.st))
        *out_st = m.st;
    unmake(&m, 0);
    return good;
}

/* Makes the plan that the numbers name; what it took is unmade where it can't be. m->st stays where
 * that is the machine's doing. */
static bool make_plan(struct maker *m, cudnnBackendDescriptor_t graph, struct backend *backend,
                      const struct choice *choice, int64_t *out_workspace)
{
    const int from = m->count;
    cudnnBackendDescriptor_t knobs[KNOBS_MAX];
    int64_t knob_count = 0, workspace = 0;
    if (m->st != CUDNN_STATUS_SUCCESS || choice->count % 2 != 1 ||
        choice->count > 1 + 2 * KNOBS_MAX)
        return false;
    cudnnBackendDescriptor_t engine = make(m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    set_one(m, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    set(m, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &choice->numbers[0]);
    finalize(m, engine);
    for (int i = 1; i + 1 < choice->count; i += 2) {
        const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)choice->numbers[i];
        cudnnBackendDescriptor_t knob = make(m, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        set(m, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
        set(m, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
            &choice->numbers[i + 1]);
        finalize(m, knob);
        knobs[knob_count++] = knob;
    }
    cudnnBackendDescriptor_t config = make(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    set_one(m, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    if (knob_count > 0) {
        set(m, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, knob_count,
            knobs);
    }
    finalize(m, config);
    cudnnBackendDescriptor_t plan = make(m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(m, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &backend->cudnn);
    set_one(m, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finalize(m, plan);
    (void)get(m, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
    if (m->st == CUDNN_STATUS_SUCCESS && workspace >= 0 && workspace <= CUDA_WORKSPACE_MAX) {
        *out_workspace = workspace;
        return true;
    }
    unmake(m, from);
    if (!is_of_the_machine(m->st))
        m->st = CUDNN_STATUS_SUCCESS; /* another one may do */
    return false;
}

/* Tries the configurations that the heuristic of a mode names, in its order, and takes the first
 * for which a plan can be made. m->st: as make_plan leaves it. */
static bool ask(struct maker *m, cudnnBackendDescriptor_t graph, struct backend *backend,
                enum math math, cudnnBackendHeurMode_t mode, struct choice *choice,
                int64_t *out_workspace)
{
    struct maker asked = { .st = CUDNN_STATUS_SUCCESS };
    cudnnBackendDescriptor_t results[RESULTS_MAX];
    cudnnBackendDescriptor_t heuristic = make(&asked, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_one(&asked, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(&asked, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(&asked, heuristic);
    for (int i = 0; i < RESULTS_MAX; i++)
        results[i] = make(&asked, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    const int64_t count = get(&asked, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, RESULTS_MAX, results);
    bool found = false;
    if (m->st == CUDNN_STATUS_SUCCESS && is_of_the_machine(asked.st))
        m->st = asked.st;
    for (int64_t i = 0; !found && i < count && i < RESULTS_MAX; i++) {
        found = m->st == CUDNN_STATUS_SUCCESS && read_config(results[i], math, choice, &m->st) &&
                make_plan(m, graph, backend, choice, out_workspace);
    }
    unmake(&asked, 0);
    return found;
}

/* An earlier choice, or the heuristic's. */
static enum status choose(struct maker *m, struct backend *backend,
                          const struct cuda_conv_spec *spec, cudnnBackendDescriptor_t graph,
                          int64_t *out_workspace)
{
    struct choice choice = { .count = 0 }, stored;
    key_print(choice.key, spec);
    const struct choice *made = choices_find(&backend->choices, choice.key);
    if (made != NULL && make_plan(m, graph, backend, made, out_workspace))
        return ST_OK;
    if (made == NULL && choices_stored(&backend->choices, choice.key, &stored) &&
        make_plan(m, graph, backend, &stored, out_workspace))
        return choices_add(&backend->choices, &stored);
    if (!ask(m, graph, backend, spec->math, CUDNN_HEUR_MODE_A, &choice, out_workspace) &&
        !ask(m, graph, backend, spec->math, CUDNN_HEUR_MODE_FALLBACK, &choice, out_workspace)) {
        enum status st = CUDA_DNN_STATUS(backend, m->st, "a convolution's plan");
        return st == ST_OK ? ST_NOT_FOUND : st;
    }
    return made != NULL ? ST_OK : choices_add(&backend->choices, &choice);
}

enum status conv_graph_init(struct backend *backend, const struct cuda_conv_spec *spec,
                            struct conv_graph *out)
{
    struct maker m = { .st = CUDNN_STATUS_SUCCESS };
    cudnnBackendDescriptor_t *made = NULL;
    int64_t workspace = 0;
    cudnnBackendDescriptor_t graph = make_graph(&m, backend, spec);
    enum status st = CUDA_DNN_STATUS(backend, m.st, "a convolution's graph");
    if (st == ST_OK)
        st = choose(&m, backend, spec, graph, &workspace);
    if (st == ST_OK) {
        made = calloc((size_t)m.count, sizeof(*made));
        st = made == NULL ? ST_NO_MEMORY : ST_OK;
    }
    if (st != ST_OK) {
        unmake(&m, 0);
        return st == ST_INVALID ? ST_NOT_FOUND : st;
    }
    memcpy(made, m.made, (size_t)m.count * sizeof(*made));
    *out = (struct conv_graph){ .plan = made[m.count - 1],
                                .made = made,
                                .made_count = m.count,
                                .workspace_bytes = (size_t)workspace };
    return ST_OK;
}

void conv_graph_release(struct conv_graph *graph)
{
    if (graph->pack != NULL)
        (void)cudnnBackendDestroyDescriptor(graph->pack);
    while (graph->made_count > 0)
        (void)cudnnBackendDestroyDescriptor(graph->made[--graph->made_count]);
    free(graph->made);
    *graph = (struct conv_graph){ .plan = NULL };
}

/* Packs the operands for cuDNN; those of the call before are used again if their addresses are the
 * same. */
static cudnnStatus_t pack_operands(struct conv_graph *graph,
                                   const struct cuda_conv_operands *operands)
{
    const int64_t ids[3] = { ID_X, ID_WEIGHTS, ID_Y };
    const void *const pointers[3] = { operands->x, operands->weights, operands->y };
    struct maker m = { .st = CUDNN_STATUS_SUCCESS };
    if (graph->pack != NULL && graph->packed.x == operands->x &&
        graph->packed.weights == operands->weights && graph->packed.y == operands->y &&
        graph->packed.workspace == operands->workspace)
        return m.st;
    cudnnBackendDescriptor_t pack = make(&m, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&m, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
    set(&m, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
    set(&m, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &operands->workspace);
    finalize(&m, pack);
    if (m.st != CUDNN_STATUS_SUCCESS) {
        unmake(&m, 0);
        return m.st;
    }
    if (graph->pack != NULL)
        (void)cudnnBackendDestroyDescriptor(graph->pack);
    graph->pack = pack;
    graph->packed = *operands;
    return m.st;
}

cudnnStatus_t conv_graph_run(const struct backend *backend, struct conv_graph *graph,
                             const struct cuda_conv_operands *operands)
{
    CHECK(!operands->adds);
    const cudnnStatus_t st = pack_operands(graph, operands);
    return st == CUDNN_STATUS_SUCCESS
               ? cudnnBackendExecute(backend->cudnn, graph->plan, graph->pack)
               : st;
}
