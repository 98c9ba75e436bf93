#include "observer/http/tls.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/check.h"
#include "common/clock.h"
#include "identity/check.h"

/* The result of one reading of the files; shared by the connections that began with it. */
struct shown {
    gnutls_certificate_credentials_t credentials;
    char *ca;
    struct identity_cert own;
    size_t users; /* connections, and the struct tls while it is the newest */
};

struct tls {
    const struct log *log;
    pthread_mutex_t mutex;
    struct identity_watch *watch;
    struct shown *newest;
    bool warned; /* that the files don't do */
};

struct tls_guest {
    struct shown *shown;
    int fd;
    bool begun; /* its first bytes were looked at */
};

/* ---- the files ---- */

static void free_shown(struct shown *shown)
{
    if (shown->credentials != NULL)
        gnutls_certificate_free_credentials(shown->credentials);
    free(shown->ca);
    free(shown);
}

static bool fill(struct shown *shown, const struct identity_texts *texts)
{
    const gnutls_datum_t cert = { (unsigned char *)texts->cert, (unsigned)strlen(texts->cert) };
    const gnutls_datum_t key = { (unsigned char *)texts->key, (unsigned)strlen(texts->key) };
    const gnutls_datum_t ca = { (unsigned char *)texts->ca, (unsigned)strlen(texts->ca) };
    shown->ca = strdup(texts->ca);
    return shown->ca != NULL && identity_cert_read(texts->cert, &shown->own) == ST_OK &&
           !shown->own.is_ca &&
           gnutls_certificate_allocate_credentials(&shown->credentials) == GNUTLS_E_SUCCESS &&
           gnutls_certificate_set_x509_trust_mem(shown->credentials, &ca, GNUTLS_X509_FMT_PEM) >
               0 &&
           gnutls_certificate_set_x509_key_mem(shown->credentials, &cert, &key,
                                               GNUTLS_X509_FMT_PEM) >= 0;
}

/* NULL: the files don't do. */
static struct shown *read_files(const struct identity_files *files)
{
    struct identity_texts texts;
    struct reason reason;
    if (identity_texts_read(files, &texts, &reason) != ST_OK)
        return NULL;
    struct shown *shown = texts.cert != NULL && texts.key != NULL && identity_usable(&texts)
                              ? calloc(1, sizeof(*shown))
                              : NULL;
    if (shown != NULL && !fill(shown, &texts)) {
        free_shown(shown);
        shown = NULL;
    }
    identity_texts_release(&texts);
    if (shown != NULL)
        shown->users = 1;
    return shown;
}

/* Drops a reference; to be called with the mutex held. */
static void drop(struct shown *shown)
{
    if (--shown->users == 0)
        free_shown(shown);
}

/* Reads the files if they have changed; to be called with the mutex held. */
static void look_at_files(struct tls *tls)
{
    if (!identity_watch_changed(tls->watch, clock_mono_ms(clock_system())))
        return;
    const struct identity_files *files = identity_watch_files(tls->watch);
    struct shown *shown = read_files(files);
    if (shown == NULL) {
        if (!tls->warned) {
            LOG_WARN(tls->log,
                     "%s, its key or %s has changed and doesn't do: the page goes on with what "
                     "they were ('cairn cert check' says more)",
                     files->cert, files->ca);
        }
        tls->warned = true;
        return;
    }
    identity_watch_accept(tls->watch);
    drop(tls->newest);
    tls->newest = shown;
    tls->warned = false;
    LOG_INFO(tls->log, "the files of TLS have changed: who connects gets the new certificate");
}

enum status tls_open(const struct identity_files *files, const struct log *log, struct tls **out)
{
    struct tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL)
        return ST_NO_MEMORY;
    tls->log = log;
    /* Before they are read, so that no change goes unseen. */
    enum status st = identity_watch_new(files, &tls->watch);
    if (st == ST_OK) {
        tls->newest = read_files(files);
        st = tls->newest == NULL ? ST_CONFIG : ST_OK;
    }
    if (st != ST_OK) {
        identity_watch_free(tls->watch);
        free(tls);
        return st;
    }
    CHECK(pthread_mutex_init(&tls->mutex, NULL) == 0);
    *out = tls;
    return ST_OK;
}

void tls_close(struct tls *tls)
{
    if (tls == NULL)
        return;
    drop(tls->newest);
    identity_watch_free(tls->watch);
    (void)pthread_mutex_destroy(&tls->mutex);
    free(tls);
}

enum status tls_texts(const struct tls *tls, struct identity_texts *out)
{
    struct reason reason;
    return identity_texts_read(identity_watch_files(tls->watch), out, &reason);
}

void tls_hosts(struct tls *tls, char out[IDENTITY_HOSTS_MAX])
{
    (void)pthread_mutex_lock(&tls->mutex);
    memcpy(out, tls->newest->own.hosts, IDENTITY_HOSTS_MAX);
    (void)pthread_mutex_unlock(&tls->mutex);
}

/* ---- connections ---- */

/* A request line without TLS, as its first five bytes. */
static bool is_http(const char *bytes, size_t size)
{
    static const char *const begins[] = { "GET /", "HEAD ", "POST ", "PUT /", "DELET",
                                          "OPTIO", "PATCH", "CONNE", "TRACE", "PRI *" };
    for (size_t i = 0; size == 5 && i < sizeof(begins) / sizeof(begins[0]); i++) {
        if (memcmp(bytes, begins[i], 5) == 0)
            return true;
    }
    return false;
}

static void refuse_http(int fd)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n"
                                 "Content-Type: text/plain\r\n"
                                 "Content-Length: 51\r\n"
                                 "Connection: close\r\n"
                                 "\r\n"
                                 "this page speaks TLS: its address begins https://\r\n";
    char rest[4096];
    (void)send(fd, answer, sizeof(answer) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    (void)recv(fd, rest, sizeof(rest), MSG_DONTWAIT); /* what is unread when it ends, resets it */
}

/* For GnuTLS, which reads the five bytes of a record's head first. */
static ssize_t pull(gnutls_transport_ptr_t arg, void *out, size_t size)
{
    struct tls_guest *guest = arg;
    const ssize_t got = recv(guest->fd, out, size, 0);
    if (got <= 0 || guest->begun)
        return got;
    guest->begun = true;
    if (!is_http(out, (size_t)got))
        return got;
    refuse_http(guest->fd);
    errno = ECONNRESET;
    return -1;
}

static ssize_t push(gnutls_transport_ptr_t arg, const void *bytes, size_t size)
{
    const struct tls_guest *guest = arg;
    return send(guest->fd, bytes, size, MSG_NOSIGNAL);
}

static int pull_timeout(gnutls_transport_ptr_t arg, unsigned wait_ms)
{
    const struct tls_guest *guest = arg;
    struct pollfd wait = { .fd = guest->fd, .events = POLLIN };
    return poll(&wait, 1, wait_ms == GNUTLS_INDEFINITE_TIMEOUT ? -1 : (int)wait_ms);
}

struct tls_guest *tls_greet(struct tls *tls, gnutls_session_t session, int fd)
{
    struct tls_guest *guest = calloc(1, sizeof(*guest));
    gnutls_handshake_set_timeout(session, TLS_HANDSHAKE_MS);
    gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUEST);
    if (guest == NULL)
        return NULL;
    (void)pthread_mutex_lock(&tls->mutex);
    look_at_files(tls);
    guest->shown = tls->newest;
    guest->shown->users++;
    (void)pthread_mutex_unlock(&tls->mutex);
    guest->fd = fd;
    (void)gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, guest->shown->credentials);
    gnutls_transport_set_ptr(session, guest);
    gnutls_transport_set_push_function(session, push);
    gnutls_transport_set_pull_function(session, pull);
    gnutls_transport_set_pull_timeout_function(session, pull_timeout);
    return guest;
}

void tls_leave(struct tls *tls, struct tls_guest *guest)
{
    if (guest == NULL)
        return;
    (void)pthread_mutex_lock(&tls->mutex);
    drop(guest->shown);
    (void)pthread_mutex_unlock(&tls->mutex);
    free(guest);
}

enum status tls_peer(struct tls *tls, gnutls_session_t session, int64_t now_s,
                     struct identity_cert *out, struct reason *reason)
{
    struct identity_der chain[IDENTITY_CHAIN_MAX + 1];
    unsigned count = 0;
    const gnutls_datum_t *peers = gnutls_certificate_get_peers(session, &count);
    if (peers == NULL || count == 0)
        return ST_NOT_FOUND;
    if (count > IDENTITY_CHAIN_MAX + 1)
        count = IDENTITY_CHAIN_MAX + 1; /* one too many, for the check to say so */
    for (unsigned i = 0; i < count; i++)
        chain[i] = (struct identity_der){ peers[i].data, peers[i].size };
    (void)pthread_mutex_lock(&tls->mutex);
    struct shown *shown = tls->newest;
    shown->users++;
    (void)pthread_mutex_unlock(&tls->mutex);
    const enum status st =
        identity_peer_check(shown->ca, shown->own.who.cluster, chain, count, now_s, out, reason);
    (void)pthread_mutex_lock(&tls->mutex);
    drop(shown);
    (void)pthread_mutex_unlock(&tls->mutex);
    return st;
}
