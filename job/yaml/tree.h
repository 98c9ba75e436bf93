/*
 * A job file as a tree of our own: what was written and where. Made from YAML by libfyaml's events
 * (read_yaml.c, the only file that knows libfyaml); --set then replaces parts of it.
 *
 * Memory: all nodes belong to the tree; tree_release frees them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"
#include "job/yaml/report.h"

#define TREE_NODES_MAX 8192
#define TREE_DEPTH_MAX 16

enum node_kind {
    NODE_ABSENT, /* `key:` with nothing after it, null, ~ */
    NODE_SCALAR,
    NODE_LIST,
    NODE_MAP,
};

struct node {
    enum node_kind kind;
    struct job_place place;
    char *key; /* member of a map: its key; else NULL */
    struct job_place key_place;
    char *text; /* scalar */
    struct node *first, *last, *next;
};

struct tree {
    struct node *nodes; /* TREE_NODES_MAX of them */
    size_t count;
    struct node *root;
    bool whole; /* false: what isn't there may have been meant: after a syntax error, an alias */
};

MUST_CHECK enum status tree_init(struct tree *tree);
void tree_release(struct tree *tree);

/* NULL: the tree is full or memory ran out. */
struct node *tree_add(struct tree *tree, enum node_kind kind, struct job_place place);
/* Last child of a list or map. */
void node_append(struct node *parent, struct node *child);
struct node *node_find(const struct node *map, const char *key);

/*
 * Reads the bytes [from, size) of a source as one YAML document. Syntax errors, aliases, anchors,
 * tags, keys that are no plain text and bytes that are not UTF-8 text go to the report.
 * *out_root is NULL when there is no document.
 * Errors: ST_CONFIG  a mistake was reported; the tree holds what was read before it
 */
MUST_CHECK enum status tree_read_yaml(struct tree *tree, uint32_t source, size_t from,
                                      struct job_report *report, struct node **out_root);

/* Applies source `source`, "key.key=value", to the tree. Errors: as tree_read_yaml. */
MUST_CHECK enum status tree_set(struct tree *tree, uint32_t source, struct job_report *report);
