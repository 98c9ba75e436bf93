/*
 * Ranks of a real Gloo, as threads, with strangers at their ports first: a rank's strangers come
 * before it says where it listens, so they stand in front of every peer.
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/peers.h"
#include "common/check.h"
#include "identity/proof.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"

#define LONG_MS   120000
#define SECRET    "0123456789abcdef"
#define RANKS_MAX 4
#define MANY      420 /* six times as many as are attended to at once, and some */

enum kind { SILENT, GARBAGE, GOES, HALF_A_HELLO, OTHER_SECRET, FORGED_MARK, EAGER };
#define KINDS (EAGER + 1)

/* ---- strangers ---- */

static int dial_port(const uint8_t port[2])
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    memcpy(&name.sin_port, port, 2);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0);
    return fd;
}

/* The hello of rank 0..3 to that one, by a key that isn't the generation's. */
static void say_hello(int fd, enum kind kind, int to)
{
    static const uint8_t nonce[IDENTITY_PROOF_NONCE] = "a stranger's";
    struct identity_proof_key key;
    struct identity_proof proof;
    CHECK(identity_proof_key_make(kind == OTHER_SECRET ? "of before" : SECRET, "workers", &key) ==
          ST_OK);
    memset(key.key, 1, sizeof(key.key));
    identity_proof_dial(&proof, &key, 3, (uint32_t)to, nonce);
    const size_t size = kind == HALF_A_HELLO ? 20 : proof.out_size;
    CHECK(send(fd, proof.out, size, MSG_NOSIGNAL) == (ssize_t)size);
    /* All that a dialler ever says, without waiting: 32 bytes that are no MAC, then a preamble. */
    if (kind == EAGER || kind == FORGED_MARK)
        (void)!send(fd, proof.out, kind == EAGER ? 56 : 32, MSG_NOSIGNAL);
}

static int send_stranger(enum kind kind, const uint8_t port[2], int rank)
{
    const int fd = dial_port(port);
    switch (kind) {
    case SILENT:
        break;
    case GARBAGE:
        CHECK(send(fd, "GET / HTTP/1.1\r\nHost: there\r\n\r\n", 31, MSG_NOSIGNAL) == 31);
        break;
    case GOES:
        (void)close(fd);
        return -1;
    case HALF_A_HELLO:
    case OTHER_SECRET:
    case FORGED_MARK:
    case EAGER:
        say_hello(fd, kind, rank);
        break;
    }
    return fd;
}

/* ---- ranks ---- */

struct scene {
    struct shared_rendezvous *shared;
    const enum kind *kinds; /* of strangers at each port */
    int kind_count, each;
    int size;
    int64_t timeout_ms;
    const struct log *log;
    const char *secrets[RANKS_MAX]; /* NULL: the generation's */
};

struct rank {
    const struct scene *scene;
    int rank;
    int strangers[KINDS * MANY];
    int stranger_count;
    enum status status, sum;
    pthread_t thread;
};

/* The round of a rank whose port the strangers have found. */
static enum status meet_behind_strangers(void *self, const char *name,
                                         const struct rendezvous_part *mine, int ranks,
                                         int64_t timeout_ms, struct rendezvous_got *out)
{
    struct rank *rank = self;
    const struct scene *scene = rank->scene;
    const struct rendezvous inner = shared_rendezvous_of(scene->shared, rank->rank);
    CHECK(mine->common_size == 6);
    for (int k = 0; k < scene->kind_count; k++) {
        for (int i = 0; i < scene->each; i++) {
            rank->strangers[rank->stranger_count++] =
                send_stranger(scene->kinds[k], (const uint8_t *)mine->common + 4, rank->rank);
        }
    }
    return inner.join(inner.self, name, mine, ranks, timeout_ms, out);
}

static bool is_not_over(void *self)
{
    (void)self;
    return false;
}

/* Numbers of which float sums are exact, and which differ for each rank. */
static enum status sum_of_all(struct comm *comm, int rank, int size)
{
    enum { COUNT = 100000 };
    float *data = malloc(COUNT * sizeof(*data));
    CHECK(data != NULL);
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(i % 1000 + (1 << 10) * rank);
    enum status st = comm_gloo()->all_reduce_f32(comm, data, COUNT, LONG_MS);
    for (int i = 0; st == ST_OK && i < COUNT; i++) {
        if (data[i] != (float)(size * (i % 1000) + (1 << 10) * size * (size - 1) / 2))
            st = ST_CORRUPT;
    }
    free(data);
    return st;
}

static void *run_rank(void *arg)
{
    struct rank *self = arg;
    const struct scene *scene = self->scene;
    const struct rendezvous rendezvous = { .self = self,
                                           .join = meet_behind_strangers,
                                           .is_over = is_not_over };
    const char *secret = scene->secrets[self->rank];
    const struct comm_options options = { .rendezvous = &rendezvous,
                                          .round_name = "workers",
                                          .rank = self->rank,
                                          .size = scene->size,
                                          .host = "127.0.0.1",
                                          .secret = secret != NULL ? secret : SECRET,
                                          .timeout_ms = scene->timeout_ms,
                                          .log = scene->log };
    struct comm *comm = NULL;
    self->sum = ST_STALE;
    self->status = comm_gloo()->open(&options, &comm);
    if (self->status == ST_OK)
        self->sum = sum_of_all(comm, self->rank, scene->size);
    comm_gloo()->close(comm);
    for (int i = 0; i < self->stranger_count; i++) {
        if (self->strangers[i] >= 0)
            (void)close(self->strangers[i]);
    }
    return NULL;
}

static void run_scene(struct scene *scene, struct rank ranks[RANKS_MAX])
{
    scene->shared = shared_rendezvous_new();
    for (int r = 0; r < scene->size; r++) {
        ranks[r] = (struct rank){ .scene = scene, .rank = r };
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < scene->size; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    shared_rendezvous_free(scene->shared);
}

static void expect_all_well(const struct scene *scene, const struct rank *ranks)
{
    for (int r = 0; r < scene->size; r++) {
        assert_int_equal(ranks[r].status, ST_OK);
        assert_int_equal(ranks[r].sum, ST_OK);
    }
}

static int count_open(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count;
}

/* ---- what a log says ---- */

static struct log log_to(FILE *file)
{
    return (struct log){ .fd = fileno(file), .program = "test", .rank = -1, .generation = -1 };
}

/* The whole text; the caller's. */
static char *text_of(FILE *file)
{
    char *text = calloc(1, 65536);
    assert_non_null(text);
    assert_true(pread(fileno(file), text, 65535, 0) >= 0);
    (void)fclose(file);
    assert_null(strstr(text, SECRET));
    return text;
}

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        count++;
    return count;
}

/* ---- tests ---- */

static void strangers_on_every_port_first_disturb_nobody(void **state)
{
    (void)state;
    static const enum kind all[] = { SILENT,       GARBAGE,     GOES, HALF_A_HELLO,
                                     OTHER_SECRET, FORGED_MARK, EAGER };
    static struct rank ranks[RANKS_MAX];
    struct scene scene = { .size = 4, .each = 2, .timeout_ms = LONG_MS };
    for (int k = 0; k < KINDS; k++) {
        scene.kinds = &all[k];
        scene.kind_count = 1;
        run_scene(&scene, ranks);
        expect_all_well(&scene, ranks);
    }
    const int open = count_open();
    scene.kinds = all;
    scene.kind_count = KINDS;
    for (int round = 0; round < 5; round++) {
        run_scene(&scene, ranks);
        expect_all_well(&scene, ranks);
        assert_int_equal(count_open(), open);
    }
}

/* More than are attended to at once: were the first not sent away for those behind them, the time
 * would be over. */
static void many_strangers_make_room(void **state)
{
    (void)state;
    static const enum kind silent = SILENT;
    static struct rank ranks[RANKS_MAX];
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    FILE *file = tmpfile();
    const struct log log = log_to(file);
    struct scene scene = { .kinds = &silent,
                           .kind_count = 1,
                           .each = MANY,
                           .size = 2,
                           .timeout_ms = 4 * (6 * PEERS_PROOF_MS - 1000), /* a quarter counts */
                           .log = &log };
    run_scene(&scene, ranks);
    expect_all_well(&scene, ranks);
    char *text = text_of(file);
    const int told = count_of(text, "a stranger at 127.0.0.1:"); /* by rank 0, and perhaps 1 */
    assert_in_range(told, PEERS_TOLD, 2 * PEERS_TOLD);
    assert_in_range(count_of(text, "more strangers"), 1, 2);
    free(text);
}

static void a_rank_with_another_secret_takes_no_part(void **state)
{
    (void)state;
    static struct rank ranks[RANKS_MAX];
    FILE *file = tmpfile();
    const struct log log = log_to(file);
    struct scene scene = {
        .size = 2, .timeout_ms = 12000, .log = &log, .secrets = { NULL, "of the generation before" }
    };
    run_scene(&scene, ranks);
    assert_int_equal(ranks[0].status, ST_PEER);
    assert_int_equal(ranks[1].status, ST_PEER);
    char *text = text_of(file);
    assert_true(count_of(text, "its secret is that of another generation or job") >= 1);
    assert_int_equal(count_of(text, "no connection with rank 1: it did not come in time"), 1);
    assert_int_equal(count_of(text, "no connection with rank 0 at 127.0.0.1:"), 1);
    free(text);
}

/* ---- one side alone ---- */

struct alone {
    struct peers *peers;
    struct rendezvous rendezvous;
    struct rendezvous_got got[2];
    int out[2];
    enum status status;
    atomic_bool over, ended;
    pthread_t thread;
    FILE *file;
    struct log log;
};

static bool is_alone_over(void *self)
{
    return atomic_load(&((struct alone *)self)->over);
}

static void *connect_alone(void *arg)
{
    struct alone *alone = arg;
    alone->status = peers_connect(alone->peers, alone->got, INT64_MAX, alone->out);
    atomic_store(&alone->ended, true);
    return NULL;
}

/* Rank of two; the other one's part is port. */
static void alone_begin(struct alone *alone, int rank, int listener)
{
    memset(alone, 0, sizeof(*alone));
    alone->rendezvous = (struct rendezvous){ .self = alone, .is_over = is_alone_over };
    alone->file = tmpfile();
    alone->log = log_to(alone->file);
    const struct peers_options options = { .rendezvous = &alone->rendezvous,
                                           .secret = SECRET,
                                           .purpose = "workers",
                                           .host = "127.0.0.1",
                                           .rank = rank,
                                           .size = 2,
                                           .log = &alone->log };
    assert_int_equal(peers_new(&options, &alone->peers), ST_OK);
    struct sockaddr_in name = { 0 };
    socklen_t size = sizeof(name);
    if (listener >= 0)
        assert_int_equal(getsockname(listener, (struct sockaddr *)&name, &size), 0);
    struct rendezvous_got *other = &alone->got[1 - rank];
    other->common_size = 6;
    memcpy(other->common, &name.sin_addr, 4);
    memcpy(other->common + 4, &name.sin_port, 2);
    assert_int_equal(pthread_create(&alone->thread, NULL, connect_alone, alone), 0);
}

/* The log's text; the caller's. */
static char *alone_end(struct alone *alone, enum status expected)
{
    assert_int_equal(pthread_join(alone->thread, NULL), 0);
    assert_int_equal(alone->status, expected);
    for (int r = 0; r < 2; r++) {
        if (alone->out[r] >= 0)
            (void)close(alone->out[r]);
    }
    peers_free(alone->peers);
    return text_of(alone->file);
}

/* Makes a socket with a port that nobody else gets, and that refuses. */
static int new_refuser(void)
{
    const struct sockaddr_in name = { .sin_family = AF_INET,
                                      .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    return fd;
}

static int new_listener(void)
{
    const int fd = new_refuser();
    assert_int_equal(listen(fd, 8), 0);
    return fd;
}

static void read_all(int fd, uint8_t *bytes, size_t size)
{
    for (size_t have = 0; have < size;) {
        const ssize_t n = read(fd, bytes + have, size - have);
        assert_true(n > 0);
        have += (size_t)n;
    }
}

static void who_says_nothing_is_sent_away(void **state)
{
    (void)state;
    struct alone alone;
    alone_begin(&alone, 0, -1);
    uint8_t address[PEERS_ADDRESS_MAX];
    assert_int_equal(peers_address(alone.peers, address), 6);
    const int fd = dial_port(address + 4);
    char byte;
    assert_int_equal(read(fd, &byte, 1), 0);
    (void)close(fd);
    atomic_store(&alone.over, true);
    char *text = alone_end(&alone, ST_STALE);
    assert_int_equal(count_of(text, "it proved nothing in time"), 1);
    free(text);
}

static void who_listens_has_to_know_the_secret_too(void **state)
{
    (void)state;
    struct alone alone;
    const int listener = new_listener();
    alone_begin(&alone, 1, listener);
    const int fd = accept(listener, NULL, NULL);
    uint8_t hello[IDENTITY_PROOF_HELLO], answer[64] = { 1, 2, 3 };
    read_all(fd, hello, sizeof(hello));
    assert_int_equal(send(fd, answer, sizeof(answer), MSG_NOSIGNAL), sizeof(answer));
    char *text = alone_end(&alone, ST_PEER);
    assert_int_equal(count_of(text, "who answers there doesn't know this generation's secret"), 1);
    free(text);
    assert_true(read(fd, answer, 1) <= 0); /* nothing was said to it after that */
    (void)close(fd);
    (void)close(listener);
}

/* The side of rank 0, by hand, as far as the welcome. */
static void prove_by_hand(int fd)
{
    static const uint8_t nonce[IDENTITY_PROOF_NONCE] = "by hand";
    struct identity_proof_key key;
    struct identity_proof proof;
    uint8_t bytes[IDENTITY_PROOF_BYTES];
    assert_int_equal(identity_proof_key_make(SECRET, "workers", &key), ST_OK);
    identity_proof_listen(&proof, &key, 0, nonce);
    for (size_t wanted; (wanted = identity_proof_wants(&proof)) > 0;) {
        read_all(fd, bytes, wanted);
        const enum identity_proof_end end = identity_proof_take(&proof, bytes, wanted);
        assert_true(end == IDENTITY_PROOF_GOES_ON || end == IDENTITY_PROOF_DONE);
        assert_int_equal(send(fd, proof.out, proof.out_size, MSG_NOSIGNAL), proof.out_size);
        proof.out_size = 0;
    }
    assert_int_equal(proof.from, 1);
}

static void a_proof_that_was_broken_off_begins_again(void **state)
{
    (void)state;
    struct alone alone;
    const int listener = new_listener();
    alone_begin(&alone, 1, listener);
    uint8_t hello[2][IDENTITY_PROOF_HELLO];
    for (int i = 0; i < 2; i++) {
        const int lost = accept(listener, NULL, NULL);
        read_all(lost, hello[i], IDENTITY_PROOF_HELLO);
        (void)close(lost);
    }
    assert_memory_not_equal(hello[0] + 24, hello[1] + 24, IDENTITY_PROOF_NONCE);
    const int fd = accept(listener, NULL, NULL);
    prove_by_hand(fd);
    free(alone_end(&alone, ST_OK));
    (void)close(fd);
    (void)close(listener);
}

/* Somebody dialled, before all was given up. */
static bool is_dialled(const struct alone *alone, int listener)
{
    struct pollfd comes = { .fd = listener, .events = POLLIN };
    while (!atomic_load(&alone->ended)) {
        if (poll(&comes, 1, 100) == 1)
            return true;
    }
    return false;
}

/* false: this thread was held up, and nobody dials any more. */
static bool is_dialled_again_after_refusals(void)
{
    const struct timespec moment = { .tv_nsec = 100000000 };
    struct alone alone;
    const int listener = new_refuser();
    alone_begin(&alone, 1, listener);
    (void)nanosleep(&moment, NULL); /* nothing tells that it was refused */
    assert_int_equal(listen(listener, 8), 0);
    const bool dialled = is_dialled(&alone, listener);
    if (dialled) {
        const int fd = accept(listener, NULL, NULL);
        prove_by_hand(fd);
        free(alone_end(&alone, ST_OK));
        (void)close(fd);
    } else {
        free(alone_end(&alone, ST_PEER));
    }
    (void)close(listener);
    return dialled;
}

/* A peer that refuses was perhaps restarted, or its queue was full. */
static void who_refuses_at_first_is_dialled_again(void **state)
{
    (void)state;
    for (int tries = 1; !is_dialled_again_after_refusals(); tries++)
        assert_true(tries < 20);
}

static void nobody_at_the_address_is_told_soon(void **state)
{
    (void)state;
    struct alone alone;
    const int refuser = new_refuser();
    alone_begin(&alone, 1, refuser);
    char *text = alone_end(&alone, ST_PEER);
    assert_int_equal(count_of(text, "Connection refused"), 1);
    free(text);
    (void)close(refuser);
}

/* ---- some of the pairs ---- */

struct chained {
    struct peers *peers;
    bool wanted[RANKS_MAX];
    const struct rendezvous_got *got;
    int out[RANKS_MAX];
    enum status status;
    pthread_t thread;
};

static void *connect_chained(void *arg)
{
    struct chained *self = arg;
    self->status = peers_connect(self->peers, self->got, INT64_MAX, self->out);
    return NULL;
}

/* Each with the next one. */
static void only_those_that_are_wanted_are_connected(void **state)
{
    (void)state;
    const struct rendezvous rendezvous = { .is_over = is_not_over };
    struct rendezvous_got got[RANKS_MAX] = { 0 };
    struct chained ranks[RANKS_MAX] = { 0 };
    for (int r = 0; r < RANKS_MAX; r++) {
        for (int p = 0; p < RANKS_MAX; p++)
            ranks[r].wanted[p] = p == r - 1 || p == r + 1;
        const struct peers_options options = { .rendezvous = &rendezvous,
                                               .secret = SECRET,
                                               .purpose = "pipe",
                                               .host = "127.0.0.1",
                                               .rank = r,
                                               .size = RANKS_MAX,
                                               .wanted = ranks[r].wanted };
        assert_int_equal(peers_new(&options, &ranks[r].peers), ST_OK);
        got[r].common_size = peers_address(ranks[r].peers, got[r].common);
        ranks[r].got = got;
    }
    for (int r = 0; r < RANKS_MAX; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, connect_chained, &ranks[r]), 0);
    for (int r = 0; r < RANKS_MAX; r++) {
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
        assert_int_equal(ranks[r].status, ST_OK);
        for (int p = 0; p < RANKS_MAX; p++) {
            assert_int_equal(ranks[r].out[p] >= 0, ranks[r].wanted[p]);
            if (ranks[r].out[p] >= 0)
                (void)close(ranks[r].out[p]);
        }
    }
    for (int r = 0; r < RANKS_MAX; r++)
        peers_free(ranks[r].peers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_on_every_port_first_disturb_nobody),
        cmocka_unit_test(many_strangers_make_room),
        cmocka_unit_test(a_rank_with_another_secret_takes_no_part),
        cmocka_unit_test(who_says_nothing_is_sent_away),
        cmocka_unit_test(who_listens_has_to_know_the_secret_too),
        cmocka_unit_test(a_proof_that_was_broken_off_begins_again),
        cmocka_unit_test(who_refuses_at_first_is_dialled_again),
        cmocka_unit_test(nobody_at_the_address_is_told_soon),
        cmocka_unit_test(only_those_that_are_wanted_are_connected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
