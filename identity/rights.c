#include "identity/rights.h"

#include <string.h>

/* Methods of Control that change nothing. */
static const char *const looks[] = {
    "ListJobs",      "GetJob",      "WatchJob",   "ListCheckpoints", "StreamLogs", "ListNodes",
    "StreamMetrics", "ReadMetrics", "ExplainJob", "GetVersion",      "DebugJob",
};

bool identity_method_looks(const char *method)
{
    for (size_t i = 0; i < sizeof(looks) / sizeof(looks[0]); i++) {
        if (strcmp(method, looks[i]) == 0)
            return true;
    }
    return false;
}

const char *identity_refusal(enum identity_role role, enum identity_service service,
                             const char *method)
{
    const bool control = service == IDENTITY_CONTROL;
    switch (role) {
    case IDENTITY_OPERATOR:
        return control ? NULL
                       : "an operator's certificate is for people: an agent needs a node's, as "
                         "made by 'cairn cert node NAME'";
    case IDENTITY_VIEWER:
        return control && identity_method_looks(method)
                   ? NULL
                   : "a viewer's certificate is for looking: this takes an operator's, as made by "
                     "'cairn cert operator NAME'";
    case IDENTITY_NODE:
        return !control ? NULL
                        : "a node's certificate is for its agent: commands take an operator's, as "
                          "made by 'cairn cert operator NAME'";
    case IDENTITY_COORDINATOR:
        break;
    }
    return "a coordinator's certificate is for serving: commands take an operator's, as made by "
           "'cairn cert operator NAME'";
}
