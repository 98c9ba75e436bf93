/* Data of text models: bytes and tokens out of mapped files, patterns, their mistakes, batches. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/rng.h"
#include "kernels/backend.h"
#include "tests/test.h"
#include "trainer/data/batch.h"
#include "trainer/data/dataset.h"
#include "trainer/data/prefetch.h"

#define CONTEXT      5
#define TOKENS       103
#define VOCAB        1000
#define HEADER_BYTES 1024

struct fixture {
    char dir[64];
    struct jobspec_dataset source;
    struct io io; /* the machine's, counting */
    int reads, maps;
    struct reason reason;
};

static enum status counted_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                                 size_t *out_size)
{
    struct fixture *f = self;
    f->reads++;
    return io_system()->pread(NULL, fd, data, size, at, out_size);
}

static enum status counted_map(void *self, int fd, void **out_data, size_t *out_size)
{
    struct fixture *f = self;
    enum status st = io_system()->map(NULL, fd, out_data, out_size);
    f->maps += st == ST_OK && *out_data != NULL;
    return st;
}

static enum status counted_unmap(void *self, void *data, size_t size)
{
    struct fixture *f = self;
    f->maps--;
    return io_system()->unmap(NULL, data, size);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/test_data_text_XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->io = *io_system();
    f->io.self = f;
    f->io.pread = counted_pread;
    f->io.map = counted_map;
    f->io.unmap = counted_unmap;
    f->source.format = JOBSPEC_FORMAT_TOKENS;
    *state = f;
    return 0;
}

static bool remove_name(void *arg, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", (const char *)arg, name);
    if (unlink(path) != 0)
        (void)rmdir(path);
    return true;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(f->maps, 0);
    assert_int_equal(io_system()->list(NULL, f->dir, remove_name, f->dir), ST_OK);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static void write_file(const struct fixture *f, const char *name, const void *data, size_t size)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void use(struct fixture *f, enum jobspec_format format, const char *name)
{
    f->source.format = format;
    (void)snprintf(f->source.path, sizeof(f->source.path), "%s/%s", f->dir, name);
}

static uint16_t token(uint64_t at)
{
    return (uint16_t)(at * 37 % VOCAB);
}

/* Tokens [first, first + count) as bytes behind `room` bytes; owned. */
static uint8_t *token_bytes(uint64_t first, size_t count, size_t room, size_t *out_size)
{
    *out_size = room + 2 * count;
    uint8_t *bytes = calloc(1, *out_size + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < count; i++) {
        bytes[room + 2 * i] = (uint8_t)token(first + i);
        bytes[room + 2 * i + 1] = (uint8_t)(token(first + i) >> 8);
    }
    return bytes;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint8_t *headed_bytes(uint64_t first, size_t count, size_t *out_size)
{
    uint8_t *bytes = token_bytes(first, count, HEADER_BYTES, out_size);
    put_u32(bytes, 20240520);
    put_u32(bytes + 4, 1);
    put_u32(bytes + 8, (uint32_t)count);
    return bytes;
}

static void write_tokens(const struct fixture *f, const char *name, uint64_t first, size_t count)
{
    size_t size = 0;
    uint8_t *bytes = token_bytes(first, count, 0, &size);
    write_file(f, name, bytes, size);
    free(bytes);
}

static void write_headed(const struct fixture *f, const char *name, uint64_t first, size_t count)
{
    size_t size = 0;
    uint8_t *bytes = headed_bytes(first, count, &size);
    write_file(f, name, bytes, size);
    free(bytes);
}

static enum status open_dataset(struct fixture *f, int64_t vocab, struct dataset **out)
{
    struct dataset_options options = {
        .io = &f->io, .source = &f->source, .classes = vocab, .context = CONTEXT, .seed = 5
    };
    f->reason.text[0] = '\0';
    enum status st = dataset_open(&options, out, &f->reason);
    if (st == ST_OK)
        assert_int_equal(dataset_load(*out, &f->reason), ST_OK);
    return st;
}

static struct dataset *must_open(struct fixture *f)
{
    struct dataset *d = NULL;
    enum status st = open_dataset(f, VOCAB, &d);
    if (st != ST_OK)
        fail_msg("%s", f->reason.text);
    return d;
}

static void must_refuse(struct fixture *f, const char *text)
{
    struct dataset *d = NULL;
    assert_int_equal(open_dataset(f, VOCAB, &d), ST_CONFIG);
    assert_null(d);
    if (strstr(f->reason.text, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, f->reason.text);
}

/* All windows are those of token(). */
static void check_windows(const struct fixture *f, const struct dataset *d)
{
    struct reason reason;
    int32_t window[CONTEXT + 1];
    assert_int_equal(d->samples, (TOKENS - 1) / CONTEXT);
    for (uint64_t s = 0; s < d->samples; s++) {
        assert_int_equal(dataset_window(d, s, window, &reason), ST_OK);
        for (uint64_t i = 0; i <= CONTEXT; i++)
            assert_int_equal(window[i], token(s * CONTEXT + i));
    }
    assert_int_equal(f->reads, 0);
}

static void bytes_of_a_text_are_its_tokens(void **state)
{
    struct fixture *f = *state;
    uint8_t text[TOKENS];
    for (size_t i = 0; i < TOKENS; i++)
        text[i] = (uint8_t)(255 - i);
    write_file(f, "text", text, TOKENS);
    use(f, JOBSPEC_FORMAT_TEXT, "text");
    struct dataset *d = must_open(f);
    int32_t window[CONTEXT + 1];
    assert_int_equal(d->samples, 20);
    assert_int_equal(dataset_window(d, 19, window, &f->reason), ST_OK);
    for (int i = 0; i <= CONTEXT; i++)
        assert_int_equal(window[i], 255 - (19 * CONTEXT + i));
    assert_int_equal(f->reads, 0);
    dataset_close(d);
}

static void tokens_are_read_with_and_without_a_header(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "bare.bin", 0, TOKENS);
    write_headed(f, "headed.bin", 0, TOKENS);
    static const char *const names[] = { "bare.bin", "headed.bin" };
    for (int i = 0; i < 2; i++) {
        use(f, JOBSPEC_FORMAT_TOKENS, names[i]);
        struct dataset *d = must_open(f);
        check_windows(f, d);
        dataset_close(d);
    }
}

static void files_of_a_pattern_are_one_stream_in_the_order_of_their_names(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "s_3.bin", 44, TOKENS - 44);
    write_headed(f, "s_1.bin", 0, 7);
    write_headed(f, "s_2.bin", 43, 1);
    write_headed(f, "s_10.bin", 7, 36);
    write_headed(f, "s_11.bin", 43, 0);
    write_tokens(f, "other.txt", 9, 50);
    write_tokens(f, ".s_0.bin", 9, 50);
    use(f, JOBSPEC_FORMAT_TOKENS, "s_*.bin");
    struct dataset *d = must_open(f);
    check_windows(f, d);
    dataset_close(d);
    use(f, JOBSPEC_FORMAT_TOKENS, "s_[12]*.bin");
    d = must_open(f);
    assert_int_equal(d->samples, 43 / CONTEXT);
    dataset_close(d);
}

static void a_file_whose_name_looks_like_a_pattern_is_that_file(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "a[1].bin", 0, TOKENS);
    write_tokens(f, "a1.bin", 5, TOKENS);
    use(f, JOBSPEC_FORMAT_TOKENS, "a[1].bin");
    struct dataset *d = must_open(f);
    check_windows(f, d);
    dataset_close(d);
}

static void a_path_that_leads_nowhere_is_named_with_a_way_out(void **state)
{
    struct fixture *f = *state;
    use(f, JOBSPEC_FORMAT_TOKENS, "none.bin");
    must_refuse(f, "/none.bin: no such file; correct the path");
    use(f, JOBSPEC_FORMAT_TOKENS, "*.bin");
    must_refuse(f, "/*.bin: no file's name fits; correct the path");
    use(f, JOBSPEC_FORMAT_TOKENS, "sub/*.bin");
    must_refuse(f, "no such folder; correct the path");
    use(f, JOBSPEC_FORMAT_TOKENS, "s*/x.bin");
    must_refuse(f, "no such file");
    use(f, JOBSPEC_FORMAT_TOKENS, ".");
    must_refuse(f, "is a folder; name the files in it, as in 'FOLDER/*.bin'");
}

static void every_truncation_of_a_headed_file_is_a_mistake_of_the_user(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = headed_bytes(0, TOKENS, &size);
    use(f, JOBSPEC_FORMAT_TOKENS, "t.bin");
    for (size_t n = 4; n < size; n++) { /* below 4 it is a file without a header */
        write_file(f, "t.bin", bytes, n);
        must_refuse(f, n < HEADER_BYTES ? "ends within its header" : "it was cut short");
    }
    write_file(f, "t.bin", bytes, size + 1); /* there is one more */
    must_refuse(f, "holds more bytes than its header says");
    put_u32(bytes + 8, TOKENS - 1);
    write_file(f, "t.bin", bytes, size);
    must_refuse(f, "holds more bytes than its header says");
    put_u32(bytes + 8, 0xffffffffu);
    write_file(f, "t.bin", bytes, size);
    must_refuse(f, "its header says 4294967295 tokens, but it holds 103");
    free(bytes);
}

static void files_of_another_kind_are_refused(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = headed_bytes(0, TOKENS, &size);
    use(f, JOBSPEC_FORMAT_TOKENS, "t.bin");
    put_u32(bytes + 4, 2);
    write_file(f, "t.bin", bytes, size);
    must_refuse(f, "has a version other than 1");
    put_u32(bytes, 20240801);
    write_file(f, "t.bin", bytes, size);
    must_refuse(f, "has tokens of four bytes");
    free(bytes);
    write_file(f, "t.bin", "abc", 3);
    must_refuse(f, "has an odd number of bytes");
    write_file(f, "t.bin", "", 0);
    must_refuse(f, "is empty");
    static const uint8_t gzip[] = { 0x1f, 0x8b, 8, 0 };
    write_file(f, "t.bin", gzip, sizeof(gzip));
    must_refuse(f, "is compressed");
    use(f, JOBSPEC_FORMAT_TEXT, "t.bin");
    must_refuse(f, "is compressed");
    use(f, JOBSPEC_FORMAT_IDX, "t.bin");
    must_refuse(f, "data.train.format: idx is not for this model");
}

static void one_bad_file_of_a_pattern_is_the_one_that_is_named(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "a.bin", 0, 50);
    write_file(f, "b.bin", "abc", 3);
    write_tokens(f, "c.bin", 50, 53);
    use(f, JOBSPEC_FORMAT_TOKENS, "*.bin");
    must_refuse(f, "/b.bin: has an odd number of bytes");
}

static void fewer_tokens_than_a_window_are_refused(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "t.bin", 0, CONTEXT);
    use(f, JOBSPEC_FORMAT_TOKENS, "t.bin");
    must_refuse(f, "its 5 tokens make 0 windows of model.context + 1 (6)");
    write_tokens(f, "t.bin", 0, CONTEXT + 1);
    struct dataset *d = must_open(f);
    assert_int_equal(d->samples, 1);
    dataset_close(d);
}

/* ---- batches ---- */

static struct batch_source source_of(const struct dataset *d)
{
    return (struct batch_source){
        .dataset = d, .seed = 5, .lanes = 2, .micro_batch = 3, .accumulate = 1
    };
}

static void a_batch_holds_windows_and_what_follows_each_token(void **state)
{
    struct fixture *f = *state;
    write_headed(f, "t.bin", 0, TOKENS);
    use(f, JOBSPEC_FORMAT_TOKENS, "t.bin");
    struct dataset *d = must_open(f);
    struct batch_source source = source_of(d);
    int32_t x[3 * CONTEXT];
    int32_t labels[3 * CONTEXT];
    int32_t room[CONTEXT + 1];
    uint32_t draw[OP_DRAW_SAMPLES + 3];
    struct batch out = { x, labels, draw };
    struct reason reason;
    struct batch_sizes sizes = batch_sizes(&source);
    assert_int_equal(sizes.x, sizeof(x));
    assert_int_equal(sizes.labels, sizeof(labels));
    assert_int_equal(sizes.draw, sizeof(draw));
    assert_int_equal(sizes.room, sizeof(room));
    for (uint64_t step = 0; step < 7; step++) { /* three of an epoch */
        struct batch_place place = { .step = step, .lane = 1 };
        assert_int_equal(batch_fill(&source, &place, room, &out, &reason), ST_OK);
        uint64_t key = rng_key(5, RNG_DROPOUT);
        assert_int_equal(draw[OP_DRAW_KEY], (uint32_t)key);
        assert_int_equal(draw[OP_DRAW_KEY + 1], key >> 32);
        assert_int_equal(draw[OP_DRAW_STEP], step);
        for (uint64_t j = 0; j < 3; j++) {
            uint64_t s = rng_permute(5, step / 3, d->samples, step % 3 * 6 + 3 + j);
            assert_int_equal(draw[OP_DRAW_SAMPLES + j], s);
            for (uint64_t t = 0; t < CONTEXT; t++) {
                assert_int_equal(x[j * CONTEXT + t], token(s * CONTEXT + t));
                assert_int_equal(labels[j * CONTEXT + t], token(s * CONTEXT + t + 1));
            }
        }
    }
    dataset_close(d);
}

static void an_evaluation_covers_all_windows_once_and_marks_the_rest(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "t.bin", 0, TOKENS);
    use(f, JOBSPEC_FORMAT_TOKENS, "t.bin");
    struct dataset *d = must_open(f);
    struct prefetch_options options = { .source = source_of(d),
                                        .share = { (const uint32_t[]){ 0, 1 }, 2 },
                                        .evaluation = true };
    struct prefetch *p = NULL;
    assert_int_equal(prefetch_open(&options, &p), ST_OK);
    prefetch_start(p, 0);
    const struct prefetch_item *item = NULL;
    for (uint64_t batch = 0; batch < 7; batch++) {
        assert_int_equal(prefetch_take(p, &item), ST_OK);
        assert_non_null(item);
        assert_null(item->draw);
        const int32_t *x = item->x;
        for (uint64_t i = 0; i < 3 * CONTEXT; i++) {
            uint64_t s = batch * 3 + i / CONTEXT;
            bool there = s < d->samples;
            assert_int_equal(x[i], there ? token(s * CONTEXT + i % CONTEXT) : 0);
            assert_int_equal(item->labels[i], there ? token(s * CONTEXT + i % CONTEXT + 1) : -1);
        }
    }
    assert_int_equal(prefetch_take(p, &item), ST_OK);
    assert_null(item);
    prefetch_close(p);
    dataset_close(d);
}

static void a_token_out_of_range_ends_the_batches_with_its_file_and_place(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "a.bin", 0, 60);
    size_t size = 0;
    uint8_t *bytes = headed_bytes(60, TOKENS - 60, &size);
    bytes[HEADER_BYTES + 2 * 17] = (uint8_t)VOCAB;
    bytes[HEADER_BYTES + 2 * 17 + 1] = VOCAB >> 8;
    write_file(f, "b.bin", bytes, size);
    free(bytes);
    use(f, JOBSPEC_FORMAT_TOKENS, "*.bin");
    struct dataset *d = must_open(f); /* nothing was looked at yet */
    struct prefetch_options options = { .source = source_of(d),
                                        .share = { (const uint32_t[]){ 0, 1 }, 2 } };
    struct prefetch *p = NULL;
    assert_int_equal(prefetch_open(&options, &p), ST_OK);
    for (int round = 0; round < 3; round++) {
        prefetch_start(p, 0);
        const struct prefetch_item *item = NULL;
        enum status st = ST_OK;
        int taken = 0;
        while (st == ST_OK && taken < 7) { /* an epoch shows 18 of 20 windows, the next them all */
            st = prefetch_take(p, &item);
            taken++;
        }
        assert_int_equal(st, ST_CONFIG);
        assert_non_null(strstr(prefetch_reason(p)->text,
                               "/b.bin: token 1000 at position 17 is not below model.vocab (1000); "
                               "raise model.vocab or correct the file"));
        assert_int_equal(prefetch_take(p, &item), ST_CONFIG);
    }
    prefetch_close(p);
    dataset_close(d);
}

struct memory {
    size_t bytes;
    int held;
};

static enum status memory_alloc(void *self, size_t bytes, void **out)
{
    struct memory *m = self;
    *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(*out);
    m->bytes = bytes;
    m->held++;
    return ST_OK;
}

static void memory_free(void *self, void *memory)
{
    struct memory *m = self;
    m->held--;
    free(memory);
}

static void the_ring_lies_in_the_memory_that_is_given(void **state)
{
    struct fixture *f = *state;
    write_tokens(f, "t.bin", 0, TOKENS);
    use(f, JOBSPEC_FORMAT_TOKENS, "t.bin");
    struct dataset *d = must_open(f);
    struct memory m = { 0 };
    struct prefetch_memory memory = { memory_alloc, memory_free, &m };
    struct prefetch_options options = { .source = source_of(d),
                                        .share = { (const uint32_t[]){ 0, 1 }, 2 },
                                        .memory = &memory };
    struct prefetch *p = NULL;
    assert_int_equal(prefetch_open(&options, &p), ST_OK);
    assert_int_equal(m.held, 1);
    assert_in_range(m.bytes, (size_t)PREFETCH_ENTRIES * 2 * 3 * CONTEXT * 4, 4096);
    prefetch_start(p, 0);
    const struct prefetch_item *item = NULL;
    assert_int_equal(prefetch_take(p, &item), ST_OK);
    assert_int_equal((uintptr_t)item->x % 64, 0);
    assert_int_equal((uintptr_t)item->labels % 64, 0);
    assert_int_equal((uintptr_t)item->draw % 64, 0);
    prefetch_close(p);
    assert_int_equal(m.held, 0);
    dataset_close(d);
}

static void a_synthetic_text_can_be_learnt_and_depends_on_seed_split_and_number(void **state)
{
    struct fixture *f = *state;
    struct jobspec_dataset source = { .format = JOBSPEC_FORMAT_SYNTHETIC, .samples = 200 };
    struct dataset_options options = {
        .io = &f->io, .source = &source, .classes = 50, .context = 64
    };
    int32_t walk[4][65];
    struct dataset *d[4] = { NULL };
    for (int i = 0; i < 4; i++) {
        options.seed = i == 2 ? 4 : 3;
        options.split = i == 3 ? DATASET_EVAL : DATASET_TRAIN;
        assert_int_equal(dataset_open(&options, &d[i], &f->reason), ST_OK);
        assert_int_equal(dataset_window(d[i], 7, walk[i], &f->reason), ST_OK);
    }
    assert_memory_equal(walk[0], walk[1], sizeof(walk[0]));
    assert_memory_not_equal(walk[0], walk[2], sizeof(walk[0]));
    assert_memory_not_equal(walk[0], walk[3], sizeof(walk[0]));
    int pairs[50][50] = { { 0 } };
    for (uint64_t s = 0; s < 200; s++) {
        assert_int_equal(dataset_window(d[0], s, walk[0], &f->reason), ST_OK);
        for (int t = 0; t < 64; t++) {
            assert_in_range(walk[0][t + 1], 0, 49);
            pairs[walk[0][t]][walk[0][t + 1]]++;
        }
    }
    int followed = 0;
    for (int a = 0; a < 50; a++) { /* the most frequent follower of each token */
        int most = 0;
        for (int b = 0; b < 50; b++)
            most = pairs[a][b] > most ? pairs[a][b] : most;
        followed += most;
    }
    assert_in_range(followed, 200 * 64 * 70 / 100, 200 * 64 * 80 / 100);
    for (int i = 0; i < 4; i++)
        dataset_close(d[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bytes_of_a_text_are_its_tokens),
        TEST(tokens_are_read_with_and_without_a_header),
        TEST(files_of_a_pattern_are_one_stream_in_the_order_of_their_names),
        TEST(a_file_whose_name_looks_like_a_pattern_is_that_file),
        TEST(a_path_that_leads_nowhere_is_named_with_a_way_out),
        TEST(every_truncation_of_a_headed_file_is_a_mistake_of_the_user),
        TEST(files_of_another_kind_are_refused),
        TEST(one_bad_file_of_a_pattern_is_the_one_that_is_named),
        TEST(fewer_tokens_than_a_window_are_refused),
        TEST(a_batch_holds_windows_and_what_follows_each_token),
        TEST(an_evaluation_covers_all_windows_once_and_marks_the_rest),
        TEST(a_token_out_of_range_ends_the_batches_with_its_file_and_place),
        TEST(the_ring_lies_in_the_memory_that_is_given),
        TEST(a_synthetic_text_can_be_learnt_and_depends_on_seed_split_and_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
