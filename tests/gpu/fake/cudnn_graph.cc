/*
 * cuDNN's graph interface, for convolutions: descriptors as bags of attributes, and engines that
 * differ in what is noted of them.
 *
 *   90   fastest, but adds in any order            (NONDETERMINISTIC)
 *   91   next, but rounds its operands to half     (DOWN_CONVERT_INPUTS)
 *   92   next, on tensor cores; of float32 that is TF32
 *   93   next, but can't be made for this device
 *    5   takes all; of its two knobs one says where the sum begins
 *
 * 92 and 5 compute. A descriptor that is finalized can't be changed, one that isn't can't be used.
 */
#include <cstring>
#include <cudnn.h>
#include <cudnn_backend.h>
#include <map>
#include <vector>

#include "tests/gpu/fake/convolve.h"
#include "tests/gpu/fake/cudnn_handle.h"
#include "tests/gpu/fake/fake_internal.h"

typedef std::lock_guard<std::recursive_mutex> held;

#define ENGINE_TENSOR_CORES 92
#define ENGINE_PLAIN        5
#define BACKWARDS           11 /* value of SWIZZLE: fake_favours() gives it */

struct attribute {
    cudnnBackendAttributeType_t type;
    std::vector<char> bytes;
    int64_t count;
};

struct fake_descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    std::map<int, struct attribute> attributes;
};

static struct fake_descriptor *of(cudnnBackendDescriptor_t descriptor)
{
    return static_cast<struct fake_descriptor *>(descriptor);
}

static cudnnStatus_t enter(const char *function)
{
    return (cudnnStatus_t)fake_fault(function);
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64:
        return sizeof(int64_t);
    case CUDNN_TYPE_FLOAT:
        return sizeof(float);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(int); /* enumerations */
    }
}

/* The first value of an attribute; nothing: 0. */
template <typename T> static T value(const struct fake_descriptor *d, int name, int64_t i = 0)
{
    T out = {};
    const auto at = d->attributes.find(name);
    if (at != d->attributes.end() && i < at->second.count)
        memcpy(&out, at->second.bytes.data() + (size_t)i * sizeof(T), sizeof(T));
    return out;
}

static int64_t count_of(const struct fake_descriptor *d, int name)
{
    const auto at = d->attributes.find(name);
    return at == d->attributes.end() ? 0 : at->second.count;
}

static const struct fake_descriptor *child(const struct fake_descriptor *d, int name, int64_t i = 0)
{
    return of(value<cudnnBackendDescriptor_t>(d, name, i));
}

static void put(struct fake_descriptor *d, int name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    const char *from = static_cast<const char *>(values);
    d->attributes[name] = { type, std::vector<char>(from, from + (size_t)count * size_of(type)),
                            count };
}

/* --- a convolution -------------------------------------------------------------------------- */

/* The names of an operation's parts, by its type. */
struct names {
    enum fake_direction direction;
    int convolution, x, w, y, alpha, beta;
};

static bool names_of(cudnnBackendDescriptorType_t type, struct names *out)
{
    if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
        *out = { FAKE_FORWARD,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA };
    } else if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
        *out = { FAKE_DATA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA };
    } else {
        *out = { FAKE_WEIGHTS,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA };
    }
    return type >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
           type <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
}

static struct fake_tensor tensor_of(const struct fake_descriptor *d)
{
    struct fake_tensor t = {};
    const int type = value<int>(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
    t.type = type == CUDNN_DATA_FLOAT ? CUDA_R_32F
                                      : (type == CUDNN_DATA_HALF ? CUDA_R_16F : CUDA_R_16BF);
    for (int i = 0; i < 4; i++) {
        t.dims[i] = value<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
        t.strides[i] = value<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES, i);
    }
    return t;
}

/* What a graph computes, without its operands. */
static struct fake_convolution convolution_of(const struct fake_descriptor *graph,
                                              struct names *names)
{
    const struct fake_descriptor *operation = child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct fake_convolution c = {};
    (void)names_of(operation->type, names);
    const struct fake_descriptor *convolution = child(operation, names->convolution);
    c.direction = names->direction;
    c.x = tensor_of(child(operation, names->x));
    c.w = tensor_of(child(operation, names->w));
    c.y = tensor_of(child(operation, names->y));
    c.alpha = value<float>(operation, names->alpha);
    c.beta = value<float>(operation, names->beta);
    for (int i = 0; i < 2; i++) {
        c.pad[i] = value<int64_t>(convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i);
        c.stride[i] = value<int64_t>(convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i);
    }
    return c;
}

/* --- engines -------------------------------------------------------------------------------- */

static struct fake_descriptor *make(cudnnBackendDescriptorType_t type)
{
    struct fake_descriptor *made = new fake_descriptor();
    made->type = type;
    fake_object(1);
    return made;
}

static void notes_of(struct fake_descriptor *engine)
{
    static const std::map<int64_t, int> notes = { { 90, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC },
                                                  { 91, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS },
                                                  { 92, CUDNN_NUMERICAL_NOTE_TENSOR_CORE } };
    const auto at = notes.find(value<int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
    if (at != notes.end())
        put(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 1, &at->second);
}

/* A result of the heuristic: its parts are its own, and are copied to who asks. */
struct named {
    int64_t engine;
    std::vector<std::pair<int, int64_t>> knobs;
};

static std::vector<struct named> heuristic_of(const struct fake_descriptor *d)
{
    struct names names;
    const struct fake_convolution c =
        convolution_of(child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH), &names);
    if (fake_convolution_check(c) != FAKE_TAKEN ||
        value<int>(d, CUDNN_ATTR_ENGINEHEUR_MODE) != CUDNN_HEUR_MODE_A)
        return {};
    const std::vector<std::pair<int, int64_t>> knobs = {
        { CUDNN_KNOB_TYPE_TILE_SIZE, 3 }, { CUDNN_KNOB_TYPE_SWIZZLE, fake_favours() }
    };
    return { { 90, {} }, { 91, {} }, { 92, {} }, { 93, knobs }, { ENGINE_PLAIN, knobs } };
}

/* Fills in a descriptor that the caller made. */
static void fill_config(struct fake_descriptor *config, const struct named &named,
                        const cudnnBackendDescriptor_t graph)
{
    config->attributes.clear();
    put(config, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &named.engine);
    put(config, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    std::vector<int64_t> flat;
    for (const auto &knob : named.knobs) {
        flat.push_back(knob.first);
        flat.push_back(knob.second);
    }
    put(config, CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO, CUDNN_TYPE_INT64, (int64_t)flat.size(),
        flat.data());
    config->final = true;
}

/* --- reading what the library made ---------------------------------------------------------- */

static int64_t get_results(const struct fake_descriptor *d, int64_t most, void *out)
{
    const std::vector<struct named> results = heuristic_of(d);
    cudnnBackendDescriptor_t *into = static_cast<cudnnBackendDescriptor_t *>(out);
    for (int64_t i = 0; i < most && i < (int64_t)results.size(); i++)
        fill_config(of(into[i]), results[(size_t)i],
                    value<cudnnBackendDescriptor_t>(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    return (int64_t)results.size();
}

static int64_t get_engine(const struct fake_descriptor *config, void *out)
{
    struct fake_descriptor *engine = of(*static_cast<cudnnBackendDescriptor_t *>(out));
    const int64_t index = value<int64_t>(config, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    put(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    notes_of(engine);
    engine->final = true;
    return 1;
}

static int64_t get_knobs(const struct fake_descriptor *config, int64_t most, void *out)
{
    const int64_t count = count_of(config, CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO) / 2;
    cudnnBackendDescriptor_t *into = static_cast<cudnnBackendDescriptor_t *>(out);
    for (int64_t i = 0; i < count && i < most; i++) {
        const int type = (int)value<int64_t>(config, CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO, 2 * i);
        const int64_t at =
            value<int64_t>(config, CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO, 2 * i + 1);
        put(of(into[i]), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
        put(of(into[i]), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &at);
        of(into[i])->final = true;
    }
    return count;
}

/* --- the interface -------------------------------------------------------------------------- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter("cudnnBackendCreateDescriptor");
    if (st == CUDNN_STATUS_SUCCESS)
        *out = make(type);
    return st;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    const held lock(fake_lock());
    delete of(descriptor);
    fake_object(-1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter("cudnnBackendSetAttribute");
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    if (of(descriptor)->final || count < 1)
        return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        if (!of(static_cast<const cudnnBackendDescriptor_t *>(values)[i])->final)
            return CUDNN_STATUS_BAD_PARAM;
    }
    put(of(descriptor), name, type, count, values);
    return st;
}

/* An engine's index and knobs are this library's, and a plan is made where it can be. */
static cudnnStatus_t check_final(const struct fake_descriptor *d)
{
    if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
        const int64_t index = value<int64_t>(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
        return index == ENGINE_PLAIN || (index >= 90 && index <= 93) ? CUDNN_STATUS_SUCCESS
                                                                     : CUDNN_STATUS_NOT_SUPPORTED;
    }
    if (d->type == CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR) {
        const int type = value<int>(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
        return type == CUDNN_KNOB_TYPE_TILE_SIZE || type == CUDNN_KNOB_TYPE_SWIZZLE
                   ? CUDNN_STATUS_SUCCESS
                   : CUDNN_STATUS_NOT_SUPPORTED;
    }
    if (d->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        return CUDNN_STATUS_SUCCESS;
    const struct fake_descriptor *config = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const struct fake_descriptor *engine = child(config, CUDNN_ATTR_ENGINECFG_ENGINE);
    return value<int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == 93 ? CUDNN_STATUS_NOT_SUPPORTED
                                                                        : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    const held lock(fake_lock());
    cudnnStatus_t st = enter("cudnnBackendFinalize");
    if (st == CUDNN_STATUS_SUCCESS)
        st = of(descriptor)->final ? CUDNN_STATUS_BAD_PARAM : check_final(of(descriptor));
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    of(descriptor)->final = true;
    if (of(descriptor)->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const int64_t workspace = FAKE_CONVOLUTION_WORKSPACE;
        put(of(descriptor), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
            &workspace);
    }
    return st;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *out_count, void *out)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter("cudnnBackendGetAttribute");
    const struct fake_descriptor *d = of(descriptor);
    if (st != CUDNN_STATUS_SUCCESS || !d->final)
        return st == CUDNN_STATUS_SUCCESS ? CUDNN_STATUS_BAD_PARAM : st;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        *out_count = get_results(d, most, out);
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        *out_count = get_engine(d, out);
    } else if (name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES) {
        *out_count = get_knobs(d, most, out);
    } else {
        const auto at = d->attributes.find(name);
        *out_count = at == d->attributes.end() ? 0 : at->second.count;
        if (*out_count > 0 && at->second.type != type)
            return CUDNN_STATUS_BAD_PARAM;
        const int64_t given = *out_count < most ? *out_count : most;
        if (given > 0)
            memcpy(out, at->second.bytes.data(), (size_t)given * size_of(type));
    }
    return st;
}

/* The pointer of a tensor, by its unique number. */
static const void *pointer_of(const struct fake_descriptor *pack,
                              const struct fake_descriptor *tensor)
{
    const int64_t id = value<int64_t>(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    for (int64_t i = 0; i < count_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS); i++) {
        if (value<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i) == id)
            return value<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
    }
    return nullptr;
}

static bool is_backwards(const struct fake_descriptor *config)
{
    for (int64_t i = 0; i < count_of(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES); i++) {
        const struct fake_descriptor *knob = child(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, i);
        if (value<int>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) == CUDNN_KNOB_TYPE_SWIZZLE &&
            value<int64_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) == BACKWARDS)
            return true;
    }
    return false;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter("cudnnBackendExecute");
    const struct fake_descriptor *pack = of(variant_pack);
    if (st != CUDNN_STATUS_SUCCESS || !of(plan)->final || !pack->final)
        return st == CUDNN_STATUS_SUCCESS ? CUDNN_STATUS_BAD_PARAM : st;
    const struct fake_descriptor *config = child(of(plan), CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const struct fake_descriptor *engine = child(config, CUDNN_ATTR_ENGINECFG_ENGINE);
    const struct fake_descriptor *graph = child(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    const struct fake_descriptor *operation = child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const int64_t index = value<int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    struct names names;
    struct fake_convolution c = convolution_of(graph, &names);
    if (index != ENGINE_PLAIN && index != ENGINE_TENSOR_CORES)
        return CUDNN_STATUS_EXECUTION_FAILED; /* nobody should have taken it */
    c.tf32 = index == ENGINE_TENSOR_CORES;
    c.backwards = is_backwards(config);
    c.x_at = pointer_of(pack, child(operation, names.x));
    c.w_at = pointer_of(pack, child(operation, names.w));
    c.y_at = pointer_of(pack, child(operation, names.y));
    for (const void *at : { c.x_at, c.w_at, c.y_at }) {
        if ((uintptr_t)at % 16 != 0)
            return CUDNN_STATUS_BAD_PARAM;
    }
    c.workspace = value<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    return fake_convolve(c, FAKE_CONVOLUTION_WORKSPACE, handle->stream) == FAKE_TAKEN
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}
