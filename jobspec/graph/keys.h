/*
 * The keys of a graph's nodes: where each lies in a node, and what it may be. Only for
 * jobspec/graph.
 */
#pragma once

#include "jobspec/graph/graph.h"

enum graph_kind {
    GRAPH_KIND_NAME,  /* char[GRAPH_NAME_BYTES] */
    GRAPH_KIND_OP,    /* enum graph_op */
    GRAPH_KIND_NODE,  /* int32_t: a node that comes before */
    GRAPH_KIND_WHOLE, /* int64_t */
    GRAPH_KIND_REAL,  /* double */
    GRAPH_KIND_BOOL,  /* bool */
    GRAPH_KIND_WORD,  /* enum graph_activation */
};

struct graph_key_row {
    const char *name;
    enum graph_kind kind;
    size_t offset; /* in struct jobspec_node */
    double low, high;
    bool open; /* low and high themselves are out of range */
    const char *example;
};

/* key: below GRAPH_KEY_COUNT. */
const struct graph_key_row *graph_key_row(enum graph_key key);
/* The keys that a node of an op must have, and all that it may have: bits GRAPH_HAS. */
unsigned graph_keys_needed(enum graph_op op);
unsigned graph_keys_allowed(enum graph_op op);

/* Returns the op of a name, GRAPH_OP_NONE if there is none. */
enum graph_op graph_op_find(const char *name);
/* Returns the word of an activation; NULL behind the last one. */
const char *graph_activation_word(unsigned activation);
