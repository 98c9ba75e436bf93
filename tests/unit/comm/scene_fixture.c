#include "tests/unit/comm/scene_fixture.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/test.h"

void count_up(struct turn *turn, int *counter)
{
    (void)pthread_mutex_lock(&turn->mutex);
    ++*counter;
    (void)pthread_cond_broadcast(&turn->changed);
    (void)pthread_mutex_unlock(&turn->mutex);
}

void wait_for(struct turn *turn, const int *counter, int value)
{
    (void)pthread_mutex_lock(&turn->mutex);
    while (*counter < value)
        (void)pthread_cond_wait(&turn->changed, &turn->mutex);
    (void)pthread_mutex_unlock(&turn->mutex);
}

struct scene scene_new(int size)
{
    struct scene scene = { .shared = shared_rendezvous_new(), .size = size };
    scene.turn =
        mmap(NULL, sizeof(*scene.turn), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(scene.turn != MAP_FAILED);
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    (void)pthread_mutexattr_init(&mutex);
    (void)pthread_condattr_init(&cond);
    (void)pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    (void)pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutex_init(&scene.turn->mutex, &mutex);
    (void)pthread_cond_init(&scene.turn->changed, &cond);
    return scene;
}

void scene_free(struct scene *scene)
{
    shared_rendezvous_free(scene->shared);
    (void)munmap(scene->turn, sizeof(*scene->turn));
}

pid_t fork_rank(const struct scene *scene, int rank,
                int (*body)(const struct scene *scene, struct comm *comm, int rank))
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0)
        return child;
    struct comm *comm = NULL;
    if (gloo_open_rank(scene->shared, rank, scene->size, LONG_MS, &comm) != ST_OK)
        _exit(100);
    const int code = body(scene, comm, rank);
    comm_gloo()->close(comm);
    _exit(code);
}

void expect_exit(pid_t child, int expected)
{
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), expected);
}
