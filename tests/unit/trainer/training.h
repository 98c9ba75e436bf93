/*
 * A model on the CPU backend with all that a step needs, for tests of the tape.
 *
 * Every call CHECKs what it gets: a failure here is the test's.
 */
#pragma once

#include "kernels/backend.h"
#include "trainer/models/models.h"
#include "trainer/plan/plan.h"
#include "trainer/tape/initial_values.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/lane_owners.h"
#include "trainer/update/optimizer.h"

struct training_options {
    const char *arch;
    int64_t channels, side; /* images [channels, side, side]; channels 0: 1 */
    int64_t hidden;
    int64_t layers, heads, embed, context, vocab; /* transformers */
    int64_t kv_heads, intermediate;               /* llama */
    bool tied;                                    /* llama */
    int64_t patch;                                /* vit */
    float dropout;
    float norm_shift; /* what shifts of norms start with */
    int64_t micro;    /* samples of a micro-batch */
    uint64_t seed;
    enum math math;
    enum amp amp;
    enum plan_recompute recompute;
    bool poison;
    const struct backend_table *table; /* NULL: the CPU's */
    bool graphs;
    size_t bucket; /* graphs: elements of a bucket */
    size_t unit;   /* graphs: > 0: buckets are lane_owned_buckets' of this unit */
    struct optimizer_options optimizer;
};

struct training {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    struct tape *tape;
    struct plan *plan, *eval_plan;
    struct optimizer *optimizer;
    struct lane_layout layout;
    float *lane, *sum; /* layout.count floats each, the backend's memory */
    float *images;     /* of one micro-batch; text models: NULL */
    int32_t *tokens;   /* image models: NULL */
    int32_t *kinds;    /* of BERT: 1 in the second half */
    const void *x;     /* the one of them that is there */
    void *device_x, *device_labels, *device_draw,
        *device_kinds; /* copies where the backend's memory isn't ours */
    int32_t *labels;   /* `rows` of them */
    uint32_t *draw;    /* see enum op_draw */
    int64_t rows;      /* labels of a micro-batch */
    size_t bucket_begin[LANE_BUCKETS_MAX];
    size_t bucket_count;
    struct training_options options;
};

#define TRAINING_CLASSES 10

void training_open(struct training *t, const struct training_options *options);
void training_close(struct training *t);

/* Samples first … first + micro - 1 of the synthetic set into x, labels and draw: a random label,
 * its class's pattern plus noise; or random tokens of which half follow from the one before; the
 * formulas of tests/golden/torch/make_reference.py. Random numbers are those of step 0. */
void training_fill(struct training *t, uint32_t first);

/* Forward and backward of what training_fill made; writes or adds to t->lane. */
void training_micro(struct training *t, bool accumulate);

/* One step: `lanes` lanes of `micros` micro-batches from sample `first` on, their sum (lanes 1 or
 * 2), update number `update`. Returns what the update reported. */
struct optimizer_report training_step(struct training *t, uint32_t first, int lanes, int micros,
                                      double lr, uint64_t update);

/* Mean loss of the micro-batch that training_fill made, with running statistics. */
double training_eval(struct training *t);
