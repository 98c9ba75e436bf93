/* A model of one's own while a job is read: a graph, or a library that makes one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobspec/reader.h"
#include "jobspec/text/number.h"

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
