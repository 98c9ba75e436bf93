/*
 * The training state (parameters, moments, running statistics) and its update.
 *
 * All are flat float32 buffers in the backend's memory. The update is the second phase of a step:
 * it writes nothing before everything that it reads was checked. Its outcome depends on the summed
 * vector, the state and the settings alone.
 *
 * Without owners every rank has all of it and updates with nobody's help. With owners (owners.h) a
 * rank has the moments of its own elements only: addresses for all, memory for those. It updates
 * its elements of the parameters, and gets the others from their owners.
 *
 * After the state was restored from outside plan_refresh is due; after an update as well, or
 * plan_refresh_rest where it wrote kernels' copies.
 *
 * Thread: one at a time.
 * The moving average of the parameters (train.ema) is one more moment, behind the optimizer's: it
 * begins as the initial parameters, and each update moves it by (1 - ema) of the way to the new
 * ones.
 *
 * Source: SGD and AdamW as torch.optim has them, but that the kinds in no_decay don't decay;
 *         Lion: Chen et al., arXiv 2302.06675, algorithm 2;
 *         LAMB: You et al., arXiv 1904.00962, algorithm 2, φ(x) = x: each tensor is a layer;
 *         Muon: Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024), with
 *         Nesterov's momentum. Updates have the size that AdamW's have, so that both take one lr:
 *         Liu et al., arXiv 2502.16982, equation 4. It is for weights of two dimensions but the
 *         embeddings and the last layer's; all others go by AdamW;
 *         clipping as torch.nn.utils.clip_grad_norm_ (norm + 1e-6).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "kernels/backend.h"
#include "trainer/plan/plan.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/tape.h"
#include "trainer/update/owners.h"

#define OPTIMIZER_MOMENTS_MAX JOBSPEC_MOMENTS_MAX
#define OPTIMIZER_BUFFERS_MAX (2 + OPTIMIZER_MOMENTS_MAX)

struct optimizer_options {
    enum jobspec_optimizer kind;
    float momentum;          /* sgd, muon; sgd 0: no moment buffer */
    bool nesterov;           /* sgd */
    float beta1, beta2, eps; /* adamw, lamb, muon; lion without eps */
    float weight_decay;
    double ema;        /* of the parameters; 0: none */
    float clip_norm;   /* 0: off */
    unsigned no_decay; /* bits of enum tape_kind: those don't decay; 0: all do */
};

struct optimizer;

/*
 * The part of the state that this rank has memory for: addresses are there for all of it. Borrowed
 * for the call. Memory reaches to the borders of chunks around what is named (1 MiB), as a
 * checkpoint's shares do.
 */
struct optimizer_holding {
    const struct owners *owners;      /* of moments, and of updates; NULL: this rank has all */
    bool replicas;                    /* other ranks own what this one owns, too */
    const struct lane_extent *params; /* [param_extents] ascending; NULL: all */
    size_t param_extents;
    const struct lane_extent *stats; /* [stat_extents] elements of the statistics, likewise */
    size_t stat_extents;
};
#define OPTIMIZER_STRETCHES_MAX 2 /* of the model, a rank's: an extent of each kind for each */
#define OPTIMIZER_CHUNK         ((size_t)4 * PIECE_ELEMENTS)

/* Returns the number of buffers of moments. */
int optimizer_moments(const struct optimizer_options *options);
/* Bytes that optimizer_new allocates for the state, all moments together, and to work with.
 * ST_NO_MEMORY */
struct optimizer_bytes {
    size_t params, moments, stats, work;
};
MUST_CHECK enum status optimizer_measure(const struct optimizer_options *options,
                                         const struct tape *tape,
                                         const struct optimizer_holding *holding,
                                         struct optimizer_bytes *out);

/* Allocates the state, zeroed; initial values or a restore fill it in. tape and backend are
 * borrowed for life. holding NULL: all. */
MUST_CHECK enum status optimizer_new(const struct optimizer_options *options,
                                     const struct tape *tape,
                                     const struct optimizer_holding *holding,
                                     const struct backend_table *table, struct backend *backend,
                                     struct optimizer **out);
/* Fills the new owners' part of a moment, which is zero, from this rank's part by the owners
 * before; both have memory for owned elements only. */
struct optimizer_move {
    enum status (*moment)(void *arg, const float *from, float *to);
    void *arg;
};
/* Sets other owners, with new moments; move NULL: zero. After an error only optimizer_free is left.
 * Errors: the backend's, move's */
MUST_CHECK enum status optimizer_own(struct optimizer *optimizer, const struct owners *owners,
                                     const struct optimizer_move *move);
/* Makes updates write plan_copies of the plan from now on, wherever no other rank owns parts of the
 * moments (report.copied). Call it once; the plan must outlive the optimizer's updates. Errors: the
 * backend's, ST_NO_MEMORY */
MUST_CHECK enum status optimizer_keep_copies(struct optimizer *optimizer, const struct plan *plan);
void optimizer_free(struct optimizer *optimizer);

/* Makes the initial parameters, once they are filled in, what the moving average begins with; call
 * it in any case. On the stream when it returns. */
MUST_CHECK enum status optimizer_begin(struct optimizer *optimizer, struct stream *stream);
/* Returns the moving average of the parameters; NULL: none is kept. Of what this rank doesn't own
 * there is no memory. */
float *optimizer_ema(struct optimizer *optimizer);

float *optimizer_params(struct optimizer *optimizer);
float *optimizer_stats(struct optimizer *optimizer);

/* Exchanges of ranks that own parts, within an update: all ranks call them, in this order. Errors
 * are those of the exchange. */
struct optimizer_peers {
    /* Completes the sums of squares. packed: in host memory, owner after owner,
     * optimizer_squares(i) of each; on entry only this rank's are there. scalars: the sum's,
     * likewise, where not every rank has them (OPTIMIZER_SCALARS). */
    enum status (*exchange_squares)(void *arg, double *packed, float *scalars);
    /* Completes the parameters: on entry the elements that this rank owns are new, on return
     * all. */
    enum status (*gather_params)(void *arg, float *params);
    void *arg;
};

#define OPTIMIZER_SCALARS 3 /* loss, targets, micro-batches: the end of a lane vector */

struct optimizer_step {
    double lr;
    uint64_t update;   /* 1 at the first one, counted without skipped steps */
    double loss_scale; /* the gradient is divided by it; 1 without scaling */
    bool may_overflow; /* dynamic scaling: report.overflow instead of ST_NUMERIC, as said there */
    const struct optimizer_peers *peers; /* NULL: without owners, or where this rank owns all */
    float *const *ties;                  /* as lane_add_ties takes them; or NULL */
    /* Targets of the whole step if no label is ignored, used where the sum's float32 doesn't count
     * exactly any more. 0: not known. */
    uint64_t targets;
    double
        loss_most; /* report.spike in place of an update where the loss is above it; 0: no bound */
};

struct optimizer_report {
    double loss;      /* mean over targets */
    double grad_norm; /* of the mean loss's gradient, before clipping, without the loss scale */
    double targets;
    bool overflow; /* the loss is finite, the gradient is not: nothing was written */
    bool spike;    /* the loss is above loss_most: nothing was written */
    bool began;    /* the state is not the old one any more; also after an error */
    bool copied;   /* kernels' copies (optimizer_keep_copies) are new, too */
};

/*
 * sum: the tree sum of the lane vectors: its scalars and statistics, and what belongs to elements
 * that this rank owns. What ties give is added to their parameters' gradients (lane_add_ties).
 * Waits for what decides; the update itself is on the stream when it returns, in front of whatever
 * looks at the state there. With peers it waits for that, too.
 * Errors: ST_NUMERIC  loss or gradient is not finite; nothing was written, out_report is filled in
 *         ST_INVALID  there are no targets; nothing was written
 *         those of the peers: in gather_params the state is neither old nor new any more
 */
MUST_CHECK enum status optimizer_update(struct optimizer *optimizer, float *sum,
                                        const struct optimizer_step *step, struct stream *stream,
                                        struct optimizer_report *out_report);

/* Returns the number of sums of squares of an owner's rank; without owners rank 0 has all. */
size_t optimizer_squares(const struct optimizer *optimizer, uint32_t rank);

/* Returns a checksum of the state that this rank shares with others (of owners without replicas: no
 * moments), equal for equal bits on every device. Waits for it. */
MUST_CHECK enum status optimizer_checksum(struct optimizer *optimizer, struct stream *stream,
                                          uint64_t *out);

/*
 * Describes the state for a checkpoint: buffers in digest order (parameters, moments by name,
 * statistics; empty ones left out) with their data, and the named tensors in them.
 * Memory: the arrays are owned by the optimizer and valid for its life; data are the live buffers,
 *         which the host can read where the backend's memory is host memory.
 */
void optimizer_describe(struct optimizer *optimizer, const struct ckpt_buffer **out_buffers,
                        uint32_t *out_buffer_count, const struct ckpt_tensor **out_tensors,
                        uint32_t *out_tensor_count);
enum optimizer_buffer_kind { OPTIMIZER_PARAMETERS, OPTIMIZER_MOMENT, OPTIMIZER_STATISTICS };
/* Returns the kind of buffer i of the description. */
enum optimizer_buffer_kind optimizer_buffer_kind(const struct optimizer *optimizer, uint32_t i);
/* Returns the live buffer of a name of optimizer_describe ("parameters", …), to restore into; NULL:
 * there is none. */
void *optimizer_buffer(struct optimizer *optimizer, const char *name);
