/* Messages as JSON: the contract of -o json. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/v1/control.pb-c.h"
#include "cairn/v1/fleet.pb-c.h"
#include "common/cleanup.h"
#include "proto/text/json.h"
#include "tests/test.h"

static char *text_of(const ProtobufCMessage *message)
{
    json_t *value = json_from_message(message);
    assert_non_null(value);
    char *text = json_dumps(value, JSON_COMPACT);
    json_decref(value);
    return text;
}

static void a_job_has_all_fields_even_when_nothing_is_set(void **state)
{
    (void)state;
    Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
    json_t *value = json_from_message(&job.base);
    assert_non_null(value);
    assert_int_equal(json_object_size(value), job.base.descriptor->n_fields);
    assert_string_equal(json_string_value(json_object_get(value, "state")), "UNSPECIFIED");
    assert_string_equal(json_string_value(json_object_get(value, "id")), "");
    assert_true(json_is_object(json_object_get(value, "lost_seconds")));
    assert_int_equal(json_object_size(json_object_get(value, "lost_seconds")), 0);
    assert_true(json_is_array(json_object_get(value, "workers")));
    json_decref(value);
}

static void names_are_snake_case_and_numbers_are_numbers(void **state)
{
    (void)state;
    Cairn__V1__LostSeconds detect = CAIRN__V1__LOST_SECONDS__INIT;
    Cairn__V1__LostSeconds replay = CAIRN__V1__LOST_SECONDS__INIT;
    Cairn__V1__LostSeconds *lost[] = { &detect, &replay };
    Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
    detect.cause = "detect";
    detect.seconds = 0.25;
    replay.cause = "replay";
    replay.seconds = 2;
    job.state = CAIRN__V1__JOB_STATE__RUNNING;
    job.total_steps = 9007199254740993; /* not a double */
    job.loss = NAN;
    job.accuracy = 0.5;
    job.eta_seconds = INFINITY;
    job.lost_seconds = lost;
    job.n_lost_seconds = 2;
    json_t *value = json_from_message(&job.base);
    assert_non_null(value);
    assert_string_equal(json_string_value(json_object_get(value, "state")), "RUNNING");
    assert_true(json_integer_value(json_object_get(value, "total_steps")) == 9007199254740993);
    assert_true(json_is_null(json_object_get(value, "loss")));
    assert_true(json_is_null(json_object_get(value, "eta_seconds")));
    assert_true(json_real_value(json_object_get(value, "accuracy")) == 0.5);
    const json_t *seconds = json_object_get(value, "lost_seconds");
    assert_true(json_real_value(json_object_get(seconds, "detect")) == 0.25);
    assert_true(json_real_value(json_object_get(seconds, "replay")) == 2);
    json_decref(value);
}

static void what_of_a_oneof_is_absent_is_null(void **state)
{
    (void)state;
    Cairn__V1__StreamLogsRequest request = CAIRN__V1__STREAM_LOGS_REQUEST__INIT;
    auto_free char *absent = text_of(&request.base);
    assert_string_equal(absent, "{\"job\":\"\",\"rank\":null,\"attempt\":null,\"follow\":false}");
    request.rank__case = CAIRN__V1__STREAM_LOGS_REQUEST__RANK__RANK;
    request.rank = 3;
    request.follow = true;
    auto_free char *present = text_of(&request.base);
    assert_string_equal(present, "{\"job\":\"\",\"rank\":3,\"attempt\":null,\"follow\":true}");
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
    json_t *value = json_from_message(&row.base);
    assert_true(json_is_null(json_object_get(value, "eval")));
    json_decref(value);
}

static void a_float_is_the_shortest_number_that_is_the_same_float(void **state)
{
    (void)state;
    static const float values[] = { 0.1F, 2.3025851F, 1e-8F, 3.4028235e38F, 16777217.0F, 0 };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
        row.loss = values[i];
        json_t *value = json_from_message(&row.base);
        double loss = json_real_value(json_object_get(value, "loss"));
        assert_true((float)loss == values[i]);
        json_decref(value);
    }
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
    row.loss = 0.1F;
    json_t *value = json_from_message(&row.base);
    assert_true(json_real_value(json_object_get(value, "loss")) == 0.1);
    json_decref(value);
}

static void enum_values_lose_the_prefix_of_their_type_and_bytes_are_hex(void **state)
{
    (void)state;
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    json_t *value = json_from_message(&exited.base);
    assert_string_equal(json_string_value(json_object_get(value, "cause")), "UNSPECIFIED");
    json_decref(value);
    exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL;
    value = json_from_message(&exited.base);
    assert_string_equal(json_string_value(json_object_get(value, "cause")), "OOM_KILL");
    json_decref(value);
    exited.cause = (Cairn__V1__TrainerExited__Cause)77; /* of a newer coordinator */
    value = json_from_message(&exited.base);
    assert_int_equal(json_integer_value(json_object_get(value, "cause")), 77);
    json_decref(value);
    uint8_t bytes[] = { 0x00, 0xab };
    Cairn__V1__PieceRun run = CAIRN__V1__PIECE_RUN__INIT;
    run.xxh3_128.data = bytes;
    run.xxh3_128.len = 2;
    auto_free char *text = text_of(&run.base);
    assert_string_equal(text,
                        "{\"buffer\":0,\"first\":0,\"xxh3_128\":\"00ab\",\"pieces_per_hash\":0}");
}

static void lists_of_every_kind_become_arrays(void **state)
{
    (void)state;
    Cairn__V1__SubmitJobRequest request = CAIRN__V1__SUBMIT_JOB_REQUEST__INIT;
    char *sets[] = { "a=1", "b=2" };
    request.set = sets;
    request.n_set = 2;
    json_t *value = json_from_message(&request.base);
    assert_string_equal(json_string_value(json_array_get(json_object_get(value, "set"), 1)), "b=2");
    json_decref(value);
    uint32_t ranks[] = { 3, 1 };
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    fault.ranks = ranks;
    fault.n_ranks = 2;
    fault.kind = CAIRN__V1__FAULT_KIND__HANG;
    value = json_from_message(&fault.base);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(value, "ranks"), 0)), 3);
    assert_string_equal(json_string_value(json_object_get(value, "kind")), "HANG");
    json_decref(value);
}

static void text_is_indented_or_one_line_with_the_shortest_numbers(void **state)
{
    (void)state;
    json_t *value = json_pack("{s:[i,f,f,f], s:{}, s:[], s:n, s:b, s:s}", "list", 1, 0.053, 2.0,
                              1e300, "empty", "none", "null", "yes", 1, "text", "a\"\\\n");
    auto_buf struct buf out;
    buf_init(&out, 4096);
    assert_int_equal(json_print(value, true, &out), ST_OK);
    assert_string_equal(out.data, "{\"list\":[1,0.053,2.0,1e+300],\"empty\":{},\"none\":[],"
                                  "\"null\":null,\"yes\":true,\"text\":\"a\\\"\\\\\\n\"}\n");
    json_t *again = json_loads(out.data, 0, NULL);
    assert_true(json_equal(value, again));
    json_decref(again);
    buf_clear(&out);
    assert_int_equal(json_print(value, false, &out), ST_OK);
    assert_non_null(strstr(out.data, "{\n  \"list\": [\n    1,\n    0.053,\n"));
    again = json_loads(out.data, 0, NULL);
    assert_true(json_equal(value, again));
    json_decref(again);
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_has_all_fields_even_when_nothing_is_set),
        cmocka_unit_test(names_are_snake_case_and_numbers_are_numbers),
        cmocka_unit_test(what_of_a_oneof_is_absent_is_null),
        cmocka_unit_test(a_float_is_the_shortest_number_that_is_the_same_float),
        cmocka_unit_test(enum_values_lose_the_prefix_of_their_type_and_bytes_are_hex),
        cmocka_unit_test(text_is_indented_or_one_line_with_the_shortest_numbers),
        cmocka_unit_test(lists_of_every_kind_become_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
