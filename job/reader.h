/*
 * A job file while it is being read: the tree, what each field got, the job so far.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "job/job.h"
#include "job/schema.h"
#include "job/value.h"
#include "job/yaml/report.h"
#include "job/yaml/tree.h"

#define MEANT_MAX 64

struct reader {
    struct tree tree;
    struct job_report report;
    const char *base_dir;
    struct job job;
    struct {
        const struct node *node; /* NULL: not in the file */
        bool bad;                /* its value was refused */
    } given[FIELDS_MAX];         /* by row of the schema */
    size_t share_count;          /* of workers.shares */
    char meant[MEANT_MAX][128];  /* paths that mistyped keys stand for */
    size_t meant_count;
};

/* Where a field's value stands in the file, or the place of the nearest section that is there. */
struct job_place reader_place(const struct reader *reader, const char *path);

/* Is the field in the file, with a good value? */
bool reader_has(const struct reader *reader, const char *path);

/* Is the field's value usable: given and good, or not given? */
bool reader_is_good(const struct reader *reader, const char *path);

void reader_refuse(struct reader *reader, struct job_place place,
                   const struct value_problem *problem);

/* Reads a field that holds several values: FIELD_WORDS, FIELD_COUNTS, FIELD_ENV. False: mistakes
 * were reported. */
bool reader_list(struct reader *reader, const struct field *field, const struct node *node);

/*
 * Fills in what follows from other values and checks what must fit together; mistakes go to the
 * report. All fields hold values by then, those with `bad` their defaults or zero.
 */
void job_resolve(struct reader *reader);
