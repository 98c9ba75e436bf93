/* Masked tokens: windows, which tokens are guessed, what stands in their place, and kinds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io.h"
#include "kernels/backend.h"
#include "tests/test.h"
#include "trainer/data/batch.h"

#define CONTEXT 5
#define SAMPLES 40
#define MASK    300 /* the token before it separates */
#define VOCAB   1000
#define ROWS    4

static char path[64];

static const uint16_t sample_tokens[CONTEXT] = { 301, MASK - 1, 500, 999, 0 };
static const int32_t sample_kinds[CONTEXT] = { 0, 0, 1, 1, 0 };

static struct dataset *open_file(enum jobspec_format format, int64_t mask, const void *data,
                                 size_t size)
{
    struct jobspec_dataset source = { .format = format };
    const struct dataset_options options = {
        .io = io_system(), .source = &source, .classes = VOCAB, .context = CONTEXT, .mask = mask
    };
    struct dataset *d = NULL;
    struct reason reason = { "" };
    (void)snprintf(source.path, sizeof(source.path), "%s", path);
    assert_int_equal(io_replace(io_system(), path, data, size), ST_OK);
    if (dataset_open(&options, &d, &reason) != ST_OK || dataset_load(d, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    return d;
}

static struct dataset *open_tokens(void)
{
    uint16_t tokens[SAMPLES * CONTEXT];
    for (size_t i = 0; i < SAMPLES; i++)
        memcpy(tokens + i * CONTEXT, sample_tokens, sizeof(sample_tokens));
    return open_file(JOBSPEC_FORMAT_TOKENS, MASK, tokens, sizeof(tokens));
}

struct filled {
    int32_t x[2 * ROWS * CONTEXT], labels[ROWS * CONTEXT];
    uint32_t draw[OP_DRAW_SAMPLES + ROWS];
};

static void fill(const struct dataset *d, uint32_t micro_batch, struct batch_place place,
                 bool evaluation, struct filled *to)
{
    const struct batch_source source = { .dataset = d,
                                         .seed = 5,
                                         .lanes = 2,
                                         .micro_batch = micro_batch,
                                         .accumulate = ROWS / micro_batch,
                                         .mask_share = 0.5f };
    int32_t room[CONTEXT];
    struct reason reason;
    const struct batch out = { to->x, to->labels, to->draw };
    const struct batch_sizes sizes = batch_sizes(&source);
    assert_int_equal(sizes.x, 2 * sizes.labels);
    assert_int_equal(sizes.kinds, sizes.labels);
    assert_int_equal(sizes.room, sizeof(room));
    assert_int_equal(
        (evaluation ? batch_fill_eval : batch_fill)(&source, &place, room, &out, &reason), ST_OK);
}

static void what_is_guessed_and_shown_is_drawn_in_the_shares_of_bert(void **state)
{
    (void)state;
    struct dataset *d = open_tokens();
    int guessed = 0, seen = 0, masked = 0, same = 0;
    assert_int_equal(d->samples, SAMPLES);
    for (uint64_t step = 0; step < 1000; step++) {
        struct filled f;
        fill(d, ROWS, (struct batch_place){ .step = step }, false, &f);
        assert_memory_equal(f.x + ROWS * CONTEXT, sample_kinds, sizeof(sample_kinds));
        for (size_t i = 0; i < ROWS * CONTEXT; i++) {
            const int32_t token = sample_tokens[i % CONTEXT];
            seen += token > MASK;
            if (f.labels[i] < 0) {
                assert_int_equal(f.labels[i], -1);
                assert_int_equal(f.x[i], token);
                continue;
            }
            assert_true(token > MASK && f.labels[i] == token);
            assert_true(f.x[i] >= MASK && f.x[i] < VOCAB);
            guessed++;
            masked += f.x[i] == MASK;
            same += f.x[i] == token;
        }
    }
    assert_in_range(guessed, seen * 48 / 100, seen * 52 / 100);
    assert_in_range(masked, guessed * 78 / 100, guessed * 82 / 100);
    assert_in_range(same, guessed * 9 / 100, guessed * 11 / 100);
    dataset_close(d);
}

static void a_sample_is_masked_alike_wherever_it_is_computed(void **state)
{
    (void)state;
    struct dataset *d = open_tokens();
    struct filled whole, part, other;
    fill(d, ROWS, (struct batch_place){ .step = 3, .lane = 1 }, false, &whole);
    for (uint32_t micro = 0; micro < ROWS; micro++) {
        fill(d, 1, (struct batch_place){ .step = 3, .lane = 1, .micro = micro }, false, &part);
        assert_memory_equal(part.x, whole.x + micro * CONTEXT, CONTEXT * sizeof(int32_t));
        assert_memory_equal(part.labels, whole.labels + micro * CONTEXT, CONTEXT * sizeof(int32_t));
        assert_memory_equal(part.x + CONTEXT, sample_kinds, sizeof(sample_kinds));
    }
    fill(d, ROWS, (struct batch_place){ .step = 3 + SAMPLES / ROWS / 2, .lane = 1 }, false, &other);
    assert_memory_not_equal(other.labels, whole.labels, sizeof(whole.labels));
    dataset_close(d);
}

static void an_evaluation_masks_each_sample_always_alike_and_pads_the_end(void **state)
{
    (void)state;
    struct dataset *d = open_tokens();
    struct filled first, again;
    d->samples = ROWS - 1;
    fill(d, ROWS, (struct batch_place){ 0 }, true, &first);
    fill(d, ROWS, (struct batch_place){ 0 }, true, &again);
    assert_memory_equal(first.x, again.x, sizeof(first.x));
    assert_memory_equal(first.labels, again.labels, sizeof(first.labels));
    for (size_t i = 0; i < CONTEXT; i++) {
        assert_int_equal(first.x[(ROWS - 1) * CONTEXT + i], 0);
        assert_int_equal(first.x[(2 * ROWS - 1) * CONTEXT + i], 0);
        assert_int_equal(first.labels[(ROWS - 1) * CONTEXT + i], -1);
    }
    fill(d, 1, (struct batch_place){ .step = 0, .micro = 2 }, true, &again);
    assert_memory_equal(again.x, first.x + 2 * CONTEXT, CONTEXT * sizeof(int32_t));
    dataset_close(d);
}

static void bytes_stand_behind_the_mask(void **state)
{
    (void)state;
    struct dataset *d = open_file(JOBSPEC_FORMAT_TEXT, 3, "abcde\377ghij", 11);
    int32_t window[CONTEXT];
    struct reason reason;
    assert_int_equal(d->samples, 2);
    assert_int_equal(dataset_window_tokens(d), CONTEXT);
    assert_int_equal(dataset_window(d, 1, window, &reason), ST_OK);
    assert_int_equal(window[0], 4 + 255);
    assert_int_equal(window[1], 4 + 'g');
    dataset_close(d);
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/cairn-masked-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_guessed_and_shown_is_drawn_in_the_shares_of_bert),
        cmocka_unit_test(a_sample_is_masked_alike_wherever_it_is_computed),
        cmocka_unit_test(an_evaluation_masks_each_sample_always_alike_and_pads_the_end),
        cmocka_unit_test(bytes_stand_behind_the_mask),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
