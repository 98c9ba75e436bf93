#include "tests/crash/store_history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "common/check.h"
#include "common/cleanup.h"

#define ELEMENTS 24

/* ---- recording one: everything here must succeed, or fail as it is told to ---- */

#define MUST(call) CHECK((call) == ST_OK)

static size_t now(const struct history *history)
{
    return memory_io_changes(history->memory);
}

struct saving *history_begin(struct history *history, uint64_t step, uint64_t generation,
                             uint32_t ranks)
{
    CHECK(history->count < SAVINGS_MAX);
    struct saving *it = &history->savings[history->count++];
    *it = (struct saving){ .ranks = ranks };
    it->decided = it->acknowledged = it->damaged = it->condemned = it->given_up = NEVER;
    /* Another attempt at the same step has other bytes, to be told from the first. */
    sample_init(&it->sample, ELEMENTS, step + 1000 * history->count, generation);
    it->sample.state.scalars.step = step;
    buf_init(&it->manifest, LIMIT_MANIFEST_BYTES);
    it->begun = now(history);
    MUST(ckpt_folder_path(SAMPLE_STORE, SAMPLE_JOB, step, generation, 0, it->dir, sizeof(it->dir)));
    return it;
}

static void create(struct history *history, struct saving *it)
{
    MUST(ckpt_folder_create(memory_io_table(history->memory), it->dir));
    it->created = now(history);
}

struct seating {
    struct ckpt_report reports[8];
    size_t ends[8];
    size_t first;
    struct ckpt_reader *base;
};

static enum status write_rank(struct history *history, struct saving *it, struct seating *seats,
                              uint32_t rank)
{
    struct ckpt_write_options options = { .base = seats->base };
    enum status st =
        ckpt_shard_write(memory_io_table(history->memory), it->dir, &it->sample.state, rank,
                         it->ranks, seats->base == NULL ? NULL : &options, &seats->reports[rank]);
    seats->ends[rank] = now(history);
    return st;
}

/* All ranks' files; as if they had been written side by side. */
static void write_all(struct history *history, struct saving *it, struct seating *seats,
                      uint64_t seed)
{
    const struct io *io = memory_io_table(history->memory);
    *seats = (struct seating){ 0 };
    if (it->base != NULL)
        MUST(ckpt_open(io, it->base->dir, NULL, NULL, &seats->base));
    seats->first = now(history);
    for (uint32_t i = 0; i < it->ranks; i++)
        MUST(write_rank(history, it, seats, i));
    ckpt_close(seats->base);
    memory_io_interleave(history->memory, seats->first, seats->ends, it->ranks, seed);
}

static void release(struct saving *it, struct seating *seats)
{
    for (uint32_t i = 0; i < it->ranks; i++)
        ckpt_report_release(&seats->reports[i]);
}

static void decide(struct history *history, struct saving *it, struct seating *seats)
{
    struct ckpt_hash digest;
    MUST(ckpt_commit_check(memory_io_table(history->memory), it->dir, seats->reports, it->ranks));
    MUST(ckpt_manifest_make(seats->reports, it->ranks, SAMPLE_JOB, "2026-01-02T03:04:05Z",
                            &it->manifest, &digest));
    it->decided = now(history);
}

static enum status publish(const struct io *io, const struct saving *it)
{
    return ckpt_manifest_publish(io, it->dir, it->manifest.data, it->manifest.size);
}

/* base: that it is a difference to, or NULL. */
static struct saving *save(struct history *history, uint64_t step, uint32_t ranks,
                           const struct saving *base, uint64_t seed)
{
    struct saving *it = history_begin(history, step, step < 120 ? 1 : 2, ranks);
    struct seating seats;
    it->base = base;
    create(history, it);
    write_all(history, it, &seats, seed);
    CHECK(base == NULL || seats.reports[0].parent.generation == base->sample.state.generation);
    decide(history, it, &seats);
    MUST(publish(memory_io_table(history->memory), it));
    it->acknowledged = now(history);
    release(it, &seats);
    return it;
}

/* Records the removal as if its files had gone side by side. These are the changes between the sync
 * that follows its manifest, and the end of its folder with the sync of that. */
static void shuffle_removal(struct history *history, const struct saving *it)
{
    size_t first = it->given_up, last = now(history) - 2, ends[8], parts = 0;
    while (!memory_io_is_sync(history->memory, first))
        first++;
    for (size_t at = ++first; at < last; at++)
        ends[parts++] = at + 1;
    if (parts > 0)
        memory_io_interleave(history->memory, first, ends, parts, history->seed + history->count);
}

static void remove_it(struct history *history, struct saving *it)
{
    it->given_up = now(history);
    MUST(ckpt_remove(memory_io_table(history->memory), it->dir));
    shuffle_removal(history, it);
}

/* keep: {last: 1}: an older one goes after a newer one was read back. */
static void retain(struct history *history, struct saving *old, const struct saving *newer)
{
    MUST(ckpt_verify(memory_io_table(history->memory), newer->dir, NULL, NULL, NULL));
    remove_it(history, old);
}

/* The second of three ranks finds the store full; the others unlink their files. */
static void save_that_fails(struct history *history, uint64_t step)
{
    const struct io *io = memory_io_table(history->memory);
    struct saving *it = history_begin(history, step, 1, 3);
    struct seating seats = { 0 };
    create(history, it);
    MUST(write_rank(history, it, &seats, 0));
    memory_io_arm(history->memory, MEMORY_IO_FULL, 2);
    CHECK(write_rank(history, it, &seats, 1) == ST_FULL);
    memory_io_arm(history->memory, MEMORY_IO_NONE, 0);
    char path[LIMIT_PATH];
    MUST(ckpt_path(it->dir, "shard-00000-of-00003.cairn", path));
    MUST(io->unlink(io->self, path));
    remove_it(history, it);
    release(it, &seats);
}

/* Everybody is killed before the decision; the folder stays. */
static void save_that_is_left(struct history *history, uint64_t step, uint64_t generation,
                              uint32_t ranks, uint64_t seed)
{
    struct saving *it = history_begin(history, step, generation, ranks);
    struct seating seats;
    create(history, it);
    write_all(history, it, &seats, seed);
    release(it, &seats);
}

/* The last fsync of the publication fails; the same call is made again until it works. */
static struct saving *save_that_is_published_twice(struct history *history, uint64_t step,
                                                   uint64_t generation, uint64_t seed)
{
    const struct io *io = memory_io_table(history->memory);
    struct saving *it = history_begin(history, step, generation, 3);
    struct seating seats;
    create(history, it); /* there is one of that name, without a manifest */
    write_all(history, it, &seats, seed);
    decide(history, it, &seats);
    memory_io_arm(history->memory, MEMORY_IO_NONE, 0);
    struct crash_point *before = crash_point_new(history->memory, now(history));
    struct memory_io *rehearsal = crash_point_kill(before);
    memory_io_arm(rehearsal, MEMORY_IO_NONE, 0);
    MUST(publish(memory_io_table(rehearsal), it));
    memory_io_arm(history->memory, MEMORY_IO_EIO, memory_io_calls(rehearsal));
    memory_io_free(rehearsal);
    crash_point_free(before);
    CHECK(publish(io, it) == ST_IO);
    memory_io_arm(history->memory, MEMORY_IO_NONE, 0);
    MUST(publish(io, it));
    it->acknowledged = now(history);
    release(it, &seats);
    return it;
}

/* Read back, a byte of a chunk is wrong. */
static void spoil(struct history *history, struct saving *it)
{
    const struct io *io = memory_io_table(history->memory);
    char path[LIMIT_PATH];
    it->damaged = now(history);
    MUST(ckpt_path(it->dir, "shard-00001-of-00003.cairn", path));
    memory_io_damage(history->memory, path, 4096 + 200, 0x10);
    CHECK(ckpt_verify(io, it->dir, NULL, NULL, NULL) == ST_CORRUPT);
    it->condemned = now(history);
    MUST(ckpt_quarantine(io, it->dir, path, sizeof(path)));
}

void history_new(struct history *history, uint64_t seed)
{
    static const size_t writes[] = { 1300, 0, 3000, 700 };
    *history = (struct history){ .memory = memory_io_new(), .seed = seed };
    memory_io_limit_writes(history->memory, writes[seed % 4]);
    struct saving *first = save(history, 40, 2, NULL, seed + 1);
    save_that_fails(history, 80);
    struct saving *second = save(history, 80, 2, NULL, seed + 2);
    retain(history, first, second);
    save_that_is_left(history, 120, 1, 2, seed + 3);
    spoil(history, save_that_is_published_twice(history, 120, 1, seed + 4));
    struct saving *third = save(history, 120, 2, NULL, seed + 5);
    retain(history, second, third);
    struct saving *difference = save(history, 160, 3, third, seed + 6);
    struct saving *last = save(history, 200, 2, NULL, seed + 7);
    retain(history, difference, last);
    retain(history, third, last);
}

void history_release(struct history *history)
{
    for (size_t i = 0; i < history->count; i++) {
        sample_release(&history->savings[i].sample);
        buf_release(&history->savings[i].manifest);
    }
    crash_seen_release(&history->verdicts);
    memory_io_free(history->memory);
}

/* ---- the promises ---- */

/* The save that a folder belongs to after n changes: the last that was begun there. */
static struct saving *owner(struct history *history, const char *dir, size_t n)
{
    struct saving *it = NULL;
    for (size_t i = 0; i < history->count; i++) {
        if (history->savings[i].begun <= n && strcmp(history->savings[i].dir, dir) == 0)
            it = &history->savings[i];
    }
    return it;
}

enum verdict { VERDICT_NOT_READ, VERDICT_WHOLE, VERDICT_REFUSED, VERDICT_WRONG };

static void count_finding(void *arg, const char *line)
{
    size_t *named = arg;
    *named += strstr(line, "shard-") != NULL || strstr(line, "manifest.json") != NULL;
}

static enum verdict read_folder(const struct io *io, const struct saving *it)
{
    bool equal = false;
    size_t named = 0;
    enum status verified = ckpt_verify(io, it->dir, NULL, count_finding, &named);
    enum status compared = sample_compare(io, it->dir, &it->sample, &equal);
    if (verified == ST_OK && compared == ST_OK && equal)
        return VERDICT_WHOLE;
    bool damage = verified == ST_CORRUPT || verified == ST_INCOMPLETE;
    return damage && named > 0 && (compared == verified || (compared == ST_OK && equal))
               ? VERDICT_REFUSED
               : VERDICT_WRONG;
}

/* A folder that has the bytes of one that was read already has its verdict. */
static enum verdict verdict_of(struct history *history, struct memory_io *found,
                               const struct saving *it)
{
    uint64_t key = memory_io_hash(found, it->dir) * 31 + (uint64_t)(it - history->savings);
    if (it->base != NULL)
        key = key * 31 + memory_io_hash(found, it->base->dir);
    bool fresh = false;
    uint32_t *verdict = crash_seen_at(&history->verdicts, key, &fresh);
    if (fresh)
        *verdict = read_folder(memory_io_table(found), it);
    return (enum verdict) * verdict;
}

static const char *broken(struct history *history, const char *promise, const char *dir)
{
    (void)snprintf(history->why, sizeof(history->why), "%s: %.180s", promise, dir);
    return history->why;
}

static const char *check_entry(struct history *history, struct memory_io *found,
                               const struct ckpt_entry *entry, size_t n, enum history_when when)
{
    const struct saving *it = owner(history, entry->dir, n);
    if (entry->quarantined)
        return NULL;
    if (it == NULL)
        return broken(history, "a folder that nobody made", entry->dir);
    bool spoilt = n > it->damaged;
    if (entry->damaged)
        return broken(history, "a manifest that is damaged", entry->dir);
    if (!entry->committed && entry->manifest != ST_NOT_FOUND)
        return broken(history, "a manifest that can't be read", entry->dir);
    if (when == HISTORY_RECOVERED && (n < it->decided || n >= it->given_up || n >= it->condemned))
        return broken(history, "a folder that recovery should have taken away", entry->dir);
    if (!entry->committed)
        return NULL;
    if (n < it->decided)
        return broken(history, "committed, though nobody decided it", entry->dir);
    enum verdict verdict = verdict_of(history, found, it);
    if (verdict != (spoilt ? VERDICT_REFUSED : VERDICT_WHOLE))
        return broken(history,
                      spoilt ? "damage that isn't refused" : "committed, but not what was saved",
                      entry->dir);
    return NULL;
}

static bool is_listed(const struct ckpt_entry *entries, size_t count, const char *dir)
{
    for (size_t i = 0; i < count; i++) {
        if (entries[i].committed && strcmp(entries[i].dir, dir) == 0)
            return true;
    }
    return false;
}

const char *history_check(struct history *history, struct memory_io *found, size_t n,
                          enum history_when when)
{
    auto_free struct ckpt_entry *entries = NULL;
    size_t count = 0;
    const struct io *io = memory_io_table(found);
    if (ckpt_list(io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count) != ST_OK)
        return broken(history, "the list fails", SAMPLE_STORE);
    for (size_t i = 0; i < count; i++) {
        const char *why = check_entry(history, found, &entries[i], n, when);
        if (why != NULL)
            return why;
    }
    for (size_t i = 0; i < history->count; i++) {
        const struct saving *it = &history->savings[i];
        bool promised = n >= (when == HISTORY_RECOVERED ? it->decided : it->acknowledged);
        bool given_up = when == HISTORY_FOUND ? n > it->given_up : n >= it->given_up;
        if (promised && !given_up && n <= it->damaged && !is_listed(entries, count, it->dir))
            return broken(
                history, when == HISTORY_RECOVERED ? "decided, and lost" : "acknowledged, and lost",
                it->dir);
    }
    if (memory_io_open_files(found) != 0)
        return broken(history, "a descriptor is left open", SAMPLE_STORE);
    return NULL;
}

/* ---- recovery ---- */

static enum status recover_one(const struct io *io, const struct saving *it, size_t n, bool again)
{
    char moved[LIMIT_PATH];
    if (n >= it->given_up || n < it->decided)
        return ckpt_remove(io, it->dir);
    if (n >= it->condemned) {
        enum status st = ckpt_quarantine(io, it->dir, moved, sizeof(moved));
        return st == ST_NOT_FOUND ? ST_OK : st;
    }
    return n < it->acknowledged || again ? publish(io, it) : ST_OK;
}

const char *history_recover(struct history *history, struct memory_io *found, size_t n, bool again)
{
    for (size_t i = 0; i < history->count; i++) {
        const struct saving *it = &history->savings[i];
        if (it->begun > n || owner(history, it->dir, n) != it)
            continue;
        enum status st = recover_one(memory_io_table(found), it, n, again);
        if (st != ST_OK) {
            (void)snprintf(history->why, sizeof(history->why), "recovery fails with \"%s\": %.180s",
                           status_string(st), it->dir);
            return history->why;
        }
    }
    return NULL;
}

const char *history_go_on(struct history *history, struct memory_io *found)
{
    struct sample sample;
    char dir[LIMIT_PATH];
    bool equal = false;
    const struct io *io = memory_io_table(found);
    sample_init(&sample, ELEMENTS, 240, 9);
    enum status st = sample_save(io, &sample, 2, NULL, dir);
    if (st == ST_OK)
        st = sample_compare(io, dir, &sample, &equal);
    if (st == ST_OK)
        st = ckpt_remove(io, dir);
    sample_release(&sample);
    return st == ST_OK && equal ? NULL : broken(history, "the next save fails", SAMPLE_STORE);
}
