/* ckpt diff: two checkpoints, tensor by tensor. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/compare.h"
#include "client/ask/target.h"
#include "client/ckpt/commands.h"
#include "client/print/format.h"
#include "client/print/output.h"
#include "proto/text/json.h"

#define SCALARS_MAX 8

struct scalar {
    const char *name;
    double a, b; /* for people */
    bool differs;
    bool whole;
    uint64_t whole_a, whole_b;
};

struct diff {
    char path_a[LIMIT_PATH], path_b[LIMIT_PATH];
    struct compare_tensor *tensors; /* owned */
    uint32_t count;
    struct scalar scalars[SCALARS_MAX];
    uint32_t scalar_count;
};

/* ---- scalars ---- */

static void add_whole(struct diff *diff, const char *name, uint64_t a, uint64_t b)
{
    diff->scalars[diff->scalar_count++] = (struct scalar){
        .name = name, .whole = true, .whole_a = a, .whole_b = b, .differs = a != b
    };
}

static void compare_scalars(struct diff *diff, const struct ckpt_scalars *a,
                            const struct ckpt_scalars *b)
{
    add_whole(diff, "seed", a->seed, b->seed);
    add_whole(diff, "step", a->step, b->step);
    add_whole(diff, "epoch", a->epoch, b->epoch);
    add_whole(diff, "epoch_step", a->epoch_step, b->epoch_step);
    diff->scalars[diff->scalar_count++] =
        (struct scalar){ .name = "loss_scale",
                         .a = a->loss_scale,
                         .b = b->loss_scale,
                         .differs = a->loss_scale != b->loss_scale };
    add_whole(diff, "loss_scale_good_steps", a->loss_scale_good_steps, b->loss_scale_good_steps);
    const uint64_t *steps[2];
    uint64_t count[2];
    const uint64_t older[2] = { ckpt_skips_older(a, &steps[0], &count[0]),
                                ckpt_skips_older(b, &steps[1], &count[1]) };
    add_whole(diff, "skipped_steps", older[0] + count[0], older[1] + count[1]);
    struct scalar *skips = &diff->scalars[diff->scalar_count - 1];
    skips->differs =
        skips->differs || count[0] != count[1] ||
        (count[0] > 0 && memcmp(steps[0], steps[1], count[0] * sizeof(*steps[0])) != 0);
}

/* ---- order ---- */

static int by_relative(const void *x, const void *y)
{
    double a = compare_relative(x), b = compare_relative(y);
    return (a < b) - (a > b);
}

static int by_max(const void *x, const void *y)
{
    const struct compare_tensor *a = x, *b = y;
    return (a->max_abs < b->max_abs) - (a->max_abs > b->max_abs);
}

static void sort_tensors(const char *order, struct diff *diff)
{
    if (order != NULL && strcmp(order, "relative") == 0) {
        qsort(diff->tensors, diff->count, sizeof(*diff->tensors), by_relative);
    } else if (order != NULL && strcmp(order, "max") == 0) {
        qsort(diff->tensors, diff->count, sizeof(*diff->tensors), by_max);
    }
}

static bool is_equal(const struct diff *diff)
{
    for (uint32_t i = 0; i < diff->count; i++) {
        if (diff->tensors[i].kind != COMPARE_EQUAL)
            return false;
    }
    for (uint32_t i = 0; i < diff->scalar_count; i++) {
        if (diff->scalars[i].differs)
            return false;
    }
    return true;
}

/* ---- output ---- */

static const char *kind_name(enum compare_kind kind)
{
    switch (kind) {
    case COMPARE_EQUAL:
        return "equal";
    case COMPARE_DIFFERS:
        return "differs";
    case COMPARE_SHAPE:
        return "shape";
    case COMPARE_ONLY_A:
        return "only_a";
    case COMPARE_ONLY_B:
        return "only_b";
    }
    return "?";
}

static json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *json_dtype(enum ckpt_dtype dtype)
{
    return dtype == 0 ? json_null() : json_string(target_dtype_name(dtype));
}

static json_t *json_of_difference(const struct compare_tensor *t)
{
    json_t *shape = json_array();
    for (int32_t i = 0; i < t->ndim; i++)
        (void)json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "name", t->name,
                     "result", kind_name(t->kind), "shape", shape, "dtype_a",
                     json_dtype(t->dtype_a), "dtype_b", json_dtype(t->dtype_b), "elements",
                     (json_int_t)t->elements, "differing", (json_int_t)t->differing, "bits",
                     (json_int_t)t->bits, "not_finite", (json_int_t)t->not_finite, "max_abs",
                     json_number(t->max_abs), "relative", json_number(compare_relative(t)));
}

static json_t *json_of_scalar(const struct scalar *s)
{
    if (s->whole) {
        return json_pack("{s:s, s:I, s:I, s:b}", "name", s->name, "a", (json_int_t)s->whole_a, "b",
                         (json_int_t)s->whole_b, "differs", s->differs);
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "name", s->name, "a", json_number(s->a), "b",
                     json_number(s->b), "differs", s->differs);
}

static enum exit_code print_diff_json(const struct client *client, const struct diff *diff)
{
    json_t *tensors = json_array(), *scalars = json_array();
    for (uint32_t i = 0; i < diff->count; i++)
        (void)json_array_append_new(tensors, json_of_difference(&diff->tensors[i]));
    for (uint32_t i = 0; i < diff->scalar_count; i++)
        (void)json_array_append_new(scalars, json_of_scalar(&diff->scalars[i]));
    return output_json(client,
                       json_pack("{s:o, s:o, s:b, s:o, s:o}", "a", json_from_text(diff->path_a),
                                 "b", json_from_text(diff->path_b), "equal", is_equal(diff),
                                 "scalars", scalars, "tensors", tensors));
}

static void print_tensor(const struct compare_tensor *t)
{
    char max[32], relative[32];
    switch (t->kind) {
    case COMPARE_ONLY_A:
    case COMPARE_ONLY_B:
        (void)printf("%-48s only in %s\n", t->name, t->kind == COMPARE_ONLY_A ? "A" : "B");
        return;
    case COMPARE_SHAPE:
        (void)printf("%-48s of another shape or type\n", t->name);
        return;
    case COMPARE_EQUAL:
    case COMPARE_DIFFERS:
        break;
    }
    (void)printf("%-48s %12" PRIu64 " %12" PRIu64 " %12" PRIu64 " %11s %11s", t->name, t->elements,
                 t->differing, t->bits, format_number(t->max_abs, max, sizeof(max)),
                 format_number(compare_relative(t), relative, sizeof(relative)));
    if (t->not_finite > 0)
        (void)printf("  %" PRIu64 " not finite", t->not_finite);
    if (t->dtype_a != t->dtype_b)
        (void)printf("  %s and %s", target_dtype_name(t->dtype_a), target_dtype_name(t->dtype_b));
    (void)printf("\n");
}

static void print_scalars(const struct diff *diff)
{
    for (uint32_t i = 0; i < diff->scalar_count; i++) {
        const struct scalar *s = &diff->scalars[i];
        if (!s->differs)
            continue;
        if (s->whole) {
            (void)printf("%-24s %" PRIu64 " and %" PRIu64 "\n", s->name, s->whole_a, s->whole_b);
        } else {
            (void)printf("%-24s %.17g and %.17g\n", s->name, s->a, s->b);
        }
    }
}

/* Equal tensors only with -o wide. */
static enum exit_code print_diff_text(const struct client *client, const struct diff *diff)
{
    uint32_t differing = 0;
    bool titled = false;
    if (client->args.quiet)
        return EXIT_DONE;
    print_scalars(diff);
    for (uint32_t i = 0; i < diff->count; i++) {
        const struct compare_tensor *t = &diff->tensors[i];
        differing += t->kind != COMPARE_EQUAL;
        if (t->kind == COMPARE_EQUAL && client->args.output != OUTPUT_WIDE)
            continue;
        if (!titled) {
            (void)printf("%-48s %12s %12s %12s %11s %11s\n", "TENSOR", "ELEMENTS", "DIFFERING",
                         "BITS", "MAX ABS", "RELATIVE");
        }
        titled = true;
        print_tensor(t);
    }
    (void)printf("%s: %u of %u tensors differ\n", is_equal(diff) ? "equal" : "different", differing,
                 diff->count);
    return output_text(NULL);
}

static enum exit_code print_names(const struct diff *diff)
{
    for (uint32_t i = 0; i < diff->count; i++) {
        if (diff->tensors[i].kind != COMPARE_EQUAL && printf("%s\n", diff->tensors[i].name) < 0)
            return EXIT_INTERNAL;
    }
    return output_text(NULL);
}

/* ---- the command ---- */

static enum exit_code compare_checkpoints(struct client *client, struct ckpt_reader *a,
                                          struct ckpt_reader *b, struct diff *diff)
{
    compare_scalars(diff, ckpt_reader_scalars(a), ckpt_reader_scalars(b));
    enum status st = compare_tensors(a, b, NULL, NULL, &diff->tensors, &diff->count);
    if (st != ST_OK) {
        client_error("%s, %s: %s; 'cairn ckpt verify' says where", diff->path_a, diff->path_b,
                     status_string(st));
        return exit_of_status(st);
    }
    enum exit_code code = EXIT_DONE;
    sort_tensors(client->args.sort, diff);
    if (output_is_json(client)) {
        code = print_diff_json(client, diff);
    } else if (client->args.output == OUTPUT_NAME) {
        code = print_names(diff);
    } else {
        code = print_diff_text(client, diff);
    }
    if (code == EXIT_DONE && !is_equal(diff))
        code = EXIT_DIFFERENT;
    free(diff->tensors);
    return code;
}

enum exit_code cmd_ckpt_diff(struct client *client)
{
    struct diff diff = { .count = 0 };
    struct ckpt_reader *a = NULL, *b = NULL;
    const char *order = client->args.sort;
    if (order != NULL && strcmp(order, "stored") != 0 && strcmp(order, "relative") != 0 &&
        strcmp(order, "max") != 0) {
        client_error("--sort takes stored, relative or max, not '%s'", order);
        return EXIT_USAGE;
    }
    enum exit_code code = target_open(client, client->args.operands[0], diff.path_a, &a);
    if (code == EXIT_DONE)
        code = target_open(client, client->args.operands[1], diff.path_b, &b);
    if (code == EXIT_DONE)
        code = compare_checkpoints(client, a, b, &diff);
    ckpt_close(a);
    ckpt_close(b);
    return code;
}
