/*
 * Listing a folder in S3: all of it is read before any of it is handed on, so that the receiver may
 * make calls. A checkpoint that was set aside (quarantine.h) is listed as a folder is.
 */
#pragma once

#include "checkpoint/s3/object.h"
#include "common/buf.h"

struct s3_listing {
    struct buf entries, sizes;
};

/* Released after an error, too. */
MUST_CHECK enum status s3_listing_read(struct s3_client *client, const struct s3_place *folder,
                                       uint32_t page, struct s3_listing *out);
/* is_inside_quarantined: it is the list of a checkpoint that was set aside. */
void s3_listing_walk(const struct s3_listing *listing, bool is_inside_quarantined, s3_name_fn fn,
                     void *arg);
void s3_listing_release(struct s3_listing *listing);
