/*
 * A model of one's own as a shared library: a function in C that says which nodes it has
 * (docs/model.md). A job names it by `model.library`.
 *
 *     #include <cairn/model.h>
 *
 *     int cairn_model_make(struct cairn_model *model, const struct cairn_sample *sample)
 *     {
 *         cairn_add(model, (struct cairn_node){ .op = "flatten" });
 *         cairn_add(model,
 *                   (struct cairn_node){ .op = "linear", .name = "fc", .out = sample->classes });
 *         return 0;
 *     }
 *
 *     cc -shared -fPIC $(pkg-config --cflags cairn) -o model.so model.c
 *
 * The nodes are those of a job file's `model.graph`, with the same keys and checks: a mistake is
 * told with the node's name. The function runs in a process of its own, before training and in
 * every worker, and trains nothing itself. The same library has to make the same nodes wherever it
 * runs: no clock, no random numbers, no environment. Its hash, and that of the nodes, are recorded
 * when a job begins to train; a worker with others is refused.
 *
 * The library links nothing of Cairn: calls go through a table that the function is given.
 *
 * Memory: texts are copied by the calls.
 * Thread: that which called cairn_model_make.
 */
#ifndef CAIRN_MODEL_H
#define CAIRN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CAIRN_MODEL_API  __attribute__((visibility("default")))
#define CAIRN_MODEL_WEAK __attribute__((visibility("default"), weak, used))
#else
#define CAIRN_MODEL_API
#define CAIRN_MODEL_WEAK
#endif

/* Rises when a library that was built before can't be read any more. */
#define CAIRN_MODEL_VERSION 1

/* The version with which a library was built: Cairn reads it before it calls anything. */
#ifdef __cplusplus
extern "C"
#endif
    CAIRN_MODEL_WEAK const uint32_t cairn_model_version = CAIRN_MODEL_VERSION;

#ifdef __cplusplus
extern "C" {
#endif

/* What the model reads and tells apart, as the job says. */
struct cairn_sample {
    int is_tokens;                   /* 0: images */
    int64_t channels, height, width; /* of an image */
    int64_t classes;                 /* of images: the least that the last node makes */
    int64_t context;                 /* of tokens: how many a sample has */
    int64_t vocab;                   /* of tokens: each is below it */
};

/* In place of a node: the model's input. */
#define CAIRN_INPUT (-1)

/* A node. What is zero counts as left out; members that an op has no use for have to be zero. */
struct cairn_node {
    const char *op;   /* "linear", "conv2d", … */
    const char *name; /* of its parameters; NULL: a node without */
    int from;         /* a node, or CAIRN_INPUT; 0: the node before */
    int residual;     /* a node whose value is added; 0: none */
    int tied;         /* linear: a node whose weight it has; 0: none */
    int64_t out;      /* channels or features */
    int64_t kernel;   /* conv2d, max_pool */
    int64_t stride;   /* 0: 1, of max_pool the kernel */
    int64_t pad;
    int64_t rows;           /* embedding */
    int64_t heads;          /* attention */
    int no_bias;            /* conv2d, linear */
    int relu;               /* batch_norm */
    const char *activation; /* linear: "relu", "gelu", "gelu_erf"; NULL: none */
    const char *position;   /* embedding: name of its table of positions; NULL: none */
    double std;             /* of the initial weights; 0: the op's default */
    double p;               /* dropout */
    double eps;             /* layer_norm, rms_norm; 0: 1e-5 */
    int64_t kv_heads;       /* rotary; 0: as many as heads */
    double rope_theta;      /* rotary; 0: 10000 */
    int bidirectional;      /* attention: each token sees all */
    int64_t row;            /* select */
};

struct cairn_model;

/* What Cairn offers; later versions add to its end. */
struct cairn_model_calls {
    int (*node)(struct cairn_model *model, const struct cairn_node *node, size_t size);
    void (*refuse)(struct cairn_model *model, const char *why);
};

/* A model that is being made. All but this member is Cairn's. */
struct cairn_model {
    const struct cairn_model_calls *calls;
};

/* Appends a node. Returns it, a number above 0, for `from`, `residual` and `tied` of later ones;
 * -1 after a mistake, which is told when the function has returned. */
static inline int cairn_add(struct cairn_model *model, struct cairn_node node)
{
    return model->calls->node(model, &node, sizeof(node));
}

/* Refuses to make a model, in words for the person whose job it is; returns what the function may
 * return then. */
static inline int cairn_refuse(struct cairn_model *model, const char *why)
{
    model->calls->refuse(model, why);
    return 1;
}

/* What a library defines: appends the nodes of a model, and returns 0. With another number the job
 * is refused. */
CAIRN_MODEL_API int cairn_model_make(struct cairn_model *model, const struct cairn_sample *sample);

#ifdef __cplusplus
}
#endif

#endif
