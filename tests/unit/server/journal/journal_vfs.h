/*
 * The system's files under SQLite, watched: a test is told of every call that changes one, before
 * it happens, and may let the disk be full.
 */
#pragma once

enum journal_call { JOURNAL_WRITE, JOURNAL_SYNC };

typedef void (*journal_call_fn)(void *arg, enum journal_call call);

/* For the journals that are opened from now on; fn NULL: nobody is told. */
void journal_vfs_watch(journal_call_fn fn, void *arg);
/* So many writes from now on the disk is full: each further one fails. Negative: it has room. */
void journal_vfs_space(long writes);
