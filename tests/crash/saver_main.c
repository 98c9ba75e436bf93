/*
 * A process that does nothing but save, to be killed at any moment.
 *
 *     saver STORE LIFE SAVES PIPE     PIPE: descriptor that it reports to; SAVES 0: for ever
 *
 * It is coordinator and two ranks in one, which write at the same time. Its journal is a file
 * beside the store that is replaced as a whole: the decision to commit, with the manifest's bytes.
 * A life begins as a coordinator's does: what was decided is published, what wasn't is removed.
 * Then it saves step after step, reads each back, and keeps the newest two. A store that is full
 * costs it the save, never its life.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "tests/crash/saver.h"

#define RANKS             2
#define KEEP              2
#define JOURNAL_BYTES_MAX (64 * 1024)

struct saver {
    const struct io *io;
    const char *store;
    char journal[LIMIT_PATH];
    uint64_t life, step;
    int pipe;
};

static void die(const char *what, enum status st)
{
    (void)fprintf(stderr, "saver: %s: %s\n", what, status_string(st));
    exit(1);
}

static void must(const char *what, enum status st)
{
    if (st != ST_OK)
        die(what, st);
}

static void tell(const struct saver *saver, char kind, uint64_t step, uint64_t generation)
{
    struct saver_message message = { .kind = kind, .step = step, .generation = generation };
    if (write(saver->pipe, &message, sizeof(message)) != (ssize_t)sizeof(message))
        exit(2);
}

/* ---- the journal: "STEP GENERATION\n" and the manifest ---- */

static enum status journal_write(const struct saver *saver, uint64_t step, uint64_t generation,
                                 const struct buf *manifest)
{
    char text[JOURNAL_BYTES_MAX];
    int head = snprintf(text, sizeof(text), "%llu %llu\n", (unsigned long long)step,
                        (unsigned long long)generation);
    if (head < 0 || manifest->size > sizeof(text) - (size_t)head)
        return ST_FULL;
    memcpy(text + head, manifest->data, manifest->size);
    return io_replace(saver->io, saver->journal, text, (size_t)head + manifest->size);
}

/* What the last life may have left between decision and publication. */
static void redo(const struct saver *saver)
{
    auto_free char *text = NULL;
    size_t size = 0;
    enum status st = io_read_file(saver->io, saver->journal, JOURNAL_BYTES_MAX, &text, &size);
    if (st == ST_NOT_FOUND)
        return;
    must("the journal", st);
    char *end = NULL, dir[LIMIT_PATH];
    uint64_t step = strtoull(text, &end, 10), generation = strtoull(end, &end, 10);
    if (*end++ != '\n')
        die("the journal", ST_CORRUPT);
    must("its folder",
         ckpt_folder_path(saver->store, SAMPLE_JOB, step, generation, 0, dir, sizeof(dir)));
    do {
        st = ckpt_manifest_publish(saver->io, dir, end, size - (size_t)(end - text));
        if (st == ST_FULL)
            tell(saver, SAVER_FULL, step, generation);
    } while (st == ST_FULL);
    /* Retention may have begun to take it away: never before a newer one was published, and then
     * the journal holds that one. So it is there. */
    must("what was decided", st);
    tell(saver, SAVER_SAVED, step, generation);
}

/* Whether one of the newest `keep` is a difference to entry i. */
static bool is_base(const struct ckpt_entry *entries, size_t i, uint64_t keep)
{
    uint64_t committed = 0;
    for (size_t k = 0; k < i && committed < keep; k++) {
        committed += entries[k].committed;
        if (entries[k].committed && entries[k].parent.step == entries[i].step &&
            entries[k].parent.generation == entries[i].generation)
            return true;
    }
    return false;
}

/* Removes folders without a manifest, and committed ones but the newest `keep` and what these need.
 * Returns the newest step. */
static uint64_t clean(const struct saver *saver, uint64_t keep)
{
    auto_free struct ckpt_entry *entries = NULL;
    size_t count = 0;
    uint64_t newest = 0, committed = 0;
    must("the list", ckpt_list(saver->io, saver->store, SAMPLE_JOB, &entries, &count));
    for (size_t i = 0; i < count; i++) {
        if (entries[i].manifest != ST_OK && entries[i].manifest != ST_NOT_FOUND)
            die(entries[i].dir, entries[i].manifest);
        if (entries[i].committed && entries[i].step > newest)
            newest = entries[i].step;
        committed += entries[i].committed;
        bool kept = entries[i].committed && (committed <= keep || is_base(entries, i, keep));
        if (!kept)
            must(entries[i].dir, ckpt_remove(saver->io, entries[i].dir));
    }
    return newest;
}

/* ---- a save ---- */

struct rank {
    const struct saver *saver;
    const struct sample *sample;
    const char *dir;
    struct ckpt_reader *base;
    uint32_t number;
    enum status st;
    struct ckpt_report report;
};

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    struct sample_options options = {
        .level = (enum ckpt_level)(rank->sample->state.scalars.step % 3),
        .threads = rank->number,
        .write = { .base = rank->base },
    };
    rank->st = sample_shard_write(rank->saver->io, rank->dir, &rank->sample->state, rank->number,
                                  RANKS, &options, &rank->report);
    return NULL;
}

static enum status write_shards(struct rank ranks[RANKS])
{
    pthread_t threads[RANKS];
    enum status st = ST_OK;
    for (uint32_t i = 0; i < RANKS; i++) {
        if (pthread_create(&threads[i], NULL, run_rank, &ranks[i]) != 0)
            die("a thread", ST_NO_MEMORY);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        (void)pthread_join(threads[i], NULL);
        if (st == ST_OK)
            st = ranks[i].st;
    }
    return st;
}

/* Up to the decision. */
static enum status write_and_decide(struct saver *saver, const struct sample *sample,
                                    const char *dir, struct ckpt_reader *bases[RANKS],
                                    struct buf *manifest)
{
    struct rank ranks[RANKS] = { 0 };
    struct ckpt_report reports[RANKS];
    struct ckpt_hash digest;
    enum status st = ckpt_folder_create(saver->io, dir);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){
            .saver = saver, .sample = sample, .dir = dir, .base = bases[i], .number = i
        };
    }
    if (st == ST_OK)
        st = write_shards(ranks);
    for (uint32_t i = 0; i < RANKS; i++)
        reports[i] = ranks[i].report;
    if (st == ST_OK)
        st = ckpt_commit_check(saver->io, dir, reports, RANKS);
    if (st == ST_OK)
        st = ckpt_manifest_make(reports, RANKS, SAMPLE_JOB, "now", manifest, &digest);
    for (uint32_t i = 0; i < RANKS; i++)
        ckpt_report_release(&ranks[i].report);
    if (st == ST_OK) /* an error leaves it open whether it was written: the next life looks */
        st = journal_write(saver, sample->state.scalars.step, saver->life, manifest);
    return st;
}

static void publish(const struct saver *saver, const char *dir, const struct buf *manifest)
{
    enum status st = ST_FULL;
    while (st == ST_FULL) {
        st = ckpt_manifest_publish(saver->io, dir, manifest->data, manifest->size);
        if (st == ST_FULL)
            tell(saver, SAVER_FULL, saver->step, saver->life);
    }
    must("publishing", st);
}

/* Each third is a difference to the one before. */
static struct ckpt_reader *open_base(const struct saver *saver)
{
    auto_free struct ckpt_entry *entries = NULL;
    struct ckpt_reader *base = NULL;
    size_t count = 0;
    must("the list", ckpt_list(saver->io, saver->store, SAMPLE_JOB, &entries, &count));
    if (count == 0 || !entries[0].committed || saver->step % 3 != 0 ||
        entries[0].parent.generation != 0)
        return NULL;
    must("the base", ckpt_open(saver->io, entries[0].dir, NULL, NULL, &base));
    return base;
}

static void save(struct saver *saver)
{
    struct sample sample;
    char dir[LIMIT_PATH];
    auto_buf struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    saver->step++;
    saver_sample(&sample, saver->step, saver->life);
    must("a folder's name",
         ckpt_folder_path(saver->store, SAMPLE_JOB, saver->step, saver->life, 0, dir, sizeof(dir)));
    struct ckpt_reader *bases[RANKS]; /* a reader is one rank's */
    for (uint32_t i = 0; i < RANKS; i++)
        bases[i] = open_base(saver);
    enum status st = write_and_decide(saver, &sample, dir, bases, &manifest);
    for (uint32_t i = 0; i < RANKS; i++)
        ckpt_close(bases[i]);
    sample_release(&sample);
    if (st == ST_FULL) {
        must("removing what failed", ckpt_remove(saver->io, dir));
        tell(saver, SAVER_FULL, saver->step, saver->life);
        return;
    }
    must("a save", st);
    publish(saver, dir, &manifest);
    tell(saver, SAVER_SAVED, saver->step, saver->life);
    must("reading back", ckpt_verify(saver->io, dir, NULL, NULL, NULL));
    (void)clean(saver, KEEP);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    struct saver saver = {
        .io = io_system(),
        .store = argv[1],
        .life = strtoull(argv[2], NULL, 10),
        .pipe = (int)strtol(argv[4], NULL, 10),
    };
    uint64_t saves = strtoull(argv[3], NULL, 10);
    (void)snprintf(saver.journal, sizeof(saver.journal), "%.400s/journal", saver.store);
    must("the store", io_mkdir_all(saver.io, saver.store));
    redo(&saver);
    saver.step = clean(&saver, SIZE_MAX);
    tell(&saver, SAVER_READY, saver.step, saver.life);
    for (uint64_t i = 0; saves == 0 || i < saves; i++)
        save(&saver);
    return 0;
}
