/*
 * The table of all commands of `cairn`.
 */
#pragma once

#include "client/base/options.h"

extern const struct command_table commands;
