/*
 * The bound of everything that could grow, in one place, each with its reason. What only one folder
 * bounds stands in that folder's header.
 */
#pragma once

#include <stdint.h>

/* Numbers of things. */
#define LIMIT_RANKS      1024  /* workers of one job */
#define LIMIT_NUMBERS    4096  /* of workers of one job: several times as many as live at once */
#define LIMIT_LANES      4096  /* of one job */
#define LIMIT_STAGES     64    /* of a pipeline: large models have some 100 places to cut at */
#define LIMIT_JOBS       1024  /* live ones of one coordinator */
#define LIMIT_NODES      1024  /* of one coordinator, at a time */
#define LIMIT_SLOTS      1024  /* of one node */
#define LIMIT_GPUS       64    /* of one node */
#define LIMIT_TENSORS    65536 /* of one checkpoint */
#define LIMIT_DATA_FILES 4096  /* of one data set: shards of some 100 MB each */

/* The least compute capability of a GPU that may take a worker: major * 10 + minor. */
#define LIMIT_CUDA_CAPABILITY 80

/* Bytes of texts, with the NUL. */
#define LIMIT_NAME   128  /* a name of a job, a tensor, a node */
#define LIMIT_PATH   1024 /* a path that we build */
#define LIMIT_STORE  896  /* a store's path: names in it take up to 127 more (CKPT_DEEPEST) */
#define LIMIT_REASON 512  /* one line shown to a person (reason.h) */
#define LIMIT_SAW    128  /* what an agent saw of a probe, in words */

/* Bytes of what is read or sent. */
#define LIMIT_JOB_FILE_BYTES (256 * 1024)      /* a job file is written by hand */
#define LIMIT_MESSAGE_BYTES  (4 * 1024 * 1024) /* one message on the wire */
/* The first message of a session: a node's trainers, GPUs and copies, a worker's pins. */
#define LIMIT_HELLO_BYTES (256 * 1024)
/* A worker's last words travel in a message, beside other fields; what they hold besides a report
 * of a save is small. */
#define LIMIT_LAST_WORDS_BYTES (LIMIT_MESSAGE_BYTES - 256 * 1024)
#define LIMIT_REPORT_BYTES     (LIMIT_LAST_WORDS_BYTES - 8 * 1024)
#define LIMIT_MANIFEST_BYTES   (16 * 1024 * 1024)
#define LIMIT_LOG_LINE         4096 /* one line of a worker's log */

/* Bounds of stored records. */
#define LIMIT_METRIC_ROWS    65536 /* by rank 0, until they are acknowledged */
#define LIMIT_LAST_LINES     20    /* of a worker's output, shown with its exit */
#define LIMIT_EVENTS_PER_JOB 10000 /* by the journal */
#define LIMIT_GENERATIONS    4096  /* of one job, by the journal: the newest */

/* Elements of a piece: the unit of digests, and of the borders of buckets and chunks
 * (docs/invariants.md, "The exact step"). */
#define PIECE_ELEMENTS 65536
/* Bytes of one worker's share of the training state, 1 TiB: the tables of its shard file have room
 * for that (checkpoint/format/disk.h). The report of its save then has some 256 KiB of hashes, 16
 * bytes for 64 MiB; where ranks own moments up to 3.5 MiB (trainer/tape/lane_owners.h). */
#define LIMIT_SHARE_BYTES (UINT64_C(1) << 40)
