#include "trainer/program/check_rendezvous.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

struct member {
    struct check_rendezvous *rendezvous;
    int rank;
    bool came;
    size_t common_size, item_size;
    uint8_t common[RENDEZVOUS_COMMON_MAX];
    uint8_t items[CHECK_RANKS_MAX][RENDEZVOUS_ITEM_MAX];
};

/* Invariant: `lock` guards all; what a member brought doesn't change. */
struct check_rendezvous {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stale;
    int ranks, came;
    struct member members[CHECK_RANKS_MAX];
};

enum status check_rendezvous_new(int ranks, struct check_rendezvous **out)
{
    struct check_rendezvous *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return ST_NO_MEMORY;
    (void)pthread_mutex_init(&made->lock, NULL);
    clock_cond_init(&made->changed);
    made->ranks = ranks;
    for (int r = 0; r < CHECK_RANKS_MAX; r++)
        made->members[r] = (struct member){ .rendezvous = made, .rank = r };
    *out = made;
    return ST_OK;
}

void check_rendezvous_free(struct check_rendezvous *rendezvous)
{
    if (rendezvous == NULL)
        return;
    (void)pthread_mutex_destroy(&rendezvous->lock);
    (void)pthread_cond_destroy(&rendezvous->changed);
    free(rendezvous);
}

void check_rendezvous_go_stale(struct check_rendezvous *rendezvous)
{
    (void)pthread_mutex_lock(&rendezvous->lock);
    rendezvous->stale = true;
    (void)pthread_cond_broadcast(&rendezvous->changed);
    (void)pthread_mutex_unlock(&rendezvous->lock);
}

static void bring(struct member *self, const struct rendezvous_part *mine)
{
    if (self->came)
        return;
    self->came = true;
    self->common_size = mine->common_size;
    self->item_size = mine->item_size;
    if (mine->common_size > 0)
        memcpy(self->common, mine->common, mine->common_size);
    for (size_t r = 0; mine->item_size > 0 && r < (size_t)self->rendezvous->ranks; r++) {
        memcpy(self->items[r], (const uint8_t *)mine->items + r * mine->item_size, mine->item_size);
    }
    self->rendezvous->came++;
    (void)pthread_cond_broadcast(&self->rendezvous->changed);
}

static void take(const struct member *self, struct rendezvous_got *out)
{
    for (int r = 0; r < self->rendezvous->ranks; r++) {
        const struct member *from = &self->rendezvous->members[r];
        out[r].common_size = from->common_size;
        memcpy(out[r].common, from->common, sizeof(out[r].common));
        memcpy(out[r].item, from->items[self->rank], sizeof(out[r].item));
    }
}

static enum status check_join(void *arg, const char *name, const struct rendezvous_part *mine,
                              int ranks, int64_t timeout_ms, struct rendezvous_got *out)
{
    struct member *self = arg;
    struct check_rendezvous *all = self->rendezvous;
    (void)name;
    if (ranks != all->ranks || mine->common_size > RENDEZVOUS_COMMON_MAX ||
        mine->item_size > RENDEZVOUS_ITEM_MAX)
        return ST_INVALID;
    const int64_t end_ns = clock_mono_ns() + timeout_ms * 1000000;
    (void)pthread_mutex_lock(&all->lock);
    bring(self, mine);
    while (!all->stale && all->came < ranks && clock_mono_ns() < end_ns)
        (void)clock_cond_wait(&all->changed, &all->lock, end_ns);
    enum status st = all->came < ranks ? ST_TIMED_OUT : ST_OK;
    if (all->stale)
        st = ST_STALE;
    if (st == ST_OK)
        take(self, out);
    (void)pthread_mutex_unlock(&all->lock);
    return st;
}

static bool check_is_over(void *arg)
{
    const struct member *self = arg;
    (void)pthread_mutex_lock(&self->rendezvous->lock);
    const bool over = self->rendezvous->stale;
    (void)pthread_mutex_unlock(&self->rendezvous->lock);
    return over;
}

struct rendezvous check_rendezvous_of(struct check_rendezvous *rendezvous, int rank)
{
    return (struct rendezvous){ .self = &rendezvous->members[rank],
                                .join = check_join,
                                .is_over = check_is_over };
}
