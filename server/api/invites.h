/*
 * The invites that count: for each a hash of its secret, how many may still come by it, and until
 * when. They are kept in memory only: the next cairnd knows none of them.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "identity/invite.h"

#define INVITES_MAX     64
#define INVITES_USES    1000        /* of one, at most */
#define INVITES_VALID_S (7 * 86400) /* at most */
#define INVITES_USUAL_S 3600

/* The answer about a secret that doesn't count. */
#define INVITES_REFUSED                                                                            \
    "this invite is used up, too old, or the coordinator that made it was started anew since: "    \
    "'cairn node invite' makes another"

/* Zeroed is empty. */
struct invites {
    pthread_mutex_t mutex;
    struct invite {
        uint8_t hash[IDENTITY_SECRET_HASH];
        uint32_t uses;
        int64_t until_s; /* Unix time */
    } list[INVITES_MAX];
    size_t count;
};

/* Errors: ST_FULL  INVITES_MAX of them count */
MUST_CHECK enum status invites_add(struct invites *invites, const char *secret, uint32_t uses,
                                   int64_t until_s, int64_t now_s);
/* Returns the invite of that secret, valid until the next call; NULL: it is used up, too old, or
 * none of ours, which isn't told apart. */
struct invite *invites_find(struct invites *invites, const char *secret, int64_t now_s);
/* Notes that somebody came by the invite. */
void invites_use(struct invites *invites, struct invite *invite);
/* Returns whether the secret counts: a node that wants to join is asked for it before anything else
 * of it is read. */
bool invites_know(struct invites *invites, const char *secret, int64_t now_s);
