/* What is written is read back; what breaks a rule of the format is refused, each with its cause.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/weights/floats.h"
#include "checkpoint/weights/safetensors.h"
#include "common/cleanup.h"
#include "tests/test.h"

static char folder[] = "/tmp/cairn-safetensors-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static const char *in_folder(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* ---- refusals ---- */

#define ONE "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"

static void a_header_that_breaks_a_rule_is_refused_with_its_cause(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t data_size;
        const char *cause;
    } cases[] = {
        { "", 0, "the header doesn't begin with {" },
        { " {}", 0, "the header doesn't begin with {" },
        { "[]", 0, "the header doesn't begin with {" },
        { "{", 0, "the header is no JSON" },
        { "{} {}", 0, "the header is no JSON" },
        { "{\"a\xff\":1}", 0, "the header is no JSON" },
        { "{\"a\\u0000\":1}", 0, "the header is no JSON" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
          "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
          16, "duplicate object key" },
        { "{\"a\":7}", 0, "tensor a: it isn't {dtype, shape, data_offsets}" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "tensor a: it isn't {dtype" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
          "tensor a: it isn't {dtype" },
        { "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
          "tensor a: dtype F33 is none that this version knows" },
        { "{\"a\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor a: dtype" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "its shape isn't" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
          "its shape isn't" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8,
          "its shape isn't" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
          "its shape isn't" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,9],\"data_offsets\":[0,8]}}", 8,
          "its shape and dtype don't take 8 bytes" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
          "its shape and dtype don't take 8 bytes" },
        { "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1,
          "its shape and dtype don't take 1 bytes" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8,
          "its data_offsets aren't two numbers" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
          "its data_offsets [8, 0] lie outside" },
        { ONE, 7, "its data_offsets [0, 8] lie outside the file's 7 bytes" },
        { ONE, 9, "1 bytes behind the last tensor belong to none" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
          5, "tensor b: it begins at byte 3 where 2 was due: there is a hole" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}",
          5, "tensor b: it begins at byte 2 where 3 was due: it overlaps another" },
        { "{\"__metadata__\":[]}", 0, "__metadata__ isn't an object" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: a isn't a text" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct safetensors *file = NULL;
        struct reason message = { "" };
        assert_int_equal(safetensors_parse(cases[i].header, strlen(cases[i].header),
                                           cases[i].data_size, &file, &message),
                         ST_CORRUPT);
        assert_null(file);
        if (strstr(message.text, cases[i].cause) == NULL)
            fail_msg("case %zu: '%s' doesn't say '%s'", i, message.text, cases[i].cause);
    }
}

static void a_header_over_the_limit_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    struct safetensors *file = NULL;
    struct reason message = { "" };
    assert_int_equal(
        safetensors_parse("{}", (size_t)SAFETENSORS_HEADER_MAX + 1, 0, &file, &message),
        ST_CORRUPT);
    assert_non_null(strstr(message.text, "over the limit"));
}

static void sound_headers_are_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t data_size;
        uint32_t count;
    } cases[] = {
        { "{}", 0, 0 },
        { "{}     ", 0, 0 },
        { ONE, 8, 1 },
        { "{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0 },
        { "{\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8, 1 },
        /* one that is empty, in front of one that begins at the same byte */
        { "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
          "\"a\":{\"dtype\":\"U8\",\"shape\":[0,5],\"data_offsets\":[0,0]}}",
          2, 2 },
        { "{\"x\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2, 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct safetensors *file = NULL;
        const struct safetensors_tensor *tensors = NULL;
        struct reason message = { "" };
        assert_int_equal(safetensors_parse(cases[i].header, strlen(cases[i].header),
                                           cases[i].data_size, &file, &message),
                         ST_OK);
        assert_int_equal(safetensors_tensors(file, &tensors), cases[i].count);
        safetensors_close(file);
    }
}

/* ---- files ---- */

static enum status write_bytes(const char *path, const void *bytes, size_t size)
{
    (void)unlink(path);
    return io_publish(io_system(), path, bytes, size);
}

static void a_file_that_is_none_is_refused(void **state)
{
    (void)state;
    const char *path = in_folder("odd");
    struct safetensors *file = NULL;
    struct reason message = { "" };
    static const struct {
        const char *bytes;
        size_t size;
        const char *cause;
    } cases[] = {
        { "", 0, "no safetensors file" },
        { "\2\0\0\0\0\0\0", 7, "no safetensors file" },
        { "\2\0\0\0\0\0\0\0{", 9, "it ends within its header of 2 bytes" },
        { "\2\0\0\0\0\0\0\0{}x", 11, "1 bytes behind the last tensor" },
        { "something else", 14, "over the limit" },
        { "PK\3\4 not it", 12, "torch.save" },
        { "version https://git-lfs", 23, "git lfs pull" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(write_bytes(path, cases[i].bytes, cases[i].size), ST_OK);
        assert_int_equal(safetensors_open(io_system(), path, &file, &message), ST_CORRUPT);
        if (strstr(message.text, cases[i].cause) == NULL)
            fail_msg("case %zu: '%s' doesn't say '%s'", i, message.text, cases[i].cause);
    }
    assert_int_equal(safetensors_open(io_system(), folder, &file, &message), ST_CORRUPT);
    (void)unlink(path);
    assert_int_equal(safetensors_open(io_system(), path, &file, &message), ST_NOT_FOUND);
}

static struct safetensors_tensor sample[2] = {
    { .name = "layer.weight", .dtype = SAFETENSORS_F32, .ndim = 2, .dims = { 3, 2 } },
    { .name = "größe \"x\"", .dtype = SAFETENSORS_BF16, .ndim = 1, .dims = { 3 } },
};
static const struct safetensors_text sample_texts[1] = { { "format", "pt" } };

static enum status begin(const char *path, bool replace, struct safetensors_writer **out)
{
    struct safetensors_content content = {
        .tensors = sample, .tensor_count = 2, .metadata = sample_texts, .metadata_count = 1
    };
    return safetensors_create(io_system(), path, replace, &content, out);
}

static const float floats[6] = { 1, -2, 0.5f, 3e38f, -0.0f, 7 };
static const uint16_t halves[3] = { 1, 2, 3 };

static void write_sample(const char *path, bool replace)
{
    struct safetensors_writer *writer = NULL;
    assert_int_equal(begin(path, replace, &writer), ST_OK);
    assert_int_equal(safetensors_write(writer, floats, 10), ST_OK);
    assert_int_equal(safetensors_write(writer, (const char *)floats + 10, sizeof(floats) - 10),
                     ST_OK);
    assert_int_equal(safetensors_write(writer, halves, sizeof(halves)), ST_OK);
    assert_int_equal(safetensors_publish(writer), ST_OK);
}

static void what_was_written_is_read_back(void **state)
{
    (void)state;
    const char *path = in_folder("good.safetensors");
    struct reason message = { "" };
    struct safetensors *file = NULL;
    write_sample(path, false);
    assert_int_equal(safetensors_open(io_system(), path, &file, &message), ST_OK);
    const struct safetensors_tensor *weight = safetensors_find(file, "layer.weight");
    const struct safetensors_tensor *other = safetensors_find(file, "größe \"x\"");
    float read[6];
    uint16_t part[2];
    assert_non_null(weight);
    assert_non_null(other);
    assert_int_equal(weight->ndim, 2);
    assert_int_equal(weight->dims[0], 3);
    assert_int_equal(other->dtype, SAFETENSORS_BF16);
    assert_int_equal(safetensors_read(file, weight, 0, sizeof(read), read), ST_OK);
    assert_memory_equal(read, floats, sizeof(read));
    assert_int_equal(safetensors_read(file, other, 2, sizeof(part), part), ST_OK);
    assert_memory_equal(part, halves + 1, sizeof(part));
    assert_int_equal(safetensors_read(file, other, 4, sizeof(part), part), ST_INVALID);
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    assert_null(safetensors_metadata(file, "nothing"));
    assert_null(safetensors_find(file, "nothing"));
    safetensors_close(file);
    (void)unlink(path);
}

static void data_begins_at_a_multiple_of_eight(void **state)
{
    (void)state;
    const char *path = in_folder("aligned.safetensors");
    auto_free char *bytes = NULL;
    size_t size = 0;
    write_sample(path, false);
    assert_int_equal(io_read_file(io_system(), path, 4096, &bytes, &size), ST_OK);
    size_t header = (uint8_t)bytes[0] + (size_t)256 * (uint8_t)bytes[1];
    assert_int_equal(header % 8, 0);
    assert_int_equal(size, 8 + header + sizeof(floats) + sizeof(halves));
    (void)unlink(path);
}

static void a_file_that_is_there_is_left_alone_unless_it_is_to_be_replaced(void **state)
{
    (void)state;
    const char *path = in_folder("there");
    struct safetensors_writer *writer = NULL;
    auto_free char *bytes = NULL;
    size_t size = 0;
    assert_int_equal(write_bytes(path, "mine", 4), ST_OK);
    assert_int_equal(begin(path, false, &writer), ST_EXISTS);
    assert_int_equal(io_read_file(io_system(), path, 4096, &bytes, &size), ST_OK);
    assert_int_equal(size, 4);
    write_sample(path, true);
    (void)unlink(path);
    /* one that came to be meanwhile */
    assert_int_equal(begin(path, false, &writer), ST_OK);
    assert_int_equal(safetensors_write(writer, floats, sizeof(floats)), ST_OK);
    assert_int_equal(safetensors_write(writer, halves, sizeof(halves)), ST_OK);
    assert_int_equal(write_bytes(path, "mine", 4), ST_OK);
    assert_int_equal(safetensors_publish(writer), ST_EXISTS);
    (void)unlink(path); /* the folder is empty then, or it can't be removed */
}

static void an_unfinished_file_never_gets_its_name(void **state)
{
    (void)state;
    const char *path = in_folder("unfinished");
    struct safetensors_writer *writer = NULL;
    assert_int_equal(begin(path, false, &writer), ST_OK);
    assert_int_equal(safetensors_write(writer, floats, sizeof(floats)), ST_OK);
    assert_int_equal(safetensors_publish(writer), ST_INVALID);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(begin(path, false, &writer), ST_OK);
    assert_int_equal(safetensors_write(writer, floats, sizeof(floats)), ST_OK);
    assert_int_equal(safetensors_write(writer, floats, sizeof(floats)), ST_INVALID);
    safetensors_abandon(writer);
    assert_int_equal(access(path, F_OK), -1);
}

static void names_that_occur_twice_or_are_no_text_are_not_written(void **state)
{
    (void)state;
    struct safetensors_tensor twice[2] = { { .name = "a" }, { .name = "a" } };
    struct safetensors_tensor wrong = { .name = "a\xff" };
    struct safetensors_content content = { .tensors = twice, .tensor_count = 2 };
    struct safetensors_writer *writer = NULL;
    const char *path = in_folder("never");
    assert_int_equal(safetensors_create(io_system(), path, false, &content, &writer), ST_INVALID);
    content = (struct safetensors_content){ .tensors = &wrong, .tensor_count = 1 };
    assert_int_equal(safetensors_create(io_system(), path, false, &content, &writer), ST_INVALID);
}

/* ---- files of the reference library ---- */

static void files_of_the_reference_library_are_read(void **state)
{
    (void)state;
    struct safetensors *file = NULL;
    struct reason message = { "" };
    static const float weight[6] = { 0, 0.25f, 0.5f, 0.75f, 1, 1.25f };
    static const struct {
        const char *name;
        enum safetensors_dtype dtype;
        uint64_t size;
    } tensors[] = {
        { "brain", SAFETENSORS_BF16, 4 },  { "byte", SAFETENSORS_U8, 3 },
        { "empty", SAFETENSORS_F32, 0 },   { "half", SAFETENSORS_F16, 6 },
        { "mask", SAFETENSORS_BOOL, 2 },   { "steps", SAFETENSORS_I64, 8 },
        { "weight", SAFETENSORS_F32, 24 },
    };
    const struct safetensors_tensor *list = NULL;
    assert_int_equal(safetensors_open(io_system(), GOLDEN "/mixed.safetensors", &file, &message),
                     ST_OK);
    assert_int_equal(safetensors_tensors(file, &list), sizeof(tensors) / sizeof(tensors[0]));
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        assert_string_equal(list[i].name, tensors[i].name);
        assert_int_equal(list[i].dtype, tensors[i].dtype);
        assert_int_equal(list[i].size, tensors[i].size);
    }
    float read[6];
    int64_t steps = 0;
    assert_int_equal(safetensors_read(file, &list[6], 0, sizeof(read), read), ST_OK);
    assert_memory_equal(read, weight, sizeof(read));
    assert_int_equal(safetensors_read(file, &list[5], 0, sizeof(steps), &steps), ST_OK);
    assert_int_equal(steps, 7);
    assert_string_equal(safetensors_metadata(file, "note"), "größe");
    safetensors_close(file);
    assert_int_equal(safetensors_open(io_system(), GOLDEN "/none.safetensors", &file, &message),
                     ST_OK);
    assert_int_equal(safetensors_tensors(file, &list), 0);
    safetensors_close(file);
}

/* ---- floats ---- */

static void every_half_survives_a_round_trip(void **state)
{
    (void)state;
    static const enum ckpt_dtype dtypes[] = { CKPT_F16, CKPT_BF16 };
    for (size_t d = 0; d < 2; d++) {
        for (uint32_t bits = 0; bits < 65536; bits++) {
            uint16_t half = (uint16_t)bits, back = 0;
            float wide = 0;
            floats_widen(dtypes[d], &half, 1, &wide);
            assert_int_equal(floats_narrow(dtypes[d], &wide, 1, &back), 0);
            if (isnan(wide)) /* may become quiet */
                back = (uint16_t)((back & ~0x240u) | (half & 0x240u));
            assert_int_equal(back, half);
        }
    }
}

static void narrowing_rounds_to_the_nearest_and_ties_to_even(void **state)
{
    (void)state;
    static const struct {
        enum ckpt_dtype dtype;
        float in;
        uint16_t out;
        size_t overflows;
    } cases[] = {
        { CKPT_F16, 1.0f, 0x3c00, 0 },
        { CKPT_F16, 1.00048828125f, 0x3c00, 0 },
        { CKPT_F16, 1.001f, 0x3c01, 0 },
        { CKPT_F16, 1.00146484375f, 0x3c02, 0 },
        { CKPT_F16, 65504.0f, 0x7bff, 0 },
        { CKPT_F16, 65519.0f, 0x7bff, 0 },
        { CKPT_F16, 65520.0f, 0x7c00, 1 },
        { CKPT_F16, -1e9f, 0xfc00, 1 },
        { CKPT_F16, INFINITY, 0x7c00, 0 },
        { CKPT_F16, 0x1p-24f, 0x0001, 0 },
        { CKPT_F16, 0x1p-25f, 0x0000, 0 },
        { CKPT_F16, 0x1.8p-25f, 0x0001, 0 },
        { CKPT_F16, 0x1.8p-24f, 0x0002, 0 },
        { CKPT_F16, 0x1.ffcp-15f, 0x0400, 0 },
        { CKPT_F16, -0.0f, 0x8000, 0 },
        { CKPT_BF16, 1.0f, 0x3f80, 0 },
        { CKPT_BF16, 0x1.01p0f, 0x3f80, 0 },
        { CKPT_BF16, 0x1.03p0f, 0x3f82, 0 },
        { CKPT_BF16, 0x1.fffffep127f, 0x7f80, 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint16_t out = 0;
        assert_int_equal(floats_narrow(cases[i].dtype, &cases[i].in, 1, &out), cases[i].overflows);
        if (out != cases[i].out)
            fail_msg("case %zu: %04x, not %04x", i, out, cases[i].out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_that_breaks_a_rule_is_refused_with_its_cause),
        cmocka_unit_test(a_header_over_the_limit_is_refused_before_it_is_parsed),
        cmocka_unit_test(sound_headers_are_accepted),
        cmocka_unit_test(a_file_that_is_none_is_refused),
        cmocka_unit_test(what_was_written_is_read_back),
        cmocka_unit_test(data_begins_at_a_multiple_of_eight),
        cmocka_unit_test(a_file_that_is_there_is_left_alone_unless_it_is_to_be_replaced),
        cmocka_unit_test(an_unfinished_file_never_gets_its_name),
        cmocka_unit_test(names_that_occur_twice_or_are_no_text_are_not_written),
        cmocka_unit_test(files_of_the_reference_library_are_read),
        cmocka_unit_test(every_half_survives_a_round_trip),
        cmocka_unit_test(narrowing_rounds_to_the_nearest_and_ties_to_even),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
