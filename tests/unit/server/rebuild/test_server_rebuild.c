/* A journal made anew from a store of checkpoints: what is in it then, and what is left out. */
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "server/jobfsm/persist.h"
#include "server/rebuild/rebuild.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/test.h"

#define WALL 1800000000000

struct world {
    char dir[64], state[96], store[96], path[128];
    struct io io; /* the machine's, or one that fails */
    char *told;
    size_t told_size;
    struct reason reason;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    (void)snprintf(w->dir, sizeof(w->dir), "/tmp/cairn-rebuild-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    (void)snprintf(w->state, sizeof(w->state), "%s/home/state", w->dir);
    (void)snprintf(w->store, sizeof(w->store), "%s/store", w->dir);
    (void)snprintf(w->path, sizeof(w->path), "%s/cairnd.db", w->state);
    assert_int_equal(mkdir(w->store, 0700), 0);
    w->io = *io_system();
    *state = w;
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    struct world *w = *state;
    assert_int_equal(nftw(w->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(w->told);
    free(w);
    return 0;
}

/* The job's file, with so many steps, at that store. */
static void job_text_on(const struct world *w, const char *device, const char *duration,
                        char out[512])
{
    (void)snprintf(
        out, 512,
        "name: tiny\nmodel: {arch: mlp}\ndata:\n  train: {format: synthetic, samples: 384}\n"
        "train: {duration: %s, global_batch: 24, lanes: 4, "
        "optimizer: {name: sgd, lr: 0.05}}\n"
        "workers: {count: 2, device: %s}\n"
        "checkpoint: {every: 4 steps, store: %s}\n",
        duration, device, w->store);
}

static void job_text(const struct world *w, const char *duration, char out[512])
{
    job_text_on(w, "cpu", duration, out);
}

static void save(const struct world *w, const char *text, uint64_t step, uint64_t generation,
                 char *dir)
{
    struct sample sample;
    const struct sample_options options = { .store = w->store };
    sample_init(&sample, 20, step, generation);
    sample.blobs[0].data = text;
    sample.blobs[0].size = strlen(text);
    (void)snprintf(sample.blobs[1].name, sizeof(sample.blobs[1].name), "pins.json");
    sample.blobs[1].data = "{\"cpu\":\"x\"}";
    sample.blobs[1].size = 11;
    assert_int_equal(sample_save(io_system(), &sample, 2, &options, dir), ST_OK);
    sample_release(&sample);
}

static enum status run(struct world *w, const char *second_store)
{
    const char *const stores[] = { w->store, second_store };
    free(w->told);
    w->told = NULL;
    w->reason = (struct reason){ "" };
    FILE *out = open_memstream(&w->told, &w->told_size);
    assert_non_null(out);
    const struct rebuild_options options = { .io = &w->io,
                                             .state = w->state,
                                             .stores = stores,
                                             .store_count = second_store != NULL ? 2 : 1,
                                             .wall_ms = WALL,
                                             .out = out };
    const enum status st = rebuild_run(&options, &w->reason);
    assert_int_equal(fclose(out), 0);
    return st;
}

/* ---- what the journal says ---- */

struct seen {
    struct fsm m;
    size_t jobs, ckpts;
    char file[4096], pins[64], name[64];
    struct fsm_ckpt list[4];
};

static bool see_job(void *arg, const struct journal_job *row)
{
    struct seen *seen = arg;
    const struct fsm_config config = { .ranks = 2 };
    seen->jobs++;
    (void)snprintf(seen->file, sizeof(seen->file), "%s", row->job_file);
    (void)snprintf(seen->pins, sizeof(seen->pins), "%s", row->pins);
    (void)snprintf(seen->name, sizeof(seen->name), "%s", row->name);
    assert_int_equal(fsm_init(&seen->m, row->id, &config, 0, 0), ST_OK);
    assert_int_equal(fsm_decode(&seen->m, row->state), ST_OK);
    return true;
}

static bool see_ckpt(void *arg, const struct fsm_ckpt *ckpt)
{
    struct seen *seen = arg;
    assert_true(seen->ckpts < 4);
    seen->list[seen->ckpts++] = *ckpt;
    return true;
}

static void read_back(struct world *w, struct seen *seen)
{
    struct journal *journal;
    *seen = (struct seen){ 0 };
    assert_int_equal(journal_open(w->path, &journal), ST_OK);
    assert_int_equal(journal_get_job(journal, SAMPLE_JOB, see_job, seen), ST_OK);
    assert_int_equal(journal_each_ckpt(journal, SAMPLE_JOB, see_ckpt, seen), ST_OK);
    journal_close(journal);
}

/* ---- tests ---- */

static void a_job_is_made_anew_with_what_its_checkpoints_know(void **state)
{
    struct world *w = *state;
    struct seen seen;
    char text[512];
    job_text(w, "100 steps", text);
    save(w, text, 8, 2, NULL);
    save(w, text, 12, 3, NULL);
    assert_int_equal(
        ckpt_store_id_write(io_system(), w->store, SAMPLE_JOB, "00112233445566778899aabbccddeeff"),
        ST_OK);
    assert_int_equal(run(w, NULL), ST_OK);
    read_back(w, &seen);
    assert_int_equal(seen.jobs, 1);
    assert_string_equal(seen.file, text);
    assert_string_equal(seen.pins, "{\"cpu\":\"x\"}");
    assert_string_equal(seen.name, "tiny");
    assert_int_equal(seen.m.state, FSM_PAUSED);
    assert_int_equal(seen.m.generation, 3 + FSM_RESTORE_GAP);
    assert_int_equal(seen.m.restore.memory_from, seen.m.generation); /* no copy of before counts */
    assert_int_equal(seen.m.config.ranks, 2);
    assert_int_equal(seen.m.step_max, 12);
    assert_int_equal(seen.m.numeric.skip_count, 2);
    assert_int_equal(seen.m.numeric.skip[1], 11);
    assert_string_equal(seen.m.store_id, "00112233445566778899aabbccddeeff");
    assert_int_equal(seen.ckpts, 2);
    assert_int_equal(seen.list[1].step, 12);
    assert_int_equal(seen.list[1].generation, 3);
    assert_int_equal(seen.list[1].state, FSM_CKPT_GOOD);
    assert_false(seen.list[1].verified);
    assert_int_equal(seen.list[1].shards, 2);
    assert_int_equal(seen.list[1].wall_ms, 1767323045000);
    assert_int_equal(strlen(seen.list[1].digest), 32);
    fsm_release(&seen.m);
    assert_int_equal(run(w, NULL), ST_REFUSED);
    assert_non_null(strstr(w->reason.text, "good journal"));
}

/* The checkpoint's list is the workers' own: it doesn't count as steps that weren't finite. */
static void steps_that_a_loss_scale_left_out_are_not_the_coordinators(void **state)
{
    struct world *w = *state;
    struct seen seen;
    char text[512];
    job_text_on(w, "cuda", "100 steps, precision: fp16", text);
    save(w, text, 12, 3, NULL);
    assert_int_equal(run(w, NULL), ST_OK);
    read_back(w, &seen);
    assert_int_equal(seen.m.state, FSM_PAUSED);
    assert_int_equal(seen.m.numeric.skip_count, 0);
    fsm_release(&seen.m);
}

static void its_last_step_saved_it_has_succeeded(void **state)
{
    struct world *w = *state;
    struct seen seen;
    char text[512];
    job_text(w, "12 steps", text);
    save(w, text, 12, 3, NULL);
    assert_int_equal(run(w, NULL), ST_OK);
    read_back(w, &seen);
    assert_int_equal(seen.m.state, FSM_SUCCEEDED);
    assert_string_equal(seen.m.final_digest, seen.list[0].digest);
    fsm_release(&seen.m);
}

/* The sample is in its third epoch, at a third of its steps: an epoch has step / 3 of them. */
static void epochs_are_counted_as_the_checkpoint_does(void **state)
{
    struct world *w = *state;
    struct seen seen;
    char text[512];
    job_text(w, "3 epochs", text);
    save(w, text, 12, 3, NULL);
    assert_int_equal(run(w, NULL), ST_OK);
    read_back(w, &seen);
    assert_int_equal(seen.m.state, FSM_SUCCEEDED);
    assert_int_equal(seen.m.steps_per_epoch, 4);
    fsm_release(&seen.m);
}

/* Whatever is lost in between: each time the next number is above all that there may have been. */
static void no_generation_comes_twice_however_often_it_is_lost(void **state)
{
    struct world *w = *state;
    struct seen seen;
    char text[512];
    uint32_t last = 4;
    job_text(w, "100 steps", text);
    save(w, text, 8, 4, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run(w, NULL), ST_OK);
        read_back(w, &seen);
        assert_true(seen.m.generation >= last + FSM_RESTORE_GAP);
        last = seen.m.generation;
        fsm_release(&seen.m);
        assert_int_equal(unlink(w->path), 0);
    }
}

/* A number is used up also if only an unfinished folder, or one that was set aside, has it. */
static void unfinished_and_bad_folders_use_numbers_up(void **state)
{
    struct world *w = *state;
    struct seen seen;
    char text[512], path[256];
    job_text(w, "100 steps", text);
    save(w, text, 8, 4, NULL);
    static const char *const names[] = { "step-000000000012.g9", "bad-step-000000000012.g17",
                                         "store-mark.g23.0123456789abcdef.tmp" };
    static const uint32_t highest[] = { 9, 17, 23 };
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/" SAMPLE_JOB "/%s", w->store, names[i]);
        assert_int_equal(mkdir(path, 0700), 0);
        uint64_t used;
        assert_int_equal(ckpt_used_generation_max(io_system(), w->store, SAMPLE_JOB, &used), ST_OK);
        assert_int_equal(used, highest[i]);
    }
    assert_int_equal(run(w, NULL), ST_OK);
    read_back(w, &seen);
    assert_int_equal(seen.m.generation, 23 + FSM_RESTORE_GAP);
    assert_int_equal(seen.ckpts, 1);
    fsm_release(&seen.m);
}

static void a_number_beyond_all_is_told(void **state)
{
    struct world *w = *state;
    char text[512];
    job_text(w, "100 steps", text);
    save(w, text, 8, 4294000000, NULL);
    assert_int_equal(run(w, NULL), ST_NOT_FOUND);
    assert_non_null(strstr(w->told, "no higher number is left"));
}

/* The newest checkpoint lacks a byte of a file, the one before has a damaged footer: the job goes
 * on from the third. */
static void bad_checkpoints_are_passed_by_and_told(void **state)
{
    struct world *w = *state;
    struct seen seen;
    char text[512], dir[LIMIT_PATH], path[LIMIT_PATH];
    struct stat info;
    job_text(w, "100 steps", text);
    save(w, text, 4, 1, NULL);
    save(w, text, 8, 1, dir);
    assert_int_equal(ckpt_path(dir, "shard-00000-of-00002.cairn", path), ST_OK);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(pwrite(fd, "x", 1, info.st_size - 1), 1); /* its footer's end */
    assert_int_equal(close(fd), 0);
    save(w, text, 12, 2, dir);
    assert_int_equal(ckpt_path(dir, "shard-00001-of-00002.cairn", path), ST_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_int_equal(run(w, NULL), ST_OK);
    read_back(w, &seen);
    assert_int_equal(seen.ckpts, 1);
    assert_int_equal(seen.list[0].step, 4);
    assert_int_equal(seen.m.generation, 2 + FSM_RESTORE_GAP);
    fsm_release(&seen.m);
    assert_non_null(strstr(w->told, "2 checkpoints are not used"));
}

/* A difference whose base is gone is no checkpoint. */
static void a_difference_without_its_base_is_passed_by(void **state)
{
    struct world *w = *state;
    char base_dir[LIMIT_PATH], text[512];
    struct sample before, after;
    struct ckpt_reader *base;
    job_text(w, "100 steps", text);
    sample_init(&before, 20, 8, 1);
    struct sample_options options = { .store = w->store };
    assert_int_equal(sample_save(io_system(), &before, 1, &options, base_dir), ST_OK);
    assert_int_equal(ckpt_open(io_system(), base_dir, NULL, NULL, &base), ST_OK);
    sample_init_near(&after, &before, 12, 1);
    options.write.base = base;
    assert_int_equal(sample_save(io_system(), &after, 1, &options, NULL), ST_OK);
    ckpt_close(base);
    assert_int_equal(ckpt_remove(io_system(), base_dir), ST_OK);
    sample_release(&before);
    sample_release(&after);
    assert_int_equal(run(w, NULL), ST_NOT_FOUND);
    assert_non_null(strstr(w->told, "a difference to step 8 of attempt 1"));
    assert_int_equal(access(w->path, F_OK), -1);
}

static void a_job_file_that_cant_be_read_is_told(void **state)
{
    struct world *w = *state;
    save(w, "name: tiny\nnonsense: 1\n", 8, 1, NULL);
    assert_int_equal(run(w, NULL), ST_NOT_FOUND);
    assert_non_null(strstr(w->told, "its job file:"));
}

static void two_stores_with_one_job_are_told_and_it_is_left(void **state)
{
    struct world *w = *state, other = *w;
    char text[512];
    job_text(w, "100 steps", text);
    (void)snprintf(other.store, sizeof(other.store), "%s/other", w->dir);
    assert_int_equal(mkdir(other.store, 0700), 0);
    save(w, text, 8, 1, NULL);
    save(&other, text, 12, 1, NULL);
    assert_int_equal(run(w, other.store), ST_NOT_FOUND);
    assert_non_null(strstr(w->told, "two of the stores have this job"));
    assert_int_equal(run(w, w->store), ST_OK); /* the same one twice */
}

static enum status away_open(void *self, const char *path, int flags, int *out_fd)
{
    if (strstr(path, "g3/manifest.json") != NULL)
        return ST_AWAY;
    return io_system()->open(self, path, flags, out_fd);
}

static enum status away_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    (void)self;
    (void)path;
    (void)fn;
    (void)arg;
    return ST_AWAY;
}

/* What can't be read now isn't taken for lost: nothing is made. */
static void a_store_that_fails_ends_it(void **state)
{
    struct world *w = *state;
    char text[512];
    job_text(w, "100 steps", text);
    save(w, text, 8, 2, NULL);
    save(w, text, 12, 3, NULL);
    w->io.open = away_open;
    assert_int_equal(run(w, NULL), ST_AWAY);
    assert_non_null(strstr(w->reason.text, "can't be read"));
    assert_int_equal(access(w->path, F_OK), -1);
    w->io = *io_system();
    w->io.list = away_list;
    assert_int_equal(run(w, NULL), ST_AWAY);
    w->io = *io_system();
    assert_int_equal(run(w, NULL), ST_OK);
}

/* Cut off at any point, it is repeated: what it left is in nobody's way. */
static void what_a_run_left_that_was_cut_off_is_thrown_away(void **state)
{
    struct world *w = *state;
    char text[512], part[160];
    job_text(w, "100 steps", text);
    save(w, text, 8, 2, NULL);
    assert_int_equal(io_mkdir_all(io_system(), w->state), ST_OK);
    (void)snprintf(part, sizeof(part), "%s.new", w->path);
    assert_int_equal(io_publish(io_system(), part, "half of it", 10), ST_OK);
    assert_int_equal(io_publish(io_system(), w->path, "garbage", 7), ST_OK);
    assert_int_equal(run(w, NULL), ST_OK);
    assert_int_equal(access(part, F_OK), -1);
    assert_non_null(strstr(w->told, "cairnd.db.lost-20270115T080000Z"));
    struct seen seen;
    read_back(w, &seen);
    assert_int_equal(seen.jobs, 1);
    fsm_release(&seen.m);
}

static void signs_of_a_former_life(void **state)
{
    struct world *w = *state;
    const struct journal_watch nobody = { NULL, NULL };
    char path[160];
    assert_int_equal(io_mkdir_all(io_system(), w->state), ST_OK);
    assert_int_equal(rebuild_look(w->state, &nobody, &w->reason), ST_OK);
    (void)snprintf(path, sizeof(path), "%s.lock", w->path);
    assert_int_equal(io_publish(io_system(), path, "", 0), ST_OK); /* of a start that was cut off */
    assert_int_equal(rebuild_look(w->state, &nobody, &w->reason), ST_OK);
    (void)snprintf(path, sizeof(path), "%s/home/jobs", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(rebuild_look(w->state, &nobody, &w->reason), ST_OK);
    (void)snprintf(path, sizeof(path), "%s/home/jobs/" SAMPLE_JOB, w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(rebuild_look(w->state, &nobody, &w->reason), ST_NOT_FOUND);
    assert_non_null(strstr(w->reason.text, "jobs/" SAMPLE_JOB " is there"));
    (void)snprintf(path, sizeof(path), "%s/seal", w->state);
    assert_int_equal(io_publish(io_system(), path, "x", 1), ST_OK);
    assert_int_equal(rebuild_look(w->state, &nobody, &w->reason), ST_NOT_FOUND);
    assert_non_null(strstr(w->reason.text, "state/seal is there"));
    assert_int_equal(access(w->path, F_OK), -1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(steps_that_a_loss_scale_left_out_are_not_the_coordinators),
        T(a_job_is_made_anew_with_what_its_checkpoints_know),
        T(its_last_step_saved_it_has_succeeded),
        T(epochs_are_counted_as_the_checkpoint_does),
        T(no_generation_comes_twice_however_often_it_is_lost),
        T(unfinished_and_bad_folders_use_numbers_up),
        T(a_number_beyond_all_is_told),
        T(bad_checkpoints_are_passed_by_and_told),
        T(a_difference_without_its_base_is_passed_by),
        T(a_job_file_that_cant_be_read_is_told),
        T(two_stores_with_one_job_are_told_and_it_is_left),
        T(a_store_that_fails_ends_it),
        T(what_a_run_left_that_was_cut_off_is_thrown_away),
        T(signs_of_a_former_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
