/*
 * A fuzz target: one function that must survive any bytes. clang's libFuzzer drives it
 * (CAIRN_FUZZ=ON, compiled by clang), or replay.c, which feeds it the files of a folder: that runs
 * as a test.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
