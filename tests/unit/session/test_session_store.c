/* The session with its real threads on a store with something wrong. */
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/check.h"
#include "tests/unit/session/session_world.h"

struct bad_io {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool hold; /* fsync waits while this is so */
    int holding;
    bool full; /* of the store: every sync says so */
};

static struct bad_io bad = { .mutex = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER };

static enum status bad_fsync(void *self, int fd)
{
    (void)self;
    (void)pthread_mutex_lock(&bad.mutex);
    while (bad.hold) {
        bad.holding++;
        (void)pthread_cond_broadcast(&bad.changed);
        (void)pthread_cond_wait(&bad.changed, &bad.mutex);
    }
    const bool full = bad.full;
    (void)pthread_mutex_unlock(&bad.mutex);
    return full ? ST_FULL : io_system()->fsync(NULL, fd);
}

static void set_bad(bool hold, bool full)
{
    (void)pthread_mutex_lock(&bad.mutex);
    bad.hold = hold;
    bad.full = full;
    bad.holding = 0;
    (void)pthread_cond_broadcast(&bad.changed);
    (void)pthread_mutex_unlock(&bad.mutex);
}

/* Returns once the save of step 5 hangs at the store. */
static void hold_a_save(struct world *w)
{
    w->io.fsync = bad_fsync;
    set_bad(true, false);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    free(t.values);
    (void)pthread_mutex_lock(&bad.mutex);
    while (bad.holding == 0)
        (void)pthread_cond_wait(&bad.changed, &bad.mutex);
    (void)pthread_mutex_unlock(&bad.mutex);
}

/* Once they hold that many reports. */
static Cairn__V1__LastWords *await_words(const struct world *w, size_t saves)
{
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    for (;;) {
        Cairn__V1__LastWords *words = read_words(w);
        if (words != NULL && words->n_saves == saves)
            return words;
        if (words != NULL)
            cairn__v1__last_words__free_unpacked(words, NULL);
        assert_true(clock_mono_ms(clock_system()) < end_ms);
    }
}

static void reports_are_in_the_last_words_until_the_save_is_committed(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    hold_a_save(w);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.absent = true; /* the coordinator goes while the file is written */
    lose(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    set_bad(false, false);
    Cairn__V1__LastWords *words = await_words(w, 1);
    assert_int_equal(words->saves[0]->step, 5);
    assert_string_equal(words->saves[0]->file, "shard-00000-of-00001.cairn");
    cairn__v1__last_words__free_unpacked(words, NULL);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.absent = w->c.commits = false;
    (void)pthread_mutex_unlock(&w->c.mutex);
    await(w, &w->c.reports, 1);
    cairn__v1__last_words__free_unpacked(await_words(w, 1), NULL); /* it arrived: not enough */
    (void)pthread_mutex_lock(&w->c.mutex);
    order_done(&w->c, 5, true);
    (void)pthread_mutex_unlock(&w->c.mutex);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 5);
    cairn__v1__last_words__free_unpacked(await_words(w, 0), NULL);
    world_free(w);
}

/* Ready, with a copy after each step; the save of step 5 waits for the store's fsync. */
static void save_to_a_slow_store(struct world *w, uint64_t memory_every)
{
    const struct session_ready ready = { .total_steps = 20,
                                         .save_every = 5,
                                         .pins = "{}",
                                         .memory_every = memory_every,
                                         .snapshot_bytes_max = ELEMENTS * sizeof(float) };
    assert_int_equal(session_set_ready(w->session, &ready), ST_OK);
    hold_a_save(w);
}

/* Called by the step thread, which hangs here if it waits for the store. */
static void no_step_waits_for_a_slow_store(void **state)
{
    (void)state;
    for (uint64_t memory_every = 0; memory_every < 2; memory_every++) {
        struct world *w = joined();
        struct training t;
        uint64_t committed = 0;
        save_to_a_slow_store(w, memory_every);
        training_init(&t, 10);
        if (memory_every == 0) { /* there is a second file, which is taken then */
            assert_int_equal(save(w->session, &t.state), ST_OK);
            t.state.scalars.step = 15;
            assert_int_equal(save(w->session, &t.state), ST_REFUSED);
        } else {
            const struct copy_file *copy = NULL;
            assert_int_equal(save(w->session, &t.state), ST_OK);
            assert_int_equal(session_keep_newest(w->session, 5, &copy), ST_OK);
            assert_int_equal(copy_file_state(copy)->scalars.step, 10);
            session_unkeep(w->session, copy);
        }
        await(w, &w->c.fails, 1);
        assert_int_equal(w->c.removed, 1);
        assert_int_equal(w->c.begins, 1); /* of what waits nothing was said */
        (void)pthread_mutex_lock(&w->c.mutex);
        order_done(&w->c, memory_every == 0 ? 15 : 10, false);
        w->c.gives_folders = false;
        (void)pthread_mutex_unlock(&w->c.mutex);
        set_bad(false, false);
        await(w, &w->c.reports, 1);
        if (memory_every == 0) {
            await(w, &w->c.begins, 2);
        } else {
            assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
            assert_int_equal(committed, 5);
        }
        free(t.values);
        world_free(w);
    }
}

struct saving {
    struct session *session;
    struct training training;
    enum status status;
};

static void *save_the_last(void *arg)
{
    struct saving *saving = arg;
    const struct session_snapshot snapshot = { .state = &saving->training.state,
                                               .saves = true,
                                               .last = true };
    saving->status = session_snapshot_begin(saving->session, &snapshot);
    if (saving->status == ST_OK)
        saving->status = session_snapshot_wait(saving->session);
    return NULL;
}

/* With copies between saves, saves have one file of the three. */
static void the_last_save_waits_for_a_slow_store_and_that_is_progress(void **state)
{
    (void)state;
    struct world *w = joined();
    save_to_a_slow_store(w, 1);
    struct saving saving = { .session = w->session };
    training_init(&saving.training, 10);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, save_the_last, &saving), 0);
    (void)pthread_mutex_lock(&w->c.mutex);
    const uint64_t before = w->c.progress_counter;
    bool in_time = true;
    while (in_time && w->c.progress_counter < before + 2)
        in_time = wait_until(&w->c, clock_mono_ms(clock_system()) + LONG_MS);
    assert_true(in_time);
    assert_int_equal(w->c.begins, 1); /* not before the first is written */
    assert_int_equal(w->c.fails, 0);
    (void)pthread_mutex_unlock(&w->c.mutex);
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/shard-00000-of-00001.cairn", w->c.dir);
    (void)unlink(path); /* the next step would have a folder of its own */
    set_bad(false, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(saving.status, ST_OK);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 10);
    free(saving.training.values);
    world_free(w);
}

/* More than a message holds. */
static void bad_explain(void *self, enum status st, struct reason *out)
{
    (void)self;
    assert_int_equal(st, ST_FULL);
    memset(out->text, 'x', sizeof(out->text) - 1);
    out->text[sizeof(out->text) - 1] = '\0';
    memcpy(out->text, "QuotaExceeded", 13);
}

static void a_full_store_is_told_and_the_save_can_be_made_again(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    w->io.fsync = bad_fsync;
    w->io.explain = bad_explain;
    set_bad(false, true);
    struct training t;
    training_init(&t, 20);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    await(w, &w->c.fails, 1);
    assert_int_equal(w->c.full, 1);
    assert_non_null(strstr(w->c.fail_message, "QuotaExceeded")); /* what the store said */
    assert_int_equal(w->c.removed, 1);
    (void)pthread_mutex_lock(&w->c.mutex);
    order_done(&w->c, 20, false);
    (void)pthread_mutex_unlock(&w->c.mutex);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 0);
    set_bad(false, false);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 20);
    free(t.values);
    world_free(w);
}

/* How many of this process's threads have that name, and have that nice and policy. */
static int threads_of(const char *name, long nice, long policy)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    const struct dirent *task = NULL;
    while ((task = readdir(tasks)) != NULL) {
        char path[64], text[512] = "";
        (void)snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", task->d_name);
        FILE *stat = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (stat == NULL)
            continue;
        (void)!fgets(text, sizeof(text), stat);
        (void)fclose(stat);
        const char *begin = strchr(text, '('), *end = strrchr(text, ')');
        if (begin == NULL || end == NULL || strlen(name) != (size_t)(end - begin - 1) ||
            strncmp(begin + 1, name, strlen(name)) != 0)
            continue;
        const char *at = end + 1;
        long field[42] = { 0 };
        for (int i = 3; i < 42 && at != NULL; i++, at = strchr(at + 1, ' '))
            field[i] = strtol(at + 1, NULL, 10); /* numbered as proc(5) does */
        assert_int_equal(field[19], nice);
        assert_int_equal(field[41], policy);
        count++;
    }
    (void)closedir(tasks);
    return count;
}

/* A thread has its maker's name until it gives itself its own. */
static void check_priority(const char *name, int count, long nice, long policy)
{
    const int64_t deadline_ns = clock_mono_ns() + LONG_MS * 1000000LL;
    while (threads_of(name, nice, policy) != count) {
        if (clock_mono_ns() > deadline_ns) {
            fail_msg("%d threads are called %s, not %d", threads_of(name, nice, policy), name,
                     count);
        }
        (void)sched_yield();
    }
}

/* The copier is not among them: the next update waits for it. */
static void who_writes_and_who_encodes_take_what_training_leaves(void **state)
{
    (void)state;
    struct world *w = joined();
    const struct session_ready ready = { .total_steps = 20,
                                         .save_every = 5,
                                         .pins = "{}",
                                         .threads = 2,
                                         .snapshot_bytes_max = ELEMENTS * sizeof(float) };
    assert_int_equal(session_set_ready(w->session, &ready), ST_OK);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    await(w, &w->c.reports, 1);
    check_priority("cairn-saver", 1, 10, SCHED_BATCH);
    check_priority("cairn-encoder", 2, 10, SCHED_BATCH);
    check_priority("cairn-copier", 1, getpriority(PRIO_PROCESS, 0), sched_getscheduler(0));
    free(t.values);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_are_in_the_last_words_until_the_save_is_committed),
        cmocka_unit_test(no_step_waits_for_a_slow_store),
        cmocka_unit_test(the_last_save_waits_for_a_slow_store_and_that_is_progress),
        cmocka_unit_test(a_full_store_is_told_and_the_save_can_be_made_again),
        cmocka_unit_test(who_writes_and_who_encodes_take_what_training_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
