/* A journal in a folder of its own. */
#pragma once

#include "server/journal/journal.h"

struct journal_files {
    char dir[64];
    char path[128]; /* of its file */
    struct journal *journal;
};

/* For cmocka: an open, empty journal in *state. */
int journal_setup(void **state);
int journal_teardown(void **state);
/* Closes it, in the middle of whatever goes on, and opens it again. */
void journal_reopen(struct journal_files *f);
/* What another program, or a version of before, does to the file: SQL, beside the journal. */
void journal_edit(const char *path, const char *sql);
/* Takes off what version 15 added. */
#define TO_14                                                                                      \
    "DROP INDEX IF EXISTS jobs_ends; ALTER TABLE jobs DROP COLUMN ended_no; "                      \
    "ALTER TABLE metric_counts DROP COLUMN bytes; "
