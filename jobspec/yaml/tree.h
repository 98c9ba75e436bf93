/*
 * A file of keys and values (job files, webhooks.yaml) as a tree: what was written, and where.
 * read_yaml.c makes it from libfyaml's events (no other file knows libfyaml); each --set then
 * replaces a part of it, or takes one away (tree_set.c).
 *
 * Memory: all nodes belong to the tree; tree_release frees them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"
#include "jobspec/yaml/report.h"

#define TREE_NODES_MAX 8192
#define TREE_DEPTH_MAX 16

enum tree_kind {
    TREE_ABSENT, /* `key:` with nothing after it, null, ~ */
    TREE_SCALAR,
    TREE_LIST,
    TREE_MAP,
};

struct tree_node {
    enum tree_kind kind;
    struct jobspec_place place;
    char *key; /* member of a map: its key; else NULL */
    struct jobspec_place key_place;
    char *text; /* scalar */
    struct tree_node *first, *last, *next;
};

struct tree {
    struct tree_node *nodes; /* TREE_NODES_MAX of them */
    size_t count;
    struct tree_node *root;
    const char *kind; /* kind of the file, for messages about it; "job file" from tree_init on */
    bool complete; /* false: a syntax error or an alias may hide keys, so none counts as missing */
};

/* ---- tree.c ---- */

MUST_CHECK enum status tree_init(struct tree *tree);
void tree_release(struct tree *tree);

/* NULL: the tree is full or memory ran out. */
struct tree_node *tree_add(struct tree *tree, enum tree_kind kind, struct jobspec_place place);
/* Last child of a list or map. */
void tree_append(struct tree_node *parent, struct tree_node *child);
/* The member of a map; NULL: there is none. */
struct tree_node *tree_find(const struct tree_node *map, const char *key);

/* ---- read_yaml.c ---- */

/*
 * Reads the bytes [from, size) of a source as one YAML document. Syntax errors, aliases, anchors,
 * tags, keys that are no plain text and bytes that are not UTF-8 text go to the report.
 * *out_root is NULL when there is no document.
 * Errors: ST_CONFIG  a mistake was reported; the tree holds what was read before it
 */
MUST_CHECK enum status tree_read_yaml(struct tree *tree, uint32_t source, size_t from,
                                      struct jobspec_report *report, struct tree_node **out_root);

/* ---- tree_set.c ---- */

/* Applies source `source`, "key.key=value", to the tree. A value that is null, or ~, takes the key
 * away, whatever stood there; "null" in quotes is a text. Errors: as tree_read_yaml. */
MUST_CHECK enum status tree_set(struct tree *tree, uint32_t source, struct jobspec_report *report);
