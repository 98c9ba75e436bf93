/* Copy files that can't be made, or not soon, once a save waits for one. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/check.h"
#include "session/internal.h"
#include "tests/unit/session/session_world.h"

/* ---- mappings as large as a copy file: refused, or not yet ---- */

void *__real_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset);

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool refuses, holds, held;
} maps = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

void *__wrap_mmap(void *at, size_t size, int access, int flags, int fd, off_t offset)
{
    if (size < ELEMENTS * sizeof(float))
        return __real_mmap(at, size, access, flags, fd, offset);
    (void)pthread_mutex_lock(&maps.mutex);
    maps.held = maps.holds;
    (void)pthread_cond_broadcast(&maps.changed);
    while (maps.holds)
        (void)pthread_cond_wait(&maps.changed, &maps.mutex);
    const bool refuses = maps.refuses;
    (void)pthread_mutex_unlock(&maps.mutex);
    return refuses ? MAP_FAILED : __real_mmap(at, size, access, flags, fd, offset);
}

static void set_maps(bool refuses, bool holds)
{
    (void)pthread_mutex_lock(&maps.mutex);
    maps.refuses = refuses;
    maps.holds = holds;
    (void)pthread_cond_broadcast(&maps.changed);
    (void)pthread_mutex_unlock(&maps.mutex);
}

static void await_held(void)
{
    (void)pthread_mutex_lock(&maps.mutex);
    while (!maps.held)
        (void)pthread_cond_wait(&maps.changed, &maps.mutex);
    (void)pthread_mutex_unlock(&maps.mutex);
}

/* ---- the step thread's part ---- */

struct step_thread {
    struct session *session;
    struct training training;
    enum status status;
    pthread_t thread;
};

static void *save_once(void *arg)
{
    struct step_thread *s = arg;
    s->status = save(s->session, &s->training.state);
    return NULL;
}

static void a_save_whose_copy_file_cant_be_made_fails_and_nothing_of_it_is_left(void **state)
{
    (void)state;
    struct world *w = joined();
    struct step_thread s = { .session = w->session };
    training_init(&s.training, 5);
    set_maps(true, false);
    get_ready(w);
    (void)save_once(&s);
    assert_int_equal(s.status, ST_NO_MEMORY);
    (void)save_once(&s); /* nor does it wait for one later */
    assert_int_equal(s.status, ST_NO_MEMORY);
    (void)pthread_mutex_lock(&w->session->mutex);
    assert_false(w->session->copies.active);
    assert_int_equal(w->session->copies.made, 0);
    (void)pthread_mutex_unlock(&w->session->mutex);
    assert_int_equal(w->c.reports, 0);
    set_maps(false, false);
    free(s.training.values);
    world_free(w);
}

static void who_waits_for_a_copy_file_is_let_go_to_park(void **state)
{
    (void)state;
    struct world *w = joined();
    struct step_thread s = { .session = w->session };
    training_init(&s.training, 5);
    set_maps(false, true);
    get_ready(w);
    assert_int_equal(pthread_create(&s.thread, NULL, save_once, &s), 0);
    await_held();
    (void)pthread_mutex_lock(&w->c.mutex);
    order_park(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_int_equal(pthread_join(s.thread, NULL), 0);
    assert_int_equal(s.status, ST_STALE);
    assert_true(session_parks(w->session));
    set_maps(false, false); /* the copier comes to its end */
    free(s.training.values);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_whose_copy_file_cant_be_made_fails_and_nothing_of_it_is_left),
        cmocka_unit_test(who_waits_for_a_copy_file_is_let_go_to_park),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
