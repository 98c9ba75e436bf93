/*
 * A model's weights as other people's tools have them: safetensors files with the tensor names and
 * shapes of Hugging Face's transformers (gpt2, llama, vit, bert) and torchvision (resnet…). The
 * other models' names are our own.
 *
 * How a file differs from a checkpoint's tensors:
 *
 *     gpt2     same names
 *              transposed, [in, out] instead of [out, in]: the weights of attn.c_attn, attn.c_proj,
 *              mlp.c_fc and mlp.c_proj
 *              once: the token table, which is the output's weight, too
 *              of a file that is read, names may lack "transformer."; passed over are causal masks
 *              (attn.bias, attn.masked_bias) and an lm_head.weight equal to the token table
 *     llama    same names and shapes; of a file that is read, names may lack "model."; passed over
 *              are the rotary frequencies (rotary_emb.inv_freq), and an lm_head.weight equal to the
 *              token table where the model has one for both
 *     vit      same names and shapes; of a file that is read, names may lack "vit."; passed over is
 *              a pooler, which classes don't need
 *     bert     same names and shapes; of a file that is read, names may lack "bert."; passed over
 *              are a pooler and the sentence pairs' head (cls.seq_relationship), and the decoder,
 *              which is the token table and cls.predictions.bias
 *     resnet   same names and shapes
 *              beside each norm a num_batches_tracked, the steps made
 *     any      of a file that is read, all names may begin with what wrappers put there
 *              ("_orig_mod.", "module.", "model.")
 *     any      in no way, if the metadata says "cairn.names": "cairn"
 *
 * Memory: a tensor is held by parts of WEIGHTS_WINDOW bytes; one that is transposed is read once
 *         for each such part.
 * Errors: the reason is "FILE: cause; way out" or "FILE: cause".
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/io.h"
#include "common/reason.h"

#define WEIGHTS_WINDOW ((size_t)64 << 20)
#define WEIGHTS_HEAD   "lm_head.weight" /* the output's of text models */

/* ---- out of a checkpoint ---- */

struct weights_export {
    const char *arch;      /* "gpt2", … */
    bool own_names;        /* the checkpoint's names and shapes */
    bool all;              /* moments, too; those always under their own names */
    bool ema;              /* the moving average of the parameters in their place */
    bool replace;          /* an existing file */
    enum ckpt_dtype dtype; /* of float tensors; 0: as they are stored */
    /* Bytes written so far; false ends it with ST_CLOSED. May be NULL. */
    bool (*progress)(void *arg, uint64_t bytes);
    void *progress_arg;
};

struct weights_exported {
    uint32_t tensors;
    uint64_t elements, bytes;
    uint64_t overflows; /* finite values that dtype has no room for: they became infinite */
};

/*
 * Writes FILE, whole or not at all.
 * Errors: ST_EXISTS             path is there
 *         ST_CONFIG             options->ema, and the checkpoint has no average
 *         ST_CORRUPT, ST_IO, …  of the checkpoint or of the file
 */
MUST_CHECK enum status weights_export(struct ckpt_reader *reader, const struct io *io,
                                      const char *path, const struct weights_export *options,
                                      struct weights_exported *out, struct reason *reason);

/* ---- into a model ---- */

struct weights_target {
    const char *arch;
    const struct ckpt_buffer *buffers; /* "parameters" must be in the file, "statistics" may */
    /* Per buffer, float32, on the host; NULL: isn't filled. data NULL: the file is only checked. */
    float *const *data;
    uint32_t buffer_count;
    const struct ckpt_tensor *tensors;
    uint32_t tensor_count;
};

struct weights_loaded {
    uint32_t tensors;
    uint32_t passed_over; /* of the file: carry nothing of the model */
    uint32_t kept;        /* statistics that the file lacks: left as they were */
};

/*
 * Fills a model's buffers from a file after all names, shapes and types of it were checked.
 * Errors: ST_CONFIG      it is no safetensors file, or not of this model; nothing was written
 *         ST_IO, …       it could not be read
 */
MUST_CHECK enum status weights_load(const struct io *io, const char *path,
                                    const struct weights_target *target, struct weights_loaded *out,
                                    struct reason *reason);

/* ---- shared by both ---- */

struct weights_name {
    char text[LIMIT_NAME];
    bool transposed;
};

/* Returns how a tensor is named and stored in a file with the names of arch's library. */
void weights_name(const char *arch, const struct ckpt_tensor *tensor, struct weights_name *out);
/* The part with which names of the whole model begin, and which the names of a file of its inner
 * model lack; "": none. */
const char *weights_first_part(const char *arch);
/* Returns the name of a text model's table of tokens, which may be the output's weight, too; NULL:
 * it reads no tokens. */
const char *weights_token_table(const char *arch);
/* Whether a file's tensor of this name carries nothing of the model: the output's weight only where
 * the model has none of its own. */
bool weights_pass_over(const char *arch, const char *name);
