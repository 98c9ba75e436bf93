/* The connection: made, ended, and lost in a forked child. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "library/client/internal.h"

_Atomic(struct cairn *) library_open_one;

/* This lock guards library_open_one: a fork waits until a connection is open or closed as a whole.
 */
static pthread_mutex_t one_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* ---- fork ---- */

static void before_fork(void)
{
    (void)pthread_mutex_lock(&one_lock);
}

static void after_fork(void)
{
    (void)pthread_mutex_unlock(&one_lock);
}

/* The child's: it ends by SIGTERM as it would have, and the socket is its parent's alone. */
static void after_fork_in_child(void)
{
    struct cairn *c = atomic_exchange(&library_open_one, NULL);
    (void)pthread_mutex_unlock(&one_lock);
    if (c == NULL)
        return;
    atomic_store(&c->forked, true);
    atomic_store(&c->ready, false);
    if (c->catches)
        (void)library_release_signal();
    (void)close(c->fd);
    c->fd = -1;
}

static void handle_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* ---- open ---- */

static int connect_to(const char *name, int fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const size_t size = strlen(name);
    if (name[0] != '@' || size < 2 || size > sizeof(address.sun_path))
        return library_say(CAIRN_INVALID, WIRE_SOCKET_ENV " is not the name of a socket");
    memcpy(address.sun_path + 1, name + 1, size - 1);
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
    while (connect(fd, (struct sockaddr *)&address, bytes) != 0) {
        if (errno != EINTR)
            return library_say(CAIRN_CLOSED, "the worker that started this program is gone");
    }
    struct ucred peer = { .uid = (uid_t)-1 };
    socklen_t room = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &room) != 0 || peer.uid != geteuid())
        return library_say(CAIRN_REFUSED, "the socket that is named is another account's");
    return CAIRN_OK;
}

static bool is_text(const char *text, size_t room)
{
    return memchr(text, '\0', room) != NULL;
}

/* Keeps what the worker said, if it is sound. */
static int take_welcome(struct cairn *c, char *bytes, size_t size)
{
    struct wire_welcome it;
    if (size < sizeof(it))
        return library_say(CAIRN_CLOSED, "the worker's welcome is too short");
    memcpy(&it, bytes, sizeof(it));
    if (it.version != WIRE_VERSION) {
        return library_say(CAIRN_OTHER_VERSION, "the worker speaks version %u, this library %u",
                           it.version, WIRE_VERSION);
    }
    const char *path = bytes + sizeof(it), *end = bytes + size;
    uint32_t paths = 0;
    for (; path < end && is_text(path, (size_t)(end - path)); paths++)
        path += strlen(path) + 1;
    const uint32_t wanted = it.source == WIRE_MEMORY       ? it.memory_size
                            : it.source == WIRE_CHECKPOINT ? 1
                                                           : 0;
    if (path != end || paths != it.paths || paths != wanted || it.source > WIRE_CHECKPOINT ||
        it.size == 0 || it.size > LIMIT_RANKS || it.rank >= it.size || it.processes == 0 ||
        it.size % it.processes != 0 || it.memory_size > LIMIT_RANKS ||
        !is_text(it.job, sizeof(it.job)))
        return library_say(CAIRN_CLOSED, "the worker's welcome makes no sense");
    memcpy(c->info.job, it.job, strlen(it.job));
    c->info.generation = it.generation;
    c->info.rank = it.rank;
    c->info.size = it.size;
    c->info.has_state = it.source != WIRE_NOTHING;
    c->info.from_memory = it.source == WIRE_MEMORY;
    c->info.step = it.source != WIRE_NOTHING ? it.step : 0;
    c->source = it.source;
    c->path_count = paths;
    c->processes = it.processes;
    c->paths = bytes + sizeof(it);
    return CAIRN_OK;
}

static int map_page(struct cairn *c, int fd)
{
    struct stat about;
    void *memory = MAP_FAILED;
    if (fstat(fd, &about) == 0 && about.st_size >= (off_t)WIRE_PAGE_BYTES)
        memory = mmap(NULL, WIRE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (memory == MAP_FAILED)
        return library_say(CAIRN_CLOSED, "the worker's page can't be mapped");
    c->page = memory;
    return CAIRN_OK;
}

static int greet(struct cairn *c, const struct cairn_options *options)
{
    struct wire_hello hello = { .version = WIRE_VERSION, .pid = (uint32_t)getpid() };
    const char *client =
        options != NULL && options->client != NULL ? options->client : "libcairn " CAIRN_VERSION;
    memcpy(hello.client, client, strnlen(client, sizeof(hello.client) - 1));
    int fd = -1;
    struct library_answer answer = { .size = (size_t)WIRE_BYTES_MAX, .any = true, .fd = &fd };
    int status = library_ask(c, WIRE_HELLO, &hello, sizeof(hello), &answer);
    if (status != CAIRN_OK)
        return status;
    c->welcome = answer.bytes;
    status = take_welcome(c, answer.bytes, answer.size);
    if (status != CAIRN_OK) {
        (void)close(fd);
        return status;
    }
    return map_page(c, fd);
}

static void release(struct cairn *c)
{
    library_maps_close(c);
    if (c->page != NULL)
        (void)munmap(c->page, WIRE_PAGE_BYTES);
    if (c->fd >= 0)
        (void)close(c->fd);
    free(c->welcome);
    free(c->layout.entries);
    free(c->layout.data);
    free(c->layout.flags);
    for (uint32_t i = 0; i < PLACE_BUFFERS; i++)
        free(c->layout.in[i].tensors);
    layout_places_release(&c->layout.places);
    free(c);
}

static void init_waits(struct cairn *c)
{
    (void)pthread_mutex_init(&c->wire, NULL);
    (void)pthread_mutex_init(&c->lock, NULL);
    clock_cond_init(&c->changed);
    (void)sem_init(&c->wake, 0, 0);
}

static void end_waits(struct cairn *c)
{
    (void)pthread_mutex_destroy(&c->wire);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_cond_destroy(&c->changed);
    (void)sem_destroy(&c->wake);
}

/* Under one_lock. */
static int open_it(const char *name, const struct cairn_options *options, struct cairn **out)
{
    if (atomic_load(&library_open_one) != NULL)
        return library_say(CAIRN_REFUSED, "this process is connected already");
    struct cairn *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return library_say(CAIRN_NO_MEMORY, "no memory for a connection");
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    init_waits(c);
    int status = c->fd >= 0 ? connect_to(name, c->fd)
                            : library_say(CAIRN_IO, "no socket: %s", strerror(errno));
    if (status == CAIRN_OK)
        status = greet(c, options);
    if (status == CAIRN_OK && options != NULL && options->catch_sigterm != 0)
        library_catch(c);
    if (status == CAIRN_OK)
        status = library_thread_start(c);
    if (status != CAIRN_OK) {
        if (c->catches)
            (void)library_release_signal();
        end_waits(c);
        release(c);
        return status;
    }
    atomic_store(&library_open_one, c);
    *out = c;
    return CAIRN_OK;
}

int cairn_open(const struct cairn_options *options, struct cairn **out)
{
    const char *name = getenv(WIRE_SOCKET_ENV);
    if (name == NULL || name[0] == '\0')
        return library_say(CAIRN_NOT_FOUND, "this process was not started by Cairn");
    (void)pthread_once(&fork_once, handle_forks);
    (void)pthread_mutex_lock(&one_lock);
    const int status = open_it(name, options, out);
    (void)pthread_mutex_unlock(&one_lock);
    return status;
}

void cairn_close(struct cairn *c)
{
    if (c == NULL)
        return;
    if (atomic_load(&c->forked)) {
        release(c); /* locks, the semaphore and the thread are the parent's */
        return;
    }
    (void)pthread_mutex_lock(&one_lock);
    if (c->catches)
        (void)library_release_signal();
    atomic_store(&library_open_one, NULL);
    library_thread_end(c);
    end_waits(c);
    release(c);
    (void)pthread_mutex_unlock(&one_lock);
}

const char *cairn_why(const struct cairn *c)
{
    (void)c;
    return library_why();
}

void cairn_info(const struct cairn *c, struct cairn_info *out)
{
    *out = c->info;
}
