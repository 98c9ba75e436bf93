#include "checkpoint/read/crew.h"

#include <pthread.h>
#include <signal.h>

struct hand {
    pthread_t thread;
    ckpt_crew_fn fn;
    void *arg;
    uint32_t number;
};

static void *work(void *arg)
{
    struct hand *hand = arg;
    hand->fn(hand->arg, hand->number);
    return NULL;
}

void ckpt_crew_run(uint32_t threads, ckpt_crew_fn fn, void *arg)
{
    struct hand hands[CKPT_CREW_MAX];
    sigset_t all, before;
    uint32_t count = 0;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    while (count < threads && count + 1 < CKPT_CREW_MAX) {
        hands[count] = (struct hand){ .fn = fn, .arg = arg, .number = count + 1 };
        if (pthread_create(&hands[count].thread, NULL, work, &hands[count]) != 0)
            break;
        count++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    fn(arg, 0);
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_join(hands[i].thread, NULL);
}
