/* S3 without a server: paths, addresses, answers, settings. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checkpoint/s3/config.h"
#include "checkpoint/s3/http.h"
#include "checkpoint/s3/quarantine.h"
#include "checkpoint/s3/s3.h"
#include "checkpoint/s3/upload.h"
#include "checkpoint/s3/url.h"
#include "checkpoint/s3/xml.h"
#include "checkpoint/store/store.h"
#include "tests/test.h"

#define X "s3://bucket/a/j-1/step-000000000040.g2"

static void paths_mean_bucket_and_key(void **state)
{
    (void)state;
    struct s3_place place;
    assert_true(s3_place_parse("s3://bucket/a/b", &place));
    assert_string_equal(place.bucket, "bucket");
    assert_string_equal(place.key, "a/b");
    assert_true(s3_place_parse("s3://my.bucket-1//a/b//", &place));
    assert_string_equal(place.bucket, "my.bucket-1");
    assert_string_equal(place.key, "a/b");
    assert_true(s3_place_parse("s3://bucket", &place));
    assert_string_equal(place.key, "");
    static const char *const wrong[] = { "/a/b",        "s3:/bucket/a",  "s3://",
                                         "s3://ab/a",   "s3://Bucket/a", "s3://-ab/a",
                                         "s3://buc ket" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(s3_place_parse(wrong[i], &place));
    char path[2 * S3_KEY_MAX] = "s3://bucket/";
    memset(path + 12, 'a', S3_KEY_MAX);
    assert_false(s3_place_parse(path, &place));
    path[12 + S3_KEY_MAX - 1] = '\0';
    assert_true(s3_place_parse(path, &place));
}

static void addresses_are_encoded_as_signatures_want_it(void **state)
{
    (void)state;
    char url[S3_URL_MAX];
    assert_true(s3_url_make("", "eu-west-3", "bucket", "a b/ö~+", NULL, url));
    assert_string_equal(url, "https://bucket.s3.eu-west-3.amazonaws.com/a%20b/%C3%B6~%2B");
    assert_true(s3_url_make("", "cn-north-1", "my.bucket", "k", "uploads=", url));
    assert_string_equal(url, "https://s3.cn-north-1.amazonaws.com.cn/my.bucket/k?uploads=");
    assert_true(s3_url_make("http://host:9000", "us-east-1", "bucket", "", "x=1", url));
    assert_string_equal(url, "http://host:9000/bucket/?x=1");
    char small[4];
    assert_false(s3_url_encode("a/b", false, small, sizeof(small)));
    assert_true(s3_url_encode("a/b", true, small, sizeof(small)));
    char text[] = "a%20b%2Fc+d%zz%4";
    s3_url_decode(text);
    assert_string_equal(text, "a b/c d%zz%4");
}

static void checkpoints_set_aside_have_two_names(void **state)
{
    (void)state;
    struct s3_path path;
    assert_true(s3_path_parse(X, &path));
    assert_int_equal(path.meaning, S3_STEP);
    assert_string_equal(path.marker.key, "a/j-1/bad-step-000000000040.g2");
    assert_true(s3_path_parse("s3://bucket/a/j-1/bad-step-000000000040.g2", &path));
    assert_int_equal(path.meaning, S3_ASIDE);
    assert_string_equal(path.place.key, "a/j-1/step-000000000040.g2");
    assert_string_equal(path.marker.key, "a/j-1/bad-step-000000000040.g2");
    assert_true(s3_path_parse("s3://bucket/a/j-1/bad-step-000000000040.g2.2", &path));
    assert_string_equal(path.place.key, "a/j-1/step-000000000040.g2");
    assert_true(s3_path_parse("s3://bucket/a/j-1/bad-step-000000000040.g2/manifest.json", &path));
    assert_int_equal(path.meaning, S3_ASIDE_MANIFEST);
    assert_string_equal(path.place.key, "a/j-1/step-000000000040.g2/manifest.json");
    assert_true(s3_path_parse("s3://bucket/j-1/bad-step-000000000040.g2/shard-00000-of-00001.cairn",
                              &path));
    assert_int_equal(path.meaning, S3_PLAIN);
    assert_string_equal(path.place.key, "j-1/step-000000000040.g2/shard-00000-of-00001.cairn");
    assert_true(s3_path_parse(X "/manifest.json", &path));
    assert_int_equal(path.meaning, S3_PLAIN);
    assert_string_equal(path.place.key, "a/j-1/step-000000000040.g2/manifest.json");
}

static bool join(void *arg, const char *path, const char *text)
{
    char *all = arg;
    (void)snprintf(all + strlen(all), 512 - strlen(all), "%s=%s;", path, text);
    return strcmp(path, "a/stop") != 0;
}

static void answers_are_walked_element_by_element(void **state)
{
    (void)state;
    char all[512] = "";
    static const char good[] =
        "<?xml version=\"1.0\"?>\n <a xmlns=\"u\"><b>1&amp;2</b><c><d/></c></a>";
    assert_int_equal(s3_xml_walk(good, sizeof(good) - 1, join, all), ST_OK);
    assert_string_equal(all, "a/b=1&2;a/c/d=;a/c=;a=;");
    all[0] = '\0';
    static const char stopped[] = "<a><b>1</b><stop/><b>2</b>";
    assert_int_equal(s3_xml_walk(stopped, sizeof(stopped) - 1, join, all), ST_OK);
    assert_string_equal(all, "a/b=1;a/stop=;");
}

static void answers_that_are_wrong_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "no xml",
        "<a><b></a>",
        "<!DOCTYPE a [<!ENTITY e \"x\">]><a>&e;</a>",
        "<a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></a>",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char all[512] = "";
        assert_int_equal(s3_xml_walk(wrong[i], strlen(wrong[i]), join, all), ST_IO);
    }
    char *text = malloc(2 * S3_XML_TEXT);
    char all[512] = "";
    assert_non_null(text);
    memset(text, 'x', 2 * S3_XML_TEXT);
    memcpy(text, "<a>", 3);
    assert_int_equal(s3_xml_walk(text, 2 * S3_XML_TEXT, join, all), ST_IO);
    free(text);
    static const char error[] = "<Error><Code>SlowDown</Code><Message>a\nb</Message></Error>";
    struct s3_error e = s3_error_parse(error, sizeof(error) - 1);
    assert_string_equal(e.code, "SlowDown");
    assert_string_equal(e.message, "a b");
    assert_string_equal(e.region, "");
}

/* ---- settings ---- */

static const char *const variables[] = {
    "AWS_ACCESS_KEY_ID",  "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",           "AWS_REGION",
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",      "AWS_ENDPOINT_URL_S3",         "AWS_PROFILE",
    "AWS_CA_BUNDLE",      "AWS_CONFIG_FILE",       "AWS_SHARED_CREDENTIALS_FILE",
};

struct home {
    char dir[64], credentials[96], config[96];
};

static int set_up(void **state)
{
    struct home *home = calloc(1, sizeof(*home));
    assert_non_null(home);
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        assert_int_equal(unsetenv(variables[i]), 0);
    (void)snprintf(home->dir, sizeof(home->dir), "/tmp/cairn-s3-XXXXXX");
    assert_non_null(mkdtemp(home->dir));
    (void)snprintf(home->credentials, sizeof(home->credentials), "%s/credentials", home->dir);
    (void)snprintf(home->config, sizeof(home->config), "%s/config", home->dir);
    assert_int_equal(setenv("AWS_SHARED_CREDENTIALS_FILE", home->credentials, 1), 0);
    assert_int_equal(setenv("AWS_CONFIG_FILE", home->config, 1), 0);
    *state = home;
    return 0;
}

static int tear_down(void **state)
{
    struct home *home = *state;
    (void)unlink(home->credentials);
    (void)unlink(home->config);
    assert_int_equal(rmdir(home->dir), 0);
    free(home);
    return 0;
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void environment_wins_over_files(void **state)
{
    struct home *home = *state;
    static struct s3_config config;
    struct reason why;
    put(home->credentials, "[default]\naws_access_key_id = file\naws_secret_access_key = s\n");
    put(home->config, "[default]\nregion = eu-west-1\nendpoint_url = http://file:1\n");
    (void)setenv("AWS_ACCESS_KEY_ID", "env", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_OK); /* half a pair is none */
    assert_string_equal(config.credentials.key_id, "file");
    (void)setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    (void)setenv("AWS_REGION", "us-west-2", 1);
    (void)setenv("AWS_DEFAULT_REGION", "us-west-1", 1);
    (void)setenv("AWS_ENDPOINT_URL", "http://env:2/", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.credentials.key_id, "env");
    assert_string_equal(config.credentials.secret, "secret");
    assert_string_equal(config.credentials.token, "");
    assert_string_equal(config.region, "us-west-2");
    assert_string_equal(config.endpoint, "http://env:2");
    (void)setenv("AWS_ENDPOINT_URL_S3", "https://s3:3", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.endpoint, "https://s3:3");
}

static void profiles_are_read_from_both_files(void **state)
{
    struct home *home = *state;
    static struct s3_config config;
    struct reason why;
    put(home->credentials, "# comment\n[default]\naws_access_key_id=d\naws_secret_access_key=d\n"
                           "[ work ]\r\naws_access_key_id = w\r\n\taws_session_token = nested\n"
                           "aws_secret_access_key = a=b/c\naws_session_token = t\n");
    put(home->config, "[profile work]\nregion = eu-central-1\ns3 =\n  region = nested\n"
                      "[work]\nregion = not-this\n");
    (void)setenv("AWS_PROFILE", "work", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.credentials.key_id, "w");
    assert_string_equal(config.credentials.secret, "a=b/c");
    assert_string_equal(config.credentials.token, "t");
    assert_string_equal(config.region, "eu-central-1");
    put(home->credentials, "[work]\naws_access_key_id = x\naws_secret_access_key = y\n");
    struct s3_credentials fresh;
    assert_int_equal(s3_config_reload(&config, &fresh), ST_OK);
    assert_string_equal(fresh.key_id, "x");
    assert_string_equal(fresh.token, "");
}

/* Blanks around a value, as a secret's file gives them, are dropped; blanks in its middle are
 * refused by name. */
static void blanks_around_settings_are_none_of_them(void **state)
{
    (void)state;
    static const char *const names[] = { "AWS_ACCESS_KEY_ID",   "AWS_SECRET_ACCESS_KEY",
                                         "AWS_SESSION_TOKEN",   "AWS_REGION",
                                         "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE" };
    static const char *const values[] = { "key",       "sec ret",        "token",
                                          "eu-west-1", "http://store:1", "/ca.pem" };
    static const char *const around[][2] = { { "", "\n" }, { " ", "\r\n" }, { "\n\t", " \n\n" } };
    static struct s3_config config;
    struct reason why;
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 6; k++) {
            char value[64];
            (void)snprintf(value, sizeof(value), "%s%s%s", around[i][0], values[k], around[i][1]);
            (void)setenv(names[k], value, 1);
        }
        assert_int_equal(s3_config_load(&config, &why), ST_OK);
        assert_string_equal(config.credentials.key_id, values[0]);
        assert_string_equal(config.credentials.secret, values[1]);
        assert_string_equal(config.credentials.token, values[2]);
        assert_string_equal(config.region, values[3]);
        assert_string_equal(config.endpoint, values[4]);
        assert_string_equal(config.ca_bundle, values[5]);
        struct s3_credentials fresh;
        assert_int_equal(s3_config_reload(&config, &fresh), ST_OK);
        assert_string_equal(fresh.secret, values[1]);
    }
    for (size_t k = 0; k < 6; k++) {
        (void)setenv(names[k], "a\nb", 1);
        assert_int_equal(s3_config_load(&config, &why), ST_CONFIG);
        assert_non_null(strstr(why.text, names[k]));
        (void)setenv(names[k], values[k], 1);
    }
    (void)setenv("AWS_REGION", " \n", 1); /* nothing is said */
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.region, "us-east-1");
}

static void the_services_that_a_profile_names_say_where_the_store_is(void **state)
{
    struct home *home = *state;
    static const char services[] = "[services local]\ndynamodb =\n  endpoint_url = http://db:1\n"
                                   "s3 = \n  addressing_style = path\n  endpoint_url = "
                                   "http://store:2\n\n[services other]\ns3 =\n"
                                   "  endpoint_url = http://other:3\n";
    static struct s3_config config;
    struct reason why;
    char text[1024];
    (void)snprintf(text, sizeof(text),
                   "[default]\nendpoint_url = http://all:4\nservices = local\n%s", services);
    put(home->config, text);
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.endpoint, "http://store:2");
    (void)snprintf(text, sizeof(text), "%s[profile work]\nservices=other\n", services);
    put(home->config, text);
    (void)setenv("AWS_PROFILE", "work", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.endpoint, "http://other:3");
    put(home->config, "[profile work]\nservices = none\nendpoint_url = http://all:4\n");
    assert_int_equal(s3_config_load(&config, &why), ST_CONFIG);
    assert_non_null(strstr(why.text, "[services none]"));
    (void)setenv("AWS_ENDPOINT_URL", "http://env:5", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.endpoint, "http://env:5");
    (void)unsetenv("AWS_ENDPOINT_URL");
    /* One that says nothing of S3. */
    put(home->config, "[profile work]\nservices = d\nendpoint_url = http://all:4\n[services d]\n"
                      "dynamodb =\n  endpoint_url = http://db:1\n");
    assert_int_equal(s3_config_load(&config, &why), ST_OK);
    assert_string_equal(config.endpoint, "http://all:4");
}

static void settings_that_cannot_work_are_explained(void **state)
{
    struct home *home = *state;
    static struct s3_config config;
    struct reason why = { "" };
    assert_int_equal(s3_config_load(&config, &why), ST_OK); /* a role may have credentials */
    assert_string_equal(config.credentials.key_id, "");
    assert_string_equal(config.region, "us-east-1");
    (void)setenv("AWS_PROFILE", "nobody", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_CONFIG);
    assert_non_null(strstr(why.text, "nobody"));
    put(home->config, "[profile nobody]\nsso_session = here\n");
    assert_int_equal(s3_config_load(&config, &why), ST_CONFIG);
    assert_non_null(strstr(why.text, "single sign-on"));
    (void)unsetenv("AWS_PROFILE");
    (void)setenv("AWS_ENDPOINT_URL_S3", "localhost:9000", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_CONFIG);
    assert_non_null(strstr(why.text, "localhost:9000"));
    (void)setenv("AWS_ENDPOINT_URL_S3", "https://me:hidden@host", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_CONFIG);
    assert_null(strstr(why.text, "hidden"));
    (void)setenv("AWS_ENDPOINT_URL_S3", "http://host/path", 1);
    assert_int_equal(s3_config_load(&config, &why), ST_CONFIG);
    struct ckpt_store *store = NULL;
    struct io_stat info;
    assert_int_equal(ckpt_store_new(&store), ST_OK);
    const struct io *io = ckpt_store_io(store);
    assert_int_equal(io->stat(io->self, X, &info), ST_CONFIG);
    io_explain(io, ST_CONFIG, &why);
    assert_non_null(strstr(why.text, "http://host/path"));
    assert_int_equal(io->stat(io->self, home->dir, &info), ST_OK); /* folders need none of it */
    uint64_t room = 0;
    assert_int_equal(io_space(io, home->dir, &room), ST_OK);
    assert_true(room > 0 && room < UINT64_MAX);
    assert_int_equal(io_space(io, X, &room), ST_OK);
    assert_true(room == UINT64_MAX);
    assert_int_equal(io->link(io->self, X, "/tmp/x"), ST_REFUSED);
    assert_int_equal(io->rename(io->self, "/tmp/x", X), ST_REFUSED);
    ckpt_store_free(store);
}

static void parts_are_as_long_as_ten_thousand_of_them_need(void **state)
{
    (void)state;
    const size_t eight = (size_t)8 << 20;
    assert_int_equal(s3_upload_part_bytes(eight, 0), eight);
    assert_int_equal(s3_upload_part_bytes(eight, (uint64_t)10000 * eight), eight);
    assert_int_equal(s3_upload_part_bytes(eight, (uint64_t)10000 * eight + 1), (size_t)9 << 20);
    assert_int_equal(s3_upload_part_bytes(eight, (uint64_t)484 << 30), (size_t)50 << 20);
}

/* ---- credentials ---- */

struct asking {
    const struct io *io;
    enum status st;
};

static void *ask(void *arg)
{
    struct asking *it = arg;
    struct io_stat info;
    it->st = it->io->stat(it->io->self, X "/a", &info);
    return NULL;
}

/* A socket that listens; its address is put into a variable. */
static int listen_at(const char *variable)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof(address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listening >= 0);
    assert_int_equal(bind(listening, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listening, 8), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &size), 0);
    char url[64];
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d/", ntohs(address.sin_port));
    assert_int_equal(setenv(variable, url, 1), 0);
    return listening;
}

/* Says that there is more, but not where it begins. */
static void *answer_in_part(void *arg)
{
    static const char body[] = "<ListBucketResult><IsTruncated>true</IsTruncated>"
                               "<Contents><Key>a/one</Key><Size>1</Size></Contents>"
                               "</ListBucketResult>";
    char request[4096], answer[512];
    const int size = snprintf(answer, sizeof(answer),
                              "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n"
                              "\r\n%s",
                              sizeof(body) - 1, body);
    size_t got = 0;
    const int connection = accept(*(const int *)arg, NULL, NULL);
    while (got < sizeof(request) - 1) {
        const ssize_t n = read(connection, request + got, sizeof(request) - 1 - got);
        if (n <= 0)
            break;
        got += (size_t)n;
        request[got] = '\0';
        if (strstr(request, "\r\n\r\n") != NULL)
            break;
    }
    const ssize_t sent = write(connection, answer, (size_t)size);
    (void)close(connection);
    return sent == size ? arg : NULL;
}

static bool count_name(void *arg, const char *name)
{
    (void)name;
    ++*(int *)arg;
    return true;
}

static void a_list_that_breaks_off_is_no_list(void **state)
{
    (void)state;
    int names = 0, listening = listen_at("AWS_ENDPOINT_URL");
    assert_int_equal(setenv("AWS_ACCESS_KEY_ID", "key", 1), 0);
    assert_int_equal(setenv("AWS_SECRET_ACCESS_KEY", "secret", 1), 0);
    assert_int_equal(setenv("AWS_REGION", "us-east-1", 1), 0);
    const struct s3_options options = s3_defaults();
    struct s3 *s3 = NULL;
    struct reason why = { "" };
    pthread_t thread;
    void *answered = NULL;
    assert_int_equal(s3_new(&options, &s3, &why), ST_OK);
    assert_int_equal(pthread_create(&thread, NULL, answer_in_part, &listening), 0);
    const struct io *io = s3_io(s3);
    assert_int_equal(io->list(io->self, "s3://bucket/a", count_name, &names), ST_IO);
    assert_int_equal(pthread_join(thread, &answered), 0);
    assert_non_null(answered);
    io_explain(io, ST_IO, &why);
    assert_non_null(strstr(why.text, "breaks off"));
    s3_free(s3);
    (void)close(listening);
}

/* Whoever gives credentials takes a connection and says nothing, for ever. */
static void closing_does_not_wait_for_credentials(void **state)
{
    (void)state;
    int listening = listen_at("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    struct s3_options options = s3_defaults();
    options.client.times.stall_ms = 3600000;
    options.client.times.total_ms = 3600000;
    options.client.tries.time_ms_max = 3600000;
    struct s3 *s3 = NULL;
    struct reason why = { "" };
    assert_int_equal(s3_new(&options, &s3, &why), ST_OK);
    struct asking asking[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        asking[i] = (struct asking){ .io = s3_io(s3) };
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &asking[i]), 0);
    }
    int connection = accept(listening, NULL, NULL); /* one of them is under way */
    assert_true(connection >= 0);
    s3_close(s3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(asking[i].st, ST_CLOSED);
    }
    s3_free(s3);
    (void)close(connection);
    (void)close(listening);
    assert_int_equal(unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"), 0);
}

static void hashes_are_those_of_the_standard(void **state)
{
    (void)state;
    char text[S3_SHA256_TEXT];
    assert_int_equal(s3_sha256("abc", 3, text), ST_OK); /* FIPS 180-2, B.1 */
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(s3_sha256(NULL, 0, text), ST_OK);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_mean_bucket_and_key),
        cmocka_unit_test(addresses_are_encoded_as_signatures_want_it),
        cmocka_unit_test(checkpoints_set_aside_have_two_names),
        cmocka_unit_test(answers_are_walked_element_by_element),
        cmocka_unit_test(answers_that_are_wrong_are_refused),
        cmocka_unit_test_setup_teardown(environment_wins_over_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(profiles_are_read_from_both_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(blanks_around_settings_are_none_of_them, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_services_that_a_profile_names_say_where_the_store_is,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(settings_that_cannot_work_are_explained, set_up, tear_down),
        cmocka_unit_test(parts_are_as_long_as_ten_thousand_of_them_need),
        cmocka_unit_test_setup_teardown(a_list_that_breaks_off_is_no_list, set_up, tear_down),
        cmocka_unit_test_setup_teardown(closing_does_not_wait_for_credentials, set_up, tear_down),
        cmocka_unit_test(hashes_are_those_of_the_standard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
