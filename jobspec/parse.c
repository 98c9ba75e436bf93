/* From the text of a job file to a job: keys to fields, defaults, mistakes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "jobspec/reader.h"
#include "jobspec/value.h"

/* ---- values ---- */

static bool read_single(struct reader *reader, const struct field *field,
                        const struct tree_node *node)
{
    if (node->kind != TREE_SCALAR) {
        jobspec_report_add(&reader->report, node->place, "write one value",
                           "%s must be a single value, not a %s", field->path,
                           node->kind == TREE_LIST ? "list" : "section");
        return false;
    }
    struct refusal refusal;
    if (value_read(field, node->text, reader->base_dir, &reader->job, &refusal) == ST_OK)
        return true;
    reader_refuse(reader, node->place, &refusal);
    return false;
}

static bool is_list(const struct field *field, const struct tree_node *node)
{
    return field->kind == FIELD_WORDS || field->kind == FIELD_COUNTS || field->kind == FIELD_ENV ||
           field->kind == FIELD_STAGES || field->kind == FIELD_SIZES ||
           field->kind == FIELD_GRAPH || (field->kind == FIELD_CUTS && node->kind == TREE_LIST);
}

static bool is_texts(const struct field *field)
{
    return field->kind == FIELD_RUN || field->kind == FIELD_NAMES ||
           field->kind == FIELD_PATTERNS || field->kind == FIELD_MODULES ||
           field->kind == FIELD_CODES;
}

static void read_field(struct reader *reader, const struct field *field, size_t index,
                       const struct tree_node *node)
{
    reader->given[index].node = node;
    bool good = false;
    if (node->kind == TREE_ABSENT) {
        jobspec_report_add(&reader->report, node->key_place, "write a value, or remove the key",
                           "%s has no value", field->path);
    } else if (is_list(field, node)) {
        good = reader_list(reader, field, node);
    } else if (is_texts(field)) {
        good = reader_texts(reader, field, node);
    } else {
        good = read_single(reader, field, node);
    }
    reader->given[index].bad = !good;
}

/* ---- sections ---- */

/* A mistyped key's meaning isn't reported as missing, too. */
static void note_meant(struct reader *reader, const char *section, const char *meant)
{
    char path[READER_PATH_BYTES];
    int size =
        snprintf(path, sizeof(path), "%s%s%s", section, section[0] == '\0' ? "" : ".", meant);
    if (size <= 0 || (size_t)size >= sizeof(reader->meant[0]) ||
        reader->meant_count == READER_MEANT_MAX)
        return;
    size_t index = 0;
    bool here = schema_is_section(path) || schema_find(path, &index) != NULL;
    (void)snprintf(reader->meant[reader->meant_count++], sizeof(reader->meant[0]), "%.127s",
                   here ? path : meant);
}

static bool is_at_or_below(const char *path, const char *section)
{
    size_t size = strlen(section);
    return strncmp(path, section, size) == 0 && (path[size] == '\0' || path[size] == '.');
}

static bool was_meant(const struct reader *reader, const char *path)
{
    for (size_t i = 0; i < reader->meant_count; i++) {
        if (is_at_or_below(path, reader->meant[i]) || is_at_or_below(reader->meant[i], path))
            return true;
    }
    return false;
}

#define CHANGEABLE "workers.count can; with other values submit another job"

static void refuse_key(struct reader *reader, const char *section, const struct tree_node *node)
{
    char meant[READER_PATH_BYTES] = "";
    char keys[LIMIT_REASON / 2];
    char way_out[LIMIT_REASON];
    const char *where = section[0] == '\0' ? "" : " in ";
    const bool meant_one = schema_suggest(section, node->key, meant, sizeof(meant));
    const bool counts = strcmp(meant, "workers.count") == 0 ||
                        (strcmp(section, "workers") == 0 && strcmp(meant, "count") == 0);
    if (reader->change && !(meant_one && counts)) {
        (void)snprintf(way_out, sizeof(way_out), CHANGEABLE);
    } else if (meant_one) {
        (void)snprintf(way_out, sizeof(way_out), "did you mean '%s'?", meant);
        note_meant(reader, section, meant);
    } else {
        schema_keys(section, keys, sizeof(keys));
        (void)snprintf(way_out, sizeof(way_out), "keys%s%s: %s", where, section, keys);
    }
    jobspec_report_add(&reader->report, node->key_place, way_out, "unknown key '%.100s'%s%s",
                       node->key, where, section);
}

static void read_section(struct reader *reader, const char *section, const struct tree_node *map)
{
    for (const struct tree_node *node = map->first; node != NULL; node = node->next) {
        char path[READER_PATH_BYTES];
        int size = snprintf(path, sizeof(path), "%s%s%s", section, section[0] == '\0' ? "" : ".",
                            node->key);
        size_t index = 0;
        bool fits = size > 0 && (size_t)size < sizeof(path) && strchr(node->key, '.') == NULL;
        const struct field *field = fits ? schema_find(path, &index) : NULL;
        if (field != NULL) {
            read_field(reader, field, index, node);
        } else if (!fits || node->key[0] == '\0' || !schema_is_section(path)) {
            refuse_key(reader, section, node);
        } else if (node->kind == TREE_MAP) {
            read_section(reader, path, node);
        } else if (node->kind != TREE_ABSENT) {
            char way_out[LIMIT_REASON];
            char keys[LIMIT_REASON / 2];
            schema_keys(path, keys, sizeof(keys));
            (void)snprintf(way_out, sizeof(way_out), "its keys: %s", keys);
            if (strcmp(path, "command") == 0) {
                (void)snprintf(way_out, sizeof(way_out), "write it as in %s",
                               schema_section_example(path));
            }
            jobspec_report_add(&reader->report, node->place, way_out,
                               "%s must be a section with keys of its own", path);
        }
    }
}

/* ---- what isn't there ---- */

static void fill_defaults(struct reader *reader)
{
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    for (size_t i = 0; i < count; i++) {
        const struct field *field = &fields[i];
        bool has_value = reader->given[i].node != NULL && !reader->given[i].bad;
        if (has_value || field->fallback == NULL || field->offset == FIELD_NOWHERE ||
            !schema_is_for(field, reader->kind))
            continue;
        struct refusal refusal;
        enum status st =
            value_read(field, field->fallback, reader->base_dir, &reader->job, &refusal);
        CHECK(st == ST_OK ||
              field->kind == FIELD_PATH); /* a path with a long base may be too long */
        if (st != ST_OK)
            reader_refuse(reader, reader_place(reader, field->path), &refusal);
    }
}

/* A key of a job with a model, in one with a command: the outermost that can be removed. */
static void refuse_for_command(struct reader *reader, const struct field *field)
{
    char path[READER_PATH_BYTES];
    bool found = false;
    (void)snprintf(path, sizeof(path), "%.*s", (int)schema_not_for(field, reader->kind),
                   field->path);
    const struct tree_node *node = reader_locate(reader, path, &found);
    CHECK(found);
    jobspec_report_add(&reader->report, node->key_place, "remove this key",
                       "%s is not for a job with a command", path);
}

/* Keys of a job of another kind, and of what isn't built. */
static void check_use(struct reader *reader, const struct field *field, size_t index)
{
    const struct tree_node *node = reader->given[index].node;
    size_t selector = 0;
    if (node == NULL)
        return;
    if (!schema_is_for(field, reader->kind)) {
        refuse_for_command(reader, field);
        return;
    }
    if (field->when_path != NULL) {
        const struct field *other = schema_find(field->when_path, &selector);
        CHECK(other != NULL);
        if (reader->given[selector].bad)
            return;
        unsigned value = schema_value(field->when_path, &reader->job);
        if (value != 0 && !schema_applies(field, &reader->job)) {
            char word[FIELD_WORD_BYTES];
            schema_value_text(field->when_path, &reader->job, word, sizeof(word));
            jobspec_report_add(&reader->report, node->key_place, "remove this key",
                               "%s is not for %s: %s", field->path, field->when_path, word);
            return;
        }
    }
    if ((field->flags & FIELD_UNBUILT) == 0 || reader->given[index].bad)
        return;
    struct refusal refusal;
    if ((field->fallback == NULL || strcmp(field->fallback, node->text) != 0) &&
        refuse_unbuilt(field, node->text, &refusal) != ST_OK) {
        reader_refuse(reader, node->place, &refusal);
    }
}

/* The section of a path that is missing, outermost first: its size in path; 0: none. */
static size_t missing_section(const struct reader *reader, const char *path)
{
    for (const char *dot = strchr(path, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        char section[READER_PATH_BYTES];
        size_t size = (size_t)(dot - path);
        CHECK(size < sizeof(section));
        memcpy(section, path, size);
        section[size] = '\0';
        bool found = false;
        const struct tree_node *node = reader_locate(reader, section, &found);
        if (!found)
            return size;
        if (node->kind != TREE_MAP && node->kind != TREE_ABSENT)
            return SIZE_MAX; /* something else stands there: reported already */
    }
    return 0;
}

static void check_required(struct reader *reader, const struct field *field, size_t index)
{
    if (reader->given[index].node != NULL || !schema_is_for(field, reader->kind) ||
        (field->kind == FIELD_WORD && value_is_set(field, &reader->job)) ||
        (reader->kind == SCHEMA_MODEL && !schema_applies(field, &reader->job)) ||
        (field->flags & (FIELD_REQUIRED | FIELD_WITH_SECTION)) == 0)
        return;
    size_t size = missing_section(reader, field->path);
    if (size == SIZE_MAX || (size > 0 && (field->flags & FIELD_REQUIRED) == 0))
        return;
    char section[READER_PATH_BYTES];
    (void)snprintf(section, sizeof(section), "%.*s", (int)size, field->path);
    if (was_meant(reader, size > 0 ? section : field->path))
        return;
    const char *example = size > 0 ? schema_section_example(section) : field->example;
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "add for example '%s'",
                   example == NULL ? "" : example);
    jobspec_report_add(&reader->report, reader_place(reader, field->path), way_out, "%s is missing",
                       size > 0 ? section : field->path);
}

/* Returns whether the file says what kind of job it is; reports it if nothing does. */
static bool check_kind(struct reader *reader)
{
    static const char *const sections[] = { "command", "model", "data", "train" };
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        if (tree_find(reader->tree.root, sections[i]) != NULL || was_meant(reader, sections[i]))
            return i > 0 || reader->kind != SCHEMA_MODEL;
    }
    jobspec_report_add(&reader->report, (struct jobspec_place){ 0 },
                       "add model, data and train, or for a program of your own "
                       "'command: {run: [python3, train.py]}'",
                       "nothing says what to train: there is neither a model nor a command");
    return false;
}

static void check_fields(struct reader *reader)
{
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    const bool kind_known = reader->tree.complete && check_kind(reader);
    const enum schema_kind other = reader->kind == SCHEMA_MODEL ? SCHEMA_COMMAND : SCHEMA_MODEL;
    for (size_t i = 0; i < count; i++) {
        check_use(reader, &fields[i], i);
        const bool of_all = schema_is_for(&fields[i], other);
        if (reader->tree.complete && (kind_known || of_all))
            check_required(reader, &fields[i], i);
    }
}

/* Values of keys that a job of this kind has no use for are zero, so that equal jobs are equal. */
static void clear_unused(struct reader *reader)
{
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    for (size_t i = 0; i < count; i++) {
        const struct field *field = &fields[i];
        if (field->offset == FIELD_NOWHERE || schema_applies(field, &reader->job))
            continue;
        memset((char *)&reader->job + field->offset, 0, field->size);
    }
}

/* ---- the file ---- */

/* ST_OK also where there are mistakes in them. */
static enum status set_all(struct reader *reader, size_t set_count)
{
    for (size_t i = 0; i < set_count; i++) {
        enum status st = tree_set(&reader->tree, (uint32_t)i + 1, &reader->report);
        if (st != ST_OK && st != ST_CONFIG)
            return st;
    }
    return ST_OK;
}

static enum status read_sources(struct reader *reader, size_t set_count)
{
    enum status st = tree_read_yaml(&reader->tree, 0, 0, &reader->report, &reader->tree.root);
    if (st != ST_OK && st != ST_CONFIG)
        return st;
    struct jobspec_place start = { 0 };
    if (reader->tree.root == NULL) {
        if (jobspec_report_empty(&reader->report)) {
            jobspec_report_add(&reader->report, start, "start from one of the examples",
                               "the file is empty");
        }
        return ST_CONFIG;
    }
    if (reader->tree.root->kind != TREE_MAP) {
        jobspec_report_add(&reader->report, start, "write 'key: value' lines",
                           "a job file is a list of keys with values");
        return ST_CONFIG;
    }
    return set_all(reader, set_count);
}

static enum status read_job(struct reader *reader, size_t set_count)
{
    enum status st = read_sources(reader, set_count);
    if (st != ST_OK)
        return st;
    if (tree_find(reader->tree.root, "command") != NULL) {
        const bool saves = tree_find(reader->tree.root, "checkpoint") != NULL;
        reader->kind = saves ? SCHEMA_SAVED : SCHEMA_COMMAND;
        reader->job.command.saves = saves;
    }
    read_section(reader, "", reader->tree.root);
    reader_name_own(reader);
    fill_defaults(reader);
    check_fields(reader);
    clear_unused(reader);
    if (reader->tree.complete)
        reader->kind == SCHEMA_MODEL ? reader_resolve(reader) : reader_resolve_command(reader);
    reader_name_store_once(reader);
    reader_check_room(reader);
    reader_check_allowed(reader);
    reader_check_usable(reader);
    return jobspec_report_empty(&reader->report) ? ST_OK : ST_CONFIG;
}

/* Like read_job, for settings alone. */
static enum status read_change(struct reader *reader, size_t set_count)
{
    reader->change = true;
    reader->tree.root = tree_add(&reader->tree, TREE_MAP, (struct jobspec_place){ 0 });
    if (reader->tree.root == NULL)
        return ST_NO_MEMORY;
    enum status st = set_all(reader, set_count);
    if (st != ST_OK)
        return st;
    read_section(reader, "", reader->tree.root);
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    for (size_t i = 0; i < count; i++) {
        const struct tree_node *node = reader->given[i].node;
        if (node == NULL || strcmp(fields[i].path, "workers.count") == 0)
            continue;
        jobspec_report_add(&reader->report, node->key_place, CHANGEABLE,
                           "%s can't be changed in a job that was submitted", fields[i].path);
    }
    if (jobspec_report_empty(&reader->report) && !reader_has(reader, "workers.count")) {
        jobspec_report_add(&reader->report, (struct jobspec_place){ 0 },
                           "write workers.count=NUMBER", "nothing is to be changed");
    }
    return jobspec_report_empty(&reader->report) ? ST_OK : ST_CONFIG;
}

struct parsing {
    const struct jobspec_source *sources;
    size_t set_count;
    const char *base_dir, *allowed;
    const struct jobspec_look *look;
    bool commands, taken;
    enum status (*read)(struct reader *reader, size_t set_count);
};

static enum status parse_sources(const struct parsing *parsing, struct jobspec *out,
                                 struct buf *out_errors)
{
    struct reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL)
        return ST_NO_MEMORY;
    reader->base_dir = parsing->base_dir;
    reader->allowed = parsing->allowed;
    reader->look = parsing->look;
    reader->commands = parsing->commands;
    reader->taken = parsing->taken;
    enum status st = tree_init(&reader->tree);
    if (st == ST_OK)
        st = jobspec_report_init(&reader->report, parsing->sources, parsing->set_count + 1);
    if (st == ST_OK)
        st = parsing->read(reader, parsing->set_count);
    if (st == ST_CONFIG) {
        enum status printed = jobspec_report_print(&reader->report, out_errors);
        if (printed == ST_NO_MEMORY)
            st = printed;
    }
    if (st == ST_OK)
        *out = reader->job;
    jobspec_report_release(&reader->report);
    tree_release(&reader->tree);
    free(reader);
    return st;
}

enum status jobspec_parse(const char *text, size_t size, const char *file_name,
                          const char *base_dir, const char *const *sets, size_t set_count,
                          struct jobspec *out, struct buf *out_errors)
{
    const struct jobspec_origin origin = { .file_name = file_name,
                                           .base_dir = base_dir,
                                           .taken = true };
    return jobspec_parse_within(&origin, text, size, sets, set_count, out, out_errors);
}

/* The sources: first, then the settings, each under the name set_name. */
static enum status parse_within(struct parsing *parsing, const struct jobspec_source *first,
                                const char *set_name, const char *const *sets, struct jobspec *out,
                                struct buf *out_errors)
{
    const size_t set_count = parsing->set_count;
    if (set_count > JOBSPEC_SETS_MAX) {
        enum status said = buf_printf(out_errors, "%s:1:1: a job takes at most %d settings\n",
                                      first->name, JOBSPEC_SETS_MAX);
        return said == ST_NO_MEMORY ? said : ST_CONFIG;
    }
    struct jobspec_source *sources = calloc(set_count + 1, sizeof(*sources));
    if (sources == NULL)
        return ST_NO_MEMORY;
    sources[0] = *first;
    bool bounded = first->size <= (size_t)LIMIT_JOB_FILE_BYTES;
    for (size_t i = 0; i < set_count; i++) {
        sources[i + 1] = (struct jobspec_source){
            .name = set_name, .text = sets[i], .size = strlen(sets[i]), .line = i + 1
        };
        bounded = bounded && sources[i + 1].size <= JOBSPEC_SET_BYTES;
    }
    parsing->sources = sources;
    enum status st = ST_CONFIG;
    if (bounded) {
        st = parse_sources(parsing, out, out_errors);
    } else if (buf_printf(out_errors, "%s:1:1: a job file has at most %d bytes, a --set %d\n",
                          first->name, LIMIT_JOB_FILE_BYTES, JOBSPEC_SET_BYTES) == ST_NO_MEMORY) {
        st = ST_NO_MEMORY;
    }
    free(sources);
    return st;
}

enum status jobspec_parse_within(const struct jobspec_origin *origin, const char *text, size_t size,
                                 const char *const *sets, size_t set_count, struct jobspec *out,
                                 struct buf *out_errors)
{
    if (origin->base_dir[0] != '/')
        return ST_INVALID;
    const struct jobspec_source file = {
        .name = origin->file_name, .text = text, .size = size, .line = 1
    };
    struct parsing parsing = { .set_count = set_count,
                               .base_dir = origin->base_dir,
                               .allowed = origin->allowed,
                               .look = origin->look,
                               .commands = origin->commands,
                               .taken = origin->taken,
                               .read = read_job };
    return parse_within(&parsing, &file, "--set", sets, out, out_errors);
}

enum status jobspec_parse_change(const char *const *sets, size_t set_count,
                                 struct jobspec_change *out, struct buf *out_errors)
{
    struct jobspec *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return ST_NO_MEMORY;
    const struct jobspec_source none = { .name = "set", .text = "", .line = 1 };
    struct parsing parsing = { .set_count = set_count, .base_dir = "/", .read = read_change };
    const enum status st = parse_within(&parsing, &none, "set", sets, job, out_errors);
    out->workers = job->workers.count;
    free(job);
    return st;
}
