/* Data: IDX files plain and gzip, their mistakes, batches as pure functions, the prefetch ring. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "common/rng.h"
#include "kernels/backend.h"
#include "tests/test.h"
#include "trainer/data/batch.h"
#include "trainer/data/dataset.h"
#include "trainer/data/prefetch.h"

#define SIDE    6
#define IMAGE   (SIDE * SIDE)
#define SAMPLES 50

struct fixture {
    char dir[64];
    struct jobspec_dataset source;
    struct reason reason;
};

static void put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static void append_gzip(const char *path, const void *data, size_t size, const char *mode)
{
    gzFile f = gzopen(path, mode);
    assert_non_null(f);
    assert_int_equal(gzwrite(f, data, (unsigned)size), (int)size);
    assert_int_equal(gzclose(f), Z_OK);
}

static uint8_t pixel(uint32_t sample, uint32_t at)
{
    return (uint8_t)(sample * 31 + at * 7 + 1);
}

/* Images [n, SIDE, SIDE] as IDX bytes; owned. */
static uint8_t *images_idx(uint32_t n, size_t *out_size)
{
    size_t size = 16 + (size_t)n * IMAGE;
    uint8_t *bytes = calloc(1, size);
    assert_non_null(bytes);
    bytes[2] = 8;
    bytes[3] = 3;
    put_u32(bytes + 4, n);
    put_u32(bytes + 8, SIDE);
    put_u32(bytes + 12, SIDE);
    for (uint32_t s = 0; s < n; s++) {
        for (uint32_t i = 0; i < IMAGE; i++)
            bytes[16 + s * IMAGE + i] = pixel(s, i);
    }
    *out_size = size;
    return bytes;
}

static uint8_t *labels_idx(uint32_t n, size_t *out_size)
{
    uint8_t *bytes = calloc(1, 8 + (size_t)n);
    assert_non_null(bytes);
    bytes[2] = 8;
    bytes[3] = 1;
    put_u32(bytes + 4, n);
    for (uint32_t s = 0; s < n; s++)
        bytes[8 + s] = (uint8_t)(s % 10);
    *out_size = 8 + (size_t)n;
    return bytes;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/test_data_XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->source.format = JOBSPEC_FORMAT_IDX;
    (void)snprintf(f->source.images, sizeof(f->source.images), "%s/images", f->dir);
    (void)snprintf(f->source.labels, sizeof(f->source.labels), "%s/labels", f->dir);
    size_t size = 0;
    uint8_t *bytes = images_idx(SAMPLES, &size);
    write_file(f->source.images, bytes, size);
    free(bytes);
    bytes = labels_idx(SAMPLES, &size);
    write_file(f->source.labels, bytes, size);
    free(bytes);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    (void)unlink(f->source.images);
    (void)unlink(f->source.labels);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static enum status open_dataset(struct fixture *f, struct dataset **out)
{
    struct dataset_options options = { .io = io_system(), .source = &f->source, .classes = 10 };
    f->reason.text[0] = '\0';
    struct dataset *d = NULL;
    enum status st = dataset_open(&options, &d, &f->reason);
    if (st == ST_OK)
        st = dataset_load(d, &f->reason);
    if (st == ST_OK)
        *out = d;
    else
        dataset_close(d);
    return st;
}

static struct dataset *must_open(struct fixture *f)
{
    struct dataset *d = NULL;
    assert_int_equal(open_dataset(f, &d), ST_OK);
    return d;
}

static void must_refuse(struct fixture *f, const char *text)
{
    struct dataset *d = NULL;
    assert_int_equal(open_dataset(f, &d), ST_CONFIG);
    assert_null(d);
    if (strstr(f->reason.text, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, f->reason.text);
}

static void check_contents(const struct dataset *d)
{
    assert_int_equal(d->samples, SAMPLES);
    assert_int_equal(d->shape.channels, 1);
    assert_int_equal(d->shape.height, SIDE);
    assert_int_equal(d->shape.width, SIDE);
    for (uint32_t s = 0; s < SAMPLES; s++) {
        const uint8_t *image = dataset_image(d, s, NULL);
        for (uint32_t i = 0; i < IMAGE; i++)
            assert_int_equal(image[i], pixel(s, i));
        assert_int_equal(dataset_label(d, s), s % 10);
    }
}

static void plain_idx_files_are_read(void **state)
{
    struct dataset *d = must_open(*state);
    check_contents(d);
    dataset_close(d);
}

static void gzip_files_are_read_in_one_or_more_members(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = images_idx(SAMPLES, &size);
    for (size_t cut = 0; cut <= 500; cut += 250) { /* 0: one member */
        (void)unlink(f->source.images);
        if (cut > 0)
            append_gzip(f->source.images, bytes, cut, "wb");
        append_gzip(f->source.images, bytes + cut, size - cut, "ab");
        struct dataset *d = must_open(f);
        check_contents(d);
        dataset_close(d);
    }
    free(bytes);
}

static void every_truncation_of_a_file_is_a_mistake_of_the_user(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = images_idx(SAMPLES, &size);
    for (size_t n = 0; n < size; n += n < 20 ? 1 : 97) {
        write_file(f->source.images, bytes, n);
        must_refuse(f, f->source.images);
    }
    append_gzip(f->source.images, bytes, size, "wb");
    FILE *file = fopen(f->source.images, "re");
    assert_non_null(file);
    uint8_t gz[4096];
    size_t gz_size = fread(gz, 1, sizeof(gz), file);
    assert_int_equal(fclose(file), 0);
    assert_in_range(gz_size, 30, sizeof(gz) - 1);
    for (size_t n = 2; n < gz_size; n++) { /* the trailer included */
        write_file(f->source.images, gz, n);
        must_refuse(f, f->source.images);
    }
    gz[gz_size - 6] ^= 1; /* of the CRC */
    write_file(f->source.images, gz, gz_size);
    must_refuse(f, "damaged");
    free(bytes);
}

static void a_missing_file_is_named_with_a_way_out(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(unlink(f->source.images), 0);
    must_refuse(f, "/images: no such file; correct the path");
}

static void bytes_after_the_end_are_refused(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = images_idx(SAMPLES, &size);
    put_u32(bytes + 4, SAMPLES - 1);
    write_file(f->source.images, bytes, size);
    free(bytes);
    bytes = labels_idx(SAMPLES - 1, &size);
    write_file(f->source.labels, bytes, size);
    must_refuse(f, "/images: holds more bytes than its header says");
    free(bytes);
}

static void counts_that_differ_are_refused(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = images_idx(SAMPLES - 1, &size);
    write_file(f->source.images, bytes, size);
    must_refuse(f, "holds 49 images, but");
    free(bytes);
}

static void swapped_files_are_refused(void **state)
{
    struct fixture *f = *state;
    struct jobspec_dataset source = f->source;
    memcpy(f->source.images, source.labels, sizeof(source.labels));
    memcpy(f->source.labels, source.images, sizeof(source.images));
    must_refuse(f, "swapped");
}

static void a_label_out_of_range_is_named_with_its_sample(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = labels_idx(SAMPLES, &size);
    bytes[8 + 37] = 10;
    write_file(f->source.labels, bytes, size);
    must_refuse(f, "/labels: label 10 of sample 37 is not below model.classes (10)");
    free(bytes);
}

/* Images of these axes, black; what opening them comes to. */
static enum status open_axes(struct fixture *f, uint32_t a, uint32_t b, uint32_t c)
{
    size_t size = 20 + (size_t)SAMPLES * a * b * c;
    uint8_t *bytes = calloc(1, size);
    assert_non_null(bytes);
    const uint32_t header[] = { 0x804, SAMPLES, a, b, c };
    for (size_t i = 0; i < 5; i++)
        put_u32(bytes + 4 * i, header[i]);
    write_file(f->source.images, bytes, size);
    free(bytes);
    struct dataset *d = NULL;
    enum status st = open_dataset(f, &d);
    assert_true(st != ST_OK || d->shape.channels == a);
    dataset_close(d);
    return st;
}

static void images_with_their_channels_last_are_refused(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(open_axes(f, 32, 32, 3), ST_CONFIG);
    assert_non_null(strstr(f->reason.text, "[N, C, H, W]"));
    assert_non_null(strstr(f->reason.text, "50x3x32x32"));
    assert_int_equal(open_axes(f, 28, 28, 1), ST_CONFIG);
    assert_int_equal(open_axes(f, 3, 32, 32), ST_OK);
    assert_int_equal(open_axes(f, 1, 28, 28), ST_OK);
    assert_int_equal(open_axes(f, 12, 32, 32), ST_OK); /* many channels: a satellite's */
    assert_int_equal(open_axes(f, 16, 1, 1), ST_OK);   /* no images, but features */
    assert_int_equal(open_axes(f, 3, 2, 2), ST_OK);
}

static void sizes_beyond_bounds_are_refused_before_memory_is_asked_for(void **state)
{
    struct fixture *f = *state;
    size_t size = 0;
    uint8_t *bytes = images_idx(SAMPLES, &size);
    static const uint32_t bad[] = { 0, 8193, 0xffffffffu };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_u32(bytes + 8, bad[i]);
        write_file(f->source.images, bytes, size);
        must_refuse(f, "out of range");
    }
    free(bytes);
}

/* ---- batches ---- */

static struct batch_source source_of(const struct dataset *d)
{
    return (struct batch_source){
        .dataset = d, .seed = 5, .lanes = 3, .micro_batch = 2, .accumulate = 2
    };
}

static void fill(const struct batch_source *source, struct batch_place place, bool evaluation,
                 struct batch *out)
{
    struct reason reason;
    char room[4096];
    assert_in_range(batch_sizes(source).room, 1, sizeof(room));
    enum status st = evaluation ? batch_fill_eval(source, &place, room, out, &reason)
                                : batch_fill(source, &place, room, out, &reason);
    assert_int_equal(st, ST_OK);
}

/* Which sample row x is: from its first pixels, all different for SAMPLES samples. */
static uint32_t sample_of(const float *x)
{
    for (uint32_t s = 0; s < SAMPLES; s++) {
        bool same = true;
        for (uint32_t i = 0; i < IMAGE && same; i++)
            same = x[i] == (float)pixel(s, i) / 255.0f;
        if (same)
            return s;
    }
    fail_msg("no such sample");
    return 0;
}

static void an_epoch_shows_each_sample_at_most_once_in_permuted_order(void **state)
{
    struct dataset *d = must_open(*state);
    struct batch_source source = source_of(d);
    uint64_t steps = batch_steps_per_epoch(&source);
    assert_int_equal(steps, SAMPLES / 12);
    float x[2 * IMAGE];
    int32_t labels[2];
    uint32_t draw[OP_DRAW_SAMPLES + 2];
    struct batch out = { x, labels, draw };
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        bool seen[SAMPLES] = { false };
        uint64_t position = 0;
        for (uint64_t i = 0; i < steps * 6; i++) {
            struct batch_place place = { epoch * steps + i / 6, (uint32_t)(i / 2 % 3),
                                         (uint32_t)(i % 2) };
            fill(&source, place, false, &out);
            for (int j = 0; j < 2; j++) {
                uint32_t s = sample_of(x + (size_t)j * IMAGE);
                assert_int_equal(s, rng_permute(5, epoch, SAMPLES, position++));
                assert_int_equal(labels[j], s % 10);
                assert_false(seen[s]);
                seen[s] = true;
            }
        }
    }
    dataset_close(d);
}

static void evaluation_covers_the_set_once_and_marks_the_rest(void **state)
{
    struct dataset *d = must_open(*state);
    struct batch_source source = source_of(d); /* batches of 4: 50 = 12 · 4 + 2 */
    assert_int_equal(batch_eval_count(&source), 13);
    float x[2 * IMAGE];
    int32_t labels[2];
    uint32_t draw[OP_DRAW_SAMPLES + 2];
    struct batch out = { x, labels, draw };
    uint32_t next = 0;
    for (uint64_t batch = 0; batch < 13; batch++) {
        for (uint32_t micro = 0; micro < 2; micro++) {
            fill(&source, (struct batch_place){ batch, 0, micro }, true, &out);
            for (int j = 0; j < 2; j++) {
                if (next == SAMPLES) {
                    assert_int_equal(labels[j], -1);
                    assert_true(x[j * IMAGE + 5] == 0.0f);
                } else {
                    assert_int_equal(sample_of(x + (size_t)j * IMAGE), next);
                    assert_int_equal(labels[j], next % 10);
                    next++;
                }
            }
        }
    }
    assert_int_equal(next, SAMPLES);
    dataset_close(d);
}

/* The augmented image, from the definition, one pixel at a time. */
static float moved_pixel(uint32_t sample, uint64_t step, int h, int w)
{
    struct rng_counter draw = rng_words(rng_key(5, RNG_AUGMENT), 0, 0, sample, (uint32_t)step);
    int y = h + (int)rng_below(draw.word[0], 9) - 4;
    int x =
        (rng_below(draw.word[2], 2) == 1 ? SIDE - 1 - w : w) + (int)rng_below(draw.word[1], 9) - 4;
    if (y < 0 || y >= SIDE || x < 0 || x >= SIDE)
        return 0.0f;
    return (float)pixel(sample, (uint32_t)(y * SIDE + x)) / 255.0f;
}

static void augmentation_moves_and_mirrors_as_its_counter_says(void **state)
{
    struct dataset *d = must_open(*state);
    struct batch_source source = source_of(d);
    source.crop = true;
    source.flip = true;
    float x[2 * IMAGE];
    int32_t labels[2];
    uint32_t draw[OP_DRAW_SAMPLES + 2];
    struct batch out = { x, labels, draw };
    int changed = 0;
    for (uint64_t step = 0; step < 8; step++) {
        fill(&source, (struct batch_place){ step, 1, 1 }, false, &out);
        for (int j = 0; j < 2; j++) {
            uint64_t at = step % 4 * 12 + 4 + 2 + (uint64_t)j;
            uint32_t s = (uint32_t)rng_permute(5, step / 4, SAMPLES, at);
            for (int i = 0; i < IMAGE; i++) {
                float want = moved_pixel(s, step, i / SIDE, i % SIDE);
                assert_true(x[j * IMAGE + i] == want);
                changed += want != (float)pixel(s, (uint32_t)i) / 255.0f;
            }
        }
    }
    assert_true(changed > 100);
    dataset_close(d);
}

static void synthetic_samples_depend_on_seed_split_and_number_only(void **state)
{
    struct fixture *f = *state;
    struct jobspec_dataset synthetic = { .format = JOBSPEC_FORMAT_SYNTHETIC, .samples = 100 };
    struct dataset_options options = {
        .io = io_system(), .source = &synthetic, .classes = 7, .seed = 3, .shape = { 1, 5, 5 }
    };
    struct dataset *d[4] = { NULL };
    for (int i = 0; i < 4; i++) {
        options.seed = i == 2 ? 4 : 3;
        options.split = i == 3 ? DATASET_EVAL : DATASET_TRAIN;
        assert_int_equal(dataset_open(&options, &d[i], &f->reason), ST_OK);
    }
    int labels_seen[7] = { 0 };
    for (uint64_t s = 0; s < 100; s++) {
        uint8_t room[4][25];
        for (int i = 0; i < 4; i++)
            (void)dataset_image(d[i], s, room[i]);
        assert_memory_equal(room[0], room[1], 25);
        assert_memory_not_equal(room[0], room[2], 25);
        assert_memory_not_equal(room[0], room[3], 25);
        assert_in_range(dataset_label(d[0], s), 0, 6);
        labels_seen[dataset_label(d[0], s)]++;
    }
    for (int i = 0; i < 7; i++)
        assert_true(labels_seen[i] > 0);
    for (int i = 0; i < 4; i++)
        dataset_close(d[i]);
}

/* ---- prefetch ---- */

static const struct prefetch_item *take(struct prefetch *p)
{
    const struct prefetch_item *item = NULL;
    assert_int_equal(prefetch_take(p, &item), ST_OK);
    return item;
}

static void check_item(const struct batch_source *source, const struct prefetch_item *item,
                       bool evaluation)
{
    float x[2 * IMAGE];
    int32_t labels[2];
    uint32_t draw[OP_DRAW_SAMPLES + 2];
    struct batch out = { x, labels, draw };
    fill(source, (struct batch_place){ item->step, item->lane, item->micro }, evaluation, &out);
    assert_memory_equal(item->x, x, sizeof(x));
    assert_memory_equal(item->labels, labels, sizeof(labels));
    if (evaluation) {
        assert_null(item->draw);
    } else {
        assert_memory_equal(item->draw, draw, sizeof(draw));
    }
}

static const uint32_t parts[3][3] = { { 0, 1, 2 }, { 1, 0, 2 }, { 0, 2, 1 } };

static void prefetched_batches_come_in_order_and_a_start_moves_them(void **state)
{
    struct dataset *d = must_open(*state);
    struct prefetch_options options = { .source = source_of(d), .share = { &parts[0][1], 2 } };
    options.source.crop = true;
    struct prefetch *p = NULL;
    assert_int_equal(prefetch_open(&options, &p), ST_OK);
    for (uint64_t round = 0; round < 200; round++) {
        uint64_t first = round * 37 % 11;
        prefetch_start(p, first);
        for (uint64_t k = 0; k < round % 17; k++) {
            const struct prefetch_item *item = take(p);
            assert_non_null(item);
            assert_int_equal(item->step, first + k / 4);
            assert_int_equal(item->lane, 1 + k / 2 % 2);
            assert_int_equal(item->micro, k % 2);
            check_item(&options.source, item, false);
        }
    }
    prefetch_close(p);
    dataset_close(d);
}

static void an_evaluation_takes_the_batches_of_its_lanes_and_ends(void **state)
{
    struct dataset *d = must_open(*state);
    struct prefetch_options options = { .source = source_of(d),
                                        .share = { parts[0], 2 },
                                        .evaluation = true };
    struct prefetch *p = NULL;
    assert_int_equal(prefetch_open(&options, &p), ST_OK);
    for (int round = 0; round < 3; round++) {
        prefetch_start(p, 0);
        for (uint64_t batch = 0; batch < 13; batch++) {
            for (uint32_t micro = 0; batch % 3 < 2 && micro < 2; micro++) {
                const struct prefetch_item *item = take(p);
                assert_non_null(item);
                assert_int_equal(item->step, batch);
                assert_int_equal(item->micro, micro);
                check_item(&options.source, item, true);
            }
        }
        assert_null(take(p));
        assert_null(take(p));
    }
    prefetch_close(p);
    dataset_close(d);
}

static void the_lanes_of_a_step_hold_what_one_worker_would_have_had(void **state)
{
    struct dataset *d = must_open(*state);
    for (uint32_t k = 0; k < 4; k++) { /* {0} {1, 2}, {0, 1} {2}, {1} {0, 2}, {0, 2} {1} */
        const uint32_t *lanes = parts[k / 2 + (k == 3)], cut = 1 + k % 2;
        struct prefetch_options options = { .source = source_of(d), .share = { parts[0], 3 } };
        struct prefetch *p[3] = { NULL };
        assert_int_equal(prefetch_open(&options, &p[0]), ST_OK);
        for (uint32_t i = 0; i < 2; i++) {
            options.share.lanes = lanes + i * cut;
            options.share.lane_count = i == 0 ? cut : 3 - cut;
            assert_int_equal(prefetch_open(&options, &p[1 + i]), ST_OK);
        }
        for (int i = 0; i < 3; i++)
            prefetch_start(p[i], 3);
        for (int i = 0; i < 30; i++) {
            const struct prefetch_item *want = take(p[0]);
            const bool others = want->lane == lanes[2] || want->lane == lanes[cut];
            const struct prefetch_item *got = take(p[others ? 2 : 1]);
            assert_int_equal(got->step, want->step);
            assert_int_equal(got->lane, want->lane);
            assert_memory_equal(got->x, want->x, 2 * IMAGE * sizeof(float));
        }
        for (int i = 0; i < 3; i++)
            prefetch_close(p[i]);
    }
    dataset_close(d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(plain_idx_files_are_read),
        TEST(gzip_files_are_read_in_one_or_more_members),
        TEST(every_truncation_of_a_file_is_a_mistake_of_the_user),
        TEST(a_missing_file_is_named_with_a_way_out),
        TEST(bytes_after_the_end_are_refused),
        TEST(counts_that_differ_are_refused),
        TEST(swapped_files_are_refused),
        TEST(a_label_out_of_range_is_named_with_its_sample),
        TEST(images_with_their_channels_last_are_refused),
        TEST(sizes_beyond_bounds_are_refused_before_memory_is_asked_for),
        TEST(an_epoch_shows_each_sample_at_most_once_in_permuted_order),
        TEST(evaluation_covers_the_set_once_and_marks_the_rest),
        TEST(augmentation_moves_and_mirrors_as_its_counter_says),
        TEST(synthetic_samples_depend_on_seed_split_and_number_only),
        TEST(prefetched_batches_come_in_order_and_a_start_moves_them),
        TEST(an_evaluation_takes_the_batches_of_its_lanes_and_ends),
        TEST(the_lanes_of_a_step_hold_what_one_worker_would_have_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
