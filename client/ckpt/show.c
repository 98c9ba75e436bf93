/* ckpt show: what a checkpoint holds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/target.h"
#include "client/ckpt/commands.h"
#include "client/print/format.h"
#include "client/print/output.h"
#include "proto/text/json.h"

static json_t *json_of_files(const struct ckpt_manifest *manifest)
{
    json_t *files = json_array();
    for (uint32_t i = 0; files != NULL && i < manifest->file_count; i++) {
        char hash[33];
        ckpt_hash_text(&manifest->files[i].hash, hash);
        (void)json_array_append_new(
            files, json_pack("{s:s, s:I, s:s}", "name", manifest->files[i].name, "size",
                             (json_int_t)manifest->files[i].size, "xxh3_128", hash));
    }
    return files;
}

static json_t *json_of_buffers(const struct ckpt_reader *reader)
{
    const struct ckpt_buffer *buffers = NULL;
    uint32_t count = ckpt_reader_buffers(reader, &buffers);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "name", buffers[i].name,
                                                    "dtype", target_dtype_name(buffers[i].dtype),
                                                    "count", (json_int_t)buffers[i].count));
    }
    return list;
}

static json_t *json_of_tensors(const struct ckpt_reader *reader)
{
    const struct ckpt_buffer *buffers = NULL;
    const struct ckpt_tensor *tensors = NULL;
    (void)ckpt_reader_buffers(reader, &buffers);
    uint32_t count = ckpt_reader_tensors(reader, &tensors);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const struct ckpt_tensor *t = &tensors[i];
        const struct ckpt_buffer *buffer = &buffers[t->buffer];
        json_t *shape = json_array();
        for (int32_t d = 0; d < t->ndim; d++)
            (void)json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
        uint64_t bytes = ckpt_tensor_elements(t) * ckpt_dtype_size(buffer->dtype);
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:o, s:I, s:s, s:I, s:I}", "name", t->name, "dtype",
                            target_dtype_name(buffer->dtype), "shape", shape, "bytes",
                            (json_int_t)bytes, "in", buffer->name, "buffer", (json_int_t)t->buffer,
                            "offset", (json_int_t)t->offset));
    }
    return list;
}

static json_t *json_of_blobs(const struct ckpt_reader *reader)
{
    json_t *list = json_array();
    const char *name = NULL;
    uint64_t size = 0;
    for (uint32_t i = 0; ckpt_reader_blob(reader, i, &name, &size); i++) {
        (void)json_array_append_new(
            list, json_pack("{s:s, s:I}", "name", name, "size", (json_int_t)size));
    }
    return list;
}

static json_t *json_of_scalars(const struct ckpt_reader *reader)
{
    const struct ckpt_scalars *s = ckpt_reader_scalars(reader);
    json_t *skip = json_array();
    const uint64_t *steps;
    uint64_t count;
    const uint64_t older = ckpt_skips_older(s, &steps, &count);
    for (uint64_t i = 0; i < count; i++)
        (void)json_array_append_new(skip, json_integer((json_int_t)steps[i]));
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:I, s:o, s:I}", "seed", (json_int_t)s->seed,
                     "step", (json_int_t)s->step, "epoch", (json_int_t)s->epoch, "epoch_step",
                     (json_int_t)s->epoch_step, "loss_scale", s->loss_scale,
                     "loss_scale_good_steps", (json_int_t)s->loss_scale_good_steps, "skip", skip,
                     "skip_older", (json_int_t)older);
}

/* The checkpoint that this one is a difference to; null: it is whole. */
static json_t *json_of_parent(const struct ckpt_manifest *manifest)
{
    if (manifest->parent.generation == 0)
        return json_null();
    return json_pack("{s:I, s:I}", "step", (json_int_t)manifest->parent.step, "generation",
                     (json_int_t)manifest->parent.generation);
}

static enum exit_code show_json(const struct client *client, const struct target_folder *folder,
                                const struct ckpt_reader *reader)
{
    const struct ckpt_manifest *m = ckpt_reader_manifest(reader);
    char digest[33];
    ckpt_hash_text(&m->digest, digest);
    json_t *times = folder->timed ? json_from_message(&folder->times.base) : json_null();
    json_t *object = json_pack(
        "{s:o, s:s, s:I, s:I, s:o, s:s, s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "path",
        json_from_text(folder->path), "job", m->job, "step", (json_int_t)m->step, "generation",
        (json_int_t)m->generation, "parent", json_of_parent(m), "digest", digest, "committed_at",
        m->created_at, "times", times, "raw_bytes", (json_int_t)m->raw_bytes, "files",
        json_of_files(m), "buffers", json_of_buffers(reader), "scalars", json_of_scalars(reader),
        "blobs", json_of_blobs(reader), "tensors", json_of_tensors(reader));
    return output_json(client, object);
}

static void show_tensors(const struct ckpt_reader *reader)
{
    const struct ckpt_buffer *buffers = NULL;
    const struct ckpt_tensor *tensors = NULL;
    (void)ckpt_reader_buffers(reader, &buffers);
    uint32_t count = ckpt_reader_tensors(reader, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        const struct ckpt_buffer *buffer = &buffers[tensors[i].buffer];
        (void)printf("tensor       %-44s %-4s [", tensors[i].name,
                     target_dtype_name(buffer->dtype));
        for (int32_t d = 0; d < tensors[i].ndim; d++)
            (void)printf("%s%" PRIu64, d > 0 ? ", " : "", tensors[i].dims[d]);
        (void)printf("]  %" PRIu64 " bytes, %s from %" PRIu64 "\n",
                     ckpt_tensor_elements(&tensors[i]) * ckpt_dtype_size(buffer->dtype),
                     buffer->name, tensors[i].offset);
    }
}

static void show_scalars(const struct ckpt_reader *reader)
{
    const struct ckpt_scalars *s = ckpt_reader_scalars(reader);
    const uint64_t *steps;
    uint64_t count;
    const uint64_t older = ckpt_skips_older(s, &steps, &count);
    (void)printf("scalars      seed %" PRIu64 ", next epoch %" PRIu64 " step %" PRIu64
                 ", loss scale %.9g (%" PRIu64 " good steps), %" PRIu64 " steps left out\n",
                 s->seed, s->epoch, s->epoch_step, s->loss_scale, s->loss_scale_good_steps,
                 older + count);
}

static void show_times(const Cairn__V1__SaveTimes *times)
{
    char stall[32], encode[32], write[32], sync[32], save[32], commit[32];
    (void)printf(
        "times        step waited %s, processor %s, writes %s, sync %s, save %s, commit %s\n",
        format_us(times->stall_us, stall, sizeof(stall)),
        format_us(times->encode_us, encode, sizeof(encode)),
        format_us(times->write_us, write, sizeof(write)),
        format_us(times->sync_us, sync, sizeof(sync)),
        format_us(times->save_us, save, sizeof(save)),
        format_us(times->commit_us, commit, sizeof(commit)));
}

static void show_files(const struct ckpt_reader *reader)
{
    const struct ckpt_manifest *m = ckpt_reader_manifest(reader);
    const struct ckpt_buffer *buffers = NULL;
    uint32_t buffer_count = ckpt_reader_buffers(reader, &buffers);
    const char *name = NULL;
    uint64_t size = 0;
    for (uint32_t i = 0; i < m->file_count; i++)
        (void)printf("file         %-28s %" PRIu64 " bytes\n", m->files[i].name, m->files[i].size);
    for (uint32_t i = 0; i < buffer_count; i++) {
        (void)printf("buffer       %-28s %" PRIu64 " x %s\n", buffers[i].name, buffers[i].count,
                     target_dtype_name(buffers[i].dtype));
    }
    for (uint32_t i = 0; ckpt_reader_blob(reader, i, &name, &size); i++)
        (void)printf("blob         %-28s %" PRIu64 " bytes\n", name, size);
}

static enum exit_code show_text(const struct client *client, const struct target_folder *folder,
                                const struct ckpt_reader *reader)
{
    const struct ckpt_manifest *m = ckpt_reader_manifest(reader);
    const struct ckpt_tensor *tensors = NULL;
    uint64_t stored = 0;
    char hash[33];
    ckpt_hash_text(&m->digest, hash);
    for (uint32_t i = 0; i < m->file_count; i++)
        stored += m->files[i].size;
    (void)output_printf(client,
                        "path         %s\njob          %s\nstep         %" PRIu64 "\n"
                        "attempt      %" PRIu64 "\ncommitted    %s\ndigest       %s\n",
                        folder->path, m->job, m->step, m->generation, m->created_at, hash);
    if (m->parent.generation > 0) {
        (void)printf("parent       step %" PRIu64 " of attempt %" PRIu64
                     ": holds differences to it\n",
                     m->parent.step, m->parent.generation);
    }
    (void)printf("bytes        %" PRIu64 " of %" PRIu64 " raw, ratio %.3f\n", stored, m->raw_bytes,
                 stored == 0 ? 0 : (double)m->raw_bytes / (double)stored);
    if (folder->timed)
        show_times(&folder->times);
    show_scalars(reader);
    show_files(reader);
    uint32_t count = ckpt_reader_tensors(reader, &tensors);
    (void)printf("tensors      %u%s\n", count,
                 client->args.output == OUTPUT_WIDE ? "" : " (-o wide lists them)");
    if (client->args.output == OUTPUT_WIDE)
        show_tensors(reader);
    return output_text(NULL);
}

enum exit_code cmd_ckpt_show(struct client *client)
{
    struct target_folder folder;
    struct ckpt_reader *reader = NULL;
    enum exit_code code = target_find_folder(client, client->args.operands[0], &folder);
    if (code != EXIT_DONE)
        return code;
    if (client->args.output == OUTPUT_NAME)
        return output_printf(client, "%s\n", folder.path) < 0 ? EXIT_INTERNAL : output_text(NULL);
    code = target_open_at(client, folder.path, &reader);
    if (code != EXIT_DONE)
        return code;
    code = output_is_json(client) ? show_json(client, &folder, reader)
                                  : show_text(client, &folder, reader);
    ckpt_close(reader);
    return code;
}
