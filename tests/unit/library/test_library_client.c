/* libcairn's connection: what a program may say and when, a worker that dies or lies, signals and
 * forks. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_worker.h"
#include "library/cairn.h"
#include "tests/test.h"

struct world {
    char folder[64];
    struct fake_worker worker;
    float weights[1000];
    double scale; /* bytes of another dtype */
    int64_t own[50];
    struct cairn_tensor tensors[3];
};

static struct cairn_tensor tensor_of(const char *name, int dtype, int kind, uint64_t size,
                                     const void *data)
{
    struct cairn_tensor tensor = {
        .dtype = (uint32_t)dtype, .kind = (uint32_t)kind, .ndim = size > 0 ? 1 : 0, .data = data
    };
    (void)snprintf(tensor.name, sizeof(tensor.name), "%s", name);
    tensor.shape[0] = size;
    return tensor;
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    (void)snprintf(w->folder, sizeof(w->folder), "/tmp/cairn-library-XXXXXX");
    if (mkdtemp(w->folder) == NULL)
        return -1;
    w->worker.folder = w->folder;
    w->worker.size = 1;
    w->worker.next_due = UINT64_MAX;
    for (int i = 0; i < 1000; i++)
        w->weights[i] = (float)i;
    for (int i = 0; i < 50; i++)
        w->own[i] = -i;
    w->tensors[0] = tensor_of("weights", CAIRN_F32, CAIRN_REPLICATED, 1000, w->weights);
    w->tensors[1] = tensor_of("scale", CAIRN_F64, CAIRN_REPLICATED, 0, &w->scale);
    w->tensors[2] = tensor_of("own", CAIRN_I64, CAIRN_PRIVATE, 50, w->own);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    fake_release(&w->worker);
    for (uint32_t i = 0; i < FAKE_FILES * FAKE_RANKS; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/g3-r%u-%u.copy", w->folder, i / FAKE_FILES,
                       i % FAKE_FILES);
        (void)unlink(path);
    }
    const int removed = rmdir(w->folder);
    free(w);
    return removed;
}

/* Opens, describes and says ready, as far as it goes. */
static int make_ready(struct world *w, struct cairn **out)
{
    int status = cairn_open(NULL, out);
    if (status == CAIRN_OK)
        status = cairn_layout(*out, w->tensors, 3, 100);
    if (status == CAIRN_OK)
        status = cairn_ready(*out, 4, 1000, 10);
    return status;
}

static int save(struct cairn *c, uint64_t step)
{
    int status = cairn_save_begin(c, step, NULL);
    if (status == CAIRN_OK)
        status = cairn_save_blob(c, "random", "0123456789", 10);
    if (status == CAIRN_OK)
        status = cairn_save_start(c);
    return status == CAIRN_OK ? cairn_save_copied(c) : status;
}

static void nobody_is_there(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    (void)unsetenv(WIRE_SOCKET_ENV);
    assert_int_equal(cairn_open(NULL, &c), CAIRN_NOT_FOUND);
    (void)setenv(WIRE_SOCKET_ENV, "@cairn-nobody-listens-here", 1);
    assert_int_equal(cairn_open(NULL, &c), CAIRN_CLOSED);
    assert_string_not_equal(cairn_why(NULL), "");
    (void)setenv(WIRE_SOCKET_ENV, "/tmp/x", 1);
    assert_int_equal(cairn_open(NULL, &c), CAIRN_INVALID);
    assert_null(c);
    cairn_close(NULL);
    fake_start(&w->worker);
    fake_stop(&w->worker);
}

static void says_who_it_is(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL, *second = NULL;
    struct cairn_info info;
    w->worker.size = 4;
    w->worker.rank = 2;
    fake_start(&w->worker);
    const struct cairn_options options = { .client = "a test" };
    assert_int_equal(cairn_open(&options, &c), CAIRN_OK);
    cairn_info(c, &info);
    assert_string_equal(info.job, "j-test");
    assert_int_equal(info.generation, 3);
    assert_int_equal(info.rank, 2);
    assert_int_equal(info.size, 4);
    assert_int_equal(info.has_state, 0);
    assert_string_equal(w->worker.hello.client, "a test");
    assert_int_equal(w->worker.hello.pid, getpid());
    struct cairn_state *stored = NULL;
    assert_int_equal(cairn_restore(c, &stored), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_open(NULL, &second), CAIRN_REFUSED);
    cairn_close(c);
    fake_stop(&w->worker);
}

static void steps_ask_only_when_something_is_due(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    w->worker.next_due = 10;
    w->worker.due = CAIRN_DUE_SAVE;
    fake_start(&w->worker);
    assert_int_equal(make_ready(w, &c), CAIRN_OK);
    assert_int_equal(w->worker.ready.step, 4);
    assert_int_equal(w->worker.ready.total_steps, 1000);
    for (uint64_t step = 5; step < 10; step++)
        assert_int_equal(cairn_step(c, step), CAIRN_DUE_NOTHING);
    assert_int_equal(w->worker.asked[WIRE_DUE], 0);
    assert_int_equal(w->worker.page->step, 9);
    assert_int_equal(cairn_step(c, 10), CAIRN_DUE_SAVE);
    assert_int_equal(cairn_step(c, 11), CAIRN_DUE_SAVE);
    assert_int_equal(w->worker.asked[WIRE_DUE], 2);
    assert_int_equal(cairn_step(c, 1001), CAIRN_INVALID);
    cairn_beat(c);
    cairn_beat(c);
    assert_int_equal(w->worker.page->beats, 2);
    atomic_store(&w->worker.page->over, 1);
    atomic_store(&w->worker.page->next_due, 100);
    assert_int_equal(cairn_step(c, 12), CAIRN_STALE);
    assert_int_equal(cairn_save_begin(c, 12, NULL), CAIRN_STALE);
    cairn_close(c);
    fake_stop(&w->worker);
}

static void refuses_what_comes_at_the_wrong_time(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    fake_start(&w->worker);
    assert_int_equal(cairn_open(NULL, &c), CAIRN_OK);
    assert_int_equal(cairn_ready(c, 0, 10, 0), CAIRN_INVALID);
    assert_int_equal(cairn_step(c, 1), CAIRN_INVALID);
    assert_int_equal(cairn_save_begin(c, 1, NULL), CAIRN_INVALID);
    w->tensors[1] = w->tensors[0];
    assert_int_equal(cairn_layout(c, w->tensors, 3, 100), CAIRN_INVALID);
    assert_non_null(strstr(cairn_why(c), "weights"));
    w->tensors[1] = tensor_of("scale", 77, CAIRN_REPLICATED, 0, &w->scale);
    assert_int_equal(cairn_layout(c, w->tensors, 3, 100), CAIRN_INVALID);
    w->tensors[1].dtype = CAIRN_F64;
    assert_int_equal(cairn_layout(c, w->tensors, 3, 100), CAIRN_OK);
    assert_int_equal(cairn_layout(c, w->tensors, 3, 100), CAIRN_INVALID);
    assert_int_equal(cairn_ready(c, 11, 10, 0), CAIRN_INVALID);
    assert_int_equal(cairn_ready(c, 0, 10, 0), CAIRN_OK);
    assert_int_equal(cairn_ready(c, 0, 10, 0), CAIRN_INVALID);
    assert_int_equal(cairn_save_blob(c, "a", "b", 1), CAIRN_INVALID);
    assert_int_equal(cairn_save_start(c), CAIRN_INVALID);
    assert_int_equal(cairn_save_copied(c), CAIRN_OK);
    const void *data[3] = { w->weights, NULL, w->own };
    assert_int_equal(cairn_save_begin(c, 1, data), CAIRN_INVALID);
    assert_non_null(strstr(cairn_why(c), "scale"));
    data[1] = &w->scale;
    assert_int_equal(cairn_save_begin(c, 1, data), CAIRN_OK);
    assert_int_equal(cairn_save_begin(c, 1, data), CAIRN_INVALID);
    assert_int_equal(cairn_save_blob(c, "", "b", 1), CAIRN_INVALID);
    assert_int_equal(cairn_save_blob(c, "a", "b", 1), CAIRN_OK);
    assert_int_equal(cairn_save_blob(c, "a", "b", 1), CAIRN_INVALID);
    char more[4096] = "";
    assert_int_equal(cairn_save_blob(c, "more", more, sizeof(more)), CAIRN_FULL);
    cairn_save_cancel(c);
    assert_int_equal(w->worker.copied.status, CAIRN_AGAIN);
    assert_int_equal(cairn_save_start(c), CAIRN_INVALID);
    assert_int_equal(save(c, 2), CAIRN_OK);
    cairn_close(c);
    fake_stop(&w->worker);
}

static void copies_what_changes_at_once(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    w->tensors[0].flags = CAIRN_COPY_NOW;
    w->tensors[2].flags = CAIRN_COPY_NOW;
    fake_start(&w->worker);
    assert_int_equal(make_ready(w, &c), CAIRN_OK);
    assert_int_equal(cairn_save_begin(c, 5, NULL), CAIRN_OK);
    assert_int_equal(cairn_save_start(c), CAIRN_OK);
    memset(w->weights, 1, sizeof(w->weights));
    memset(w->own, 1, sizeof(w->own));
    assert_int_equal(cairn_save_copied(c), CAIRN_OK);
    fake_await(&w->worker, WIRE_COPIED, 1);
    cairn_close(c);
    fake_stop(&w->worker);
    struct copy_view view;
    assert_int_equal(copy_view_map(fake_path(&w->worker), &view), ST_OK);
    for (uint32_t i = 0; i < view.head->extent_count; i++) {
        size_t size = 0;
        const void *data = copy_view_data(&view, i, &size);
        assert_int_equal(copy_view_check_data(&view, i, 0, data, size), ST_OK);
    }
    size_t size = 0;
    const float *weights = copy_view_data(&view, 0, &size);
    for (int i = 0; i < 1000; i++)
        assert_true(weights[i] == (float)i);
    const uint8_t *area = copy_view_data(&view, view.head->extent_count - 1, &size);
    const int64_t *own = (const void *)(area + w->worker.places.places[2].offset);
    for (int i = 0; i < 50; i++)
        assert_int_equal(own[i], -i);
    copy_view_unmap(&view);
}

/* Returns the bytes of this rank's area, as they are saved; owned by the caller. */
static uint8_t *save_area(struct world *w, bool dirty, size_t *out_size)
{
    struct fake_worker fresh = {
        .folder = w->folder, .size = 1, .next_due = UINT64_MAX, .dirty = dirty
    };
    struct cairn *c = NULL;
    struct copy_view view;
    w->worker = fresh;
    fake_start(&w->worker);
    assert_int_equal(make_ready(w, &c), CAIRN_OK);
    assert_int_equal(save(c, 5), CAIRN_OK);
    fake_await(&w->worker, WIRE_COPIED, 1);
    cairn_close(c);
    fake_stop(&w->worker);
    assert_int_equal(copy_view_map(fake_path(&w->worker), &view), ST_OK);
    const void *data = copy_view_data(&view, view.head->extent_count - 1, out_size);
    uint8_t *area = malloc(*out_size);
    assert_non_null(area);
    memcpy(area, data, *out_size);
    copy_view_unmap(&view);
    assert_int_equal(unlink(fake_path(&w->worker)), 0);
    return area;
}

/* Else a digest would depend on what a file was used for before. */
static void writes_all_of_its_area(void **state)
{
    struct world *w = *state;
    size_t size[2];
    uint8_t *clean = save_area(w, false, &size[0]);
    fake_release(&w->worker);
    uint8_t *dirty = save_area(w, true, &size[1]);
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(clean, dirty, size[0]);
    free(clean);
    free(dirty);
}

/* All that a program says in its life; the status of the first call that fails. */
static int live(struct world *w, struct cairn **c)
{
    int status = make_ready(w, c);
    if (status == CAIRN_OK)
        status = cairn_step(*c, 5);
    if (status >= CAIRN_OK)
        status = save(*c, 5);
    if (status == CAIRN_OK) {
        const char *const names[] = { "loss" };
        const double loss = 1;
        status = cairn_log(*c, 5, names, &loss, 1); /* the copy may have found the worker gone */
        cairn_want(*c, 0, 0, "because");
    }
    return status == CAIRN_OK ? cairn_finish(*c, 5) : status;
}

static void outlives_a_worker_that_dies_or_lies(void **state)
{
    struct world *w = *state;
    for (int kind = WIRE_HELLO; kind <= WIRE_FAIL; kind++) {
        for (int lie = FAKE_DIES; lie < FAKE_LIES; lie++) {
            const bool to_hello = lie >= FAKE_RANK && lie <= FAKE_VERSION;
            const bool to_begin = lie >= FAKE_SHORT_FILE && lie <= FAKE_AREA;
            const bool has_fd = kind == WIRE_HELLO || kind == WIRE_BEGIN;
            if ((to_hello && kind != WIRE_HELLO) || (to_begin && kind != WIRE_BEGIN) ||
                (lie == FAKE_DUE && kind != WIRE_DUE) || (lie == FAKE_NO_FD && !has_fd) ||
                lie == FAKE_SOME_FDS || (lie == FAKE_LONGER && kind == WIRE_HELLO))
                continue; /* as if it were honest */
            struct fake_worker *worker = &w->worker;
            struct fake_worker fresh = { .folder = w->folder, .size = 1, .settled = 5 };
            *worker = fresh;
            worker->lie = (enum fake_lie)lie;
            worker->lie_at = (enum wire_kind)kind;
            memcpy(worker->paths, "/a", 3);
            worker->paths_bytes = 3;
            worker->path_count = 1;
            worker->source = WIRE_CHECKPOINT;
            fake_start(worker);
            struct cairn *c = NULL;
            const int status = live(w, &c);
            if (c != NULL)
                cairn_fail(c, "over");
            const bool told = kind < WIRE_WANT && kind != WIRE_COPIED;
            if (told && status >= CAIRN_OK)
                fail_msg("lie %d at %d was not noticed", lie, kind);
            if (told && lie == FAKE_REFUSES)
                assert_int_equal(status, CAIRN_REFUSED);
            if (lie == FAKE_DIES && told)
                assert_int_equal(status, CAIRN_CLOSED);
            if (to_begin)
                assert_int_equal(status, CAIRN_CHANGED);
            cairn_close(c);
            fake_stop(worker);
            if (kind < WIRE_FAIL || lie < FAKE_LIES - 1)
                fake_release(worker);
        }
    }
    struct fake_worker fresh = { .folder = w->folder, .size = 1 };
    w->worker = fresh;
    fake_start(&w->worker);
    fake_stop(&w->worker);
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 100; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void keeps_one_of_many_descriptors(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    w->worker.lie = FAKE_SOME_FDS;
    w->worker.lie_at = WIRE_BEGIN;
    fake_start(&w->worker);
    assert_int_equal(make_ready(w, &c), CAIRN_OK);
    const int before = descriptors();
    for (uint64_t step = 5; step < 9; step++)
        assert_int_equal(save(c, step), CAIRN_OK);
    fake_await(&w->worker, WIRE_COPIED, 4); /* the worker has closed its own by then */
    assert_int_equal(descriptors(), before);
    cairn_close(c);
    fake_stop(&w->worker);
}

static void tells_rows_wants_and_failures(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    const char *const names[] = { "lr", "unheard", "eval_accuracy" };
    const double values[] = { 0.5, 1, 0.75 };
    w->worker.settled = 5;
    fake_start(&w->worker);
    assert_int_equal(make_ready(w, &c), CAIRN_OK);
    assert_int_equal(cairn_log(c, 5, names, values, 3), CAIRN_NOT_FOUND);
    assert_non_null(strstr(cairn_why(c), "unheard"));
    fake_await(&w->worker, WIRE_ROW, 1);
    cairn_want(c, 1, 1500, "the node goes away");
    fake_await(&w->worker, WIRE_WANT, 1);
    cairn_fail(c, "loss is not finite");
    cairn_close(c);
    fake_stop(&w->worker);
    assert_int_equal(w->worker.row.step, 5);
    assert_int_equal(w->worker.row.known, 1 << 1 | 1 << 5);
    assert_true(w->worker.row.number[5] == 0.75);
    assert_int_equal(w->worker.want.leaves, 1);
    assert_int_equal(w->worker.want.grace_ms, 1500);
    assert_string_equal(w->worker.want.reason, "the node goes away");
    assert_string_equal(w->worker.failed, "loss is not finite");
}

static void finishes_when_it_is_committed_or_before_its_last_step(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    w->worker.settled = 5;
    fake_start(&w->worker);
    assert_int_equal(make_ready(w, &c), CAIRN_OK);
    assert_int_equal(save(c, 5), CAIRN_OK);
    assert_int_equal(cairn_finish(c, 5), CAIRN_OK);
    assert_int_equal(w->worker.asked[WIRE_SETTLE], 2); /* the first one was not decided yet */
    assert_int_equal(cairn_finish(c, 6), CAIRN_AGAIN); /* that save was dropped */
    w->worker.settle_status = CAIRN_REFUSED;
    assert_int_equal(cairn_finish(c, 5), CAIRN_REFUSED);
    assert_int_equal(cairn_last(c, 6, "the loss rises"), CAIRN_OK);
    assert_int_equal(w->worker.asked[WIRE_LAST], 2); /* once all have said it */
    assert_int_equal(w->worker.last.step, 6);
    assert_string_equal(w->worker.last.reason, "the loss rises");
    assert_int_equal(cairn_step(c, 7), CAIRN_INVALID);
    cairn_close(c);
    fake_stop(&w->worker);
}

/* TSan delivers a signal late, to a thread that sleeps never. */
static void skip_under_tsan(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

static void sigterm_asks_whatever_the_program_does(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    struct sigaction before;
    const struct cairn_options options = { .catch_sigterm = 1 };
    sigset_t term;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    skip_under_tsan();
    fake_start(&w->worker);
    assert_int_equal(cairn_open(&options, &c), CAIRN_OK);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    fake_await(&w->worker, WIRE_WANT, 1);
    assert_int_equal(atomic_load(&w->worker.page->leaves), 1);
    assert_int_equal(w->worker.want.leaves, 1);
    /* Blocked by the only other threads: the library's own takes it. */
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &term, NULL), 0);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    fake_await(&w->worker, WIRE_WANT, 2);
    assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &term, NULL), 0);
    cairn_close(c);
    fake_stop(&w->worker);
    assert_int_equal(sigaction(SIGTERM, NULL, &before), 0);
    assert_true(before.sa_handler == SIG_DFL);
}

/* A child of its own connection: its exit code, or the signal that ended it. `over`: this start is
 * over before SIGTERM comes, or else after it. */
static int end_of_child(struct world *w, bool before, bool finished, bool dies)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) {
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        return WIFSIGNALED(status) ? WTERMSIG(status) : 1000 + WEXITSTATUS(status);
    }
    struct fake_worker *worker = &w->worker;
    struct cairn *c = NULL;
    const struct cairn_options options = { .catch_sigterm = 1 };
    worker->settled = 4;
    worker->lie = dies ? FAKE_DIES : FAKE_HONEST;
    worker->lie_at = WIRE_WANT;
    fake_start(worker);
    if (cairn_open(&options, &c) != CAIRN_OK || cairn_layout(c, w->tensors, 3, 100) != CAIRN_OK ||
        cairn_ready(c, 4, 1000, 10) != CAIRN_OK || (finished && cairn_finish(c, 4) != CAIRN_OK))
        _exit(1);
    atomic_store(&worker->page->over, before);
    (void)kill(getpid(), SIGTERM);
    if (!before)
        fake_await(worker, WIRE_WANT, 1);
    atomic_store(&worker->page->over, !dies);
    if (!finished)
        (void)pause(); /* for a rank that is dead, say */
    cairn_close(c);
    _exit(0);
}

static void sigterm_ends_what_nobody_saves(void **state)
{
    struct world *w = *state;
    skip_under_tsan();
    assert_int_equal(end_of_child(w, true, false, false), SIGTERM);
    assert_int_equal(end_of_child(w, false, false, false), SIGTERM);
    assert_int_equal(end_of_child(w, false, false, true), SIGTERM); /* the worker is gone */
    assert_int_equal(end_of_child(w, false, true, false), 1000);
    fake_start(&w->worker);
    fake_stop(&w->worker);
}

static volatile sig_atomic_t handled;

static void handle(int number)
{
    (void)number;
    handled++;
}

static void a_handler_of_the_program_stays(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    const struct cairn_options options = { .catch_sigterm = 1 };
    assert_true(signal(SIGTERM, handle) == SIG_DFL);
    fake_start(&w->worker);
    assert_int_equal(cairn_open(&options, &c), CAIRN_OK);
    assert_int_equal(raise(SIGTERM), 0);
    assert_int_equal(handled, 1);
    cairn_close(c);
    assert_true(signal(SIGTERM, SIG_DFL) == handle);
    fake_stop(&w->worker);
    assert_int_equal(atomic_load(&w->worker.page->leaves), 0);
}

/* What a child sees, as an exit code: 0 if it is as it should be. */
static int be_a_child(struct world *w, struct cairn *c)
{
    const char *const names[] = { "loss" };
    const double loss = 1;
    if (cairn_step(c, 6) != CAIRN_CLOSED || cairn_save_begin(c, 6, NULL) != CAIRN_CLOSED ||
        cairn_save_copied(c) != CAIRN_CLOSED || cairn_finish(c, 6) != CAIRN_CLOSED ||
        cairn_log(c, 6, names, &loss, 1) != CAIRN_CLOSED || strstr(cairn_why(c), "forked") == NULL)
        return 1;
    cairn_beat(c);
    cairn_want(c, 1, 0, "no");
    cairn_fail(c, "no");
    cairn_save_cancel(c);
    cairn_close(c);
    if (atomic_load(&w->worker.page->step) != 5 || atomic_load(&w->worker.page->beats) != 0)
        return 2;
    (void)raise(SIGTERM); /* nobody handles it here */
    return 3;
}

static void a_forked_child_has_no_connection(void **state)
{
    struct world *w = *state;
    struct cairn *c = NULL;
    const struct cairn_options options = { .catch_sigterm = 1 };
    fake_start(&w->worker);
    assert_int_equal(cairn_open(&options, &c), CAIRN_OK);
    assert_int_equal(cairn_layout(c, w->tensors, 3, 100), CAIRN_OK);
    assert_int_equal(cairn_ready(c, 4, 1000, 10), CAIRN_OK);
    assert_int_equal(cairn_step(c, 5), CAIRN_DUE_NOTHING);
    for (uint64_t i = 0; i < 20; i++) { /* also while the thread copies */
        assert_int_equal(cairn_save_begin(c, 5 + i, NULL), CAIRN_OK);
        assert_int_equal(cairn_save_start(c), CAIRN_OK);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(be_a_child(w, c));
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGTERM);
    }
    assert_int_equal(save(c, 30), CAIRN_OK); /* the parent goes on */
    cairn_close(c);
    fake_stop(&w->worker);
    assert_int_equal(w->worker.asked[WIRE_WANT], 0);
    assert_int_equal(w->worker.asked[WIRE_FAIL], 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(nobody_is_there),
        TEST(says_who_it_is),
        TEST(steps_ask_only_when_something_is_due),
        TEST(refuses_what_comes_at_the_wrong_time),
        TEST(copies_what_changes_at_once),
        TEST(writes_all_of_its_area),
        TEST(outlives_a_worker_that_dies_or_lies),
        TEST(keeps_one_of_many_descriptors),
        TEST(tells_rows_wants_and_failures),
        TEST(finishes_when_it_is_committed_or_before_its_last_step),
        TEST(sigterm_asks_whatever_the_program_does),
        TEST(sigterm_ends_what_nobody_saves),
        TEST(a_handler_of_the_program_stays),
        TEST(a_forked_child_has_no_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
