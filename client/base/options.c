#include "client/base/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobspec/text/suggest.h"

/* Where parsing is. */
struct parser {
    const struct command_table *table;
    int argc;
    char *const *argv;
    int at;
    struct arguments *args;
    const struct command *command;
    const char *noun; /* read, its verb not yet */
    struct reason reason;
};

static enum status refuse_call(struct parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum status refuse_call(struct parser *parser, const char *format, ...)
{
    char text[LIMIT_REASON];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    reason_set(&parser->reason, "%s", text);
    return ST_INVALID;
}

bool option_duration_parse(const char *text, int64_t *out_ms)
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

static enum status store_option(struct parser *parser, const struct option *option,
                                const char *value)
{
    static const char *const formats[] = {
        [OUTPUT_TABLE] = "table", [OUTPUT_WIDE] = "wide", [OUTPUT_JSON] = "json",
        [OUTPUT_JSONL] = "jsonl", [OUTPUT_NAME] = "name", [OUTPUT_CSV] = "csv"
    };
    void *out = (char *)parser->args + option->offset;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)out = true;
        return ST_OK;
    case OPTION_TEXT:
        *(const char **)out = value;
        return ST_OK;
    case OPTION_NUMBER: {
        char *end = NULL;
        errno = 0;
        long long number = strtoll(value, &end, 10);
        if (errno != 0 || *end != '\0' || end == value || number < 0)
            return refuse_call(parser, "--%s needs a whole number, not '%s'", option->name, value);
        if (number > UINT32_MAX)
            return refuse_call(parser, "--%s: %s is too large", option->name, value);
        *(int64_t *)out = number;
        return ST_OK;
    }
    case OPTION_DURATION:
        if (!option_duration_parse(value, out)) {
            return refuse_call(parser, "--%s needs a time like 30s or 5m, not '%s'", option->name,
                               value);
        }
        return ST_OK;
    case OPTION_FORMAT:
    case OPTION_ROWS_FORMAT:
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
            if (strcmp(formats[i], value) == 0 &&
                (i != OUTPUT_CSV || option->kind == OPTION_ROWS_FORMAT)) {
                *(enum output_format *)out = (enum output_format)i;
                return ST_OK;
            }
        }
        return refuse_call(parser, "-o takes %s, not '%s'", option->help, value);
    case OPTION_SETS:
        if (parser->args->set_count == ARGUMENTS_SETS_MAX)
            return refuse_call(parser, "more than %d times --set", ARGUMENTS_SETS_MAX);
        parser->args->sets[parser->args->set_count++] = value;
        return ST_OK;
    }
    return ST_INVALID;
}

/* Looks in the command's options, then in those of every command; by name, or by letter if name is
 * NULL. */
static const struct option *find_option(const struct parser *parser, const char *name, size_t size,
                                        char letter)
{
    const struct option *tables[] = { parser->command == NULL ? NULL : parser->command->options,
                                      parser->table->options };
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

static const struct command *find_command(const struct command_table *table, const char *noun,
                                          const char *verb)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct command *command = &table->commands[i];
        bool same_noun = noun == NULL ? command->noun == NULL
                                      : command->noun != NULL && strcmp(command->noun, noun) == 0;
        if (same_noun && strcmp(command->verb, verb) == 0)
            return command;
    }
    return NULL;
}

#define WITH_WEIGHTS                                                                               \
    "another job starts with the weights of this one: 'cairn ckpt export JOB FILE', then 'cairn "  \
    "submit JOBFILE --set model.weights=FILE'"

/* What people who come from elsewhere call. */
static const struct {
    const char *word, *meant;
} commands_elsewhere[] = {
    { "sbatch", "submit" },
    { "srun", "submit" },
    { "salloc", "submit" },
    { "qsub", "submit" },
    { "bsub", "submit" },
    { "torchrun", "submit" },
    { "run", "submit" },
    { "train", "submit" },
    { "launch", "submit" },
    { "create", "submit" },
    { "apply", "submit" },
    { "check", "plan" },
    { "validate", "plan" },
    { "squeue", "ps" },
    { "sacct", "ps" },
    { "list", "ps" },
    { "ls", "ps" },
    { "jobs", "ps" },
    { "qstat", "ps" },
    { "bjobs", "ps" },
    { "scancel", "stop" },
    { "cancel", "stop" },
    { "delete", "stop" },
    { "qdel", "stop" },
    { "bkill", "stop" },
    { "scontrol", "show" },
    { "status", "show" },
    { "describe", "show" },
    { "get", "show" },
    { "info", "show" },
    { "tail", "logs" },
    { "log", "logs" },
    { "attach", "watch" },
    { "wait", "watch" },
    { "htop", "top" },
    { "k9s", "top" },
    { "sview", "top" },
    { "nvtop", "top" },
    { "dashboard", "top" },
    { "explain", "why" },
    { "events", "why" },
    { "history", "why" },
    { "suspend", "pause" },
    { "hold", "pause" },
    { "continue", "resume" },
    { "release", "resume" },
    { "scale", "set" },
    { "start", "up" },
    { "init", "up" },
    { "shutdown", "down" },
    { "nodes", "node ls" },
    { "sinfo", "node ls" },
    { "drain", "node drain" },
    { "cordon", "node drain" },
    { "uncordon", "node undrain" },
    { "checkpoint", "ckpt ls" },
    { "checkpoints", "ckpt ls" },
    { "export", "ckpt export" },
    { "import", "ckpt import" },
    { "verify", "ckpt verify" },
    { "diff", "ckpt diff" },
};

/* Words that no command here has, and what there is instead. */
static const struct {
    const char *word, *hint;
} commands_missing[] = {
    { "extend", WITH_WEIGHTS },
    { "fork", WITH_WEIGHTS },
};

/* Verbs of other tools, and the verb of a noun that is meant. */
static const struct {
    const char *word, *meant;
} verbs_elsewhere[] = {
    { "list", "ls" },      { "delete", "rm" },        { "remove", "rm" }, { "del", "rm" },
    { "status", "show" },  { "describe", "show" },    { "info", "show" }, { "check", "verify" },
    { "cordon", "drain" }, { "uncordon", "undrain" },
};

/* The verb that a word stands for elsewhere, if this noun has it. */
static const char *verb_meant(const struct command_table *table, const char *noun, const char *word)
{
    for (size_t i = 0; i < sizeof(verbs_elsewhere) / sizeof(verbs_elsewhere[0]); i++) {
        const char *meant = verbs_elsewhere[i].meant;
        if (strcmp(verbs_elsewhere[i].word, word) == 0 && find_command(table, noun, meant) != NULL)
            return meant;
    }
    return NULL;
}

/* Options of other tools for commands that take a job file. */
static const struct {
    const char *option, *hint;
} options_elsewhere[] = {
    { "name", "the name stands in the job file; --set name=NAME replaces it" },
    { "dry-run", "'cairn plan FILE' checks a job file and starts nothing" },
    { "workers", "--set workers.count=N" },
    { "nproc", "--set workers.count=N" },
    { "gpus", "--set workers.device=cuda --set workers.count=N" },
    { "device", "--set workers.device=cuda" },
    { "from",
      "--set model.weights=FILE starts with weights; 'cairn ckpt export' makes such a file" },
    { "priority", "jobs train in the order of submission; 'cairn pause' makes room" },
    { "detach", "without --wait and --watch it returns at once" },
};

static enum status refuse_option(struct parser *parser, const char *text)
{
    size_t size = strcspn(text + strspn(text, "-"), "=");
    bool of_file = parser->command != NULL && parser->command->operand == OPERAND_FILE;
    for (size_t i = 0; of_file && i < sizeof(options_elsewhere) / sizeof(options_elsewhere[0]);
         i++) {
        const char *word = options_elsewhere[i].option;
        if (strlen(word) == size && strncmp(word, text + strspn(text, "-"), size) == 0) {
            return refuse_call(parser, "there is no option %s; %s", text,
                               options_elsewhere[i].hint);
        }
    }
    const struct option *tables[] = { parser->command == NULL ? NULL : parser->command->options,
                                      parser->table->options };
    const char *best = NULL;
    size_t distance = suggest_limit(text + strspn(text, "-")) + 1;
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
        return refuse_call(parser, "there is no option %s; did you mean --%s?", text, best);
    return refuse_call(parser, "there is no option %s%s", text,
                       parser->command == NULL ? " (options of a command come behind it)" : "");
}

static enum status parse_long(struct parser *parser, const char *text)
{
    const char *equals = strchr(text, '=');
    size_t size = equals == NULL ? strlen(text) : (size_t)(equals - text);
    const struct option *option = find_option(parser, text + 2, size - 2, '\0');
    if (option == NULL && parser->command == NULL && strcmp(text, "--version") == 0) {
        parser->command = find_command(parser->table, NULL, "version");
        return parser->command == NULL ? refuse_option(parser, text) : ST_OK;
    }
    if (option == NULL)
        return refuse_option(parser, text);
    const char *value = equals == NULL ? NULL : equals + 1;
    if (option->kind == OPTION_FLAG && value != NULL)
        return refuse_call(parser, "--%s takes no value", option->name);
    if (option->kind != OPTION_FLAG && value == NULL) {
        if (parser->at >= parser->argc)
            return refuse_call(parser, "--%s needs a value: %s", option->name, option->value);
        value = parser->argv[parser->at++];
    }
    return store_option(parser, option, value);
}

/* "-f", "-ojson", "-qf" */
static enum status parse_short(struct parser *parser, const char *text)
{
    for (const char *letter = text + 1; *letter != '\0'; letter++) {
        const struct option *option = find_option(parser, NULL, 0, *letter);
        if (option == NULL)
            return refuse_option(parser, text);
        const char *value = NULL;
        if (option->kind != OPTION_FLAG) {
            value = letter[1] != '\0' ? letter + 1 : NULL;
            if (value == NULL && parser->at < parser->argc)
                value = parser->argv[parser->at++];
            if (value == NULL)
                return refuse_call(parser, "-%c needs a value: %s", *letter, option->value);
        }
        enum status st = store_option(parser, option, value);
        if (st != ST_OK || value != NULL)
            return st;
    }
    return ST_OK;
}

static bool is_noun(const struct command_table *table, const char *word)
{
    for (size_t i = 0; i < table->count; i++) {
        const char *noun = table->commands[i].noun;
        if (noun != NULL && strcmp(noun, word) == 0)
            return true;
    }
    return false;
}

static enum status refuse_command(struct parser *parser, const char *word)
{
    const char *best = NULL;
    size_t distance = suggest_limit(word) + 1;
    for (size_t i = 0; i < parser->table->count; i++) {
        const struct command *command = &parser->table->commands[i];
        if (command->hidden || (command->noun == NULL) != (parser->noun == NULL) ||
            (parser->noun != NULL && strcmp(command->noun, parser->noun) != 0))
            continue;
        size_t d = suggest_distance(command->verb, word);
        if (d < distance) {
            distance = d;
            best = command->verb;
        }
    }
    for (size_t i = 0; i < sizeof(commands_elsewhere) / sizeof(commands_elsewhere[0]); i++) {
        if (parser->noun == NULL && strcmp(commands_elsewhere[i].word, word) == 0)
            best = commands_elsewhere[i].meant;
    }
    for (size_t i = 0; i < sizeof(commands_missing) / sizeof(commands_missing[0]); i++) {
        if (parser->noun == NULL && strcmp(commands_missing[i].word, word) == 0) {
            return refuse_call(parser, "there is no command '%s'; %s", word,
                               commands_missing[i].hint);
        }
    }
    if (parser->noun != NULL && verb_meant(parser->table, parser->noun, word) != NULL)
        best = verb_meant(parser->table, parser->noun, word);
    const char *noun = parser->noun == NULL ? "" : parser->noun;
    const char *space = parser->noun == NULL ? "" : " ";
    if (best != NULL) {
        return refuse_call(parser, "there is no command '%s%s%s'; did you mean 'cairn %s%s%s'?",
                           noun, space, word, noun, space, best);
    }
    return refuse_call(parser, "there is no command '%s%s%s'; 'cairn -h' lists them", noun, space,
                       word);
}

static enum status parse_word(struct parser *parser, const char *word)
{
    struct arguments *args = parser->args;
    if (parser->command != NULL) {
        if (args->operand_count >= parser->command->operands_max ||
            args->operand_count == ARGUMENTS_OPERANDS_MAX)
            return refuse_call(parser, "'%s' is one argument too many", word);
        args->operands[args->operand_count++] = word;
        return ST_OK;
    }
    if (parser->noun == NULL && !args->help && strcmp(word, "help") == 0) {
        args->help = true; /* cairn help COMMAND */
        return ST_OK;
    }
    if (parser->noun == NULL && is_noun(parser->table, word)) {
        parser->noun = word;
        return ST_OK;
    }
    parser->command = find_command(parser->table, parser->noun, word);
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

/* What it prints has one form, which scripts read as it is. */
static bool has_one_form(const struct command *command)
{
    static const char *const verbs[] = { "up", "down", "open", "completion" };
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (command->noun == NULL && strcmp(command->verb, verbs[i]) == 0)
            return true;
    }
    return false;
}

static enum status check_complete(struct parser *parser)
{
    struct arguments *args = parser->args;
    const char *noun = parser->noun == NULL ? "" : parser->noun;
    if (parser->command != NULL && args->output != OUTPUT_TABLE && has_one_form(parser->command)) {
        return refuse_call(parser, "cairn %s prints the same in every format: leave -o away",
                           parser->command->verb);
    }
    if (parser->command == NULL && parser->noun != NULL && !args->help)
        return refuse_call(parser, "'cairn %s' needs a verb; 'cairn %s -h' lists them", noun, noun);
    if (parser->command == NULL && parser->noun != NULL)
        args->operands[args->operand_count++] = parser->noun; /* what help is about */
    /* A bundle may have one job only. */
    const unsigned spared =
        args->bundle != NULL && parser->command != NULL && parser->command->operand == OPERAND_JOB;
    if (parser->command != NULL && !args->help &&
        args->operand_count + spared < parser->command->operands_min) {
        return refuse_call(parser, "something is missing: cairn %s%s%s %s", noun,
                           parser->noun == NULL ? "" : " ", parser->command->verb,
                           parser->command->usage);
    }
    return ST_OK;
}

enum status arguments_parse(const struct command_table *table, int argc, char *const *argv,
                            struct arguments *out, const struct command **out_command,
                            struct reason *reason)
{
    struct arguments args = {
        .rank = -1,
        .attempt = -1,
        .slots = -1,
        .ranks = -1,
        .last = -1,
        .rate = -1,
        .uses = -1,
        .timeout_ms = -1,
        .grace_ms = -1,
        .valid_ms = -1,
        .deadline_ms = -1,
        .older_ms = -1,
        .interval_ms = -1,
    };
    struct parser parser = { .table = table, .argc = argc, .argv = argv, .args = &args };
    enum status st = parse_all(&parser);
    if (st == ST_OK)
        st = check_complete(&parser);
    if (st != ST_OK) {
        *reason = parser.reason;
        return st;
    }
    *out = args;
    *out_command = parser.command;
    return ST_OK;
}
