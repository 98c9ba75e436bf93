/* What the coordinator said, as JSON: all jobs, and those that are others than before. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/unconst.h"
#include "observer/snapshot/snapshot.h"
#include "tests/test.h"

/* Jobs of these ids, newest first, each at a step. */
static struct snapshot *seen(const char *const *ids, const uint64_t *steps, size_t count,
                             const struct snapshot *last)
{
    Cairn__V1__Job jobs[8], *pointers[8];
    Cairn__V1__ListJobsReply reply = CAIRN__V1__LIST_JOBS_REPLY__INIT;
    uint8_t bytes[1024];
    for (size_t i = 0; i < count; i++) {
        jobs[i] = (Cairn__V1__Job)CAIRN__V1__JOB__INIT;
        jobs[i].id = unconst(ids[i]);
        jobs[i].name = unconst("a \"name\"");
        jobs[i].step = steps[i];
        pointers[i] = &jobs[i];
    }
    reply.jobs = pointers;
    reply.n_jobs = count;
    const size_t size = cairn__v1__list_jobs_reply__get_packed_size(&reply);
    assert_in_range(size, 0, sizeof(bytes));
    (void)cairn__v1__list_jobs_reply__pack(&reply, bytes);
    Cairn__V1__ListJobsReply *page = cairn__v1__list_jobs_reply__unpack(NULL, size, bytes);
    assert_non_null(page);
    struct snapshot *made = snapshot_new(&page, 1, NULL, NULL, last);
    assert_non_null(made);
    return made;
}

/* "id@step id@step", of what a stream would send; "-": nothing. */
static void check(const struct snapshot *now, const struct snapshot *told, const char *wanted)
{
    struct buf text;
    char found[256] = "-";
    size_t used = 0;
    buf_init(&text, 1 << 20);
    assert_int_equal(snapshot_put_changes(now, told, &text), ST_OK);
    json_t *value = text.size > 0 ? json_loadb(text.data, text.size, 0, NULL) : NULL;
    assert_int_equal(value != NULL, text.size > 0);
    assert_int_equal(value != NULL && json_is_false(json_object_get(value, "truncated")),
                     text.size > 0);
    const json_t *jobs = json_object_get(value, "jobs");
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        const json_t *job = json_array_get(jobs, i), *step = json_object_get(job, "step");
        const int more = snprintf(found + used, sizeof(found) - used, "%s%s@%lld", i > 0 ? " " : "",
                                  json_string_value(json_object_get(job, "id")),
                                  step != NULL ? (long long)json_integer_value(step) : 0);
        used += (size_t)more;
    }
    if (value != NULL && used == 0)
        found[0] = '\0';
    assert_string_equal(found, wanted);
    json_decref(value);
    buf_release(&text);
}

static void a_stream_is_told_of_jobs_that_changed(void **state)
{
    (void)state;
    const struct snapshot *first =
        seen((const char *const[]){ "j-3", "j-2", "j-1" }, (uint64_t[]){ 5, 7, 9 }, 3, NULL);
    check(first, NULL, "j-3@5 j-2@7 j-1@9");
    check(first, first, "-");
    const struct snapshot *second = seen((const char *const[]){ "j-4", "j-3", "j-2", "j-1" },
                                         (uint64_t[]){ 1, 6, 7, 9 }, 4, first);
    /* one that nobody asked about comes between */
    const struct snapshot *third =
        seen((const char *const[]){ "j-4", "j-2", "j-1" }, (uint64_t[]){ 1, 7, 10 }, 3, second);
    check(third, first, "j-4@1 j-1@10");
    check(second, first, "j-4@1 j-3@6");
    check(third, second, "j-1@10");
    check(third, NULL, "j-4@1 j-2@7 j-1@10");
    check(first, third, "j-3@5 j-1@9"); /* whichever was earlier */
    const struct snapshot *none = seen(NULL, NULL, 0, third);
    check(none, third, "-");
    check(none, NULL, "");
    check(third, none, "j-4@1 j-2@7 j-1@10");
    const struct snapshot *stale = snapshot_stale(third, "away");
    check(stale, third, "-");
    const struct snapshot *all[] = { first, second, third, none, stale };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        snapshot_unref(all[i]);
}

static void the_whole_list_is_one_line(void **state)
{
    (void)state;
    const struct snapshot *one =
        seen((const char *const[]){ "j-2", "j-1" }, (uint64_t[]){ 5, 7 }, 2, NULL);
    const struct buf *text = snapshot_jobs_json(one);
    assert_non_null(text);
    assert_ptr_equal(snapshot_jobs_json(one), text); /* made once */
    assert_ptr_equal(memchr(text->data, '\n', text->size), text->data + text->size - 1);
    json_t *value = json_loadb(text->data, text->size, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(value, "jobs")), 2);
    json_decref(value);
    /* what the next one shows goes on from its texts, and outlives them */
    const struct snapshot *next =
        seen((const char *const[]){ "j-2", "j-1" }, (uint64_t[]){ 5, 8 }, 2, one);
    snapshot_unref(one);
    check(next, NULL, "j-2@5 j-1@8");
    snapshot_unref(next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_told_of_jobs_that_changed),
        cmocka_unit_test(the_whole_list_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
