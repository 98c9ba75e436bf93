/*
 * Gloo behind the comm table when ranks die or stop: each rank is a forked process. Time limits are
 * minutes: a test that passed only because one ran out would say so, since the status or the reason
 * would be another.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/exact.h"
#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"

#define LONG_MS   120000
#define RANKS_MAX 5

/* Shared with forked ranks. */
struct scene {
    struct shared_rendezvous *shared;
    struct turn {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        int opened, sending;
    } * turn;
    int size;
};

static void count_up(struct turn *turn, int *counter)
{
    (void)pthread_mutex_lock(&turn->mutex);
    ++*counter;
    (void)pthread_cond_broadcast(&turn->changed);
    (void)pthread_mutex_unlock(&turn->mutex);
}

static void wait_for(struct turn *turn, const int *counter, int value)
{
    (void)pthread_mutex_lock(&turn->mutex);
    while (*counter < value)
        (void)pthread_cond_wait(&turn->changed, &turn->mutex);
    (void)pthread_mutex_unlock(&turn->mutex);
}

static struct scene scene_new(int size)
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

static void scene_free(struct scene *scene)
{
    shared_rendezvous_free(scene->shared);
    (void)munmap(scene->turn, sizeof(*scene->turn));
}

static pid_t fork_rank(const struct scene *scene, int rank,
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

static void expect_exit(pid_t child, int expected)
{
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), expected);
}

/* Opens, says so, then waits to be stopped and killed. */
static int victim_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)comm;
    (void)rank;
    count_up(scene->turn, &scene->turn->opened);
    for (;;)
        (void)pause();
    return 0;
}

#define AMID_BYTES ((size_t)64 * 1024 * 1024)

/*
 * Exchanges with all. The victim posts nothing, so all wait for it; exit code: 0 for ST_PEER with
 * the victim (the last rank) or, if others left first, any other rank to blame, and no timeout.
 */
static int survivor_body(const struct scene *scene, struct comm *comm, int rank)
{
    struct comm_segment send[RANKS_MAX], recv[RANKS_MAX];
    for (int r = 0; r < scene->size; r++) {
        send[r] = (struct comm_segment){ calloc(1, 1000), 1000 };
        recv[r] = (struct comm_segment){ calloc(1, 1000), 1000 };
    }
    count_up(scene->turn, &scene->turn->opened);
    wait_for(scene->turn, &scene->turn->opened, scene->size);
    count_up(scene->turn, &scene->turn->sending);
    const enum status st = comm_gloo()->all_to_all_v(comm, send, recv, LONG_MS);
    const int blamed = comm_gloo()->blamed(comm);
    const char *why = comm_gloo()->why(comm);
    /* Useless from now on, and says the same again. */
    const bool same = comm_gloo()->all_to_all_v(comm, send, recv, LONG_MS) == st;
    if (st != ST_PEER || !same || blamed == rank || why[0] == '\0' || strstr(why, "Timed out"))
        return 1;
    return 0;
}

static void the_death_of_a_peer_is_noticed_by_all_at_once(void **state)
{
    (void)state;
    struct scene scene = scene_new(4);
    pid_t child[4];
    for (int r = 0; r < 4; r++)
        child[r] = fork_rank(&scene, r, r == 3 ? victim_body : survivor_body);
    wait_for(scene.turn, &scene.turn->sending, 3);
    assert_int_equal(kill(child[3], SIGKILL), 0);
    for (int r = 0; r < 3; r++)
        expect_exit(child[r], 0);
    assert_int_equal(waitpid(child[3], NULL, 0), child[3]);
    scene_free(&scene);
}

enum { AMID_NOTICED = 0, AMID_WRONG = 1, AMID_THROUGH = 2 };

/* What rank 0 saw of a transfer with rank 1, which died. */
static int amid_code(struct comm *comm, enum status st)
{
    if (st == ST_OK)
        return AMID_THROUGH;
    if (st != ST_PEER || comm_gloo()->blamed(comm) != 1 ||
        strstr(comm_gloo()->why(comm), "Timed out") != NULL)
        return AMID_WRONG;
    return AMID_NOTICED;
}

/* A large message of which only the beginning ever comes. */
static int amid_receiver_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    uint8_t *data = malloc(AMID_BYTES);
    CHECK(data != NULL);
    count_up(scene->turn, &scene->turn->sending);
    const enum status st = comm_gloo()->recv(comm, 1, data, AMID_BYTES, LONG_MS);
    const int code = amid_code(comm, st);
    free(data);
    return code;
}

/* The sender's other thread: kills the process once the transfer has surely begun. */
static void *kill_soon(void *arg)
{
    struct turn *turn = arg;
    wait_for(turn, &turn->sending, 1);
    const struct timespec while_it_runs = { 0, 5 * 1000 * 1000 };
    (void)nanosleep(&while_it_runs, NULL);
    (void)kill(getpid(), SIGKILL);
    return NULL;
}

static int amid_sender_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    uint8_t *data = calloc(1, AMID_BYTES);
    CHECK(data != NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, kill_soon, scene->turn) == 0);
    for (;;)
        (void)comm_gloo()->send(comm, 0, data, AMID_BYTES, LONG_MS);
}

static void a_death_amid_a_transfer_is_noticed_by_the_receiver(void **state)
{
    (void)state;
    /* Several times: the place where the transfer is cut, if it is, is left to chance. */
    int noticed = 0;
    for (int i = 0; i < 5; i++) {
        struct scene scene = scene_new(2);
        const pid_t receiver = fork_rank(&scene, 0, amid_receiver_body);
        const pid_t sender = fork_rank(&scene, 1, amid_sender_body);
        int code = -1;
        assert_int_equal(waitpid(sender, &code, 0), sender);
        assert_true(WIFSIGNALED(code));
        assert_int_equal(waitpid(receiver, &code, 0), receiver);
        assert_true(WIFEXITED(code));
        assert_int_not_equal(WEXITSTATUS(code), AMID_WRONG);
        noticed += WEXITSTATUS(code) == AMID_NOTICED;
        scene_free(&scene);
    }
    assert_true(noticed > 0);
}

/* Sends more than the kernel holds to a peer that is stopped: the send can't get through. */
static int stuck_sender_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    uint8_t *data = calloc(1, AMID_BYTES);
    CHECK(data != NULL);
    uint8_t first = 0;
    CHECK(comm_gloo()->recv(comm, 1, &first, 1, LONG_MS) == ST_OK);
    count_up(scene->turn, &scene->turn->sending);
    const enum status st = comm_gloo()->send(comm, 1, data, AMID_BYTES, LONG_MS);
    const int code = amid_code(comm, st);
    free(data);
    return code;
}

struct post {
    struct comm *comm;
    uint8_t *data;
};

static void *receive_large(void *arg)
{
    struct post *post = arg;
    (void)comm_gloo()->recv(post->comm, 0, post->data, AMID_BYTES, LONG_MS);
    return NULL;
}

/* Posts the large reception, then stops itself while it is under way. */
static int stopped_receiver_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    uint8_t first = 1;
    CHECK(comm_gloo()->send(comm, 0, &first, 1, LONG_MS) == ST_OK);
    struct post post = { comm, calloc(1, AMID_BYTES) };
    CHECK(post.data != NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, receive_large, &post) == 0);
    wait_for(scene->turn, &scene->turn->sending, 1);
    const struct timespec while_it_runs = { 0, 2 * 1000 * 1000 };
    (void)nanosleep(&while_it_runs, NULL);
    (void)raise(SIGSTOP);
    for (;;)
        (void)pause();
}

static void a_death_amid_a_transfer_is_noticed_by_the_sender(void **state)
{
    (void)state;
    struct scene scene = scene_new(2);
    const pid_t sender = fork_rank(&scene, 0, stuck_sender_body);
    const pid_t receiver = fork_rank(&scene, 1, stopped_receiver_body);
    int code = -1;
    assert_int_equal(waitpid(receiver, &code, WUNTRACED), receiver);
    assert_true(WIFSTOPPED(code));
    assert_int_equal(kill(receiver, SIGKILL), 0);
    assert_int_equal(waitpid(receiver, &code, 0), receiver);
    assert_int_equal(waitpid(sender, &code, 0), sender);
    assert_true(WIFEXITED(code));
    assert_int_not_equal(WEXITSTATUS(code), AMID_WRONG);
    scene_free(&scene);
}

static void *abort_once_sending(void *arg)
{
    struct post *post = arg;
    struct turn *turn = (struct turn *)(void *)post->data;
    wait_for(turn, &turn->sending, 1);
    comm_gloo()->abort(post->comm);
    return NULL;
}

static int aborted_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    wait_for(scene->turn, &scene->turn->sending, 1); /* the peer has stopped */
    struct post post = { comm, (uint8_t *)scene->turn };
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, abort_once_sending, &post) == 0);
    uint8_t byte = 0;
    const enum status st = comm_gloo()->recv(comm, 1, &byte, 1, LONG_MS);
    CHECK(pthread_join(thread, NULL) == 0);
    if (st != ST_STALE || comm_gloo()->recv(comm, 1, &byte, 1, LONG_MS) != ST_STALE)
        return 1;
    return 0;
}

static int stopped_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)comm;
    (void)rank;
    count_up(scene->turn, &scene->turn->opened);
    (void)raise(SIGSTOP);
    return 0;
}

/* Rank 0 does what body says, and ends well, while rank 1 is stopped. */
static void beside_a_stopped_peer(int (*body)(const struct scene *, struct comm *, int))
{
    struct scene scene = scene_new(2);
    const pid_t waiter = fork_rank(&scene, 0, body);
    const pid_t stopped = fork_rank(&scene, 1, stopped_body);
    int code = -1;
    assert_int_equal(waitpid(stopped, &code, WUNTRACED), stopped);
    assert_true(WIFSTOPPED(code));
    count_up(scene.turn, &scene.turn->sending);
    expect_exit(waiter, 0);
    assert_int_equal(kill(stopped, SIGKILL), 0);
    assert_int_equal(waitpid(stopped, &code, 0), stopped);
    scene_free(&scene);
}

static void abort_frees_the_thread_that_waits_for_a_stopped_peer(void **state)
{
    (void)state;
    beside_a_stopped_peer(aborted_body);
}

static int timed_out_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    wait_for(scene->turn, &scene->turn->sending, 1);
    uint8_t byte = 0;
    const enum status st = comm_gloo()->recv(comm, 1, &byte, 1, 50);
    return st == ST_PEER && comm_gloo()->blamed(comm) == 1 ? 0 : 1;
}

static void a_stopped_peer_is_blamed_when_the_deadline_has_passed(void **state)
{
    (void)state;
    beside_a_stopped_peer(timed_out_body);
}

/* A step that the peer never joins; closing the reduction ends it. */
static int closing_body(const struct scene *scene, struct comm *comm, int rank)
{
    wait_for(scene->turn, &scene->turn->sending, 1);
    const uint32_t shares[] = { 1, 1 };
    const size_t border = 0;
    const struct exact_options options = { .table = comm_gloo(),
                                           .comm = comm,
                                           .rank = rank,
                                           .size = 2,
                                           .shares = shares,
                                           .count = 1000,
                                           .bucket_begin = &border,
                                           .bucket_count = 1,
                                           .timeout_ms = LONG_MS };
    struct exact *exact = NULL;
    CHECK(exact_open(&options, &exact) == ST_OK);
    exact_begin(exact);
    exact_bucket_done(exact, 0);
    exact_close(exact);
    return 0;
}

static void closing_the_reduction_amid_a_step_ends_its_thread(void **state)
{
    (void)state;
    beside_a_stopped_peer(closing_body);
}

int main(void)
{
    (void)alarm(240); /* a rank that could not open leaves the others waiting */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_death_of_a_peer_is_noticed_by_all_at_once),
        cmocka_unit_test(a_death_amid_a_transfer_is_noticed_by_the_receiver),
        cmocka_unit_test(a_death_amid_a_transfer_is_noticed_by_the_sender),
        cmocka_unit_test(abort_frees_the_thread_that_waits_for_a_stopped_peer),
        cmocka_unit_test(a_stopped_peer_is_blamed_when_the_deadline_has_passed),
        cmocka_unit_test(closing_the_reduction_amid_a_step_ends_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
