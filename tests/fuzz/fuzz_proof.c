/* Any bytes, in any pieces, as what comes from the other side of a connection that is to be proved:
 * to a listener, to one that has heard a hello, to a dialler. None of them is a proof. */
#include <string.h>

#include "common/check.h"
#include "identity/proof.h"
#include "tests/fuzz/fuzz.h"

enum { TO_LISTENER, AFTER_A_HELLO, TO_DIALLER, TURNED, WAYS };

static const uint8_t ours[IDENTITY_PROOF_NONCE] = "ours", theirs[IDENTITY_PROOF_NONCE] = "theirs";

static struct identity_proof_key key;

/* step: of the pieces */
static void take_any(struct identity_proof *proof, const uint8_t *data, size_t size, size_t step)
{
    enum identity_proof_end end = IDENTITY_PROOF_GOES_ON;
    while (size > 0 && end == IDENTITY_PROOF_GOES_ON) {
        size_t n = identity_proof_wants(proof);
        CHECK(n > 0 && n <= IDENTITY_PROOF_BYTES);
        n = n < step ? n : step;
        n = n < size ? n : size;
        end = identity_proof_take(proof, data, n);
        CHECK(proof->out_size <= IDENTITY_PROOF_BYTES);
        data += n;
        size -= n;
    }
    CHECK(end != IDENTITY_PROOF_DONE);
    CHECK(end == IDENTITY_PROOF_GOES_ON || identity_proof_wants(proof) == 0);
}

/* What from has to send comes to to, with that bit of all that is said turned. */
static enum identity_proof_end pass(struct identity_proof *from, struct identity_proof *to,
                                    size_t *turned)
{
    uint8_t bytes[IDENTITY_PROOF_BYTES];
    const size_t size = from->out_size, bits = 8 * size;
    memcpy(bytes, from->out, size);
    if (*turned < bits)
        bytes[*turned / 8] ^= (uint8_t)(1 << *turned % 8);
    *turned = *turned < bits ? SIZE_MAX : *turned - bits;
    from->out_size = 0;
    return identity_proof_take(to, bytes, size);
}

/* Lets two sides that know the secret talk, with one bit turned on the way: the proof must not
 * succeed. */
static void talk(size_t turned)
{
    struct identity_proof dialler, listener;
    identity_proof_dial(&dialler, &key, 3, 1, theirs);
    identity_proof_listen(&listener, &key, 1, ours);
    struct identity_proof *from = &dialler, *to = &listener;
    enum identity_proof_end end = IDENTITY_PROOF_GOES_ON;
    turned %= 8 * (size_t)(56 + 64 + 32);
    for (int i = 0; i < 3 && end == IDENTITY_PROOF_GOES_ON; i++) {
        end = pass(from, to, &turned);
        struct identity_proof *next = to;
        to = from;
        from = next;
    }
    CHECK(end != IDENTITY_PROOF_DONE && end != IDENTITY_PROOF_GOES_ON);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct identity_proof proof;
    if (size < 2 || size > 4096)
        return 0;
    CHECK(identity_proof_key_make("a secret", "workers", &key) == ST_OK);
    const size_t step = (size_t)data[1] % IDENTITY_PROOF_BYTES + 1;
    switch (data[0] % WAYS) {
    case TO_LISTENER:
        identity_proof_listen(&proof, &key, 1, ours);
        take_any(&proof, data + 2, size - 2, step);
        break;
    case AFTER_A_HELLO: {
        struct identity_proof dialler;
        identity_proof_dial(&dialler, &key, data[1], 1, theirs);
        identity_proof_listen(&proof, &key, 1, ours);
        CHECK(identity_proof_take(&proof, dialler.out, dialler.out_size) == IDENTITY_PROOF_GOES_ON);
        take_any(&proof, data + 2, size - 2, step);
        break;
    }
    case TO_DIALLER:
        identity_proof_dial(&proof, &key, 3, 1, ours);
        take_any(&proof, data + 2, size - 2, step);
        break;
    default:
        talk(size > 3 ? (size_t)data[2] << 8 | data[3] : data[1]);
    }
    return 0;
}
