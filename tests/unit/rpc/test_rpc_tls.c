/* TLS between our client and our server: who the caller is, each wrong credential, new files. */
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "chat_service.h"
#include "common/clock.h"
#include "common/io.h"
#include "identity/make.h"
#include "rpc/client.h"
#include "tests/test.h"

enum { DEADLINE_MS = 20000, DAY = 86400 };

static const ProtobufCServiceDescriptor *const chat_service = &cairn__test__chat__descriptor;

/* The last caller; written by gRPC's thread. */
struct seen {
    pthread_mutex_t mutex;
    uint32_t calls;
    enum status st;
    struct identity_cert cert;
};

/* Certificate, key and CA of one peer, as files. */
struct seat {
    char paths[3][96];
    struct identity_files files;
};

struct fixture {
    char dir[64];
    struct identity_pem ca, other;
    struct seat server, client;
    struct rpc_descdb *db;
    struct chat chat;
    struct seen seen;
    struct rpc_server *rpc;
    char target[64];
};

static enum rpc_code look(void *ctx, struct rpc_call *call, const char **out_detail)
{
    struct seen *seen = ctx;
    (void)out_detail;
    pthread_mutex_lock(&seen->mutex);
    seen->calls++;
    seen->st = rpc_call_peer_identity(call, &seen->cert);
    pthread_mutex_unlock(&seen->mutex);
    return RPC_OK;
}

static void seat_init(struct fixture *f, struct seat *seat, const char *name)
{
    static const char *const kinds[] = { "cert", "key", "ca" };
    for (size_t i = 0; i < 3; i++)
        (void)snprintf(seat->paths[i], sizeof(seat->paths[i]), "%s/%s.%s", f->dir, name, kinds[i]);
    seat->files = (struct identity_files){ seat->paths[0], seat->paths[1], seat->paths[2] };
}

static void put(const char *path, const char *text)
{
    assert_int_equal(io_replace(io_system(), path, text, strlen(text)), ST_OK);
}

static int64_t now_s(void)
{
    return (int64_t)time(NULL);
}

/* Makes a certificate of a role at a time and takes it for a seat. */
static void take(const struct seat *seat, const struct identity_pem *ca, enum identity_role role,
                 int64_t at_s)
{
    struct identity_pem pem;
    struct reason reason;
    assert_int_equal(identity_make(ca, role, "n1", NULL, at_s, &pem, &reason), ST_OK);
    put(seat->files.key, pem.key);
    put(seat->files.cert, pem.cert);
    identity_pem_release(&pem);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct reason reason;
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/cairn-tls-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    pthread_mutex_init(&f->seen.mutex, NULL);
    assert_int_equal(identity_make_ca("lab", now_s(), &f->ca, &reason), ST_OK);
    assert_int_equal(identity_make_ca("lab", now_s(), &f->other, &reason), ST_OK);
    seat_init(f, &f->server, "server");
    seat_init(f, &f->client, "client");
    put(f->server.files.ca, f->ca.cert);
    put(f->client.files.ca, f->ca.cert);
    take(&f->server, &f->ca, IDENTITY_COORDINATOR, now_s());
    take(&f->client, &f->ca, IDENTITY_NODE, now_s());

    f->db = rpc_descdb_new();
    size_t size = 0;
    const uint8_t *data = chat_descriptors(&size);
    assert_int_equal(rpc_descdb_add(f->db, data, size), ST_OK);
    struct rpc_server_options options = { .descdb = f->db,
                                          .authorize = look,
                                          .authorize_ctx = &f->seen };
    chat_init(&f->chat);
    f->rpc = rpc_server_new(&options);
    assert_int_equal(rpc_server_add_service(f->rpc, &f->chat.service.base, NULL), ST_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    rpc_server_free(f->rpc);
    rpc_descdb_free(f->db);
    identity_pem_release(&f->ca);
    identity_pem_release(&f->other);
    for (size_t i = 0; i < 3; i++) {
        (void)unlink(f->server.paths[i]);
        (void)unlink(f->client.paths[i]);
    }
    assert_int_equal(rmdir(f->dir), 0);
    pthread_mutex_destroy(&f->seen.mutex);
    free(f);
    return 0;
}

static void start(struct fixture *f)
{
    int port = 0;
    assert_int_equal(rpc_server_listen(f->rpc, "127.0.0.1:0", &f->server.files, &port), ST_OK);
    (void)snprintf(f->target, sizeof(f->target), "ipv4:127.0.0.1:%d", port);
    rpc_server_start(f->rpc);
}

static void stop(struct fixture *f)
{
    rpc_server_stop_begin(f->rpc, 200);
    rpc_server_free(f->rpc);
    f->rpc = NULL;
}

static struct rpc_channel *open_channel(struct fixture *f, const struct identity_files *files,
                                        const char *name)
{
    struct rpc_channel *channel = NULL;
    struct rpc_channel_options options = { .target = f->target, .tls = files, .tls_name = name };
    assert_int_equal(rpc_channel_new(&options, &channel), ST_OK);
    return channel;
}

static struct rpc_result call_on(struct rpc_channel *channel)
{
    Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
    const struct rpc_call_options options = { .timeout_ms = DEADLINE_MS };
    ProtobufCMessage *reply = NULL;
    struct rpc_result result;
    if (rpc_unary(channel, chat_service, "Echo", &request.base, &options, &reply, &result) == ST_OK)
        protobuf_c_message_free_unpacked(reply, NULL);
    return result;
}

static struct rpc_result call_once(struct fixture *f, const struct identity_files *files,
                                   const char *name)
{
    struct rpc_channel *channel = open_channel(f, files, name);
    struct rpc_result result = call_on(channel);
    rpc_channel_free(channel);
    return result;
}

static struct seen last_seen(struct fixture *f)
{
    pthread_mutex_lock(&f->seen.mutex);
    struct seen seen = f->seen;
    pthread_mutex_unlock(&f->seen.mutex);
    return seen;
}

static void want_refused(struct fixture *f, const struct identity_files *files, const char *name,
                         const char *detail)
{
    const uint32_t before = last_seen(f).calls;
    struct rpc_result result = call_once(f, files, name);
    if (result.code != RPC_UNAVAILABLE || strstr(result.detail, detail) == NULL)
        fail_msg("%s: '%s', not '%s'", rpc_code_name(result.code), result.detail, detail);
    assert_int_equal(last_seen(f).calls, before); /* the call never came */
}

/* ---- who calls ---- */

static void a_certificate_tells_who_calls_and_until_when(void **state)
{
    struct fixture *f = *state;
    static const enum identity_role roles[] = { IDENTITY_NODE, IDENTITY_OPERATOR, IDENTITY_VIEWER };
    start(f);
    for (size_t i = 0; i < 3; i++) {
        const int64_t at_s = now_s() - (int64_t)i * DAY;
        take(&f->client, &f->ca, roles[i], at_s);
        assert_int_equal(call_once(f, &f->client.files, IDENTITY_SERVER).code, RPC_OK);
        struct seen seen = last_seen(f);
        assert_int_equal(seen.st, ST_OK);
        assert_int_equal(seen.cert.who.role, roles[i]);
        assert_string_equal(seen.cert.who.cluster, "lab");
        assert_string_equal(seen.cert.who.name, "n1");
        assert_int_equal(seen.cert.not_after_s, at_s + (int64_t)IDENTITY_DAYS * DAY);
    }
    stop(f);
}

static void who_shows_no_certificate_comes_in_as_nobody(void **state)
{
    struct fixture *f = *state;
    const struct identity_files ca_only = { .ca = f->client.files.ca };
    start(f);
    assert_int_equal(call_once(f, &ca_only, IDENTITY_SERVER).code, RPC_OK);
    assert_int_equal(last_seen(f).calls, 1);
    assert_int_equal(last_seen(f).st, ST_NOT_FOUND);
    stop(f);
}

static void a_caller_without_tls_is_nobody(void **state)
{
    struct fixture *f = *state;
    int port = 0;
    assert_int_equal(rpc_server_listen(f->rpc, "127.0.0.1:0", NULL, &port), ST_OK);
    (void)snprintf(f->target, sizeof(f->target), "ipv4:127.0.0.1:%d", port);
    rpc_server_start(f->rpc);
    assert_int_equal(call_once(f, NULL, NULL).code, RPC_OK);
    assert_int_equal(last_seen(f).st, ST_NOT_FOUND);
    want_refused(f, &f->client.files, IDENTITY_SERVER, "wrong version number");
    stop(f);
}

/* The client's certificate with other names, signed by the CA all the same. */
static void rename_client(struct fixture *f, const char *names)
{
    char *text = NULL;
    size_t size = 0;
    X509V3_CTX context;
    assert_int_equal(io_read_file(io_system(), f->client.files.cert, 65536, &text, &size), ST_OK);
    BIO *in = BIO_new_mem_buf(text, -1), *key_in = BIO_new_mem_buf(f->ca.key, -1);
    BIO *out = BIO_new(BIO_s_mem());
    X509 *cert = PEM_read_bio_X509(in, NULL, NULL, NULL);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(key_in, NULL, NULL, NULL);
    X509_EXTENSION_free(X509_delete_ext(cert, X509_get_ext_by_NID(cert, NID_subject_alt_name, -1)));
    X509V3_set_ctx(&context, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, NID_subject_alt_name, names);
    assert_int_equal(X509_add_ext(cert, extension, -1), 1);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_bio_X509(out, cert), 1);
    assert_int_equal(BIO_write(out, "", 1), 1);
    char *pem = NULL;
    assert_true(BIO_get_mem_data(out, &pem) > 0);
    put(f->client.files.cert, pem);
    X509_EXTENSION_free(extension);
    X509_free(cert);
    EVP_PKEY_free(key);
    BIO_free(in);
    BIO_free(key_in);
    BIO_free(out);
    free(text);
}

static void a_certificate_that_names_two_or_none_is_nobody(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = { "DNS:cairnd", "URI:https://lab/node/n1",
                                         "URI:cairn://lab/node/n1,URI:cairn://lab/operator/n1",
                                         "URI:cairn://lab/root/n1" };
    start(f);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        rename_client(f, names[i]);
        assert_int_equal(call_once(f, &f->client.files, IDENTITY_SERVER).code, RPC_OK);
        assert_int_equal(last_seen(f).st, ST_CONFIG);
    }
    rename_client(f, "DNS:x,URI:cairn://lab/viewer/n2");
    assert_int_equal(call_once(f, &f->client.files, IDENTITY_SERVER).code, RPC_OK);
    assert_int_equal(last_seen(f).cert.who.role, IDENTITY_VIEWER);
    stop(f);
}

/* ---- wrong credentials ---- */

static void a_wrong_certificate_ends_the_connection_before_any_call(void **state)
{
    struct fixture *f = *state;
    start(f);
    take(&f->client, &f->ca, IDENTITY_NODE, now_s() - (IDENTITY_DAYS + 1) * DAY); /* expired */
    want_refused(f, &f->client.files, IDENTITY_SERVER, "");
    take(&f->client, &f->ca, IDENTITY_NODE, now_s() + DAY); /* not yet valid */
    want_refused(f, &f->client.files, IDENTITY_SERVER, "");
    take(&f->client, &f->other, IDENTITY_NODE, now_s()); /* signed by another CA */
    want_refused(f, &f->client.files, IDENTITY_SERVER, "");
    take(&f->client, &f->ca, IDENTITY_COORDINATOR, now_s()); /* for serving */
    want_refused(f, &f->client.files, IDENTITY_SERVER, "");
    want_refused(f, NULL, NULL, ""); /* no TLS at all */
    take(&f->client, &f->ca, IDENTITY_NODE, now_s());
    assert_int_equal(call_once(f, &f->client.files, IDENTITY_SERVER).code, RPC_OK);
    stop(f);
}

static void a_client_refuses_a_server_of_another_name_use_or_authority(void **state)
{
    struct fixture *f = *state;
    start(f);
    assert_int_equal(call_once(f, &f->client.files, NULL).code, RPC_OK); /* by its address */
    want_refused(f, &f->client.files, "other", "other is not in peer certificate");
    put(f->client.files.ca, f->other.cert);
    take(&f->client, &f->other, IDENTITY_NODE, now_s());
    want_refused(f, &f->client.files, IDENTITY_SERVER, "certificate verify failed");
    stop(f);
}

static void a_node_that_plays_coordinator_is_refused(void **state)
{
    struct fixture *f = *state;
    take(&f->server, &f->ca, IDENTITY_NODE, now_s());
    start(f);
    want_refused(f, &f->client.files, IDENTITY_SERVER, "certificate verify failed");
    stop(f);
}

/* ---- files ---- */

static void files_that_do_not_do_are_no_listener_and_no_channel(void **state)
{
    struct fixture *f = *state;
    struct rpc_channel *channel = NULL;
    int port = 0;
    struct identity_files files = f->server.files;
    files.key = f->client.files.key; /* doesn't fit */
    assert_int_equal(rpc_server_listen(f->rpc, "127.0.0.1:0", &files, &port), ST_CONFIG);
    files.cert = files.key = NULL; /* a server has a certificate */
    assert_int_equal(rpc_server_listen(f->rpc, "127.0.0.1:0", &files, &port), ST_CONFIG);
    struct rpc_channel_options options = { .target = "ipv4:127.0.0.1:1", .tls = &files };
    files = f->client.files;
    files.key = f->server.files.key;
    assert_int_equal(rpc_channel_new(&options, &channel), ST_CONFIG);
    files = f->client.files;
    put(files.ca, "garbage");
    assert_int_equal(rpc_channel_new(&options, &channel), ST_CONFIG);
    assert_int_equal(unlink(files.ca), 0);
    assert_int_equal(rpc_channel_new(&options, &channel), ST_CONFIG);
}

static void a_taken_port_is_told_from_wrong_files(void **state)
{
    struct fixture *f = *state;
    char address[32];
    int port = 0;
    assert_int_equal(rpc_server_listen(f->rpc, "127.0.0.1:0", &f->server.files, &port), ST_OK);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    assert_int_equal(rpc_server_listen(f->rpc, address, &f->server.files, &port), ST_EXISTS);
    assert_int_equal(rpc_server_listen(f->rpc, "192.0.2.1:0", &f->server.files, &port),
                     ST_NOT_FOUND);
}

static bool reached(struct fixture *f, const struct identity_files *files)
{
    return call_once(f, files, IDENTITY_SERVER).code == RPC_OK;
}

static void new_files_of_a_server_are_for_new_connections(void **state)
{
    struct fixture *f = *state;
    struct seat modern;
    seat_init(f, &modern, "modern");
    put(modern.files.ca, f->other.cert);
    take(&modern, &f->other, IDENTITY_NODE, now_s());
    start(f);
    struct rpc_channel *old = open_channel(f, &f->client.files, IDENTITY_SERVER);
    assert_int_equal(call_on(old).code, RPC_OK);
    assert_false(reached(f, &modern.files));

    /* The other authority's certificate and list, one file after the other. */
    take(&f->server, &f->other, IDENTITY_COORDINATOR, now_s());
    put(f->server.files.ca, f->other.cert);
    int64_t until = clock_mono_ms(clock_system()) + DEADLINE_MS;
    while (!reached(f, &modern.files)) {
        assert_true(clock_mono_ms(clock_system()) < until);
        (void)poll(NULL, 0, 50);
    }
    assert_false(reached(f, &f->client.files));
    assert_int_equal(call_on(old).code, RPC_OK); /* what stands stays */

    /* Garbage is passed over until it is mended, whichever file it is. */
    for (size_t i = 0; i < 3; i++) {
        char *text = NULL;
        size_t size = 0;
        assert_int_equal(io_read_file(io_system(), f->server.paths[i], 65536, &text, &size), ST_OK);
        put(f->server.paths[i], "garbage");
        (void)poll(NULL, 0, IDENTITY_LOOK_MS + 100);
        assert_true(reached(f, &modern.files));
        put(f->server.paths[i], text);
        free(text);
    }
    assert_int_equal(call_on(old).code, RPC_OK);
    rpc_channel_free(old);
    stop(f);
    for (size_t i = 0; i < 3; i++)
        (void)unlink(modern.paths[i]);
}

static void a_channel_tells_when_its_files_are_others(void **state)
{
    struct fixture *f = *state;
    start(f);
    struct rpc_channel *channel = open_channel(f, &f->client.files, IDENTITY_SERVER);
    assert_false(rpc_channel_stale(channel));
    take(&f->client, &f->ca, IDENTITY_VIEWER, now_s());
    int64_t until = clock_mono_ms(clock_system()) + DEADLINE_MS;
    while (!rpc_channel_stale(channel)) {
        assert_true(clock_mono_ms(clock_system()) < until);
        (void)poll(NULL, 0, 50);
    }
    assert_int_equal(call_on(channel).code, RPC_OK);
    assert_int_equal(last_seen(f).cert.who.role, IDENTITY_NODE); /* as when it was made */
    rpc_channel_free(channel);
    stop(f);
}

/* ---- the log ---- */

static struct log core_log; /* into memory */

static void refused_connections_are_told_in_a_bounded_number_of_lines(void **state)
{
    struct fixture *f = *state;
    char *text = NULL;
    char path[64];
    start(f);
    take(&f->client, &f->other, IDENTITY_NODE, now_s());
    for (int i = 0; i < 60; i++)
        want_refused(f, &f->client.files, IDENTITY_SERVER, "");
    stop(f);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", core_log.fd);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t lines = 0, room = 0;
    bool told = false;
    while (getline(&text, &room, file) > 0) {
        lines++;
        assert_int_equal(text[0], '{');
        told = told || strstr(text, "'cairn cert check' at its other end") != NULL;
    }
    (void)fclose(file);
    free(text);
    assert_true(told);
    assert_true(lines < 40);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_certificate_tells_who_calls_and_until_when),
        TEST(who_shows_no_certificate_comes_in_as_nobody),
        TEST(a_caller_without_tls_is_nobody),
        TEST(a_certificate_that_names_two_or_none_is_nobody),
        TEST(a_wrong_certificate_ends_the_connection_before_any_call),
        TEST(a_client_refuses_a_server_of_another_name_use_or_authority),
        TEST(a_node_that_plays_coordinator_is_refused),
        TEST(files_that_do_not_do_are_no_listener_and_no_channel),
        TEST(a_taken_port_is_told_from_wrong_files),
        TEST(new_files_of_a_server_are_for_new_connections),
        TEST(a_channel_tells_when_its_files_are_others),
        TEST(refused_connections_are_told_in_a_bounded_number_of_lines),
    };
    core_log = log_open("test");
    core_log.fd = memfd_create("log", MFD_CLOEXEC);
    rpc_log_to(&core_log);
    rpc_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_shutdown();
    (void)close(core_log.fd);
    return failed;
}
