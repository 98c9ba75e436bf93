/* The model while a job is read: numbers that follow from others or have to fit them; a model of
 * one's own, a graph or a library that makes one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "jobspec/reader.h"
#include "jobspec/text/number.h"

/* ---- transformers ---- */

/* Radford et al., "Language models are unsupervised multitask learners", 2019, table 2; the counts
 * that people call them by are those of the released weights. */
static const struct size_numbers {
    int64_t layers, heads, width;
} gpt2_sizes[] = {
    [JOBSPEC_SIZE_124M] = { 12, 12, 768 },
    [JOBSPEC_SIZE_355M] = { 24, 16, 1024 },
    [JOBSPEC_SIZE_774M] = { 36, 20, 1280 },
    [JOBSPEC_SIZE_1558M] = { 48, 25, 1600 },
};

/* Fills the numbers of a transformer that the file doesn't give, by its size. */
static void fill_size(struct reader *reader)
{
    struct jobspec_model *model = &reader->job.model;
    CHECK(model->size < sizeof(gpt2_sizes) / sizeof(gpt2_sizes[0]));
    const struct size_numbers *size =
        &gpt2_sizes[model->size == JOBSPEC_SIZE_NONE ? JOBSPEC_SIZE_124M : model->size];
    const struct {
        const char *path;
        int64_t *to, from;
    } numbers[] = {
        { "model.layers", &model->layers, size->layers },
        { "model.heads", &model->heads, size->heads },
        { "model.width", &model->width, size->width },
    };
    for (size_t i = 0; i < 3; i++) {
        if (!reader_has(reader, numbers[i].path)) {
            *numbers[i].to = numbers[i].from;
        } else if (model->size != JOBSPEC_SIZE_NONE) {
            reader_mistake(reader, numbers[i].path, "remove one of the two",
                           "%s follows from model.size: %s", numbers[i].path,
                           jobspec_size_word(model->size));
        }
    }
    model->size = JOBSPEC_SIZE_NONE;
}

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

static void resolve_llama(struct reader *reader)
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

/* The vocabulary of BERT's published weights, and its mask's token; where tokens are bytes, they
 * stand behind the mask's. */
#define BERT_VOCAB      30522
#define BERT_MASK       103
#define BERT_BYTES_MASK 3

static void resolve_mask(struct reader *reader)
{
    const struct jobspec *job = &reader->job;
    struct jobspec_model *model = &reader->job.model;
    const bool bytes = job->data.train.format == JOBSPEC_FORMAT_TEXT ||
                       job->data.eval.format == JOBSPEC_FORMAT_TEXT;
    if (!reader_has(reader, "model.mask"))
        model->mask = job->data.train.format == JOBSPEC_FORMAT_TEXT ? BERT_BYTES_MASK : BERT_MASK;
    const int64_t least = model->mask + 1 + (bytes ? JOBSPEC_VOCAB_BYTES : 1);
    if (!reader_is_good(reader, "model.mask") || !reader_is_good(reader, "model.vocab") ||
        model->vocab >= least)
        return;
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "set model.vocab to %lld or more, or another mask",
                   (long long)least);
    reader_mistake(reader, reader_has(reader, "model.mask") ? "model.mask" : "model.vocab", way_out,
                   "behind the mask's token, %lld, a vocabulary of %lld has no room for %s",
                   (long long)model->mask, (long long)model->vocab,
                   bytes ? "256 bytes" : "a token");
}

void reader_resolve_transformer(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    struct jobspec_model *model = &job->model;
    fill_size(reader);
    if (jobspec_is_text(model) && !reader_has(reader, "model.vocab")) {
        bool bytes = job->data.train.format == JOBSPEC_FORMAT_TEXT;
        bool llama = model->arch == JOBSPEC_ARCH_LLAMA;
        model->vocab = bytes   ? JOBSPEC_VOCAB_BYTES
                       : llama ? JOBSPEC_VOCAB_LLAMA
                               : JOBSPEC_VOCAB_GPT2;
        if (model->arch == JOBSPEC_ARCH_BERT)
            model->vocab = bytes ? BERT_BYTES_MASK + 1 + JOBSPEC_VOCAB_BYTES : BERT_VOCAB;
    }
    bool good = reader_is_good(reader, "model.width") && reader_is_good(reader, "model.heads");
    if (good && model->width % model->heads != 0) {
        char heads[160];
        char way_out[LIMIT_REASON];
        reader_divisors(model->width, 1, 1024, heads, sizeof(heads));
        (void)snprintf(way_out, sizeof(way_out), "heads that do: %s", heads);
        reader_mistake(reader, reader_has(reader, "model.heads") ? "model.heads" : "model.width",
                       way_out, "%lld heads don't divide a width of %lld evenly",
                       (long long)model->heads, (long long)model->width);
    } else if (good && model->arch == JOBSPEC_ARCH_LLAMA) {
        resolve_llama(reader);
    }
    if (model->arch == JOBSPEC_ARCH_BERT)
        resolve_mask(reader);
}

/* ---- models of one's own ---- */

bool reader_sizes(struct reader *reader, const struct field *field, const struct tree_node *node)
{
    int64_t *sizes = (int64_t *)(void *)((char *)&reader->job + field->offset);
    int64_t read[3] = { 0 };
    size_t count = 0;
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "write channels, height and width, as in %s",
                   field->example);
    for (const struct tree_node *item = node->first; item != NULL; item = item->next, count++) {
        int64_t size = 0;
        if (item->kind != TREE_SCALAR ||
            !number_whole(item->text, field->low, field->high, &size)) {
            jobspec_report_add(&reader->report, item->place, way_out,
                               "%s holds whole numbers from %.16g to %.16g", field->path,
                               field->low, field->high);
            return false;
        }
        if (count < 3)
            read[count] = size;
    }
    if (count != 3) {
        jobspec_report_add(&reader->report, node->place, way_out, "%s has %zu numbers instead of 3",
                           field->path, count);
        return false;
    }
    memcpy(sizes, read, sizeof(read));
    return true;
}

static bool is_given(const struct reader *reader, const char *path)
{
    return reader_has(reader, path) || !reader_is_good(reader, path);
}

void reader_name_own(struct reader *reader)
{
    enum jobspec_arch *arch = &reader->job.model.arch;
    if (is_given(reader, "model.arch"))
        return;
    if (is_given(reader, "model.graph")) {
        *arch = JOBSPEC_ARCH_GRAPH;
    } else if (is_given(reader, "model.library")) {
        *arch = JOBSPEC_ARCH_LIBRARY;
    }
}

/* Drops what models with the other input have. */
static void drop(struct reader *reader, const char *path, int64_t *value)
{
    const bool text = jobspec_is_text(&reader->job.model);
    if (reader_has(reader, path)) {
        reader_mistake(reader, path,
                       text ? "remove this key, or add for example 'input: [1, 28, 28]'"
                            : "remove this key, or model.input",
                       "%s is for %s, but the model reads %s", path, text ? "images" : "tokens",
                       text ? "tokens, as it has no model.input" : "images");
    }
    *value = 0;
}

/* What a job's data may hold is what its last node can tell apart: by default all of it. */
static void limit_labels(struct reader *reader, const char *path, int64_t logits, int64_t *value)
{
    char way_out[LIMIT_REASON];
    if (!is_given(reader, path))
        *value = logits;
    if (*value <= logits)
        return;
    (void)snprintf(way_out, sizeof(way_out),
                   "set %s to %lld or less, or the last node's out to %lld", path,
                   (long long)logits, (long long)*value);
    reader_mistake(reader, path, way_out, "%s is %lld, but the last node makes %lld logits", path,
                   (long long)*value, (long long)logits);
}

/* Every token has a row in the tables that it is looked up in. */
static void check_rows(struct reader *reader, const struct tree_node *list)
{
    const struct jobspec_graph *graph = &reader->job.graph;
    const int64_t vocab = reader->job.model.vocab;
    const struct tree_node *item = list->first;
    for (int64_t n = 0; n < graph->count; n++, item = item->next) {
        const struct jobspec_node *node = &graph->nodes[n];
        char way_out[LIMIT_REASON];
        if (node->op != GRAPH_OP_EMBEDDING || node->rows >= vocab)
            continue;
        (void)snprintf(way_out, sizeof(way_out), "use %lld rows, or set model.vocab to %lld",
                       (long long)vocab, (long long)node->rows);
        jobspec_report_add(&reader->report, tree_find(item, "rows")->place, way_out,
                           "%s: %lld rows are too few for tokens below %lld", node->name,
                           (long long)node->rows, (long long)vocab);
    }
}

static void resolve_graph(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const bool text = jobspec_is_text(&job->model);
    bool found = false;
    const struct tree_node *list = reader_locate(reader, "model.graph", &found);
    if (!found || !reader_has(reader, "model.graph") || !reader_is_good(reader, "model.context"))
        return;
    struct graph_sizes *sizes = calloc(1, sizeof(*sizes));
    if (sizes == NULL) {
        reader_mistake(reader, "model.graph", "try again", "there is no memory for the graph");
        return;
    }
    sizes->input = (struct graph_shape){ .ndim = text ? 1 : 3, .is_tokens = text };
    if (text) {
        sizes->input.dims[0] = job->model.context;
    } else {
        memcpy(sizes->input.dims, job->model.input, sizeof(job->model.input));
    }
    if (graph_shapes(&reader->report, list, &job->graph, sizes)) {
        job->model.parameters = sizes->parameters;
        limit_labels(reader, text ? "model.vocab" : "model.classes", sizes->logits,
                     text ? &job->model.vocab : &job->model.classes);
        check_rows(reader, list);
        if (job->train.amp == JOBSPEC_AMP_O1)
            (void)graph_check_half(&reader->report, list, &job->graph);
    }
    free(sizes);
}

void reader_resolve_own(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    struct jobspec_model *model = &job->model;
    if (!reader_is_good(reader, "model.input"))
        return;
    if (jobspec_is_text(model)) {
        drop(reader, "model.classes", &model->classes);
        if (model->arch == JOBSPEC_ARCH_LIBRARY && model->vocab == 0) {
            const bool bytes = job->data.train.format == JOBSPEC_FORMAT_TEXT;
            model->vocab = bytes ? JOBSPEC_VOCAB_BYTES : JOBSPEC_VOCAB_GPT2;
        }
    } else {
        drop(reader, "model.context", &model->context);
        drop(reader, "model.vocab", &model->vocab);
    }
    if (model->arch == JOBSPEC_ARCH_GRAPH)
        resolve_graph(reader);
}
