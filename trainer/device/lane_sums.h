/*
 * Checksums of lane vectors, for those that two ranks compute: of the rank's own lane and of the
 * other's. Made bucket by bucket, as the last lane of a rank is handed over, in pieces
 * (vector.checksums); equal for equal bits, on every device.
 *
 * Memory: all of it from open to close. Thread: the step thread. Errors: the backend's
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/device/device.h"

enum lane_sum { LANE_SUM_OWN, LANE_SUM_FOREIGN, LANE_SUM_COUNT };

struct lane_sums;

/* begin: [buckets], ascending from 0, of a vector of count elements; borrowed for life. */
MUST_CHECK enum status lane_sums_open(const struct device *device, const size_t *begin,
                                      size_t buckets, size_t count, struct lane_sums **out);
void lane_sums_close(struct lane_sums *sums);
/* Make the checksum of one bucket of the vector, or of all; enqueued on the compute stream. */
MUST_CHECK enum status lane_sums_bucket(struct lane_sums *sums, enum lane_sum which,
                                        const float *lane, size_t bucket);
MUST_CHECK enum status lane_sums_all(struct lane_sums *sums, enum lane_sum which,
                                     const float *lane);
/* Waits for the compute stream and returns one number of all buckets made since the last call. */
MUST_CHECK enum status lane_sums_read(struct lane_sums *sums, uint64_t out[LANE_SUM_COUNT]);
