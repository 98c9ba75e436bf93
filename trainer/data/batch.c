#include "trainer/data/batch.h"

#include <string.h>

#include "common/check.h"
#include "common/rng.h"

static uint64_t lane_size(const struct batch_source *source)
{
    return (uint64_t)source->micro_batch * source->accumulate;
}

static uint64_t global_batch(const struct batch_source *source)
{
    return lane_size(source) * source->lanes;
}

uint64_t batch_steps_per_epoch(const struct batch_source *source)
{
    return source->dataset->samples / global_batch(source);
}

uint64_t batch_eval_count(const struct batch_source *source)
{
    uint64_t size = lane_size(source);
    return (source->dataset->samples + size - 1) / size;
}

static void convert(const uint8_t *image, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)image[i] / 255.0f;
}

/* x(c, h, w) = image(c, h + dy, w + dx), zero outside, mirrored afterwards. */
static void convert_moved(const uint8_t *image, const struct dataset_shape *shape, int64_t dy,
                          int64_t dx, bool mirror, float *x)
{
    int64_t height = shape->height;
    int64_t width = shape->width;
    for (int64_t row = 0; row < shape->channels * height; row++) {
        int64_t h = row % height + dy;
        const uint8_t *from = image + (row / height * height + h) * width;
        for (int64_t w = 0; w < width; w++) {
            int64_t at = (mirror ? width - 1 - w : w) + dx;
            bool inside = h >= 0 && h < height && at >= 0 && at < width;
            x[row * width + w] = inside ? (float)from[at] / 255.0f : 0.0f;
        }
    }
}

static void fill_row(const struct batch_source *source, uint64_t sample, uint64_t step,
                     uint8_t *room, float *x)
{
    const struct dataset *dataset = source->dataset;
    const uint8_t *image = dataset_image(dataset, sample, room);
    if (!source->crop && !source->flip) {
        convert(image, dataset_image_elements(dataset), x);
        return;
    }
    uint64_t key = rng_key(source->seed, RNG_AUGMENT);
    struct rng_counter draw = rng_words(key, 0, 0, (uint32_t)sample, (uint32_t)step);
    int64_t dy = 0;
    int64_t dx = 0;
    if (source->crop) {
        dy = (int64_t)rng_below(draw.word[0], 2 * BATCH_CROP_PAD + 1) - BATCH_CROP_PAD;
        dx = (int64_t)rng_below(draw.word[1], 2 * BATCH_CROP_PAD + 1) - BATCH_CROP_PAD;
    }
    bool mirror = source->flip && rng_below(draw.word[2], 2) == 1;
    convert_moved(image, &dataset->shape, dy, dx, mirror, x);
}

void batch_fill(const struct batch_source *source, uint64_t step, uint32_t lane, uint32_t micro,
                uint8_t *room, float *x, int32_t *labels)
{
    uint64_t steps = batch_steps_per_epoch(source);
    CHECK(steps > 0);
    CHECK(lane < source->lanes);
    CHECK(micro < source->accumulate);
    uint64_t epoch = step / steps;
    uint64_t at = step % steps * global_batch(source) + lane * lane_size(source) +
                  (uint64_t)micro * source->micro_batch;
    size_t elements = dataset_image_elements(source->dataset);
    for (uint32_t j = 0; j < source->micro_batch; j++) {
        uint64_t sample = rng_permute(source->seed, epoch, source->dataset->samples, at + j);
        fill_row(source, sample, step, room, x + j * elements);
        labels[j] = dataset_label(source->dataset, sample);
    }
}

void batch_fill_eval(const struct batch_source *source, uint64_t batch, uint32_t micro,
                     uint8_t *room, float *x, int32_t *labels)
{
    const struct dataset *dataset = source->dataset;
    uint64_t at = batch * lane_size(source) + (uint64_t)micro * source->micro_batch;
    size_t elements = dataset_image_elements(dataset);
    for (uint32_t j = 0; j < source->micro_batch; j++) {
        if (at + j >= dataset->samples) {
            memset(x + j * elements, 0, elements * sizeof(float));
            labels[j] = -1;
            continue;
        }
        convert(dataset_image(dataset, at + j, room), elements, x + j * elements);
        labels[j] = dataset_label(dataset, at + j);
    }
}
