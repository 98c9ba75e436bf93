#include "server/api/invites.h"

#include <string.h>

static void drop_old(struct invites *invites, int64_t now_s)
{
    size_t kept = 0;
    for (size_t i = 0; i < invites->count; i++) {
        if (invites->list[i].uses > 0 && invites->list[i].until_s > now_s)
            invites->list[kept++] = invites->list[i];
    }
    invites->count = kept;
}

enum status invites_add(struct invites *invites, const char *secret, uint32_t uses, int64_t until_s,
                        int64_t now_s)
{
    drop_old(invites, now_s);
    if (invites->count == INVITES_MAX)
        return ST_FULL;
    struct invite *invite = &invites->list[invites->count];
    const enum status st = identity_secret_hash(secret, invite->hash);
    if (st != ST_OK)
        return st;
    invite->uses = uses;
    invite->until_s = until_s;
    invites->count++;
    return ST_OK;
}

struct invite *invites_find(struct invites *invites, const char *secret, int64_t now_s)
{
    uint8_t hash[IDENTITY_SECRET_HASH];
    drop_old(invites, now_s);
    if (identity_secret_hash(secret, hash) != ST_OK)
        return NULL;
    for (size_t i = 0; i < invites->count; i++) {
        /* What the time it takes tells is of the hash, not of the secret. */
        if (memcmp(invites->list[i].hash, hash, sizeof hash) == 0)
            return &invites->list[i];
    }
    return NULL;
}

void invites_use(struct invite *invite)
{
    invite->uses--;
}
