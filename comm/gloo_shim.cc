/*
 *     new -> connecting   [gloo_mesh_new]         then [gloo_mesh_connect] for each peer
 *     connecting -> on    [gloo_mesh_start]       the watcher waits; then [gloo_mesh_post, _wait]
 *     any -> failed       [mesh_fail]             an error, or a dead peer: all pairs are closed
 *     any -> aborted      [gloo_mesh_abort]       a call that waits is freed, and fails
 *     any -> closed       [gloo_mesh_close]
 *
 * Invariants
 *  1. flights holds exactly those that were posted and not yet waited for; they stay in the cache.
 *     It is changed by the communicating thread only, holding the mutex, and others read it holding
 *     the mutex. So abort never meets a buffer that is being destroyed.
 *  2. Gloo's abort marks stick to a buffer until its next wait: an abort between posting and
 *     waiting is not lost. Afterwards the mesh is useless, so a mark that stays behind does no
 *     harm.
 *  3. When a post or a wait returns an error, all pairs are closed, and Gloo's own thread has
 *     ticked since: no buffer of any flight is read or written any more.
 *  4. Each pair has two receptions under WATCH_TAG that no peer ever answers: one into alarm, on
 *     which the watcher waits for all peers at once, and one into its own canary, which tells whose
 *     pair failed.
 *  5. Gloo counts what is through per buffer, not per tag: so a buffer is in one flight at a time.
 */
#include "comm/gloo_shim.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <vector>

#include "comm/sockets.h"

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;
using steady = std::chrono::steady_clock;

namespace {

constexpr uint64_t WATCH_TAG = UINT64_MAX;
constexpr size_t CACHE_MAX = 65536; /* handles; a step uses a few per bucket and peer */

using transfer_key = std::tuple<void *, size_t, int, bool>;

/* Gloo's words for a failure that this side brought about itself, in two places. */
bool is_own_timeout(const char *what)
{
    return strstr(what, "Timed out waiting") != nullptr;
}

bool is_echo(const char *what)
{
    return is_own_timeout(what) || strstr(what, "Application timeout") != nullptr;
}

} /* namespace */

struct gloo_flight {
    std::unique_ptr<UnboundBuffer> buffer;
    int peer = -1;
    bool is_send = false;
    bool posted = false; /* the transfer is in flights, at: */
    size_t at = 0;
};

struct gloo_mesh {
    int rank = 0;
    int size = 0;
    std::vector<int> names; /* [size] */
    milliseconds timeout{ 0 };
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::transport::Context> context;
    std::map<transfer_key, gloo_flight> cache;

    char byte = 0;
    std::unique_ptr<UnboundBuffer> alarm;
    std::vector<std::unique_ptr<UnboundBuffer>> canaries;
    std::thread watcher;

    std::mutex mutex; /* of all below */
    std::condition_variable changed;
    std::vector<gloo_flight *> flights;
    bool aborted = false;
    bool lost = false; /* the watcher has come to its end because a pair failed */
    int lost_peer = -1;
    std::string lost_why;

    enum status failed = ST_OK; /* the communicating thread's own, as are the next two */
    int blamed = -1;
    std::string why;
};

namespace {

void free_waiter(struct gloo_mesh *mesh)
{
    for (const gloo_flight *f : mesh->flights) {
        if (f->is_send)
            f->buffer->abortWaitSend();
        else
            f->buffer->abortWaitRecv();
    }
}

bool is_connected(struct gloo_mesh *mesh, int peer)
{
    return peer != mesh->rank && mesh->context->getPair(peer) != nullptr;
}

/* Finds the peer whose pair failed. Probing a healthy pair closes it, so this is done only when the
 * mesh has failed anyway. */
void find_lost_peer(struct gloo_mesh *mesh, int *out_peer, std::string *out_why)
{
    int found = 0;
    for (int peer = 0; peer < mesh->size; peer++) {
        if (!is_connected(mesh, peer))
            continue;
        try {
            (void)mesh->canaries[static_cast<size_t>(peer)]->waitRecv(nullptr, milliseconds(0));
        } catch (const std::exception &e) {
            if (is_echo(e.what()))
                continue;
            found++;
            *out_peer = found == 1 ? peer : -1;
            if (found == 1)
                *out_why = e.what();
        }
    }
}

void mesh_watch(struct gloo_mesh *mesh)
{
    try {
        if (!mesh->alarm->waitRecv(nullptr, std::chrono::hours(24 * 365)))
            return; /* closing */
    } catch (...) {
        /* a pair failed: below */
    }
    int peer = -1;
    std::string why = "a connection was closed";
    try {
        find_lost_peer(mesh, &peer, &why);
    } catch (...) {
        peer = -1;
    }
    std::lock_guard<std::mutex> lock(mesh->mutex);
    mesh->lost = true;
    mesh->lost_peer = peer;
    mesh->lost_why = why;
    free_waiter(mesh);
    mesh->changed.notify_all();
}

/* Ends the mesh on this side; on return Gloo's thread holds none of our buffers (invariant 3). */
void close_pairs(struct gloo_mesh *mesh) noexcept
{
    for (int peer = 0; peer < mesh->size; peer++) {
        try {
            if (is_connected(mesh, peer))
                mesh->context->getPair(peer)->close();
        } catch (...) {
            /* closed already */
        }
    }
}

/* blamed: a peer, or -1. */
enum status mesh_fail(struct gloo_mesh *mesh, enum status st, int blamed, const std::string &why)
{
    close_pairs(mesh);
    std::lock_guard<std::mutex> lock(mesh->mutex);
    for (gloo_flight *f : mesh->flights)
        f->posted = false;
    mesh->flights.clear();
    mesh->failed = mesh->aborted ? ST_STALE : st;
    mesh->blamed = mesh->aborted || blamed < 0 ? -1 : mesh->names[static_cast<size_t>(blamed)];
    mesh->why = mesh->aborted ? "aborted" : why;
    return mesh->failed;
}

/* The watcher saw a peer go, or closed the pairs while finding out which: ask it. */
enum status fail_as_watched(struct gloo_mesh *mesh)
{
    int blamed = -1;
    std::string why = "a connection was closed";
    {
        std::unique_lock<std::mutex> lock(mesh->mutex);
        mesh->changed.wait_for(lock, milliseconds(1000),
                               [&] { return mesh->lost || mesh->aborted; });
        if (mesh->lost) {
            blamed = mesh->lost_peer;
            why = mesh->lost_why;
        }
    }
    return mesh_fail(mesh, ST_PEER, blamed, why);
}

enum status fail_at(struct gloo_mesh *mesh, int peer, const char *what)
{
    if (is_echo(what) && !is_own_timeout(what))
        return fail_as_watched(mesh);
    const std::string name = std::to_string(mesh->names[static_cast<size_t>(peer)]);
    return mesh_fail(mesh, ST_PEER, peer, "rank " + name + ": " + what);
}

void forget_old_flights(struct gloo_mesh *mesh)
{
    for (auto it = mesh->cache.begin(); it != mesh->cache.end();)
        it = it->second.posted ? std::next(it) : mesh->cache.erase(it);
}

gloo_flight *flight_of(struct gloo_mesh *mesh, const struct gloo_transfer &t)
{
    const transfer_key key(t.data, t.size, t.peer, t.is_send);
    const auto it = mesh->cache.find(key);
    if (it != mesh->cache.end())
        return &it->second;
    if (mesh->cache.size() >= CACHE_MAX)
        forget_old_flights(mesh);
    gloo_flight flight;
    flight.buffer = mesh->context->createUnboundBuffer(t.data, t.size);
    flight.peer = t.peer;
    flight.is_send = t.is_send;
    return &mesh->cache.emplace(key, std::move(flight)).first->second;
}

/* While an object lives, this thread's listeners accept only connections that end() hands in. */
class stage {
  public:
    stage()
    {
        sockets_stage_begin();
    }
    ~stage()
    {
        (void)end();
        if (end_ >= 0)
            (void)close(end_);
    }
    stage(const stage &) = delete;
    stage &operator=(const stage &) = delete;
    int end()
    {
        if (on_)
            end_ = sockets_stage_end();
        on_ = false;
        return end_;
    }

  private:
    bool on_ = true;
    int end_ = -1;
};

/*
 * Gloo's thread accepts, closes its listener, and then goes on to make a pair of it. It holds the
 * pair's lock, for which every user of the pair waits: so the pair is whole when end is hung up.
 */
bool wait_accepted(int end, milliseconds timeout)
{
    struct pollfd polled = { end, 0, 0 };
    const auto deadline = steady::now() + timeout;
    for (;;) {
        auto left = std::chrono::duration_cast<milliseconds>(deadline - steady::now()).count();
        const int got = poll(&polled, 1, left < 0 ? 0 : static_cast<int>(left));
        if (got >= 0 || errno != EINTR)
            return got == 1;
    }
}

/* false: aborted, nothing may be posted. */
bool take_off(struct gloo_mesh *mesh, gloo_flight *f)
{
    std::lock_guard<std::mutex> lock(mesh->mutex);
    f->at = mesh->flights.size();
    mesh->flights.push_back(f);
    f->posted = true;
    return !mesh->aborted && !mesh->lost;
}

void land(struct gloo_mesh *mesh, gloo_flight *f)
{
    std::lock_guard<std::mutex> lock(mesh->mutex);
    mesh->flights[f->at] = mesh->flights.back();
    mesh->flights[f->at]->at = f->at;
    mesh->flights.pop_back();
    f->posted = false;
}

enum status mesh_post(struct gloo_mesh *mesh, const struct gloo_transfer &transfer, uint64_t tag,
                      struct gloo_flight **out)
{
    gloo_flight *f = flight_of(mesh, transfer);
    if (f->posted)
        return mesh_fail(mesh, ST_INVALID, -1, "a buffer is in two transfers at once");
    if (!take_off(mesh, f))
        return fail_as_watched(mesh);
    try {
        if (f->is_send)
            f->buffer->send(f->peer, tag);
        else
            f->buffer->recv(f->peer, tag);
    } catch (const std::exception &e) {
        return fail_at(mesh, f->peer, e.what());
    }
    *out = f;
    return ST_OK;
}

enum status mesh_wait(struct gloo_mesh *mesh, gloo_flight *f, milliseconds timeout)
{
    try {
        const bool through = f->is_send ? f->buffer->waitSend(nullptr, timeout)
                                        : f->buffer->waitRecv(nullptr, timeout);
        if (!through)
            return fail_as_watched(mesh);
    } catch (const std::exception &e) {
        return fail_at(mesh, f->peer, e.what());
    }
    land(mesh, f);
    return ST_OK;
}

} /* namespace */

extern "C" {

enum status gloo_mesh_new(int rank, int size, const int *names, const char *host,
                          int64_t pair_timeout_ms, struct gloo_mesh **out)
{
    try {
        std::unique_ptr<gloo_mesh> mesh(new gloo_mesh);
        const stage on; /* CreateDevice tries whether the address is this machine's */
        mesh->rank = rank;
        mesh->size = size;
        mesh->names.assign(names, names + size);
        mesh->device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(host));
        mesh->context = mesh->device->createContext(rank, size);
        mesh->timeout = milliseconds(pair_timeout_ms);
        mesh->context->setTimeout(mesh->timeout);
        mesh->flights.reserve(2 * static_cast<size_t>(size));
        *out = mesh.release();
        return ST_OK;
    } catch (const std::bad_alloc &) {
        return ST_NO_MEMORY;
    } catch (...) {
        return ST_IO;
    }
}

enum status gloo_mesh_connect(struct gloo_mesh *mesh, int peer, int connection)
{
    try {
        stage on;
        (void)mesh->context->createPair(peer);
        const int end = on.end();
        if (end < 0)
            return mesh_fail(mesh, ST_PEER, -1, "this Gloo doesn't listen as Debian 12's does");
        const enum status st = sockets_hand_in(end, connection);
        if (st != ST_OK)
            return mesh_fail(mesh, st, -1, "a connection could not be handed in");
        if (!wait_accepted(end, mesh->timeout))
            return mesh_fail(mesh, ST_PEER, -1, "Gloo did not accept a connection");
        return ST_OK;
    } catch (const std::exception &e) {
        return fail_at(mesh, peer, e.what());
    } catch (...) {
        return mesh_fail(mesh, ST_PEER, peer, "the connection failed");
    }
}

enum status gloo_mesh_start(struct gloo_mesh *mesh)
{
    int peer = 0;
    try {
        mesh->alarm = mesh->context->createUnboundBuffer(&mesh->byte, 1);
        mesh->canaries.resize(static_cast<size_t>(mesh->size));
        for (peer = 0; peer < mesh->size; peer++) {
            if (!is_connected(mesh, peer))
                continue;
            auto &canary = mesh->canaries[static_cast<size_t>(peer)];
            canary = mesh->context->createUnboundBuffer(&mesh->byte, 1);
            canary->recv(peer, WATCH_TAG);
            mesh->alarm->recv(peer, WATCH_TAG);
        }
        mesh->watcher = std::thread(mesh_watch, mesh);
        return ST_OK;
    } catch (const std::exception &e) {
        return fail_at(mesh, peer, e.what());
    } catch (...) {
        return mesh_fail(mesh, ST_PEER, -1, "the watcher could not be started");
    }
}

enum status gloo_mesh_post(struct gloo_mesh *mesh, const struct gloo_transfer *transfer,
                           uint64_t tag, struct gloo_flight **out)
{
    if (mesh->failed != ST_OK)
        return mesh->failed;
    try {
        return mesh_post(mesh, *transfer, tag, out);
    } catch (const std::exception &e) {
        return mesh_fail(mesh, ST_PEER, -1, e.what());
    } catch (...) {
        return mesh_fail(mesh, ST_PEER, -1, "a transfer could not be begun");
    }
}

enum status gloo_mesh_wait(struct gloo_mesh *mesh, struct gloo_flight *flight, int64_t timeout_ms)
{
    if (mesh->failed != ST_OK)
        return mesh->failed;
    try {
        return mesh_wait(mesh, flight, milliseconds(std::max<int64_t>(timeout_ms, 1)));
    } catch (const std::exception &e) {
        return mesh_fail(mesh, ST_PEER, -1, e.what());
    } catch (...) {
        return mesh_fail(mesh, ST_PEER, -1, "a transfer failed");
    }
}

enum status gloo_mesh_look(struct gloo_mesh *mesh)
{
    if (mesh->failed != ST_OK)
        return mesh->failed;
    try {
        {
            std::lock_guard<std::mutex> lock(mesh->mutex);
            if (!mesh->aborted && !mesh->lost)
                return ST_OK;
        }
        return fail_as_watched(mesh);
    } catch (...) {
        return mesh_fail(mesh, ST_PEER, -1, "a mutex can't be taken");
    }
}

int gloo_mesh_blamed(const struct gloo_mesh *mesh)
{
    return mesh->blamed;
}

const char *gloo_mesh_why(const struct gloo_mesh *mesh)
{
    return mesh->why.c_str();
}

void gloo_mesh_abort(struct gloo_mesh *mesh)
{
    try {
        std::lock_guard<std::mutex> lock(mesh->mutex);
        mesh->aborted = true;
        free_waiter(mesh);
        mesh->changed.notify_all();
    } catch (...) {
        /* a mutex that can't be taken: the waiter's own deadline is left */
    }
}

void gloo_mesh_close(struct gloo_mesh *mesh)
{
    if (mesh == nullptr)
        return;
    try {
        if (mesh->watcher.joinable()) {
            mesh->alarm->abortWaitRecv();
            mesh->watcher.join();
        }
        if (mesh->failed != ST_OK || mesh->aborted)
            close_pairs(mesh);
        /* The pairs first: destroying one closes it softly, what was sent is still delivered. */
        for (int peer = 0; peer < mesh->size; peer++)
            mesh->context->getPair(peer).reset();
    } catch (...) {
        close_pairs(mesh);
    }
    try {
        delete mesh;
    } catch (...) {
        /* nothing is left to do */
    }
}

} /* extern "C" */
