/*
 * What this machine doesn't give an agent, told in its log at the start: descriptors (of which it
 * takes as many as it may, for its trainers, too), variables that don't go on, pidfds.
 */
#pragma once

#include "common/log.h"

void lacks_warn(const struct log *log);
