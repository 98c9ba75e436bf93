/* The module: its functions and types. */
#include "common/rng.h"
#include "python/cairn/binding.h"
#include "python/cairn/binding_connection.h"
#include "python/cairn/binding_stored.h"

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
    { "permute", permute, METH_VARARGS,
      "permute(seed, epoch, n, first, count): the order of samples that Cairn's own trainer has" },
    { "dtype_size", dtype_size, METH_O, "Bytes of an element; 0: no such dtype." },
    { "state_open", binding_state_open, METH_O, "Opens a checkpoint's folder: a Stored." },
    { NULL, NULL, 0, NULL },
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
