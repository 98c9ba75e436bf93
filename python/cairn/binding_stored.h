/* The type Stored: a stored state. */
#pragma once

#include "python/cairn/binding.h"

/* Adds it to the module; -1: an exception is set. */
int binding_add_stored(PyObject *module);
/* Makes one of a state, which it owns from now on, also where it fails. */
PyObject *binding_stored(struct cairn_state *state);
/* Opens a checkpoint's folder: the module's function state_open(path). */
PyObject *binding_state_open(PyObject *module, PyObject *path);
