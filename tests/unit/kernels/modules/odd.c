/*
 * Modules that must be refused: ODD_ABI of another build, ODD_EMPTY without a description,
 * ODD_LACKING with a library that is nowhere.
 */
#include "kernels/module.h"

module_entry cairn_cuda_module;

#ifdef ODD_LACKING
int cairn_absent(void);
#endif

const struct module *cairn_cuda_module(void)
{
#if defined(ODD_EMPTY)
    return NULL;
#elif defined(ODD_LACKING)
    return cairn_absent() == 0 ? NULL : NULL;
#else
    static const struct module module = { .abi = MODULE_ABI + 1, .size_bytes = sizeof(module) };
    return &module;
#endif
}
