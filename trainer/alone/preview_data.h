/*
 * What `cairn plan` says of the data: how much there is, and of files of tokens what they begin
 * with, so that one sees whether they are what a tokenizer made.
 *
 * Thread: any.
 */
#pragma once

#include "common/buf.h"
#include "common/reason.h"
#include "common/status.h"
#include "job/job.h"
#include "trainer/data/dataset.h"

/* eval: or NULL. Errors: ST_CONFIG  a token that is looked at is not below the vocabulary */
MUST_CHECK enum status preview_data_print(const struct job *job, const struct dataset *train,
                                          const struct dataset *eval, struct buf *out,
                                          struct reason *reason);
