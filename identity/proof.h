/*
 * Both sides of a new connection prove to each other that they know one secret, without telling it.
 * What is seen on the wire is of no use for another connection: both bring numbers that were never
 * used before. What comes after the proof is neither encrypted nor signed.
 *
 *     hello    dialler to listener   magic (8) · mark (8) · from (u32) · to (u32) · nonce (32)
 *     answer   listener to dialler   nonce (32) · MAC (32)
 *     proof    dialler to listener   MAC (32)
 *     welcome  listener to dialler   1 byte
 *
 * Numbers are little-endian. The key is made of the secret and a purpose. The MAC is HMAC-SHA256
 * over the side (1), from, to, the dialler's nonce, the listener's. The mark depends on the key,
 * and tells a connection of another secret from noise; it proves nothing.
 *
 * Only bytes are handled here: the caller reads as many as identity_proof_wants says, never more
 * (what follows isn't ours), gives them to identity_proof_take, and sends out[0, out_size).
 *
 * Thread: any; one proof by one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define IDENTITY_PROOF_NONCE 32
#define IDENTITY_PROOF_HELLO 56
#define IDENTITY_PROOF_BYTES 64 /* of the longest message */

struct identity_proof_key {
    uint8_t key[32];
    uint8_t mark[8];
};

enum identity_proof_end {
    IDENTITY_PROOF_GOES_ON,
    IDENTITY_PROOF_DONE,    /* the other side knows the secret; the listener sends its welcome */
    IDENTITY_PROOF_NOISE,   /* the other side doesn't speak as a dialler does */
    IDENTITY_PROOF_UNKNOWN, /* the other side says itself that it knows another secret */
    IDENTITY_PROOF_WRONG,   /* the other side doesn't know the secret, or means another than us */
};

/* State of one side; what isn't commented is the module's. */
struct identity_proof {
    const struct identity_proof_key *key; /* borrowed */
    bool dials;
    uint32_t from, to; /* the listener has from of the hello, which counts once it is proved */
    uint8_t nonces[2][IDENTITY_PROOF_NONCE]; /* the dialler's, the listener's */
    uint8_t in[IDENTITY_PROOF_BYTES];
    size_t have, wanted;
    uint8_t out[IDENTITY_PROOF_BYTES]; /* to be sent */
    size_t out_size;                   /* the caller may set it to 0 once that is done */
};

/* Errors: ST_INVALID  the secret is empty; ST_NO_MEMORY */
MUST_CHECK enum status identity_proof_key_make(const char *secret, const char *purpose,
                                               struct identity_proof_key *out);
/* nonce: random bytes of this connection alone. */
void identity_proof_dial(struct identity_proof *proof, const struct identity_proof_key *key,
                         uint32_t from, uint32_t to, const uint8_t nonce[IDENTITY_PROOF_NONCE]);
void identity_proof_listen(struct identity_proof *proof, const struct identity_proof_key *key,
                           uint32_t to, const uint8_t nonce[IDENTITY_PROOF_NONCE]);
/* Returns how many bytes may be read now; 0: the proof has ended. */
size_t identity_proof_wants(const struct identity_proof *proof);
/* Takes bytes of the other side; size: at most identity_proof_wants. Any result but GOES_ON is the
 * end of the proof. */
enum identity_proof_end identity_proof_take(struct identity_proof *proof, const uint8_t *bytes,
                                            size_t size);
