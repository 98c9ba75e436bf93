/* `wanted` tells for which message a side waits: each message has another size. */
#include "identity/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "common/check.h"

enum { ANSWER = 64, PROOF = 32, WELCOME = 1, MAC = 32, SIGNED = 9 + 2 * IDENTITY_PROOF_NONCE };
enum { BY_LISTENER = 1, BY_DIALLER = 2 };

static const uint8_t magic[8] = "CairnP2P"; /* a later form of all this has another one */

static bool mac_make(const uint8_t *key, size_t key_size, const void *bytes, size_t size,
                     uint8_t out[MAC])
{
    unsigned made = 0;
    return HMAC(EVP_sha256(), key, (int)key_size, bytes, size, out, &made) != NULL && made == MAC;
}

enum status identity_proof_key_make(const char *secret, const char *purpose,
                                    struct identity_proof_key *out)
{
    uint8_t mark[MAC];
    if (secret == NULL || secret[0] == '\0')
        return ST_INVALID;
    if (!mac_make((const uint8_t *)secret, strlen(secret), purpose, strlen(purpose), out->key) ||
        !mac_make(out->key, sizeof(out->key), "mark", 4, mark))
        return ST_NO_MEMORY;
    memcpy(out->mark, mark, sizeof(out->mark));
    return ST_OK;
}

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t get_u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Computes the MAC that this side has to send; false: libcrypto has no memory. */
static bool mac_of(const struct identity_proof *proof, uint8_t side, uint8_t out[MAC])
{
    uint8_t text[SIGNED] = { side };
    put_u32(text + 1, proof->from);
    put_u32(text + 5, proof->to);
    memcpy(text + 9, proof->nonces, sizeof(proof->nonces));
    return mac_make(proof->key->key, sizeof(proof->key->key), text, sizeof(text), out);
}

static bool is_mac_of(const struct identity_proof *proof, uint8_t side, const uint8_t *mac)
{
    uint8_t expected[MAC];
    return mac_of(proof, side, expected) && CRYPTO_memcmp(mac, expected, MAC) == 0;
}

void identity_proof_dial(struct identity_proof *proof, const struct identity_proof_key *key,
                         uint32_t from, uint32_t to, const uint8_t nonce[IDENTITY_PROOF_NONCE])
{
    memset(proof, 0, sizeof(*proof));
    proof->key = key;
    proof->dials = true;
    proof->from = from;
    proof->to = to;
    proof->wanted = ANSWER;
    memcpy(proof->nonces[0], nonce, IDENTITY_PROOF_NONCE);
    memcpy(proof->out, magic, 8);
    memcpy(proof->out + 8, key->mark, 8);
    put_u32(proof->out + 16, from);
    put_u32(proof->out + 20, to);
    memcpy(proof->out + 24, nonce, IDENTITY_PROOF_NONCE);
    proof->out_size = IDENTITY_PROOF_HELLO;
}

void identity_proof_listen(struct identity_proof *proof, const struct identity_proof_key *key,
                           uint32_t to, const uint8_t nonce[IDENTITY_PROOF_NONCE])
{
    memset(proof, 0, sizeof(*proof));
    proof->key = key;
    proof->to = to;
    proof->wanted = IDENTITY_PROOF_HELLO;
    memcpy(proof->nonces[1], nonce, IDENTITY_PROOF_NONCE);
}

size_t identity_proof_wants(const struct identity_proof *proof)
{
    return proof->wanted - proof->have;
}

/* ---- messages ---- */

static enum identity_proof_end take_hello(struct identity_proof *proof)
{
    proof->from = get_u32(proof->in + 16);
    memcpy(proof->nonces[0], proof->in + 24, IDENTITY_PROOF_NONCE);
    if (get_u32(proof->in + 20) != proof->to)
        return IDENTITY_PROOF_WRONG;
    memcpy(proof->out, proof->nonces[1], IDENTITY_PROOF_NONCE);
    if (!mac_of(proof, BY_LISTENER, proof->out + IDENTITY_PROOF_NONCE))
        return IDENTITY_PROOF_WRONG;
    proof->out_size = ANSWER;
    proof->wanted = PROOF;
    return IDENTITY_PROOF_GOES_ON;
}

static enum identity_proof_end take_answer(struct identity_proof *proof)
{
    memcpy(proof->nonces[1], proof->in, IDENTITY_PROOF_NONCE);
    if (!is_mac_of(proof, BY_LISTENER, proof->in + IDENTITY_PROOF_NONCE) ||
        !mac_of(proof, BY_DIALLER, proof->out))
        return IDENTITY_PROOF_WRONG;
    proof->out_size = PROOF;
    proof->wanted = WELCOME;
    return IDENTITY_PROOF_GOES_ON;
}

static enum identity_proof_end take_proof(struct identity_proof *proof)
{
    if (!is_mac_of(proof, BY_DIALLER, proof->in))
        return IDENTITY_PROOF_WRONG;
    proof->out[0] = WELCOME;
    proof->out_size = WELCOME;
    return IDENTITY_PROOF_DONE;
}

static enum identity_proof_end take_message(struct identity_proof *proof)
{
    switch (proof->wanted) {
    case IDENTITY_PROOF_HELLO:
        return take_hello(proof);
    case ANSWER:
        return take_answer(proof);
    case PROOF:
        return take_proof(proof);
    case WELCOME:
        return proof->in[0] == WELCOME ? IDENTITY_PROOF_DONE : IDENTITY_PROOF_WRONG;
    default:
        CHECK(false);
    }
    return IDENTITY_PROOF_WRONG;
}

/* A stranger is known by its first bytes, before it has sent a whole hello. */
static enum identity_proof_end look_at_hello(const struct identity_proof *proof)
{
    const size_t first = proof->have < 8 ? proof->have : 8;
    if (memcmp(proof->in, magic, first) != 0)
        return IDENTITY_PROOF_NOISE;
    if (proof->have >= 16 && memcmp(proof->in + 8, proof->key->mark, 8) != 0)
        return IDENTITY_PROOF_UNKNOWN;
    return IDENTITY_PROOF_GOES_ON;
}

enum identity_proof_end identity_proof_take(struct identity_proof *proof, const uint8_t *bytes,
                                            size_t size)
{
    CHECK(size <= identity_proof_wants(proof));
    memcpy(proof->in + proof->have, bytes, size);
    proof->have += size;
    enum identity_proof_end end = IDENTITY_PROOF_GOES_ON;
    if (proof->wanted == IDENTITY_PROOF_HELLO)
        end = look_at_hello(proof);
    if (end == IDENTITY_PROOF_GOES_ON && proof->have == proof->wanted) {
        proof->have = 0;
        end = take_message(proof);
    }
    if (end != IDENTITY_PROOF_GOES_ON)
        proof->wanted = proof->have = 0;
    return end;
}
