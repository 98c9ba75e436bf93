/*
 * Saves. A rank writes a file of some bytes under the name of its shard, and reports it as a real
 * one reports a share of `pieces` pieces: one buffer, whose pieces lie with the ranks in order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/coordinator/fleet.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"
#include "common/check.h"
#include "common/unconst.h"

enum { FILE_BYTES = 512, LEAVE_MS = 20 };

void save_begin(struct trainer *trainer, uint64_t step)
{
    Cairn__V1__SaveBegin begin = CAIRN__V1__SAVE_BEGIN__INIT;
    begin.step = step;
    fleet_trace(trainer->peer.fleet, "begin", trainer->job, trainer->rank, step);
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_BEGIN, &begin);
}

/* No fsync: what a disk takes for it isn't the coordinator's time. */
static bool write_file(const struct trainer *trainer, const char *name, const uint8_t *bytes)
{
    char path[LIMIT_PATH];
    if (ckpt_path(trainer->dir, name, path) != ST_OK)
        return false;
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    const bool written = write(fd, bytes, FILE_BYTES) == FILE_BYTES;
    return close(fd) == 0 && written;
}

static void say_failed(struct trainer *trainer, uint64_t step, const char *why)
{
    Cairn__V1__SaveFailed failed = CAIRN__V1__SAVE_FAILED__INIT;
    failed.step = step;
    failed.message = unconst(why);
    failed.removed = true;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_FAILED, &failed);
}

static void say_report(struct trainer *trainer, uint64_t step, const char *name,
                       const uint8_t *bytes)
{
    const uint32_t pieces = trainer->peer.fleet->options.pieces;
    uint8_t *hashes = malloc((size_t)pieces * 16 + 1);
    CHECK(hashes != NULL);
    struct ckpt_hash file = ckpt_hash_of(bytes, FILE_BYTES);
    struct ckpt_hash scalars = ckpt_hash_of(&step, sizeof(step));
    for (uint32_t i = 0; i < pieces; i++) {
        const uint64_t what[] = { step, trainer->rank, i };
        const struct ckpt_hash one = ckpt_hash_of(what, sizeof(what));
        memcpy(hashes + (size_t)i * 16, one.byte, 16);
    }
    Cairn__V1__PieceRun runs[] = { CAIRN__V1__PIECE_RUN__INIT, CAIRN__V1__PIECE_RUN__INIT };
    Cairn__V1__PieceRun *links[] = { &runs[0], &runs[1] };
    runs[0].first = (uint64_t)trainer->rank * pieces;
    runs[0].xxh3_128 = (ProtobufCBinaryData){ (size_t)pieces * 16, hashes };
    runs[1].first = (uint64_t)trainer->size * pieces;
    Cairn__V1__SaveReport report = CAIRN__V1__SAVE_REPORT__INIT;
    report.step = step;
    report.generation = trainer->generation;
    report.rank = trainer->rank;
    report.file = unconst(name);
    report.size = FILE_BYTES;
    report.raw_bytes = FILE_BYTES;
    report.xxh3_128 = (ProtobufCBinaryData){ 16, file.byte };
    report.scalars_xxh3_128 = (ProtobufCBinaryData){ 16, scalars.byte };
    report.pieces = links;
    report.n_pieces = 2;
    report.write_ms = 20;
    report.encode_us = 10000;
    report.io_us = 5000;
    report.sync_us = 5000;
    fleet_trace(trainer->peer.fleet, "report", trainer->job, trainer->rank, step);
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_REPORT, &report);
    free(hashes);
}

void save_folder(struct trainer *trainer, const Cairn__V1__SaveFolder *order)
{
    fleet_trace(trainer->peer.fleet, "folder", trainer->job, trainer->rank, order->step);
    if (order->dir[0] == '\0')
        return; /* dropped */
    char name[64];
    uint8_t bytes[FILE_BYTES];
    (void)snprintf(trainer->dir, sizeof(trainer->dir), "%s", order->dir);
    ckpt_shard_name(trainer->rank, trainer->size, name);
    memset(bytes, (int)(order->step & 0xff), sizeof(bytes));
    if (write_file(trainer, name, bytes)) {
        say_report(trainer, order->step, name, bytes);
    } else if (errno != EEXIST) { /* the folder was said twice */
        (void)fprintf(stderr, "%s/%s: %s\n", trainer->dir, name, strerror(errno));
        say_failed(trainer, order->step, strerror(errno));
    }
}

static void leave(struct trainer *trainer)
{
    Cairn__V1__Finished finished = CAIRN__V1__FINISHED__INIT;
    finished.step = trainer->step;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED, &finished);
    trainer->finished = true;
    trainer->stage = TRAINER_LEAVES;
    trainer->leave_ns = clock_mono_ns() + LEAVE_MS * INT64_C(1000000);
}

void save_done(struct trainer *trainer, const Cairn__V1__SaveDone *order)
{
    fleet_trace(trainer->peer.fleet, order->committed ? "committed" : "dropped", trainer->job,
                trainer->rank, order->step);
    const bool last = order->step == trainer->total_steps ||
                      (trainer->leaves && order->step == trainer->announced);
    if (order->committed && last && trainer->stage == TRAINER_TRAINS)
        leave(trainer);
    if (order->step == trainer->announced)
        trainer->announced = 0;
    if (order->committed)
        return;
    char name[64], path[LIMIT_PATH];
    ckpt_shard_name(trainer->rank, trainer->size, name);
    if (ckpt_path(trainer->dir, name, path) == ST_OK)
        (void)unlink(path);
    say_failed(trainer, order->step, "");
}

void save_read_back(struct trainer *trainer, const Cairn__V1__ReadBack *order)
{
    Cairn__V1__ReadBackState state = CAIRN__V1__READ_BACK_STATE__INIT;
    state.step = order->step;
    state.generation = order->generation;
    state.bytes = FILE_BYTES;
    state.done = true;
    (void)trainer_say(trainer, CAIRN__V1__TRAINER_MESSAGE__BODY_READ_BACK, &state);
}
