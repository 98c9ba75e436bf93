/*
 * Invariants, under the mutex:
 *  (1) first to last are the tasks that wait, `waiting` of them; none wait while first is NULL.
 *  (2) Threads are made until there are threads_max, and end only once `ending` is set and no task
 *      waits.
 */
#include "checkpoint/s3/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/check.h"

struct s3_pool {
    pthread_mutex_t mutex;
    pthread_cond_t work;
    pthread_t threads[S3_POOL_THREADS_MAX];
    size_t threads_max, thread_count, idle, waiting;
    struct s3_task *first, *last;
    bool ending;
};

static void *run_tasks(void *arg)
{
    struct s3_pool *pool = arg;
    CHECK(pthread_mutex_lock(&pool->mutex) == 0);
    for (;;) {
        struct s3_task *task = pool->first;
        if (task == NULL && pool->ending)
            break;
        if (task == NULL) {
            pool->idle++;
            (void)pthread_cond_wait(&pool->work, &pool->mutex);
            pool->idle--;
            continue;
        }
        pool->first = task->next;
        CHECK(pool->waiting > 0);
        pool->waiting--;
        (void)pthread_mutex_unlock(&pool->mutex);
        task->run(task->arg);
        CHECK(pthread_mutex_lock(&pool->mutex) == 0);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

enum status s3_pool_new(size_t threads_max, struct s3_pool **out)
{
    struct s3_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return ST_NO_MEMORY;
    pool->threads_max = threads_max < S3_POOL_THREADS_MAX ? threads_max : S3_POOL_THREADS_MAX;
    CHECK(pthread_mutex_init(&pool->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&pool->work, NULL) == 0);
    *out = pool;
    return ST_OK;
}

void s3_pool_free(struct s3_pool *pool)
{
    if (pool == NULL)
        return;
    CHECK(pthread_mutex_lock(&pool->mutex) == 0);
    pool->ending = true;
    (void)pthread_cond_broadcast(&pool->work);
    (void)pthread_mutex_unlock(&pool->mutex);
    for (size_t i = 0; i < pool->thread_count; i++)
        (void)pthread_join(pool->threads[i], NULL);
    (void)pthread_mutex_destroy(&pool->mutex);
    (void)pthread_cond_destroy(&pool->work);
    free(pool);
}

enum status s3_pool_submit(struct s3_pool *pool, struct s3_task *task)
{
    CHECK(pthread_mutex_lock(&pool->mutex) == 0);
    if (pool->idle <= pool->waiting && pool->thread_count < pool->threads_max &&
        pthread_create(&pool->threads[pool->thread_count], NULL, run_tasks, pool) == 0)
        pool->thread_count++;
    enum status st = pool->thread_count > 0 ? ST_OK : ST_NO_MEMORY;
    if (st == ST_OK) {
        task->next = NULL;
        if (pool->first == NULL) {
            pool->first = task;
        } else {
            pool->last->next = task;
        }
        pool->last = task;
        pool->waiting++;
        (void)pthread_cond_signal(&pool->work);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return st;
}
