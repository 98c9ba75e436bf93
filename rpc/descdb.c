/*
 * The index is made by walking the wire format of those few fields of protobuf's descriptors
 * that matter here:
 *
 *     FileDescriptorSet     1 file
 *     FileDescriptorProto   1 name, 2 package, 3 dependency, 4 message, 5 enum, 6 service,
 *                           7 extension
 *     DescriptorProto       1 name, 2 field, 3 nested message, 4 nested enum
 *     ServiceDescriptor     1 name, 2 method
 *     MethodDescriptor      1 name, 5 client_streaming, 6 server_streaming
 */
#include "rpc/descdb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/core.h"

enum {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2,
    WIRE_FIXED32 = 5,
    NESTING_MAX = 32,
    SYMBOL_MAX = 512,
};

struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

struct wire_field {
    uint32_t number;
    uint32_t wire;
    uint64_t value;         /* WIRE_VARINT */
    struct rpc_bytes bytes; /* WIRE_BYTES */
};

struct symbol {
    char *name;
    size_t file;
    int flags; /* of a method */
};

struct file {
    char *name;
    struct rpc_bytes bytes;
};

struct rpc_descdb {
    struct file *files;
    size_t file_count;
    struct symbol *symbols;
    size_t symbol_count;
    size_t symbol_capacity;
};

static struct cursor cursor_of(struct rpc_bytes bytes)
{
    return (struct cursor){ bytes.data, bytes.data + bytes.size };
}

static bool read_varint(struct cursor *cursor, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool skip_bytes(struct cursor *cursor, size_t size)
{
    if ((size_t)(cursor->end - cursor->at) < size)
        return false;
    cursor->at += size;
    return true;
}

/* ST_CLOSED: the end. */
static enum status next_field(struct cursor *cursor, struct wire_field *out)
{
    if (cursor->at == cursor->end)
        return ST_CLOSED;
    uint64_t key = 0;
    uint64_t size = 0;
    if (!read_varint(cursor, &key))
        return ST_INVALID;
    *out = (struct wire_field){ .number = (uint32_t)(key >> 3), .wire = (uint32_t)(key & 7) };
    bool good = false;
    switch (out->wire) {
    case WIRE_VARINT:
        good = read_varint(cursor, &out->value);
        break;
    case WIRE_FIXED64:
        good = skip_bytes(cursor, 8);
        break;
    case WIRE_FIXED32:
        good = skip_bytes(cursor, 4);
        break;
    case WIRE_BYTES:
        good = read_varint(cursor, &size);
        out->bytes = (struct rpc_bytes){ cursor->at, (size_t)size };
        good = good && skip_bytes(cursor, (size_t)size);
        break;
    default:
        break;
    }
    return good ? ST_OK : ST_INVALID;
}

/* The first bytes field with this number; empty if there is none. */
static struct rpc_bytes find_bytes(struct rpc_bytes message, uint32_t number)
{
    struct cursor cursor = cursor_of(message);
    struct wire_field field;
    while (next_field(&cursor, &field) == ST_OK) {
        if (field.number == number && field.wire == WIRE_BYTES)
            return field.bytes;
    }
    return (struct rpc_bytes){ (const uint8_t *)"", 0 };
}

static char *join_names(const char *scope, struct rpc_bytes name)
{
    size_t capacity = strlen(scope) + name.size + 2;
    char *joined = rpc_alloc(capacity);
    (void)snprintf(joined, capacity, "%s%s%.*s", scope, scope[0] != '\0' ? "." : "", (int)name.size,
                   (const char *)name.data);
    return joined;
}

/* Returns the full name, which lives as long as the index. */
static const char *add_symbol(struct rpc_descdb *db, const char *scope, struct rpc_bytes name,
                              int flags)
{
    if (db->symbol_count == db->symbol_capacity) {
        db->symbol_capacity = db->symbol_capacity > 0 ? db->symbol_capacity * 2 : 64;
        db->symbols = realloc(db->symbols, db->symbol_capacity * sizeof(*db->symbols));
        if (db->symbols == NULL)
            abort();
    }
    struct symbol *symbol = &db->symbols[db->symbol_count++];
    *symbol = (struct symbol){ join_names(scope, name), db->file_count - 1, flags };
    return symbol->name;
}

static enum status add_message(struct rpc_descdb *db, const char *scope, struct rpc_bytes message,
                               int depth)
{
    if (depth > NESTING_MAX)
        return ST_INVALID;
    const char *full = add_symbol(db, scope, find_bytes(message, 1), 0);
    struct cursor cursor = cursor_of(message);
    struct wire_field field;
    enum status st;
    while ((st = next_field(&cursor, &field)) == ST_OK) {
        if (field.wire != WIRE_BYTES)
            continue;
        if (field.number == 2 || field.number == 4)
            (void)add_symbol(db, full, find_bytes(field.bytes, 1), 0);
        if (field.number == 3)
            st = add_message(db, full, field.bytes, depth + 1);
        if (st != ST_OK)
            return st;
    }
    return st == ST_CLOSED ? ST_OK : st;
}

static enum status method_flags(struct rpc_bytes method, int *out)
{
    struct cursor cursor = cursor_of(method);
    struct wire_field field;
    enum status st;
    int flags = 0;
    while ((st = next_field(&cursor, &field)) == ST_OK) {
        if (field.wire != WIRE_VARINT || field.value == 0)
            continue;
        if (field.number == 5)
            flags |= RPC_CLIENT_STREAMING;
        if (field.number == 6)
            flags |= RPC_SERVER_STREAMING;
    }
    if (st != ST_CLOSED)
        return st;
    *out = flags;
    return ST_OK;
}

static enum status add_service(struct rpc_descdb *db, const char *package, struct rpc_bytes service)
{
    const char *full = add_symbol(db, package, find_bytes(service, 1), 0);
    struct cursor cursor = cursor_of(service);
    struct wire_field field;
    enum status st;
    while ((st = next_field(&cursor, &field)) == ST_OK) {
        if (field.number != 2 || field.wire != WIRE_BYTES)
            continue;
        int flags = 0;
        st = method_flags(field.bytes, &flags);
        if (st != ST_OK)
            return st;
        (void)add_symbol(db, full, find_bytes(field.bytes, 1), flags);
    }
    return st == ST_CLOSED ? ST_OK : st;
}

static enum status add_file_fields(struct rpc_descdb *db, const char *package,
                                   struct rpc_bytes bytes)
{
    struct cursor cursor = cursor_of(bytes);
    struct wire_field field;
    enum status st;
    while ((st = next_field(&cursor, &field)) == ST_OK) {
        if (field.wire != WIRE_BYTES)
            continue;
        if (field.number == 4)
            st = add_message(db, package, field.bytes, 0);
        if (field.number == 6)
            st = add_service(db, package, field.bytes);
        if (field.number == 5 || field.number == 7)
            (void)add_symbol(db, package, find_bytes(field.bytes, 1), 0);
        if (st != ST_OK)
            return st;
    }
    return st == ST_CLOSED ? ST_OK : st;
}

static const struct file *find_file(const struct rpc_descdb *db, struct rpc_bytes name)
{
    for (size_t i = 0; i < db->file_count; i++) {
        const struct file *file = &db->files[i];
        if (strlen(file->name) == name.size && memcmp(file->name, name.data, name.size) == 0)
            return file;
    }
    return NULL;
}

static struct rpc_bytes text_bytes(const char *text)
{
    return (struct rpc_bytes){ (const uint8_t *)text, strlen(text) };
}

static enum status add_file(struct rpc_descdb *db, struct rpc_bytes bytes)
{
    struct rpc_bytes name = find_bytes(bytes, 1);
    if (find_file(db, name) != NULL)
        return ST_OK; /* several sets share their imports */
    db->files = realloc(db->files, (db->file_count + 1) * sizeof(*db->files));
    if (db->files == NULL)
        abort();
    db->files[db->file_count++] = (struct file){ join_names("", name), bytes };
    char *package = join_names("", find_bytes(bytes, 2));
    enum status st = add_file_fields(db, package, bytes);
    free(package);
    return st;
}

static int compare_symbols(const void *a, const void *b)
{
    return strcmp(((const struct symbol *)a)->name, ((const struct symbol *)b)->name);
}

struct rpc_descdb *rpc_descdb_new(void)
{
    return rpc_alloc(sizeof(struct rpc_descdb));
}

void rpc_descdb_free(struct rpc_descdb *db)
{
    if (db == NULL)
        return;
    for (size_t i = 0; i < db->file_count; i++)
        free(db->files[i].name);
    for (size_t i = 0; i < db->symbol_count; i++)
        free(db->symbols[i].name);
    free(db->files);
    free(db->symbols);
    free(db);
}

enum status rpc_descdb_add(struct rpc_descdb *db, const uint8_t *data, size_t size)
{
    struct cursor cursor = { data, data + size };
    struct wire_field field;
    enum status st;
    while ((st = next_field(&cursor, &field)) == ST_OK) {
        if (field.number == 1 && field.wire == WIRE_BYTES)
            st = add_file(db, field.bytes);
        if (st != ST_OK)
            return st;
    }
    if (st != ST_CLOSED)
        return st;
    if (db->symbol_count > 0)
        qsort(db->symbols, db->symbol_count, sizeof(*db->symbols), compare_symbols);
    return ST_OK;
}

static const struct symbol *find_symbol(const struct rpc_descdb *db, const char *name)
{
    size_t low = 0;
    size_t high = db->symbol_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(db->symbols[middle].name, name);
        if (order == 0)
            return &db->symbols[middle];
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

int rpc_descdb_method_flags(const struct rpc_descdb *db, const char *service, const char *method)
{
    char name[SYMBOL_MAX];
    int size = snprintf(name, sizeof(name), "%s.%s", service, method);
    if (size < 0 || (size_t)size >= sizeof(name))
        return -1;
    const struct symbol *symbol = find_symbol(db, name);
    return symbol != NULL ? symbol->flags : -1;
}

enum status rpc_descdb_file(const struct rpc_descdb *db, const char *name, struct rpc_bytes *out)
{
    const struct file *file = find_file(db, text_bytes(name));
    if (file == NULL)
        return ST_NOT_FOUND;
    *out = file->bytes;
    return ST_OK;
}

const char *rpc_descdb_symbol(const struct rpc_descdb *db, const char *symbol)
{
    const struct symbol *found = find_symbol(db, symbol);
    return found != NULL ? db->files[found->file].name : NULL;
}

struct visit {
    const struct rpc_descdb *db;
    bool *seen; /* per file */
    void (*fn)(void *arg, struct rpc_bytes file);
    void *arg;
};

/* Depth is bounded by the number of files, because each is entered once. */
static void visit_file(struct visit *visit, const struct file *file)
{
    if (file == NULL || visit->seen[file - visit->db->files])
        return;
    visit->seen[file - visit->db->files] = true;
    visit->fn(visit->arg, file->bytes);
    struct cursor cursor = cursor_of(file->bytes);
    struct wire_field field;
    while (next_field(&cursor, &field) == ST_OK) {
        if (field.number == 3 && field.wire == WIRE_BYTES)
            visit_file(visit, find_file(visit->db, field.bytes));
    }
}

void rpc_descdb_closure(const struct rpc_descdb *db, const char *name,
                        void (*fn)(void *arg, struct rpc_bytes file), void *arg)
{
    struct visit visit = { db, rpc_alloc(db->file_count * sizeof(bool)), fn, arg };
    visit_file(&visit, find_file(db, text_bytes(name)));
    free(visit.seen);
}
