/*
 * Options as tables, commands as rows: parsing, help and completion all come from them. Whoever
 * needs the table is handed it; the one of `cairn` stands above all commands (client/commands.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/base/exit.h"
#include "common/reason.h"
#include "common/status.h"
#include "identity/files.h"

#define ARGUMENTS_SETS_MAX     64 /* --set of one call */
#define ARGUMENTS_OPERANDS_MAX 8  /* job, file and so on of one call */

enum output_format {
    OUTPUT_TABLE,
    OUTPUT_WIDE,
    OUTPUT_JSON,
    OUTPUT_JSONL,
    OUTPUT_NAME,
    OUTPUT_CSV
};

/* The options that a call of `cairn` gave. Absent numbers are -1, absent texts NULL. */
struct arguments {
    const char *addr;
    const char *context;           /* by whose name the coordinator is meant; "-": none */
    const char *home, *token_file; /* of a context to add */
    enum output_format output;
    bool no_color, quiet, watch, help;
    bool wait, follow, foreground, force;
    bool all_ended, checkpoints; /* jobs to remove; with what lies in their stores */
    bool pairs, all;             /* of a check of nodes */
    bool once;                   /* of top */
    const char *sets[ARGUMENTS_SETS_MAX];
    size_t set_count;
    const char *listen;
    const char *advertise, *paths; /* of a coordinator */
    bool commands;                 /* with paths: all the same */
    const char *page;              /* of an observer */
    bool viewer;                   /* of a link to the page */
    bool revoke;                   /* all that let anybody in to the page */
    const char *device;
    const char *names, *dtype, *only;  /* of an export */
    const char *job_file, *to;         /* of an import */
    const char *dir, *cluster, *hosts; /* of certificates */
    const char *key, *ca;
    struct identity_files tls;  /* of a coordinator on another machine */
    const char *reason;         /* of a drain */
    const char *bundle;         /* where replies are recorded, instead of a coordinator */
    const char *sort, *columns; /* of a listing, or a difference */
    const char *since;          /* of metrics and logs */
    const char *level, *grep;
    const char *state, *name; /* of jobs to list */
    int64_t last;
    int64_t rank, attempt, slots, ranks, rate, uses;
    int64_t timeout_ms, grace_ms, valid_ms, deadline_ms, interval_ms, older_ms;
    const char *operands[ARGUMENTS_OPERANDS_MAX];
    size_t operand_count;
};

enum option_kind {
    OPTION_FLAG,        /* bool */
    OPTION_TEXT,        /* const char * */
    OPTION_NUMBER,      /* int64_t, >= 0 */
    OPTION_DURATION,    /* int64_t in milliseconds: "30", "30s", "5m", "2h" */
    OPTION_FORMAT,      /* enum output_format but OUTPUT_CSV */
    OPTION_ROWS_FORMAT, /* enum output_format */
    OPTION_SETS,        /* sets[] and set_count */
};

struct option {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* '\0': none */
    enum option_kind kind;
    size_t offset;     /* in struct arguments */
    const char *value; /* name of the value in help */
    const char *help;
};

/* The kind of an operand (an argument that is no option), for completion and messages. */
enum operand_kind {
    OPERAND_NONE,
    OPERAND_JOB,
    OPERAND_FILE,
    OPERAND_CHECKPOINT,
    OPERAND_SHELL,
    OPERAND_NODE,
    OPERAND_WEBHOOK,
    OPERAND_CONTEXT,
    OPERAND_SETTING /* a job, then key=value */
};

/* Under which title the list of all commands has one. */
enum command_group {
    GROUP_JOBS,
    GROUP_CHECKPOINTS,
    GROUP_NODES,
    GROUP_CERTIFICATES,
    GROUP_CLUSTER,
    COMMAND_GROUPS
};

struct client;

struct command {
    const char *noun; /* "ckpt"; NULL: a verb on its own */
    const char *verb;
    enum operand_kind operand;
    unsigned operands_min, operands_max;
    bool hidden;
    const char *usage;            /* "JOB [flags]" */
    const char *summary;          /* one line, starts with a verb, no full stop */
    const char *details;          /* more lines; or NULL */
    const char *examples;         /* lines without "cairn " in front */
    const struct option *options; /* besides those of every command */
    enum exit_code (*run)(struct client *client);
    enum command_group group;
};

struct command_table {
    const struct command *commands; /* those of a noun stand together */
    size_t count;
    const struct option *options; /* of every command */
};

/*
 * Finds the command and parses all arguments (argv without the program's name); options may stand
 * anywhere, "--" ends them. out_command is NULL when only help was asked for or nothing was said;
 * of help about a noun, that noun is the only operand.
 * Errors: ST_INVALID  reason says why
 */
MUST_CHECK enum status arguments_parse(const struct command_table *table, int argc,
                                       char *const *argv, struct arguments *out,
                                       const struct command **out_command, struct reason *reason);

/* "30s", "5m", "2h", "1d", "500ms"; a number alone is seconds. false: it isn't one. */
bool option_duration_parse(const char *text, int64_t *out_ms);
