#include "checkpoint/store/each_file.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "checkpoint/read/parallel.h"

#define NO_ITEM UINT32_MAX

struct each {
    ckpt_file_fn fn;
    void *arg;
    uint32_t count;
    atomic_uint next; /* item that nobody has taken */
    atomic_bool stop;
    uint32_t failed[CKPT_AT_ONCE]; /* a thread's item; it has ended then */
    enum status st;                /* of the caller's thread, which is number 0 */
};

/* A ckpt_parallel_fn. */
static void take_items(void *arg, uint32_t number)
{
    struct each *each = arg;
    while (!atomic_load(&each->stop)) {
        uint32_t item = atomic_fetch_add(&each->next, 1);
        if (item >= each->count)
            return;
        enum status st = each->fn(each->arg, item);
        if (st == ST_OK)
            continue;
        each->failed[number] = item;
        if (number == 0)
            each->st = st;
        atomic_store(&each->stop, true);
    }
}

enum status ckpt_each_file(uint32_t count, ckpt_file_fn fn, void *arg)
{
    struct each each = { .fn = fn, .arg = arg, .count = count, .st = ST_OK };
    uint32_t threads = count / CKPT_EACH_LEAST;
    threads = threads < CKPT_AT_ONCE ? threads : CKPT_AT_ONCE;
    for (uint32_t i = 0; i < CKPT_AT_ONCE; i++)
        each.failed[i] = NO_ITEM;
    ckpt_parallel_run(threads > 0 ? threads - 1 : 0, take_items, &each);
    /* Items that failed in other threads are done again here. If they work now, so is the rest. */
    for (uint32_t i = 1; i < CKPT_AT_ONCE && each.st == ST_OK; i++) {
        if (each.failed[i] != NO_ITEM)
            each.st = fn(arg, each.failed[i]);
    }
    atomic_store(&each.stop, false);
    if (each.st == ST_OK)
        take_items(&each, 0);
    return each.st;
}
