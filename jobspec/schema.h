/*
 * What a job file may say: one table, a row per key, in the order in which a job is printed.
 *
 * Every name of the format has a row from the start. What this version doesn't build is marked: a
 * row with FIELD_UNBUILT accepts only its default, the words behind '|' are known and refused.
 * Words that are a value of their own are the enums of jobspec/words.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "jobspec/jobspec.h"

#define FIELDS_MAX       128
#define FIELD_NOWHERE    sizeof(struct jobspec) /* offset of what is read but not kept */
#define FIELD_WORD_BYTES 64 /* the longest word, or key in its section, with the NUL */
#define FIELD_BIT(value) (1u << (value))

enum field_kind {
    FIELD_NAME,     /* char[LIMIT_NAME] */
    FIELD_WORD,     /* an enum of jobspec/words.h, whose list words is made of */
    FIELD_WORDS,    /* a struct of one bool per word, in their order: a list of words */
    FIELD_INT,      /* int64_t; the one word that is accepted besides is 0 */
    FIELD_COUNTS,   /* uint32_t[LIMIT_RANKS]: a list of numbers */
    FIELD_CUTS,     /* struct jobspec_cuts: a number of stages, or a list of where they begin */
    FIELD_STAGES,   /* uint32_t[LIMIT_STAGES]: a list of sections */
    FIELD_REAL,     /* double; as FIELD_INT */
    FIELD_BOOL,     /* bool */
    FIELD_DURATION, /* struct jobspec_duration; words are accepted besides */
    FIELD_AMOUNT,   /* int64_t in the base of its one unit: steps, ms, bytes; the first
                     * word is 0, a second one -1 */
    FIELD_PATH,     /* char[LIMIT_PATH], made absolute */
    FIELD_STORE,    /* like FIELD_PATH, or s3://bucket/prefix, which stays as it is */
    FIELD_ENV,   /* struct jobspec_env[JOBSPEC_ENV_MAX]: names that begin with words, with values */
    FIELD_RUN,   /* texts (jobspec_next_text): a list, or one text for a shell */
    FIELD_NAMES, /* texts: any names, with values */
    FIELD_PATTERN,  /* char[JOBSPEC_PATTERN_BYTES]: a pattern with a group */
    FIELD_PATTERNS, /* texts: a list of patterns */
    FIELD_MODULES,  /* texts: a list of modules of Python */
    FIELD_CODES,    /* uint32_t[JOBSPEC_CODES_MAX]: a list of exit codes */
    FIELD_SIZES,    /* int64_t[3]: a list of three sizes */
    FIELD_GRAPH,    /* struct jobspec_graph: a list of nodes */
};

enum field_flags {
    FIELD_REQUIRED = 1 << 0,
    FIELD_WITH_SECTION = 1 << 1, /* required where its section is there */
    FIELD_UNBUILT = 1 << 2,      /* no value but the default in this version */
    FIELD_LOW_OPEN = 1 << 3,     /* low itself is out of range */
    FIELD_HIGH_OPEN = 1 << 4,
};

enum field_units {
    UNIT_STEPS = 1 << 0,
    UNIT_EPOCHS = 1 << 1,
    UNIT_TIME = 1 << 2,
    UNIT_BYTES = 1 << 3,
};

struct field {
    const char *path;
    enum field_kind kind;
    unsigned flags;
    size_t offset, size; /* in struct jobspec */
    double low, high;
    const char *words;     /* "sgd adamw | lamb": behind '|' not built */
    const char *fallback;  /* text of the default; NULL: none, or made by reader_resolve */
    const char *example;   /* required keys: what to add; lists: how to write one */
    const char *when_path; /* this key is for jobs in which the word at when_path ... */
    unsigned when_values;  /* ... is one of these: FIELD_BIT of each */
    unsigned units;        /* durations: those built; amounts: the one */
};

const struct field *schema_fields(size_t *out_count);

/* The row of a path; NULL: none. out_index: of the row. */
const struct field *schema_find(const char *path, size_t *out_index);

/* True if there are keys below this path. "" is the whole file. */
bool schema_is_section(const char *path);

/* Returns an example of a missing section; NULL: there is none. */
const char *schema_section_example(const char *path);

/* The keys directly below a section of which something is built: "a, b, c". */
void schema_keys(const char *section, char *out, size_t capacity);

/* A key that may be meant by `key` in `section`, as one writes it there ("lr" or
 * "train.optimizer.lr"); false: none comes near. */
bool schema_suggest(const char *section, const char *key, char *out, size_t capacity);

/* Iterates over "a b | c d". *at starts as the list, ends as NULL. *built says on which side of
 * '|'. false: no more. */
bool schema_next_word(const char **at, bool *built, char *out, size_t capacity);

/* Returns which of the field's words a text is, counted from 1; 0: none. *out_built: whether this
 * version builds it. */
unsigned schema_word(const struct field *field, const char *text, bool *out_built);

/* True if text is one of the field's words that are built. */
bool schema_has_word(const struct field *field, const char *text);

/* The words of a field that are built: "a, b, c". */
void schema_words(const struct field *field, char *out, size_t capacity);

/* Returns the value that a job has for a FIELD_WORD: the enum's number, or its word; "" for 0. */
unsigned schema_value(const char *path, const struct jobspec *job);
void schema_value_text(const char *path, const struct jobspec *job, char *out, size_t capacity);

/* What decides which keys a job has. */
enum schema_kind {
    SCHEMA_MODEL,
    SCHEMA_COMMAND,
    SCHEMA_SAVED, /* a command, and Cairn saves what it computes */
};
enum schema_kind schema_kind_of(const struct jobspec *job);
/* True if the field is for jobs of that kind; some are for several. */
bool schema_is_for(const struct field *field, enum schema_kind kind);
/* The key, or the outermost section above it, of which nothing is for jobs of that kind: how much
 * of the field's path that is. */
size_t schema_not_for(const struct field *field, enum schema_kind kind);

/* True if a job has use for this field: it is for jobs of this kind, and its `when` holds. */
bool schema_applies(const struct field *field, const struct jobspec *job);
