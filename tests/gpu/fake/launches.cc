/*
 * Own kernels run on the emulator in the order of their streams.
 */
#include "tests/gpu/fake/launches.h"

#include "tests/gpu/emulator/emulator.h"

static enum status take(void *stream, std::function<void()> run)
{
    return fake_launch(stream, std::move(run)) ? ST_OK : ST_DEVICE;
}

void fake_take_launches()
{
    emulator_set_taker(take);
}
