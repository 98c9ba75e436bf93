/*
 * A job file while it is being read: the tree, what each field got, the job so far.
 *
 * parse.c drives it: sources into the tree, fields into the job (lists.c reads those that hold
 * several values), defaults, then resolve.c, of pipelines pipeline.c. reader.c has what all of them
 * ask.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "jobspec/jobspec.h"
#include "jobspec/schema.h"
#include "jobspec/value.h"
#include "jobspec/yaml/report.h"
#include "jobspec/yaml/tree.h"

#define READER_PATH_BYTES 256 /* of keys: "train.optimizer.lr" */
#define READER_MEANT_MAX  64

struct reader {
    struct tree tree;
    struct jobspec_report report;
    const char *base_dir;
    const char *allowed; /* jobspec_parse_within; NULL: all paths */
    const struct jobspec_look *look;
    bool commands; /* of those who may not name all paths, jobs may have commands */
    bool taken;
    bool change;           /* settings of a job that is there already, no file */
    enum schema_kind kind; /* of the job: what is for others isn't for it */
    struct jobspec job;
    struct {
        const struct tree_node *node; /* NULL: not in the file */
        bool bad;                     /* the field's value was refused */
    } given[FIELDS_MAX];              /* by row of the schema */
    size_t share_count;               /* entries of workers.shares */
    /* The entries of parallel.stages; workers or share_count 0: the entry doesn't give it. The
     * shares are in job.workers.shares. */
    struct reader_stage {
        struct jobspec_place place;
        uint32_t workers, share_count;
    } stages[LIMIT_STAGES];
    uint32_t stage_count;
    /* Paths that mistyped keys stand for: not reported as missing, too. */
    char meant[READER_MEANT_MAX][128];
    size_t meant_count;
};

/* ---- reader.c ---- */

/* The node at path, or the deepest one above it that is there; *out_found says which. */
const struct tree_node *reader_locate(const struct reader *reader, const char *path,
                                      bool *out_found);

/* Returns the place of a field's value in the file, or that of the nearest section that is
 * there. */
struct jobspec_place reader_place(const struct reader *reader, const char *path);

/* True if the field is in the file, with a good value. */
bool reader_has(const struct reader *reader, const char *path);

/* True if the field's value is usable: given and good, or not given. */
bool reader_is_good(const struct reader *reader, const char *path);

void reader_refuse(struct reader *reader, struct jobspec_place place,
                   const struct refusal *refusal);

/* Reports a mistake at a key, or where it is missing. */
void reader_mistake(struct reader *reader, const char *path, const char *way_out,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* "1, 2, 4, 8": divisors of a number from one on, the first few. */
void reader_divisors(int64_t number, int64_t lowest, int64_t highest, char *out, size_t capacity);
/* A way out for so many workers: "set train.lanes to one of 3, 11, 33, or ", with what else would
 * do to come behind it; "set " where no number of lanes does. */
void reader_lanes_for(const struct reader *reader, int64_t workers, char out[LIMIT_REASON]);

/* ---- lists.c ---- */

/* Reads a field that holds several values: FIELD_WORDS, FIELD_COUNTS, FIELD_CUTS, FIELD_STAGES,
 * FIELD_ENV, FIELD_SIZES, FIELD_GRAPH. False: mistakes were reported. */
bool reader_list(struct reader *reader, const struct field *field, const struct tree_node *node);

/* ---- command.c ---- */

/* Reports preload of a program that Python doesn't run as the interpreter could. */
void reader_check_preload(struct reader *reader);
/* Reads a field of a command: FIELD_RUN, FIELD_NAMES, FIELD_PATTERNS, FIELD_MODULES, FIELD_CODES.
 * False: mistakes were reported. */
bool reader_texts(struct reader *reader, const struct field *field, const struct tree_node *node);

/* ---- pipeline.c ---- */

/* Sets the number of stages, which one key or another gives; for one stage, drops the keys of
 * pipelines. */
void reader_begin_pipeline(struct reader *reader);
/* Sets how many workers each of several stages has, and the job's number of workers; false: the
 * numbers aren't known. */
bool reader_cut(struct reader *reader);
/* Spreads the lanes over each stage's workers. */
void reader_share_stages(struct reader *reader, bool lanes_known);

/* ---- model.c ---- */

/* Reads a field of three sizes. False: a mistake was reported. */
bool reader_sizes(struct reader *reader, const struct field *field, const struct tree_node *node);
/* Fills in model.arch of a job that has a graph or a library instead. */
void reader_name_own(struct reader *reader);
/* Fills in the numbers of a transformer that the file doesn't give, and checks that they fit. */
void reader_resolve_transformer(struct reader *reader);
/* Fills in what follows from a model of one's own, and checks its shapes and labels. */
void reader_resolve_own(struct reader *reader);

/* ---- allowed.c ---- */

/* An s3:// store of a job that is new, without empty parts: they would be another place, that some
 * stores refuse. Jobs of before keep finding theirs. */
void reader_name_store_once(struct reader *reader);
/* Reports a store whose path leaves no room for what is made in it, of a job that is new. */
void reader_check_room(struct reader *reader);
/* Reports paths of the job that aren't allowed. */
void reader_check_allowed(struct reader *reader);
/* Reports paths that can't be used, as reader->look says. */
void reader_check_usable(struct reader *reader);

/* ---- resolve.c ---- */

/*
 * Fills in what follows from other values and checks what must fit together; mistakes go to the
 * report. All fields hold values by then, those with `bad` their defaults or zero.
 */
void reader_resolve(struct reader *reader);
/* Like reader_resolve, of a job with a command. */
void reader_resolve_command(struct reader *reader);
