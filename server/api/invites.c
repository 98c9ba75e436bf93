#include "server/api/invites.h"

#include <string.h>

/* Drops invites that don't count any more. The caller holds the mutex, here and in find(). */
static void drop_old(struct invites *invites, int64_t now_s)
{
    size_t kept = 0;
    for (size_t i = 0; i < invites->count; i++) {
        if (invites->list[i].uses > 0 && invites->list[i].until_s > now_s)
            invites->list[kept++] = invites->list[i];
    }
    invites->count = kept;
}

static struct invite *find(struct invites *invites, const uint8_t hash[IDENTITY_SECRET_HASH],
                           int64_t now_s)
{
    for (size_t i = 0; i < invites->count; i++) {
        struct invite *invite = &invites->list[i];
        /* The time that this takes tells of the hash, not of the secret. */
        if (invite->uses > 0 && invite->until_s > now_s &&
            memcmp(invite->hash, hash, IDENTITY_SECRET_HASH) == 0)
            return invite;
    }
    return NULL;
}

enum status invites_add(struct invites *invites, const char *secret, uint32_t uses, int64_t until_s,
                        int64_t now_s)
{
    struct invite invite = { .uses = uses, .until_s = until_s };
    enum status st = identity_secret_hash(secret, invite.hash);
    if (st != ST_OK)
        return st;
    pthread_mutex_lock(&invites->mutex);
    drop_old(invites, now_s);
    if (invites->count < INVITES_MAX) {
        invites->list[invites->count++] = invite;
    } else {
        st = ST_FULL;
    }
    pthread_mutex_unlock(&invites->mutex);
    return st;
}

struct invite *invites_find(struct invites *invites, const char *secret, int64_t now_s)
{
    uint8_t hash[IDENTITY_SECRET_HASH];
    if (identity_secret_hash(secret, hash) != ST_OK)
        return NULL;
    pthread_mutex_lock(&invites->mutex);
    struct invite *invite = find(invites, hash, now_s);
    pthread_mutex_unlock(&invites->mutex);
    return invite;
}

bool invites_know(struct invites *invites, const char *secret, int64_t now_s)
{
    return invites_find(invites, secret, now_s) != NULL;
}

void invites_use(struct invites *invites, struct invite *invite)
{
    pthread_mutex_lock(&invites->mutex);
    invite->uses--;
    pthread_mutex_unlock(&invites->mutex);
}
