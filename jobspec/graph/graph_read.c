#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/limits.h"
#include "jobspec/graph/keys.h"
#include "jobspec/text/number.h"
#include "jobspec/text/suggest.h"

#define EMBEDDING_STD 0.02 /* GPT-2's */
#define NORM_EPS      1e-5 /* PyTorch's */
#define ROPE_THETA    1e4  /* Llama's */

/* A list of nodes while it is read. */
struct reading {
    struct jobspec_report *report;
    const char *what;
    const struct tree_node *list;
    struct jobspec_graph *graph;
    struct jobspec_node *node; /* that is read now */
    int32_t number;
    bool good;
};

static void mistake(struct reading *r, struct jobspec_place place, const char *way_out,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

static void mistake(struct reading *r, struct jobspec_place place, const char *way_out,
                    const char *format, ...)
{
    char cause[LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(cause, sizeof(cause), format, args);
    va_end(args);
    jobspec_report_add(r->report, place, way_out, "%s", cause);
    r->good = false;
}

/* ---- words of others ---- */

static const struct {
    const char *word, *meant;
} synonyms[] = {
    /* keys */
    { "padding", "pad" },
    { "kernel_size", "kernel" },
    { "out_channels", "out" },
    { "out_features", "out" },
    { "channels", "out" },
    { "features", "out" },
    { "units", "out" },
    { "width", "out" },
    { "type", "op" },
    { "input", "from" },
    { "inputs", "from" },
    { "num_embeddings", "rows" },
    { "vocab", "rows" },
    { "num_heads", "heads" },
    { "n_head", "heads" },
    { "dropout", "p" },
    { "prob", "p" },
    { "weight", "tied" },
    { "skip", "residual" },
    { "add", "residual" },
    { "act", "activation" },
    /* ops */
    { "conv", "conv2d" },
    { "convolution", "conv2d" },
    { "bn", "batch_norm" },
    { "batchnorm", "batch_norm" },
    { "batchnorm2d", "batch_norm" },
    { "layernorm", "layer_norm" },
    { "maxpool", "max_pool" },
    { "maxpool2d", "max_pool" },
    { "avg_pool", "global_avg_pool" },
    { "adaptive_avg_pool", "global_avg_pool" },
    { "dense", "linear" },
    { "fc", "linear" },
    { "gemm", "linear" },
    { "embed", "embedding" },
    { "self_attention", "attention" },
    { "sdpa", "attention" },
    /* activations */
    { "gelu_tanh", "gelu" },
    { "gelu_new", "gelu" },
};

/* A list of words, in which one is looked for and shown. */
struct word_list {
    const char *(*word)(const struct reading *r, size_t i); /* NULL: no more */
    const char *kind;                                       /* "ops" */
};

/* Writes "did you mean 'X'?", or else all words. */
static void suggest(const struct reading *r, const struct word_list *words, const char *text,
                    char out[LIMIT_REASON])
{
    size_t best = suggest_limit(text) + 1, used = 0;
    const char *meant = NULL, *word;
    for (size_t i = 0; (word = words->word(r, i)) != NULL; i++) {
        const size_t distance = suggest_distance(text, word);
        if (distance < best && distance < strlen(word)) {
            best = distance;
            meant = word;
        }
        for (size_t s = 0; best > 0 && s < sizeof(synonyms) / sizeof(synonyms[0]); s++) {
            if (strcmp(synonyms[s].word, text) == 0 && strcmp(synonyms[s].meant, word) == 0) {
                best = 0;
                meant = word;
            }
        }
    }
    if (meant != NULL) {
        (void)snprintf(out, LIMIT_REASON, "did you mean '%s'?", meant);
        return;
    }
    used = (size_t)snprintf(out, LIMIT_REASON, "%s: ", words->kind);
    for (size_t i = 0; (word = words->word(r, i)) != NULL && used < LIMIT_REASON - 64; i++)
        used += (size_t)snprintf(out + used, LIMIT_REASON - used, "%s%s", i > 0 ? ", " : "", word);
}

static const char *op_at(const struct reading *r, size_t i)
{
    (void)r;
    return i + 1 < GRAPH_OP_COUNT ? graph_op_name((enum graph_op)(i + 1)) : NULL;
}

static const char *activation_at(const struct reading *r, size_t i)
{
    (void)r;
    return graph_activation_word((unsigned)i);
}

/* The i-th key of the node's op. */
static const char *key_at(const struct reading *r, size_t i)
{
    const unsigned allowed = graph_keys_allowed(r->node->op);
    for (unsigned key = 0; key < GRAPH_KEY_COUNT; key++) {
        if ((allowed & (1u << key)) != 0 && i-- == 0)
            return graph_key_row((enum graph_key)key)->name;
    }
    return NULL;
}

/* The i-th of the names that the node can read. */
static const char *name_at(const struct reading *r, size_t i)
{
    for (int32_t n = 0; n < r->number; n++) {
        if (r->graph->nodes[n].name[0] != '\0' && i-- == 0)
            return r->graph->nodes[n].name;
    }
    return i == 0 ? GRAPH_INPUT_NAME : NULL;
}

static const struct word_list of_ops = { op_at, "ops" };
static const struct word_list of_activations = { activation_at, "one of" };
static const struct word_list of_keys = { key_at, "its keys" };
static const struct word_list of_names = { name_at, "nodes above it" };

/* ---- names ---- */

static bool is_name(const char *text)
{
    const size_t size = strlen(text);
    bool good = size > 0 && size < GRAPH_NAME_BYTES && isalnum((unsigned char)text[0]);
    for (size_t i = 0; i < size; i++)
        good = good && (isalnum((unsigned char)text[i]) || strchr("-_.", text[i]) != NULL);
    return good;
}

static bool is_taken(const struct reading *r, const char *name)
{
    bool taken = strcmp(name, GRAPH_INPUT_NAME) == 0 || strcmp(name, r->node->name) == 0;
    for (int32_t n = 0; n < r->number; n++) {
        const struct jobspec_node *node = &r->graph->nodes[n];
        taken = taken || strcmp(node->name, name) == 0 || strcmp(node->position, name) == 0;
    }
    return taken;
}

static void read_name(struct reading *r, const struct tree_node *value, char *out)
{
    if (!is_name(value->text)) {
        mistake(r, value->place,
                "letters, digits, '-', '_' and '.', at most 47, a letter or digit first",
                "a node can't have the name '%.100s'", value->text);
    } else if (is_taken(r, value->text)) {
        mistake(r, value->place, "give each node a name of its own",
                "the name '%s' is taken already", value->text);
    } else {
        (void)snprintf(out, GRAPH_NAME_BYTES, "%s", value->text);
    }
}

/* True if a node below the one that is read has this name. */
static bool is_below(const struct reading *r, const char *name)
{
    int32_t number = 0;
    for (const struct tree_node *item = r->list->first; item != NULL; item = item->next) {
        const struct tree_node *at = item->kind == TREE_MAP ? tree_find(item, "name") : NULL;
        if (number++ >= r->number && at != NULL && at->kind == TREE_SCALAR &&
            strcmp(at->text, name) == 0)
            return true;
    }
    return false;
}

static void read_node(struct reading *r, const struct graph_key_row *row,
                      const struct tree_node *value, int32_t *out)
{
    char way_out[LIMIT_REASON];
    const bool is_from = row->offset == offsetof(struct jobspec_node, from);
    if (strcmp(value->text, GRAPH_INPUT_NAME) == 0) {
        if (is_from) {
            *out = GRAPH_INPUT;
            return;
        }
        mistake(r, value->place, "name a node", "%s can't be the model's input", row->name);
        return;
    }
    for (int32_t n = 0; n < r->number; n++) {
        if (strcmp(r->graph->nodes[n].name, value->text) == 0 && value->text[0] != '\0') {
            *out = n;
            return;
        }
    }
    if (is_below(r, value->text)) {
        mistake(r, value->place, "write that node above this one",
                "%s: '%.100s' is not there yet: a node reads nodes above it", row->name,
                value->text);
        return;
    }
    suggest(r, &of_names, value->text, way_out);
    mistake(r, value->place, way_out, "%s: there is no node '%.100s'", row->name, value->text);
}

/* ---- numbers and words ---- */

static void refuse_number(struct reading *r, const struct graph_key_row *row,
                          const struct tree_node *value)
{
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "write a %snumber %s %.16g %s %.16g",
                   row->kind == GRAPH_KIND_WHOLE ? "whole " : "", row->open ? "above" : "from",
                   row->low, row->open ? "to below" : "to", row->high);
    mistake(r, value->place, way_out, "%s can't be '%.100s'", row->name, value->text);
}

static void read_number(struct reading *r, const struct graph_key_row *row,
                        const struct tree_node *value, void *out)
{
    double real = 0;
    char *end = NULL;
    if (row->kind == GRAPH_KIND_WHOLE) {
        if (!number_whole(value->text, row->low, row->high, out))
            refuse_number(r, row, value);
        return;
    }
    if (!number_real(value->text, &end, &real) || *end != '\0' || !(real > row->low) ||
        !(real < row->high)) {
        refuse_number(r, row, value);
    } else {
        *(double *)out = real;
    }
}

static void read_word(struct reading *r, const struct tree_node *value)
{
    char way_out[LIMIT_REASON];
    for (unsigned i = 0; graph_activation_word(i) != NULL; i++) {
        if (strcmp(graph_activation_word(i), value->text) == 0) {
            r->node->activation = (enum graph_activation)i;
            return;
        }
    }
    suggest(r, &of_activations, value->text, way_out);
    mistake(r, value->place, way_out, "activation can't be '%.100s'", value->text);
}

static void read_bool(struct reading *r, const struct graph_key_row *row,
                      const struct tree_node *value, bool *out)
{
    *out = strcmp(value->text, "true") == 0;
    if (!*out && strcmp(value->text, "false") != 0) {
        mistake(r, value->place, "write true or false", "%s must be true or false; it is '%.100s'",
                row->name, value->text);
    }
}

static void read_value(struct reading *r, const struct graph_key_row *row,
                       const struct tree_node *value)
{
    void *at = (char *)r->node + row->offset;
    if (value->kind != TREE_SCALAR) {
        mistake(r, value->kind == TREE_ABSENT ? value->key_place : value->place, "write one value",
                "%s must be a single value", row->name);
        return;
    }
    switch (row->kind) {
    case GRAPH_KIND_NAME:
        read_name(r, value, at);
        break;
    case GRAPH_KIND_OP: /* it was read first */
        break;
    case GRAPH_KIND_NODE:
        read_node(r, row, value, at);
        break;
    case GRAPH_KIND_WHOLE:
    case GRAPH_KIND_REAL:
        read_number(r, row, value, at);
        break;
    case GRAPH_KIND_BOOL:
        read_bool(r, row, value, at);
        break;
    case GRAPH_KIND_WORD:
        read_word(r, value);
        break;
    }
}

/* ---- a node ---- */

/* The key of a name; GRAPH_KEY_COUNT: none. */
static enum graph_key find_key(const char *name)
{
    unsigned key = 0;
    while (key < GRAPH_KEY_COUNT && strcmp(graph_key_row((enum graph_key)key)->name, name) != 0)
        key++;
    return (enum graph_key)key;
}

static void read_key(struct reading *r, const struct tree_node *value)
{
    const enum graph_key key = find_key(value->key);
    const unsigned allowed = graph_keys_allowed(r->node->op);
    char way_out[LIMIT_REASON];
    if (key < GRAPH_KEY_COUNT && (allowed & (1u << key)) != 0) {
        read_value(r, graph_key_row(key), value);
    } else if (key < GRAPH_KEY_COUNT) {
        mistake(r, value->key_place, "remove this key", "'%s' is not for op: %s", value->key,
                graph_op_name(r->node->op));
    } else {
        suggest(r, &of_keys, value->key, way_out);
        mistake(r, value->key_place, way_out, "unknown key '%.100s' of a node with op: %s",
                value->key, graph_op_name(r->node->op));
    }
}

static bool read_op(struct reading *r, const struct tree_node *item)
{
    const struct tree_node *value = tree_find(item, "op");
    char way_out[LIMIT_REASON];
    if (value == NULL || value->kind == TREE_ABSENT) {
        suggest(r, &of_ops, "", way_out);
        mistake(r, item->place, way_out, "the node says no op");
        return false;
    }
    const char *text = value->kind == TREE_SCALAR ? value->text : "";
    r->node->op = graph_op_find(text);
    if (r->node->op != GRAPH_OP_NONE)
        return true;
    suggest(r, &of_ops, text, way_out);
    mistake(r, value->place, way_out, "there is no op '%.100s'", text);
    return false;
}

static void check_needed(struct reading *r, const struct tree_node *item)
{
    const unsigned needed = graph_keys_needed(r->node->op);
    for (unsigned key = 0; key < GRAPH_KEY_COUNT; key++) {
        const struct graph_key_row *row = graph_key_row((enum graph_key)key);
        char way_out[LIMIT_REASON];
        if ((needed & (1u << key)) == 0 || tree_find(item, row->name) != NULL)
            continue;
        (void)snprintf(way_out, sizeof(way_out), "add for example '%s'", row->example);
        mistake(r, item->place, way_out, "the node lacks '%s', which op: %s needs", row->name,
                graph_op_name(r->node->op));
    }
}

/* Fills in what other keys say, and checks what doesn't go together. */
static void resolve(struct reading *r, const struct tree_node *item)
{
    struct jobspec_node *node = r->node;
    if (node->stride == 0 && (graph_keys_allowed(node->op) & GRAPH_HAS(STRIDE)) != 0)
        node->stride = node->op == GRAPH_OP_MAX_POOL ? node->kernel : 1;
    if ((node->op == GRAPH_OP_EMBEDDING || node->op == GRAPH_OP_SEQUENCE) && node->std == 0)
        node->std = EMBEDDING_STD;
    if (node->eps == 0 && (graph_keys_allowed(node->op) & GRAPH_HAS(EPS)) != 0)
        node->eps = NORM_EPS;
    if (node->op == GRAPH_OP_ROTARY) {
        node->kv_heads = node->kv_heads == 0 ? node->heads : node->kv_heads;
        node->rope_theta = node->rope_theta == 0 ? ROPE_THETA : node->rope_theta;
    }
    if (node->residual != GRAPH_NONE && node->activation != GRAPH_ACTIVATION_NONE) {
        mistake(r, tree_find(item, "residual")->key_place,
                "remove one of the two, or put the residual into a node of its own",
                "an activation doesn't go together with a residual, which is added behind it");
    }
    if (node->residual != GRAPH_NONE && node->residual == node->from) {
        mistake(r, tree_find(item, "residual")->place, "name another node",
                "the residual is what the node reads already");
    }
    if (node->tied != GRAPH_NONE && node->std > 0) {
        mistake(r, tree_find(item, "std")->key_place, "remove this key",
                "the weight is that of '%s', which has its own initial values",
                r->graph->nodes[node->tied].name);
    }
}

static void read_item(struct reading *r, const struct tree_node *item)
{
    if (item->kind != TREE_MAP) {
        mistake(r, item->place, "write it as in {name: fc1, op: linear, out: 10}",
                "%s is a list of nodes, each with keys of its own", r->what);
        return;
    }
    r->node->from = r->number - 1;
    r->node->residual = r->node->tied = GRAPH_NONE;
    if (!read_op(r, item)) {
        const struct tree_node *name = tree_find(item, "name");
        if (name != NULL && name->kind == TREE_SCALAR)
            read_name(r, name, r->node->name); /* others may read it */
        return;
    }
    r->node->bias = (graph_keys_allowed(r->node->op) & GRAPH_HAS(BIAS)) != 0;
    for (const struct tree_node *value = item->first; value != NULL; value = value->next)
        read_key(r, value);
    check_needed(r, item);
    resolve(r, item);
}

bool graph_read(struct jobspec_report *report, const char *what, const struct tree_node *list,
                struct jobspec_graph *out)
{
    struct reading r = { .report = report, .what = what, .list = list, .graph = out, .good = true };
    if (list->kind != TREE_LIST || list->first == NULL) {
        mistake(&r, list->kind == TREE_ABSENT ? list->key_place : list->place,
                "write it as in docs/model.md, '- {name: fc1, op: linear, out: 10}'",
                "%s is a list of nodes", what);
        return false;
    }
    for (const struct tree_node *item = list->first; item != NULL; item = item->next) {
        if (out->count == GRAPH_NODES_MAX) {
            mistake(&r, item->place, "use fewer nodes", "%s has more than %d nodes", what,
                    GRAPH_NODES_MAX);
            break;
        }
        r.number = (int32_t)out->count;
        r.node = &out->nodes[out->count++];
        read_item(&r, item);
    }
    return r.good;
}
