#include "jobspec/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"

const struct tree_node *reader_locate(const struct reader *reader, const char *path,
                                      bool *out_found)
{
    const struct tree_node *node = reader->tree.root;
    *out_found = false;
    while (node != NULL && node->kind == TREE_MAP) {
        char key[READER_PATH_BYTES];
        size_t size = strcspn(path, ".");
        if (size == 0 || size >= sizeof(key))
            break;
        memcpy(key, path, size);
        key[size] = '\0';
        const struct tree_node *child = tree_find(node, key);
        if (child == NULL)
            break;
        node = child;
        path += size;
        *out_found = path[0] == '\0';
        if (*out_found)
            break;
        path++;
    }
    return node;
}

struct jobspec_place reader_place(const struct reader *reader, const char *path)
{
    bool found = false;
    const struct tree_node *node = reader_locate(reader, path, &found);
    if (node == NULL || (!found && node->key == NULL))
        return (struct jobspec_place){ 0 };
    return found && node->kind != TREE_ABSENT ? node->place : node->key_place;
}

bool reader_has(const struct reader *reader, const char *path)
{
    size_t index = 0;
    const struct field *field = schema_find(path, &index);
    CHECK(field != NULL);
    return reader->given[index].node != NULL && !reader->given[index].bad;
}

bool reader_is_good(const struct reader *reader, const char *path)
{
    size_t index = 0;
    const struct field *field = schema_find(path, &index);
    CHECK(field != NULL);
    return !reader->given[index].bad;
}

void reader_refuse(struct reader *reader, struct jobspec_place place, const struct refusal *refusal)
{
    jobspec_report_add(&reader->report, place, refusal->way_out, "%s", refusal->cause);
}

void reader_mistake(struct reader *reader, const char *path, const char *way_out,
                    const char *format, ...)
{
    char cause[LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(cause, sizeof(cause), format, args);
    va_end(args);
    jobspec_report_add(&reader->report, reader_place(reader, path), way_out, "%s", cause);
}

void reader_divisors(int64_t number, int64_t lowest, int64_t highest, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = lowest, shown = 0; i <= number && i <= highest && shown < 12; i++) {
        if (number % i != 0)
            continue;
        int size =
            snprintf(out + used, capacity - used, "%s%lld", used > 0 ? ", " : "", (long long)i);
        if (size < 0 || (size_t)size >= capacity - used)
            return;
        used += (size_t)size;
        shown++;
    }
}

void reader_lanes_for(const struct reader *reader, int64_t workers, char out[LIMIT_REASON])
{
    char lanes[160];
    reader_divisors(reader->job.train.global_batch, workers, LIMIT_LANES, lanes, sizeof(lanes));
    /* No more workers than samples of a batch. */
    (void)snprintf(out, LIMIT_REASON, "set %s%s%s",
                   lanes[0] == '\0' ? "" : "train.lanes to one of ", lanes,
                   lanes[0] == '\0' ? "" : ", or ");
}
