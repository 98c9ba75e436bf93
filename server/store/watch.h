/*
 * A table of file calls that counts those that came back, so that a task that takes long is told
 * from one that hangs. Once its task is given up it calls nothing any more. A task that takes many
 * names out of folders lets others go first: it is ST_AGAIN in between.
 *
 * Thread: any.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "common/io.h"

/* Names that a removal may take although others wait: that is a second or so, if each takes 13
 * ms. */
#define STORE_TURN 64

struct store_watch {
    struct io io; /* the table that the task calls */
    const struct io *real;
    atomic_ulong calls; /* calls that came back */
    atomic_bool given_up;
    atomic_bool others_wait; /* other tasks wait for this one to end */
    atomic_uint unlinked;    /* since it began */
    atomic_bool yielded;     /* the task stopped for them, and is to be run once more */
};

/* watch must not move afterwards. real is borrowed. yields: the task may be cut off anywhere, and
 * then finds the rest by itself. */
void store_watch_init(struct store_watch *watch, const struct io *real, bool yields);
/* Calls that begin from now on are ST_CLOSED; files are still closed. */
void store_watch_give_up(struct store_watch *watch);
