/* What roles may have done, and the line that says for whom the page asks. */
#include <stdio.h>
#include <string.h>

#include "identity/behalf.h"
#include "identity/rights.h"
#include "tests/test.h"

static void each_role_has_its_service(void **state)
{
    (void)state;
    assert_null(identity_refusal(IDENTITY_OPERATOR, IDENTITY_CONTROL, "KillJob"));
    assert_null(identity_refusal(IDENTITY_OPERATOR, IDENTITY_CONTROL, "GetJob"));
    assert_non_null(identity_refusal(IDENTITY_OPERATOR, IDENTITY_FLEET, "Session"));
    assert_null(identity_refusal(IDENTITY_VIEWER, IDENTITY_CONTROL, "GetJob"));
    assert_non_null(identity_refusal(IDENTITY_VIEWER, IDENTITY_FLEET, "GetJob"));
    assert_null(identity_refusal(IDENTITY_NODE, IDENTITY_FLEET, "Session"));
    assert_non_null(identity_refusal(IDENTITY_NODE, IDENTITY_CONTROL, "GetJob"));
    assert_non_null(identity_refusal(IDENTITY_COORDINATOR, IDENTITY_CONTROL, "GetJob"));
    assert_non_null(identity_refusal(IDENTITY_COORDINATOR, IDENTITY_FLEET, "Session"));
    assert_non_null(identity_refusal(IDENTITY_NOBODY, IDENTITY_CONTROL, "GetJob"));
}

static void a_viewer_may_do_nothing_that_changes_something(void **state)
{
    static const char *const changes[] = { "SubmitJob",      "PauseJob",         "ResumeJob",
                                           "StopJob",        "KillJob",          "SaveCheckpoint",
                                           "DrainNode",      "UndrainNode",      "ForgetNode",
                                           "InviteNodes",    "RemoveCheckpoint", "RemoveJob",
                                           "VerifyAnything", "getjob",           "GetJob " };
    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        assert_false(identity_method_looks(changes[i]));
        const char *why = identity_refusal(IDENTITY_VIEWER, IDENTITY_CONTROL, changes[i]);
        assert_non_null(why);
        assert_non_null(strstr(why, "cairn cert operator"));
    }
}

static bool reads(const char *text)
{
    struct identity_behalf out;
    return identity_behalf_read(text, strlen(text), &out);
}

static void a_line_is_read_as_it_was_written(void **state)
{
    static const struct identity_behalf all[] = {
        { IDENTITY_OPERATOR, "alice", "192.0.2.7" },
        { IDENTITY_VIEWER, "session:3f2a9c", "::1" },
        { IDENTITY_OPERATOR, "a.b_c-D9", "fd00:0:0:1:2:3:4:5" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char text[IDENTITY_BEHALF];
        struct identity_behalf out = { .role = IDENTITY_NOBODY };
        identity_behalf_text(&all[i], text);
        assert_true(identity_behalf_read(text, strlen(text), &out));
        assert_int_equal(out.role, all[i].role);
        assert_string_equal(out.who, all[i].who);
        assert_string_equal(out.address, all[i].address);
    }
}

static void the_longest_fits(void **state)
{
    struct identity_behalf most = { .role = IDENTITY_OPERATOR }, out;
    char text[IDENTITY_BEHALF];
    (void)state;
    memset(most.who, 'x', sizeof(most.who) - 1);
    memcpy(most.address, "fd00:1111:2222:3333:4444:5555:6666:7777", 40);
    identity_behalf_text(&most, text);
    assert_true(identity_behalf_read(text, strlen(text), &out));
    assert_string_equal(out.who, most.who);
    assert_string_equal(out.address, most.address);
}

static void what_is_anything_else_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "operator",
        "operator/",
        "operator/alice",
        "operator/ 192.0.2.7",
        "operator/alice ",
        "operator/alice  192.0.2.7",
        "operator/alice 192.0.2.7 ",
        "operator/alice 192.0.2",
        "operator/alice example.org",
        "operator/alice@page 192.0.2.7",
        "operator/al ice 192.0.2.7",
        "operator/a/b 192.0.2.7",
        "operator/al\nice 192.0.2.7",
        "operator/\xc3\xa4 192.0.2.7",
        "Operator/alice 192.0.2.7",
        "node/n1 192.0.2.7",
        "coordinator/main 192.0.2.7",
        "local/x 192.0.2.7",
        "/alice 192.0.2.7",
    };
    struct identity_behalf out;
    char text[2 * IDENTITY_BEHALF];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(reads(bad[i]));
    assert_false(identity_behalf_read("operator/al\0ce 192.0.2.7", 24, &out));
    for (size_t size = LIMIT_NAME; size < IDENTITY_BEHALF + 40; size++) {
        char who[2 * IDENTITY_BEHALF];
        memset(who, 'x', sizeof(who));
        (void)snprintf(text, sizeof(text), "operator/%.*s 192.0.2.7", (int)size, who);
        assert_false(reads(text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_role_has_its_service),
        cmocka_unit_test(a_viewer_may_do_nothing_that_changes_something),
        cmocka_unit_test(a_line_is_read_as_it_was_written),
        cmocka_unit_test(the_longest_fits),
        cmocka_unit_test(what_is_anything_else_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
