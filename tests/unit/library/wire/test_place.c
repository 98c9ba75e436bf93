/* Where tensors of a program lie in what is saved: places that don't overlap, and entries that
 * can't be. */
#include <string.h>

#include "library/wire/place.h"
#include "tests/test.h"

static struct wire_entry entry_of(const char *name, int dtype, int kind, uint64_t rows,
                                  uint64_t columns)
{
    struct wire_entry entry = { .dtype = (uint32_t)dtype, .kind = (uint32_t)kind, .ndim = 2 };
    memcpy(entry.name, name, strlen(name));
    entry.shape[0] = entry.extent[0] = rows;
    entry.shape[1] = entry.extent[1] = columns;
    return entry;
}

static void places_follow_each_other_in_their_buffers(void **state)
{
    (void)state;
    struct wire_entry entries[6] = {
        entry_of("weight", CAIRN_F32, CAIRN_REPLICATED, 3, 5),
        entry_of("half", CAIRN_BF16, CAIRN_REPLICATED, 2, 2),
        entry_of("bias", CAIRN_F32, CAIRN_REPLICATED, 1, 5),
        entry_of("mean", CAIRN_F64, CAIRN_PRIVATE, 1, 3),
        entry_of("part", CAIRN_F32, CAIRN_SHARDED, 8, 4),
        entry_of("eight", CAIRN_F8_E5M2, CAIRN_REPLICATED, 7, 1),
    };
    struct layout_places places;
    struct reason why = { "" };
    entries[4].start[0] = 6;
    entries[4].extent[0] = 2;
    assert_int_equal(layout_places_make(entries, 6, 1000, &places, &why), ST_OK);
    const struct place *place = places.places;
    assert_string_equal(place_buffer_name(place[0].buffer), "float32");
    assert_string_equal(place_buffer_name(place[1].buffer), "bfloat16");
    assert_string_equal(place_buffer_name(place[5].buffer), "bytes");
    assert_int_equal(place[2].buffer, place[0].buffer);
    assert_int_equal(place[2].offset, place[0].offset + 60);
    assert_int_equal(places.buffer_bytes[place[0].buffer], 80);
    assert_int_equal(places.buffer_bytes[PLACE_BYTES], 7);
    assert_int_equal(place[3].buffer, PLACE_RANKS);
    assert_int_equal(place[3].offset, places.data);
    assert_int_equal(place[4].offset, places.data + PLACE_ALIGN); /* 24 bytes, then the border */
    assert_int_equal(place[4].bytes, 2 * 4 * 4);
    assert_true(places.entries >= sizeof(struct place_area));
    assert_true(places.blobs >= places.entries + sizeof(entries));
    assert_true(places.blobs_end >= places.blobs + 1000);
    assert_int_equal(places.data % PLACE_ALIGN, 0);
    assert_int_equal(places.buffer_bytes[PLACE_RANKS], 1 << 20); /* a chunk of the format */
    layout_places_release(&places);
}

static void a_layout_of_nothing_has_an_area(void **state)
{
    (void)state;
    struct layout_places places;
    struct reason why = { "" };
    assert_int_equal(layout_places_make(NULL, 0, 0, &places, &why), ST_OK);
    assert_int_equal(places.buffer_bytes[PLACE_RANKS], 1 << 20);
    layout_places_release(&places);
}

/* An entry that can't be, made from a good one. */
static void refused(struct wire_entry entry, const char *word)
{
    const struct wire_entry entries[2] = { entry_of("good", CAIRN_F32, CAIRN_REPLICATED, 1, 1),
                                           entry };
    struct layout_places places;
    struct reason why = { "" };
    assert_int_equal(layout_places_make(entries, 2, 0, &places, &why), ST_INVALID);
    if (strstr(why.text, word) == NULL)
        fail_msg("\"%s\" doesn't say \"%s\"", why.text, word);
}

static void entries_that_cannot_be_are_refused(void **state)
{
    (void)state;
    const struct wire_entry good = entry_of("x", CAIRN_F32, CAIRN_SHARDED, 8, 4);
    struct wire_entry bad = good;
    refused(entry_of("good", CAIRN_F32, CAIRN_REPLICATED, 1, 1), "two tensors are named good");
    refused(entry_of("", CAIRN_F32, CAIRN_REPLICATED, 1, 1), "no proper name");
    refused(entry_of("a\nb", CAIRN_F32, CAIRN_REPLICATED, 1, 1), "no proper name");
    memset(bad.name, 'x', sizeof(bad.name));
    refused(bad, "no proper name");
    bad = good;
    bad.name[5] = 'y'; /* behind its end */
    refused(bad, "no proper name");
    refused(entry_of("x", 0, CAIRN_SHARDED, 8, 4), "dtype");
    refused(entry_of("x", 1000, CAIRN_SHARDED, 8, 4), "dtype");
    refused(entry_of("x", CAIRN_F32, 0, 8, 4), "kind");
    refused(entry_of("x", CAIRN_F32, 4, 8, 4), "kind");
    bad = good;
    bad.ndim = 9;
    refused(bad, "dimensions");
    bad = good;
    bad.start[1] = 1;
    refused(bad, "outside");
    bad = good;
    bad.start[0] = UINT64_MAX;
    refused(bad, "outside");
    bad = good;
    bad.extent[0] = 7;
    bad.kind = CAIRN_PRIVATE;
    refused(bad, "only a sharded one");
    bad = good;
    bad.shape[2] = 1;
    refused(bad, "behind its last dimension");
    refused(entry_of("x", CAIRN_F32, CAIRN_PRIVATE, UINT64_MAX / 2, UINT64_MAX / 2), "too large");
    refused(entry_of("x", CAIRN_F32, CAIRN_PRIVATE, UINT64_C(1) << 39, 1), "too large");
}

static void the_hash_of_a_layout_is_of_replicated_entries(void **state)
{
    (void)state;
    struct wire_entry entries[2] = { entry_of("a", CAIRN_F32, CAIRN_REPLICATED, 1, 1),
                                     entry_of("b", CAIRN_F32, CAIRN_PRIVATE, 1, 1) };
    const struct ckpt_hash both = layout_hash(entries, 2), one = layout_hash(entries, 1);
    assert_memory_equal(&both, &one, sizeof(both));
    entries[0].shape[1] = 2;
    const struct ckpt_hash other = layout_hash(entries, 1);
    assert_memory_not_equal(&other, &one, sizeof(other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_follow_each_other_in_their_buffers),
        cmocka_unit_test(a_layout_of_nothing_has_an_area),
        cmocka_unit_test(entries_that_cannot_be_are_refused),
        cmocka_unit_test(the_hash_of_a_layout_is_of_replicated_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
