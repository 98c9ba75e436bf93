/*
 * TLS of the server's side: what a listener shows of itself, and who its callers are.
 *
 * Core asks for a listener's certificate whenever somebody connects [fetch]; what it isn't given
 * anew it has from the last time. Whatever can't be used is kept from it.
 */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "identity/check.h"
#include "rpc/server/internal.h"

struct rpc_tls_listener {
    struct rpc_tls_listener *next;
    pthread_mutex_t mutex;
    struct identity_watch *watch;
    grpc_ssl_server_certificate_config *first; /* read at the start; core's once it asked */
};

/* NULL: the files don't do. */
static grpc_ssl_server_certificate_config *read_files(const struct identity_files *files)
{
    struct identity_texts texts;
    struct reason reason;
    grpc_ssl_server_certificate_config *config = NULL;
    if (identity_texts_read(files, &texts, &reason) != ST_OK)
        return NULL;
    if (texts.cert != NULL && identity_usable(&texts)) {
        const grpc_ssl_pem_key_cert_pair pair = { texts.key, texts.cert };
        config = grpc_ssl_server_certificate_config_create(texts.ca, &pair, 1);
    }
    identity_texts_release(&texts);
    return config;
}

/* Called on any of core's threads. */
static grpc_ssl_certificate_config_reload_status fetch(void *arg,
                                                       grpc_ssl_server_certificate_config **out)
{
    struct rpc_tls_listener *listener = arg;
    grpc_ssl_certificate_config_reload_status answer = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    pthread_mutex_lock(&listener->mutex);
    if (listener->first != NULL) {
        *out = listener->first;
        listener->first = NULL;
        answer = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    } else if (identity_watch_changed(listener->watch, clock_mono_ms(clock_system()))) {
        *out = read_files(identity_watch_files(listener->watch));
        answer = *out == NULL ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL
                              : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
        if (*out != NULL)
            identity_watch_accept(listener->watch);
    }
    pthread_mutex_unlock(&listener->mutex);
    return answer;
}

static void free_listener(struct rpc_tls_listener *listener)
{
    if (listener->first != NULL)
        grpc_ssl_server_certificate_config_destroy(listener->first);
    identity_watch_free(listener->watch);
    pthread_mutex_destroy(&listener->mutex);
    free(listener);
}

grpc_server_credentials *rpc_tls_listen(struct rpc_server *server,
                                        const struct identity_files *files)
{
    struct rpc_tls_listener *listener = rpc_alloc(sizeof(*listener));
    pthread_mutex_init(&listener->mutex, NULL);
    /* Before they are read, so that no change goes unseen. */
    if (identity_watch_new(files, &listener->watch) != ST_OK)
        abort();
    listener->first = read_files(files);
    if (listener->first == NULL) {
        free_listener(listener);
        return NULL;
    }
    listener->next = server->tls_listeners;
    server->tls_listeners = listener;
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY, fetch, listener));
}

void rpc_tls_listeners_free(struct rpc_server *server)
{
    struct rpc_tls_listener *listener = server->tls_listeners;
    while (listener != NULL) {
        struct rpc_tls_listener *next = listener->next;
        free_listener(listener);
        listener = next;
    }
    server->tls_listeners = NULL;
}

enum status rpc_tls_identity(grpc_call *call, struct identity_cert *out)
{
    grpc_auth_context *context = grpc_call_auth_context(call);
    if (context == NULL)
        return ST_NOT_FOUND;
    grpc_auth_property_iterator found =
        grpc_auth_context_find_properties_by_name(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    const grpc_auth_property *property = grpc_auth_property_iterator_next(&found);
    enum status st = ST_NOT_FOUND;
    if (property != NULL) {
        char *pem = rpc_alloc(property->value_length + 1);
        memcpy(pem, property->value, property->value_length);
        st = identity_cert_read(pem, out);
        if (st == ST_OK && out->is_ca)
            st = ST_CONFIG;
        free(pem);
    }
    grpc_auth_context_release(context);
    return st;
}
