/*
 * The one symbol of cairn-cuda.so. The communicator's table is linked in beside: comm knows
 * kernels, not the other way round, so the build names its function in CAIRN_MODULE_COMM.
 */
#include "kernels/cuda/device/cuda.h"

const struct module *cairn_cuda_module(void);

#ifdef CAIRN_MODULE_COMM
const struct comm_table *CAIRN_MODULE_COMM(void);
#define COMM() CAIRN_MODULE_COMM()
#else
#define COMM() NULL
#endif

#ifdef CAIRN_MODULE_FAKE
#define MODULE_NAME "cuda, fake"
#else
#define MODULE_NAME "cuda"
#endif

static struct module module; /* written once */

static void module_fill(void)
{
    module = (struct module){
        .abi = MODULE_ABI,
        .size_bytes = (uint32_t)sizeof(module),
        .table_bytes = (uint32_t)sizeof(*module.backend),
        .name = MODULE_NAME,
        .version = CAIRN_VERSION,
        .backend = backend_cuda(),
        .comm = COMM(),
        .device_count = cuda_device_count,
        .device = cuda_device,
    };
}

__attribute__((visibility("default"))) const struct module *cairn_cuda_module(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, module_fill);
    return &module;
}
