#include "trainer/data/batch.h"

#include <string.h>

#include "common/check.h"
#include "common/rng.h"
#include "kernels/backend.h"

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
        const int64_t from = (row / height * height + h) * width; /* of the row, in the image */
        for (int64_t w = 0; w < width; w++) {
            int64_t at = (mirror ? width - 1 - w : w) + dx;
            bool inside = h >= 0 && h < height && at >= 0 && at < width;
            x[row * width + w] = inside ? (float)image[from + at] / 255.0f : 0.0f;
        }
    }
}

static void fill_image(const struct batch_source *source, uint64_t sample, uint64_t step,
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

/* Row j of a micro-batch of masked tokens. */
static void fill_masked(const struct batch_source *source, const uint32_t place[2], uint32_t j,
                        const int32_t *window, const struct batch *out)
{
    const struct dataset *dataset = source->dataset;
    const size_t context = (size_t)dataset->context;
    const int32_t mask = dataset->mask, separator = mask - 1;
    const uint32_t others = (uint32_t)(dataset->classes - mask - 1);
    const uint64_t key = rng_key(source->seed, RNG_AUGMENT);
    int32_t *x = (int32_t *)out->x + j * context, *labels = out->labels + j * context;
    int32_t *kinds = (int32_t *)out->x + (source->micro_batch + j) * context;
    bool second = false;
    for (size_t t = 0; t < context; t++) {
        const int32_t token = window[t];
        const struct rng_counter draw = rng_words(key, (uint32_t)t, 1, place[0], place[1]);
        const bool guessed = token > mask && rng_uniform(draw.word[0]) < source->mask_share;
        const float kind = rng_uniform(draw.word[1]);
        const bool kept = !guessed || kind >= 0.9f;
        const int32_t other = mask + 1 + (int32_t)rng_below(draw.word[2], others);
        labels[t] = guessed ? token : -1;
        x[t] = kept ? token : kind < 0.8f ? mask : other;
        kinds[t] = token != 0 && second;
        second = second || (token == separator && separator > 0);
    }
}

/* Row j of a micro-batch: a window of tokens. */
static enum status fill_text(const struct batch_source *source, const uint32_t place[2], uint32_t j,
                             int32_t *room, const struct batch *out, struct reason *reason)
{
    size_t context = (size_t)source->dataset->context;
    enum status st = dataset_window(source->dataset, place[0], room, reason);
    if (st != ST_OK)
        return st;
    if (source->dataset->mask > 0) {
        fill_masked(source, place, j, room, out);
        return ST_OK;
    }
    memcpy((int32_t *)out->x + j * context, room, context * sizeof(int32_t));
    memcpy(out->labels + j * context, room + 1, context * sizeof(int32_t));
    return ST_OK;
}

struct batch_sizes batch_sizes(const struct batch_source *source)
{
    const struct dataset *dataset = source->dataset;
    size_t rows = source->micro_batch;
    size_t context = (size_t)dataset->context;
    size_t image = dataset_image_elements(dataset);
    size_t draw = (OP_DRAW_SAMPLES + rows) * sizeof(uint32_t);
    if (context == 0) {
        return (struct batch_sizes){ .x = rows * image * sizeof(float),
                                     .labels = rows * sizeof(int32_t),
                                     .draw = draw,
                                     .room = image };
    }
    const size_t plane = rows * context * sizeof(int32_t);
    const bool masked = dataset->mask > 0;
    return (struct batch_sizes){ .x = masked ? 2 * plane : plane,
                                 .labels = plane,
                                 .draw = draw,
                                 .room = dataset_window_tokens(dataset) * sizeof(int32_t),
                                 .kinds = masked ? plane : 0 };
}

static void begin_draw(const struct batch_source *source, uint64_t step, uint32_t *draw)
{
    uint64_t key = rng_key(source->seed, RNG_DROPOUT);
    draw[OP_DRAW_KEY] = (uint32_t)key;
    draw[OP_DRAW_KEY + 1] = (uint32_t)(key >> 32);
    draw[OP_DRAW_STEP] = (uint32_t)step;
}

enum status batch_fill(const struct batch_source *source, const struct batch_place *place,
                       void *room, const struct batch *out, struct reason *reason)
{
    const struct dataset *dataset = source->dataset;
    uint64_t steps = batch_steps_per_epoch(source);
    CHECK(steps > 0);
    CHECK(place->lane < source->lanes);
    CHECK(place->micro < source->accumulate);
    uint64_t epoch = place->step / steps;
    uint64_t at = place->step % steps * global_batch(source) + place->lane * lane_size(source) +
                  (uint64_t)place->micro * source->micro_batch;
    size_t elements = dataset_image_elements(dataset);
    begin_draw(source, place->step, out->draw);
    for (uint32_t j = 0; j < source->micro_batch; j++) {
        uint64_t sample = rng_permute(source->seed, epoch, dataset->samples, at + j);
        out->draw[OP_DRAW_SAMPLES + j] = (uint32_t)sample;
        if (dataset->context > 0) {
            const uint32_t of[2] = { (uint32_t)sample, (uint32_t)place->step };
            enum status st = fill_text(source, of, j, room, out, reason);
            if (st != ST_OK)
                return st;
            continue;
        }
        fill_image(source, sample, place->step, room, (float *)out->x + j * elements);
        out->labels[j] = dataset_label(dataset, sample);
    }
    return ST_OK;
}

/* Row j past the end of the set. */
static void fill_nothing(const struct batch_source *source, uint32_t j, const struct batch *out)
{
    size_t context = (size_t)source->dataset->context;
    size_t elements = dataset_image_elements(source->dataset);
    if (context == 0) {
        memset((float *)out->x + j * elements, 0, elements * sizeof(float));
        out->labels[j] = -1;
        return;
    }
    memset((int32_t *)out->x + j * context, 0, context * sizeof(int32_t));
    if (source->dataset->mask > 0) { /* its kinds */
        memset((int32_t *)out->x + (source->micro_batch + j) * context, 0,
               context * sizeof(int32_t));
    }
    for (size_t t = 0; t < context; t++)
        out->labels[j * context + t] = -1;
}

enum status batch_fill_eval(const struct batch_source *source, const struct batch_place *place,
                            void *room, const struct batch *out, struct reason *reason)
{
    const struct dataset *dataset = source->dataset;
    CHECK(place->micro < source->accumulate);
    uint64_t at = place->step * lane_size(source) + (uint64_t)place->micro * source->micro_batch;
    size_t elements = dataset_image_elements(dataset);
    for (uint32_t j = 0; j < source->micro_batch; j++) {
        if (at + j >= dataset->samples) {
            fill_nothing(source, j, out);
        } else if (dataset->context > 0) {
            const uint32_t of[2] = { (uint32_t)(at + j), BATCH_EVAL_STEP };
            enum status st = fill_text(source, of, j, room, out, reason);
            if (st != ST_OK)
                return st;
        } else {
            convert(dataset_image(dataset, at + j, room), elements, (float *)out->x + j * elements);
            out->labels[j] = dataset_label(dataset, at + j);
        }
    }
    return ST_OK;
}
