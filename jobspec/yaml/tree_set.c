/* --set: a value of its own YAML takes the place of what stands at its key; null takes it away. */
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "jobspec/yaml/tree.h"

static struct jobspec_place place_at(uint32_t source, size_t at, size_t size)
{
    return (struct jobspec_place){ source, (uint32_t)at, (uint32_t)size };
}

/* The member `key` of map, made if it isn't there. */
static struct tree_node *find_or_add(struct tree *tree, struct tree_node *map, const char *key,
                                     size_t size, struct jobspec_place place)
{
    char *text = strndup(key, size);
    if (text == NULL)
        return NULL;
    struct tree_node *node = tree_find(map, text);
    if (node == NULL) {
        node = tree_add(tree, TREE_ABSENT, place);
        if (node == NULL) {
            free(text);
            return NULL;
        }
        node->key = text;
        tree_append(map, node);
    } else {
        free(text);
    }
    node->key_place = place;
    return node;
}

/* node takes the value's place in the tree; its key stays. */
static void take_value(struct tree_node *node, struct tree_node *value)
{
    free(node->text);
    node->kind = value->kind;
    node->place = value->place;
    node->first = value->first;
    node->last = value->last;
    node->text = value->text;
    value->text = NULL;
}

/* Walks to the node that `key.key` names. What is no map on the way becomes an empty one. */
static struct tree_node *descend(struct tree *tree, uint32_t source, const char *text, size_t size)
{
    struct tree_node *node = tree->root;
    size_t at = 0;
    while (node != NULL && at <= size) {
        if (node->kind != TREE_MAP) {
            free(node->text);
            node->text = NULL;
            node->first = node->last = NULL;
            node->kind = TREE_MAP;
            node->place = place_at(source, 0, at > 0 ? at - 1 : 0);
        }
        const char *dot = memchr(text + at, '.', size - at);
        size_t end = dot == NULL ? size : (size_t)(dot - text);
        node = find_or_add(tree, node, text + at, end - at, place_at(source, at, end - at));
        at = end + 1;
    }
    return node;
}

/* Unhangs the member `key`, which the map may not have. */
static void unhang(struct tree_node *map, const char *key, size_t size)
{
    struct tree_node *before = NULL;
    for (struct tree_node *node = map->first; node != NULL; before = node, node = node->next) {
        if (strlen(node->key) != size || memcmp(node->key, key, size) != 0)
            continue;
        *(before == NULL ? &map->first : &before->next) = node->next;
        map->last = map->last == node ? before : map->last;
        return;
    }
}

/* Takes what `key.key` names out of the tree; where that isn't there nothing changes. */
static enum status take_away(struct tree *tree, const char *text, size_t size)
{
    struct tree_node *map = tree->root;
    size_t at = 0;
    const char *dot = memchr(text, '.', size);
    while (dot != NULL && map != NULL && map->kind == TREE_MAP) {
        auto_free char *key = strndup(text + at, (size_t)(dot - text) - at);
        if (key == NULL)
            return ST_NO_MEMORY;
        map = tree_find(map, key);
        at = (size_t)(dot - text) + 1;
        dot = memchr(text + at, '.', size - at);
    }
    if (map != NULL && map->kind == TREE_MAP)
        unhang(map, text + at, size - at);
    return ST_OK;
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

enum status tree_set(struct tree *tree, uint32_t source, struct jobspec_report *report)
{
    const struct jobspec_source *from = &report->sources[source];
    const char *equals = memchr(from->text, '=', from->size);
    size_t size = equals == NULL ? from->size : (size_t)(equals - from->text);
    if (equals == NULL || !path_is_good(from->text, size)) {
        jobspec_report_add(report, place_at(source, 0, size),
                           "write it as in train.global_batch=64", "a setting is key=value");
        return ST_CONFIG;
    }
    struct tree_node *value = NULL;
    enum status st = tree_read_yaml(tree, source, size + 1, report, &value);
    if (st != ST_OK)
        return st;
    if (value == NULL) {
        jobspec_report_add(report, place_at(source, size, 1), "write a value after the '='",
                           "%.*s has no value", (int)(size < 200 ? size : 200), from->text);
        return ST_CONFIG;
    }
    if (value->kind == TREE_ABSENT && value->text != NULL && value->text[0] != '\0')
        return take_away(tree, from->text, size);
    struct tree_node *node = descend(tree, source, from->text, size);
    if (node == NULL)
        return ST_FULL;
    take_value(node, value);
    return ST_OK;
}
