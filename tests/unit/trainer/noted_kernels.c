#include "tests/unit/trainer/noted_kernels.h"

#include "common/check.h"

#define KERNELS_MAX 1024

static struct {
    const struct kernel *kernel[KERNELS_MAX];
    enum op op[KERNELS_MAX];
    int count;
} kernels;

void noted_clear(void)
{
    kernels.count = 0;
}

enum status noted_prepare(struct backend *backend, const struct op_spec *spec,
                          struct kernel **out_kernel, struct kernel_info *out_info)
{
    enum status st = backend_cpu()->op[spec->op].prepare(backend, spec, out_kernel, out_info);
    if (st != ST_OK)
        return st;
    CHECK(kernels.count < KERNELS_MAX);
    kernels.kernel[kernels.count] = *out_kernel;
    kernels.op[kernels.count++] = spec->op;
    return ST_OK;
}

enum op noted_op(const struct kernel *kernel)
{
    int i = kernels.count - 1; /* the newest: memory is used again */
    while (i >= 0 && kernels.kernel[i] != kernel)
        i--;
    CHECK(i >= 0);
    return kernels.op[i];
}
