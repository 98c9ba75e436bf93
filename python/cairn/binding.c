#include "python/cairn/binding.h"

#include <string.h>

PyObject *binding_raise_words(int status, const char *why)
{
    PyObject *errors = PyImport_ImportModule("cairn.errors");
    if (errors == NULL)
        return NULL;
    PyObject *error = PyObject_CallMethod(errors, "of", "is", status, why);
    Py_DECREF(errors);
    if (error == NULL)
        return NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

PyObject *binding_raise(int status)
{
    return binding_raise_words(status, cairn_why(NULL));
}

int binding_dims(PyObject *sequence, uint64_t out[CAIRN_DIMS])
{
    Py_ssize_t count = PySequence_Size(sequence);
    if (count < 0)
        return -1;
    if (count > CAIRN_DIMS) {
        PyErr_Format(PyExc_ValueError, "%zd dimensions; there can be %d", count, CAIRN_DIMS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        if (item == NULL)
            return -1;
        out[i] = PyLong_AsUnsignedLongLong(item);
        Py_DECREF(item);
        if (PyErr_Occurred() != NULL)
            return -1;
    }
    return (int)count;
}

PyObject *binding_tuple(const uint64_t *numbers, uint32_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    if (tuple == NULL)
        return NULL;
    for (uint32_t i = 0; i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) != 0) {
            Py_DECREF(tuple);
            return NULL;
        }
    }
    return tuple;
}

int binding_name(PyObject *text, char out[CAIRN_NAME])
{
    Py_ssize_t size = 0;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (bytes == NULL)
        return -1;
    if (size >= CAIRN_NAME || memchr(bytes, 0, (size_t)size) != NULL) {
        PyErr_Format(PyExc_ValueError, "%R is no name: at most %d bytes, none of them zero", text,
                     CAIRN_NAME - 1);
        return -1;
    }
    memset(out, 0, CAIRN_NAME);
    memcpy(out, bytes, (size_t)size);
    return 0;
}
