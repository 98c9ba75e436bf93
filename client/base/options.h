/*
 * Options as tables, commands as rows: parsing, help and completion all come from them.
 */
#pragma once

#include "client/base/client.h"

enum option_kind {
    OPTION_FLAG,     /* bool */
    OPTION_TEXT,     /* const char * */
    OPTION_NUMBER,   /* int64_t, >= 0 */
    OPTION_DURATION, /* int64_t in milliseconds: "30", "30s", "5m", "2h" */
    OPTION_FORMAT,   /* enum output_format */
    OPTION_SETS,     /* sets[] and set_count */
};

struct option {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* '\0': none */
    enum option_kind kind;
    size_t offset;     /* in struct arguments */
    const char *value; /* name of the value in help */
    const char *help;
};

/* What a positional argument is, for completion and messages. */
enum word_kind { WORD_NONE, WORD_JOB, WORD_FILE, WORD_CHECKPOINT, WORD_SHELL };

struct command {
    const char *noun; /* "ckpt"; NULL: a verb on its own */
    const char *verb;
    enum word_kind word;
    unsigned words_min, words_max;
    bool hidden;
    const char *usage;            /* "JOB [flags]" */
    const char *summary;          /* one line, starts with a verb, no full stop */
    const char *details;          /* more lines; or NULL */
    const char *examples;         /* lines without "cairn " in front */
    const struct option *options; /* besides the global ones */
    enum exit_code (*run)(struct client *client);
};

/* commands.c */
extern const struct option global_options[];
const struct command *command_table(size_t *out_count);

/* Absent values, before parsing. */
void arguments_init(struct arguments *args);

/*
 * Finds the command and parses all arguments (argv without the program's name); options may stand
 * anywhere, "--" ends them. out_command is NULL when only help was asked for or nothing was said.
 * Errors: ST_INVALID  a message for people is in out_error
 */
MUST_CHECK enum status arguments_parse(int argc, char *const *argv, struct arguments *out,
                                       const struct command **out_command, char *out_error,
                                       size_t error_size);

/* "30s", "5m", "2h", "1d", "500ms"; a number alone is seconds. false: it isn't one. */
bool duration_parse(const char *text, int64_t *out_ms);

/* help.c: to standard output */
void help_all(void);
void help_noun(const char *noun);
void help_command(const struct command *command);
/* Is this word a noun of the table? */
bool is_noun(const char *word);

/* completion.c: a script for "bash", "zsh" or "fish"; ST_NOT_FOUND: another shell. */
struct buf;
MUST_CHECK enum status completion_script(const char *shell, struct buf *out);
