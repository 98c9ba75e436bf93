/* Payloads, bodies, signatures. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "tests/test.h"
#include "webhook/delivery_state.h"
#include "webhook/message.h"
#include "webhook/sign.h"

static const struct webhook_news news = {
    .event = WEBHOOK_RECOVERED,
    .job = "j-0123456789",
    .name = "resnet18",
    .state = "RUNNING",
    .time = "2026-01-02T03:04:05.678Z",
    .step = 300,
    .message = "resnet18 <recovered> & \"goes\" on",
    .cause = "process gone",
    .node = "gpu-07",
    .rank = 2,
    .seconds_lost = 12.34567,
    .steps_lost = 3,
    .next = "cairn why j-0123456789",
};

static void check_body(const struct webhook_news *of, enum webhook_format format, uint64_t missed,
                       const char *wanted)
{
    auto_buf struct buf out;
    buf_init(&out, 1 << 16);
    json_t *payload = webhook_payload(of, "00ff");
    assert_non_null(payload);
    assert_int_equal(webhook_body(payload, format, missed, &out), ST_OK);
    assert_string_equal(out.data, wanted);
    json_decref(payload);
}

static void each_format_is_as_it_was(void **state)
{
    (void)state;
    check_body(&news, WEBHOOK_JSON, 0,
               "{\"version\":1,\"event\":\"recovered\",\"job\":{\"id\":\"j-0123456789\",\"name\":"
               "\"resnet18\",\"state\":\"RUNNING\"},\"time\":\"2026-01-02T03:04:05.678Z\",\"step\":"
               "300,\"message\":\"resnet18 <recovered> & \\\"goes\\\" on\",\"cause\":\"process "
               "gone\",\"node\":\"gpu-07\",\"rank\":2,\"seconds_lost\":12.346,\"steps_lost\":3,"
               "\"over\":false,\"next\":\"cairn why j-0123456789\",\"delivery\":\"00ff\","
               "\"missed\":0}");
    check_body(&news, WEBHOOK_SLACK, 0,
               "{\"text\":\"resnet18 &lt;recovered&gt; &amp; \\\"goes\\\" on\\n`cairn why "
               "j-0123456789`\"}");
    check_body(&news, WEBHOOK_TEXT, 2,
               "resnet18 <recovered> & \"goes\" on\ncairn why j-0123456789\n(2 messages before "
               "this one were lost)\n");
}

static void what_there_is_not_is_null(void **state)
{
    (void)state;
    const struct webhook_news test = { .event = WEBHOOK_TEST,
                                       .message = "hello \xff",
                                       .step = -1,
                                       .rank = -1,
                                       .seconds_lost = (double)NAN,
                                       .steps_lost = -1 };
    check_body(&test, WEBHOOK_JSON, 7,
               "{\"version\":1,\"event\":\"test\",\"job\":null,\"time\":null,\"step\":null,"
               "\"message\":\"hello ?\",\"cause\":null,\"node\":null,\"rank\":null,\"seconds_"
               "lost\":null,\"steps_lost\":null,\"over\":false,\"next\":null,\"delivery\":\"00ff\","
               "\"missed\":7}");
}

/* By: printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef */
static void a_signature_is_the_hmac_of_time_and_body(void **state)
{
    (void)state;
    char out[WEBHOOK_SIGNATURE];
    const char *secret = "0123456789abcdef", *body = "{\"a\":1}";
    assert_int_equal(webhook_sign(secret, 16, 1700000000, body, strlen(body), out), ST_OK);
    assert_string_equal(out, "t=1700000000,v1="
                             "9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23");
    char other[WEBHOOK_SIGNATURE];
    assert_int_equal(webhook_sign(secret, 16, 1700000001, body, strlen(body), other), ST_OK);
    assert_string_not_equal(out + 13, other + 13);
}

static void a_delivery_is_known_by_all_of_its_parts(void **state)
{
    (void)state;
    char a[WEBHOOK_DELIVERY], b[WEBHOOK_DELIVERY];
    assert_int_equal(webhook_delivery("team", "j-1", "ended", a), ST_OK);
    assert_int_equal(webhook_delivery("team", "j-1", "ended", b), ST_OK);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), 32);
    assert_int_equal(webhook_delivery("teamj", "-1", "ended", b), ST_OK);
    assert_string_not_equal(a, b);
    assert_int_equal(webhook_delivery_new(a), ST_OK);
    assert_int_equal(webhook_delivery_new(b), ST_OK);
    assert_string_not_equal(a, b);
}

static void what_is_known_is_read_back(void **state)
{
    (void)state;
    struct webhook_delivery_state known = { .name = "team",
                                            .state = WEBHOOK_DISABLED,
                                            .waiting = 3,
                                            .missed = 9,
                                            .tried_ms = 1700000000123,
                                            .delivered = true,
                                            .event = "failed",
                                            .job = "resnet18",
                                            .what = { "410: it wants no more messages" } };
    struct webhook_delivery_state back;
    json_t *value = webhook_delivery_state_json(&known);
    assert_true(webhook_delivery_state_from(value, &back));
    assert_string_equal(back.name, known.name);
    assert_int_equal(back.state, WEBHOOK_DISABLED);
    assert_true(back.waiting == 3 && back.missed == 9 && back.tried_ms == 1700000000123);
    assert_true(back.delivered);
    assert_string_equal(back.what.text, known.what.text);
    assert_int_equal(json_object_set_new(value, "state", json_string("odd")), 0);
    assert_false(webhook_delivery_state_from(value, &back));
    assert_int_equal(json_object_del(value, "name"), 0);
    assert_false(webhook_delivery_state_from(value, &back));
    json_decref(value);
    assert_false(webhook_delivery_state_from(NULL, &back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format_is_as_it_was),
        cmocka_unit_test(what_there_is_not_is_null),
        cmocka_unit_test(a_signature_is_the_hmac_of_time_and_body),
        cmocka_unit_test(a_delivery_is_known_by_all_of_its_parts),
        cmocka_unit_test(what_is_known_is_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
