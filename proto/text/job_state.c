#include "proto/text/job_state.h"

#include <stddef.h>

const char *job_state_name(Cairn__V1__JobState state)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&cairn__v1__job_state__descriptor, (int)state);
    return value == NULL ? "?" : value->name;
}

bool job_is_over(Cairn__V1__JobState state)
{
    return state == CAIRN__V1__JOB_STATE__SUCCEEDED || state == CAIRN__V1__JOB_STATE__FAILED ||
           state == CAIRN__V1__JOB_STATE__STOPPED || state == CAIRN__V1__JOB_STATE__KILLED;
}
