/* What data are known by: another content is told apart, also where only a byte of it differs, also
 * while it is read; what isn't content makes no difference. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/buf.h"
#include "tests/test.h"
#include "trainer/data/dataset.h"

#define CONTEXT 5
#define VOCAB   1000
#define TOKENS  2000
#define SAMPLES 9
#define IMAGE   16 /* pixels of 4 x 4 */

struct fixture {
    char dir[64], tokens[80], images[80], labels[80], other[80];
    struct reason reason;
    char identity[4096]; /* of what was opened last */
};

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* In place, as an editor or a sync tool may do it. */
static void write_byte(const char *path, long at, int byte)
{
    FILE *file = fopen(path, "r+e");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte, file), byte);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/test_data_identity_XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->tokens, sizeof(f->tokens), "%s/t.bin", f->dir);
    (void)snprintf(f->images, sizeof(f->images), "%s/images", f->dir);
    (void)snprintf(f->labels, sizeof(f->labels), "%s/labels", f->dir);
    (void)snprintf(f->other, sizeof(f->other), "%s/other", f->dir);
    uint16_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (uint16_t)(i * 37 % VOCAB);
    write_file(f->tokens, tokens, sizeof(tokens));
    uint8_t images[16 + SAMPLES * IMAGE] = { 0, 0, 8, 3, 0, 0, 0, SAMPLES, 0, 0, 0, 4, 0, 0, 0, 4 };
    uint8_t labels[8 + SAMPLES] = { 0, 0, 8, 1, 0, 0, 0, SAMPLES };
    write_file(f->images, images, sizeof(images));
    write_file(f->labels, labels, sizeof(labels));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    (void)unlink(f->tokens);
    (void)unlink(f->images);
    (void)unlink(f->labels);
    (void)unlink(f->other);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static struct dataset *must_load(struct fixture *f, const struct jobspec_dataset *source,
                                 bool watched)
{
    struct dataset *d = NULL;
    struct dataset_options options = { .io = io_system(),
                                       .source = source,
                                       .classes = VOCAB,
                                       .context =
                                           source->format == JOBSPEC_FORMAT_IDX ? 0 : CONTEXT,
                                       .watched = watched };
    enum status st = dataset_open(&options, &d, &f->reason);
    if (st == ST_OK)
        st = dataset_load(d, &f->reason);
    if (st != ST_OK)
        fail_msg("%s", f->reason.text);
    auto_buf struct buf text;
    buf_init(&text, sizeof(f->identity) - 1);
    assert_int_equal(dataset_print_identity(d, &text), ST_OK);
    memcpy(f->identity, text.data, text.size + 1);
    return d;
}

static struct dataset *load_tokens(struct fixture *f, bool watched)
{
    struct jobspec_dataset source = { .format = JOBSPEC_FORMAT_TOKENS };
    (void)snprintf(source.path, sizeof(source.path), "%s", f->tokens);
    return must_load(f, &source, watched);
}

static const char *identity_of_images(struct fixture *f)
{
    struct jobspec_dataset source = { .format = JOBSPEC_FORMAT_IDX };
    (void)snprintf(source.images, sizeof(source.images), "%s", f->images);
    (void)snprintf(source.labels, sizeof(source.labels), "%s", f->labels);
    dataset_close(must_load(f, &source, true));
    return f->identity;
}

static void a_byte_of_tokens_makes_another_identity(void **state)
{
    struct fixture *f = *state;
    char before[sizeof(f->identity)];
    dataset_close(load_tokens(f, true));
    (void)snprintf(before, sizeof(before), "%s", f->identity);
    char start[256];
    (void)snprintf(start, sizeof(start), "{\"samples\":399,\"files\":[\"%s 4000 ", f->tokens);
    assert_memory_equal(before, start, strlen(start));
    write_byte(f->tokens, 2222, 1);
    dataset_close(load_tokens(f, true));
    assert_int_equal(strlen(before), strlen(f->identity));
    assert_string_not_equal(before, f->identity);
}

static void a_pixel_or_a_label_makes_another_identity(void **state)
{
    struct fixture *f = *state;
    char before[sizeof(f->identity)];
    (void)snprintf(before, sizeof(before), "%s", identity_of_images(f));
    write_byte(f->images, 40, 1);
    assert_string_not_equal(before, identity_of_images(f));
    write_byte(f->images, 40, 0);
    assert_string_equal(before, identity_of_images(f));
    write_byte(f->labels, 12, 1);
    assert_string_not_equal(before, identity_of_images(f));
}

static void compressing_a_file_makes_no_difference(void **state)
{
    struct fixture *f = *state;
    char before[sizeof(f->identity)];
    (void)snprintf(before, sizeof(before), "%s", identity_of_images(f));
    uint8_t bytes[1024];
    FILE *in = fopen(f->images, "re");
    assert_non_null(in);
    size_t size = fread(bytes, 1, sizeof(bytes), in);
    assert_int_equal(fclose(in), 0);
    gzFile out = gzopen(f->images, "wb");
    assert_non_null(out);
    assert_int_equal(gzwrite(out, bytes, (unsigned)size), (int)size);
    assert_int_equal(gzclose(out), Z_OK);
    assert_string_equal(before, identity_of_images(f));
}

static void an_edit_of_the_same_size_is_seen_while_it_is_read(void **state)
{
    struct fixture *f = *state;
    int32_t window[CONTEXT + 1];
    struct dataset *d = load_tokens(f, true);
    assert_int_equal(dataset_window(d, 0, window, &f->reason), ST_OK);
    write_byte(f->tokens, 3000, 255);
    write_byte(f->tokens, 3001, 255); /* not below the vocabulary; but it is an edit */
    assert_int_equal(dataset_window(d, 300, window, &f->reason), ST_CHANGED);
    assert_non_null(strstr(f->reason.text, f->tokens));
    assert_non_null(strstr(f->reason.text, "was changed"));
    assert_int_equal(dataset_window(d, 0, window, &f->reason), ST_CHANGED);
    dataset_close(d);
}

static void what_is_touched_but_not_edited_is_read_on(void **state)
{
    struct fixture *f = *state;
    int32_t window[CONTEXT + 1];
    struct dataset *d = load_tokens(f, true);
    assert_int_equal(chmod(f->tokens, 0600), 0);
    assert_int_equal(dataset_window(d, 0, window, &f->reason), ST_OK);
    write_byte(f->tokens, 0, 1);
    write_byte(f->tokens, 0, 0); /* as it was */
    assert_int_equal(dataset_window(d, 0, window, &f->reason), ST_OK);
    dataset_close(d);
}

/* What was mapped is still there. */
static void a_file_that_another_took_the_place_of_is_read_on_as_it_was(void **state)
{
    struct fixture *f = *state;
    int32_t window[CONTEXT + 1], before[CONTEXT + 1];
    struct dataset *d = load_tokens(f, true);
    assert_int_equal(dataset_window(d, 7, before, &f->reason), ST_OK);
    uint8_t zeros[2 * TOKENS] = { 0 };
    write_file(f->other, zeros, sizeof(zeros));
    assert_int_equal(rename(f->other, f->tokens), 0);
    assert_int_equal(dataset_window(d, 7, window, &f->reason), ST_OK);
    assert_memory_equal(window, before, sizeof(window));
    assert_int_equal(unlink(f->tokens), 0);
    assert_int_equal(dataset_window(d, 7, window, &f->reason), ST_OK);
    dataset_close(d);
}

static void data_that_are_not_watched_are_read_as_they_are(void **state)
{
    struct fixture *f = *state;
    int32_t window[CONTEXT + 1];
    struct dataset *d = load_tokens(f, false);
    write_byte(f->tokens, 0, 77);
    assert_int_equal(dataset_window(d, 0, window, &f->reason), ST_OK);
    assert_int_equal(window[0], 77);
    dataset_close(d);
}

static void synthetic_data_are_known_by_their_number(void **state)
{
    struct fixture *f = *state;
    struct jobspec_dataset source = { .format = JOBSPEC_FORMAT_SYNTHETIC, .samples = 12 };
    dataset_close(must_load(f, &source, true));
    assert_string_equal(f->identity, "{\"samples\":12}");
}

static void a_name_with_quotes_stays_within_its_string(void **state)
{
    struct fixture *f = *state;
    char odd[80];
    (void)snprintf(odd, sizeof(odd), "%s/a\",\\b", f->dir);
    assert_int_equal(rename(f->tokens, odd), 0);
    memcpy(f->tokens, odd, sizeof(odd));
    dataset_close(load_tokens(f, true));
    assert_non_null(strstr(f->identity, "/a\\\",\\\\b 4000 "));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_byte_of_tokens_makes_another_identity),
        TEST(a_pixel_or_a_label_makes_another_identity),
        TEST(compressing_a_file_makes_no_difference),
        TEST(an_edit_of_the_same_size_is_seen_while_it_is_read),
        TEST(what_is_touched_but_not_edited_is_read_on),
        TEST(a_file_that_another_took_the_place_of_is_read_on_as_it_was),
        TEST(data_that_are_not_watched_are_read_as_they_are),
        TEST(synthetic_data_are_known_by_their_number),
        TEST(a_name_with_quotes_stays_within_its_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
