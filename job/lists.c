/* Fields that hold several values: lists of words, lists of numbers, environments. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "job/number.h"
#include "job/reader.h"

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

/* `shares: [3, 1]` */
static bool read_counts(struct reader *reader, const struct field *field,
                        const struct tree_node *node)
{
    bool good = true;
    uint32_t *counts = (uint32_t *)(void *)((char *)&reader->job + field->offset);
    size_t count = 0;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        int64_t value = 0;
        if (item->kind != TREE_SCALAR ||
            !number_whole(item->text, field->low, field->high, &value)) {
            job_report_add(&reader->report, item->place, "every worker carries at least one lane",
                           "%s holds whole numbers from %.16g to %.16g", field->path, field->low,
                           field->high);
            good = false;
        } else if (count < LIMIT_RANKS) {
            counts[count] = (uint32_t)value;
        }
        count++;
    }
    if (count == 0 || count > LIMIT_RANKS) {
        job_report_add(&reader->report, node->place, "write it as in [3, 1], or auto",
                       "%s has from 1 to %d numbers", field->path, LIMIT_RANKS);
        good = false;
    }
    reader->share_count = count;
    return good;
}

/* ---- environments ---- */

static bool is_env_name(const char *name, const char *prefix)
{
    size_t size = strlen(prefix);
    if (strncmp(name, prefix, size) != 0 || name[size] == '\0' || strlen(name) >= JOB_ENV_NAME)
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
    return strlen(text) < JOB_ENV_VALUE;
}

static bool check_env(struct reader *reader, const struct field *field,
                      const struct tree_node *item)
{
    char way_out[LIMIT_REASON];
    if (!is_env_name(item->key, field->words)) {
        (void)snprintf(way_out, sizeof(way_out),
                       "names are %s and capitals, digits and '_', at most %d bytes", field->words,
                       JOB_ENV_NAME - 1);
        job_report_add(&reader->report, item->key_place, way_out, "%s can't hold '%.100s'",
                       field->path, item->key);
        return false;
    }
    if (item->kind != TREE_SCALAR) {
        job_report_add(&reader->report, item->kind == TREE_ABSENT ? item->key_place : item->place,
                       "write one value", "%s.%s must be a single value", field->path, item->key);
        return false;
    }
    if (!is_env_value(item->text)) {
        (void)snprintf(way_out, sizeof(way_out),
                       "a value has at most %d bytes and no control characters", JOB_ENV_VALUE - 1);
        job_report_add(&reader->report, item->place, way_out, "%s.%s can't be that", field->path,
                       item->key);
        return false;
    }
    return true;
}

/* Keeps the settings in the order of their names. */
static void insert_env(struct job_env *env, size_t count, const struct tree_node *item)
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
    struct job_env *env = (struct job_env *)(void *)((char *)&reader->job + field->offset);
    bool good = true;
    size_t count = 0;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        if (!check_env(reader, field, item)) {
            good = false;
        } else if (count == JOB_ENV_MAX) {
            job_report_add(&reader->report, item->key_place, "remove some",
                           "%s holds at most %d settings", field->path, JOB_ENV_MAX);
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
        job_report_add(&reader->report, node->place, way_out, "%s must be a %s", field->path,
                       map ? "section of names and values" : "list");
        return false;
    }
    if (map)
        return read_env(reader, field, node);
    if (field->kind == FIELD_WORDS)
        return read_words(reader, field, node);
    return read_counts(reader, field, node);
}
