#include "identity/pem.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/unconst.h"

/* The passphrase that is tried for an encrypted key: an empty one, so that nobody is asked for
 * it. */
static void *no_passphrase(void)
{
    return unconst("");
}

static BIO *open_text(const char *text)
{
    return text == NULL ? NULL : BIO_new_mem_buf(text, -1);
}

X509 *identity_pem_cert(const char *text)
{
    BIO *bio = open_text(text);
    X509 *cert = bio == NULL ? NULL : PEM_read_bio_X509(bio, NULL, NULL, no_passphrase());
    BIO_free(bio);
    ERR_clear_error();
    return cert;
}

EVP_PKEY *identity_pem_key(const char *text)
{
    BIO *bio = open_text(text);
    EVP_PKEY *key = bio == NULL ? NULL : PEM_read_bio_PrivateKey(bio, NULL, NULL, no_passphrase());
    BIO_free(bio);
    ERR_clear_error();
    return key;
}

X509_REQ *identity_pem_request(const char *text)
{
    BIO *bio = open_text(text);
    X509_REQ *request =
        bio == NULL ? NULL : PEM_read_bio_X509_REQ(bio, NULL, NULL, no_passphrase());
    BIO_free(bio);
    ERR_clear_error();
    return request;
}

STACK_OF(X509) * identity_pem_certs(const char *text)
{
    BIO *bio = open_text(text);
    STACK_OF(X509) *list = bio == NULL ? NULL : sk_X509_new_null();
    X509 *cert = NULL;
    while (list != NULL && (cert = PEM_read_bio_X509(bio, NULL, NULL, no_passphrase())) != NULL) {
        if (sk_X509_push(list, cert) == 0)
            X509_free(cert);
    }
    BIO_free(bio);
    /* The end of the text is no error; a certificate that can't be read is. */
    unsigned long error = ERR_peek_last_error();
    ERR_clear_error();
    bool ended = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
    if (list != NULL && (!ended || sk_X509_num(list) == 0)) {
        sk_X509_pop_free(list, X509_free);
        list = NULL;
    }
    return list;
}

/* Returns the text of a BIO, which is taken over. */
static char *text_of(BIO *bio, bool written)
{
    char *data = NULL;
    long size = bio == NULL ? 0 : BIO_get_mem_data(bio, &data);
    char *text = written && size > 0 ? strndup(data, (size_t)size) : NULL;
    if (size > 0)
        explicit_bzero(data, (size_t)size);
    BIO_free(bio);
    ERR_clear_error();
    return text;
}

char *identity_pem_of_cert(X509 *cert)
{
    BIO *bio = BIO_new(BIO_s_mem());
    return text_of(bio, bio != NULL && PEM_write_bio_X509(bio, cert) == 1);
}

char *identity_pem_of_key(EVP_PKEY *key)
{
    BIO *bio = BIO_new(BIO_s_secmem());
    bool written =
        bio != NULL && PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1;
    return text_of(bio, written);
}

char *identity_pem_of_request(X509_REQ *request)
{
    BIO *bio = BIO_new(BIO_s_mem());
    return text_of(bio, bio != NULL && PEM_write_bio_X509_REQ(bio, request) == 1);
}

bool identity_pem_verify(STACK_OF(X509) * authorities, X509 *cert, STACK_OF(X509) * chain,
                         int purpose, int64_t now_s, struct pem_verdict *out)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = store == NULL ? NULL : X509_STORE_CTX_new();
    const bool ready = context != NULL && X509_STORE_CTX_init(context, store, cert, chain) == 1;
    if (ready) {
        X509_STORE_CTX_set0_trusted_stack(context, authorities);
        X509_STORE_CTX_set_time(context, 0, (time_t)now_s);
        (void)X509_STORE_CTX_set_purpose(context, purpose);
        const bool good = X509_verify_cert(context) == 1;
        const int error = X509_STORE_CTX_get_error(context);
        X509 *about = X509_STORE_CTX_get_current_cert(context);
        out->error = good ? X509_V_OK : error == X509_V_OK ? X509_V_ERR_UNSPECIFIED : error;
        out->depth = X509_STORE_CTX_get_error_depth(context);
        out->about = about == NULL ? cert : about;
    }
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    ERR_clear_error();
    return ready;
}
