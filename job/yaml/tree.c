#include "job/yaml/tree.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum status tree_init(struct tree *tree)
{
    *tree = (struct tree){ .whole = true };
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

struct node *tree_add(struct tree *tree, enum node_kind kind, struct job_place place)
{
    if (tree->count == TREE_NODES_MAX)
        return NULL;
    struct node *node = &tree->nodes[tree->count++];
    node->kind = kind;
    node->place = place;
    return node;
}

void node_append(struct node *parent, struct node *child)
{
    CHECK(child->next == NULL);
    if (parent->last == NULL) {
        parent->first = child;
    } else {
        parent->last->next = child;
    }
    parent->last = child;
}

struct node *node_find(const struct node *map, const char *key)
{
    for (struct node *child = map->first; child != NULL; child = child->next) {
        if (strcmp(child->key, key) == 0)
            return child;
    }
    return NULL;
}

static struct job_place part(uint32_t source, size_t at, size_t size)
{
    return (struct job_place){ source, (uint32_t)at, (uint32_t)size };
}

/* The member `key` of map, made if it isn't there; what it held is forgotten when it isn't a map.
 */
static struct node *member(struct tree *tree, struct node *map, const char *key, size_t size,
                           struct job_place place)
{
    char *text = strndup(key, size);
    if (text == NULL)
        return NULL;
    struct node *node = node_find(map, text);
    if (node == NULL) {
        node = tree_add(tree, NODE_ABSENT, place);
        if (node == NULL) {
            free(text);
            return NULL;
        }
        node->key = text;
        node_append(map, node);
    } else {
        free(text);
    }
    node->key_place = place;
    return node;
}

/* node takes the value's place in the tree; its key stays. */
static void replace(struct node *node, struct node *value)
{
    free(node->text);
    node->kind = value->kind;
    node->place = value->place;
    node->first = value->first;
    node->last = value->last;
    node->text = value->text;
    value->text = NULL;
}

/* Walks to the node that `key.key` names, making maps on the way. */
static struct node *descend(struct tree *tree, uint32_t source, const char *text, size_t size)
{
    struct node *node = tree->root;
    size_t at = 0;
    while (node != NULL && at <= size) {
        if (node->kind != NODE_MAP) {
            free(node->text);
            node->text = NULL;
            node->first = node->last = NULL;
            node->kind = NODE_MAP;
            node->place = part(source, 0, at > 0 ? at - 1 : 0);
        }
        const char *dot = memchr(text + at, '.', size - at);
        size_t end = dot == NULL ? size : (size_t)(dot - text);
        node = member(tree, node, text + at, end - at, part(source, at, end - at));
        at = end + 1;
    }
    return node;
}

static bool path_is_good(const char *text, size_t size)
{
    size_t components = 1;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '.' && (i == 0 || i + 1 == size || text[i - 1] == '.'))
            return false;
        components += text[i] == '.';
    }
    return size > 0 && components < TREE_DEPTH_MAX;
}

enum status tree_set(struct tree *tree, uint32_t source, struct job_report *report)
{
    const struct job_source *from = &report->sources[source];
    const char *equals = memchr(from->text, '=', from->size);
    size_t size = equals == NULL ? from->size : (size_t)(equals - from->text);
    if (equals == NULL || !path_is_good(from->text, size)) {
        job_report_add(report, part(source, 0, size), "write it as in train.global_batch=64",
                       "a setting is key=value");
        return ST_CONFIG;
    }
    struct node *value = NULL;
    enum status st = tree_read_yaml(tree, source, size + 1, report, &value);
    if (st != ST_OK)
        return st;
    if (value == NULL) {
        job_report_add(report, part(source, size, 1), "write a value after the '='",
                       "%.*s has no value", (int)(size < 200 ? size : 200), from->text);
        return ST_CONFIG;
    }
    struct node *node = descend(tree, source, from->text, size);
    if (node == NULL)
        return ST_FULL;
    replace(node, value);
    return ST_OK;
}
