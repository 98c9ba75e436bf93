/*
 * The list of webhooks: golden mistakes, defaults, files that others may read, what is covered.
 *
 * tests/golden/hook/NAME.yaml with NAME.err is a list with mistakes and what is said about it.
 * CAIRN_GOLDEN_UPDATE=1 writes the .err files anew. In all of them "secretsecret" is a secret.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "tests/test.h"
#include "webhook/config.h"
#include "webhook/mask.h"
#include "webhook/private.h"

#define GOLDEN SOURCE_DIR "/tests/golden/hook"

static enum status parse(const char *text, struct webhook_config **out, struct buf *errors)
{
    return webhook_config_parse(text, strlen(text), "webhooks.yaml", "/base", out, errors);
}

static struct webhook_config *parse_good(const char *text)
{
    auto_buf struct buf errors;
    struct webhook_config *config = NULL;
    buf_init(&errors, 1 << 20);
    if (parse(text, &config, &errors) != ST_OK)
        fail_msg("%s", errors.size > 0 ? errors.data : "no text");
    return config;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
}

/* ---- mistakes ---- */

static void check_golden(const char *name)
{
    char path[512], file_name[300];
    auto_free char *text = NULL;
    auto_free char *wanted = NULL;
    size_t size = 0;
    auto_buf struct buf errors;
    struct webhook_config *config = NULL;
    buf_init(&errors, 1 << 20);
    (void)snprintf(path, sizeof(path), GOLDEN "/%s.yaml", name);
    assert_int_equal(io_read_file(io_system(), path, 1 << 20, &text, &size), ST_OK);
    (void)snprintf(file_name, sizeof(file_name), "%s.yaml", name);
    assert_int_equal(webhook_config_parse(text, size, file_name, GOLDEN, &config, &errors),
                     ST_CONFIG);
    assert_null(config);
    assert_null(strstr(errors.data, "secretsecret"));
    (void)snprintf(path, sizeof(path), GOLDEN "/%s.err", name);
    if (getenv("CAIRN_GOLDEN_UPDATE") != NULL)
        write_file(path, errors.data);
    assert_int_equal(io_read_file(io_system(), path, 1 << 20, &wanted, &size), ST_OK);
    assert_string_equal(errors.data, wanted);
}

static void mistakes_are_shown_where_they_are_and_without_secrets(void **state)
{
    (void)state;
    size_t count = 0;
    DIR *folder = opendir(GOLDEN);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[256];
        const size_t size = strlen(entry->d_name);
        if (size <= 5 || strcmp(entry->d_name + size - 5, ".yaml") != 0)
            continue;
        (void)snprintf(name, sizeof(name), "%.*s", (int)(size - 5), entry->d_name);
        check_golden(name);
        count++;
    }
    (void)closedir(folder);
    assert_true(count >= 9);
}

static void a_text_that_is_no_yaml_shows_no_secret(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "url: https://example.org/secretsecretsecret\n: : [",
        "  url:\n    https//example.org/secretsecretsecret\n   x: {",
        "urll: secretsecretsecret",
        "# https://example.org/secretsecretsecret\n\tname: x",
        "\xff secretsecretsecret",
        "name: https://example.org/secretsecretsecret",
        "{name: a, url: https//example.org/secretsecretsecret",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        auto_buf struct buf errors;
        struct webhook_config *config = NULL;
        buf_init(&errors, 1 << 20);
        assert_int_equal(parse(texts[i], &config, &errors), ST_CONFIG);
        assert_null(strstr(errors.data, "secret"));
    }
}

static void more_than_there_may_be_are_refused(void **state)
{
    (void)state;
    auto_buf struct buf text;
    auto_buf struct buf errors;
    struct webhook_config *config = NULL;
    buf_init(&text, 1 << 20);
    buf_init(&errors, 1 << 20);
    assert_int_equal(buf_append_text(&text, "webhooks:\n"), ST_OK);
    for (int i = 0; i <= WEBHOOK_MAX; i++) {
        assert_int_equal(buf_printf(&text, "- {name: n%d, url: http://localhost/}\n", i), ST_OK);
    }
    assert_int_equal(parse(text.data, &config, &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "there are more than 32 webhooks"));
}

/* ---- good ones ---- */

static void what_is_not_said_has_a_default(void **state)
{
    (void)state;
    auto_free struct webhook_config *config = parse_good(
        "webhooks:\n"
        "  - {name: chat, url: 'https://hooks.slack.com/services/a/b'}\n"
        "  - {name: other, url: 'http://[::1]:9000/in?x=1', events: failed, jobs: 'resnet*'}\n");
    assert_int_equal(config->count, 2);
    const struct webhook *chat = webhook_config_find(config, "chat");
    const struct webhook *other = webhook_config_find(config, "other");
    assert_int_equal(chat->format, WEBHOOK_SLACK);
    assert_string_equal(chat->url, "https://hooks.slack.com/services/a/b");
    assert_string_equal(chat->shown, "https://hooks.slack.com/…");
    assert_int_equal(other->format, WEBHOOK_JSON);
    assert_string_equal(other->shown, "http://[::1]:9000/…");
    assert_null(webhook_config_find(config, "third"));
    for (unsigned i = 0; i < WEBHOOK_EVENTS; i++) {
        assert_true(webhook_wants(chat, (enum webhook_event)i, "anything"));
        assert_int_equal(webhook_wants(other, (enum webhook_event)i, "resnet18"),
                         i == WEBHOOK_FAILED);
        assert_false(webhook_wants(other, (enum webhook_event)i, "lenet"));
    }
    assert_true(webhook_wants(other, WEBHOOK_TEST, ""));
}

static void an_empty_list_is_one(void **state)
{
    (void)state;
    static const char *const texts[] = { "", "# nothing\n", "webhooks:\n", "webhooks: []\n" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        auto_free struct webhook_config *config = parse_good(texts[i]);
        assert_int_equal(config->count, 0);
    }
}

/* ---- files ---- */

static void what_others_may_read_is_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-hook-XXXXXX", list[64], secret[64];
    auto_buf struct buf errors;
    struct webhook_config *config = NULL;
    buf_init(&errors, 1 << 20);
    assert_non_null(mkdtemp(folder));
    (void)snprintf(list, sizeof(list), "%s/webhooks.yaml", folder);
    (void)snprintf(secret, sizeof(secret), "%s/secret", folder);
    assert_int_equal(webhook_config_read(list, &config, &errors), ST_NOT_FOUND);
    write_file(secret, "  0123456789abcdef\n");
    write_file(list, "webhooks: [{name: a, url: 'http://localhost/', secret_file: secret}]\n");
    assert_int_equal(chmod(list, 0640), 0);
    assert_int_equal(chmod(secret, 0600), 0);
    assert_int_equal(webhook_config_read(list, &config, &errors), ST_REFUSED);
    assert_non_null(strstr(errors.data, "(mode 0640): chmod 600 /tmp/cairn-hook-"));
    assert_int_equal(chmod(list, 0600), 0);
    assert_int_equal(chmod(secret, 0604), 0);
    buf_clear(&errors);
    assert_int_equal(webhook_config_read(list, &config, &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "(mode 0604): chmod 600 /tmp/cairn-hook-"));
    assert_null(strstr(errors.data, "0123456789abcdef"));
    assert_int_equal(chmod(secret, 0600), 0);
    assert_int_equal(webhook_config_read(list, &config, &errors), ST_OK);
    assert_string_equal(config->hooks[0].secret_file, secret);
    free(config);

    char *text = NULL;
    size_t size = 0;
    struct reason reason = { "" };
    assert_int_equal(webhook_secret_read(secret, &text, &size, &reason), ST_OK);
    assert_string_equal(text, "0123456789abcdef");
    assert_int_equal(size, 16);
    webhook_secret_free(text, size);
    write_file(secret, "short\n");
    assert_int_equal(webhook_secret_read(secret, &text, &size, &reason), ST_INVALID);
    assert_null(strstr(reason.text, "short\n"));
    assert_int_equal(webhook_secret_read(folder, &text, &size, &reason), ST_INVALID);
    assert_int_equal(unlink(secret) + unlink(list) + rmdir(folder), 0);
}

static void what_comes_back_may_have_the_address_in_it(void **state)
{
    (void)state;
    const char *url = "https://me:hunter2@example.org/services/T0/abcdefgh?key=ijklmnop";
    assert_true(webhook_url_leaks(url, "no route for abcdefgh"));
    assert_true(webhook_url_leaks(url, "key ijklmnop is wrong"));
    assert_true(webhook_url_leaks(url, "me:hunter2 who?"));
    assert_false(webhook_url_leaks(url, "Could not resolve host: example.org"));
    assert_false(webhook_url_leaks("https://example.org", "example.org"));
    assert_true(webhook_url_leaks("https://example.org?key=ijklmnop", "key ijklmnop is wrong"));
}

static void what_goes_over_the_network_in_the_clear_is_known(void **state)
{
    (void)state;
    static const char *const clear[] = { "http://example.org/x", "HTTP://10.0.0.1",
                                         "http://127.evil.org/", "http://me:127.0.0.1@example.org/",
                                         "http://localhost.org" };
    static const char *const kept[] = { "https://example.org/x", "http://127.0.0.1:8025/",
                                        "http://[::1]:1/", "http://localhost:80/x",
                                        "http://u:p@127.0.0.1?a=b" };
    for (size_t i = 0; i < 5; i++) {
        assert_true(webhook_url_is_clear(clear[i]));
        assert_false(webhook_url_is_clear(kept[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_shown_where_they_are_and_without_secrets),
        cmocka_unit_test(a_text_that_is_no_yaml_shows_no_secret),
        cmocka_unit_test(more_than_there_may_be_are_refused),
        cmocka_unit_test(what_is_not_said_has_a_default),
        cmocka_unit_test(an_empty_list_is_one),
        cmocka_unit_test(what_others_may_read_is_refused),
        cmocka_unit_test(what_comes_back_may_have_the_address_in_it),
        cmocka_unit_test(what_goes_over_the_network_in_the_clear_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
