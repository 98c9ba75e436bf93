/*
 * The flight recorder: the last FLIGHT_RECORDS marks of a worker, in a file that is mapped into its
 * memory, so that whoever finds the process dead or hanging can read how far it came.
 *
 * Layout (little-endian, fixed)
 *
 *      0   struct flight_header, zeros up to 4096
 *   4096   FLIGHT_RECORDS records of 64 bytes; mark n (from 1) is entry (n - 1) mod FLIGHT_RECORDS
 *
 * A record whose number is 0, or belongs into another entry, was being written.
 *
 * Thread: flight_mark from any; it takes no lock and waits for nothing.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/io.h"
#include "common/status.h"

#define FLIGHT_RECORDS 1024
#define FLIGHT_MAGIC   "CRNFLGT1"
#define FLIGHT_NAME    24 /* bytes with the NUL */

enum flight_kind {
    FLIGHT_PHASE = 1,            /* name: the phase that begins */
    FLIGHT_COLLECTIVE_BEGIN = 2, /* value: sequence number of the collective in this generation */
    FLIGHT_COLLECTIVE_END = 3,
};

struct flight_header {
    char magic[8];
    uint32_t record_size, record_count;
    uint32_t pid, rank;
    uint64_t generation;
    char job[96];
    uint64_t marks; /* made so far */
};

struct flight_record {
    uint64_t number; /* number of the mark, from 1; written last */
    int64_t mono_ns; /* CLOCK_MONOTONIC of that machine */
    uint64_t step;   /* finished steps */
    uint32_t kind;   /* enum flight_kind */
    uint32_t reserved;
    uint64_t value;
    char name[FLIGHT_NAME];
};

#define FLIGHT_HEADER_BYTES 4096
#define FLIGHT_BYTES        (FLIGHT_HEADER_BYTES + FLIGHT_RECORDS * sizeof(struct flight_record))

struct flight;

/* Makes the file anew (an older one of that name is replaced) and maps it. */
MUST_CHECK enum status flight_open(const char *path, const char *job, uint64_t generation,
                                   uint32_t rank, struct flight **out);
/* The file stays. NULL is no error. */
void flight_close(struct flight *flight);

/* name is cut to FLIGHT_NAME - 1 bytes. flight may be NULL: then nothing is kept. */
void flight_mark(struct flight *flight, enum flight_kind kind, uint64_t step, uint64_t value,
                 const char *name);

/* The content of a file, oldest record first. */
struct flight_dump {
    struct flight_header header;
    size_t count;
    struct flight_record records[FLIGHT_RECORDS];
};
/* Reads the file of a worker that is dead or alive. Every field was checked or NUL-terminated.
 * Errors: ST_CORRUPT  not such a file; and those of io_read_file */
MUST_CHECK enum status flight_read(const struct io *io, const char *path, struct flight_dump *out);
