#include "client/base/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/suggest.h"

/* Where parsing is. */
struct parser {
    int argc;
    char *const *argv;
    int at;
    struct arguments *args;
    const struct command *command;
    const char *noun; /* read, its verb not yet */
    char error[512];
};

void arguments_init(struct arguments *args)
{
    *args = (struct arguments){
        .rank = -1, .attempt = -1, .slots = -1, .ranks = -1, .rate = -1, .timeout_ms = -1
    };
}

static enum status refuse(struct parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum status refuse(struct parser *parser, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(parser->error, sizeof(parser->error), format, list);
    va_end(list);
    return ST_INVALID;
}

bool duration_parse(const char *text, int64_t *out_ms)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = { { "", 1e3 },     { "s", 1e3 },    { "ms", 1 },     { "m", 60e3 },
                  { "min", 60e3 }, { "h", 3600e3 }, { "d", 86400e3 } };
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9')
        return false;
    double value = strtod(text, &end);
    end += strspn(end, " ");
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        double ms = value * units[i].factor;
        if (strcmp(end, units[i].unit) == 0 && isfinite(ms) && ms < 1e15) {
            *out_ms = (int64_t)ms;
            return true;
        }
    }
    return false;
}

static enum status store(struct parser *parser, const struct option *option, const char *value)
{
    static const char *const formats[] = { [OUTPUT_TABLE] = "table",
                                           [OUTPUT_WIDE] = "wide",
                                           [OUTPUT_JSON] = "json",
                                           [OUTPUT_JSONL] = "jsonl",
                                           [OUTPUT_NAME] = "name" };
    void *slot = (char *)parser->args + option->offset;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)slot = true;
        return ST_OK;
    case OPTION_TEXT:
        *(const char **)slot = value;
        return ST_OK;
    case OPTION_NUMBER: {
        char *end = NULL;
        errno = 0;
        long long number = strtoll(value, &end, 10);
        if (errno != 0 || *end != '\0' || end == value || number < 0)
            return refuse(parser, "--%s needs a whole number, not '%s'", option->name, value);
        *(int64_t *)slot = number;
        return ST_OK;
    }
    case OPTION_DURATION:
        if (!duration_parse(value, slot)) {
            return refuse(parser, "--%s needs a time like 30s or 5m, not '%s'", option->name,
                          value);
        }
        return ST_OK;
    case OPTION_FORMAT:
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
            if (strcmp(formats[i], value) == 0) {
                *(enum output_format *)slot = (enum output_format)i;
                return ST_OK;
            }
        }
        return refuse(parser, "-o takes table, wide, json, jsonl or name, not '%s'", value);
    case OPTION_SETS:
        if (parser->args->set_count == ARGUMENTS_MAX)
            return refuse(parser, "more than %d times --set", ARGUMENTS_MAX);
        parser->args->sets[parser->args->set_count++] = value;
        return ST_OK;
    }
    return ST_INVALID;
}

/* Looks in the command's options, then in the global ones; by name, or by letter if name is NULL.
 */
static const struct option *find_option(const struct command *command, const char *name,
                                        size_t size, char letter)
{
    const struct option *tables[] = { command == NULL ? NULL : command->options, global_options };
    for (size_t i = 0; i < 2; i++) {
        for (const struct option *option = tables[i]; option != NULL && option->name != NULL;
             option++) {
            if (name != NULL && strlen(option->name) == size &&
                strncmp(option->name, name, size) == 0)
                return option;
            if (name == NULL && option->letter == letter)
                return option;
        }
    }
    return NULL;
}

static enum status refuse_option(struct parser *parser, const char *text)
{
    const struct option *tables[] = { parser->command == NULL ? NULL : parser->command->options,
                                      global_options };
    const char *best = NULL;
    size_t distance = 3;
    for (size_t i = 0; i < 2; i++) {
        for (const struct option *option = tables[i]; option != NULL && option->name != NULL;
             option++) {
            size_t d = suggest_distance(option->name, text + strspn(text, "-"));
            if (d < distance) {
                distance = d;
                best = option->name;
            }
        }
    }
    if (best != NULL)
        return refuse(parser, "there is no option %s; did you mean --%s?", text, best);
    return refuse(parser, "there is no option %s%s", text,
                  parser->command == NULL ? " (options of a command come behind it)" : "");
}

static enum status parse_long(struct parser *parser, const char *text)
{
    const char *equals = strchr(text, '=');
    size_t size = equals == NULL ? strlen(text) : (size_t)(equals - text);
    const struct option *option = find_option(parser->command, text + 2, size - 2, '\0');
    if (option == NULL)
        return refuse_option(parser, text);
    const char *value = equals == NULL ? NULL : equals + 1;
    if (option->kind == OPTION_FLAG && value != NULL)
        return refuse(parser, "--%s takes no value", option->name);
    if (option->kind != OPTION_FLAG && value == NULL) {
        if (parser->at >= parser->argc)
            return refuse(parser, "--%s needs a value: %s", option->name, option->value);
        value = parser->argv[parser->at++];
    }
    return store(parser, option, value);
}

/* "-f", "-ojson", "-qf" */
static enum status parse_short(struct parser *parser, const char *text)
{
    for (const char *letter = text + 1; *letter != '\0'; letter++) {
        const struct option *option = find_option(parser->command, NULL, 0, *letter);
        if (option == NULL)
            return refuse_option(parser, text);
        const char *value = NULL;
        if (option->kind != OPTION_FLAG) {
            value = letter[1] != '\0' ? letter + 1 : NULL;
            if (value == NULL && parser->at < parser->argc)
                value = parser->argv[parser->at++];
            if (value == NULL)
                return refuse(parser, "-%c needs a value: %s", *letter, option->value);
        }
        enum status st = store(parser, option, value);
        if (st != ST_OK || value != NULL)
            return st;
    }
    return ST_OK;
}

static const struct command *find_command(const char *noun, const char *verb)
{
    size_t count = 0;
    const struct command *table = command_table(&count);
    for (size_t i = 0; i < count; i++) {
        const struct command *command = &table[i];
        bool same_noun = noun == NULL ? command->noun == NULL
                                      : command->noun != NULL && strcmp(command->noun, noun) == 0;
        if (same_noun && strcmp(command->verb, verb) == 0)
            return command;
    }
    return NULL;
}

static enum status refuse_command(struct parser *parser, const char *word)
{
    size_t count = 0;
    const struct command *table = command_table(&count);
    const char *best = NULL;
    size_t distance = suggest_limit(word) + 1;
    for (size_t i = 0; i < count; i++) {
        if (table[i].hidden || (table[i].noun == NULL) != (parser->noun == NULL) ||
            (parser->noun != NULL && strcmp(table[i].noun, parser->noun) != 0))
            continue;
        size_t d = suggest_distance(table[i].verb, word);
        if (d < distance) {
            distance = d;
            best = table[i].verb;
        }
    }
    const char *noun = parser->noun == NULL ? "" : parser->noun;
    const char *space = parser->noun == NULL ? "" : " ";
    if (best != NULL) {
        return refuse(parser, "there is no command '%s%s%s'; did you mean 'cairn %s%s%s'?", noun,
                      space, word, noun, space, best);
    }
    return refuse(parser, "there is no command '%s%s%s'; 'cairn -h' lists them", noun, space, word);
}

static enum status parse_word(struct parser *parser, const char *word)
{
    struct arguments *args = parser->args;
    if (parser->command != NULL) {
        if (args->word_count >= parser->command->words_max || args->word_count == WORDS_MAX)
            return refuse(parser, "'%s' is one argument too many", word);
        args->words[args->word_count++] = word;
        return ST_OK;
    }
    if (parser->noun == NULL && is_noun(word)) {
        parser->noun = word;
        return ST_OK;
    }
    parser->command = find_command(parser->noun, word);
    return parser->command == NULL ? refuse_command(parser, word) : ST_OK;
}

/* Up to the last word. */
static enum status parse_all(struct parser *parser)
{
    bool only_words = false;
    while (parser->at < parser->argc) {
        const char *text = parser->argv[parser->at++];
        enum status st;
        if (!only_words && strcmp(text, "--") == 0) {
            only_words = true;
            continue;
        }
        if (!only_words && strncmp(text, "--", 2) == 0) {
            st = parse_long(parser, text);
        } else if (!only_words && text[0] == '-' && text[1] != '\0') {
            st = parse_short(parser, text);
        } else {
            st = parse_word(parser, text);
        }
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status check_complete(struct parser *parser)
{
    struct arguments *args = parser->args;
    const char *noun = parser->noun == NULL ? "" : parser->noun;
    if (parser->command == NULL && parser->noun != NULL && !args->help)
        return refuse(parser, "'cairn %s' needs a verb; 'cairn %s -h' lists them", noun, noun);
    if (parser->command == NULL && parser->noun != NULL)
        args->words[args->word_count++] = parser->noun; /* what help is about */
    if (parser->command != NULL && !args->help && args->word_count < parser->command->words_min) {
        return refuse(parser, "something is missing: cairn %s%s%s %s", noun,
                      parser->noun == NULL ? "" : " ", parser->command->verb,
                      parser->command->usage);
    }
    return ST_OK;
}

enum status arguments_parse(int argc, char *const *argv, struct arguments *out,
                            const struct command **out_command, char *out_error, size_t error_size)
{
    struct arguments args;
    struct parser parser = { .argc = argc, .argv = argv, .args = &args };
    arguments_init(&args);
    enum status st = parse_all(&parser);
    if (st == ST_OK)
        st = check_complete(&parser);
    if (st != ST_OK) {
        (void)snprintf(out_error, error_size, "%s", parser.error);
        return st;
    }
    *out = args;
    *out_command = parser.command;
    return ST_OK;
}
