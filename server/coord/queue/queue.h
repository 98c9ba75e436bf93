/* The order in which jobs get slots. */
#pragma once

#include "server/coord/state.h"

/* Places jobs if slots changed. It is called at the end of what people ask, as they are told at
 * once what came of it. For all else in the group it is called once, when that is committed. */
void coord_schedule(struct coord *coord);
