#include "trainer/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/rng.h"
#include "trainer/data/data_error.h"
#include "trainer/data/stream.h"

/*
 * IDX, big-endian:
 *   0  u16  zero
 *   2  u8   type: 8 = unsigned byte
 *   3  u8   dimensions: 1 labels, 3 images [N, H, W] (4: [N, C, H, W])
 *   4  u32  per dimension
 *   then the elements
 */
#define IDX_UBYTE    8
#define IDX_DIMS_MAX 4

#define CHANNELS_USUAL 4          /* at most: grey, RGB, with a mask */
#define SIDE_MAX       8192       /* pixels of one side: far beyond what models here take */
#define SAMPLES_MAX    (1u << 31) /* sample numbers are 32-bit words of RNG counters */
#define BYTES_MAX      (64ULL * 1024 * 1024 * 1024)

struct idx {
    int ndim;
    uint32_t dims[IDX_DIMS_MAX];
    uint64_t elements;
    uint8_t *data; /* owned */
    struct data_identity identity;
};

static enum status unreadable(const char *path, enum status st, struct reason *reason)
{
    if (st == ST_INCOMPLETE)
        return data_refuse(path, "the file ends early; fetch it again", reason);
    if (st == ST_CORRUPT)
        return data_refuse(path, "the gzip data are damaged; fetch it again", reason);
    return data_unreadable(path, st, reason);
}

static uint32_t big_endian_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static enum status idx_header(struct byte_stream *stream, const char *path, bool labels,
                              struct idx *out, struct reason *reason)
{
    uint8_t bytes[4 * (1 + IDX_DIMS_MAX)];
    enum status st = byte_stream_read(stream, bytes, 4);
    if (st != ST_OK)
        return unreadable(path, st, reason);
    if (memcmp(bytes, "vers", 4) == 0) {
        return data_refuse(path,
                           "is text, as git-lfs leaves in place of a file; fetch the file with "
                           "'git lfs pull'",
                           reason);
    }
    if (bytes[0] != 0 || bytes[1] != 0 || bytes[2] != IDX_UBYTE)
        return data_refuse(path, "not an IDX file of unsigned bytes; is the format right?", reason);
    struct idx idx = { .ndim = bytes[3], .elements = 1 };
    if (labels && idx.ndim != 1) {
        return data_refuse(path,
                           "holds no labels (one dimension expected); are images and "
                           "labels swapped?",
                           reason);
    }
    if (!labels && idx.ndim != 3 && idx.ndim != 4) {
        return data_refuse(path,
                           "holds no images (three or four dimensions expected); are "
                           "images and labels swapped?",
                           reason);
    }
    st = byte_stream_read(stream, bytes, 4 * (size_t)idx.ndim);
    if (st != ST_OK)
        return unreadable(path, st, reason);
    for (int d = 0; d < idx.ndim; d++) {
        uint32_t dim = big_endian_u32(bytes + (size_t)d * 4);
        if (dim == 0 || dim > (d == 0 ? SAMPLES_MAX : SIDE_MAX))
            return data_refuse(path, "its header has a size out of range; fetch it again", reason);
        idx.dims[d] = dim;
        idx.elements *= dim;
        if (idx.elements > BYTES_MAX)
            return data_refuse(path, "its header claims more than 64 GiB; fetch it again", reason);
    }
    *out = idx;
    return ST_OK;
}

/* The elements, and the end of the file after them. *out is the caller's. */
static enum status idx_body(struct byte_stream *stream, const char *path, uint64_t elements,
                            uint8_t **out, struct reason *reason)
{
    CHECK(elements > 0);
    auto_free uint8_t *data = malloc(elements);
    if (data == NULL)
        return unreadable(path, ST_NO_MEMORY, reason);
    enum status st = byte_stream_read(stream, data, elements);
    bool ended = false;
    if (st == ST_OK)
        st = byte_stream_at_end(stream, &ended);
    if (st != ST_OK)
        return unreadable(path, st, reason);
    if (!ended)
        return data_refuse(path, "holds more bytes than its header says; fetch it again", reason);
    *out = TAKE_PTR(data);
    return ST_OK;
}

/* Opens the file and reads its header; the elements follow in the stream. */
static enum status idx_open(const struct dataset_options *options, const char *path, bool labels,
                            struct byte_stream **out_stream, struct idx *out, struct reason *reason)
{
    struct byte_stream *stream = NULL;
    struct byte_stream_options so = { .io = options->io,
                                      .path = path,
                                      .progress = options->progress,
                                      .progress_arg = options->progress_arg };
    struct io_stat info;
    enum status st = options->io->stat(options->io->self, path, &info);
    if (st == ST_OK && info.is_dir)
        return data_refuse(path, "is a folder; name a file in it", reason);
    if (st == ST_OK)
        st = byte_stream_open(&so, &stream);
    if (st != ST_OK)
        return unreadable(path, st, reason);
    st = idx_header(stream, path, labels, out, reason);
    if (st != ST_OK) {
        byte_stream_close(stream);
        return st;
    }
    *out_stream = stream;
    return ST_OK;
}

static enum status idx_labels(const struct dataset_options *options, const char *path,
                              struct idx *out, struct reason *reason)
{
    struct byte_stream *stream = NULL;
    struct idx idx = { 0 };
    enum status st = idx_open(options, path, true, &stream, &idx, reason);
    if (st != ST_OK)
        return st;
    st = idx_body(stream, path, idx.elements, &idx.data, reason);
    idx.identity = byte_stream_identity(stream);
    byte_stream_close(stream);
    if (st == ST_OK)
        *out = idx;
    return st;
}

static enum status check_labels(const char *path, const struct idx *labels, int64_t classes,
                                struct reason *reason)
{
    CHECK(labels->data != NULL);
    for (uint64_t i = 0; i < labels->elements; i++) {
        if (labels->data[i] < classes)
            continue;
        reason_set(reason,
                   "%s: label %d of sample %llu is not below model.classes (%lld); raise "
                   "model.classes or correct the labels",
                   path, labels->data[i], (unsigned long long)i, (long long)classes);
        return ST_CONFIG;
    }
    return ST_OK;
}

/* The header doesn't name its axes. Rows of at most four pixels in many channels are no images, but
 * images with their channels last are told so. */
static enum status check_axes(const char *path, const struct idx *images, struct reason *reason)
{
    const uint32_t *d = images->dims;
    if (images->ndim != 4 || d[1] <= CHANNELS_USUAL || d[2] <= CHANNELS_USUAL ||
        d[3] > CHANNELS_USUAL)
        return ST_OK;
    reason_set(reason,
               "%s: its axes %ux%ux%ux%u read as %u channels of %ux%u pixels: the order is "
               "[N, C, H, W], not [N, H, W, C]; write it as %ux%ux%ux%u",
               path, d[0], d[1], d[2], d[3], d[1], d[2], d[3], d[0], d[3], d[1], d[2]);
    return ST_CONFIG;
}

static enum status open_idx(const struct dataset_options *options, struct dataset *dataset,
                            struct reason *reason)
{
    const struct jobspec_dataset *source = options->source;
    struct idx images = { 0 };
    struct idx labels = { 0 };
    /* The small file first: its mistakes show at once. */
    enum status st = idx_labels(options, source->labels, &labels, reason);
    if (st != ST_OK)
        return st;
    dataset->labels = labels.data;
    dataset->labels_file.identity = labels.identity;
    st = check_labels(source->labels, &labels, options->classes, reason);
    if (st != ST_OK)
        return st;
    st = idx_open(options, source->images, false, &dataset->stream, &images, reason);
    if (st != ST_OK)
        return st;
    st = check_axes(source->images, &images, reason);
    if (st != ST_OK)
        return st;
    if (images.dims[0] != labels.dims[0]) {
        reason_set(reason, "%s: holds %u images, but %s holds %u labels; they must belong together",
                   source->images, images.dims[0], source->labels, labels.dims[0]);
        return ST_CONFIG;
    }
    (void)snprintf(dataset->images_file.path, LIMIT_PATH, "%s", source->images);
    (void)snprintf(dataset->labels_file.path, LIMIT_PATH, "%s", source->labels);
    dataset->samples = images.dims[0];
    dataset->shape.channels = images.ndim == 4 ? images.dims[1] : 1;
    dataset->shape.height = images.dims[images.ndim - 2];
    dataset->shape.width = images.dims[images.ndim - 1];
    return ST_OK;
}

static enum status open_tokens(const struct dataset_options *options, struct dataset *dataset,
                               struct reason *reason)
{
    const char *path = options->source->path;
    struct tokens_options to = { .io = options->io,
                                 .path = path,
                                 .text = options->source->format == JOBSPEC_FORMAT_TEXT,
                                 .watched = options->watched,
                                 .sums = options->sums,
                                 .progress = options->progress,
                                 .progress_arg = options->progress_arg };
    enum status st = tokens_open(&to, &dataset->tokens, reason);
    if (st != ST_OK)
        return st;
    uint64_t count = tokens_count(dataset->tokens);
    uint64_t context = (uint64_t)options->context;
    const uint64_t more = options->mask > 0 ? 0 : 1;
    uint64_t samples = count == 0 ? 0 : (count - more) / context;
    dataset->first = options->mask > 0 && to.text ? dataset->mask + 1 : 0;
    if (samples == 0 || samples > SAMPLES_MAX) {
        reason_set(reason,
                   "%s: its %llu tokens make %llu windows of model.context%s (%llu), but a "
                   "data set has from 1 to %u; change model.context or take other data",
                   path, (unsigned long long)count, (unsigned long long)samples,
                   more > 0 ? " + 1" : "", (unsigned long long)context + more, SAMPLES_MAX);
        return ST_CONFIG;
    }
    dataset->samples = samples;
    return ST_OK;
}

static void open_synthetic(const struct dataset_options *options, struct dataset *dataset)
{
    CHECK(options->source->samples > 0 && options->source->samples < SAMPLES_MAX);
    dataset->samples = (uint64_t)options->source->samples;
    if (options->context == 0)
        dataset->shape = options->shape;
    dataset->key = rng_key(options->seed, RNG_SYNTHETIC);
}

enum status dataset_open(const struct dataset_options *options, struct dataset **out,
                         struct reason *reason)
{
    struct dataset *dataset = calloc(1, sizeof(*dataset));
    if (dataset == NULL)
        return unreadable("data", ST_NO_MEMORY, reason);
    const struct jobspec_dataset *source = options->source;
    const enum jobspec_format format = source->format;
    bool text = options->context > 0;
    dataset->classes = options->classes;
    dataset->context = options->context;
    dataset->mask = (int32_t)options->mask;
    dataset->split = options->split;
    enum status st = ST_OK;
    if (format == JOBSPEC_FORMAT_SYNTHETIC) {
        open_synthetic(options, dataset);
    } else if (text && (format == JOBSPEC_FORMAT_TEXT || format == JOBSPEC_FORMAT_TOKENS)) {
        st = open_tokens(options, dataset, reason);
    } else if (!text && format == JOBSPEC_FORMAT_IDX) {
        st = open_idx(options, dataset, reason);
    } else {
        reason_set(reason, "data.%s.format: %s is not for this model; use %s",
                   options->split == DATASET_TRAIN ? "train" : "eval", jobspec_format_word(format),
                   text ? "text, tokens or synthetic" : "idx or synthetic");
        st = ST_CONFIG;
    }
    if (st != ST_OK) {
        dataset_close(dataset);
        return st;
    }
    *out = dataset;
    return ST_OK;
}

enum status dataset_load(struct dataset *dataset, struct reason *reason)
{
    if (dataset->tokens != NULL)
        return tokens_load(dataset->tokens, reason);
    if (dataset->stream == NULL)
        return ST_OK;
    CHECK(dataset->pixels == NULL);
    uint64_t elements = dataset->samples * dataset_image_elements(dataset);
    enum status st =
        idx_body(dataset->stream, dataset->images_file.path, elements, &dataset->pixels, reason);
    dataset->images_file.identity = byte_stream_identity(dataset->stream);
    byte_stream_close(dataset->stream);
    dataset->stream = NULL;
    return st;
}

void dataset_close(struct dataset *dataset)
{
    if (dataset == NULL)
        return;
    byte_stream_close(dataset->stream);
    tokens_close(dataset->tokens);
    free(dataset->pixels);
    free(dataset->labels);
    free(dataset);
}

enum status dataset_print_identity(const struct dataset *dataset, struct buf *out)
{
    const bool images = dataset->pixels != NULL;
    enum status st = buf_printf(out, "{\"samples\":%llu", (unsigned long long)dataset->samples);
    CHECK(dataset->stream == NULL);
    if (st == ST_OK && (images || dataset->tokens != NULL))
        st = buf_append_text(out, ",\"files\":[");
    if (st == ST_OK && images)
        st = identity_print(&dataset->images_file.identity, dataset->images_file.path, out);
    if (st == ST_OK && images)
        st = buf_append_text(out, ",");
    if (st == ST_OK && images)
        st = identity_print(&dataset->labels_file.identity, dataset->labels_file.path, out);
    if (st == ST_OK && dataset->tokens != NULL)
        st = tokens_print_identity(dataset->tokens, out);
    if (st != ST_OK)
        return st;
    return buf_append_text(out, images || dataset->tokens != NULL ? "]}" : "}");
}

size_t dataset_image_elements(const struct dataset *dataset)
{
    const struct dataset_shape *s = &dataset->shape;
    return (size_t)(s->channels * s->height * s->width);
}

/*
 * A synthetic image: the mean of its class's pattern, a fixed noise image, and of noise of its own;
 * so a model has something to learn. 16 pixels of each at a time:
 *   own      Philox(key, (i / 16, 1, sample, split))
 *   pattern  Philox(key, (i / 16, 2, label, 0))
 */
static void synthesize_image(const struct dataset *d, uint64_t sample, uint8_t *out)
{
    size_t n = dataset_image_elements(d);
    uint32_t label = (uint32_t)dataset_label(d, sample);
    for (size_t i = 0; i < n; i += 16) {
        uint32_t at = (uint32_t)(i / 16);
        struct rng_counter own = rng_words(d->key, at, 1, (uint32_t)sample, (uint32_t)d->split);
        struct rng_counter pattern = rng_words(d->key, at, 2, label, 0);
        for (size_t j = 0; j < 16 && i + j < n; j++) {
            uint32_t a = own.word[j / 4] >> (8 * (j % 4)) & 255;
            uint32_t b = pattern.word[j / 4] >> (8 * (j % 4)) & 255;
            out[i + j] = (uint8_t)((a + b) / 2);
        }
    }
}

const uint8_t *dataset_image(const struct dataset *dataset, uint64_t sample, uint8_t *room)
{
    CHECK(sample < dataset->samples);
    CHECK(dataset->stream == NULL);
    if (dataset->pixels != NULL)
        return dataset->pixels + sample * dataset_image_elements(dataset);
    synthesize_image(dataset, sample, room);
    return room;
}

int32_t dataset_label(const struct dataset *dataset, uint64_t sample)
{
    if (dataset->labels != NULL)
        return dataset->labels[sample];
    struct rng_counter w =
        rng_words(dataset->key, 0, 0, (uint32_t)sample, (uint32_t)dataset->split);
    return (int32_t)rng_below(w.word[0], (uint32_t)dataset->classes);
}

/*
 * A synthetic text: every token has a follower, which comes after it three times of four; else any
 * token comes. A model can learn the followers.
 *   own       Philox(key, (position, 3, sample, split))
 *   follower  Philox(key, (token, 4, 0, 0))
 */
static void synthesize_text(const struct dataset *d, uint64_t sample, int32_t *out)
{
    uint32_t vocab = (uint32_t)d->classes;
    uint32_t token = 0;
    for (uint32_t i = 0; i < dataset_window_tokens(d); i++) {
        struct rng_counter own = rng_words(d->key, i, 3, (uint32_t)sample, (uint32_t)d->split);
        struct rng_counter follower = rng_words(d->key, token, 4, 0, 0);
        bool any = i == 0 || rng_below(own.word[0], 4) == 0;
        token = rng_below(any ? own.word[1] : follower.word[0], vocab);
        out[i] = (int32_t)token;
    }
}

size_t dataset_window_tokens(const struct dataset *dataset)
{
    return (size_t)dataset->context + (dataset->mask > 0 ? 0 : 1);
}

enum status dataset_window(const struct dataset *dataset, uint64_t sample, int32_t *out,
                           struct reason *reason)
{
    CHECK(dataset->context > 0);
    CHECK(sample < dataset->samples);
    if (dataset->tokens == NULL) {
        synthesize_text(dataset, sample, out);
        return ST_OK;
    }
    uint64_t context = (uint64_t)dataset->context;
    struct tokens_range range = { .at = sample * context,
                                  .count = dataset_window_tokens(dataset),
                                  .vocab = dataset->classes };
    enum status st = tokens_read(dataset->tokens, &range, out, reason);
    for (uint64_t i = 0; st == ST_OK && i < range.count; i++)
        out[i] += dataset->first;
    return st;
}
