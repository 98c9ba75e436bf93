/*
 * A history of saves, commits and retention, what a coordinator does after a crash anywhere in it,
 * and what it must find.
 *
 * The coordinator's journal is a database of its own. Of it only this is modelled: what it had
 * decided before the next change of the store (the marks of struct saving), for a decision is
 * journalled before anything follows from it.
 */
#pragma once

#include "tests/crash/ckpt_sample.h"
#include "tests/crash/crash_explore.h"

#define SAVINGS_MAX 12
#define NEVER       SIZE_MAX

/* One save, and when what happened to it, counted in changes of the store. */
struct saving {
    struct sample sample;
    char dir[LIMIT_PATH];
    uint32_t ranks;
    const struct saving *base; /* that it is a difference to, or NULL */
    struct buf manifest;       /* what the journal's record `committing` leads to */
    size_t begun;
    size_t created;      /* its folder, durably */
    size_t decided;      /* `committing` is in the journal */
    size_t acknowledged; /* ckpt_manifest_publish has returned */
    size_t damaged;      /* by the medium */
    size_t condemned;    /* the journal has it as bad */
    size_t given_up;     /* the journal has it as removed: retention, or a save that failed */
};

struct history {
    struct memory_io *memory;
    uint64_t seed;
    struct saving savings[SAVINGS_MAX];
    size_t count;
    struct crash_seen verdicts; /* of folders that were read already, by their contents */
    char why[256];              /* of the last broken promise */
};

/* Records one. seed: of the order in which the ranks' writes mix, of the sizes of these, and of the
 * order in which the files of a checkpoint go. */
void history_new(struct history *history, uint64_t seed);
void history_release(struct history *history);
/* Another save, for tests that go on with their own; its folder isn't made. */
struct saving *history_begin(struct history *history, uint64_t step, uint64_t generation,
                             uint32_t ranks);

enum history_when {
    HISTORY_FOUND,     /* nobody has touched it since the crash */
    HISTORY_CUT_OFF,   /* a recovery from it was cut off */
    HISTORY_RECOVERED, /* one was finished: what was decided is done */
};

/*
 * Whether found, after a crash that followed the first n changes, keeps the promises: whatever is
 * listed as committed is bit for bit what was saved, or a refusal that names the damage if it was
 * damaged; what was acknowledged and neither given up nor damaged is there; what wasn't decided
 * isn't. NULL, or which promise is broken.
 */
const char *history_check(struct history *history, struct memory_io *found, size_t n,
                          enum history_when when);

/*
 * What a restarted coordinator does, whose journal is as it was after n changes. again: it doesn't
 * know of what was finished, and does that, too. NULL, or what failed.
 */
const char *history_recover(struct history *history, struct memory_io *found, size_t n, bool again);

/* The job goes on: one more save, which is read back. */
const char *history_go_on(struct history *history, struct memory_io *found);
