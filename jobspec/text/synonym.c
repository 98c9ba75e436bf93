#include "jobspec/text/synonym.h"

#include <stddef.h>
#include <string.h>

#include "jobspec/text/suggest.h"

/* clang-format off: one row, one line */
/* Keys that people know from other programs. */
static const struct {
    const char *key, *path;
} synonyms[] = {
    { "batch", "train.global_batch" },
    { "batch_size", "train.global_batch" },
    { "learning_rate", "train.optimizer.lr" },
    { "epochs", "train.duration" },
    { "steps", "train.duration" },
    { "max_steps", "train.duration" },
    { "num_hidden_layers", "model.layers" },
    { "n_layer", "model.layers" },
    { "num_attention_heads", "model.heads" },
    { "n_head", "model.heads" },
    { "num_key_value_heads", "model.kv_heads" },
    { "hidden_size", "model.width" },
    { "embed", "model.width" },
    { "n_embd", "model.width" },
    { "intermediate_size", "model.intermediate" },
    { "vocab_size", "model.vocab" },
    { "max_position_embeddings", "model.context" },
    { "rms_norm_eps", "model.norm_eps" },
    { "tie_word_embeddings", "model.tied" },
    { "max_epochs", "train.duration" },
    { "warmup_steps", "train.schedule.warmup" },
    { "num_workers", "workers.count" },
    { "nproc", "workers.count" },
    { "world_size", "workers.count" },
    { "val", "data.eval" },
    { "test", "data.eval" },
    { "grad_clip", "train.clip_norm" },
    { "max_grad_norm", "train.clip_norm" },
    { "dtype", "train.precision" },
    { "betas", "train.optimizer.beta1" },
    { "interval", "checkpoint.every" },
    { "save_total_limit", "checkpoint.keep.last" },
    { "block_size", "model.context" },
    { "seq_len", "model.context" },
    { "patch_size", "model.patch" },
    { "gradient_accumulation_steps", "train.accumulate" },
    { "cmd", "command.run" },
    { "entrypoint", "command.run" },
    { "script", "command.run" },
    { "args", "command.run" },
    { "nproc_per_node", "command.processes" },
    { "max_restarts", "command.restart.budget" },
};
/* clang-format on */

const char *synonym_find(const char *key)
{
    for (size_t i = 0; i < sizeof(synonyms) / sizeof(synonyms[0]); i++) {
        const size_t distance = suggest_distance(synonyms[i].key, key);
        if (distance == 0 || (distance == 1 && strlen(key) > 3))
            return synonyms[i].path;
    }
    return NULL;
}
