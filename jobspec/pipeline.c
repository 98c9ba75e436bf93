/* Pipelines of a job: their stages, the workers of each, and their shares of the lanes. */
#include <stdio.h>
#include <string.h>

#include "jobspec/reader.h"

/* Refuses settings that a pipeline can't be combined with. */
static void check_pipeline_use(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const unsigned stages = job->parallel.pipeline.stages;
    if (job->parallel.reduction == JOBSPEC_REDUCTION_FAST) {
        reader_mistake(
            reader, "parallel.reduction", "remove one of the two",
            "parallel.reduction: fast is not for a pipeline of %u stages: bits would depend on "
            "how it is cut",
            stages);
    }
    if (reader_has(reader, "workers.shares")) {
        reader_mistake(reader, "workers.shares",
                       job->workers.by_speed ? "remove this key" : "write them in parallel.stages",
                       job->workers.by_speed
                           ? "workers.shares: auto is not for a pipeline of %u stages"
                           : "workers.shares don't say of which of the %u stages they "
                             "are",
                       stages);
        job->workers.by_speed = false;
    }
    if (reader_has(reader, "train.micro_batch") && reader_is_good(reader, "train.micro_batch") &&
        job->train.micro_batch == 0 && job->workers.device != JOBSPEC_DEVICE_CPU) {
        reader_mistake(
            reader, "train.micro_batch",
            "write a number: `cairn plan` says what each stage takes with it",
            "train.micro_batch: auto is not for a pipeline of %u stages on a GPU: it would measure "
            "a model that isn't cut",
            stages);
    }
    if (job->parallel.schedule == JOBSPEC_PIPELINE_INTERLEAVED &&
        job->parallel.pipeline.first_node[1] > 0) {
        reader_mistake(reader, "parallel.pipeline", "write the number of stages",
                       "parallel.schedule: interleaved cuts each stage once more, and where to cut "
                       "the model it finds itself");
    }
    if (!reader_has(reader, "audit.every")) {
        job->audit.every = 0;
    } else if (job->audit.every > 0) {
        reader_mistake(
            reader, "audit.every", "remove this key: audit.checksum still compares the workers",
            "audit.every is not for a pipeline of %u stages: a worker has no other lanes' "
            "inputs",
            stages);
    }
}

/* The workers of each stage, where the file doesn't say them: as many each. */
static bool spread_workers(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const int64_t count = job->workers.count, stages = job->parallel.pipeline.stages;
    const long long below = count / stages * stages, above = below + stages;
    char way_out[LIMIT_REASON];
    if (count < stages) {
        (void)snprintf(way_out, sizeof(way_out),
                       "set workers.count to %lld or a multiple of it, or cut the model into %lld "
                       "or fewer",
                       (long long)stages, (long long)count);
        reader_mistake(reader, "workers.count", way_out,
                       "%lld workers for %lld stages: each has at least "
                       "one",
                       (long long)count, (long long)stages);
        return false;
    }
    if (count % stages != 0) {
        (void)snprintf(way_out, sizeof(way_out),
                       "set workers.count to %lld or %lld, or say how many each stage has "
                       "(parallel.stages)",
                       below, above);
        reader_mistake(reader, "workers.count", way_out,
                       "%lld workers can't be spread evenly over %lld stages", (long long)count,
                       (long long)stages);
        return false;
    }
    for (int64_t s = 0; s < stages; s++)
        job->parallel.stages[s] = (uint32_t)(count / stages);
    return true;
}

/* Checks that all the numbers of workers that the file gives agree. */
static bool sum_workers(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const unsigned stages = job->parallel.pipeline.stages;
    char way_out[LIMIT_REASON];
    int64_t sum = 0;
    if (reader->stage_count != stages) {
        reader_mistake(reader, "parallel.stages", "write one section per stage",
                       "%u sections for %u stages", reader->stage_count, stages);
        return false;
    }
    for (uint32_t s = 0; s < stages; s++)
        sum += job->parallel.stages[s];
    if (!reader_has(reader, "workers.count"))
        job->workers.count = sum;
    if (job->workers.count == sum)
        return true;
    (void)snprintf(way_out, sizeof(way_out), "set workers.count to %lld, or remove it",
                   (long long)sum);
    reader_mistake(reader, "workers.count", way_out,
                   "workers.count: %lld, but the stages have %lld workers together",
                   (long long)job->workers.count, (long long)sum);
    return false;
}

/* The lanes of one stage's workers; offset: of its shares. */
static bool share_stage(struct reader *reader, uint32_t stage, uint32_t offset)
{
    struct jobspec *job = &reader->job;
    const long long lanes = job->train.lanes, workers = job->parallel.stages[stage];
    uint32_t *shares = job->workers.shares + offset;
    struct jobspec_place place = reader_place(reader, "workers.count");
    char way_out[LIMIT_REASON];
    if (reader->stage_count > 0)
        place = reader->stages[stage].place;
    if (workers > lanes) {
        reader_lanes_for(reader, workers, way_out);
        const size_t used = strlen(way_out);
        (void)snprintf(way_out + used, sizeof(way_out) - used,
                       "the workers of each stage to %lld or fewer", lanes);
        jobspec_report_add(
            &reader->report, place, way_out,
            "%lld workers of a stage can't share %lld lanes: each carries at least one", workers,
            lanes);
        return false;
    }
    if (reader->stage_count == 0 || reader->stages[stage].share_count == 0)
        return jobspec_shares(lanes, workers, shares) == ST_OK;
    long long sum = 0;
    for (long long w = 0; w < workers; w++)
        sum += shares[w];
    if (sum == lanes)
        return true;
    jobspec_report_add(&reader->report, place, "the shares of each stage together are the lanes",
                       "the shares of stage %u sum to %lld, but there are %lld lanes", stage, sum,
                       lanes);
    return false;
}

bool reader_cut(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    check_pipeline_use(reader);
    if (job->workers.count == 0)
        job->workers.count = job->parallel.pipeline.stages;
    return reader->stage_count > 0 ? sum_workers(reader) : spread_workers(reader);
}

void reader_share_stages(struct reader *reader, bool lanes_known)
{
    const struct jobspec *job = &reader->job;
    const uint32_t stages = job->parallel.pipeline.stages;
    bool fits = lanes_known;
    for (uint32_t s = 0, offset = 0; s < stages && fits; offset += job->parallel.stages[s++])
        fits = share_stage(reader, s, offset);
}

void reader_begin_pipeline(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    if (reader->stage_count > 0 && !reader_has(reader, "parallel.pipeline"))
        job->parallel.pipeline.stages = reader->stage_count;
    if (job->parallel.pipeline.stages > 1)
        return;
    if (reader->stage_count > 0) {
        reader_mistake(reader, "parallel.stages", "write its shares in workers.shares",
                       "parallel.stages is for a pipeline, but there is one stage");
    }
    job->parallel.schedule = JOBSPEC_PIPELINE_NONE;
    memset(job->parallel.stages, 0, sizeof(job->parallel.stages));
}
