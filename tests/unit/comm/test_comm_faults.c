/*
 * Gloo behind the comm table when ranks die or stop: each rank is a forked process. Time limits are
 * minutes: a test that passed only because one ran out would say so, since the status or the reason
 * would be another.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/reducer.h"
#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "tests/unit/comm/scene_fixture.h"

#define RANKS_MAX 5

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
    if (st != ST_PEER || !same || blamed == rank || why[0] == '\0' ||
        strstr(why, "Timed out") != NULL)
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

/* ---- posts ---- */

#define POSTED_BYTES ((size_t)1000)
#define PATTERN      0xa5

/* Sends and receptions that the peer never comes to, more than the kernel holds. */
struct posted {
    uint8_t *large, small[2][POSTED_BYTES];
    struct comm_post posts[3];
};

static void post_to(struct posted *p, struct comm *comm, int peer)
{
    p->large = calloc(1, AMID_BYTES);
    CHECK(p->large != NULL);
    memset(p->small, PATTERN, sizeof(p->small));
    CHECK(comm_gloo()->post_begin(comm) == ST_OK);
    CHECK(comm_gloo()->post_recv(comm, peer, 0, p->small[0], POSTED_BYTES, &p->posts[0]) == ST_OK);
    CHECK(comm_gloo()->post_send(comm, peer, 0, p->large, AMID_BYTES, &p->posts[1]) == ST_OK);
    CHECK(comm_gloo()->post_recv(comm, peer, 0, p->small[1], POSTED_BYTES, &p->posts[2]) == ST_OK);
    CHECK(comm_gloo()->post_end(comm, LONG_MS) == ST_OK);
}

/* Every one of them fails like that, again and again, and nothing was received. */
static bool all_fail_with(struct posted *p, struct comm *comm, enum status expected)
{
    bool good = true;
    for (int i = 0; i < 6; i++)
        good = comm_gloo()->wait_one(comm, &p->posts[i % 3], LONG_MS) == expected && good;
    struct comm_post more;
    good = comm_gloo()->post_begin(comm) == ST_OK && good;
    good = comm_gloo()->post_recv(comm, 1, 0, p->large, 1, &more) == expected && good;
    good = comm_gloo()->post_end(comm, LONG_MS) == expected && good;
    for (size_t i = 0; i < sizeof(p->small); i++)
        good = ((const uint8_t *)p->small)[i] == PATTERN && good;
    free(p->large);
    return good;
}

static int posting_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    struct posted p;
    wait_for(scene->turn, &scene->turn->opened, 1);
    post_to(&p, comm, 1);
    count_up(scene->turn, &scene->turn->sending);
    const enum status st = comm_gloo()->wait_one(comm, &p.posts[2], LONG_MS);
    const bool told = st == ST_PEER && comm_gloo()->blamed(comm) == 1 &&
                      strstr(comm_gloo()->why(comm), "Timed out") == NULL;
    return all_fail_with(&p, comm, ST_PEER) && told ? 0 : 1;
}

static void a_death_ends_all_that_is_posted(void **state)
{
    (void)state;
    struct scene scene = scene_new(2);
    const pid_t waiter = fork_rank(&scene, 0, posting_body);
    const pid_t victim = fork_rank(&scene, 1, victim_body);
    wait_for(scene.turn, &scene.turn->sending, 1);
    assert_int_equal(kill(victim, SIGKILL), 0);
    expect_exit(waiter, 0);
    assert_int_equal(waitpid(victim, NULL, 0), victim);
    scene_free(&scene);
}

static int aborted_post_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    struct posted p;
    wait_for(scene->turn, &scene->turn->sending, 1); /* the peer has stopped */
    post_to(&p, comm, 1);
    struct post post = { comm, (uint8_t *)scene->turn };
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, abort_once_sending, &post) == 0);
    const enum status st = comm_gloo()->wait_one(comm, &p.posts[0], LONG_MS);
    CHECK(pthread_join(thread, NULL) == 0);
    return all_fail_with(&p, comm, ST_STALE) && st == ST_STALE ? 0 : 1;
}

/* Between a post and its wait nobody waits whom the abort could free. */
static int aborted_before_waiting_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    struct posted p;
    wait_for(scene->turn, &scene->turn->sending, 1);
    post_to(&p, comm, 1);
    comm_gloo()->abort(comm);
    return all_fail_with(&p, comm, ST_STALE) ? 0 : 1;
}

static int posted_after_abort_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    uint8_t byte = 0;
    struct comm_post post;
    wait_for(scene->turn, &scene->turn->sending, 1);
    comm_gloo()->abort(comm); /* nothing is in flight that it could free */
    const bool begun = comm_gloo()->post_begin(comm) == ST_OK;
    const enum status st = comm_gloo()->post_recv(comm, 1, 0, &byte, 1, &post);
    return begun && st == ST_STALE ? 0 : 1;
}

static void abort_frees_the_thread_that_waits_for_a_post(void **state)
{
    (void)state;
    beside_a_stopped_peer(posted_after_abort_body);
    beside_a_stopped_peer(aborted_post_body);
    beside_a_stopped_peer(aborted_before_waiting_body);
}

static int late_post_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    struct posted p;
    wait_for(scene->turn, &scene->turn->sending, 1);
    post_to(&p, comm, 1);
    const enum status st = comm_gloo()->wait_one(comm, &p.posts[1], 50);
    const bool told = st == ST_PEER && comm_gloo()->blamed(comm) == 1;
    return all_fail_with(&p, comm, ST_PEER) && told ? 0 : 1;
}

static void a_post_has_a_deadline(void **state)
{
    (void)state;
    beside_a_stopped_peer(late_post_body);
}

/* The wait has failed amid a message that goes on coming: the buffer is the caller's. */
static int reclaiming_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    uint8_t *data = malloc(AMID_BYTES);
    CHECK(data != NULL);
    struct comm_post in;
    CHECK(comm_gloo()->post_begin(comm) == ST_OK);
    CHECK(comm_gloo()->post_recv(comm, 1, 0, data, AMID_BYTES, &in) == ST_OK);
    CHECK(comm_gloo()->post_end(comm, LONG_MS) == ST_OK);
    count_up(scene->turn, &scene->turn->sending);
    const struct timespec while_it_runs = { 0, 5 * 1000 * 1000 };
    (void)nanosleep(&while_it_runs, NULL);
    comm_gloo()->abort(comm);
    const enum status st = comm_gloo()->wait_one(comm, &in, LONG_MS);
    memset(data, PATTERN, AMID_BYTES);
    wait_for(scene->turn, &scene->turn->opened, 1); /* the sender has noticed */
    bool untouched = true;
    for (size_t i = 0; i < AMID_BYTES; i++)
        untouched = untouched && data[i] == PATTERN;
    free(data);
    return st == ST_STALE && untouched ? 0 : 1;
}

static int sending_body(const struct scene *scene, struct comm *comm, int rank)
{
    (void)rank;
    uint8_t *data = calloc(1, AMID_BYTES);
    CHECK(data != NULL);
    wait_for(scene->turn, &scene->turn->sending, 1);
    enum status st = ST_OK;
    while (st == ST_OK)
        st = comm_gloo()->send(comm, 0, data, AMID_BYTES, LONG_MS);
    count_up(scene->turn, &scene->turn->opened);
    free(data);
    return st == ST_PEER ? 0 : 1;
}

static void a_buffer_is_the_callers_when_its_wait_has_failed(void **state)
{
    (void)state;
    struct scene scene = scene_new(2);
    const pid_t receiver = fork_rank(&scene, 0, reclaiming_body);
    const pid_t sender = fork_rank(&scene, 1, sending_body);
    expect_exit(receiver, 0);
    expect_exit(sender, 0);
    scene_free(&scene);
}

/* ---- a group ---- */

static const int group_members[] = { 1, 3, 4 };

static enum status open_group(const struct scene *scene, int rank, struct comm **out)
{
    const bool alone = rank == 0 || rank == 2;
    const struct comm_some some = { .round_name = "group",
                                    .members = alone ? &rank : group_members,
                                    .member_count = alone ? 1 : 3 };
    return gloo_open_some(scene->shared, &some, rank, 5, LONG_MS, out);
}

/* Ranks 1, 3 and 4 of the generation are a group. 4 dies; 1 is told so, in the generation's
 * numbers. */
static int member_body(const struct scene *scene, int rank)
{
    struct comm *comm = NULL;
    uint8_t byte = 0;
    if (open_group(scene, rank, &comm) != ST_OK)
        return 100;
    count_up(scene->turn, &scene->turn->opened);
    if (rank == 3)
        (void)raise(SIGSTOP); /* else it closes, too, when it notices */
    if (rank == 3 || rank == 4) {
        for (;;)
            (void)pause();
    }
    wait_for(scene->turn, &scene->turn->opened, 5);
    int code = 0;
    if (rank == 1) {
        const enum status st = comm_gloo()->recv(comm, 1, &byte, 1, LONG_MS); /* of rank 3 */
        const bool told = st == ST_PEER && comm_gloo()->blamed(comm) == 4;
        code = told ? 0 : 1;
    }
    comm_gloo()->close(comm);
    return code;
}

static void a_member_that_dies_is_blamed_by_its_rank_in_the_generation(void **state)
{
    (void)state;
    struct scene scene = scene_new(5);
    pid_t child[5];
    for (int r = 0; r < 5; r++) {
        child[r] = fork();
        assert_true(child[r] >= 0);
        if (child[r] == 0)
            _exit(member_body(&scene, r));
    }
    int code = -1;
    wait_for(scene.turn, &scene.turn->opened, 5);
    assert_int_equal(waitpid(child[3], &code, WUNTRACED), child[3]);
    assert_true(WIFSTOPPED(code));
    assert_int_equal(kill(child[4], SIGKILL), 0);
    expect_exit(child[0], 0);
    expect_exit(child[1], 0);
    expect_exit(child[2], 0);
    assert_int_equal(kill(child[3], SIGKILL), 0);
    assert_int_equal(waitpid(child[3], NULL, 0), child[3]);
    assert_int_equal(waitpid(child[4], NULL, 0), child[4]);
    scene_free(&scene);
}

/* A step that the peer never joins; closing the reduction ends it. */
static int closing_body(const struct scene *scene, struct comm *comm, int rank)
{
    wait_for(scene->turn, &scene->turn->sending, 1);
    const uint32_t shares[] = { 1, 1 };
    const size_t border = 0;
    const struct reducer_options options = { .table = comm_gloo(),
                                             .comm = comm,
                                             .rank = rank,
                                             .size = 2,
                                             .shares = shares,
                                             .count = 1000,
                                             .bucket_begin = &border,
                                             .bucket_count = 1,
                                             .timeout_ms = LONG_MS };
    struct reducer *reducer = NULL;
    CHECK(reducer_open(&options, &reducer) == ST_OK);
    reducer_begin(reducer);
    reducer_bucket_done(reducer, 0);
    reducer_close(reducer);
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
        cmocka_unit_test(a_death_ends_all_that_is_posted),
        cmocka_unit_test(abort_frees_the_thread_that_waits_for_a_post),
        cmocka_unit_test(a_post_has_a_deadline),
        cmocka_unit_test(a_buffer_is_the_callers_when_its_wait_has_failed),
        cmocka_unit_test(a_member_that_dies_is_blamed_by_its_rank_in_the_generation),
        cmocka_unit_test(closing_the_reduction_amid_a_step_ends_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
