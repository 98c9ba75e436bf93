/* Numbers of a Llama that follow from its others, or have to fit them. */
#include <stdio.h>

#include "jobspec/reader.h"

/* What Llama's authors took: a layer then has about as many weights as one without a gate that is
 * four times as wide as the model. */
static int64_t default_intermediate(int64_t width)
{
    return (8 * width / 3 + 255) / 256 * 256;
}

static void check_kv_heads(struct reader *reader)
{
    const struct jobspec_model *model = &reader->job.model;
    char heads[160];
    char way_out[LIMIT_REASON];
    if (!reader_is_good(reader, "model.kv_heads") || model->heads % model->kv_heads == 0)
        return;
    reader_divisors(model->heads, 1, 1024, heads, sizeof(heads));
    (void)snprintf(way_out, sizeof(way_out), "kv_heads that do: %s", heads);
    reader_mistake(reader, "model.kv_heads", way_out,
                   "%lld heads of keys and values don't divide %lld heads evenly",
                   (long long)model->kv_heads, (long long)model->heads);
}

void reader_resolve_llama(struct reader *reader)
{
    struct jobspec_model *model = &reader->job.model;
    if (!reader_has(reader, "model.kv_heads"))
        model->kv_heads = model->heads;
    if (!reader_has(reader, "model.intermediate"))
        model->intermediate = default_intermediate(model->width);
    check_kv_heads(reader);
    if (model->width / model->heads % 2 != 0) {
        char way_out[LIMIT_REASON];
        (void)snprintf(way_out, sizeof(way_out), "make model.width a multiple of %lld",
                       2 * (long long)model->heads);
        reader_mistake(reader, reader_has(reader, "model.width") ? "model.width" : "model.heads",
                       way_out,
                       "heads of %lld columns can't be turned by their places: the columns go in "
                       "pairs",
                       (long long)(model->width / model->heads));
    }
}
