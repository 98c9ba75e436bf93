#include "jobspec/yaml/tree.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum status tree_init(struct tree *tree)
{
    *tree = (struct tree){ .complete = true, .kind = "job file" };
    tree->nodes = calloc(TREE_NODES_MAX, sizeof(*tree->nodes));
    return tree->nodes == NULL ? ST_NO_MEMORY : ST_OK;
}

void tree_release(struct tree *tree)
{
    for (size_t i = 0; i < tree->count; i++) {
        free(tree->nodes[i].key);
        free(tree->nodes[i].text);
    }
    free(tree->nodes);
    *tree = (struct tree){ 0 };
}

struct tree_node *tree_add(struct tree *tree, enum tree_kind kind, struct jobspec_place place)
{
    if (tree->count == TREE_NODES_MAX)
        return NULL;
    struct tree_node *node = &tree->nodes[tree->count++];
    node->kind = kind;
    node->place = place;
    return node;
}

void tree_append(struct tree_node *parent, struct tree_node *child)
{
    CHECK(child->next == NULL);
    if (parent->last == NULL) {
        parent->first = child;
    } else {
        parent->last->next = child;
    }
    parent->last = child;
}

struct tree_node *tree_find(const struct tree_node *map, const char *key)
{
    for (struct tree_node *child = map->first; child != NULL; child = child->next) {
        if (strcmp(child->key, key) == 0)
            return child;
    }
    return NULL;
}
