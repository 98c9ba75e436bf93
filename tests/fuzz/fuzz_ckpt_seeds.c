/*
 * Writes the shard files that fuzz_ckpt_shard starts from:
 *
 *     fuzz_ckpt_seeds FOLDER
 *
 * one for each level, each once for itself and once as a difference to the fuzz target's base; and
 * states whose contents lead to every other codec.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/crash/memory_io.h"
#include "tests/unit/checkpoint/codec/codec_content.h"

#define ELEMENTS 200
#define BASE     SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000020.g1"
#define DIR      SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000040.g2"
#define FILE_IN  DIR "/shard-00000-of-00001.cairn"

static void write_out(struct memory_io *memory, const char *folder, const char *name)
{
    char path[LIMIT_PATH];
    size_t size = 0;
    const uint8_t *bytes = memory_io_bytes(memory, FILE_IN, &size);
    CHECK(bytes != NULL);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    CHECK(io_replace(io_system(), path, bytes, size) == ST_OK);
}

static void make(const char *folder, const char *name, const struct ckpt_state *state,
                 enum ckpt_level level, bool differs)
{
    struct memory_io *memory = memory_io_new();
    const struct io *io = memory_io_table(memory);
    struct ckpt_reader *base = NULL;
    struct ckpt_report report;
    struct sample sample;
    sample_init(&sample, ELEMENTS, 20, 1);
    CHECK(sample_save(io, &sample, 1, NULL, NULL) == ST_OK);
    CHECK(ckpt_open(io, BASE, NULL, NULL, &base) == ST_OK);
    CHECK(io_mkdir_all(io, DIR) == ST_OK);
    struct sample_options options = { .level = level, .write = { .base = differs ? base : NULL } };
    CHECK(sample_shard_write(io, DIR, state, 0, 1, &options, &report) == ST_OK);
    CHECK((report.parent.generation != 0) == differs);
    ckpt_report_release(&report);
    ckpt_close(base);
    sample_release(&sample);
    write_out(memory, folder, name);
    memory_io_free(memory);
}

/* The base's state, some steps later. */
static void make_samples(const char *folder)
{
    static const char *const names[] = { "default", "fast", "max" };
    struct sample sample;
    sample_init(&sample, ELEMENTS, 20, 2);
    sample.state.scalars.step = 40;
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)sample.buffers[i].data;
        for (uint64_t k = 0; k < sample.buffers[i].count; k += 3)
            bytes[k * ckpt_dtype_size(sample.buffers[i].dtype)] ^= 3;
    }
    for (int level = 0; level < 3; level++) {
        char name[32];
        make(folder, names[level], &sample.state, (enum ckpt_level)level, false);
        (void)snprintf(name, sizeof(name), "%s-difference", names[level]);
        make(folder, name, &sample.state, (enum ckpt_level)level, true);
    }
    sample_release(&sample);
}

static void make_contents(const char *folder)
{
    static const struct {
        const char *name;
        enum ckpt_level level;
        enum content content;
        uint64_t words;
    } seeds[] = {
        { "rotated", CKPT_DEFAULT, CONTENT_SIGNED, 2500 },
        { "packed", CKPT_DEFAULT, CONTENT_UNSIGNED, 2500 },
        { "nibbles", CKPT_FAST, CONTENT_SIGNED, 2500 },
        { "text", CKPT_MAX, CONTENT_TEXT, 1000 },
        { "table", CKPT_MAX, CONTENT_TABLE_ODD, 16500 },
        { "table-packed", CKPT_MAX, CONTENT_TABLE, 16500 },
    };
    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++) {
        auto_free uint8_t *data = malloc(seeds[i].words * 4);
        CHECK(data != NULL);
        content_fill(seeds[i].content, 4, data, seeds[i].words * 4);
        struct ckpt_buffer buffer = {
            .name = "parameters", .dtype = CKPT_F32, .count = seeds[i].words, .data = data
        };
        struct ckpt_state state = {
            .job = SAMPLE_JOB,
            .generation = 2,
            .buffers = &buffer,
            .buffer_count = 1,
            .scalars = { .step = 40, .loss_scale = 1 },
        };
        make(folder, seeds[i].name, &state, seeds[i].level, false);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return EXIT_FAILURE;
    make_samples(argv[1]);
    make_contents(argv[1]);
    return EXIT_SUCCESS;
}
