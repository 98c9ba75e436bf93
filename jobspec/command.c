/* A job's command while it is read: arguments, environment, patterns, exit codes. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "jobspec/reader.h"
#include "jobspec/text/number.h"
#include "jobspec/text/texts.h"

static void refuse_size(struct reader *reader, const struct field *field,
                        struct jobspec_place place)
{
    jobspec_report_add(&reader->report, place, "put it into a script of its own",
                       "%s is longer than %zu bytes", field->path, field->size - 1);
}

/* ---- run ---- */

static bool check_argument(struct reader *reader, const struct field *field,
                           const struct tree_node *item, bool first)
{
    if (item->kind != TREE_SCALAR) {
        jobspec_report_add(&reader->report, item->place,
                           "write one text per argument, in quotes where it is empty",
                           "%s holds the program and its arguments", field->path);
        return false;
    }
    if (first && item->text[0] == '\0') {
        jobspec_report_add(&reader->report, item->place, "write the program first",
                           "%s names no program", field->path);
        return false;
    }
    if (texts_hold_controls(item->text, true)) {
        jobspec_report_add(&reader->report, item->place, "remove it",
                           "%s holds a control character", field->path);
        return false;
    }
    return true;
}

/* `run: [program, argument]`, or `run: program > log` for a shell. */
static bool read_run(struct reader *reader, const struct field *field, const struct tree_node *node)
{
    char *run = reader->job.command.run;
    size_t used = 0;
    bool good = true;
    if (node->kind == TREE_SCALAR) {
        if (node->text[strspn(node->text, " \t\n")] == '\0') {
            jobspec_report_add(&reader->report, node->place, "write a program",
                               "%s names no program", field->path);
            return false;
        }
        reader->job.command.shell = true;
        good = check_argument(reader, field, node, true);
        if (good && !texts_append(run, field->size, &used, node->text)) {
            refuse_size(reader, field, node->place);
            good = false;
        }
        return good;
    }
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        if (!check_argument(reader, field, item, item == node->first)) {
            good = false;
        } else if (good && !texts_append(run, field->size, &used, item->text)) {
            refuse_size(reader, field, item->place);
            return false;
        }
    }
    if (node->first == NULL) {
        jobspec_report_add(&reader->report, node->place, "write it as in [program, argument]",
                           "%s names no program", field->path);
        return false;
    }
    return good;
}

/* ---- environment ---- */

static bool begins_with(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* Returns what to do instead of setting a variable; NULL: it may be set. */
static const char *find_other_way(const char *name)
{
    static const struct {
        const char *name, *way_out; /* a name that ends with '_': all that begin so */
    } rows[] = {
        { "OMP_NUM_THREADS", "set workers.threads" },
        { "CUDA_VISIBLE_DEVICES", "set workers.device: cuda; each worker gets its own device" },
        { "LD_", "set it in a script of its own, which then starts the program" },
        { "CAIRN_", "remove it: these say how Cairn runs" },
        { "RANK", "remove it: each process is told its own" },
        { "WORLD_SIZE", "remove it; set workers.count and command.processes" },
        { "LOCAL_RANK", "remove it: each process is told its own" },
        { "LOCAL_WORLD_SIZE", "remove it; set command.processes" },
        { "GROUP_RANK", "remove it: each process is told its own" },
        { "GROUP_WORLD_SIZE", "remove it; set workers.count" },
        { "ROLE_", "remove it: each process is told its own" },
        { "MASTER_ADDR", "remove it: Cairn chooses where processes meet" },
        { "MASTER_PORT", "remove it: Cairn chooses where processes meet" },
        { "TORCHELASTIC_", "remove it: Cairn restarts the program, not torchrun" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const bool all = rows[i].name[strlen(rows[i].name) - 1] == '_';
        if (all ? begins_with(name, rows[i].name) : strcmp(name, rows[i].name) == 0)
            return rows[i].way_out;
    }
    return NULL;
}

static bool is_variable(const char *name)
{
    bool good = name[0] != '\0' && !isdigit((unsigned char)name[0]);
    for (const char *c = name; *c != '\0'; c++)
        good = good && (isalnum((unsigned char)*c) || *c == '_');
    return good;
}

static bool check_setting(struct reader *reader, const struct field *field,
                          const struct tree_node *item)
{
    const char *instead = find_other_way(item->key);
    if (!is_variable(item->key)) {
        jobspec_report_add(&reader->report, item->key_place,
                           "names are letters, digits and '_', no digit first",
                           "%s can't hold '%.100s'", field->path, item->key);
        return false;
    }
    if (instead != NULL) {
        jobspec_report_add(&reader->report, item->key_place, instead, "%s can't set %.100s",
                           field->path, item->key);
        return false;
    }
    if (item->kind != TREE_SCALAR) {
        jobspec_report_add(&reader->report,
                           item->kind == TREE_ABSENT ? item->key_place : item->place,
                           "write one value, \"\" for an empty one",
                           "%s.%.100s must be a single value", field->path, item->key);
        return false;
    }
    if (texts_hold_controls(item->text, true)) {
        jobspec_report_add(&reader->report, item->place, "remove it",
                           "%s.%.100s holds a control character", field->path, item->key);
        return false;
    }
    return true;
}

/* The member whose name comes next behind `before` (NULL: the first). */
static const struct tree_node *next_by_name(const struct tree_node *map,
                                            const struct tree_node *before)
{
    const struct tree_node *next = NULL;
    for (const struct tree_node *item = map->first; item != NULL; item = item->next) {
        if ((before == NULL || strcmp(item->key, before->key) > 0) &&
            (next == NULL || strcmp(item->key, next->key) < 0))
            next = item;
    }
    return next;
}

/* `env: {LR: "0.1"}` */
static bool read_names(struct reader *reader, const struct field *field,
                       const struct tree_node *node)
{
    char *texts = (char *)&reader->job + field->offset;
    char text[JOBSPEC_TEXTS_BYTES];
    size_t used = 0, count = 0;
    bool good = true;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        good = check_setting(reader, field, item) && good;
        count++;
    }
    if (count > JOBSPEC_VARIABLES_MAX) {
        jobspec_report_add(&reader->report, node->place, "remove some",
                           "%s sets at most %d variables", field->path, JOBSPEC_VARIABLES_MAX);
        return false;
    }
    for (const struct tree_node *item = next_by_name(node, NULL); good && item != NULL;
         item = next_by_name(node, item)) {
        const int size = snprintf(text, sizeof(text), "%s=%s", item->key, item->text);
        if (size < 0 || (size_t)size >= sizeof(text) ||
            !texts_append(texts, field->size, &used, text)) {
            refuse_size(reader, field, item->key_place);
            return false;
        }
    }
    return good;
}

/* ---- patterns ---- */

/* `on_output: ['CUDA error']` */
static bool read_patterns(struct reader *reader, const struct field *field,
                          const struct tree_node *node)
{
    char *texts = (char *)&reader->job + field->offset;
    size_t used = 0;
    bool good = true;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        struct refusal refusal;
        if (item->kind != TREE_SCALAR) {
            jobspec_report_add(&reader->report, item->place, "write it as in ['CUDA error']",
                               "%s holds patterns", field->path);
            good = false;
        } else if (value_read_pattern(field, item->text, NULL, &refusal) != ST_OK) {
            reader_refuse(reader, item->place, &refusal);
            good = false;
        } else if (!texts_append(texts, field->size, &used, item->text)) {
            jobspec_report_add(&reader->report, item->place, "remove some",
                               "the patterns of %s are longer than %zu bytes", field->path,
                               field->size - 1);
            return false;
        }
    }
    return good;
}

/* ---- modules ---- */

static bool is_module(const char *name)
{
    bool good = name[0] != '\0' && name[0] != '.' && !isdigit((unsigned char)name[0]);
    for (const char *c = name; *c != '\0'; c++)
        good = good && (isalnum((unsigned char)*c) || *c == '_' || (*c == '.' && c[1] != '\0'));
    return good;
}

/* `preload: [torch]` */
static bool read_modules(struct reader *reader, const struct field *field,
                         const struct tree_node *node)
{
    char *texts = (char *)&reader->job + field->offset;
    size_t used = 0;
    bool good = true;
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        if (item->kind != TREE_SCALAR || !is_module(item->text)) {
            jobspec_report_add(&reader->report, item->place, "write it as in [torch]",
                               "%s holds names of Python's modules", field->path);
            good = false;
        } else if (!texts_append(texts, field->size, &used, item->text)) {
            jobspec_report_add(&reader->report, item->place, "remove some",
                               "the names of %s are longer than %zu bytes", field->path,
                               field->size - 1);
            return false;
        }
    }
    return good;
}

/* True if the interpreter can do what the arguments say: python FILE, or python -m MODULE. */
static bool can_preload(const struct jobspec_command *command)
{
    const char *program = texts_next(command->run, NULL);
    const char *script = texts_next(command->run, program);
    const char *slash = strrchr(program, '/');
    const char *name = slash != NULL ? slash + 1 : program;
    if (command->shell || script == NULL || strncmp(name, "python", 6) != 0)
        return false;
    return script[0] != '-' ||
           (strcmp(script, "-m") == 0 && texts_next(command->run, script) != NULL);
}

void reader_check_preload(struct reader *reader)
{
    const struct jobspec_command *command = &reader->job.command;
    if (reader_has(reader, "command.preload") && reader_has(reader, "command.run") &&
        command->preload[0] != '\0' && !can_preload(command)) {
        reader_mistake(reader, "command.preload",
                       "write run as in [python3, train.py] or [python3, -m, train], or remove "
                       "this key",
                       "command.preload is for a program that Python runs");
    }
}

/* ---- exit codes ---- */

/* `on_exit_codes: [1, 75]`, kept in ascending order, each once. */
static bool read_codes(struct reader *reader, const struct field *field,
                       const struct tree_node *node)
{
    bool good = true;
    bool is_given[256] = { false };
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        int64_t code = 0;
        if (item->kind == TREE_SCALAR && number_whole(item->text, field->low, field->high, &code)) {
            is_given[code] = true;
            continue;
        }
        jobspec_report_add(
            &reader->report, item->place, "an exit by signal N counts as 128 + N; 0 is success",
            "%s holds whole numbers from %.16g to %.16g", field->path, field->low, field->high);
        good = false;
    }
    size_t count = 0;
    for (uint32_t code = 0; code < 256; code++) {
        if (!is_given[code])
            continue;
        if (count == JOBSPEC_CODES_MAX) {
            jobspec_report_add(&reader->report, node->place,
                               "remove the key: then every exit code is restarted",
                               "%s has at most %d codes", field->path, JOBSPEC_CODES_MAX);
            return false;
        }
        reader->job.command.restart.codes[count++] = code;
    }
    reader->job.command.restart.code_count = count;
    reader->job.command.restart.codes_given = good;
    return good;
}

bool reader_texts(struct reader *reader, const struct field *field, const struct tree_node *node)
{
    const bool map = field->kind == FIELD_NAMES;
    const bool one = field->kind == FIELD_RUN && node->kind == TREE_SCALAR;
    if (node->kind != (map ? TREE_MAP : TREE_LIST) && !one) {
        char way_out[LIMIT_REASON];
        (void)snprintf(way_out, sizeof(way_out), "write it as in %s", field->example);
        jobspec_report_add(&reader->report, node->place, way_out, "%s must be a %s", field->path,
                           map                        ? "section of names and values"
                           : field->kind == FIELD_RUN ? "list, or one text for a shell"
                                                      : "list");
        return false;
    }
    if (field->kind == FIELD_RUN)
        return read_run(reader, field, node);
    if (map)
        return read_names(reader, field, node);
    if (field->kind == FIELD_PATTERNS)
        return read_patterns(reader, field, node);
    if (field->kind == FIELD_MODULES)
        return read_modules(reader, field, node);
    return read_codes(reader, field, node);
}
