/* The two sides of a proof against each other, and against those who don't know the secret. */
#include <string.h>

#include "identity/proof.h"
#include "tests/test.h"

static const uint8_t one[IDENTITY_PROOF_NONCE] = "one, which is thirty-two bytes.";
static const uint8_t two[IDENTITY_PROOF_NONCE] = "two, which is thirty-two bytes.";
static const uint8_t three[IDENTITY_PROOF_NONCE] = "three: of another connection...";

static struct identity_proof_key key_of(const char *secret, const char *purpose)
{
    struct identity_proof_key key;
    assert_int_equal(identity_proof_key_make(secret, purpose, &key), ST_OK);
    return key;
}

struct said {
    uint8_t bytes[256];
    size_t size;
};

/* What from has to send goes to to, so many bytes at a time; what is said is appended. */
static enum identity_proof_end pass(struct identity_proof *from, struct identity_proof *to,
                                    size_t step, struct said *said)
{
    enum identity_proof_end end = IDENTITY_PROOF_GOES_ON;
    memcpy(said->bytes + said->size, from->out, from->out_size);
    said->size += from->out_size;
    for (size_t at = 0; at < from->out_size && end == IDENTITY_PROOF_GOES_ON;) {
        size_t n = identity_proof_wants(to);
        n = n < step ? n : step;
        n = n < from->out_size - at ? n : from->out_size - at;
        assert_true(n > 0);
        end = identity_proof_take(to, from->out + at, n);
        at += n;
    }
    from->out_size = 0;
    return end;
}

static void both_sides_know_the_secret(void **state)
{
    (void)state;
    const struct identity_proof_key key = key_of("a secret", "workers");
    for (size_t step = 1; step <= IDENTITY_PROOF_BYTES; step++) {
        struct identity_proof dialler, listener;
        struct said said = { .size = 0 };
        identity_proof_dial(&dialler, &key, 3, 1, one);
        identity_proof_listen(&listener, &key, 1, two);
        assert_int_equal(pass(&dialler, &listener, step, &said), IDENTITY_PROOF_GOES_ON);
        assert_int_equal(pass(&listener, &dialler, step, &said), IDENTITY_PROOF_GOES_ON);
        assert_int_equal(pass(&dialler, &listener, step, &said), IDENTITY_PROOF_DONE);
        assert_int_equal(identity_proof_wants(&listener), 0);
        assert_int_equal(pass(&listener, &dialler, step, &said), IDENTITY_PROOF_DONE);
        assert_int_equal(identity_proof_wants(&dialler), 0);
        assert_int_equal(listener.from, 3);
        assert_int_equal(said.size, 56 + 64 + 32 + 1);
        assert_null(memmem(said.bytes, said.size, "a secret", 8));
        assert_null(memmem(said.bytes, said.size, key.key, sizeof(key.key)));
    }
}

static void an_empty_secret_is_none(void **state)
{
    (void)state;
    struct identity_proof_key key;
    assert_int_equal(identity_proof_key_make("", "workers", &key), ST_INVALID);
    assert_int_equal(identity_proof_key_make(NULL, "workers", &key), ST_INVALID);
}

/* Tries a dialler with that key and numbers, at a listener for 1 with "a secret", "workers". */
static enum identity_proof_end try(const struct identity_proof_key *theirs, uint32_t to,
                                   bool *answered)
{
    const struct identity_proof_key key = key_of("a secret", "workers");
    struct identity_proof dialler, listener;
    struct said said = { .size = 0 };
    identity_proof_dial(&dialler, theirs, 3, to, one);
    identity_proof_listen(&listener, &key, 1, two);
    enum identity_proof_end end = pass(&dialler, &listener, 7, &said);
    *answered = listener.out_size > 0;
    if (end != IDENTITY_PROOF_GOES_ON)
        return end;
    dialler.out_size = 32; /* what it has: no MAC of that key */
    return pass(&dialler, &listener, 7, &said);
}

static void who_does_not_know_it_is_refused(void **state)
{
    (void)state;
    bool answered;
    struct identity_proof_key key = key_of("another secret", "workers");
    assert_int_equal(try(&key, 1, &answered), IDENTITY_PROOF_UNKNOWN);
    assert_false(answered);
    key = key_of("a secret", "peers");
    assert_int_equal(try(&key, 1, &answered), IDENTITY_PROOF_UNKNOWN);
    assert_false(answered);
    key = key_of("a secret", "workers");
    assert_int_equal(try(&key, 2, &answered), IDENTITY_PROOF_WRONG); /* it means another rank */
    assert_false(answered);
    memset(key.key, 0, sizeof(key.key)); /* it has seen the mark */
    assert_int_equal(try(&key, 1, &answered), IDENTITY_PROOF_WRONG);
    assert_true(answered);
}

static void noise_is_known_by_its_first_byte(void **state)
{
    (void)state;
    const struct identity_proof_key key = key_of("a secret", "workers");
    struct identity_proof listener;
    identity_proof_listen(&listener, &key, 1, two);
    assert_int_equal(identity_proof_take(&listener, (const uint8_t *)"GET", 1),
                     IDENTITY_PROOF_NOISE);
    assert_int_equal(identity_proof_wants(&listener), 0);
    identity_proof_listen(&listener, &key, 1, two);
    assert_int_equal(identity_proof_take(&listener, (const uint8_t *)"CairnP2Q", 8),
                     IDENTITY_PROOF_NOISE);
}

/* All that a dialler said once, at a listener that has another number now. */
static void what_was_heard_is_of_no_use(void **state)
{
    (void)state;
    const struct identity_proof_key key = key_of("a secret", "workers");
    struct identity_proof dialler, listener;
    struct said hello = { .size = 0 }, answer = { .size = 0 }, proof = { .size = 0 };
    identity_proof_dial(&dialler, &key, 3, 1, one);
    identity_proof_listen(&listener, &key, 1, two);
    assert_int_equal(pass(&dialler, &listener, 64, &hello), IDENTITY_PROOF_GOES_ON);
    assert_int_equal(pass(&listener, &dialler, 64, &answer), IDENTITY_PROOF_GOES_ON);
    assert_int_equal(pass(&dialler, &listener, 64, &proof), IDENTITY_PROOF_DONE);
    identity_proof_listen(&listener, &key, 1, three);
    assert_int_equal(identity_proof_take(&listener, hello.bytes, hello.size),
                     IDENTITY_PROOF_GOES_ON);
    assert_int_equal(identity_proof_take(&listener, proof.bytes, proof.size), IDENTITY_PROOF_WRONG);
    /* And who listened once, at a dialler that has another number. */
    identity_proof_dial(&dialler, &key, 3, 1, three);
    assert_int_equal(identity_proof_take(&dialler, answer.bytes, answer.size),
                     IDENTITY_PROOF_WRONG);
}

/* What the listener signs isn't what the dialler has to. */
static void a_mirror_proves_nothing(void **state)
{
    (void)state;
    const struct identity_proof_key key = key_of("a secret", "workers");
    struct identity_proof dialler, listener;
    struct said said = { .size = 0 };
    identity_proof_dial(&dialler, &key, 3, 1, one);
    identity_proof_listen(&listener, &key, 1, two);
    assert_int_equal(pass(&dialler, &listener, 64, &said), IDENTITY_PROOF_GOES_ON);
    assert_int_equal(identity_proof_take(&listener, listener.out + 32, 32), IDENTITY_PROOF_WRONG);
    assert_int_equal(identity_proof_take(&dialler, said.bytes, 56), IDENTITY_PROOF_GOES_ON);
    assert_int_equal(identity_proof_take(&dialler, said.bytes, 8), IDENTITY_PROOF_WRONG);
}

static void a_welcome_is_one_byte(void **state)
{
    (void)state;
    const struct identity_proof_key key = key_of("a secret", "workers");
    struct identity_proof dialler, listener;
    struct said said = { .size = 0 };
    identity_proof_dial(&dialler, &key, 3, 1, one);
    identity_proof_listen(&listener, &key, 1, two);
    assert_int_equal(pass(&dialler, &listener, 64, &said), IDENTITY_PROOF_GOES_ON);
    assert_int_equal(pass(&listener, &dialler, 64, &said), IDENTITY_PROOF_GOES_ON);
    assert_int_equal(identity_proof_wants(&dialler), 1);
    assert_int_equal(identity_proof_take(&dialler, (const uint8_t *)"x", 1), IDENTITY_PROOF_WRONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_know_the_secret),
        cmocka_unit_test(an_empty_secret_is_none),
        cmocka_unit_test(who_does_not_know_it_is_refused),
        cmocka_unit_test(noise_is_known_by_its_first_byte),
        cmocka_unit_test(what_was_heard_is_of_no_use),
        cmocka_unit_test(a_mirror_proves_nothing),
        cmocka_unit_test(a_welcome_is_one_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
