#include "tests/crash/ckpt_sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/rng.h"

#define LARGE 1500000 /* bytes of a blob that has two chunks */

/* About normally distributed, as weights are. */
static float value_at(uint64_t key, uint64_t i)
{
    struct rng_counter words = rng_words(key, (uint32_t)i, 0, 0, 0);
    float sum = 0;
    for (int k = 0; k < 4; k++)
        sum += rng_uniform(words.word[k]) - 0.5f;
    return sum * 0.05f;
}

static void fill(struct ckpt_buffer *buffer, uint64_t key)
{
    void *data = calloc((size_t)buffer->count + 1, 8);
    CHECK(data != NULL);
    for (uint64_t i = 0; i < buffer->count; i++) {
        float value = value_at(key, i);
        uint32_t bits;
        if (strcmp(buffer->name, "adam.v") == 0)
            value = value * value;
        memcpy(&bits, &value, sizeof(bits));
        if (buffer->dtype == CKPT_F32) {
            ((float *)data)[i] = value;
        } else if (buffer->dtype == CKPT_BF16) {
            ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        } else if (buffer->dtype == CKPT_I64) {
            ((int64_t *)data)[i] = (int64_t)(key % 1000 + i);
        } else {
            ((uint8_t *)data)[i] = (uint8_t)(bits >> 3);
        }
    }
    buffer->data = data;
}

static struct ckpt_buffer describe_buffer(const char *name, enum ckpt_dtype dtype, uint64_t count)
{
    struct ckpt_buffer buffer = { .dtype = dtype, .count = count };
    (void)snprintf(buffer.name, sizeof(buffer.name), "%s", name);
    return buffer;
}

static struct ckpt_tensor describe_tensor(const char *name, uint32_t buffer, uint64_t offset,
                                          uint64_t rows, uint64_t columns)
{
    struct ckpt_tensor tensor = {
        .buffer = buffer,
        .offset = offset,
        .ndim = columns == 0 ? 1 : 2,
        .dims = { rows, columns },
    };
    (void)snprintf(tensor.name, sizeof(tensor.name), "%s", name);
    return tensor;
}

static void describe_blobs(struct sample *sample)
{
    static const char file[] = "name: sample\ntrain: {seed: 17}\n";
    sample->large = malloc(LARGE);
    CHECK(sample->large != NULL);
    for (size_t i = 0; i < LARGE; i++)
        sample->large[i] = (char)('a' + i % 17 + i % 3);
    sample->blobs[0] = (struct ckpt_blob){ "job.yaml", file, sizeof(file) - 1 };
    sample->blobs[1] = (struct ckpt_blob){ "empty", NULL, 0 };
    sample->blobs[2] = (struct ckpt_blob){ "metrics", sample->large, LARGE };
}

void sample_init(struct sample *sample, uint64_t elements, uint64_t step, uint64_t generation)
{
    *sample = (struct sample){ .skip = { 3, 11 } };
    uint64_t n = elements;
    sample->buffers[0] = describe_buffer("parameters", CKPT_F32, n);
    sample->buffers[1] = describe_buffer("momentum", CKPT_F32, n);
    sample->buffers[2] = describe_buffer("adam.v", CKPT_F32, n);
    sample->buffers[3] = describe_buffer("half", CKPT_BF16, n + 3);
    sample->buffers[4] = describe_buffer("counts", CKPT_I64, n / 2 + 1);
    sample->buffers[5] = describe_buffer("mask", CKPT_U8, n + 5);
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++)
        fill(&sample->buffers[i], step * 16 + i + 1);
    sample->tensors[0] = describe_tensor("fc1.weight", 0, 0, n / 4, 2);
    sample->tensors[1] = describe_tensor("fc1.bias", 0, n / 4 * 2, n - n / 4 * 2, 0);
    sample->tensors[2] = describe_tensor("momentum/all", 1, 0, n, 0);
    sample->tensors[3] = describe_tensor("adam.v/all", 2, 0, n, 0);
    sample->tensors[4] = describe_tensor("half", 3, 0, n + 3, 0);
    sample->tensors[5] = describe_tensor("counts", 4, 0, n / 2 + 1, 0);
    sample->tensors[6] = describe_tensor("mask", 5, 0, n + 5, 0);
    describe_blobs(sample);
    sample->state = (struct ckpt_state){
        .job = SAMPLE_JOB,
        .generation = generation,
        .buffers = sample->buffers,
        .buffer_count = SAMPLE_BUFFERS,
        .tensors = sample->tensors,
        .tensor_count = SAMPLE_TENSORS,
        .blobs = sample->blobs,
        .blob_count = n < 5000 ? 2 : 3, /* small states stay small */
        .scalars = { .seed = 17,
                     .step = step,
                     .epoch = 2,
                     .epoch_step = step / 3,
                     .loss_scale = 1024.0,
                     .loss_scale_good_steps = 5,
                     .skip = sample->skip,
                     .skip_count = 2 },
    };
}

void sample_init_near(struct sample *sample, const struct sample *before, uint64_t step,
                      uint64_t generation)
{
    uint64_t elements = before->buffers[0].count;
    sample_init(sample, elements, step, generation);
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++) {
        uint8_t *data = (uint8_t *)(uintptr_t)sample->buffers[i].data;
        size_t width = (size_t)ckpt_dtype_size(sample->buffers[i].dtype);
        size_t size = (size_t)sample->buffers[i].count * width;
        memcpy(data, before->buffers[i].data, size);
        for (size_t at = 0; at < size; at += 16 * width)
            data[at] ^= (uint8_t)(1 + step % 7);
    }
}

void sample_release(struct sample *sample)
{
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++)
        free((void *)(uintptr_t)sample->buffers[i].data);
    free(sample->large);
}

enum status sample_shard_write(const struct io *io, const char *dir, const struct ckpt_state *state,
                               uint32_t rank, uint32_t size, const struct sample_options *options,
                               struct ckpt_report *out)
{
    static const struct sample_options none = { .level = CKPT_DEFAULT };
    const struct sample_options *o = options == NULL ? &none : options;
    struct ckpt_share share = { .count = 0 };
    struct ckpt_state dealt = *state;
    if (o->deal != NULL) {
        o->deal(state, rank, size, &share);
        dealt.share = &share;
    }
    if (o->level == CKPT_DEFAULT && o->threads == 0)
        return ckpt_shard_write(io, dir, &dealt, rank, size, &o->write, out);
    struct ckpt_writer *writer = NULL;
    enum status st = ckpt_writer_new(o->level, o->threads, &writer);
    if (st == ST_OK)
        st = ckpt_writer_write(writer, io, dir, &dealt, rank, size, &o->write, out);
    ckpt_writer_free(writer);
    return st;
}

enum status sample_write(const struct io *io, const struct sample *sample, uint32_t ranks,
                         const struct sample_options *options, const char *dir, struct buf *out)
{
    struct ckpt_report reports[16] = { 0 };
    CHECK(ranks <= 16);
    enum status st = ckpt_folder_create(io, dir);
    for (uint32_t i = 0; i < ranks && st == ST_OK; i++)
        st = sample_shard_write(io, dir, &sample->state, i, ranks, options, &reports[i]);
    if (st == ST_OK)
        st = ckpt_commit_check(io, dir, reports, ranks);
    struct ckpt_hash digest;
    if (st == ST_OK) {
        st = ckpt_manifest_make(reports, ranks, sample->state.job, SAMPLE_TIME, out, &digest);
    }
    for (uint32_t i = 0; i < ranks; i++)
        ckpt_report_release(&reports[i]);
    return st;
}

enum status sample_save(const struct io *io, const struct sample *sample, uint32_t ranks,
                        const struct sample_options *options, char *out_dir)
{
    const struct ckpt_state *state = &sample->state;
    const char *store = options == NULL || options->store == NULL ? SAMPLE_STORE : options->store;
    char dir[LIMIT_PATH];
    enum status st = ckpt_folder_path(store, state->job, state->scalars.step, state->generation, 0,
                                      dir, sizeof(dir));
    auto_buf struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    if (st == ST_OK)
        st = sample_write(io, sample, ranks, options, dir, &manifest);
    if (st == ST_OK)
        st = ckpt_manifest_publish(io, dir, manifest.data, manifest.size);
    if (st == ST_OK && out_dir != NULL)
        (void)snprintf(out_dir, LIMIT_PATH, "%s", dir);
    return st;
}

static enum status compare_buffer(struct ckpt_reader *reader, const struct ckpt_buffer *buffer,
                                  bool *equal)
{
    size_t size = (size_t)(buffer->count * ckpt_dtype_size(buffer->dtype));
    auto_free void *data = calloc(size + 1, 1);
    CHECK(data != NULL);
    enum status st = ckpt_read_buffer(reader, buffer->name, 0, buffer->count, data, NULL);
    if (st == ST_OK && memcmp(data, buffer->data, size) != 0)
        *equal = false;
    return st;
}

static enum status compare_blob(struct ckpt_reader *reader, const struct ckpt_blob *blob,
                                bool *equal)
{
    auto_free char *data = NULL;
    size_t size = 0;
    enum status st = ckpt_read_blob(reader, blob->name, &data, &size);
    if (st == ST_OK && (size != blob->size || (size > 0 && memcmp(data, blob->data, size) != 0)))
        *equal = false;
    return st;
}

static bool same_scalars(const struct ckpt_scalars *a, const struct ckpt_scalars *b)
{
    return a->seed == b->seed && a->step == b->step && a->epoch == b->epoch &&
           a->epoch_step == b->epoch_step && a->loss_scale == b->loss_scale &&
           a->loss_scale_good_steps == b->loss_scale_good_steps && a->skip_count == b->skip_count &&
           memcmp(a->skip, b->skip, (size_t)a->skip_count * sizeof(*a->skip)) == 0;
}

static bool same_tables(const struct ckpt_reader *reader, const struct ckpt_state *state)
{
    const struct ckpt_buffer *buffers = NULL;
    const struct ckpt_tensor *tensors = NULL;
    if (ckpt_reader_buffers(reader, &buffers) != state->buffer_count ||
        ckpt_reader_tensors(reader, &tensors) != state->tensor_count)
        return false;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        if (strcmp(buffers[i].name, state->buffers[i].name) != 0 ||
            buffers[i].dtype != state->buffers[i].dtype ||
            buffers[i].count != state->buffers[i].count)
            return false;
    }
    return memcmp(tensors, state->tensors, state->tensor_count * sizeof(*tensors)) == 0;
}

enum status sample_compare(const struct io *io, const char *dir, const struct sample *sample,
                           bool *out_equal)
{
    struct ckpt_reader *reader = NULL;
    const struct ckpt_state *state = &sample->state;
    enum status st = ckpt_open(io, dir, NULL, NULL, &reader);
    if (st != ST_OK)
        return st;
    bool equal =
        same_tables(reader, state) && same_scalars(ckpt_reader_scalars(reader), &state->scalars);
    for (uint32_t i = 0; i < state->buffer_count && st == ST_OK; i++)
        st = compare_buffer(reader, &state->buffers[i], &equal);
    for (uint32_t i = 0; i < state->blob_count && st == ST_OK; i++)
        st = compare_blob(reader, &state->blobs[i], &equal);
    ckpt_close(reader);
    if (st == ST_OK)
        *out_equal = equal;
    return st;
}

uint64_t sample_setting(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}
