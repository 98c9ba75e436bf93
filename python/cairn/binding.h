/*
 * The extension module `cairn._cairn`: library/cairn.h as Python objects, for Python 3.11 and all
 * later ones (the limited API). Nobody but the package `cairn` calls it: python/cairn/session.py
 * and python/cairn/stored.py say what people get.
 *
 * Thread: every call that may wait lets go of the GIL. An object's calls then take turns by a lock
 *         of its own, so that two threads of Python can't be in the library at once.
 * Errors: what the library refuses is raised as cairn.errors makes it: a class by the status, with
 *         the library's words.
 */
#pragma once

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "library/cairn.h"

/* Sets the exception of a status, with what the library said to this thread; returns NULL. */
PyObject *binding_raise(int status);
PyObject *binding_raise_words(int status, const char *why);

/* Reads a sequence of at most CAIRN_DIMS numbers; returns how many, or -1. */
int binding_dims(PyObject *sequence, uint64_t out[CAIRN_DIMS]);
/* Returns a new tuple of numbers. */
PyObject *binding_tuple(const uint64_t *numbers, uint32_t count);
/* Copies a name; -1: it is too long, or no text. */
int binding_name(PyObject *text, char out[CAIRN_NAME]);
