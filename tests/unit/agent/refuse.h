/* A system that refuses calls, as filters of containers do. */
#pragma once

/* From now on pidfd_open and pidfd_send_signal fail with this errno here and in all processes that
 * are started from here. */
void refuse_pidfds(int error);
