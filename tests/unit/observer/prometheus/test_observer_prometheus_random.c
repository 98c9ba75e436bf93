/* Messages of random content, as no coordinator would send them: the text is well-formed all the
 * same, no two lines of one name and labels, and within its bound. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/rng.h"
#include "tests/test.h"
#include "tests/unit/observer/prometheus/prometheus_fixture.h"

#define ROUNDS      400
#define ARENA_BYTES ((size_t)8 * 1024 * 1024)
#define LIST_MAX    6

/* One round's messages. */
struct source {
    uint32_t round, drawn;
    size_t used;
    _Alignas(16) char arena[ARENA_BYTES];
};

static uint32_t draw(struct source *source, uint32_t below)
{
    const struct rng_counter words = rng_words(7, source->round, source->drawn++, 0, 0);
    return rng_below(words.word[0], below);
}

static void *take(struct source *source, size_t size)
{
    void *at = source->arena + source->used;
    source->used += (size + 15) / 16 * 16;
    assert_true(source->used <= ARENA_BYTES);
    memset(at, 0, size);
    return at;
}

/* From few, so that many are the same, and some are once they are written. */
static char *draw_text(struct source *source)
{
    static const char *const texts[] = {
        "",
        "a",
        "b",
        "a\"b",
        "a\\b",
        "a\nb",
        "\xff",
        "\xfe",
        "\xc3\xa4",
        "running",
        "ready",
        "good",
        "detect",
        "replay",
        "forward",
        "gone",
        "starting",
        "samples/s",
        "tokens/s",
        "ok",
        "a,b=\"c\"",
        "{}",
        "# HELP x",
        "2026-09-21T14:13:00.5Z",
        "\xed\xa0\x80",
        "\r\t\x01",
    };
    const uint32_t count = sizeof(texts) / sizeof(texts[0]);
    const uint32_t which = draw(source, count + 2);
    if (which < count)
        return (char *)texts[which];
    const size_t size = which == count ? draw(source, 8) : draw(source, 600);
    char *text = take(source, size + 1);
    for (size_t i = 0; i < size; i++)
        text[i] = (char)(1 + draw(source, 255));
    return text;
}

static double draw_number(struct source *source)
{
    static const double numbers[] = {
        0, -1, 1, 0.1, 1e300, -1e-300, (double)NAN, (double)INFINITY, -(double)INFINITY
    };
    return numbers[draw(source, sizeof(numbers) / sizeof(numbers[0]))];
}

static void *draw_message(struct source *source, const ProtobufCMessageDescriptor *type);

static void draw_value(struct source *source, const ProtobufCFieldDescriptor *field, void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        *(void **)at = draw_message(source, field->descriptor);
        break;
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = draw_text(source);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = draw_number(source);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        *(float *)at = (float)draw_number(source);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = (protobuf_c_boolean)draw(source, 2);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        *(int *)at = (int)draw(source, 16) - 2;
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        *(uint64_t *)at = draw(source, 2) ? draw(source, 4) : UINT64_MAX - draw(source, 4);
        break;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        *(uint32_t *)at = draw(source, 4) ? draw(source, 3) : UINT32_MAX - draw(source, 3);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        break;
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_STRING:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return 8;
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        break;
    }
    return 4;
}

static void draw_field(struct source *source, const ProtobufCFieldDescriptor *field, char *message)
{
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        const size_t count = draw(source, LIST_MAX), size = size_of(field);
        char *list = take(source, count * size + 1);
        for (size_t i = 0; i < count; i++)
            draw_value(source, field, list + i * size);
        *(void **)(message + field->offset) = list;
        *(size_t *)(message + field->quantifier_offset) = count;
    } else if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        if (draw(source, 2) == 0)
            return;
        *(uint32_t *)(message + field->quantifier_offset) = field->id;
        draw_value(source, field, message + field->offset);
    } else if (field->type != PROTOBUF_C_TYPE_MESSAGE || draw(source, 3) > 0) {
        draw_value(source, field, message + field->offset);
    }
}

static void *draw_message(struct source *source, const ProtobufCMessageDescriptor *type)
{
    char *message = take(source, type->sizeof_message);
    type->message_init((ProtobufCMessage *)message);
    for (unsigned i = 0; i < type->n_fields; i++)
        draw_field(source, &type->fields[i], message);
    return message;
}

/* How many lines the round's text has. */
static size_t check_round(struct source *source)
{
    const Cairn__V1__Job *jobs[40];
    struct prometheus_view view = { .jobs = jobs,
                                    .job_count = draw(source, 41),
                                    .jobs_left_out = draw(source, 3),
                                    .up = draw(source, 16) > 0,
                                    .seen_unix_s = draw_number(source),
                                    .now_unix_s = FIXTURE_NOW,
                                    .observer_version = draw_text(source),
                                    .started_unix_s = draw_number(source) };
    for (size_t i = 0; i < view.job_count; i++)
        jobs[i] = draw(source, 16) ? draw_message(source, &cairn__v1__job__descriptor) : NULL;
    if (draw(source, 8) > 0)
        view.nodes = draw_message(source, &cairn__v1__list_nodes_reply__descriptor);
    if (draw(source, 8) > 0)
        view.version = draw_message(source, &cairn__v1__get_version_reply__descriptor);
    auto_buf struct buf out;
    buf_init(&out, draw(source, 2) ? PROMETHEUS_BYTES_MAX : 65536 + draw(source, 65536));
    assert_int_equal(prometheus_write(&view, &out), ST_OK);
    return fixture_check(&out);
}

static void no_two_lines_are_of_one_series(void **state)
{
    (void)state;
    auto_free struct source *source = malloc(sizeof(*source));
    assert_non_null(source);
    size_t lines = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        source->round = round;
        source->drawn = 0;
        source->used = 0;
        lines += check_round(source);
    }
    assert_true(lines > (size_t)ROUNDS * 100); /* it was no empty text all the time */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_lines_are_of_one_series),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
