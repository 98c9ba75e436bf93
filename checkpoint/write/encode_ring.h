/*
 * Chunks encoded by several threads, handed out in their order.
 *
 * A ring of entries, each with room for one chunk. Threads take the numbers of chunks one after the
 * other and encode chunk n into entry n % entries. Whoever writes the file, the taker, gets the
 * chunks in the same order, so that what is written doesn't depend on how many threads there are.
 * Without threads the taker encodes.
 *
 *     an entry:  empty ─▶ busy          [encode_next]     a thread has taken its number
 *                busy  ─▶ ready         [encode_next]     it is encoded
 *                ready ─▶ the taker's   [ckpt_ring_next]
 *                      ─▶ empty         [ckpt_ring_next]  the next one is the taker's now
 *
 * Invariants:
 *  (1) Chunk n is taken only after chunk n - entries has left its entry.
 *  (2) Between ckpt_ring_end and the next ckpt_ring_begin no thread touches what a chunk leads to.
 *
 * Thread:  one at a time calls; the function runs on the ring's threads, or the caller's if it has
 *          none.
 * Memory:  all of it is allocated by ckpt_ring_new: ckpt_ring_bytes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/codec/chunk.h"
#include "common/status.h"

#define CKPT_CODEC_BYTES ((size_t)5 << 20) /* of one codec, at most, of any level */

/* An encoded chunk on its way to the file. */
struct ckpt_encoded {
    struct ckpt_chunk_place place;
    uint8_t *bytes; /* DISK_CHUNK_MAX: the chunk as made for offset 0 */
    uint32_t size;
};

/* Private data of an encoding thread. */
struct ckpt_encoder {
    uint32_t number; /* below the number of threads; 0 without any */
    struct ckpt_codec *codec;
    uint8_t *base; /* DISK_CHUNK_BYTES: the chunk that a difference is made to */
};

/* Encodes chunk `number` into out. An error ends the run; the taker gets it in the chunk's turn. */
typedef enum status (*ckpt_ring_fn)(void *arg, struct ckpt_encoder *encoder, uint64_t number,
                                    struct ckpt_encoded *out);

struct ckpt_ring;

/* Threads are made here, without signals, and inherit the caller's priority. */
MUST_CHECK enum status ckpt_ring_new(enum ckpt_level level, uint32_t threads,
                                     struct ckpt_ring **out);
void ckpt_ring_free(struct ckpt_ring *ring);
size_t ckpt_ring_bytes(uint32_t threads);

/* Begins a run: fn is called for every number below count. */
void ckpt_ring_begin(struct ckpt_ring *ring, uint64_t count, ckpt_ring_fn fn, void *arg);
/* Waits for the next chunk in order; the entry of the one before may be filled again. Called count
 * times at most. Errors: of fn; ckpt_ring_end follows then. */
MUST_CHECK enum status ckpt_ring_next(struct ckpt_ring *ring, const struct ckpt_encoded **out);
/* Waits until no thread works; at any time after begin. out_ns: processor time of the threads since
 * begin. */
void ckpt_ring_end(struct ckpt_ring *ring, int64_t *out_ns);
