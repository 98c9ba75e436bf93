/*
 * An open checkpoint: its tables, and the checkpoint that it is a difference to, opened likewise.
 * open.h makes and frees it, cursors read its chunks.
 *
 * Thread: opening, closing and findings belong to one thread at a time; all else is only read, by
 *         any number of cursors at once.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/format/findings.h"
#include "checkpoint/read/parallel.h"
#include "checkpoint/read/set.h"

struct ckpt_cursor;

struct ckpt_reader {
    const struct io *io;
    char dir[LIMIT_PATH];
    struct ckpt_findings findings;
    struct ckpt_manifest manifest;
    struct ckpt_set set;
    struct ckpt_reader *parent;  /* owned; NULL: it stands for itself */
    uint32_t room;               /* parents that its chain may still have */
    struct ckpt_scalars scalars; /* its skip list lies in the first footer */
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    uint32_t buffer_count;
    struct ckpt_tensor *tensors;
    uint32_t tensor_count;
    struct ckpt_cursor *cursors[CKPT_CREW_MAX]; /* made when first needed, kept until close */
    uint32_t damaged; /* 1 + the file with the chunk that read damaged last; 0: none has */
};

/* Whether a digest that was computed from what the files hold is the manifest's; else a finding. */
MUST_CHECK enum status ckpt_reader_compare(struct ckpt_reader *reader,
                                           const struct ckpt_hash *digest);

/* Returns the place of a chunk of a buffer; buffer and index must be in range. */
const struct ckpt_place *ckpt_reader_place(const struct ckpt_reader *reader, uint32_t buffer,
                                           uint64_t index);
