/* What paths a job file may name where not all of them are allowed. */
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"

#define ALLOWED "/data:/srv/cairn/:s3://bucket/team"

static struct jobspec job; /* the newest that was parsed */

/* Parses a file with these values; errors: to be released. */
static enum status parse(const char *allowed, const char *images, const char *store,
                         const char *more, struct buf *errors)
{
    char text[4096];
    (void)snprintf(text, sizeof(text),
                   "name: a\n"
                   "model: {arch: mlp}\n"
                   "data:\n"
                   "  train: {format: idx, images: %s,\n"
                   "          labels: /data/labels}\n"
                   "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n"
                   "%s%s%s\n"
                   "%s\n",
                   images, store[0] ? "checkpoint: {store: " : "", store, store[0] ? "}" : "",
                   more);
    buf_init(errors, 1 << 20);
    const struct jobspec_origin origin = { .file_name = "job.yaml",
                                           .base_dir = "/data/jobs",
                                           .allowed = allowed };
    return jobspec_parse_within(&origin, text, strlen(text), NULL, 0, &job, errors);
}

static bool passes(const char *allowed, const char *images, const char *store, const char *more)
{
    auto_buf struct buf errors;
    enum status st = parse(allowed, images, store, more, &errors);
    assert_true(st == ST_OK || st == ST_CONFIG);
    return st == ST_OK;
}

static void paths_are_allowed_below_the_folders(void **state)
{
    (void)state;
    static const struct {
        const char *images;
        bool good;
    } rows[] = {
        { "/data/a", true },
        { "/data", true },
        { "train/a.gz", true },
        { "../a.gz", true },
        { "/srv/cairn/a", true },
        { "//data//./x/../a", true },
        { "/database/a", false },
        { "/srv/cairnx/a", false },
        { "/srv/a", false },
        { "/etc/passwd", false },
        { "../../etc/shadow", false },
        { "/data/../etc/passwd", false },
        { "/data/../../../data/a", true },
        { "/", false },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (passes(ALLOWED, rows[i].images, "", "") != rows[i].good)
            fail_msg("%s", rows[i].images);
        assert_true(passes(NULL, rows[i].images, "", ""));
        assert_true(passes("/", rows[i].images, "/x", ""));
    }
}

/* A folder's or a bucket's path of so many bytes. */
static void make_store(const char *scheme, size_t size, char out[LIMIT_PATH + 8])
{
    memset(out, 'x', size);
    memcpy(out, scheme, strlen(scheme));
    out[size] = '\0';
    for (size_t i = 200; i < size; i += 200)
        out[i] = '/';
}

static void a_store_leaves_room_for_the_names_that_are_made_in_it(void **state)
{
    (void)state;
    static const char *const schemes[] = { "/", "s3://bucket/" };
    for (size_t i = 0; i < 2; i++) {
        char store[LIMIT_PATH + 8];
        auto_buf struct buf errors;
        make_store(schemes[i], LIMIT_STORE - 1, store);
        assert_true(passes(NULL, "/data/a", store, ""));
        make_store(schemes[i], LIMIT_STORE, store);
        assert_int_equal(parse(NULL, "/data/a", store, "", &errors), ST_CONFIG);
        assert_non_null(strstr(errors.data, "job.yaml:7:21: checkpoint.store has 896 bytes"));
        char text[LIMIT_PATH + 256]; /* of a job that was taken before */
        (void)snprintf(text, sizeof(text),
                       "name: a\nmodel: {arch: mlp}\ndata: {train: {format: synthetic}}\n"
                       "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n"
                       "checkpoint: {store: %s}\n",
                       store);
        assert_int_equal(jobspec_parse(text, strlen(text), "f", "/", NULL, 0, &job, &errors),
                         ST_OK);
    }
}

/* Jobs that were taken before have theirs where they wrote it. */
static void a_bucket_has_one_name_for_a_place(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "s3://bucket/pre/", "s3://bucket/pre" },
        { "s3://bucket/pre///", "s3://bucket/pre" },
        { "s3://bucket//a//b/", "s3://bucket/a/b" },
        { "s3://bucket/", "s3://bucket" },
        { "s3://bucket//", "s3://bucket" },
        { "s3://bucket/a/../b", "s3://bucket/a/../b" },
        { "s3://bucket", "s3://bucket" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(passes(NULL, "/data/a", rows[i][0], ""));
        assert_string_equal(job.checkpoint.store, rows[i][1]);
        char text[1024];
        auto_buf struct buf errors;
        buf_init(&errors, 65536);
        (void)snprintf(text, sizeof(text),
                       "name: a\nmodel: {arch: mlp}\ndata: {train: {format: synthetic}}\n"
                       "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n"
                       "checkpoint: {store: %s}\n",
                       rows[i][0]);
        assert_int_equal(jobspec_parse(text, strlen(text), "f", "/", NULL, 0, &job, &errors),
                         ST_OK);
        assert_string_equal(job.checkpoint.store, rows[i][0]);
    }
    assert_true(passes(ALLOWED, "/data/a", "s3://bucket//team//x/", ""));
}

static void stores_are_paths_too_and_s3_is_allowed_by_prefix(void **state)
{
    (void)state;
    assert_true(passes(ALLOWED, "/data/a", "/srv/cairn/store", ""));
    assert_false(passes(ALLOWED, "/data/a", "/srv/other", ""));
    assert_true(passes(ALLOWED, "/data/a", "s3://bucket/team/x", ""));
    assert_true(passes(ALLOWED, "/data/a", "s3://bucket/team", ""));
    assert_false(passes(ALLOWED, "/data/a", "s3://bucket/teams", ""));
    assert_false(passes(ALLOWED, "/data/a", "s3://bucket/team/../other", ""));
    assert_false(passes(ALLOWED, "/data/a", "s3://other/team", ""));
    assert_false(passes("/data", "/data/a", "s3://bucket/team", ""));
    assert_false(passes("s3://bucket", "/data/a", "s3://bucket/team", "")); /* the data */
    assert_false(passes("/data/a:/data/labels", "/data/a", "", ""));        /* the usual store */
}

static void a_path_is_refused_at_its_place_with_what_is_allowed(void **state)
{
    (void)state;
    auto_buf struct buf errors;
    assert_int_equal(parse(ALLOWED, "/etc/passwd", "/srv/x", "", &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "job.yaml:4:32: data.train.images: "));
    assert_non_null(strstr(errors.data, "no such path: /etc/passwd"));
    assert_non_null(strstr(errors.data, "job.yaml:7:21: checkpoint.store: "));
    assert_non_null(strstr(errors.data, "write a path under one of " ALLOWED));
    assert_null(strstr(errors.data, "labels"));
}

static void weights_and_files_of_nccl_count_too(void **state)
{
    (void)state;
    const char *gpu = "workers: {device: cuda}\nnccl: {NCCL_DEBUG_FILE: \"%s\"}";
    char text[256];
    static const struct {
        const char *value;
        bool good;
    } rows[] = { { "/data/log", true },         { "/etc/cron.d/x", false },
                 { "a/b.so", false },           { "eth0", true },
                 { "/data/log,/etc/x", false }, { "/data/log;/data/x", false } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        (void)snprintf(text, sizeof(text), gpu, rows[i].value);
        assert_int_equal(passes(ALLOWED, "/data/a", "", text), rows[i].good);
        assert_true(passes(NULL, "/data/a", "", text));
    }
    const char *plugin = "workers: {device: cuda}\nnccl: {NCCL_NET_PLUGIN: /data/a.so}";
    assert_false(passes(ALLOWED, "/data/a", "", plugin));
    assert_true(passes(NULL, "/data/a", "", plugin));
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    const struct jobspec_origin origin = { .file_name = "f",
                                           .base_dir = "/data",
                                           .allowed = "/data" };
    const char *file = "name: a\nmodel: {arch: mlp, weights: /home/eve/w.safetensors}\n"
                       "data: {train: {format: synthetic}}\n"
                       "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n";
    assert_int_equal(jobspec_parse_within(&origin, file, strlen(file), NULL, 0, &job, &errors),
                     ST_CONFIG);
    assert_non_null(strstr(errors.data, "model.weights"));
}

/* "/data/link/../b" is another place where link leads elsewhere. */
static void what_is_opened_is_what_was_looked_at(void **state)
{
    (void)state;
    auto_buf struct buf errors;
    assert_int_equal(parse(ALLOWED, "/data/link/../b", "/data/x/./y//z", "", &errors), ST_OK);
    assert_string_equal(job.data.train.images, "/data/b");
    assert_string_equal(job.checkpoint.store, "/data/x/y/z");
}

static void what_can_be_allowed(void **state)
{
    (void)state;
    static const char *const good[] = { "/", "/a", "/a:/b/", "s3://b", "s3://b/p:/a", ALLOWED };
    static const char *const bad[] = { "",       ":",    "a",     "/a:",     ":/a",
                                       "/a::/b", "/a:b", "s3://", "http://x" };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(jobspec_allowed_valid(good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (jobspec_allowed_valid(bad[i]))
            fail_msg("'%s'", bad[i]);
    }
}

/* ---- what is looked at ---- */

struct seen {
    char keys[512];
    const char *against; /* the key whose path can't be used */
};

static bool look_at(void *arg, const struct jobspec_named *named, char cause[LIMIT_REASON],
                    char way_out[LIMIT_REASON])
{
    struct seen *seen = arg;
    const size_t used = strlen(seen->keys);
    (void)snprintf(seen->keys + used, sizeof(seen->keys) - used, "%s=%s (%d) ", named->key,
                   named->path, (int)named->kind);
    if (seen->against == NULL || strcmp(seen->against, named->key) != 0)
        return true;
    (void)snprintf(cause, LIMIT_REASON, "%s is no good", named->key);
    (void)snprintf(way_out, LIMIT_REASON, "make it good");
    return false;
}

static void each_path_is_looked_at_once_and_told_at_its_place(void **state)
{
    (void)state;
    static const char text[] = "name: a\n"
                               "model: {arch: gpt2, weights: w.safetensors}\n"
                               "data:\n"
                               "  train: {format: tokens, path: 't_*.bin'}\n"
                               "  eval: {format: text, path: e.txt}\n"
                               "train: {duration: 1 steps, global_batch: 8, optimizer: {lr: 1}}\n";
    struct seen seen = { .against = "data.eval.path" };
    const struct jobspec_look look = { .usable = look_at, .arg = &seen };
    const struct jobspec_origin origin = { .file_name = "f", .base_dir = "/d", .look = &look };
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 16);
    assert_int_equal(jobspec_parse_within(&origin, text, sizeof(text) - 1, NULL, 0, &job, &errors),
                     ST_CONFIG);
    assert_string_equal(errors.data, "f:5:30: data.eval.path is no good\n"
                                     "    eval: {format: text, path: e.txt}\n"
                                     "                               ^~~~~\n"
                                     "  make it good\n");
    assert_string_equal(seen.keys, "model.weights=/d/w.safetensors (0) "
                                   "data.train.path=/d/t_*.bin (1) "
                                   "data.eval.path=/d/e.txt (0) "
                                   "checkpoint.store=/d/checkpoints (2) ");
}

/* ---- commands ---- */

/* Parses a command as somebody who may name ALLOWED. */
static enum status parse_command(const char *command, bool commands,
                                 const struct jobspec_look *look, struct buf *errors)
{
    char text[1024];
    (void)snprintf(text, sizeof(text), "name: a\ncommand: %s\n", command);
    buf_init(errors, 1 << 16);
    const struct jobspec_origin origin = { .file_name = "f",
                                           .base_dir = "/data/jobs",
                                           .allowed = look == NULL ? ALLOWED : NULL,
                                           .commands = commands,
                                           .look = look };
    return jobspec_parse_within(&origin, text, strlen(text), NULL, 0, &job, errors);
}

static void command_is_refused_where_not_all_paths_are_allowed(void **state)
{
    (void)state;
    auto_buf struct buf errors;
    assert_int_equal(parse_command("{run: [python3, /data/train]}", false, NULL, &errors),
                     ST_CONFIG);
    assert_string_equal(errors.data,
                        "f:2:1: this coordinator lets jobs from elsewhere run no command\n"
                        "  command: {run: [python3, /data/train]}\n"
                        "  ^~~~~~~\n"
                        "  submit it on the coordinator's machine, or have that started with "
                        "--commands\n");
}

/* A library is code, too, which a graph isn't. */
static void library_needs_what_a_command_needs(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        bool commands;
        const char *refused; /* NULL: it is fine */
    } rows[] = {
        { "{library: /data/a.so}", true, NULL },
        { "{library: a.so}", true, NULL }, /* the folder is that of the job file */
        { "{library: /data/a.so}", false,
          "f:2:18: this coordinator lets jobs from elsewhere bring" },
        { "{library: /lib/a.so}", true, "f:2:18: model.library: " },
        { "{library: ../../lib/a.so}", true, "model.library: " },
        { "{graph: [{name: e, op: embedding, rows: 9, out: 9}]}", false, NULL },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[1024];
        auto_buf struct buf errors;
        (void)snprintf(text, sizeof(text),
                       "name: a\nmodel: %s\ndata: {train: {format: synthetic}}\n"
                       "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n",
                       rows[i].model);
        buf_init(&errors, 1 << 16);
        const struct jobspec_origin origin = { .file_name = "f",
                                               .base_dir = "/data/jobs",
                                               .allowed = ALLOWED,
                                               .commands = rows[i].commands };
        const enum status st =
            jobspec_parse_within(&origin, text, strlen(text), NULL, 0, &job, &errors);
        if (st != (rows[i].refused == NULL ? ST_OK : ST_CONFIG))
            fail_msg("%s: %s", rows[i].model, errors.size > 0 ? errors.data : "it was taken");
        if (rows[i].refused != NULL && strstr(errors.data, rows[i].refused) == NULL)
            fail_msg("%s", errors.data);
    }
}

static void paths_of_a_command_are_allowed_below_the_folders(void **state)
{
    (void)state;
    static const struct {
        const char *command, *refused; /* NULL: it is fine */
    } rows[] = {
        { "{run: [python3, train]}", NULL }, /* the folder is that of the job file */
        { "{run: [/data/bin/train]}", NULL },
        { "{run: [./train]}", NULL },
        { "{run: /bin/true}", NULL }, /* a shell's text */
        { "{run: [/bin/true]}", "f:2:16: command.run: " },
        { "{run: [../../etc/x]}", "command.run: " },
        { "{run: [x], workdir: /etc}", "f:2:30: command.workdir: " },
        { "{run: [x], folder: /etc}", "f:2:29: command.folder: " },
        { "{run: [x], folder: /srv/cairn/../x}", "command.folder: " },
        { "{run: [x], folder: /srv/cairn/x/../y}", NULL },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        auto_buf struct buf errors;
        const enum status st = parse_command(rows[i].command, true, NULL, &errors);
        if (st != (rows[i].refused == NULL ? ST_OK : ST_CONFIG))
            fail_msg("%s: %s", rows[i].command, errors.size > 0 ? errors.data : "it was taken");
        if (rows[i].refused != NULL && strstr(errors.data, rows[i].refused) == NULL)
            fail_msg("%s", errors.data);
    }
    assert_string_equal(job.command.folder, "/srv/cairn/y");
}

static void folders_and_program_of_a_command_are_looked_at(void **state)
{
    (void)state;
    static const struct {
        const char *command, *against, *seen;
    } rows[] = {
        { "{run: [python3, a/train]}", NULL, "command.workdir=/data/jobs (3) " },
        { "{run: [./train], workdir: src, folder: out}", NULL,
          "command.workdir=/data/jobs/src (3) command.folder=/data/jobs/out (4) "
          "command.run=/data/jobs/src/./train (5) " },
        { "{run: [/bin/train]}", "command.run",
          "command.workdir=/data/jobs (3) command.run=/bin/train (5) " },
        { "{run: [/bin/train]}", "command.workdir", "command.workdir=/data/jobs (3) " },
        { "{run: ./train}", NULL, "command.workdir=/data/jobs (3) " }, /* a shell's text */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct seen seen = { .against = rows[i].against };
        const struct jobspec_look look = { .usable = look_at, .arg = &seen };
        auto_buf struct buf errors;
        assert_int_equal(parse_command(rows[i].command, false, &look, &errors),
                         rows[i].against == NULL ? ST_OK : ST_CONFIG);
        assert_string_equal(seen.keys, rows[i].seen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_are_allowed_below_the_folders),
        cmocka_unit_test(a_store_leaves_room_for_the_names_that_are_made_in_it),
        cmocka_unit_test(a_bucket_has_one_name_for_a_place),
        cmocka_unit_test(stores_are_paths_too_and_s3_is_allowed_by_prefix),
        cmocka_unit_test(a_path_is_refused_at_its_place_with_what_is_allowed),
        cmocka_unit_test(weights_and_files_of_nccl_count_too),
        cmocka_unit_test(what_is_opened_is_what_was_looked_at),
        cmocka_unit_test(what_can_be_allowed),
        cmocka_unit_test(each_path_is_looked_at_once_and_told_at_its_place),
        cmocka_unit_test(command_is_refused_where_not_all_paths_are_allowed),
        cmocka_unit_test(library_needs_what_a_command_needs),
        cmocka_unit_test(paths_of_a_command_are_allowed_below_the_folders),
        cmocka_unit_test(folders_and_program_of_a_command_are_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
