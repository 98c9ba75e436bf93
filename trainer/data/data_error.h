/*
 * What is wrong with a file of the data, for whoever wrote the job file: one line "path: cause; way
 * out".
 *
 * Thread: any.
 */
#pragma once

#include "common/reason.h"
#include "common/status.h"

/* cause: with its way out. Returns ST_CONFIG. */
enum status data_refuse(const char *path, const char *cause, struct reason *reason);
/* A call of the file system failed with st. Returns ST_CONFIG where the user must act, else st. */
enum status data_unreadable(const char *path, enum status st, struct reason *reason);
