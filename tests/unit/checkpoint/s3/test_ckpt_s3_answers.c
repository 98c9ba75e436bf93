/* What answers isn't always an S3 store: it is told as what it is, and nothing is advised that is
 * about something else. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checkpoint/s3/client.h"
#include "tests/test.h"

#define XML  "Content-Type: application/xml\r\n"
#define HTML "Content-Type: text/html; charset=utf-8\r\n"

/* Answers each connection the same. */
struct server {
    int listening;
    const char *answer;
    pthread_t thread;
};

static void *serve(void *arg)
{
    struct server *server = arg;
    for (;;) {
        char request[65536];
        const int connection = accept(server->listening, NULL, NULL);
        if (connection < 0)
            return NULL;
        (void)recv(connection, request, sizeof(request), 0);
        (void)!write(connection, server->answer, strlen(server->answer));
        (void)shutdown(connection, SHUT_WR);
        while (recv(connection, request, sizeof(request), 0) > 0)
            ;
        (void)close(connection);
    }
}

static struct s3_client *begin(struct server *server)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof(address);
    char url[64];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(server->listening >= 0);
    assert_int_equal(bind(server->listening, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(server->listening, 8), 0);
    assert_int_equal(getsockname(server->listening, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", ntohs(address.sin_port));
    (void)setenv("AWS_ENDPOINT_URL_S3", url, 1);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
    struct s3_client_options options = s3_client_defaults();
    options.tries.attempts_max = 1;
    struct s3_client *client = NULL;
    struct reason why;
    assert_int_equal(s3_client_new(&options, &client, &why), ST_OK);
    return client;
}

static void end(struct server *server, struct s3_client *client)
{
    s3_client_free(client);
    (void)shutdown(server->listening, SHUT_RDWR);
    assert_int_equal(pthread_join(server->thread, NULL), 0);
    (void)close(server->listening);
}

/* Makes a call to a server that gives this answer, and returns its status. why: the explanation,
 * unless it is ST_OK. */
static enum status ask(const char *method, const char *answer, struct reason *why)
{
    struct server server = { .answer = answer };
    struct s3_client *client = begin(&server);
    const struct s3_call call = { .method = method,
                                  .bucket = "bkt",
                                  .key = "pre/a",
                                  .body = "x",
                                  .size = strcmp(method, "PUT") == 0 };
    const enum status st = s3_client_do(client, &call);
    s3_client_explain(client, st, why);
    end(&server, client);
    return st;
}

static int set_up(void **state)
{
    (void)state;
    (void)setenv("AWS_ACCESS_KEY_ID", "key", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    (void)setenv("AWS_CONFIG_FILE", "/none", 1);
    (void)setenv("AWS_SHARED_CREDENTIALS_FILE", "/none", 1);
    (void)setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    return 0;
}

static void what_no_store_gave_is_shown_as_it_is(void **state)
{
    (void)state;
    static const char *const advice[] = { "credentials", "AWS_REGION", "permission", "bucket" };
    static const struct {
        const char *method, *answer, *says;
    } rows[] = {
        /* a TLS port that is asked in plain: as Go's servers answer, and nginx */
        { "PUT",
          "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
          "'Client sent an HTTP request to an HTTPS server.'; write https:// in" },
        { "GET",
          "HTTP/1.1 400 Bad Request\r\n" HTML "\r\n"
          "<html><title>The plain HTTP request was sent to HTTPS port</title></html>\n",
          "'The plain HTTP request was sent to HTTPS port'; write https:// in" },
        /* a proxy, a page of something else, a gateway with answers of its own */
        { "PUT",
          "HTTP/1.1 403 Forbidden\r\n" HTML "\r\n"
          "<!DOCTYPE html>\n<b>Access\xc3\xa4"
          "denied</b>\n by <i>policy",
          "HTTP 403, which is no answer of an S3 store: 'Access??denied by policy'" },
        { "GET", "HTTP/1.1 404 Not Found\r\n" HTML "\r\n<html>Not Found</html>",
          "HTTP 404, which is no answer of an S3 store: 'Not Found'; is AWS_ENDPOINT_URL_S3 "
          "right" },
        { "PUT",
          "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\n\r\n"
          "{\"error\":\"none\"}",
          "'{\"error\":\"none\"}'" },
        /* a redirect to somewhere else, also of HEAD */
        { "HEAD", "HTTP/1.1 301 Moved Permanently\r\nLocation: https://store.example/\r\n\r\n",
          "HTTP 301, which is no answer of an S3 store, it leads to https://store.example/; write "
          "https://" },
        { "GET",
          "HTTP/1.1 302 Found\r\nLocation: http://portal.example/login\r\nContent-Length: "
          "0\r\n\r\n",
          "leads to http://portal.example/login; is AWS_ENDPOINT_URL_S3 right" },
        /* a page that says it is well */
        { "GET", "HTTP/1.1 200 OK\r\n" HTML "\r\n<html>Please log in</html>",
          "HTTP 200, which is no answer of an S3 store: 'Please log in'" },
        { "PUT", "HTTP/1.1 200 OK\r\n" HTML "\r\n<html>Please log in</html>", "'Please log in'" },
        { "HEAD", "HTTP/1.1 200 OK\r\n" HTML "Content-Length: 26\r\n\r\n",
          "HTTP 200, which is no answer of an S3 store; is" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct reason why;
        assert_int_equal(ask(rows[i].method, rows[i].answer, &why), ST_UNREACHABLE);
        if (strstr(why.text, rows[i].says) == NULL)
            fail_msg("'%s' isn't in '%s'", rows[i].says, why.text);
        for (size_t k = 0; k < sizeof(advice) / sizeof(advice[0]); k++)
            assert_null(strstr(why.text, advice[k]));
    }
}

/* With its headers, as XML, or with nothing that says otherwise. */
static void what_a_store_says_stays_what_it_is(void **state)
{
    (void)state;
    static const struct {
        const char *method, *answer;
        enum status st;
        const char *says;
    } rows[] = {
        { "GET", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ST_NOT_FOUND, "" },
        { "HEAD", "HTTP/1.1 404 Not Found\r\n" HTML "Content-Length: 207\r\n\r\n", ST_NOT_FOUND,
          "" },
        { "GET",
          "HTTP/1.1 404 Not Found\r\n" HTML "x-amz-request-id: 1\r\n\r\n"
          "<html>Not Found</html>",
          ST_NOT_FOUND, "" },
        { "PUT", "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n", ST_EXISTS, "" },
        { "PUT",
          "HTTP/1.1 403 Forbidden\r\n" XML "\r\n"
          "<Error><Code>InvalidAccessKeyId</Code></Error>",
          ST_REFUSED, "" },
        { "PUT",
          "HTTP/1.1 403 Forbidden\r\n" HTML "\r\n"
          "<Error><Code>AccessDenied</Code></Error>",
          ST_REFUSED, "the credentials lack a permission" },
        { "HEAD", "HTTP/1.1 403 Forbidden\r\nx-amz-request-id: 1\r\n\r\n", ST_REFUSED,
          "the credentials have expired" },
        { "HEAD", "HTTP/1.1 403 Forbidden\r\n\r\n", ST_REFUSED, "or what answers is no S3 store" },
        { "HEAD", "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-west-1\r\n\r\n",
          ST_CONFIG, "set AWS_REGION to eu-west-1" },
        { "GET",
          "HTTP/1.1 301 Moved Permanently\r\n" XML "\r\n"
          "<Error><Code>PermanentRedirect</Code></Error>",
          ST_CONFIG, "in another region, which the store doesn't name" },
        { "PUT", "HTTP/1.1 502 Bad Gateway\r\n" HTML "\r\n<html></html>", ST_IO, "HTTP 502" },
        { "PUT", "HTTP/1.1 200 OK\r\nETag: \"1\"\r\n" HTML "Content-Length: 0\r\n\r\n", ST_OK, "" },
        { "DELETE", "HTTP/1.1 204 No Content\r\n" HTML "\r\n", ST_OK, "" },
        { "HEAD", "HTTP/1.1 200 OK\r\nETag: \"1\"\r\n" HTML "Content-Length: 9\r\n\r\n", ST_OK,
          "" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct reason why = { "" };
        const enum status st = ask(rows[i].method, rows[i].answer, &why);
        if (st != rows[i].st || strstr(why.text, rows[i].says) == NULL)
            fail_msg("%zu: %s: '%s' isn't in '%s'", i, status_string(st), rows[i].says, why.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_no_store_gave_is_shown_as_it_is, set_up),
        cmocka_unit_test_setup(what_a_store_says_stays_what_it_is, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
