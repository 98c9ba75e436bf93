/* Any bytes as a job file: refused with a message, or a job whose text reads back as the same job.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "jobspec/jobspec.h"
#include "tests/fuzz/fuzz.h"

#define TEXT_MAX (4 * 1024 * 1024)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    auto_buf struct buf errors;
    auto_buf struct buf text;
    buf_init(&errors, TEXT_MAX);
    buf_init(&text, TEXT_MAX);
    auto_free struct jobspec *job = malloc(sizeof(*job));
    auto_free struct jobspec *again = malloc(sizeof(*again));
    CHECK(job != NULL && again != NULL);
    enum status st =
        jobspec_parse((const char *)data, size, "fuzz.yaml", "/base", NULL, 0, job, &errors);
    if (st == ST_OK) {
        CHECK(errors.size == 0);
        CHECK(jobspec_print(job, &text) == ST_OK);
        CHECK(jobspec_parse(text.data, text.size, "again.yaml", "/", NULL, 0, again, &errors) ==
              ST_OK);
        CHECK(memcmp(job, again, sizeof(*job)) == 0);
    } else {
        CHECK(st == ST_CONFIG);
        CHECK(errors.size > 0);
    }
    return 0;
}
