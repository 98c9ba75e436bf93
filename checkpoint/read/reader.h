/*
 * An open checkpoint: its tables, and the checkpoint that it is a difference to, opened alike.
 *
 * Thread: opening, closing and findings belong to one thread at a time; all else is only read, by
 *         any number of cursors at once.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/format/findings.h"
#include "checkpoint/read/crew.h"
#include "checkpoint/read/set.h"

struct ckpt_cursor;

struct ckpt_reader {
    const struct io *io;
    char dir[LIMIT_PATH];
    struct ckpt_findings findings;
    struct ckpt_manifest manifest;
    struct ckpt_set set;
    struct ckpt_reader *parent;  /* owned; NULL: it stands for itself */
    uint32_t room;               /* for parents, parents of parents, … */
    struct ckpt_scalars scalars; /* its skip list lies in the first footer */
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    uint32_t buffer_count;
    struct ckpt_tensor *tensors;
    uint32_t tensor_count;
    struct ckpt_cursor *cursors[CKPT_CREW_MAX]; /* made when first needed, kept until close */
};

/* An empty reader of dir. ST_FULL: the path is too long. */
MUST_CHECK enum status ckpt_reader_start(struct ckpt_reader *reader, const struct io *io,
                                         const char *dir, ckpt_finding_fn fn, void *arg);
/* Frees what the fields own. */
void ckpt_reader_release(struct ckpt_reader *reader);

/*
 * Of a reader whose manifest is read and whose set is open and undamaged: joins the set, describes
 * the state, and opens the parent that the manifest names, with its parents. Damage of a parent is
 * damage of this checkpoint; it is reported with the folder that it lies in.
 */
MUST_CHECK enum status ckpt_reader_join(struct ckpt_reader *reader);

/* Whether a digest that was computed from what the files hold is the manifest's; else a finding. */
MUST_CHECK enum status ckpt_reader_compare(struct ckpt_reader *reader,
                                           const struct ckpt_hash *digest);

/* Where a chunk of a buffer lies: buffer and index are in range. */
const struct ckpt_place *ckpt_reader_place(const struct ckpt_reader *reader, uint32_t buffer,
                                           uint64_t index);

/* Cursor `number` of a reader, below CKPT_CREW_MAX; borrowed until it is closed. Thread: as
 * opening. */
MUST_CHECK enum status ckpt_reader_cursor(struct ckpt_reader *reader, uint32_t number,
                                          struct ckpt_cursor **out);
