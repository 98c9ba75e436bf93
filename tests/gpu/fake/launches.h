/*
 * Between the runtime's fake and the emulator, whose types can't be in one file with CUDA's.
 */
#pragma once

#include <functional>

/* From now on launches go to fake_launch. */
void fake_take_launches();
/* Runs later, in the stream's order. False: injected, or the capture doesn't allow it. */
bool fake_launch(void *stream, std::function<void()> run);
