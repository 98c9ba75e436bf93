/*
 * How many workers each stage has, for any number of workers: from a request, which is for as many
 * as the job is to have.
 *
 *     request 2 2      workers 1: 1    2: 1 1    3: 2 1    4: 2 2    5: 3 2    6: 3 3
 *     request 3 1      workers 1: 1    2: 1 1    3: 2 1    4: 3 1    5: 4 1    6: 5 1
 *
 * While there is a worker for each stage there are as many stages as requested, else as many as
 * there are workers. Each has one; every further one goes to the stage that is short of most: the
 * highest request for one more (D'Hondt's method). So the request itself comes out at its own
 * number, and with one worker more or fewer one stage changes.
 *
 * Pure functions. Thread: any. Memory: everything is borrowed.
 */
#pragma once

#include <stdint.h>

struct layout_request {
    uint32_t stages, lanes;
    const uint32_t *workers; /* [stages] of each, 1 to lanes */
};

/* Returns how many stages a generation with so many workers, from 1 on, has. */
uint32_t layout_request_stages(const struct layout_request *request, uint32_t workers);

/*
 * workers: 1 to stages * lanes; of each stage there are `lanes` at most.
 * there: [layout_request_stages] how many each stage has of those that could stay in it; NULL: none
 * is anywhere. Of stages that are short of as many the one gets a worker that would have to give
 * away most, then the earlier one.
 * out: [layout_request_stages] their sum is `workers`.
 */
void layout_request_widths(const struct layout_request *request, uint32_t workers,
                           const uint32_t *there, uint32_t *out);
