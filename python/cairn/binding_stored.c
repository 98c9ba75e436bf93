/* A stored state: its tensors by number, read into memory that Python has. */
#include "python/cairn/binding_stored.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

struct stored {
    PyObject base;
    pthread_mutex_t turn;
    struct cairn_state *state; /* owned */
};

static PyObject *stored_type; /* the module has it, too */

PyObject *binding_stored(struct cairn_state *state)
{
    struct stored *self = PyObject_New(struct stored, (PyTypeObject *)stored_type);
    if (self == NULL) {
        cairn_state_close(state);
        return NULL;
    }
    (void)pthread_mutex_init(&self->turn, NULL);
    self->state = state;
    return (PyObject *)self;
}

PyObject *binding_state_open(PyObject *module, PyObject *path)
{
    (void)module;
    PyObject *bytes = NULL;
    if (!PyUnicode_FSConverter(path, &bytes))
        return NULL;
    const char *text = PyBytes_AsString(bytes);
    struct cairn_state *state = NULL;
    int status = CAIRN_INVALID;
    PyThreadState *unlocked = PyEval_SaveThread();
    status = cairn_state_open(text, &state);
    PyEval_RestoreThread(unlocked);
    Py_DECREF(bytes);
    if (status != CAIRN_OK)
        return binding_raise(status);
    return binding_stored(state);
}

static void stored_dealloc(PyObject *object)
{
    struct stored *self = (struct stored *)object;
    PyTypeObject *type = Py_TYPE(object);
    cairn_state_close(self->state);
    (void)pthread_mutex_destroy(&self->turn);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* info() -> (job, step, ranks, tensors, blobs) */
static PyObject *stored_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct cairn_state_info info = { 0 };
    cairn_state_info(((struct stored *)object)->state, &info);
    return Py_BuildValue("sKIKK", info.job, (unsigned long long)info.step, info.ranks,
                         (unsigned long long)info.tensors, (unsigned long long)info.blobs);
}

static PyObject *stored_tensor(PyObject *object, PyObject *number)
{
    uint64_t i = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred() != NULL)
        return NULL;
    struct cairn_tensor tensor = { 0 };
    uint32_t rank = 0;
    int status = cairn_state_tensor(((struct stored *)object)->state, i, &tensor, &rank);
    if (status != CAIRN_OK)
        return binding_raise(status);
    return Py_BuildValue(
        "sIINNNI", tensor.name, tensor.dtype, tensor.kind, binding_tuple(tensor.shape, tensor.ndim),
        binding_tuple(tensor.start, tensor.ndim), binding_tuple(tensor.extent, tensor.ndim), rank);
}

static PyObject *stored_blob(PyObject *object, PyObject *number)
{
    uint64_t i = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred() != NULL)
        return NULL;
    char name[CAIRN_NAME] = "";
    uint64_t size = 0;
    uint32_t rank = 0;
    int status = cairn_state_blob(((struct stored *)object)->state, i, name, &size, &rank);
    if (status != CAIRN_OK)
        return binding_raise(status);
    return Py_BuildValue("sKI", name, (unsigned long long)size, rank);
}

struct wanted {
    struct cairn_tensor tensor;
    uint64_t start[CAIRN_DIMS], extent[CAIRN_DIMS];
    bool box;
};

/* Fills in what is read of tensor number i, and its bytes; -1: an exception is set. */
static int want(struct stored *self, unsigned long long i, PyObject *start, PyObject *extent,
                struct wanted *out, uint64_t *out_bytes)
{
    uint32_t rank = 0;
    int status = cairn_state_tensor(self->state, i, &out->tensor, &rank);
    if (status != CAIRN_OK) {
        (void)binding_raise(status);
        return -1;
    }
    out->box = start != Py_None;
    uint64_t bytes = cairn_dtype_size((int)out->tensor.dtype);
    const uint64_t *extents = out->tensor.shape;
    if (out->box) {
        int starts = binding_dims(start, out->start);
        int ends = starts < 0 ? -1 : binding_dims(extent, out->extent);
        if (starts < 0 || ends < 0)
            return -1;
        if ((uint32_t)starts != out->tensor.ndim || ends != starts) {
            PyErr_Format(PyExc_ValueError, "%s has %u dimensions", out->tensor.name,
                         out->tensor.ndim);
            return -1;
        }
        extents = out->extent;
    }
    for (uint32_t d = 0; d < out->tensor.ndim; d++) {
        if (__builtin_mul_overflow(bytes, extents[d], &bytes)) {
            PyErr_SetString(PyExc_ValueError, "a box beyond 64 bits");
            return -1;
        }
    }
    *out_bytes = bytes;
    return 0;
}

static PyObject *read_into(struct stored *self, const struct wanted *wanted, unsigned rank,
                           void *out)
{
    int status = CAIRN_INVALID;
    PyThreadState *unlocked = PyEval_SaveThread();
    (void)pthread_mutex_lock(&self->turn);
    status =
        cairn_state_read(self->state, wanted->tensor.name, rank, wanted->box ? wanted->start : NULL,
                         wanted->box ? wanted->extent : NULL, out);
    (void)pthread_mutex_unlock(&self->turn);
    PyEval_RestoreThread(unlocked);
    if (status != CAIRN_OK)
        return binding_raise(status);
    Py_RETURN_NONE;
}

/*
 * read(number, rank, start, extent, target[, bytes]): a box of the tensor of that number (None,
 * None: all of it) into target, a writable buffer, or the address of so many bytes.
 */
static PyObject *stored_read(PyObject *object, PyObject *arguments)
{
    struct stored *self = (struct stored *)object;
    unsigned long long i = 0;
    unsigned rank = 0;
    PyObject *start = NULL;
    PyObject *extent = NULL;
    PyObject *target = NULL;
    unsigned long long room = 0;
    if (!PyArg_ParseTuple(arguments, "KIOOO|K:read", &i, &rank, &start, &extent, &target, &room))
        return NULL;
    struct wanted wanted;
    uint64_t bytes = 0;
    if (want(self, i, start, extent, &wanted, &bytes) != 0)
        return NULL;
    Py_buffer view;
    bool buffer = !PyLong_Check(target);
    void *out = NULL;
    if (buffer) {
        if (PyObject_GetBuffer(target, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0)
            return NULL;
        out = view.buf;
        room = (unsigned long long)view.len;
    } else {
        out = PyLong_AsVoidPtr(target);
        if (PyErr_Occurred() != NULL)
            return NULL;
    }
    PyObject *done = NULL;
    if (room != bytes)
        PyErr_Format(PyExc_ValueError, "%s: room for %llu bytes; the box has %llu",
                     wanted.tensor.name, room, (unsigned long long)bytes);
    else
        done = read_into(self, &wanted, rank, out);
    if (buffer)
        PyBuffer_Release(&view);
    return done;
}

/* read_blob(name, rank, size) -> bytes */
static PyObject *stored_read_blob(PyObject *object, PyObject *arguments)
{
    struct stored *self = (struct stored *)object;
    const char *name = NULL;
    unsigned rank = 0;
    Py_ssize_t size = 0;
    if (!PyArg_ParseTuple(arguments, "sIn:read_blob", &name, &rank, &size))
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes == NULL)
        return NULL;
    char *out = PyBytes_AsString(bytes);
    int status = CAIRN_INVALID;
    PyThreadState *unlocked = PyEval_SaveThread();
    (void)pthread_mutex_lock(&self->turn);
    status = cairn_state_read_blob(self->state, name, rank, out, (size_t)size);
    (void)pthread_mutex_unlock(&self->turn);
    PyEval_RestoreThread(unlocked);
    if (status == CAIRN_OK)
        return bytes;
    Py_DECREF(bytes);
    return binding_raise(status);
}

static PyMethodDef stored_methods[] = {
    { "info", stored_info, METH_NOARGS, "(job, step, ranks, tensors, blobs)" },
    { "tensor", stored_tensor, METH_O, "(name, dtype, kind, shape, start, extent, rank)" },
    { "blob", stored_blob, METH_O, "(name, size, rank)" },
    { "read", stored_read, METH_VARARGS, "read(number, rank, start, extent, target[, bytes])" },
    { "read_blob", stored_read_blob, METH_VARARGS, "read_blob(name, rank, size): bytes" },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot stored_slots[] = {
    { Py_tp_dealloc, stored_dealloc },
    { Py_tp_methods, stored_methods },
    { Py_tp_doc, "A stored state; cairn.load and Session.restore make it." },
    { 0, NULL },
};

static PyType_Spec stored_spec = {
    .name = "cairn._cairn.Stored",
    .basicsize = sizeof(struct stored),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = stored_slots,
};

int binding_add_stored(PyObject *module)
{
    stored_type = PyType_FromSpec(&stored_spec);
    return stored_type == NULL ? -1 : PyModule_AddObjectRef(module, "Stored", stored_type);
}
