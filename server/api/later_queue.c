/* The thread that ends answers, one after the other, with its own connection to the journal. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/api/later.h"

struct later_queue {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct later *waiting[LATER_MAX]; /* a ring */
    size_t first, count;
    bool ends;
    char *path;
    struct coord_options options; /* the thread's; journal NULL: to be opened */
    struct later_reader reader;   /* with it */
};

static void free_queue(struct later_queue *queue)
{
    (void)pthread_cond_destroy(&queue->changed);
    (void)pthread_mutex_destroy(&queue->mutex);
    free(queue->path);
    free(queue);
}

/* Takes the next one that waits; NULL: none comes any more. */
static struct later *take(struct later_queue *queue)
{
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    while (queue->count == 0 && !queue->ends)
        CHECK(pthread_cond_wait(&queue->changed, &queue->mutex) == 0);
    struct later *later = queue->count > 0 ? queue->waiting[queue->first] : NULL;
    if (later != NULL) {
        queue->first = (queue->first + 1) % LATER_MAX;
        queue->count--;
    }
    CHECK(pthread_mutex_unlock(&queue->mutex) == 0);
    return later;
}

static bool is_waiting(struct later_queue *queue)
{
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    const bool waiting = queue->count > 0;
    CHECK(pthread_mutex_unlock(&queue->mutex) == 0);
    return waiting;
}

static void close_reader(struct later_queue *queue)
{
    later_reader_release(&queue->reader);
    coord_free(queue->reader.coord);
    journal_close(queue->options.journal);
    queue->reader = (struct later_reader){ .coord = NULL };
    queue->options.journal = NULL;
}

static enum status open_reader(struct later_queue *queue)
{
    enum status st = journal_open_beside(queue->path, &queue->options.journal);
    if (st == ST_OK)
        st = coord_reader_new(&queue->options, &queue->reader.coord);
    if (st != ST_OK)
        close_reader(queue);
    return st;
}

static void *run(void *arg)
{
    struct later_queue *queue = arg;
    struct later *later;
    while ((later = take(queue)) != NULL) {
        const enum status opened = queue->reader.coord != NULL ? ST_OK : open_reader(queue);
        if (opened != ST_OK) {
            later_fail(later, opened);
            continue;
        }
        const enum status st = later_end(later, &queue->reader);
        if (st != ST_OK && st != ST_NOT_FOUND && st != ST_NO_MEMORY && st != ST_INVALID)
            close_reader(queue); /* it is opened anew */
        if (queue->reader.coord != NULL && !is_waiting(queue))
            later_read_ahead(&queue->reader);
    }
    close_reader(queue);
    return NULL;
}

enum status later_queue_new(const struct coord_options *options, struct later_queue **out)
{
    struct later_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL)
        return ST_NO_MEMORY;
    queue->path = strdup(journal_path(options->journal));
    queue->options = (struct coord_options){ .clock = options->clock, .log = options->log };
    CHECK(pthread_mutex_init(&queue->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&queue->changed, NULL) == 0);
    const int error =
        queue->path != NULL ? pthread_create(&queue->thread, NULL, run, queue) : ENOMEM;
    if (error == 0) {
        *out = queue;
        return ST_OK;
    }
    free_queue(queue);
    return status_from_errno(error);
}

bool later_queue_put(struct later_queue *queue, struct later *later)
{
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    const bool room = queue->count < LATER_MAX;
    if (room) {
        queue->waiting[(queue->first + queue->count) % LATER_MAX] = later;
        queue->count++;
        CHECK(pthread_cond_signal(&queue->changed) == 0);
    }
    CHECK(pthread_mutex_unlock(&queue->mutex) == 0);
    return room;
}

void later_queue_free(struct later_queue *queue)
{
    if (queue == NULL)
        return;
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    queue->ends = true;
    CHECK(pthread_cond_signal(&queue->changed) == 0);
    CHECK(pthread_mutex_unlock(&queue->mutex) == 0);
    CHECK(pthread_join(queue->thread, NULL) == 0);
    free_queue(queue);
}
