/* Fields that hold several values: lists of words, lists of numbers, environments. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "jobspec/reader.h"
#include "jobspec/text/number.h"

/* `augment: [crop, flip]` */
static bool read_words(struct reader *reader, const struct field *field,
                       const struct tree_node *node)
{
    bool good = true;
    bool *flags = (bool *)((char *)&reader->job + field->offset);
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        const char *at = field->words;
        bool built = true;
        bool found = false;
        char word[FIELD_WORD_BYTES];
        for (size_t i = 0; schema_next_word(&at, &built, word, sizeof(word)); i++) {
            if (item->kind == TREE_SCALAR && strcmp(word, item->text) == 0)
                found = flags[i] = true;
        }
        if (found)
            continue;
        struct refusal refusal;
        (void)refuse_word(field, item->kind == TREE_SCALAR ? item->text : "", &refusal);
        reader_refuse(reader, item->place, &refusal);
        good = false;
    }
    return good;
}

/* Numbers of workers' lanes, LIMIT_RANKS at most; `room`: for how many `out` has room. */
static bool read_numbers(struct reader *reader, const struct field *field,
                         const struct tree_node *node, uint32_t *out, size_t room,
                         size_t *out_count)
{
    bool good = true;
    size_t count = 0;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        int64_t value = 0;
        if (item->kind != TREE_SCALAR ||
            !number_whole(item->text, field->low, field->high, &value)) {
            jobspec_report_add(
                &reader->report, item->place, "every worker carries at least one lane",
                "%s holds whole numbers from %.16g to %.16g", field->path, field->low, field->high);
            good = false;
        } else if (count < room) {
            out[count] = (uint32_t)value;
        }
        count++;
    }
    *out_count = count;
    return good;
}

/* `shares: [3, 1]` */
static bool read_counts(struct reader *reader, const struct field *field,
                        const struct tree_node *node)
{
    uint32_t *counts = (uint32_t *)(void *)((char *)&reader->job + field->offset);
    bool good = read_numbers(reader, field, node, counts, LIMIT_RANKS, &reader->share_count);
    if (reader->share_count == 0 || reader->share_count > LIMIT_RANKS) {
        jobspec_report_add(&reader->report, node->place, "write it as in [3, 1], or auto",
                           "%s has from 1 to %d numbers", field->path, LIMIT_RANKS);
        good = false;
    }
    return good;
}

/* ---- pipelines ---- */

/* `pipeline: [12, 24]` */
static bool read_cuts(struct reader *reader, const struct field *field,
                      const struct tree_node *node)
{
    struct jobspec_cuts *cuts =
        (struct jobspec_cuts *)(void *)((char *)&reader->job + field->offset);
    *cuts = (struct jobspec_cuts){ .stages = 1 };
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        const uint32_t before = cuts->first_node[cuts->stages - 1];
        int64_t node_number = 0;
        if (cuts->stages == LIMIT_STAGES) {
            jobspec_report_add(&reader->report, item->place, "remove some",
                               "%s cuts the model into %d stages at most", field->path,
                               LIMIT_STAGES);
            return false;
        }
        if (item->kind != TREE_SCALAR ||
            !number_whole(item->text, (double)before + 1, UINT32_MAX, &node_number)) {
            jobspec_report_add(
                &reader->report, item->place,
                "write the first node of each stage but the first one, ascending, as in "
                "[12, 24]; `cairn plan` numbers them",
                "%s can't cut the model there: it is no node after node %u", field->path, before);
            return false;
        }
        cuts->first_node[cuts->stages++] = (uint32_t)node_number;
    }
    return true;
}

/* Reads one key of a stage. */
static bool read_stage_key(struct reader *reader, const struct field *field,
                           const struct tree_node *node, struct reader_stage *stage,
                           uint32_t *shares, size_t room)
{
    int64_t workers = 0;
    size_t count = 0;
    if (strcmp(node->key, "workers") == 0) {
        if (node->kind == TREE_SCALAR && number_whole(node->text, 1, LIMIT_RANKS, &workers)) {
            stage->workers = (uint32_t)workers;
            return true;
        }
        jobspec_report_add(&reader->report, node->key_place, "write it as in workers: 2",
                           "the workers of a stage are a number from 1 to %d", LIMIT_RANKS);
        return false;
    }
    if (strcmp(node->key, "shares") != 0) {
        jobspec_report_add(&reader->report, node->key_place, "keys of a stage: workers, shares",
                           "unknown key '%.100s' in %s", node->key, field->path);
        return false;
    }
    if (node->kind != TREE_LIST || node->first == NULL) {
        jobspec_report_add(&reader->report, node->key_place, "write it as in shares: [3, 1]",
                           "the shares of a stage must be a list");
        return false;
    }
    if (!read_numbers(reader, field, node, shares, room, &count))
        return false;
    stage->share_count = count < LIMIT_RANKS ? (uint32_t)count : LIMIT_RANKS;
    return true;
}

/* `{workers: 2, shares: [5, 3]}`, either of which follows from the other. */
static bool read_stage(struct reader *reader, const struct field *field,
                       const struct tree_node *item, struct reader_stage *stage, uint32_t *shares,
                       size_t room)
{
    bool good = true;
    *stage = (struct reader_stage){ .place = item->place };
    for (const struct tree_node *node = item->first; node != NULL; node = node->next)
        good = read_stage_key(reader, field, node, stage, shares, room) && good;
    if (!good)
        return false;
    if (stage->workers == 0)
        stage->workers = stage->share_count;
    if (stage->workers == 0) {
        jobspec_report_add(&reader->report, item->place, "write it as in {workers: 2}",
                           "nothing says how many workers this stage has");
        return false;
    }
    if (stage->share_count == 0 || stage->share_count == stage->workers)
        return true;
    jobspec_report_add(&reader->report, item->place, "write one share per worker",
                       "this stage has %u workers, and its shares are for %u", stage->workers,
                       stage->share_count);
    return false;
}

/* `stages: [{workers: 2, shares: [5, 3]}, {workers: 1}]` */
static bool read_stages(struct reader *reader, const struct field *field,
                        const struct tree_node *node)
{
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "write it as in %s", field->example);
    uint32_t *shares = reader->job.workers.shares;
    uint32_t *workers = (uint32_t *)(void *)((char *)&reader->job + field->offset);
    uint32_t used = 0;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        const uint32_t s = reader->stage_count;
        if (s == LIMIT_STAGES || item->kind != TREE_MAP) {
            jobspec_report_add(&reader->report, item->place, way_out,
                               "%s holds sections, one for each of at most %d stages", field->path,
                               LIMIT_STAGES);
            return false;
        }
        if (!read_stage(reader, field, item, &reader->stages[s], shares + used, LIMIT_RANKS - used))
            return false;
        if (reader->stages[s].workers > LIMIT_RANKS - used) {
            jobspec_report_add(&reader->report, item->place, "use fewer workers",
                               "the stages have more than %d workers", LIMIT_RANKS);
            return false;
        }
        used += workers[s] = reader->stages[s].workers;
        reader->stage_count++;
    }
    if (reader->stage_count > 0)
        return true;
    jobspec_report_add(&reader->report, node->place, way_out, "%s has no stage", field->path);
    return false;
}

/* ---- environments ---- */

static bool is_env_name(const char *name, const char *prefix)
{
    size_t size = strlen(prefix);
    if (strncmp(name, prefix, size) != 0 || name[size] == '\0' || strlen(name) >= JOBSPEC_ENV_NAME)
        return false;
    for (const char *c = name + size; *c != '\0'; c++) {
        if (!isupper((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '_')
            return false;
    }
    return true;
}

static bool is_env_value(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return false;
    }
    return strlen(text) < JOBSPEC_ENV_VALUE;
}

static bool check_env(struct reader *reader, const struct field *field,
                      const struct tree_node *item)
{
    char way_out[LIMIT_REASON];
    if (!is_env_name(item->key, field->words)) {
        (void)snprintf(way_out, sizeof(way_out),
                       "names are %s and capitals, digits and '_', at most %d bytes", field->words,
                       JOBSPEC_ENV_NAME - 1);
        jobspec_report_add(&reader->report, item->key_place, way_out, "%s can't hold '%.100s'",
                           field->path, item->key);
        return false;
    }
    if (item->kind != TREE_SCALAR) {
        jobspec_report_add(
            &reader->report, item->kind == TREE_ABSENT ? item->key_place : item->place,
            "write one value", "%s.%s must be a single value", field->path, item->key);
        return false;
    }
    if (!is_env_value(item->text)) {
        (void)snprintf(way_out, sizeof(way_out),
                       "a value has at most %d bytes and no control characters",
                       JOBSPEC_ENV_VALUE - 1);
        jobspec_report_add(&reader->report, item->place, way_out, "%s.%s can't be that",
                           field->path, item->key);
        return false;
    }
    return true;
}

/* Keeps the settings in the order of their names. */
static void insert_env(struct jobspec_env *env, size_t count, const struct tree_node *item)
{
    size_t at = count;
    while (at > 0 && strcmp(env[at - 1].name, item->key) > 0)
        at--;
    memmove(&env[at + 1], &env[at], (count - at) * sizeof(*env));
    memset(&env[at], 0, sizeof(*env));
    (void)snprintf(env[at].name, sizeof(env[at].name), "%s", item->key);
    (void)snprintf(env[at].value, sizeof(env[at].value), "%s", item->text);
}

/* `nccl: {NCCL_SOCKET_IFNAME: eth0}` */
static bool read_env(struct reader *reader, const struct field *field, const struct tree_node *node)
{
    struct jobspec_env *env = (struct jobspec_env *)(void *)((char *)&reader->job + field->offset);
    bool good = true;
    size_t count = 0;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        if (!check_env(reader, field, item)) {
            good = false;
        } else if (count == JOBSPEC_ENV_MAX) {
            jobspec_report_add(&reader->report, item->key_place, "remove some",
                               "%s holds at most %d settings", field->path, JOBSPEC_ENV_MAX);
            return false;
        } else {
            insert_env(env, count++, item);
        }
    }
    return good;
}

/* `shares: auto`: nothing is counted yet. */
static bool is_auto(const struct field *field, const struct tree_node *node)
{
    return field->kind == FIELD_COUNTS && node->kind == TREE_SCALAR &&
           strcmp(node->text, field->words) == 0;
}

bool reader_list(struct reader *reader, const struct field *field, const struct tree_node *node)
{
    bool map = field->kind == FIELD_ENV;
    if (is_auto(field, node)) {
        reader->job.workers.by_speed = true;
        return true;
    }
    if (node->kind != (map ? TREE_MAP : TREE_LIST)) {
        char way_out[LIMIT_REASON];
        (void)snprintf(way_out, sizeof(way_out), "write it as in %s", field->example);
        jobspec_report_add(&reader->report, node->place, way_out, "%s must be a %s", field->path,
                           map ? "section of names and values" : "list");
        return false;
    }
    if (map)
        return read_env(reader, field, node);
    if (field->kind == FIELD_WORDS)
        return read_words(reader, field, node);
    if (field->kind == FIELD_CUTS)
        return read_cuts(reader, field, node);
    if (field->kind == FIELD_STAGES)
        return read_stages(reader, field, node);
    if (field->kind == FIELD_SIZES)
        return reader_sizes(reader, field, node);
    if (field->kind == FIELD_GRAPH)
        return graph_read(&reader->report, field->path, node, &reader->job.graph);
    return read_counts(reader, field, node);
}
