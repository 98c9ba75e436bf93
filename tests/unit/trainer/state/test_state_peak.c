/*
 * Restoring takes little memory beside the state: on a stage's worker, from a checkpoint and from
 * copies that others cut otherwise. Each is measured in a process of its own, by what the kernel
 * says was the most in memory: not under the thread sanitizer, whose own is several times what a
 * program touches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/check.h"
#include "session/copies/copy_folder.h"
#include "tests/test.h"
#include "tests/unit/trainer/tiny_jobs.h"
#include "trainer/state/copy_restore.h"
#include "trainer/state/state.h"

#define JOB     "j-0123456789"
#define STEP    5
#define SHARES  3
#define MIB     ((size_t)1 << 20)
#define STRETCH (16 * MIB) /* of what a rank takes and doesn't hold, at once */

static char folder[] = "/tmp/cairn-peak-XXXXXX";
static char checkpoint[LIMIT_PATH];

/* What a process found out. */
static struct found {
    size_t held, before, rise; /* bytes */
} * found;

static struct worker *open_worker(bool staged)
{
    static const char *const sets[] = { "model.layers=6", "model.width=640", "model.heads=8",
                                        "train.lanes=2", "train.micro_batch=1" };
    static const uint32_t shares[] = { 2, 2 };
    static struct jobspec job;
    static struct progress progress;
    const struct stage_plan stages = { .count = 2, .of = { { .workers = 1 }, { .workers = 1 } } };
    struct worker *worker = NULL;
    struct reason reason = { "" };
    auto_buf struct buf errors;
    buf_init(&errors, 65536);
    CHECK(jobspec_parse(tiny_gpt2, strlen(tiny_gpt2), "test.yaml", "/", sets, 5, &job, &errors) ==
          ST_OK);
    progress_init(&progress, NULL, NULL, 0, 1);
    const struct worker_options options = { .job = &job,
                                            .io = io_system(),
                                            .progress = &progress,
                                            .size = staged ? 2 : 1,
                                            .shares = shares,
                                            .stages = staged ? &stages : NULL };
    CHECK(worker_open(&options, &worker, &reason) == ST_OK);
    return worker;
}

static void write_copy(struct ckpt_state *state, uint32_t number)
{
    char path[LIMIT_PATH];
    struct copy_file file;
    (void)snprintf(path, sizeof(path), "%s/g1-r%u-0.copy", folder, number);
    CHECK(copy_file_open(path, (size_t)ckpt_share_bytes(state, state->share), &file) == ST_OK);
    CHECK(copy_file_begin(&file, state, number, SHARES) == ST_OK);
    copy_file_fill(&file);
    copy_file_seal(&file);
    copy_file_close(&file);
}

/* Writes all of the state, as three ranks would that have it whole. */
static void write_all(void)
{
    struct worker *worker = open_worker(false);
    struct reason reason;
    struct state_view view;
    struct ckpt_report reports[SHARES] = { 0 };
    struct ckpt_hash digest;
    auto_buf struct buf bytes;
    buf_init(&bytes, (size_t)LIMIT_MANIFEST_BYTES);
    CHECK(state_seed(worker, &reason) == ST_OK);
    state_describe(worker, STEP, NULL, &view);
    (void)snprintf(view.state.job, sizeof(view.state.job), JOB);
    view.state.generation = 1;
    CHECK(ckpt_folder_create(io_system(), checkpoint) == ST_OK);
    for (uint32_t i = 0; i < SHARES; i++) {
        struct ckpt_share share = { .count = 0 };
        CHECK(ckpt_share_even(&view.state, CKPT_ALL_BUFFERS, i, SHARES, &share) == ST_OK);
        view.state.share = &share;
        write_copy(&view.state, i);
        CHECK(ckpt_shard_write(io_system(), checkpoint, &view.state, i, SHARES, NULL,
                               &reports[i]) == ST_OK);
    }
    CHECK(ckpt_manifest_make(reports, SHARES, JOB, "now", &bytes, &digest) == ST_OK);
    CHECK(ckpt_manifest_publish(io_system(), checkpoint, bytes.data, bytes.size) == ST_OK);
    worker_close(worker);
}

/* "VmHWM", "VmRSS" */
static size_t status_bytes(const char *name)
{
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtoull(line + strlen(name) + 1, NULL, 10);
    }
    (void)fclose(file);
    return kib * 1024;
}

static void forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    CHECK(file != NULL && fputs("5", file) >= 0 && fclose(file) == 0);
}

static enum status restore_copies(struct worker *worker, struct reason *reason)
{
    char *nodes[] = { "a", "a" };
    uint32_t holders[SHARES] = { 0 };
    const struct session_assignment assignment = {
        .job = JOB,
        .generation = 2,
        .size = 2,
        .nodes = nodes,
        .holders = holders,
        .memory = { .generation = 1, .size = SHARES, .step = STEP },
    };
    const struct copy_source from = { .dir = folder, .assignment = &assignment };
    return copy_restore(worker, &from, reason);
}

static void measure(bool copies)
{
    struct worker *worker = open_worker(true);
    struct reason reason = { "" };
    struct state_view view;
    forget_peak();
    found->before = status_bytes("VmRSS:");
    const struct state_source from = { .dir = checkpoint, .step = STEP };
    const enum status st =
        copies ? restore_copies(worker, &reason) : state_restore(worker, &from, NULL, &reason);
    found->rise = status_bytes("VmHWM:") - found->before;
    if (st != ST_OK)
        (void)fprintf(stderr, "%s\n", reason.text);
    CHECK(st == ST_OK);
    state_describe(worker, STEP, NULL, &view);
    found->held = (size_t)ckpt_share_bytes(&view.state, worker->held);
    worker_close(worker);
}

static void from_a_checkpoint(void)
{
    measure(false);
}

static void from_copies(void)
{
    measure(true);
}

static void in_a_process(void (*what)(void))
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        what();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* beside: bytes that may be there whatever the state's size. */
static void assert_little(const char *name, size_t beside)
{
    print_message("%s: %.1f MiB held, %.1f more at most\n", name, (double)found->held / (double)MIB,
                  (double)found->rise / (double)MIB);
    assert_true(found->held > 100 * MIB);
    assert_true(found->before > found->held); /* the state was touched when it was allocated */
    assert_true(found->rise <= found->held / 20 + beside);
}

static void a_checkpoint_takes_little_beside_the_state(void **state)
{
    (void)state;
    in_a_process(from_a_checkpoint);
    assert_little("from a checkpoint", 0);
}

/* A file is mapped while it is read: its pages are there already, and count once more here. */
static void copies_take_a_stretch_beside_the_state(void **state)
{
    (void)state;
    in_a_process(from_copies);
    assert_little("from copies", (size_t)copy_folder_bytes(folder) / SHARES + STRETCH);
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", folder);
    found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(found != MAP_FAILED);
    in_a_process(write_all);
    return 0;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command); /* NOLINT(cert-env33-c): our own folder */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_takes_little_beside_the_state),
        cmocka_unit_test(copies_take_a_stretch_beside_the_state),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
