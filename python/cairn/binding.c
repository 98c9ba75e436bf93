#include "python/cairn/binding.h"

#include <string.h>

#include "common/rng.h"

PyObject *binding_raise(int status, const char *why)
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

/* permute(seed, epoch, n, first, count): positions first … of the permutation of 0 … n-1. */
static PyObject *permute(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long seed = 0;
    unsigned long long epoch = 0;
    unsigned long long n = 0;
    unsigned long long first = 0;
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(arguments, "KKKKn:permute", &seed, &epoch, &n, &first, &count))
        return NULL;
    if (count < 0 || first > n || (unsigned long long)count > n - first) {
        PyErr_SetString(PyExc_ValueError, "positions beyond the permutation");
        return NULL;
    }
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        uint64_t index = rng_permute(seed, epoch, n, first + (uint64_t)i);
        PyObject *number = PyLong_FromUnsignedLongLong(index);
        if (number == NULL || PyList_SetItem(list, i, number) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *dtype_size(PyObject *module, PyObject *number)
{
    (void)module;
    long dtype = PyLong_AsLong(number);
    if (dtype == -1 && PyErr_Occurred() != NULL)
        return NULL;
    return PyLong_FromSize_t(dtype < 0 || dtype > 1000 ? 0 : cairn_dtype_size((int)dtype));
}

static PyMethodDef functions[] = {
        {"permute", permute, METH_VARARGS,
         "permute(seed, epoch, n, first, count): the order of samples that Cairn's own trainer has"},
        {"dtype_size", dtype_size, METH_O, "Bytes of an element; 0: no such dtype."},
        {"state_open", binding_state_open, METH_O, "Opens a checkpoint's folder: a Stored."},
        {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
        .m_base = PyModuleDef_HEAD_INIT,
        .m_name = "cairn._cairn",
        .m_doc = "The C library of Cairn; `import cairn` is for people.",
        .m_size = -1,
        .m_methods = functions,
};

PyMODINIT_FUNC PyInit__cairn(void);
PyMODINIT_FUNC PyInit__cairn(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (binding_add_connection(module) != 0 || binding_add_stored(module) != 0)
        Py_CLEAR(module);
    return module;
}
