/* The type Connection: a rank's connection, and the function that opens it. */
#pragma once

#include "python/cairn/binding.h"

/* Adds them to the module; -1: an exception is set. */
int binding_add_connection(PyObject *module);
