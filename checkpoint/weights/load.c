/* First everything of the file is checked against the model, then it is read into it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/floats.h"
#include "checkpoint/weights/safetensors.h"
#include "checkpoint/weights/weights.h"
#include "common/cleanup.h"

#define PART_ELEMENTS ((size_t)1 << 18)

/* Source of a tensor of the model. */
struct source {
    const struct safetensors_tensor *from; /* NULL: kept as it is */
    bool transposed;
};

struct load {
    const struct weights_target *target;
    const char *path;
    struct safetensors *file;
    const char *names_of; /* arch, or "" where the file has our own names */
    const char *wrap;     /* each name of the file begins with these bytes; not ended by a NUL */
    size_t wrap_size;
    struct source *sources;
    void *part;  /* PART_ELEMENTS of any type */
    float *wide; /* PART_ELEMENTS */
    struct weights_loaded done;
    struct reason *reason;
};

#define SHAPE_BYTES 96

static void shape_text(int32_t ndim, const uint64_t *dims, char out[SHAPE_BYTES])
{
    int used = snprintf(out, SHAPE_BYTES, "[");
    for (int32_t i = 0; i < ndim && used > 0 && used < SHAPE_BYTES; i++) {
        used += snprintf(out + used, (size_t)(SHAPE_BYTES - used), "%s%" PRIu64, i > 0 ? ", " : "",
                         dims[i]);
    }
    if (used > 0 && used < SHAPE_BYTES)
        (void)snprintf(out + used, (size_t)(SHAPE_BYTES - used), "]");
}

static bool all_go_on_with(const struct safetensors_tensor *tensors, uint32_t count, size_t at,
                           const char *part)
{
    bool all = count > 0;
    for (uint32_t i = 0; all && i < count; i++)
        all = strncmp(tensors[i].name + at, part, strlen(part)) == 0;
    return all;
}

/* Notes the prefix that torch.compile, DDP and Lightning put before each name; prefixes may be
 * nested. */
static void note_wrap(struct load *load)
{
    static const char *const parts[] = { "_orig_mod.", "module.", "model." };
    const struct safetensors_tensor *tensors = NULL;
    const uint32_t count = safetensors_tensors(load->file, &tensors);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]);) {
        const bool wrapped = all_go_on_with(tensors, count, load->wrap_size, parts[i]);
        load->wrap_size += wrapped ? strlen(parts[i]) : 0;
        i = wrapped ? 0 : i + 1;
    }
    load->wrap = count > 0 ? tensors[0].name : "";
}

static const struct safetensors_tensor *find_wrapped(const struct load *load, const char *name)
{
    char text[2 * LIMIT_NAME];
    const int size = snprintf(text, sizeof(text), "%.*s%s", (int)load->wrap_size, load->wrap, name);
    return size > 0 && (size_t)size < sizeof(text) ? safetensors_find(load->file, text) : NULL;
}

/* The files of GPT2Model, as the hub's, lack the first part of our names; so do those in which that
 * part, before all names, counts as a wrapper's. */
static const struct safetensors_tensor *find_in_file(const struct load *load, const char *name)
{
    const struct safetensors_tensor *found = find_wrapped(load, name);
    const char *first = weights_first_part(load->target->arch);
    const size_t size = strlen(first);
    if (found == NULL && size > 0 && strncmp(name, first, size) == 0)
        found = find_wrapped(load, name + size);
    return found;
}

static bool known_dtype(enum safetensors_dtype dtype, enum ckpt_dtype *out)
{
    if (dtype != SAFETENSORS_F32 && dtype != SAFETENSORS_BF16 && dtype != SAFETENSORS_F16)
        return false;
    *out = dtype == SAFETENSORS_F32 ? CKPT_F32 : dtype == SAFETENSORS_BF16 ? CKPT_BF16 : CKPT_F16;
    return true;
}

/* True if the path is one of several files of a model, as transformers names them. */
static bool is_one_of_several(const char *path)
{
    const char *of = strstr(path, "-of-");
    return of != NULL && of > path && of[-1] >= '0' && of[-1] <= '9' && of[4] >= '0' &&
           of[4] <= '9';
}

static enum status refuse_missing(const struct load *load, const char *name)
{
    if (is_one_of_several(load->path)) {
        reason_set(load->reason,
                   "%.200s: is one of several files of a model: join them (as "
                   "model.save_pretrained(DIR, max_shard_size='1TB') does); tensor %.100s isn't in "
                   "this one",
                   load->path, name);
        return ST_CONFIG;
    }
    uint32_t more = 0;
    for (uint32_t i = 0; i < load->target->tensor_count; i++) {
        const struct ckpt_tensor *tensor = &load->target->tensors[i];
        const char *buffer = load->target->buffers[tensor->buffer].name;
        more += strcmp(buffer, "parameters") == 0 && find_in_file(load, tensor->name) == NULL;
    }
    reason_set(load->reason,
               "%.200s: there is no tensor %.100s in it (%u of the model's are missing); give "
               "the model (%s) the sizes that the file is of, or another file",
               load->path, name, more, load->target->arch);
    return ST_CONFIG;
}

static enum status refuse_shape(const struct load *load, const struct safetensors_tensor *from,
                                const uint64_t *want, int32_t ndim)
{
    char has[SHAPE_BYTES], needs[SHAPE_BYTES];
    shape_text(from->ndim, from->dims, has);
    shape_text(ndim, want, needs);
    reason_set(load->reason,
               "%.100s: tensor %.100s is %s, the model has %s; give the model the sizes that "
               "the file is of, or another file",
               load->path, from->name, has, needs);
    return ST_CONFIG;
}

/* Conv1D's weights are [in, out] in the files of transformers; of square ones nobody could tell. */
static enum status refuse_linear(const struct load *load, const struct safetensors_tensor *from)
{
    reason_set(
        load->reason,
        "%.200s: tensor %.100s is stored as [out, in], as nanoGPT does, but files with these "
        "names have [in, out]: transpose the weights of c_attn, c_proj and c_fc",
        load->path, from->name);
    return ST_CONFIG;
}

static enum status match_tensor(const struct load *load, const struct ckpt_tensor *tensor,
                                struct source *out)
{
    struct weights_name name;
    weights_name(load->names_of, tensor, &name);
    const struct safetensors_tensor *from = find_in_file(load, name.text);
    const char *buffer = load->target->buffers[tensor->buffer].name;
    if (from == NULL)
        return strcmp(buffer, "parameters") == 0 ? refuse_missing(load, name.text) : ST_OK;
    uint64_t want[4] = { 0 };
    enum ckpt_dtype dtype;
    memcpy(want, tensor->dims, sizeof(want));
    if (name.transposed) {
        want[0] = tensor->dims[1];
        want[1] = tensor->dims[0];
    }
    if (name.transposed && want[0] != want[1] && from->ndim == 2 && from->dims[0] == want[1] &&
        from->dims[1] == want[0])
        return refuse_linear(load, from);
    if (from->ndim != tensor->ndim ||
        memcmp(from->dims, want, (size_t)tensor->ndim * sizeof(*want)) != 0)
        return refuse_shape(load, from, want, tensor->ndim);
    if (!known_dtype(from->dtype, &dtype)) {
        reason_set(load->reason, "%.200s: tensor %.100s is %s; weights can be F32, BF16 or F16",
                   load->path, from->name, safetensors_dtype_name(from->dtype));
        return ST_CONFIG;
    }
    out->from = from;
    out->transposed = name.transposed;
    return ST_OK;
}

static bool is_used(const struct load *load, const struct safetensors_tensor *tensor)
{
    for (uint32_t i = 0; i < load->target->tensor_count; i++) {
        if (load->sources[i].from == tensor)
            return true;
    }
    return false;
}

/* Nothing of the file may be lost silently. */
static enum status match_rest(struct load *load)
{
    const struct safetensors_tensor *tensors = NULL;
    uint32_t count = safetensors_tensors(load->file, &tensors), passed_over = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (is_used(load, &tensors[i]))
            continue;
        passed_over++;
        if (weights_pass_over(load->target->arch, tensors[i].name + load->wrap_size))
            continue;
        reason_set(load->reason,
                   "%.200s: its tensor %.100s has no place in the model (%s); give the model "
                   "the sizes that the file is of, or another file",
                   load->path, tensors[i].name, load->target->arch);
        return ST_CONFIG;
    }
    load->done.passed_over = passed_over;
    return ST_OK;
}

static bool is_wanted(const struct weights_target *target, uint32_t buffer)
{
    const char *name = target->buffers[buffer].name;
    if (target->data != NULL)
        return target->data[buffer] != NULL;
    return strcmp(name, "parameters") == 0 || strcmp(name, "statistics") == 0;
}

static enum status match_all(struct load *load)
{
    const struct weights_target *target = load->target;
    const char *names = safetensors_metadata(load->file, "cairn.names");
    note_wrap(load);
    load->names_of = names != NULL && strcmp(names, "cairn") == 0 ? "" : target->arch;
    for (uint32_t i = 0; i < target->tensor_count; i++) {
        if (!is_wanted(target, target->tensors[i].buffer))
            continue;
        enum status st = match_tensor(load, &target->tensors[i], &load->sources[i]);
        if (st != ST_OK)
            return st;
        load->done.tensors += load->sources[i].from != NULL;
        load->done.kept += load->sources[i].from == NULL;
    }
    return match_rest(load);
}

/* ---- bytes ---- */

static enum status fail_read(const struct load *load, const char *name, enum status st)
{
    reason_set(load->reason, "%.300s: tensor %.100s: %s", load->path, name, status_string(st));
    return st;
}

/* Elements [first, first + count) as float32. */
static enum status read_wide(struct load *load, const struct safetensors_tensor *from,
                             uint64_t first, size_t count, float *out)
{
    enum ckpt_dtype dtype = CKPT_F32;
    (void)known_dtype(from->dtype, &dtype);
    uint64_t width = ckpt_dtype_size(dtype);
    enum status st = safetensors_read(load->file, from, first * width, count * width, load->part);
    if (st != ST_OK)
        return fail_read(load, from->name, st);
    floats_widen(dtype, load->part, count, out);
    return ST_OK;
}

/* The file runs down the columns of the model's tensor. */
static enum status read_transposed(struct load *load, const struct ckpt_tensor *tensor,
                                   const struct safetensors_tensor *from, float *out)
{
    uint64_t rows = tensor->dims[0], columns = tensor->dims[1], count = rows * columns;
    uint64_t row = 0, column = 0;
    for (uint64_t at = 0; at < count; at += PART_ELEMENTS) {
        size_t part = count - at < PART_ELEMENTS ? (size_t)(count - at) : PART_ELEMENTS;
        enum status st = read_wide(load, from, at, part, load->wide);
        if (st != ST_OK)
            return st;
        for (size_t i = 0; i < part; i++) {
            out[row * columns + column] = load->wide[i];
            row = row + 1 == rows ? 0 : row + 1;
            column += row == 0;
        }
    }
    return ST_OK;
}

static enum status read_tensor(struct load *load, const struct ckpt_tensor *tensor,
                               const struct source *source)
{
    float *out = load->target->data[tensor->buffer] + tensor->offset;
    if (source->transposed)
        return read_transposed(load, tensor, source->from, out);
    uint64_t count = ckpt_tensor_elements(tensor);
    for (uint64_t at = 0; at < count; at += PART_ELEMENTS) {
        size_t part = count - at < PART_ELEMENTS ? (size_t)(count - at) : PART_ELEMENTS;
        enum status st = read_wide(load, source->from, at, part, out + at);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* An output's weight of its own would be lost where the model has none. */
static enum status check_head(struct load *load)
{
    const char *name = weights_token_table(load->target->arch);
    const struct safetensors_tensor *head = find_wrapped(load, WEIGHTS_HEAD);
    const struct safetensors_tensor *table = name == NULL ? NULL : find_in_file(load, name);
    if (head == NULL || table == NULL || is_used(load, head))
        return ST_OK;
    bool same = head->dtype == table->dtype && head->size == table->size;
    auto_free char *other = malloc(PART_ELEMENTS);
    if (other == NULL)
        return ST_NO_MEMORY;
    for (uint64_t at = 0; same && at < head->size; at += PART_ELEMENTS) {
        uint64_t part = head->size - at < PART_ELEMENTS ? head->size - at : PART_ELEMENTS;
        enum status st = safetensors_read(load->file, head, at, part, load->part);
        if (st == ST_OK)
            st = safetensors_read(load->file, table, at, part, other);
        if (st != ST_OK)
            return fail_read(load, WEIGHTS_HEAD, st);
        same = memcmp(load->part, other, (size_t)part) == 0;
    }
    if (same)
        return ST_OK;
    reason_set(load->reason,
               "%.200s: its " WEIGHTS_HEAD " is not its %s, but this model has one table for both; "
               "use a file with tied embeddings%s",
               load->path, table->name,
               strcmp(load->target->arch, "llama") == 0 ? ", or set model.tied to false" : "");
    return ST_CONFIG;
}

static enum status load_all(struct load *load)
{
    const struct weights_target *target = load->target;
    load->sources = calloc((size_t)target->tensor_count + 1, sizeof(*load->sources));
    load->part = malloc(PART_ELEMENTS * sizeof(float));
    load->wide = malloc(PART_ELEMENTS * sizeof(float));
    if (load->sources == NULL || load->part == NULL || load->wide == NULL)
        return ST_NO_MEMORY;
    enum status st = match_all(load);
    if (st == ST_OK)
        st = check_head(load);
    for (uint32_t i = 0; target->data != NULL && i < target->tensor_count && st == ST_OK; i++) {
        if (load->sources[i].from != NULL)
            st = read_tensor(load, &target->tensors[i], &load->sources[i]);
    }
    return st;
}

enum status weights_load(const struct io *io, const char *path, const struct weights_target *target,
                         struct weights_loaded *out, struct reason *reason)
{
    struct reason why = { "" }, cause;
    struct load load = { .target = target, .path = path, .reason = &why };
    enum status st = safetensors_open(io, path, &load.file, &cause);
    if (st == ST_CORRUPT || st == ST_NOT_FOUND || st == ST_REFUSED) {
        reason_set(reason, "%.200s: %.300s", path, cause.text);
        return ST_CONFIG;
    }
    if (st == ST_OK)
        st = load_all(&load);
    if (st == ST_OK) {
        *out = load.done;
    } else if (why.text[0] == '\0') {
        reason_set(reason, "%.300s: %s", path, status_string(st));
    } else {
        *reason = why;
    }
    safetensors_close(load.file);
    free(load.sources);
    free(load.part);
    free(load.wide);
    return st;
}
