/* A rank's connection: each method is a call of the library. */
#include "python/cairn/binding_connection.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "python/cairn/binding_stored.h"

struct connection {
    PyObject base;
    pthread_mutex_t turn;
    struct cairn *c;     /* owned */
    unsigned users;      /* calls that are in the library; the GIL guards it */
    bool closed;         /* no more calls; it ends with the last of them */
    size_t tensor_count; /* of the layout */
};

static PyObject *connection_type; /* the module has it, too */

/* Begins a call; false: an exception is set. */
static bool enter(struct connection *self)
{
    if (self->closed) {
        (void)binding_raise_words(CAIRN_CLOSED, "the session is closed");
        return false;
    }
    self->users++;
    return true;
}

static void leave(struct connection *self)
{
    self->users--;
    if (!self->closed || self->users > 0)
        return;
    struct cairn *c = self->c;
    self->c = NULL;
    PyThreadState *unlocked = PyEval_SaveThread();
    cairn_close(c);
    PyEval_RestoreThread(unlocked);
}

/* Runs `call`, which gives a status, in turn and without the GIL. */
#define IN_TURN(self, status, call)                                                                \
    do {                                                                                           \
        PyThreadState *unlocked = PyEval_SaveThread();                                             \
        (void)pthread_mutex_lock(&(self)->turn);                                                   \
        (status) = (call);                                                                         \
        (void)pthread_mutex_unlock(&(self)->turn);                                                 \
        PyEval_RestoreThread(unlocked);                                                            \
    } while (0)

/* None, or the exception of what failed. */
static PyObject *none(int status)
{
    if (status < 0)
        return binding_raise(status);
    Py_RETURN_NONE;
}

/* open(client, catch_sigterm): a new connection. */
static PyObject *connection_open(PyObject *type, PyObject *arguments)
{
    (void)type;
    const char *client = NULL;
    int catch_sigterm = 0;
    if (!PyArg_ParseTuple(arguments, "sp:open", &client, &catch_sigterm))
        return NULL;
    struct cairn_options options = { .client = client, .catch_sigterm = catch_sigterm };
    struct cairn *c = NULL;
    int status = CAIRN_INVALID;
    PyThreadState *unlocked = PyEval_SaveThread();
    status = cairn_open(&options, &c);
    PyEval_RestoreThread(unlocked);
    if (status != CAIRN_OK)
        return binding_raise(status);
    struct connection *self = PyObject_New(struct connection, (PyTypeObject *)connection_type);
    if (self == NULL) {
        cairn_close(c);
        return NULL;
    }
    (void)pthread_mutex_init(&self->turn, NULL);
    self->c = c;
    self->users = 0;
    self->closed = false;
    self->tensor_count = 0;
    return (PyObject *)self;
}

static PyObject *connection_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct connection *self = (struct connection *)object;
    if (!self->closed) {
        self->users++;
        self->closed = true;
        leave(self);
    }
    Py_RETURN_NONE;
}

static void connection_dealloc(PyObject *object)
{
    struct connection *self = (struct connection *)object;
    PyTypeObject *type = Py_TYPE(object);
    cairn_close(self->c);
    (void)pthread_mutex_destroy(&self->turn);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* info() -> (job, generation, rank, size, has_state, step, from_memory) */
static PyObject *connection_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct connection *self = (struct connection *)object;
    if (!enter(self))
        return NULL;
    struct cairn_info info = { 0 };
    cairn_info(self->c, &info);
    leave(self);
    return Py_BuildValue("sIIIIKI", info.job, info.generation, info.rank, info.size, info.has_state,
                         (unsigned long long)info.step, info.from_memory);
}

/* Reads (name, dtype, kind, flags, shape, start, extent); start None: the whole tensor. */
static int read_tensor(PyObject *item, struct cairn_tensor *out)
{
    PyObject *name = NULL;
    PyObject *shape = NULL;
    PyObject *start = NULL;
    PyObject *extent = NULL;
    unsigned dtype = 0;
    unsigned kind = 0;
    unsigned flags = 0;
    if (!PyArg_ParseTuple(item, "UIIIOOO:tensor", &name, &dtype, &kind, &flags, &shape, &start,
                          &extent) ||
        binding_name(name, out->name) != 0)
        return -1;
    int ndim = binding_dims(shape, out->shape);
    if (ndim < 0)
        return -1;
    out->dtype = dtype;
    out->kind = kind;
    out->flags = flags;
    out->ndim = (uint32_t)ndim;
    if (start == Py_None) {
        memcpy(out->extent, out->shape, sizeof(out->extent));
        return 0;
    }
    int starts = binding_dims(start, out->start);
    int extents = starts < 0 ? -1 : binding_dims(extent, out->extent);
    if (starts < 0 || extents < 0)
        return -1;
    if (starts == ndim && extents == ndim)
        return 0;
    PyErr_Format(PyExc_ValueError, "%U: its box has other dimensions than its shape", name);
    return -1;
}

/* layout(tensors, blob_bytes) */
static PyObject *connection_layout(PyObject *object, PyObject *arguments)
{
    struct connection *self = (struct connection *)object;
    PyObject *sequence = NULL;
    Py_ssize_t blob_bytes = 0;
    if (!PyArg_ParseTuple(arguments, "On:layout", &sequence, &blob_bytes))
        return NULL;
    Py_ssize_t count = PySequence_Size(sequence);
    if (count < 0)
        return NULL;
    if (count > CAIRN_TENSORS_MAX || blob_bytes < 0) {
        PyErr_Format(PyExc_ValueError, "%zd tensors; there can be %d", count, CAIRN_TENSORS_MAX);
        return NULL;
    }
    struct cairn_tensor *tensors = calloc((size_t)count + 1, sizeof(*tensors));
    if (tensors == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        int failed = item == NULL || read_tensor(item, &tensors[i]) != 0;
        Py_XDECREF(item);
        if (failed) {
            free(tensors);
            return NULL;
        }
    }
    int status = CAIRN_INVALID;
    if (!enter(self)) {
        free(tensors);
        return NULL;
    }
    IN_TURN(self, status, cairn_layout(self->c, tensors, (size_t)count, (size_t)blob_bytes));
    if (status == CAIRN_OK)
        self->tensor_count = (size_t)count;
    leave(self);
    free(tensors);
    return none(status);
}

/* ready(step, total_steps, steps_per_epoch) */
static PyObject *connection_ready(PyObject *object, PyObject *arguments)
{
    struct connection *self = (struct connection *)object;
    unsigned long long step = 0;
    unsigned long long total = 0;
    unsigned long long per_epoch = 0;
    if (!PyArg_ParseTuple(arguments, "KKK:ready", &step, &total, &per_epoch) || !enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_ready(self->c, step, total, per_epoch));
    leave(self);
    return none(status);
}

/* step(finished) -> enum cairn_due */
static PyObject *connection_step(PyObject *object, PyObject *number)
{
    struct connection *self = (struct connection *)object;
    uint64_t finished = PyLong_AsUnsignedLongLong(number);
    if (finished == UINT64_MAX && PyErr_Occurred() != NULL)
        return NULL;
    if (!enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_step(self->c, finished));
    leave(self);
    if (status < 0)
        return binding_raise(status);
    return PyLong_FromLong(status);
}

static PyObject *connection_beat(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct connection *self = (struct connection *)object;
    if (!enter(self))
        return NULL;
    cairn_beat(self->c);
    leave(self);
    Py_RETURN_NONE;
}

/* Begins a save with addresses, of which there are `size` bytes. */
static PyObject *save_begin(struct connection *self, uint64_t finished, const void *addresses,
                            size_t size)
{
    if (addresses != NULL && size != self->tensor_count * sizeof(void *))
        return binding_raise_words(CAIRN_INVALID, "another number of addresses than of tensors");
    if (!enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_save_begin(self->c, finished, addresses));
    leave(self);
    if (status == CAIRN_AGAIN)
        Py_RETURN_FALSE;
    if (status < 0)
        return binding_raise(status);
    Py_RETURN_TRUE;
}

/*
 * save_begin(finished, addresses) -> False: nothing to do. addresses: where each tensor is now, a
 * buffer of them (array("Q")) or a sequence of int; None: where it was.
 */
static PyObject *connection_save_begin(PyObject *object, PyObject *const *arguments,
                                       Py_ssize_t count)
{
    struct connection *self = (struct connection *)object;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "save_begin(finished, addresses)");
        return NULL;
    }
    uint64_t finished = PyLong_AsUnsignedLongLong(arguments[0]);
    if (finished == UINT64_MAX && PyErr_Occurred() != NULL)
        return NULL;
    if (arguments[1] == Py_None)
        return save_begin(self, finished, NULL, 0);
    if (PyObject_CheckBuffer(arguments[1])) {
        Py_buffer view;
        if (PyObject_GetBuffer(arguments[1], &view, PyBUF_C_CONTIGUOUS) != 0)
            return NULL;
        PyObject *done = save_begin(self, finished, view.buf, (size_t)view.len);
        PyBuffer_Release(&view);
        return done;
    }
    Py_ssize_t length = PySequence_Size(arguments[1]);
    if (length < 0)
        return NULL;
    uintptr_t *addresses = calloc((size_t)length + 1, sizeof(*addresses));
    if (addresses == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < length && PyErr_Occurred() == NULL; i++) {
        PyObject *item = PySequence_GetItem(arguments[1], i);
        addresses[i] = item == NULL ? 0 : (uintptr_t)PyLong_AsVoidPtr(item);
        Py_XDECREF(item);
    }
    PyObject *done = NULL;
    if (PyErr_Occurred() == NULL)
        done = save_begin(self, finished, addresses, (size_t)length * sizeof(*addresses));
    free(addresses);
    return done;
}

/* save_blob(name, bytes) */
static PyObject *connection_save_blob(PyObject *object, PyObject *arguments)
{
    struct connection *self = (struct connection *)object;
    const char *name = NULL;
    Py_buffer view;
    if (!PyArg_ParseTuple(arguments, "sy*:save_blob", &name, &view))
        return NULL;
    PyObject *done = NULL;
    if (enter(self)) {
        int status = CAIRN_INVALID;
        IN_TURN(self, status, cairn_save_blob(self->c, name, view.buf, (size_t)view.len));
        leave(self);
        done = none(status);
    }
    PyBuffer_Release(&view);
    return done;
}

static PyObject *connection_save_start(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct connection *self = (struct connection *)object;
    if (!enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_save_start(self->c));
    leave(self);
    return none(status);
}

static PyObject *connection_save_copied(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct connection *self = (struct connection *)object;
    if (!enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_save_copied(self->c));
    leave(self);
    return none(status);
}

static int cancel(struct cairn *c)
{
    cairn_save_cancel(c);
    return CAIRN_OK;
}

static PyObject *connection_save_cancel(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct connection *self = (struct connection *)object;
    if (!enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cancel(self->c));
    leave(self);
    return none(status);
}

/* finish(finished) */
static PyObject *connection_finish(PyObject *object, PyObject *number)
{
    struct connection *self = (struct connection *)object;
    uint64_t finished = PyLong_AsUnsignedLongLong(number);
    if ((finished == UINT64_MAX && PyErr_Occurred() != NULL) || !enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_finish(self->c, finished));
    leave(self);
    return none(status);
}

/* last(finished, reason) */
static PyObject *connection_last(PyObject *object, PyObject *arguments)
{
    struct connection *self = (struct connection *)object;
    unsigned long long finished = 0;
    const char *reason = NULL;
    if (!PyArg_ParseTuple(arguments, "Ks:last", &finished, &reason) || !enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_last(self->c, finished, reason));
    leave(self);
    return none(status);
}

/* want(leaves, grace_ms, reason) */
static PyObject *connection_want(PyObject *object, PyObject *arguments)
{
    struct connection *self = (struct connection *)object;
    int leaves = 0;
    unsigned long long grace_ms = 0;
    const char *reason = NULL;
    if (!PyArg_ParseTuple(arguments, "pKs:want", &leaves, &grace_ms, &reason) || !enter(self))
        return NULL;
    PyThreadState *unlocked = PyEval_SaveThread();
    cairn_want(self->c, leaves, grace_ms, reason);
    PyEval_RestoreThread(unlocked);
    leave(self);
    Py_RETURN_NONE;
}

#define NUMBERS_MAX 64

/* log(step, names, values) -> False: some names are unknown. Both are tuples. */
static PyObject *connection_log(PyObject *object, PyObject *arguments)
{
    struct connection *self = (struct connection *)object;
    unsigned long long step = 0;
    PyObject *names = NULL;
    PyObject *values = NULL;
    if (!PyArg_ParseTuple(arguments, "KO!O!:log", &step, &PyTuple_Type, &names, &PyTuple_Type,
                          &values))
        return NULL;
    Py_ssize_t count = PyTuple_Size(names);
    if (count != PyTuple_Size(values) || count > NUMBERS_MAX) {
        PyErr_SetString(PyExc_ValueError, "so many names as values, and at most 64");
        return NULL;
    }
    const char *texts[NUMBERS_MAX];
    double numbers[NUMBERS_MAX];
    for (Py_ssize_t i = 0; i < count; i++) {
        texts[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), NULL);
        numbers[i] = PyFloat_AsDouble(PyTuple_GetItem(values, i));
        if (PyErr_Occurred() != NULL)
            return NULL;
    }
    if (!enter(self))
        return NULL;
    int status = CAIRN_INVALID;
    PyThreadState *unlocked = PyEval_SaveThread();
    status = cairn_log(self->c, step, texts, numbers, (size_t)count);
    PyEval_RestoreThread(unlocked);
    leave(self);
    if (status == CAIRN_NOT_FOUND)
        Py_RETURN_FALSE;
    if (status < 0)
        return binding_raise(status);
    Py_RETURN_TRUE;
}

/* fail(message) */
static PyObject *connection_fail(PyObject *object, PyObject *text)
{
    struct connection *self = (struct connection *)object;
    const char *message = PyUnicode_AsUTF8AndSize(text, NULL);
    if (message == NULL || !enter(self))
        return NULL;
    PyThreadState *unlocked = PyEval_SaveThread();
    cairn_fail(self->c, message);
    PyEval_RestoreThread(unlocked);
    leave(self);
    Py_RETURN_NONE;
}

/* restore() -> Stored; None: there is no state. */
static PyObject *connection_restore(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct connection *self = (struct connection *)object;
    if (!enter(self))
        return NULL;
    struct cairn_state *state = NULL;
    int status = CAIRN_INVALID;
    IN_TURN(self, status, cairn_restore(self->c, &state));
    leave(self);
    if (status == CAIRN_NOT_FOUND)
        Py_RETURN_NONE;
    if (status < 0)
        return binding_raise(status);
    return binding_stored(state);
}

static PyMethodDef connection_methods[] = {
    { "close", connection_close, METH_NOARGS, "Ends the connection." },
    { "info", connection_info, METH_NOARGS,
      "(job, generation, rank, size, has_state, step, from_memory)" },
    { "layout", connection_layout, METH_VARARGS, "layout(tensors, blob_bytes)" },
    { "ready", connection_ready, METH_VARARGS, "ready(step, total_steps, steps_per_epoch)" },
    { "step", connection_step, METH_O, "step(finished): what is due" },
    { "beat", connection_beat, METH_NOARGS, "Notes that something goes on within a step." },
    { "save_begin", (PyCFunction)(void (*)(void))connection_save_begin, METH_FASTCALL,
      "save_begin(finished, addresses): False if there is nothing to do" },
    { "save_blob", connection_save_blob, METH_VARARGS, "save_blob(name, bytes)" },
    { "save_start", connection_save_start, METH_NOARGS, "Begins to copy." },
    { "save_copied", connection_save_copied, METH_NOARGS, "Waits until all is copied." },
    { "save_cancel", connection_save_cancel, METH_NOARGS, "Gives up what was begun." },
    { "finish", connection_finish, METH_O, "finish(finished): waits for the commit" },
    { "last", connection_last, METH_VARARGS, "last(finished, reason): waits for all ranks" },
    { "want", connection_want, METH_VARARGS, "want(leaves, grace_ms, reason)" },
    { "log", connection_log, METH_VARARGS, "log(step, names, values): False if some are unknown" },
    { "fail", connection_fail, METH_O, "fail(message)" },
    { "restore", connection_restore, METH_NOARGS, "A Stored, or None." },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot connection_slots[] = {
    { Py_tp_dealloc, connection_dealloc },
    { Py_tp_methods, connection_methods },
    { Py_tp_doc, "A rank's connection; cairn.Session has one." },
    { 0, NULL },
};

static PyType_Spec connection_spec = {
    .name = "cairn._cairn.Connection",
    .basicsize = sizeof(struct connection),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = connection_slots,
};

static PyMethodDef open_function = { "open", connection_open, METH_VARARGS,
                                     "open(client, catch_sigterm): a Connection" };

int binding_add_connection(PyObject *module)
{
    connection_type = PyType_FromSpec(&connection_spec);
    if (connection_type == NULL ||
        PyModule_AddObjectRef(module, "Connection", connection_type) != 0)
        return -1;
    PyObject *open = PyCFunction_NewEx(&open_function, NULL, NULL);
    int failed = open == NULL ? -1 : PyModule_AddObjectRef(module, "open", open);
    Py_XDECREF(open);
    return failed;
}
