/*
 * The samples of one split: images of bytes with a label each, or windows of a stream of tokens.
 *
 * Formats
 *   idx        files of the MNIST family, gzip or plain: images u8 [N, H, W] or [N, C, H, W],
 *              labels u8 [N]
 *   text       any bytes, a token each (tokens.h)
 *   tokens     files of uint16 (tokens.h)
 *   synthetic  computed from (seed, split, sample); no files
 *
 * A pixel p becomes p / 255 in float32, what PyTorch's ToTensor gives. Sample i of a stream of
 * tokens is the window of context + 1 tokens from i·context on: the first context of them are what
 * the model reads, the last context the labels. Tokens after the last whole window are left out.
 * For a model of masked tokens it is a window of context tokens, of which batch.h makes both; bytes
 * are then the tokens behind the mask's: byte b is token mask + 1 + b.
 *
 * Use: dataset_open (headers and labels: shape and number of samples are known) → dataset_load (the
 *      images, perhaps in a thread of its own) → reading
 *
 * Memory: the caller owns *out.
 * Thread: open and load by one at a time; reading by any number afterwards.
 * Errors: reason: one line "path: cause; way out"
 *         ST_CONFIG  the user must act: a missing file, a file of another kind, counts that differ,
 *                    a label or token out of range, too few tokens, images with channels last
 *         ST_IO, ST_NO_MEMORY
 */
#pragma once

#include <stdint.h>

#include "common/buf.h"
#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/data/identity.h"
#include "trainer/data/tokens.h"

struct dataset_shape {
    int64_t channels, height, width;
};

enum dataset_split { DATASET_TRAIN, DATASET_EVAL };

struct dataset {
    struct dataset_shape shape; /* of images */
    int64_t context;            /* tokens that the model reads at once; 0: images */
    uint64_t samples;
    int64_t classes;       /* or the vocabulary */
    int32_t mask;          /* a model of masked tokens: what stands for one; else 0 */
    int32_t first;         /* token that stands for the byte 0; 0 of tokens */
    struct tokens *tokens; /* NULL: images or synthetic */
    uint8_t *pixels;       /* [samples, C, H, W]; NULL: tokens or synthetic */
    uint8_t *labels;       /* [samples]; NULL: tokens or synthetic */
    uint64_t key;          /* synthetic */
    enum dataset_split split;
    struct byte_stream *stream; /* images, between open and load */
    struct {
        char path[LIMIT_PATH];
        struct data_identity identity; /* once it was read */
    } images_file, labels_file;
};

struct dataset_options {
    const struct io *io;
    const struct jobspec_dataset *source;
    enum dataset_split split;
    int64_t classes;             /* labels or tokens are below it */
    int64_t context;             /* a text model's; 0: an image model */
    int64_t mask;                /* a model of masked tokens: their token, from 1; else 0 */
    uint64_t seed;               /* synthetic */
    struct dataset_shape shape;  /* synthetic images: what the model wants */
    bool watched;                /* their content must stay what it is: tokens.h */
    const char *sums;            /* folder of the node for hashes: sums.h; may be NULL */
    void (*progress)(void *arg); /* per MiB read or hashed; may be NULL */
    void *progress_arg;
};

MUST_CHECK enum status dataset_open(const struct dataset_options *options, struct dataset **out,
                                    struct reason *reason);
/* Reads the images; hashes files of tokens, which stay where they are, or finds their hashes. Once.
 * Errors: and ST_CHANGED  a file is being written */
MUST_CHECK enum status dataset_load(struct dataset *dataset, struct reason *reason);
void dataset_close(struct dataset *dataset);

/* After that: appends what the samples are known by, as a JSON object; of synthetic ones their
 * number. Equal text, equal samples. */
MUST_CHECK enum status dataset_print_identity(const struct dataset *dataset, struct buf *out);

/* Elements of one image; 0: text. */
size_t dataset_image_elements(const struct dataset *dataset);
/* The bytes of one image: in the dataset itself, or made in room (of one image's size). */
const uint8_t *dataset_image(const struct dataset *dataset, uint64_t sample, uint8_t *room);
int32_t dataset_label(const struct dataset *dataset, uint64_t sample);

/* Returns the tokens of one sample: context + 1, or masked ones context. */
size_t dataset_window_tokens(const struct dataset *dataset);
/* Reads the tokens of one sample.
 * Errors: ST_CONFIG   one is not below the vocabulary
 *         ST_CHANGED  a file is not what it was when it was hashed */
MUST_CHECK enum status dataset_window(const struct dataset *dataset, uint64_t sample, int32_t *out,
                                      struct reason *reason);
