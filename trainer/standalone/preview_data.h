/*
 * The data in `cairn plan`: how much there is, and the first tokens of files of tokens, so that one
 * sees whether a tokenizer made them.
 *
 * Thread: any.
 */
#pragma once

#include "common/buf.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/data/dataset.h"

/* eval: or NULL. Errors: ST_CONFIG  a token that is looked at is not below the vocabulary */
MUST_CHECK enum status preview_data_print(const struct jobspec *job, const struct dataset *train,
                                          const struct dataset *eval, struct buf *out,
                                          struct reason *reason);
