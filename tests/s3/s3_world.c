#include "tests/s3/s3_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small parts and pages; quick and stubborn, since the tests' faults come often. */
struct s3_options world_options(void)
{
    struct s3_options options = s3_defaults();
    options.part_bytes = S3_PART_BYTES_MIN;
    options.block_bytes = (size_t)1 << 20;
    options.page = 3;
    options.client.tries.attempts_max = 12;
    options.client.tries.backoff_ms = 10;
    options.client.tries.backoff_ms_max = 200;
    options.client.times.stall_ms = 2000;
    return options;
}

/* A place that no other test uses. */
int world_set_up(void **state)
{
    static int number;
    struct world *w = calloc(1, sizeof(*w));
    struct reason why = { "" };
    struct s3_options options = world_options();
    assert_non_null(w);
    assert_non_null(getenv("CAIRN_TEST_S3"));
    (void)snprintf(w->store, sizeof(w->store), "%s/%d", getenv("CAIRN_TEST_S3"), ++number);
    if (s3_new(&options, &w->s3, &why) != ST_OK)
        fail_msg("%s", why.text);
    w->io = s3_io(w->s3);
    *state = w;
    return 0;
}

int world_tear_down(void **state)
{
    struct world *w = *state;
    s3_free(w->s3);
    free(w);
    return 0;
}

void world_check(struct world *w, enum status is, enum status should, const char *what)
{
    struct reason why;
    io_explain(w->io, is, &why);
    if (is != should)
        fail_msg("%s: %s instead of: %s", what, why.text, status_string(should));
}

void world_path(const struct world *w, const char *name, char out[LIMIT_PATH])
{
    assert_true(snprintf(out, LIMIT_PATH, "%s/%s", w->store, name) < LIMIT_PATH);
}

void *world_pattern(size_t size)
{
    uint32_t *words = malloc(size + sizeof(uint32_t));
    assert_non_null(words);
    for (size_t i = 0; i <= size / sizeof(uint32_t); i++)
        words[i] = (uint32_t)(i * 2654435761u);
    return words;
}

void world_write(struct world *w, const char *path, const char *data, size_t size, size_t piece)
{
    int fd = -1;
    world_check(w, w->io->open(w->io->self, path, IO_CREATE_NEW, &fd), ST_OK, "open");
    for (size_t at = 0; at < size; at += piece) {
        size_t now = size - at < piece ? size - at : piece;
        world_check(w, io_write_all(w->io, fd, data + at, now, at), ST_OK, "write");
    }
    world_check(w, w->io->fsync(w->io->self, fd), ST_OK, "fsync");
    assert_int_equal(w->io->close(w->io->self, fd), ST_OK);
}

void world_step(const struct world *w, uint64_t step, char out[LIMIT_PATH])
{
    assert_int_equal(ckpt_folder_path(w->store, SAMPLE_JOB, step, 2, 0, out, LIMIT_PATH), ST_OK);
}

void world_print(void *arg, const char *line)
{
    (void)arg;
    print_message("%s\n", line);
}
