/*
 * The posts of a communicator (comm.h) that nobody has waited for yet, and the bundle that is open.
 *
 * Thread: the one that communicates.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"

struct posts {
    struct posts_place {
        uint32_t number; /* of the post here; 0: free */
        uint32_t bundle;
        void *of; /* what the transport knows it by */
    } places[COMM_POSTS_MAX];
    uint32_t left[COMM_POSTS_MAX]; /* [COMM_POSTS_MAX - count] places that were used and are free */
    uint32_t used, count;          /* places [0, used) were used once; posts now */
    uint32_t number, bundle;       /* the last ones */
    bool open;
};

static inline enum status posts_begin(struct posts *posts)
{
    if (posts->open)
        return ST_INVALID;
    posts->open = true;
    posts->bundle++;
    return ST_OK;
}

static inline enum status posts_end(struct posts *posts)
{
    if (!posts->open)
        return ST_INVALID;
    posts->open = false;
    return ST_OK;
}

/* Errors: ST_INVALID no bundle is open; ST_FULL. */
static inline enum status posts_take(struct posts *posts, struct posts_place **out,
                                     struct comm_post *out_name)
{
    if (!posts->open)
        return ST_INVALID;
    if (posts->count == COMM_POSTS_MAX)
        return ST_FULL;
    const uint32_t free = posts->used - posts->count;
    const uint32_t place = free > 0 ? posts->left[free - 1] : posts->used++;
    posts->number += posts->number == UINT32_MAX ? 2 : 1; /* never 0 */
    posts->count++;
    *out = &posts->places[place];
    **out = (struct posts_place){ .number = posts->number, .bundle = posts->bundle };
    *out_name = (struct comm_post){ .place = place, .number = posts->number };
    return ST_OK;
}

/* NULL: no such post, it was waited for, or its bundle is still open. */
static inline struct posts_place *posts_find(struct posts *posts, const struct comm_post *name)
{
    if (name->number == 0 || name->place >= posts->used)
        return NULL;
    struct posts_place *place = &posts->places[name->place];
    const bool begun = !posts->open || place->bundle != posts->bundle;
    return place->number == name->number && begun ? place : NULL;
}

static inline void posts_drop(struct posts *posts, struct posts_place *place)
{
    place->number = 0;
    posts->left[posts->used - posts->count] = (uint32_t)(place - posts->places);
    posts->count--;
}
