#include "trainer/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/rng.h"
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

#define SIDE_MAX    8192       /* pixels of one side: far beyond what models here take */
#define SAMPLES_MAX (1u << 31) /* sample numbers are 32-bit words of RNG counters */
#define BYTES_MAX   (64ULL * 1024 * 1024 * 1024)

struct idx {
    int ndim;
    uint32_t dims[IDX_DIMS_MAX];
    uint64_t elements;
    uint8_t *data; /* owned */
};

struct errors {
    char *message;
    size_t capacity;
    const char *path;
};

static enum status user_error(const struct errors *errors, const char *cause)
{
    (void)snprintf(errors->message, errors->capacity, "%s: %s", errors->path, cause);
    return ST_CONFIG;
}

/* What a failed read means to whoever wrote the job file. */
static enum status read_error(const struct errors *errors, enum status st)
{
    switch ((int)st) {
    case ST_NOT_FOUND:
        return user_error(errors, "no such file; correct the path in the job file");
    case ST_REFUSED:
        return user_error(errors, "permission denied; make it readable for the agent's user");
    case ST_INCOMPLETE:
        return user_error(errors, "the file ends early; fetch it again");
    case ST_CORRUPT:
        return user_error(errors, "the gzip data are damaged; fetch it again");
    default:
        (void)snprintf(errors->message, errors->capacity, "%s: cannot be read: %s", errors->path,
                       status_string(st));
        return st;
    }
}

static uint32_t big_endian_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static enum status idx_header(struct byte_stream *stream, const struct errors *errors, bool labels,
                              struct idx *out)
{
    uint8_t bytes[4 * (1 + IDX_DIMS_MAX)];
    enum status st = byte_stream_read(stream, bytes, 4);
    if (st != ST_OK)
        return read_error(errors, st);
    if (bytes[0] != 0 || bytes[1] != 0 || bytes[2] != IDX_UBYTE)
        return user_error(errors, "not an IDX file of unsigned bytes; is the format right?");
    struct idx idx = { .ndim = bytes[3], .elements = 1 };
    if (labels && idx.ndim != 1) {
        return user_error(errors, "holds no labels (one dimension expected); are images and "
                                  "labels swapped?");
    }
    if (!labels && idx.ndim != 3 && idx.ndim != 4) {
        return user_error(errors, "holds no images (three or four dimensions expected); are "
                                  "images and labels swapped?");
    }
    st = byte_stream_read(stream, bytes, 4 * (size_t)idx.ndim);
    if (st != ST_OK)
        return read_error(errors, st);
    for (int d = 0; d < idx.ndim; d++) {
        uint32_t dim = big_endian_u32(bytes + (size_t)d * 4);
        if (dim == 0 || dim > (d == 0 ? SAMPLES_MAX : SIDE_MAX))
            return user_error(errors, "its header has a size out of range; fetch it again");
        idx.dims[d] = dim;
        idx.elements *= dim;
        if (idx.elements > BYTES_MAX)
            return user_error(errors, "its header claims more than 64 GiB; fetch it again");
    }
    *out = idx;
    return ST_OK;
}

/* The elements, and the end of the file after them. *out is the caller's. */
static enum status idx_body(struct byte_stream *stream, const struct errors *errors,
                            uint64_t elements, uint8_t **out)
{
    CHECK(elements > 0);
    auto_free uint8_t *data = malloc(elements);
    if (data == NULL)
        return read_error(errors, ST_NO_MEMORY);
    enum status st = byte_stream_read(stream, data, elements);
    bool ended = false;
    if (st == ST_OK)
        st = byte_stream_at_end(stream, &ended);
    if (st != ST_OK)
        return read_error(errors, st);
    if (!ended)
        return user_error(errors, "holds more bytes than its header says; fetch it again");
    *out = TAKE_PTR(data);
    return ST_OK;
}

/* Opens the file and reads its header; the elements follow in the stream. */
static enum status idx_open(const struct dataset_options *options, const struct errors *errors,
                            bool labels, struct byte_stream **out_stream, struct idx *out)
{
    struct byte_stream *stream = NULL;
    struct byte_stream_options so = { .io = options->io,
                                      .path = errors->path,
                                      .progress = options->progress,
                                      .progress_arg = options->progress_arg };
    enum status st = byte_stream_open(&so, &stream);
    if (st != ST_OK)
        return read_error(errors, st);
    st = idx_header(stream, errors, labels, out);
    if (st != ST_OK) {
        byte_stream_close(stream);
        return st;
    }
    *out_stream = stream;
    return ST_OK;
}

static enum status idx_labels(const struct dataset_options *options, const struct errors *errors,
                              struct idx *out)
{
    struct byte_stream *stream = NULL;
    struct idx idx = { 0 };
    enum status st = idx_open(options, errors, true, &stream, &idx);
    if (st != ST_OK)
        return st;
    st = idx_body(stream, errors, idx.elements, &idx.data);
    byte_stream_close(stream);
    if (st == ST_OK)
        *out = idx;
    return st;
}

static enum status check_labels(const struct errors *errors, const struct idx *labels,
                                int64_t classes)
{
    for (uint64_t i = 0; i < labels->elements; i++) {
        if (labels->data[i] < classes)
            continue;
        (void)snprintf(errors->message, errors->capacity,
                       "%s: label %d of sample %llu is not below model.classes (%lld); raise "
                       "model.classes or correct the labels",
                       errors->path, labels->data[i], (unsigned long long)i, (long long)classes);
        return ST_CONFIG;
    }
    return ST_OK;
}

static enum status open_idx(const struct dataset_options *options, const struct errors *errors,
                            struct dataset *dataset)
{
    const struct job_dataset *source = options->source;
    struct errors at = *errors;
    struct idx images;
    struct idx labels;
    at.path = source->labels; /* the small one first: its mistakes show at once */
    enum status st = idx_labels(options, &at, &labels);
    if (st != ST_OK)
        return st;
    dataset->labels = labels.data;
    st = check_labels(&at, &labels, options->classes);
    if (st != ST_OK)
        return st;
    at.path = source->images;
    st = idx_open(options, &at, false, &dataset->stream, &images);
    if (st != ST_OK)
        return st;
    if (images.dims[0] != labels.dims[0]) {
        (void)snprintf(errors->message, errors->capacity,
                       "%s: holds %u images, but %s holds %u labels; they must belong together",
                       source->images, images.dims[0], source->labels, labels.dims[0]);
        return ST_CONFIG;
    }
    (void)snprintf(dataset->path, sizeof(dataset->path), "%s", source->images);
    dataset->samples = images.dims[0];
    dataset->shape.channels = images.ndim == 4 ? images.dims[1] : 1;
    dataset->shape.height = images.dims[images.ndim - 2];
    dataset->shape.width = images.dims[images.ndim - 1];
    return ST_OK;
}

static enum status open_tokens(const struct dataset_options *options, const struct errors *errors,
                               struct dataset *dataset)
{
    const char *path = options->source->path;
    struct tokens_options to = { .io = options->io,
                                 .path = path,
                                 .text = options->source->format == JOB_FORMAT_TEXT };
    enum status st = tokens_open(&to, &dataset->tokens, errors->message, errors->capacity);
    if (st != ST_OK)
        return st;
    uint64_t count = tokens_count(dataset->tokens);
    uint64_t context = (uint64_t)options->context;
    uint64_t samples = count == 0 ? 0 : (count - 1) / context;
    if (samples == 0 || samples > SAMPLES_MAX) {
        (void)snprintf(errors->message, errors->capacity,
                       "%s: its %llu tokens make %llu windows of model.context + 1 (%llu), but a "
                       "data set has from 1 to %u; change model.context or take other data",
                       path, (unsigned long long)count, (unsigned long long)samples,
                       (unsigned long long)context + 1, SAMPLES_MAX);
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

enum status dataset_open(const struct dataset_options *options, struct dataset **out, char *message,
                         size_t capacity)
{
    struct errors errors = { .message = message, .capacity = capacity, .path = "data" };
    struct dataset *dataset = calloc(1, sizeof(*dataset));
    if (dataset == NULL)
        return read_error(&errors, ST_NO_MEMORY);
    const struct job_dataset *source = options->source;
    const enum job_format format = source->format;
    bool text = options->context > 0;
    dataset->classes = options->classes;
    dataset->context = options->context;
    dataset->split = options->split;
    enum status st = ST_OK;
    if (format == JOB_FORMAT_SYNTHETIC) {
        open_synthetic(options, dataset);
    } else if (text && (format == JOB_FORMAT_TEXT || format == JOB_FORMAT_TOKENS)) {
        st = open_tokens(options, &errors, dataset);
    } else if (!text && format == JOB_FORMAT_IDX) {
        st = open_idx(options, &errors, dataset);
    } else {
        (void)snprintf(message, capacity, "data.%s.format: %s is not for this model; use %s",
                       options->split == DATASET_TRAIN ? "train" : "eval", job_format_word(format),
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

enum status dataset_load(struct dataset *dataset, char *message, size_t capacity)
{
    struct errors errors = { .capacity = capacity, .path = dataset->path };
    errors.message = message;
    if (dataset->stream == NULL)
        return ST_OK;
    CHECK(dataset->pixels == NULL);
    uint64_t elements = dataset->samples * dataset_image_elements(dataset);
    enum status st = idx_body(dataset->stream, &errors, elements, &dataset->pixels);
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

size_t dataset_image_elements(const struct dataset *dataset)
{
    const struct dataset_shape *s = &dataset->shape;
    return (size_t)(s->channels * s->height * s->width);
}

/*
 * A synthetic image is its class's pattern (a fixed noise image, half as strong) plus noise of its
 * own, so that a model has something to learn. Counters: (word, purpose, sample or class, split).
 */
static void synthesize(const struct dataset *d, uint64_t sample, uint8_t *out)
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
    synthesize(dataset, sample, room);
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
 * A synthetic text is a walk: after a token comes, three times of four, the one that follows it
 * everywhere, else any. A model learns the followers. Counters: (position, purpose, sample, split);
 * (token, purpose, 0, 0).
 */
static void walk(const struct dataset *d, uint64_t sample, int32_t *out)
{
    uint32_t vocab = (uint32_t)d->classes;
    uint32_t token = 0;
    for (uint32_t i = 0; i <= (uint32_t)d->context; i++) {
        struct rng_counter own = rng_words(d->key, i, 3, (uint32_t)sample, (uint32_t)d->split);
        struct rng_counter follower = rng_words(d->key, token, 4, 0, 0);
        bool any = i == 0 || rng_below(own.word[0], 4) == 0;
        token = rng_below(any ? own.word[1] : follower.word[0], vocab);
        out[i] = (int32_t)token;
    }
}

enum status dataset_window(const struct dataset *dataset, uint64_t sample, int32_t *out,
                           char *message, size_t capacity)
{
    CHECK(dataset->context > 0);
    CHECK(sample < dataset->samples);
    if (dataset->tokens == NULL) {
        walk(dataset, sample, out);
        return ST_OK;
    }
    uint64_t context = (uint64_t)dataset->context;
    struct tokens_range range = { .at = sample * context,
                                  .count = context + 1,
                                  .vocab = dataset->classes };
    return tokens_read(dataset->tokens, &range, out, message, capacity);
}
