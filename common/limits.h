/*
 * The bound of everything that could grow, in one place, each with its reason.
 */
#pragma once

#include <stdint.h>

#define LIMIT_RANKS          1024 /* workers of one job */
#define LIMIT_LANES          4096 /* lanes of one job */
#define LIMIT_JOBS           1024 /* live jobs of one coordinator */
#define LIMIT_NODES          1024
#define LIMIT_SLOTS          1024              /* slots of one node */
#define LIMIT_GPUS           64                /* of one node */
#define LIMIT_NAME           128               /* job, tensor, node names, bytes with the NUL */
#define LIMIT_PATH           1024              /* paths that we build, bytes with the NUL */
#define LIMIT_REASON         512               /* one line shown to a person */
#define LIMIT_JOB_FILE_BYTES (256 * 1024)      /* a job file is written by hand */
#define LIMIT_MESSAGE_BYTES  (4 * 1024 * 1024) /* one message on the wire */
#define LIMIT_KV_KEY         256
#define LIMIT_KV_VALUE       65536
#define LIMIT_METRIC_ROWS    65536 /* kept by rank 0 until acknowledged */
#define LIMIT_LOG_LINE       4096  /* one line of a worker's log */
#define LIMIT_LAST_LINES     20    /* of a worker's output, shown with its exit */
#define LIMIT_EVENTS_PER_JOB 10000 /* kept by the journal */
#define LIMIT_DATA_FILES     4096  /* of one data set: shards of some 100 MB each */
#define LIMIT_TENSORS        65536 /* of one checkpoint */
#define LIMIT_MANIFEST_BYTES (16 * 1024 * 1024)

/* Elements of a piece: the unit of digests, norm blocks, bucket and chunk borders (design 5, 8). */
#define PIECE_ELEMENTS 65536
