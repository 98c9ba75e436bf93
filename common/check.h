/*
 * CHECK: always on, means "we have a bug": prints the place and aborts, so that the service
 * recovers the process. Never on data from disk, network, user or clock: that is a status.
 */
#pragma once

#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))

void check_failed(const char *condition, const char *file, int line) __attribute__((noreturn));
