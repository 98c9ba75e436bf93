#include "kernels/op.h"

#include "common/check.h"

const char *op_name(enum op op)
{
#define OP_NAME(upper, lower, in, params, stats) [OP_##upper] = #lower,
    static const char *const names[OP_COUNT] = { OP_LIST(OP_NAME) };
#undef OP_NAME
    CHECK(op < OP_COUNT);
    return names[op];
}
