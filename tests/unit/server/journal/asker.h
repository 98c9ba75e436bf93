/*
 * Somebody who asks a coordinator about its jobs as `cairn why`, `cairn show` and `cairn metrics`
 * do: what the core knows is taken there, the rest is read beside it, from another connection. Each
 * answer is checked and packed; what it took is kept, never judged.
 */
#pragma once

#include "server/api/rows.h"
#include "tests/unit/server/coord/coord_fixture.h"

enum asker_question { ASKER_WHY, ASKER_SHOW, ASKER_METRICS };
#define ASKER_QUESTIONS (ASKER_METRICS + 1)

/* The job when it is asked about. */
enum asker_job { ASKER_LIVE, ASKER_ENDED, ASKER_OLD, ASKER_FORGOTTEN };
#define ASKER_JOBS (ASKER_FORGOTTEN + 1)

#define ASKER_MAX 4096 /* questions of one kind about one kind of job */

struct asker_series {
    double ms[ASKER_MAX];
    size_t count, bytes_max;
};

struct asker {
    struct coord_world *w;
    struct coord *reader;    /* as the thread has it that ends answers */
    struct journal *journal; /* beside the core's */
    struct rows_page rows;
    struct asker_series asked[ASKER_QUESTIONS][ASKER_JOBS];
};

/* Opens a connection of its own to the world's journal. */
struct asker *asker_open(struct coord_world *w);
/* Asks all there is to ask about a job; the group is committed. false: it is forgotten, which each
 * answer says. */
bool asker_ask(struct asker *asker, const char *id, enum asker_job job);
/* Prints how many answers there were, and the median and the longest of the times they took. */
void asker_print(struct asker *asker);
void asker_close(struct asker *asker);
