#include "checkpoint/s3/s3.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "checkpoint/s3/download.h"
#include "checkpoint/s3/listing.h"
#include "checkpoint/s3/pool.h"
#include "checkpoint/s3/quarantine.h"
#include "checkpoint/s3/remove.h"
#include "checkpoint/s3/upload.h"
#include "common/check.h"
#include "common/cleanup.h"

#define POOL_THREADS 8

/* An open file: exactly one of the two is not NULL. */
struct open_file {
    struct s3_upload *upload;
    struct s3_download *download;
};

struct s3 {
    struct s3_options options;
    struct s3_client *client;
    struct s3_pool *pool;
    pthread_mutex_t mutex; /* of files */
    struct open_file files[S3_FILES_MAX];
    atomic_bool removes_singly; /* the store knows no DeleteObjects */
    struct io io;
};

struct s3_options s3_defaults(void)
{
    return (struct s3_options){
        .client = s3_client_defaults(),
        .part_bytes = (size_t)8 << 20,
        .parts_max = 4,
        .block_bytes = (size_t)8 << 20,
        .blocks_max = 4,
        .page = 1000,
    };
}

size_t s3_write_bytes(uint64_t file_bytes)
{
    const struct s3_options o = s3_defaults();
    return (o.parts_max + 1) * s3_upload_part_bytes(o.part_bytes, file_bytes);
}

size_t s3_read_bytes(void)
{
    const struct s3_options o = s3_defaults();
    return o.blocks_max * o.block_bytes;
}

static enum status parse_path(struct s3 *s3, const char *path, struct s3_path *out)
{
    if (s3_path_parse(path, out))
        return ST_OK;
    s3_client_set_problem(s3->client, ST_CONFIG,
                          "%.300s is no place in S3: write s3://BUCKET/PREFIX", path);
    return ST_CONFIG;
}

/* ---- descriptors ---- */

static enum status add_file(struct s3 *s3, struct open_file file, int *out_fd)
{
    enum status st = ST_IO;
    CHECK(pthread_mutex_lock(&s3->mutex) == 0);
    for (int i = 0; i < S3_FILES_MAX && st != ST_OK; i++) {
        if (s3->files[i].upload == NULL && s3->files[i].download == NULL) {
            s3->files[i] = file;
            *out_fd = S3_FD_FIRST + i;
            st = ST_OK;
        }
    }
    (void)pthread_mutex_unlock(&s3->mutex);
    if (st != ST_OK) {
        s3_client_set_problem(s3->client, st,
                              "this process has %d files in S3 open, no more can be", S3_FILES_MAX);
    }
    return st;
}

static struct open_file get_file(struct s3 *s3, int fd)
{
    struct open_file file = { .upload = NULL };
    CHECK(pthread_mutex_lock(&s3->mutex) == 0);
    if (fd >= S3_FD_FIRST && fd < S3_FD_FIRST + S3_FILES_MAX)
        file = s3->files[fd - S3_FD_FIRST];
    (void)pthread_mutex_unlock(&s3->mutex);
    return file;
}

/* ---- files ---- */

static enum status open_to_write(struct s3 *s3, const struct s3_path *path, struct open_file *out)
{
    struct s3_object object;
    enum status st = s3_object_head(s3->client, &path->place, &object);
    if (st == ST_OK)
        return ST_EXISTS; /* known now rather than after the upload; that decides */
    if (st != ST_NOT_FOUND)
        return st;
    struct s3_upload_options options = { .client = s3->client,
                                         .pool = s3->pool,
                                         .part_bytes = s3->options.part_bytes,
                                         .parts_max = s3->options.parts_max };
    return s3_upload_new(&options, &path->place, &out->upload);
}

static enum status open_to_read(struct s3 *s3, const struct s3_path *path, struct open_file *out)
{
    struct s3_download_options options = { .client = s3->client,
                                           .pool = s3->pool,
                                           .block_bytes = s3->options.block_bytes,
                                           .blocks_max = s3->options.blocks_max };
    bool aside = path->meaning == S3_ASIDE_MANIFEST;
    return s3_download_new(&options, aside ? &path->marker : &path->place, &out->download);
}

static enum status release_file(struct open_file file)
{
    s3_upload_free(file.upload);
    s3_download_free(file.download);
    return ST_OK;
}

static enum status s3_open(void *self, const char *name, int flags, int *out_fd)
{
    struct s3 *s3 = self;
    struct s3_path path;
    struct open_file file = { .upload = NULL };
    enum status st = parse_path(s3, name, &path);
    if (st != ST_OK)
        return st;
    if ((flags & IO_CREATE_NEW) == 0) {
        st = open_to_read(s3, &path, &file);
    } else {
        st = path.meaning == S3_PLAIN ? open_to_write(s3, &path, &file) : ST_REFUSED;
    }
    if (st == ST_OK)
        st = add_file(s3, file, out_fd);
    if (st != ST_OK)
        (void)release_file(file);
    return st;
}

static enum status s3_close_fd(void *self, int fd)
{
    struct s3 *s3 = self;
    struct open_file file = get_file(s3, fd);
    if (file.upload == NULL && file.download == NULL)
        return ST_INVALID;
    CHECK(pthread_mutex_lock(&s3->mutex) == 0);
    s3->files[fd - S3_FD_FIRST] = (struct open_file){ .upload = NULL };
    (void)pthread_mutex_unlock(&s3->mutex);
    return release_file(file);
}

static enum status s3_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                            size_t *out_size)
{
    struct open_file file = get_file(self, fd);
    return file.download == NULL ? ST_INVALID
                                 : s3_download_read(file.download, data, size, at, out_size);
}

static enum status s3_pwrite(void *self, int fd, const void *data, size_t size, uint64_t at,
                             size_t *out_size)
{
    struct s3 *s3 = self;
    struct open_file file = get_file(s3, fd);
    if (file.upload == NULL || at != s3_upload_size(file.upload))
        return ST_INVALID;
    enum status st = s3_upload_write(file.upload, data, size);
    if (st == ST_OK)
        *out_size = size;
    return st;
}

static void s3_expect(void *self, int fd, uint64_t at, uint64_t end)
{
    struct open_file file = get_file(self, fd);
    if (file.download != NULL)
        s3_download_expect(file.download, at, end);
    if (file.upload != NULL)
        s3_upload_expect(file.upload, end);
}

static enum status s3_fsync(void *self, int fd)
{
    struct open_file file = get_file(self, fd);
    return file.upload == NULL ? ST_INVALID : s3_upload_finish(file.upload);
}

static enum status s3_unlink(void *self, const char *name)
{
    struct s3 *s3 = self;
    struct s3_path path;
    enum status st = parse_path(s3, name, &path);
    if (st == ST_OK)
        st = s3_object_delete(s3->client, &path.place);
    if (st == ST_OK && path.meaning == S3_ASIDE_MANIFEST)
        st = s3_object_delete(s3->client, &path.marker); /* last: X must not come back */
    return st;
}

/* Whatever the answer is, what isn't gone is unlinked alone, which says why it can't be; but where
 * the store is away, that would fail likewise. */
static enum status s3_unlink_many(void *self, const char *dir, const char *const *names,
                                  uint32_t count, bool *out_gone)
{
    struct s3 *s3 = self;
    struct s3_path path;
    enum status st = parse_path(s3, dir, &path);
    if (st != ST_OK || path.meaning == S3_ASIDE || atomic_load(&s3->removes_singly))
        return st; /* a manifest that was set aside is two objects, in this order (s3_unlink) */
    st = s3_remove_many(s3->client, &path.place, names, count, out_gone);
    if (st == ST_INVALID)
        atomic_store(&s3->removes_singly, true);
    return st == ST_INVALID || st == ST_REFUSED || st == ST_NOT_FOUND || st == ST_IO ? ST_OK : st;
}

static enum status s3_put_new(void *self, const char *name, const void *data, size_t size)
{
    struct s3 *s3 = self;
    struct s3_path path;
    enum status st = parse_path(s3, name, &path);
    if (st != ST_OK)
        return st;
    return path.meaning == S3_PLAIN ? s3_object_put_new(s3->client, &path.place, data, size)
                                    : ST_REFUSED;
}

/* An upload of one part, to be completed over the object that is there. */
static enum status s3_probe(void *self, const char *name)
{
    struct s3 *s3 = self;
    struct s3_path path;
    struct s3_multipart upload;
    char etag[1][S3_ETAG_MAX];
    enum status st = parse_path(s3, name, &path);
    if (st == ST_OK)
        st = s3_multipart_begin(s3->client, &path.place, &upload);
    if (st != ST_OK)
        return st;
    st = s3_multipart_part(s3->client, &upload, 1, "cairn parts\n", 12, etag[0]);
    if (st == ST_OK)
        st = s3_multipart_complete(s3->client, &upload, etag, 1, 12);
    if (st == ST_OK) {
        s3_client_set_problem(s3->client, ST_CONFIG,
                              "the store writes over files that are there: it ignores "
                              "If-None-Match of CompleteMultipartUpload");
        return ST_CONFIG;
    }
    struct reason why;
    s3_client_explain(s3->client, st, &why);
    s3_multipart_abort(s3->client, &upload);
    s3_client_set_problem(s3->client, st, "%s", why.text);
    return st == ST_EXISTS ? ST_OK : st;
}

/* ---- folders ---- */

static bool note_name(void *arg, const char *name, bool is_folder, uint64_t size)
{
    (void)name, (void)is_folder, (void)size;
    *(bool *)arg = true;
    return false;
}

static enum status stat_folder(struct s3 *s3, const struct s3_path *path, struct io_stat *out)
{
    struct s3_object marker;
    enum status st = ST_NOT_FOUND;
    if (path->meaning != S3_PLAIN)
        st = s3_object_head(s3->client, &path->marker, &marker);
    bool found = st == ST_OK && path->meaning == S3_ASIDE;
    if (st == ST_OK && path->meaning == S3_STEP)
        return ST_NOT_FOUND; /* the folder is called bad-X now */
    if (st != ST_OK && st != ST_NOT_FOUND)
        return st;
    if (path->meaning != S3_ASIDE) {
        st = s3_list(s3->client, &path->place, 1, note_name, &found);
        if (st != ST_OK)
            return st;
    }
    if (found)
        *out = (struct io_stat){ .is_dir = true };
    return found ? ST_OK : ST_NOT_FOUND;
}

static enum status s3_stat(void *self, const char *name, struct io_stat *out)
{
    struct s3 *s3 = self;
    struct s3_path path;
    struct s3_object object;
    enum status st = parse_path(s3, name, &path);
    if (st != ST_OK)
        return st;
    bool folder = path.meaning == S3_STEP || path.meaning == S3_ASIDE || path.place.key[0] == '\0';
    bool aside = path.meaning == S3_ASIDE_MANIFEST;
    st = folder ? ST_NOT_FOUND
                : s3_object_head(s3->client, aside ? &path.marker : &path.place, &object);
    if (st == ST_NOT_FOUND && !aside)
        return stat_folder(s3, &path, out);
    if (st == ST_OK)
        *out = (struct io_stat){ .size = object.size, .mtime_ms = object.modified_ms };
    return st;
}

/* Receiver of a list: of its names or of its files. */
struct taker {
    io_name_fn name;
    io_size_fn size;
    void *arg;
};

static bool take_name(void *arg, const char *name, bool is_folder, uint64_t size)
{
    const struct taker *to = arg;
    (void)is_folder, (void)size;
    return to->name(to->arg, name);
}

static bool take_size(void *arg, const char *name, bool is_folder, uint64_t size)
{
    const struct taker *to = arg;
    return is_folder || to->size(to->arg, name, size);
}

static enum status list_folder(struct s3 *s3, const char *name, s3_name_fn fn, void *arg)
{
    struct s3_path path;
    struct s3_listing listing;
    enum status st = parse_path(s3, name, &path);
    if (st != ST_OK)
        return st;
    st = s3_listing_read(s3->client, &path.place, s3->options.page, &listing);
    if (st == ST_OK)
        s3_listing_walk(&listing, path.meaning == S3_ASIDE, fn, arg);
    s3_listing_release(&listing);
    return st;
}

static enum status s3_list_names(void *self, const char *name, io_name_fn fn, void *arg)
{
    struct taker to = { .name = fn, .arg = arg };
    return list_folder(self, name, take_name, &to);
}

static enum status s3_list_sizes(void *self, const char *name, io_size_fn fn, void *arg)
{
    struct taker to = { .size = fn, .arg = arg };
    return list_folder(self, name, take_size, &to);
}

/* True if the key is in a folder of an earlier generation, whose workers are dead or no longer
 * listened to. */
static bool is_left_over(void *arg, const char *key)
{
    const uint64_t *generation = arg;
    char folder[S3_KEY_MAX];
    struct ckpt_folder_name name;
    (void)snprintf(folder, sizeof(folder), "%s", key);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    slash = strrchr(folder, '/');
    return ckpt_folder_parse(slash == NULL ? folder : slash + 1, &name) &&
           name.generation < *generation;
}

/* Parts that killed workers of the job have left; that it can't be done holds nothing up. */
static void sweep_parts(struct s3 *s3, const struct s3_place *folder)
{
    struct s3_place job = *folder;
    struct ckpt_folder_name name;
    char *slash = strrchr(job.key, '/');
    if (slash == NULL || !ckpt_folder_parse(slash + 1, &name))
        return;
    *slash = '\0';
    (void)!s3_multipart_sweep(s3->client, &job, s3->options.page, is_left_over, &name.generation);
}

/* A checkpoint that is set aside under this name would be mixed with the new one. */
static enum status s3_mkdir(void *self, const char *name)
{
    struct s3 *s3 = self;
    struct s3_path path;
    struct s3_object object;
    enum status st = parse_path(s3, name, &path);
    if (st != ST_OK || path.meaning == S3_PLAIN)
        return st;
    if (path.meaning != S3_STEP)
        return ST_REFUSED;
    sweep_parts(s3, &path.place);
    st = s3_object_head(s3->client, &path.marker, &object);
    if (st == ST_OK) {
        s3_client_set_problem(s3->client, ST_EXISTS,
                              "s3://%s/%.300s was set aside: remove it first", path.marker.bucket,
                              path.marker.key);
    }
    return st == ST_NOT_FOUND ? ST_OK : st == ST_OK ? ST_EXISTS : st;
}

/* The manifest's bytes; none if there is no manifest. */
static enum status read_manifest(struct s3 *s3, const struct s3_place *place, char **out,
                                 size_t *out_size)
{
    struct s3_object object;
    enum status st = s3_object_head(s3->client, place, &object);
    if (st == ST_NOT_FOUND)
        object.size = 0;
    if (st != ST_OK && st != ST_NOT_FOUND)
        return st;
    const size_t most = (size_t)LIMIT_MANIFEST_BYTES;
    const size_t size = object.size > most ? most : (size_t)object.size;
    auto_free char *bytes = malloc(size + 1);
    if (bytes == NULL)
        return ST_NO_MEMORY;
    if (size > 0)
        st = s3_object_read(s3->client, place, object.etag, 0, bytes, size);
    if (size > 0 && st != ST_OK)
        return st;
    *out = TAKE_PTR(bytes);
    *out_size = size;
    return ST_OK;
}

static enum status s3_rename(void *self, const char *from, const char *to)
{
    struct s3 *s3 = self;
    struct s3_path path, target;
    enum status st = parse_path(s3, from, &path);
    if (st == ST_OK)
        st = parse_path(s3, to, &target);
    if (st != ST_OK)
        return st;
    if (path.meaning != S3_STEP || target.meaning != S3_ASIDE ||
        strcmp(path.place.bucket, target.place.bucket) != 0 ||
        strcmp(path.place.key, target.place.key) != 0)
        return ST_REFUSED;
    struct s3_place manifest;
    if (!s3_place_join(&path.place, CKPT_MANIFEST, &manifest))
        return ST_INVALID;
    auto_free char *bytes = NULL;
    size_t size = 0;
    st = read_manifest(s3, &manifest, &bytes, &size);
    if (st == ST_OK)
        st = s3_object_put_new(s3->client, &path.marker, bytes, size);
    if (st == ST_EXISTS) /* of an attempt that was cut off */
        st = ST_OK;
    return st == ST_OK ? s3_object_delete(s3->client, &manifest) : st;
}

/* ---- what there is no need of, or no way to ---- */

static enum status s3_nothing(void *self, const char *path)
{
    (void)self, (void)path;
    return ST_OK;
}

static enum status s3_link(void *self, const char *from, const char *to)
{
    (void)self, (void)from, (void)to;
    return ST_REFUSED;
}

static bool s3_is_object(void *self, const char *path)
{
    (void)self;
    return strncmp(path, "s3://", 5) == 0;
}

static void s3_explain(void *self, enum status st, struct reason *out)
{
    struct s3 *s3 = self;
    s3_client_explain(s3->client, st, out);
}

/* ---- its life ---- */

enum status s3_new(const struct s3_options *options, struct s3 **out, struct reason *reason)
{
    struct s3 *s3 = calloc(1, sizeof(*s3));
    if (s3 == NULL)
        return ST_NO_MEMORY;
    s3->options = *options;
    enum status st = s3_client_new(&options->client, &s3->client, reason);
    if (st == ST_OK)
        st = s3_pool_new(POOL_THREADS, &s3->pool);
    if (st != ST_OK) {
        s3_client_free(s3->client);
        free(s3);
        return st;
    }
    CHECK(pthread_mutex_init(&s3->mutex, NULL) == 0);
    s3->io = (struct io){
        .self = s3,
        .open = s3_open,
        .close = s3_close_fd,
        .pread = s3_pread,
        .pwrite = s3_pwrite,
        .fsync = s3_fsync,
        .fsync_dir = s3_nothing,
        .mkdir = s3_mkdir,
        .link = s3_link,
        .rename = s3_rename,
        .unlink = s3_unlink,
        .rmdir = s3_nothing,
        .stat = s3_stat,
        .list = s3_list_names,
        .is_object = s3_is_object,
        .put_new = s3_put_new,
        .probe = s3_probe,
        .list_sizes = s3_list_sizes,
        .unlink_many = s3_unlink_many,
        .expect = s3_expect,
        .explain = s3_explain,
    };
    *out = s3;
    return ST_OK;
}

void s3_close(struct s3 *s3)
{
    s3_client_close(s3->client);
}

void s3_free(struct s3 *s3)
{
    if (s3 == NULL)
        return;
    for (size_t i = 0; i < S3_FILES_MAX; i++)
        (void)release_file(s3->files[i]);
    s3_pool_free(s3->pool);
    s3_client_free(s3->client);
    (void)pthread_mutex_destroy(&s3->mutex);
    free(s3);
}

enum status s3_ready(struct s3 *s3)
{
    return s3_client_ready(s3->client);
}

const struct io *s3_io(struct s3 *s3)
{
    return &s3->io;
}
