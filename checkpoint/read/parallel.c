#include "checkpoint/read/parallel.h"

#include <signal.h>

#include "common/check.h"

struct parallel_thread {
    pthread_t thread;
    ckpt_parallel_fn fn;
    void *arg;
    uint32_t number;
};

uint32_t ckpt_parallel_threads(const struct ckpt_read_options *options, size_t tasks)
{
    uint32_t threads = options == NULL ? 0 : options->threads;
    if (threads > CKPT_THREADS_MAX)
        threads = CKPT_THREADS_MAX;
    if (threads > 0 && threads >= tasks)
        threads = tasks == 0 ? 0 : (uint32_t)tasks - 1;
    return threads;
}

static void *run_thread(void *arg)
{
    const struct parallel_thread *it = arg;
    it->fn(it->arg, it->number);
    return NULL;
}

void ckpt_parallel_run(uint32_t threads, ckpt_parallel_fn fn, void *arg)
{
    struct parallel_thread crew[CKPT_THREADS_MAX];
    sigset_t all, before;
    uint32_t count = 0;
    CHECK(threads <= CKPT_THREADS_MAX);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    while (count < threads) {
        crew[count] = (struct parallel_thread){ .fn = fn, .arg = arg, .number = count + 1 };
        if (pthread_create(&crew[count].thread, NULL, run_thread, &crew[count]) != 0)
            break;
        count++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    fn(arg, 0);
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_join(crew[i].thread, NULL);
}

void ckpt_parallel_progress(const struct ckpt_read_options *options, pthread_mutex_t *lock,
                            uint64_t *done)
{
    if (options == NULL || options->progress == NULL)
        return;
    (void)pthread_mutex_lock(lock);
    options->progress(options->progress_arg, ++*done);
    (void)pthread_mutex_unlock(lock);
}
