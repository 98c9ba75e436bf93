/* What may be secret never goes into a bundle; and the archive that it is. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "cairn/v1/control.pb-c.h"
#include "client/archive/tar.h"
#include "client/bundle/redact.h"
#include "common/cleanup.h"
#include "tests/test.h"

#define S REDACTED

static struct redact *redact;

static int set_up(void **state)
{
    (void)state;
    return redact_new(&redact) == ST_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    redact_free(redact);
    return 0;
}

static char *mended(const char *text)
{
    struct buf out;
    buf_init(&out, 65536);
    assert_int_equal(redact_text(redact, text, strlen(text), &out), ST_OK);
    return buf_take(&out, NULL);
}

/* ---- what goes, and what stays ---- */

static void secrets_go_and_the_rest_stays(void **state)
{
    (void)state;
    static const struct {
        const char *text, *left;
    } cases[] = {
        { "", "" },
        { "step 12 of 100, 12 tokens/s", "step 12 of 100, 12 tokens/s" },
        { "format: tokens\ntrain: {tokens: 5}\n", "format: tokens\ntrain: {tokens: 5}\n" },
        { "password: hunter22\nname: x\n", "password: " S "\nname: x\n" },
        { "{password: a b, name: x}", "{password: " S },
        { "\"api_key\": \"abc def\", \"n\": 1", "\"api_key\": \"" S "\", \"n\": 1" },
        { "{\"msg\":\"{\\\"token\\\": \\\"a b\\\"} end\"}",
          "{\"msg\":\"{\\\"token\\\": \\\"" S "\\\"} end\"}" },
        { "'secret': 'it''s'", "'secret': '" S "''s'" },
        { "\"secret\": \"a\\\"b\", 1", "\"secret\": \"" S "\", 1" },
        { "AWS_SECRET_ACCESS_KEY=abc/d+e next", "AWS_SECRET_ACCESS_KEY=" S " next" },
        { "run --auth-token abc --rank 1", "run --auth-token " S " --rank 1" },
        { "Authorization: Basic YTpi, and more\nnext", "Authorization: " S "\nnext" },
        { "sent Bearer abcdefgh12345", "sent Bearer " S },
        { "a bearer of news", "a bearer of news" },
        { "key_file: /etc/x.key", "key_file: /etc/x.key" },
        { "secret_file: /etc/x", "secret_file: /etc/x" },
        { "s3://bucket/prefix", "s3://bucket/prefix" },
        { "s3://me:pw@bucket/prefix", "s3://" S "@bucket/prefix" },
        { "https://hooks.example.org/T0/B1/xyz?z=1 failed",
          "https://hooks.example.org/" S " failed" },
        { "(http://me:p@ss@host:80)", "(http://" S "@host:80)" },
        { "http://127.0.0.1:7001/", "http://127.0.0.1:7001/" },
        { "key AKIAIOSFODNN7EXAMPLE.", "key " S },
        { "ghp_0123456789abcdefghij", S },
        { "hf_short", "hf_short" },
        { "of 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef, 12",
          "of " S ", 12" },
        { "digest 0123456789abcdef0123456789abcdef", "digest 0123456789abcdef0123456789abcdef" },
        { "x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl y", "x " S " y" },
        { "a\n-----BEGIN EC PRIVATE KEY-----\nMIG\n-----END EC PRIVATE KEY-----\nb",
          "a\n" S "\nb" },
        { "-----BEGIN PRIVATE KEY-----\nMIG", S },
        { "-----BEGIN CERTIFICATE-----\nMIG", "-----BEGIN CERTIFICATE-----\nMIG" },
        { "password: |\n  one\n  two\nname: x\n", "password: " S "\nname: x\n" },
        { "a: 1\nenv:\n  A: one\n\n  B: two\nworkers: 2\n", "a: 1\nenv: " S "\nworkers: 2\n" },
        { "run: {env: {A: \"x\", B: y}, n: 1}", "run: {env: " S ", n: 1}" },
        { "  env: {}\n  n: 1\n", "  env: " S "\n  n: 1\n" },
        { "the environment: it rains", "the environment: it rains" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        auto_free char *left = mended(cases[i].text);
        assert_string_equal(left, cases[i].left);
    }
}

static void known_values_go_wherever_they_stand(void **state)
{
    (void)state;
    assert_int_equal(redact_know(redact, "0123456789", 10), ST_OK);
    assert_int_equal(redact_know(redact, "0123456789abc", 13), ST_OK);
    assert_int_equal(redact_know(redact, "short", 5), ST_OK);
    auto_free char *left = mended("x0123456789y 0123456789abcd short 012345678");
    assert_string_equal(left, "x" S "y " S "d short 012345678");
    assert_true(redact_leaks(redact, "..0123456789..", 14));
    assert_false(redact_leaks(redact, left, strlen(left)));
}

static void messages_and_json_lose_them_too(void **state)
{
    (void)state;
    assert_int_equal(redact_know(redact, "0123456789", 10), ST_OK);
    Cairn__V1__ExplainJobReply why = CAIRN__V1__EXPLAIN_JOB_REPLY__INIT;
    Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
    why.text = (char *)"see 0123456789";
    why.job = &job;
    job.job_file = (char *)"name: x\nenv:\n  A: b\n";
    uint8_t bytes[512];
    const size_t size = protobuf_c_message_pack(&why.base, bytes);
    Cairn__V1__ExplainJobReply *reply = cairn__v1__explain_job_reply__unpack(NULL, size, bytes);
    assert_int_equal(redact_message(redact, &reply->base), ST_OK);
    assert_string_equal(reply->text, "see " S);
    assert_string_equal(reply->job->job_file, "name: x\nenv: " S "\n");
    cairn__v1__explain_job_reply__free_unpacked(reply, NULL);
    json_t *value = json_pack("{s:s, s:{s:s}, s:[s], s:i}", "auth_token", "a", "env", "A", "b",
                              "list", "is 0123456789", "n", 1);
    assert_int_equal(redact_json(redact, value), ST_OK);
    auto_free char *text = json_dumps(value, JSON_COMPACT);
    assert_string_equal(text, "{\"auth_token\":\"" S "\",\"env\":{\"A\":\"" S
                              "\"},\"list\":[\"is " S "\"],\"n\":1}");
    json_decref(value);
}

/* Whatever the bytes are: it comes to an end, and reads nothing beyond them. */
static void any_bytes_are_read_to_their_end(void **state)
{
    (void)state;
    static const char alphabet[] = "\":=\\'{}\n -|>@/?env:tokn passwrd://http-BEGIN PRIVATE KEY";
    unsigned seed = 7;
    for (int round = 0; round < 20000; round++) {
        char text[64];
        struct buf out;
        for (size_t i = 0; i < sizeof(text); i++) {
            seed = seed * 1103515245U + 12345U;
            text[i] = alphabet[(seed >> 16) % (sizeof(alphabet) - 1)];
        }
        auto_free char *exact = malloc(sizeof(text));
        memcpy(exact, text, sizeof(text));
        buf_init(&out, 65536);
        assert_int_equal(redact_text(redact, exact, sizeof(text), &out), ST_OK);
        buf_release(&out);
    }
}

/* ---- the archive ---- */

struct seen {
    char names[4][TAR_NAME + 1];
    size_t sizes[4], count;
    unsigned sum;
};

static enum status see(void *arg, const char *name, const char *data, size_t size)
{
    struct seen *seen = arg;
    (void)snprintf(seen->names[seen->count % 4], TAR_NAME + 1, "%s", name);
    seen->sizes[seen->count++ % 4] = size;
    for (size_t i = 0; i <= size; i++) /* the NUL, too */
        seen->sum = seen->sum * 31 + (unsigned char)data[i];
    return ST_OK;
}

static void what_is_packed_is_read_again(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-tar-XXXXXX", path[64], command[160];
    static char large[100000];
    struct tar_writer *tar = NULL;
    struct reason reason = { "" };
    struct seen seen = { .count = 0 };
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/a.tar.gz", folder);
    memset(large, 'x', sizeof(large));
    assert_int_equal(tar_create(path, 1700000000, &tar, &reason), ST_OK);
    assert_int_equal(tar_add(tar, "a/one", "1\n", 2), ST_OK);
    assert_int_equal(tar_add(tar, "a/empty", NULL, 0), ST_OK);
    assert_int_equal(tar_add(tar, "a/large", large, sizeof(large)), ST_OK);
    memset(command, 'n', 102);
    command[102] = '\0';
    assert_int_equal(tar_add(tar, command, "", 0), ST_TOO_LONG);
    assert_int_not_equal(access(path, F_OK), 0); /* not before it is whole */
    assert_int_equal(tar_publish(tar, &reason), ST_OK);
    assert_int_equal(tar_create(path, 0, &tar, &reason), ST_EXISTS);
    assert_int_equal(tar_read(path, see, &seen, &reason), ST_OK);
    assert_int_equal(seen.count, 3);
    assert_string_equal(seen.names[2], "a/large");
    assert_int_equal(seen.sizes[1], 0);
    assert_int_equal(seen.sizes[2], sizeof(large));
    (void)snprintf(command, sizeof(command),
                   "tar -tzf %s | tr '\\n' ' ' | grep -qx 'a/one a/empty a/large '", path);
    assert_int_equal(system(command), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Each damage is an error, and nothing worse. */
static void a_damaged_archive_is_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-tar-XXXXXX", path[64], other[64];
    struct tar_writer *tar = NULL;
    struct reason reason = { "" };
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/a.tar.gz", folder);
    (void)snprintf(other, sizeof(other), "%s/b.tar.gz", folder);
    assert_int_equal(tar_create(path, 1700000000, &tar, &reason), ST_OK);
    assert_int_equal(tar_add(tar, "a/one", "1\n", 2), ST_OK);
    assert_int_equal(tar_publish(tar, &reason), ST_OK);
    static unsigned char plain[8192];
    gzFile file = gzopen(path, "rb");
    const int size = gzread(file, plain, sizeof(plain));
    (void)gzclose(file);
    assert_int_equal(size, 4 * 512);
    for (int at = 0; at < 512 + 512; at++) { /* each byte of the header; of the data none counts */
        struct seen seen = { .count = 0 };
        plain[at] ^= 1;
        file = gzopen(other, "wbT"); /* not even compressed */
        assert_int_equal(gzwrite(file, plain, (unsigned)size), size);
        (void)gzclose(file);
        plain[at] ^= 1;
        const enum status st = tar_read(other, see, &seen, &reason);
        const bool own =
            at >= 148 && at < 156; /* its digits may still be read: a blank for a NUL */
        assert_true(at >= 512 ? st == ST_OK : own || st == ST_CORRUPT);
    }
    for (int cut = 0; cut < size - 1024; cut += 64) {
        struct seen seen = { .count = 0 };
        file = gzopen(other, "wb");
        assert_int_equal(gzwrite(file, plain, (unsigned)cut), cut);
        (void)gzclose(file);
        assert_int_equal(tar_read(other, see, &seen, &reason), ST_CORRUPT);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(tar_read(path, see, NULL, &reason), ST_NOT_FOUND);
    assert_int_not_equal(tar_read("/tmp", see, NULL, &reason), ST_OK);
}

/* A file that can't grow any more, as on a full disk: that is said, and nothing of it stays. */
static void an_archive_without_room_leaves_nothing(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-tar-XXXXXX", path[64];
    static unsigned char noise[200000];
    struct tar_writer *tar = NULL;
    struct rlimit limit, little;
    struct reason reason = { "" };
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/a.tar.gz", folder);
    unsigned number = 1;
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (unsigned char)((number = number * 1103515245u + 12345u) >> 16);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    little = (struct rlimit){ .rlim_cur = 4096, .rlim_max = limit.rlim_max };
    assert_ptr_not_equal(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
    for (size_t size = 8192; size <= sizeof(noise); size += sizeof(noise) - 8192) {
        assert_int_equal(tar_create(path, 0, &tar, &reason), ST_OK);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        enum status st = tar_add(tar, "noise", noise, size);
        if (st == ST_OK) { /* zlib has it in memory until the end */
            st = tar_publish(tar, &reason);
            assert_non_null(strstr(reason.text, "File too large"));
        } else {
            tar_drop(tar);
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(st, ST_FULL);
        assert_int_equal(rmdir(folder), 0); /* it is empty */
        assert_int_equal(mkdir(folder, 0700), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(secrets_go_and_the_rest_stays),          CASE(known_values_go_wherever_they_stand),
        CASE(messages_and_json_lose_them_too),        CASE(any_bytes_are_read_to_their_end),
        CASE(what_is_packed_is_read_again),           CASE(a_damaged_archive_is_refused),
        CASE(an_archive_without_room_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
