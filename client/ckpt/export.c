/* ckpt export: a checkpoint's tensors as a safetensors file. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "checkpoint/weights/weights.h"
#include "client/ask/target.h"
#include "client/base/interrupt.h"
#include "client/ckpt/commands.h"
#include "client/print/format.h"
#include "client/print/output.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "jobspec/jobspec.h"
#include "library/stored/stored.h"
#include "proto/text/json.h"

#define JOB_BLOB      "job.yaml"
#define ERRORS_MAX    ((size_t)64 << 10)
#define LINE_EVERY_MS 200

/* ---- flags ---- */

static bool one_of(const char *given, const char *flag, const char *first, const char *second,
                   bool *out_second)
{
    *out_second = given != NULL && strcmp(given, second) == 0;
    if (given == NULL || *out_second || strcmp(given, first) == 0)
        return true;
    client_error("--%s takes %s or %s, not '%s'", flag, first, second, given);
    return false;
}

static bool take_type(const char *given, enum ckpt_dtype *out)
{
    static const enum ckpt_dtype dtypes[] = { CKPT_F32, CKPT_BF16, CKPT_F16 };
    for (size_t i = 0; given != NULL && i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(given, target_dtype_name(dtypes[i])) == 0) {
            *out = dtypes[i];
            return true;
        }
    }
    if (given != NULL)
        client_error("--dtype takes f32, bf16 or f16, not '%s'", given);
    return given == NULL;
}

static enum exit_code take_flags(const struct client *client, struct weights_export *out)
{
    const struct arguments *args = &client->args;
    bool good = one_of(args->names, "names", "hf", "cairn", &out->own_names) &&
                one_of(args->only, "only", "model", "all", &out->all) &&
                take_type(args->dtype, &out->dtype);
    out->replace = args->force;
    return good ? EXIT_DONE : EXIT_USAGE;
}

/* ---- the model ---- */

/* The model, from the job file that the checkpoint was saved with. */
static enum exit_code find_model(const struct client *client, struct ckpt_reader *reader,
                                 const char *path, struct jobspec_model *out)
{
    auto_free char *text = NULL;
    auto_free struct jobspec *job = malloc(sizeof(*job));
    auto_buf struct buf errors;
    size_t size = 0;
    buf_init(&errors, ERRORS_MAX);
    if (job == NULL)
        return EXIT_INTERNAL;
    enum status st = ckpt_read_blob(reader, JOB_BLOB, &text, &size);
    if (st != ST_OK && st != ST_NOT_FOUND)
        return target_report(client, path, st);
    if (st == ST_OK)
        st = jobspec_parse(text, size, JOB_BLOB, "/", NULL, 0, job, &errors);
    if (st != ST_OK) {
        client_error("%s: the job file in it %s, so that its model isn't known; export it with "
                     "--names cairn",
                     path, st == ST_NOT_FOUND ? "is missing" : "can't be read by this version");
        return EXIT_REFUSED;
    }
    *out = job->model;
    return EXIT_DONE;
}

/* ---- a program's ---- */

static bool is_program(const struct ckpt_reader *reader)
{
    const char *name = NULL;
    uint64_t size = 0;
    for (uint32_t i = 0; ckpt_reader_blob(reader, i, &name, &size); i++) {
        if (strcmp(name, PLACE_AREAS) == 0)
            return true;
    }
    return false;
}

/* Tensors of a program, of all ranks, each name once. */
static uint64_t count_names(const struct cairn_state *state)
{
    uint64_t count = 0;
    const char *before = NULL;
    for (uint64_t i = 0; i < state->info.tensors; i++) {
        const char *name = state->tensors[state->by_name[i]].entry.name;
        count += before == NULL || strcmp(name, before) != 0;
        before = name;
    }
    return count;
}

/* The checkpoint's table has those that all ranks hold alike, and that the format can name. */
static enum exit_code look_at_program(const struct client *client, struct ckpt_reader *reader,
                                      const char *path)
{
    const struct ckpt_tensor *tensors = NULL;
    struct cairn_state *state = NULL;
    struct reason why = { "" };
    const enum status st = stored_open_checkpoint(path, &state, &why);
    if (st != ST_OK) {
        client_error("%s: %s", path, why.text[0] != '\0' ? why.text : status_string(st));
        return exit_of_status(st);
    }
    const uint64_t all = count_names(state), here = ckpt_reader_tensors(reader, &tensors);
    cairn_state_close(state);
    if (here == 0 && all > 0) {
        client_error("%s: this command writes tensors that all ranks hold alike, and here are none "
                     "that it can; 'python3 -m cairn export %s %s' writes all",
                     path, path, client->args.operands[1]);
        return EXIT_REFUSED;
    }
    if (all > here) {
        client_note(client,
                    "%" PRIu64 " of %" PRIu64 " tensors are left out: sharded ones, what is each "
                    "rank's own (as batch norm's), other types, more than 4 dimensions; 'python3 "
                    "-m cairn export %s FILE' writes all\n",
                    all - here, all, path);
    }
    return EXIT_DONE;
}

/* ---- the file ---- */

struct shown {
    const struct client *client;
    bool line; /* there is a terminal for it */
    int64_t shown_ms;
};

/* Ctrl-C ends it here, so that no half file is left. */
static bool show_exported(void *arg, uint64_t bytes)
{
    struct shown *shown = arg;
    int64_t now = clock_mono_ms(clock_system());
    char text[32];
    if (interrupt_came(shown->client))
        return false;
    if (!shown->line || now - shown->shown_ms < LINE_EVERY_MS)
        return true;
    shown->shown_ms = now;
    (void)fprintf(stderr, "\r\033[Kexport: %s", format_bytes(bytes, text, sizeof(text)));
    return true;
}

static enum exit_code print_done(const struct client *client, const char *file,
                                 const struct weights_exported *done)
{
    char size[32];
    if (output_is_json(client)) {
        return output_json(client,
                           json_pack("{s:o, s:I, s:I, s:I, s:I}", "file", json_from_text(file),
                                     "tensors", (json_int_t)done->tensors, "elements",
                                     (json_int_t)done->elements, "bytes", (json_int_t)done->bytes,
                                     "overflows", (json_int_t)done->overflows));
    }
    if (done->overflows > 0) {
        client_error("%llu values are beyond this type's range and became infinite; bf16 and f32 "
                     "have room for them",
                     (unsigned long long)done->overflows);
    }
    if (client->args.output == OUTPUT_NAME)
        return printf("%s\n", file) < 0 ? EXIT_INTERNAL : output_text(NULL);
    client_note(client, "%s: %u tensors, %s\n", file, done->tensors,
                format_bytes(done->bytes, size, sizeof(size)));
    return EXIT_DONE;
}

static enum exit_code write_weights(const struct client *client, const char *path,
                                    struct ckpt_reader *reader, struct weights_export *options)
{
    const char *file = client->args.operands[1];
    struct shown shown = { .client = client, .shown_ms = clock_mono_ms(clock_system()) };
    struct weights_exported done = { 0 };
    struct reason why;
    shown.line = client->terminal && !client->args.quiet && isatty(STDERR_FILENO) == 1;
    options->progress = show_exported;
    options->progress_arg = &shown;
    enum status st = weights_export(reader, io_system(), file, options, &done, &why);
    if (shown.line)
        (void)fprintf(stderr, "\r\033[K");
    if (st == ST_OK)
        return print_done(client, file, &done);
    if (st == ST_CLOSED) {
        client_error("interrupted; %s was not written", file);
        return EXIT_DETACHED;
    }
    if (exit_of_status(st) == EXIT_DAMAGED) {
        client_error("%s: %s; 'cairn ckpt verify' says where", path, why.text);
    } else {
        client_error("%s", why.text);
    }
    return exit_of_status(st);
}

enum exit_code cmd_ckpt_export(struct client *client)
{
    struct weights_export options = { .arch = "" };
    struct jobspec_model model = { .arch = JOBSPEC_ARCH_NONE };
    char path[LIMIT_PATH];
    struct ckpt_reader *reader = NULL;
    enum exit_code code = take_flags(client, &options);
    if (code == EXIT_DONE && ckpt_store_is_object(client->args.operands[1])) {
        client_error("%s: export writes a file; copy it there afterwards",
                     client->args.operands[1]);
        code = EXIT_USAGE;
    }
    if (code == EXIT_DONE && !interrupt_catch(client))
        code = EXIT_INTERNAL;
    if (code == EXIT_DONE)
        code = target_open(client, client->args.operands[0], path, &reader);
    if (code == EXIT_DONE && is_program(reader)) {
        code = look_at_program(client, reader, path);
        options.own_names = options.all = true;
    } else if (code == EXIT_DONE && !options.own_names) {
        code = find_model(client, reader, path, &model);
        options.arch = jobspec_arch_word(model.arch);
    }
    if (code == EXIT_DONE)
        code = write_weights(client, path, reader, &options);
    const bool has_config = model.arch == JOBSPEC_ARCH_LLAMA || model.arch == JOBSPEC_ARCH_VIT ||
                            model.arch == JOBSPEC_ARCH_BERT;
    if (code == EXIT_DONE && has_config)
        code = ckpt_write_config(client, client->args.operands[1], &model, reader, &options);
    ckpt_close(reader);
    return code;
}
