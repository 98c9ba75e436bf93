/* What a crash leaves: the base, whatever is safe, and of the rest what the picks say. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/rng.h"
#include "tests/crash/memory_internal.h"

#define SECTOR     512
#define PAGE       4096
#define VALUES_MAX 16

enum fate { FATE_GONE, FATE_THERE, FATE_HALF, FATE_SECTORS, FATE_PAGES, FATE_JUNK, FATE_ZEROS };

struct choice {
    const struct change *change; /* a write, or the first change of a name */
    size_t value[VALUES_MAX];    /* of a name; 0 is the oldest */
    uint32_t values, newest;
};

struct crash_point {
    const struct memory_io *memory;
    size_t changes;
    struct tree base; /* with all that is safe */
    struct choice choice[CRASH_CHOICES_MAX];
    size_t names, choices;
    bool *loose;
    bool *doomed; /* by a sync that failed */
};

/* A sync, or a change to a folder that an earlier sync had failed to write. */
static void settle(struct crash_point *point, size_t at)
{
    const struct change *now = &point->memory->changes[at];
    bool sync = now->kind == CHANGE_SYNC;
    if (now->lie || (!sync && now->kind != CHANGE_NAME))
        return;
    for (size_t i = 0; i < at; i++) {
        const struct change *change = &point->memory->changes[i];
        if (!point->loose[i] || change->inode != now->inode)
            continue;
        if (!sync) {
            point->doomed[i] = false;
        } else if (now->failed) {
            point->doomed[i] = true;
        } else {
            point->loose[i] = point->doomed[i];
        }
    }
}

static struct choice *add_choice(struct crash_point *point, const struct change *change)
{
    CHECK(point->choices < CRASH_CHOICES_MAX);
    struct choice *choice = &point->choice[point->choices++];
    *choice = (struct choice){ .change = change };
    return choice;
}

static struct choice *choice_of_name(struct crash_point *point, const struct change *change)
{
    for (size_t k = 0; k < point->choices; k++) {
        const struct change *first = point->choice[k].change;
        if (first->inode == change->inode && strcmp(first->name, change->name) == 0)
            return &point->choice[k];
    }
    struct choice *choice = add_choice(point, change);
    choice->value[0] = tree_get(&point->base, change->inode, change->name);
    choice->values = 1;
    return choice;
}

/* Whether a later change of the same name is safe, so that this one doesn't matter. */
static bool is_overtaken(const struct crash_point *point, size_t i)
{
    const struct change *change = &point->memory->changes[i];
    for (size_t k = i + 1; k < point->changes; k++) {
        const struct change *later = &point->memory->changes[k];
        if (later->kind == CHANGE_NAME && !point->loose[k] && later->inode == change->inode &&
            strcmp(later->name, change->name) == 0)
            return true;
    }
    return false;
}

static void collect_names(struct crash_point *point)
{
    for (size_t i = 0; i < point->changes; i++) {
        const struct change *change = &point->memory->changes[i];
        if (change->kind != CHANGE_NAME || !point->loose[i] || is_overtaken(point, i))
            continue;
        struct choice *choice = choice_of_name(point, change);
        uint32_t k = 0;
        while (k < choice->values && choice->value[k] != change->value)
            k++;
        CHECK(k < VALUES_MAX);
        choice->value[k] = change->value;
        choice->newest = k;
        choice->values += k == choice->values;
    }
    point->names = point->choices;
}

static void collect_writes(struct crash_point *point)
{
    for (size_t i = 0; i < point->changes; i++) {
        const struct change *change = &point->memory->changes[i];
        if (change->kind != CHANGE_DATA || !point->loose[i])
            continue;
        struct choice *choice = add_choice(point, change);
        choice->values = CRASH_WRITE_FATES;
        choice->newest = FATE_THERE;
    }
}

struct crash_point *crash_point_new(const struct memory_io *memory, size_t changes)
{
    CHECK(changes <= memory->change_count);
    struct crash_point *point = calloc(1, sizeof(*point));
    CHECK(point != NULL);
    point->memory = memory;
    point->changes = changes;
    point->loose = calloc(changes + 1, sizeof(bool));
    point->doomed = calloc(changes + 1, sizeof(bool));
    CHECK(point->loose != NULL);
    CHECK(point->doomed != NULL);
    for (size_t i = 0; i < changes; i++) {
        const struct change *change = &memory->changes[i];
        settle(point, i);
        point->loose[i] = change->kind != CHANGE_SYNC && !change->safe;
    }
    tree_clone(&memory->base, &point->base);
    while (point->base.count < memory->tree.count)
        (void)tree_add(&point->base, memory->tree.inodes[point->base.count].is_dir);
    for (size_t i = 0; i < changes; i++) {
        const struct change *change = &memory->changes[i];
        if (point->loose[i])
            continue;
        if (change->kind == CHANGE_NAME)
            tree_set(&point->base, change->inode, change->name, change->value);
        else if (change->kind == CHANGE_DATA)
            tree_write(&point->base, change->inode, change->data, change->size, change->at);
    }
    collect_names(point);
    collect_writes(point);
    return point;
}

void crash_point_free(struct crash_point *point)
{
    if (point == NULL)
        return;
    tree_release(&point->base);
    free(point->loose);
    free(point->doomed);
    free(point);
}

size_t crash_point_names(const struct crash_point *point)
{
    return point->names;
}

size_t crash_point_choices(const struct crash_point *point)
{
    return point->choices;
}

uint32_t crash_point_values(const struct crash_point *point, size_t choice)
{
    return point->choice[choice].values;
}

uint32_t crash_point_newest(const struct crash_point *point, size_t choice)
{
    return point->choice[choice].newest;
}

/* Applies those blocks of a write that chance picks; blocks as the medium has them, not the
 * write. */
static void write_blocks(struct tree *tree, const struct change *change, size_t block,
                         uint64_t seed)
{
    (void)tree_own(tree, change->inode, (size_t)change->at + change->size);
    size_t done = 0;
    while (done < change->size) {
        uint64_t at = change->at + done;
        size_t size = block - (size_t)(at % block);
        if (size > change->size - done)
            size = change->size - done;
        struct rng_counter words = rng_words(seed, (uint32_t)(at / block), 1, 0, 0);
        if ((words.word[0] & 1) != 0)
            tree_write(tree, change->inode, change->data + done, size, at);
        done += size;
    }
}

static void write_junk(struct tree *tree, const struct change *change, uint64_t seed)
{
    struct content *content = tree_own(tree, change->inode, (size_t)change->at + change->size);
    uint8_t *bytes = content->bytes + change->at;
    for (size_t i = 0; i < change->size; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        bytes[i] = (uint8_t)(seed >> 56);
    }
}

static void apply_write(struct tree *tree, const struct change *change, enum fate fate,
                        uint64_t seed)
{
    switch (fate) {
    case FATE_GONE:
        break;
    case FATE_THERE:
        tree_write(tree, change->inode, change->data, change->size, change->at);
        break;
    case FATE_HALF:
        tree_write(tree, change->inode, change->data, change->size / 2, change->at);
        break;
    case FATE_SECTORS:
        write_blocks(tree, change, SECTOR, seed);
        break;
    case FATE_PAGES:
        write_blocks(tree, change, PAGE, seed);
        break;
    case FATE_JUNK:
        write_junk(tree, change, seed);
        break;
    case FATE_ZEROS: /* the length came, the bytes didn't */
        (void)tree_own(tree, change->inode, (size_t)change->at + change->size);
        break;
    }
}

struct memory_io *crash_point_build(const struct crash_point *point, const uint8_t *picks,
                                    uint64_t seed)
{
    struct tree tree;
    tree_clone(&point->base, &tree);
    for (size_t k = 0; k < point->choices; k++) {
        const struct choice *choice = &point->choice[k];
        CHECK(picks[k] < choice->values);
        if (k < point->names) {
            tree_set(&tree, choice->change->inode, choice->change->name, choice->value[picks[k]]);
        } else {
            apply_write(&tree, choice->change, (enum fate)picks[k], seed + k);
        }
    }
    return memory_over(&tree);
}

struct memory_io *crash_point_kill(const struct crash_point *point)
{
    struct tree tree;
    tree_clone(&point->base, &tree);
    struct memory_io *memory = memory_over(&tree);
    memory_io_record(memory);
    for (size_t i = 0; i < point->changes; i++) {
        const struct change *change = &point->memory->changes[i];
        if (!point->loose[i])
            continue;
        if (change->kind == CHANGE_DATA) {
            tree_write(&memory->tree, change->inode, change->data, change->size, change->at);
            memory_record_data(memory, change->inode, change->data, change->size, change->at);
        } else {
            tree_set(&memory->tree, change->inode, change->name, change->value);
            *memory_record(memory, CHANGE_NAME, change->inode) = *change;
        }
        if (point->doomed[i]) /* a sync of this file or folder failed; it fails again in the copy */
            memory_record(memory, CHANGE_SYNC, change->inode)->failed = true;
    }
    return memory;
}

bool memory_io_is_sync(const struct memory_io *memory, size_t i)
{
    return memory->changes[i].kind == CHANGE_SYNC && !memory->changes[i].failed;
}

void memory_io_lie(struct memory_io *memory, size_t i, bool lie)
{
    CHECK(memory_io_is_sync(memory, i));
    memory->changes[i].lie = lie;
}

void memory_io_interleave(struct memory_io *memory, size_t first, const size_t *ends, size_t parts,
                          uint64_t seed)
{
    size_t count = ends[parts - 1] - first, next[16], left = count;
    CHECK(parts <= 16);
    struct change *merged = calloc(count + 1, sizeof(*merged));
    CHECK(merged != NULL);
    for (size_t k = 0; k < parts; k++)
        next[k] = k == 0 ? first : ends[k - 1];
    for (size_t at = 0; at < count; at++, left--) {
        struct rng_counter words = rng_words(seed, (uint32_t)at, 2, 0, 0);
        size_t pick = rng_below(words.word[0], (uint32_t)left), k = 0;
        while (pick >= ends[k] - next[k]) {
            pick -= ends[k] - next[k];
            k++;
        }
        merged[at] = memory->changes[next[k]++];
    }
    memcpy(memory->changes + first, merged, count * sizeof(*merged));
    free(merged);
}
