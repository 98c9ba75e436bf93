/* Whether what a job file names lies where somebody may have it, and can be used
 * (jobspec_parse_within). */
#include <stdio.h>
#include <string.h>

#include "jobspec/reader.h"
#include "jobspec/text/texts.h"

static const char scheme[] = "s3://";

static bool is_s3(const char *text)
{
    return strncmp(text, scheme, sizeof(scheme) - 1) == 0;
}

/* The next of "A:B"; the colon of s3:// ends none. NULL: no more. */
static const char *next_entry(const char *at, size_t *out_size)
{
    if (*at == ':')
        at++;
    const size_t skip = is_s3(at) ? sizeof(scheme) - 1 : 0;
    *out_size = skip + strcspn(at + skip, ":");
    return *out_size > 0 ? at : NULL;
}

/* Normalises a path: drops empty, "." and ".." components, as if no folder were a link. False: too
 * long. */
static bool normalise(const char *path, size_t size, char out[LIMIT_PATH])
{
    size_t used = 0;
    if (size >= LIMIT_PATH)
        return false;
    for (size_t at = 0; at < size;) {
        size_t end = at;
        while (end < size && path[end] != '/')
            end++;
        const size_t part = end - at;
        const bool up = part == 2 && path[at] == '.' && path[at + 1] == '.';
        const bool none = part == 0 || (part == 1 && path[at] == '.');
        if (up) {
            while (used > 0 && out[--used] != '/') {
            }
        } else if (!none) {
            out[used++] = '/';
            memcpy(out + used, path + at, part);
            used += part;
        }
        at = end + 1;
    }
    out[used] = '\0';
    return true;
}

static bool is_under(const char *entry, size_t size, const char *path)
{
    char folder[LIMIT_PATH];
    char whole[LIMIT_PATH];
    if (is_s3(path) != is_s3(entry))
        return false;
    if (is_s3(path)) {
        if (strstr(path, "/..") != NULL || strstr(path, "/./") != NULL)
            return false; /* HTTP would take these away */
        (void)snprintf(folder, sizeof(folder), "%.*s", (int)size, entry);
        (void)snprintf(whole, sizeof(whole), "%s", path);
        while (size > 0 && folder[size - 1] == '/')
            folder[--size] = '\0';
    } else if (path[0] != '/' || !normalise(entry, size, folder) ||
               !normalise(path, strlen(path), whole)) {
        return false;
    }
    const size_t length = strlen(folder);
    return strncmp(whole, folder, length) == 0 && (whole[length] == '\0' || whole[length] == '/');
}

static bool is_allowed(const char *allowed, const char *path)
{
    size_t size = 0;
    for (const char *at = next_entry(allowed, &size); at != NULL;
         at = next_entry(at + size, &size)) {
        if (is_under(at, size, path))
            return true;
    }
    return false;
}

bool jobspec_allowed_valid(const char *allowed)
{
    size_t size = 0;
    const char *at = next_entry(allowed, &size);
    bool good = at != NULL && allowed[0] != ':';
    for (; good && at != NULL; at = next_entry(at + size, &size)) {
        const size_t least = is_s3(at) ? sizeof(scheme) : 1;
        good = (at[0] == '/' || is_s3(at)) && size >= least && size < LIMIT_PATH;
        allowed = at + size;
    }
    return good && *allowed == '\0';
}

static void refuse(struct reader *reader, struct jobspec_place place, const char *key,
                   const char *path)
{
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "write a path under one of %.400s", reader->allowed);
    jobspec_report_add(&reader->report, place, way_out,
                       "%s: this coordinator lets jobs from elsewhere name no such path: %.200s",
                       key, path);
}

/* NCCL writes and loads files that its variables name, of some a list; what it loads is code. */
static void check_env(struct reader *reader, const struct field *field,
                      const struct tree_node *node)
{
    for (const struct tree_node *item = node->first; item != NULL; item = item->next) {
        const bool code = strstr(item->key, "PLUGIN") != NULL;
        if (strchr(item->text, '/') != NULL && (code || strpbrk(item->text, ",;:") != NULL ||
                                                !is_allowed(reader->allowed, item->text)))
            refuse(reader, item->place, field->path, item->text);
    }
}

/* The program of a command, where a path names it; a relative one begins at the command's folder.
 * False: it is looked for in PATH, or by a shell. */
static bool program_path(const struct reader *reader, char out[2 * LIMIT_PATH])
{
    const struct jobspec_command *command = &reader->job.command;
    const char *program = texts_next(command->run, NULL);
    if (program == NULL || command->shell || strchr(program, '/') == NULL)
        return false;
    if (program[0] == '/') {
        (void)snprintf(out, (size_t)2 * LIMIT_PATH, "%s", program);
    } else {
        (void)snprintf(out, (size_t)2 * LIMIT_PATH, "%s/%s", command->workdir, program);
    }
    return true;
}

static const char run_key[] = "command.run";

static void check_command(struct reader *reader)
{
    char program[2 * LIMIT_PATH];
    bool found = false;
    const struct tree_node *node = reader_locate(reader, "command", &found);
    if (reader->kind == SCHEMA_MODEL || !found)
        return;
    if (!reader->commands) {
        jobspec_report_add(&reader->report, node->key_place,
                           "submit it on the coordinator's machine, or have that started with "
                           "--commands",
                           "this coordinator lets jobs from elsewhere run no command");
    } else if (program_path(reader, program) && !is_allowed(reader->allowed, program)) {
        refuse(reader, reader_place(reader, run_key), run_key, program);
    }
}

/* A library is code, as a command is. */
static void check_library(struct reader *reader)
{
    static const char key[] = "model.library";
    if (!reader->commands && reader_has(reader, key)) {
        jobspec_report_add(&reader->report, reader_place(reader, key),
                           "submit it on the coordinator's machine, have that started with "
                           "--commands, or write the nodes as model.graph",
                           "this coordinator lets jobs from elsewhere bring no code");
    }
}

void reader_check_allowed(struct reader *reader)
{
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    if (reader->allowed != NULL) {
        check_command(reader);
        check_library(reader);
    }
    for (size_t i = 0; i < count && reader->allowed != NULL; i++) {
        const struct field *field = &fields[i];
        const struct tree_node *node = reader->given[i].node;
        if (field->offset == FIELD_NOWHERE || reader->given[i].bad)
            continue;
        if (field->kind == FIELD_ENV && node != NULL)
            check_env(reader, field, node);
        if (field->kind != FIELD_PATH && field->kind != FIELD_STORE)
            continue;
        char *path = (char *)&reader->job + field->offset;
        char whole[LIMIT_PATH];
        if (path[0] != '\0' && !is_allowed(reader->allowed, path)) {
            refuse(reader, reader_place(reader, field->path), field->path, path);
        } else if (path[0] == '/' && normalise(path, strlen(path), whole)) {
            /* The path that is opened must be the one that was checked: ".." behind a link would
             * lead elsewhere. */
            (void)snprintf(path, LIMIT_PATH, "%s", whole[0] ? whole : "/");
        }
    }
}

/* ---- can it be used? ---- */

void reader_name_store_once(struct reader *reader)
{
    char *store = reader->job.checkpoint.store;
    if (reader->taken || strncmp(store, scheme, sizeof(scheme) - 1) != 0)
        return;
    char *to = store + sizeof(scheme) - 1;
    for (const char *from = to; *from != '\0'; from++) {
        if (*from != '/' || (from[1] != '/' && from[1] != '\0'))
            *to++ = *from;
    }
    *to = '\0';
}

void reader_check_room(struct reader *reader)
{
    static const char key[] = "checkpoint.store";
    const size_t size = strlen(reader->job.checkpoint.store);
    if (reader->taken || size < LIMIT_STORE || !reader_is_good(reader, key))
        return;
    reader_mistake(reader, key, "use a shorter path",
                   "%s has %zu bytes, and %d at most leave room for the names that are made in it",
                   key, size, LIMIT_STORE - 1);
}

static enum jobspec_named_kind kind_of(const struct reader *reader, const struct field *field)
{
    if (field->offset == offsetof(struct jobspec, command.workdir))
        return JOBSPEC_NAMED_FOLDER;
    if (field->offset == offsetof(struct jobspec, command.folder))
        return JOBSPEC_NAMED_MADE;
    const bool train = strcmp(field->path, "data.train.path") == 0;
    const bool eval = strcmp(field->path, "data.eval.path") == 0;
    const enum jobspec_format format =
        eval ? reader->job.data.eval.format : reader->job.data.train.format;
    if (field->kind == FIELD_STORE)
        return JOBSPEC_NAMED_STORE;
    return (train || eval) && format == JOBSPEC_FORMAT_TOKENS ? JOBSPEC_NAMED_FILES
                                                              : JOBSPEC_NAMED_FILE;
}

static void check_usable(struct reader *reader, const struct jobspec_named *named)
{
    char cause[LIMIT_REASON], way_out[LIMIT_REASON];
    if (named->path[0] != '\0' && !reader->look->usable(reader->look->arg, named, cause, way_out)) {
        jobspec_report_add(&reader->report, reader_place(reader, named->key), way_out, "%s", cause);
    }
}

void reader_check_usable(struct reader *reader)
{
    char program[2 * LIMIT_PATH];
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    for (size_t i = 0; i < count && reader->look != NULL; i++) {
        const struct field *field = &fields[i];
        if ((field->kind != FIELD_PATH && field->kind != FIELD_STORE) || reader->given[i].bad)
            continue;
        const struct jobspec_named named = { .key = field->path,
                                             .path = (const char *)&reader->job + field->offset,
                                             .kind = kind_of(reader, field) };
        check_usable(reader, &named);
    }
    /* A workdir that isn't there says enough. */
    if (reader->look == NULL || !reader_is_good(reader, run_key) ||
        !program_path(reader, program) || !jobspec_report_empty(&reader->report))
        return;
    const struct jobspec_named named = { .key = run_key,
                                         .path = program,
                                         .kind = JOBSPEC_NAMED_PROGRAM };
    check_usable(reader, &named);
}
