/* A checkpoint's tensors, one after the other, as a safetensors file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/floats.h"
#include "checkpoint/weights/safetensors.h"
#include "checkpoint/weights/values.h"
#include "checkpoint/weights/weights.h"
#include "common/cleanup.h"

#define AVERAGE       "ema" /* its buffer; its tensors are "ema/NAME" */
#define BATCH_COUNTER ".num_batches_tracked"
#define TEXT_BYTES    64

/* A tensor of the file. */
struct export_item {
    const struct ckpt_tensor *tensor; /* NULL: a batch counter */
    struct weights_name name;
};

struct export_work {
    struct ckpt_values values;
    const struct weights_export *options;
    struct safetensors_writer *writer;
    struct export_item *items;
    struct safetensors_tensor *tensors;
    uint32_t count;
    void *narrow; /* a part's, of floats */
    void *block;  /* of a transposed tensor; NULL until one comes */
    struct weights_exported done;
    const char *path;
    struct reason *reason;
};

static bool is_moment(const struct ckpt_buffer *buffer)
{
    return strcmp(buffer->name, "parameters") != 0 && strcmp(buffer->name, "statistics") != 0;
}

static enum safetensors_dtype file_dtype(enum ckpt_dtype dtype)
{
    switch (dtype) {
    case CKPT_F32:
        return SAFETENSORS_F32;
    case CKPT_BF16:
        return SAFETENSORS_BF16;
    case CKPT_F16:
        return SAFETENSORS_F16;
    case CKPT_I32:
        return SAFETENSORS_I32;
    case CKPT_I64:
        return SAFETENSORS_I64;
    case CKPT_U8:
        break;
    }
    return SAFETENSORS_U8;
}

/* Returns the dtype that a buffer's values are written in. */
static enum ckpt_dtype wanted_dtype(const struct export_work *e, enum ckpt_dtype stored)
{
    return e->options->dtype != 0 && floats_known(stored) ? e->options->dtype : stored;
}

/* ---- what goes into the file ---- */

/* Whether a buffer's tensors are weights of the file. */
static bool is_model(const struct export_work *e, const struct ckpt_buffer *buffer)
{
    if (!e->options->ema)
        return !is_moment(buffer);
    return strcmp(buffer->name, AVERAGE) == 0 || strcmp(buffer->name, "statistics") == 0;
}

static void name_tensor(const struct export_work *e, const struct ckpt_tensor *tensor,
                        struct weights_name *out)
{
    static const char prefix[] = AVERAGE "/";
    const struct ckpt_buffer *buffer = &e->values.buffers[tensor->buffer];
    const bool own = e->options->own_names || !is_model(e, buffer);
    struct ckpt_tensor named = *tensor;
    if (e->options->ema && strncmp(named.name, prefix, sizeof(prefix) - 1) == 0) {
        memmove(named.name, named.name + sizeof(prefix) - 1,
                strlen(named.name) + 2 - sizeof(prefix));
    }
    weights_name(own ? "" : e->options->arch, &named, out);
}

static void add_tensor(struct export_work *e, const struct ckpt_tensor *tensor)
{
    const struct ckpt_buffer *buffer = &e->values.buffers[tensor->buffer];
    struct export_item *item = &e->items[e->count];
    struct safetensors_tensor *out = &e->tensors[e->count++];
    item->tensor = tensor;
    name_tensor(e, tensor, &item->name);
    out->name = item->name.text;
    out->dtype = file_dtype(wanted_dtype(e, buffer->dtype));
    out->ndim = tensor->ndim;
    memcpy(out->dims, tensor->dims, sizeof(tensor->dims));
    if (item->name.transposed) {
        out->dims[0] = tensor->dims[1];
        out->dims[1] = tensor->dims[0];
    }
}

/* torchvision's norms count their batches. */
static void add_counter(struct export_work *e, const struct ckpt_tensor *variance)
{
    static const char suffix[] = ".running_var";
    size_t size = strlen(variance->name);
    if (e->options->own_names || size < sizeof(suffix) ||
        strcmp(variance->name + size - (sizeof(suffix) - 1), suffix) != 0)
        return;
    struct export_item *item = &e->items[e->count];
    struct safetensors_tensor *out = &e->tensors[e->count++];
    (void)snprintf(item->name.text, sizeof(item->name.text), "%.*s" BATCH_COUNTER,
                   (int)(size - (sizeof(suffix) - 1)), variance->name);
    out->name = item->name.text;
    out->dtype = SAFETENSORS_I64;
}

static enum status choose_tensors(struct export_work *e)
{
    const struct ckpt_tensor *tensors = e->values.tensors;
    uint32_t count = e->values.tensor_count;
    e->items = calloc(2 * (size_t)count + 1, sizeof(*e->items));
    e->tensors = calloc(2 * (size_t)count + 1, sizeof(*e->tensors));
    if (e->items == NULL || e->tensors == NULL)
        return ST_NO_MEMORY;
    bool averages = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct ckpt_buffer *buffer = &e->values.buffers[tensors[i].buffer];
        averages = averages || strcmp(buffer->name, AVERAGE) == 0;
        if (!e->options->all && !is_model(e, buffer))
            continue;
        add_tensor(e, &tensors[i]);
        add_counter(e, &tensors[i]);
    }
    if (!e->options->ema || averages)
        return ST_OK;
    reason_set(e->reason, "there is no moving average of the weights: its job had no train.ema");
    return ST_CONFIG;
}

static enum status create_file(struct export_work *e, const struct io *io, const char *path)
{
    const struct ckpt_manifest *manifest = ckpt_reader_manifest(e->values.reader);
    char step[TEXT_BYTES], digest[33];
    (void)snprintf(step, sizeof(step), "%" PRIu64, manifest->step);
    ckpt_hash_text(&manifest->digest, digest);
    const struct safetensors_text metadata[] = {
        { "format", "pt" }, /* transformers refuses files without it */
        { "cairn.arch", e->options->arch },
        { "cairn.names", e->options->own_names ? "cairn" : "hf" },
        { "cairn.job", manifest->job },
        { "cairn.step", step },
        { "cairn.digest", digest },
    };
    struct safetensors_content content = {
        .tensors = e->tensors,
        .tensor_count = e->count,
        .metadata = metadata,
        .metadata_count = sizeof(metadata) / sizeof(metadata[0]),
    };
    return safetensors_create(io, path, e->options->replace, &content, &e->writer);
}

/* ---- bytes ---- */

static const char *cause_of(const struct export_work *e, enum status st)
{
    if (st == ST_EXISTS && e->options->replace)
        return "what is there is no file; choose another name";
    if (st == ST_EXISTS)
        return "there is such a file; choose another name, or --force";
    if (st == ST_NOT_FOUND)
        return "there is no folder for it";
    return st == ST_REFUSED ? "no permission, or a read-only file system" : status_string(st);
}

/* The file that is written, not the tensor, is to blame. */
static enum status blame_file(struct export_work *e, enum status st)
{
    reason_set(e->reason, "%.400s: %s", e->path, cause_of(e, st));
    return st;
}

static enum status write_bytes(struct export_work *e, const void *data, size_t size)
{
    enum status st = safetensors_write(e->writer, data, size);
    if (st != ST_OK)
        return blame_file(e, st);
    e->done.bytes += size;
    if (st == ST_OK && e->options->progress != NULL &&
        !e->options->progress(e->options->progress_arg, e->done.bytes))
        return ST_CLOSED;
    return st;
}

/* A part of a tensor in the type of the file; *out is valid until the next call. */
static enum status read_part(struct export_work *e, const struct ckpt_tensor *tensor,
                             const struct ckpt_values_part *part, const void **out)
{
    const struct ckpt_buffer *buffer = &e->values.buffers[tensor->buffer];
    enum ckpt_dtype want = wanted_dtype(e, buffer->dtype);
    enum status st = ckpt_values_read(&e->values, tensor, part);
    *out = e->values.stored;
    if (st != ST_OK || want == buffer->dtype)
        return st;
    ckpt_values_widen(&e->values, tensor, part->count);
    e->done.overflows += floats_narrow(want, e->values.wide, part->count, e->narrow);
    *out = e->narrow;
    return ST_OK;
}

/* Bytes of an element in the file. */
static uint64_t width_of(const struct export_work *e, const struct ckpt_tensor *tensor)
{
    return ckpt_dtype_size(wanted_dtype(e, e->values.buffers[tensor->buffer].dtype));
}

static enum status write_plain(struct export_work *e, const struct ckpt_tensor *tensor)
{
    struct ckpt_values_part part = { 0 };
    enum status st = ST_OK;
    while (st == ST_OK && ckpt_values_next(&e->values, tensor, &part)) {
        const void *data = NULL;
        st = read_part(e, tensor, &part, &data);
        if (st == ST_OK)
            st = write_bytes(e, data, part.count * width_of(e, tensor));
    }
    return st;
}

/* Columns [from, to) of a [rows, columns] tensor, as rows of the block. */
static enum status fill_block(struct export_work *e, const struct ckpt_tensor *tensor,
                              uint64_t from, uint64_t to)
{
    const uint64_t rows = tensor->dims[0], columns = tensor->dims[1], width = width_of(e, tensor);
    struct ckpt_values_part part = { 0 };
    while (ckpt_values_next(&e->values, tensor, &part)) {
        const void *data = NULL;
        enum status st = read_part(e, tensor, &part, &data);
        if (st != ST_OK)
            return st;
        uint64_t row = part.first / columns, column = part.first % columns;
        for (uint64_t i = 0; i < part.count; i++) {
            if (column >= from && column < to) {
                memcpy((char *)e->block + ((column - from) * rows + row) * width,
                       (const char *)data + i * width, width);
            }
            column = column + 1 == columns ? 0 : column + 1;
            row += column == 0;
        }
    }
    return ST_OK;
}

static enum status write_transposed(struct export_work *e, const struct ckpt_tensor *tensor)
{
    const uint64_t rows = tensor->dims[0], columns = tensor->dims[1], width = width_of(e, tensor);
    if (e->block == NULL)
        e->block = malloc(WEIGHTS_WINDOW);
    if (e->block == NULL)
        return ST_NO_MEMORY;
    const uint64_t at_once = WEIGHTS_WINDOW / (rows * width), overflows = e->done.overflows;
    if (at_once == 0)
        return ST_FULL;
    for (uint64_t from = 0; from < columns; from += at_once) {
        uint64_t to = columns - from < at_once ? columns : from + at_once;
        e->done.overflows = overflows; /* each pass counts all of them */
        enum status st = fill_block(e, tensor, from, to);
        if (st == ST_OK)
            st = write_bytes(e, e->block, (size_t)((to - from) * rows * width));
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status write_counter(struct export_work *e)
{
    int64_t steps = (int64_t)ckpt_reader_manifest(e->values.reader)->step;
    return write_bytes(e, &steps, sizeof(steps)); /* little-endian, as the machine */
}

static enum status write_items(struct export_work *e)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; i < e->count && st == ST_OK; i++) {
        const struct export_item *item = &e->items[i];
        uint64_t count = item->tensor != NULL ? ckpt_tensor_elements(item->tensor) : 1;
        if (item->tensor == NULL) {
            st = write_counter(e);
        } else if (item->name.transposed) {
            st = count > 0 ? write_transposed(e, item->tensor) : ST_OK;
        } else {
            st = write_plain(e, item->tensor);
        }
        e->done.elements += count;
        e->done.tensors++;
        if (st != ST_OK && e->reason->text[0] == '\0') {
            reason_set(e->reason, "tensor %s: %s", item->name.text, status_string(st));
        }
    }
    return st;
}

enum status weights_export(struct ckpt_reader *reader, const struct io *io, const char *path,
                           const struct weights_export *options, struct weights_exported *out,
                           struct reason *reason)
{
    struct reason why = { "" };
    struct export_work e = { .options = options, .path = path, .reason = &why };
    enum status st = ckpt_values_open(&e.values, reader);
    if (st == ST_OK)
        st = choose_tensors(&e);
    e.narrow = malloc(CKPT_VALUES_ELEMENTS * sizeof(float));
    if (st == ST_OK && e.narrow == NULL)
        st = ST_NO_MEMORY;
    if (st == ST_OK)
        st = create_file(&e, io, path);
    if (st == ST_OK)
        st = write_items(&e);
    if (st == ST_OK) {
        st = safetensors_publish(e.writer);
    } else {
        safetensors_abandon(e.writer);
    }
    if (st != ST_OK && why.text[0] == '\0')
        (void)blame_file(&e, st);
    if (st == ST_OK) {
        *out = e.done;
    } else {
        *reason = why;
    }
    free(e.items);
    free(e.tensors);
    ckpt_values_release(&e.values);
    free(e.narrow);
    free(e.block);
    return st;
}
