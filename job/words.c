#include "job/words.h"

#include <stddef.h>

#include "common/check.h"

#define WORD_ONLY(name, word) word,
#define WORD_OF(list, value)  word_of((const char *const[]){ "", list(WORD_ONLY) NULL }, value)

/* words: of the enum's values, from none on; NULL ends them. */
static const char *word_of(const char *const *words, unsigned value)
{
    for (unsigned i = 0; i <= value; i++)
        CHECK(words[i] != NULL);
    return words[value];
}

const char *job_arch_word(enum job_arch arch)
{
    return WORD_OF(JOB_ARCHS, arch);
}

const char *job_size_word(enum job_size size)
{
    return WORD_OF(JOB_SIZES, size);
}

const char *job_format_word(enum job_format format)
{
    return WORD_OF(JOB_FORMATS, format);
}

const char *job_precision_word(enum job_precision precision)
{
    return WORD_OF(JOB_PRECISIONS, precision);
}

const char *job_amp_word(enum job_amp amp)
{
    return WORD_OF(JOB_AMPS, amp);
}

const char *job_device_word(enum job_device device)
{
    return WORD_OF(JOB_DEVICES, device);
}

const char *job_pipeline_word(enum job_pipeline schedule)
{
    return WORD_OF(JOB_PIPELINES, schedule);
}

const char *job_metric_word(enum job_metric metric)
{
    return WORD_OF(JOB_METRICS, metric);
}
