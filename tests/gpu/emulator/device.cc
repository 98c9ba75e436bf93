/* The emulated device. */
#include "tests/gpu/device.h"

#include "tests/gpu/emulator/emulator.h"

void device_seed(uint64_t seed)
{
    emulator_seed(seed);
}

void *device_alloc(size_t bytes, size_t align)
{
    return emulator_alloc(bytes, align);
}

void device_free(void *memory)
{
    emulator_free(memory);
}

void device_put(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void device_get(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
