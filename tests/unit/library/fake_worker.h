/*
 * A stand-in for the worker's process: a thread that speaks library/wire/wire.h with the library in
 * this process, makes copy files, and lies or dies where a test wants it to.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "library/wire/place.h"
#include "library/wire/wire.h"
#include "session/copies/copy_file.h"

#define FAKE_RANKS 8
#define FAKE_FILES 2

enum fake_lie {
    FAKE_HONEST,
    FAKE_DIES,            /* in place of the answer */
    FAKE_HALF,            /* sends half of the answer's head, then dies */
    FAKE_REFUSES,         /* says CAIRN_REFUSED, "not now" */
    FAKE_KIND,            /* answers another kind */
    FAKE_NUMBER,          /* or another request */
    FAKE_HUGE,            /* says that 4 GB follow */
    FAKE_LONGER,          /* a byte more than it should be */
    FAKE_STATUS,          /* a status that is none */
    FAKE_LONG_TEXT,       /* says why at great length */
    FAKE_NO_FD,           /* leaves the descriptor out */
    FAKE_SOME_FDS,        /* sends three of them */
    FAKE_SHORT_FILE,      /* BEGIN: the file is shorter than it says */
    FAKE_EXTENTS_OUTSIDE, /* BEGIN: tables lie behind the file */
    FAKE_DATA_OUTSIDE,    /* BEGIN: so does the data of an extent */
    FAKE_COUNT,           /* BEGIN: there are 4 billion extents */
    FAKE_BUFFER,          /* BEGIN: an extent of a buffer that isn't there */
    FAKE_OTHER_STEP,      /* BEGIN: the file is for another step */
    FAKE_OTHER_BUFFERS,   /* BEGIN: a buffer has another size */
    FAKE_AREA,            /* BEGIN: the process's area is elsewhere */
    FAKE_RANK,            /* HELLO: a rank beyond the size */
    FAKE_PATHS,           /* HELLO: more paths than there are */
    FAKE_PATH_END,        /* HELLO: a path without an end */
    FAKE_VERSION,         /* HELLO: another version */
    FAKE_DUE,             /* DUE: a due that is none */
    FAKE_LIES,
};

struct fake_worker {
    /* Set before fake_start. */
    const char *folder; /* for copy files */
    uint32_t rank, size;
    uint32_t processes;         /* per worker; 0: 1 */
    uint64_t areas[FAKE_RANKS]; /* bytes; 0: as the layout says */
    uint32_t source;
    uint64_t step;
    char paths[4096];
    size_t paths_bytes;
    uint32_t path_count;
    uint64_t next_due;
    uint32_t due;
    int settle_status; /* after the first one, which is AGAIN */
    uint64_t settled;
    bool dirty; /* copy files are full of something else at first */
    enum fake_lie lie;
    enum wire_kind lie_at;

    /* What it saw. */
    atomic_uint asked[WIRE_LAST + 1];
    struct wire_want want;
    struct wire_last last;
    struct wire_row row;
    struct wire_copied copied;
    struct wire_hello hello;
    struct wire_ready ready;
    char failed[256];
    struct wire_entry *entries;
    struct layout_places places;
    struct wire_page *page;

    /* What is the worker's own. */
    struct copy_file files[FAKE_FILES];
    uint32_t file; /* that is filled, or was last */
    int listener, page_fd;
    atomic_int connection;
    struct wire_layout layout;
    uint64_t begun;
    pthread_t thread;
};

/* Listens, sets CAIRN_SOCKET, and starts the thread. */
void fake_start(struct fake_worker *worker);
/* Ends the thread. What it saw stays until fake_release. */
void fake_stop(struct fake_worker *worker);
void fake_release(struct fake_worker *worker);
/* Waits until so many requests of a kind came. */
void fake_await(const struct fake_worker *worker, enum wire_kind kind, uint32_t count);
/* Returns the path of the copy that was sealed last. */
const char *fake_path(const struct fake_worker *worker);
