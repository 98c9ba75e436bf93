/*
 * The work of cairnd that serves nobody: the journal is copied, or made anew. Both return the exit
 * code, and say on standard error what went wrong.
 */
#pragma once

#include "server/options.h"

int offline_back_up(const struct options *options);
int offline_recover(const struct options *options);
