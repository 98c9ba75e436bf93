#include "jobspec/words.h"

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

const char *jobspec_arch_word(enum jobspec_arch arch)
{
    return WORD_OF(JOBSPEC_ARCHS, arch);
}

const char *jobspec_size_word(enum jobspec_size size)
{
    return WORD_OF(JOBSPEC_SIZES, size);
}

const char *jobspec_format_word(enum jobspec_format format)
{
    return WORD_OF(JOBSPEC_FORMATS, format);
}

const char *jobspec_precision_word(enum jobspec_precision precision)
{
    return WORD_OF(JOBSPEC_PRECISIONS, precision);
}

const char *jobspec_amp_word(enum jobspec_amp amp)
{
    return WORD_OF(JOBSPEC_AMPS, amp);
}

const char *jobspec_device_word(enum jobspec_device device)
{
    return WORD_OF(JOBSPEC_DEVICES, device);
}

const char *jobspec_pipeline_word(enum jobspec_pipeline schedule)
{
    return WORD_OF(JOBSPEC_PIPELINES, schedule);
}

const char *jobspec_metric_word(enum jobspec_metric metric)
{
    return WORD_OF(JOBSPEC_METRICS, metric);
}

const char *jobspec_optimizer_word(enum jobspec_optimizer name)
{
    return WORD_OF(JOBSPEC_OPTIMIZERS, name);
}

const char *jobspec_schedule_word(enum jobspec_schedule name)
{
    return WORD_OF(JOBSPEC_SCHEDULES, name);
}
