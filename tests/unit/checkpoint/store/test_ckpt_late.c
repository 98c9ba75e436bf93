/* Temporary names: each call has its own, so that one that is carried out late spoils nothing. */
#include <stdio.h>

#include "checkpoint/format/names.h"
#include "common/cleanup.h"
#include "tests/crash/late_io.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define DIR_40 SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000040.g2"

static int set_up(void **state)
{
    *state = store_fixture_new(STORE_IN_MEMORY, 300);
    return 0;
}

/* Two publish the same decision. One hangs in a call, which is carried out at any moment of the
 * other. false: the other has made fewer calls; *cut: so has the first one. */
static bool publish_beside_a_late_call(uint64_t slow_nth, uint64_t next_mth, bool *cut)
{
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, 300);
    auto_buf struct buf manifest;
    struct late_io late;
    size_t size = 0;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(sample_write(f->io, &f->sample, 2, NULL, DIR_40, &manifest), ST_OK);
    late_io_init(&late, f->io, slow_nth, next_mth);
    late.slow.call = "g2.00000000000000aa";
    late.next.call = "g2.00000000000000bb";
    enum status st = ckpt_manifest_publish(&late.slow, DIR_40, manifest.data, manifest.size);
    assert_int_equal(st, late.cut ? ST_CLOSED : ST_OK);
    assert_int_equal(ckpt_manifest_publish(&late.next, DIR_40, manifest.data, manifest.size),
                     ST_OK);
    const uint8_t *bytes = memory_io_bytes(f->memory, DIR_40 "/manifest.json", &size);
    assert_int_equal(size, manifest.size);
    assert_memory_equal(bytes, manifest.data, size);
    assert_false(memory_io_has(f->memory, DIR_40 "/manifest.json.g2.00000000000000bb.tmp"));
    /* What the first one left is no part of the checkpoint, and goes when it may. */
    assert_int_equal(ckpt_verify(f->io, DIR_40, NULL, NULL, NULL), ST_OK);
    assert_int_equal(ckpt_sweep_temporaries(f->io, DIR_40, 3), ST_OK);
    assert_false(memory_io_has(f->memory, DIR_40 "/manifest.json.g2.00000000000000aa.tmp"));
    bool made = late.made;
    *cut = late.cut;
    store_fixture_free(f);
    return made;
}

static void a_late_publication_cannot_touch_the_one_in_its_place(void **state)
{
    (void)state;
    bool cut = true;
    for (uint64_t slow = 1; cut; slow++) {
        uint64_t next = 1;
        while (publish_beside_a_late_call(slow, next, &cut) && cut)
            next++;
        assert_true(next > 4 || !cut);
    }
}

static void only_temporaries_of_generations_before_are_swept(void **state)
{
    struct store_fixture *f = *state;
    static const struct {
        const char *name;
        bool stays;
    } names[] = {
        { "manifest.json", true },
        { "manifest.json.tmp", false },
        { "manifest.json.g4.0123456789abcdef.tmp", false },
        { "manifest.json.g5.0123456789abcdef.tmp", true },
        { "manifest.json.g4.0123456789abcde.tmp", true }, /* those that follow are not ours */
        { "manifest.json.g4.0123456789ABCDEF.tmp", true },
        { "manifest.json.g4.0123456789abcdef.tmp.tmp", true },
        { "manifest.json.g4.tmp", true },
        { "manifest.json.bak", true },
        { "notes.tmp", true },
        { "store-mark", true },
        { "store-mark.tmp", false },
        { "store-mark.g1.0123456789abcdef.tmp", false },
        { "store-mark.g5.0123456789abcdef.tmp", true },
        { ".probe.g4.0123456789abcdef.tmp", false },
        { ".probe.g4.0123456789abcdef.tmp.g4.0123456789abcdef.tmp", false },
        { ".probe.g5.0123456789abcdef.tmp.g5.0123456789abcdef.tmp", true },
        { ".probe-4711", false }, /* of a version that had but one name per process */
        { ".probe-4711.tmp", false },
        { ".probe-x", true },
    };
    char path[LIMIT_PATH];
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), DIR_40 "/%s", names[i].name);
        memory_io_put(f->memory, path, "x", 1);
    }
    assert_int_equal(ckpt_sweep_temporaries(f->io, DIR_40, 5), ST_OK);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), DIR_40 "/%s", names[i].name);
        if (memory_io_has(f->memory, path) != names[i].stays)
            fail_msg("%s: %s", names[i].name, names[i].stays ? "went" : "stays");
    }
    assert_int_equal(ckpt_sweep_temporaries(f->io, SAMPLE_STORE "/none", 5), ST_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_publication_cannot_touch_the_one_in_its_place),
        cmocka_unit_test_setup_teardown(only_temporaries_of_generations_before_are_swept, set_up,
                                        store_fixture_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
