/* grpc.health.v1.Health: a table of names, and the calls that watch them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "rpc/core.h"
#include "rpc/services.h"

#define SERVICES_MAX 64

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct health_row {
    char name[128];
    bool serving;
};

/* A call of Watch. */
struct watcher {
    struct watcher *next;
    struct watcher **link; /* what points to this one */
    struct rpc_health *health;
    struct rpc_call *call;
    char name[128];
};

struct rpc_health {
    Grpc__Health__V1__Health_Service service; /* handlers are given its address */
    pthread_mutex_t mutex;
    struct health_row rows[SERVICES_MAX];
    size_t row_count;
    struct watcher *watchers;
    bool draining;
};

static struct health_row *find_row(struct rpc_health *health, const char *name)
{
    for (size_t i = 0; i < health->row_count; i++) {
        if (strcmp(health->rows[i].name, name) == 0)
            return &health->rows[i];
    }
    return NULL;
}

static void send_row(struct rpc_call *call, const struct health_row *row)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = SERVICE_UNKNOWN;
    if (row != NULL)
        response.status = row->serving ? SERVING : NOT_SERVING;
    (void)rpc_call_send(call, &response.base);
}

static void health_check(Grpc__Health__V1__Health_Service *service,
                         const Grpc__Health__V1__HealthCheckRequest *in,
                         Grpc__Health__V1__HealthCheckResponse_Closure reply, void *call)
{
    (void)reply;
    struct rpc_health *health = CONTAINER_OF(service, struct rpc_health, service);
    pthread_mutex_lock(&health->mutex);
    const struct health_row *row = find_row(health, in->service);
    if (row != NULL) {
        send_row(call, row);
    } else {
        rpc_call_finish(call, RPC_NOT_FOUND, "unknown service");
    }
    pthread_mutex_unlock(&health->mutex);
}

static void watch_done(struct rpc_call *call, void *data, bool cancelled)
{
    (void)call;
    (void)cancelled;
    struct watcher *watcher = data;
    struct rpc_health *health = watcher->health;
    pthread_mutex_lock(&health->mutex);
    *watcher->link = watcher->next;
    if (watcher->next != NULL)
        watcher->next->link = watcher->link;
    pthread_mutex_unlock(&health->mutex);
    free(watcher);
}

static void health_watch(Grpc__Health__V1__Health_Service *service,
                         const Grpc__Health__V1__HealthCheckRequest *in,
                         Grpc__Health__V1__HealthCheckResponse_Closure reply, void *call)
{
    (void)reply;
    struct rpc_health *health = CONTAINER_OF(service, struct rpc_health, service);
    struct watcher *watcher = rpc_alloc(sizeof(*watcher));
    watcher->health = health;
    watcher->call = call;
    /* A name that doesn't fit is cut: it is as unknown as before. */
    (void)snprintf(watcher->name, sizeof(watcher->name), "%s", in->service);
    rpc_call_set_data(call, watcher, watch_done);
    pthread_mutex_lock(&health->mutex);
    watcher->next = health->watchers;
    watcher->link = &health->watchers;
    if (watcher->next != NULL)
        watcher->next->link = &watcher->next;
    health->watchers = watcher;
    send_row(call, find_row(health, watcher->name));
    if (health->draining)
        rpc_call_finish(call, RPC_UNAVAILABLE, "the server ends");
    pthread_mutex_unlock(&health->mutex);
}

enum status rpc_health_new(struct rpc_server *server, struct rpc_health **out)
{
    struct rpc_health *health = rpc_alloc(sizeof(*health));
    health->service = (Grpc__Health__V1__Health_Service){
        .base = GRPC__HEALTH__V1__HEALTH__BASE_INIT,
        .check = health_check,
        .watch = health_watch,
    };
    pthread_mutex_init(&health->mutex, NULL);
    enum status st = rpc_server_add_service(server, &health->service.base, NULL);
    if (st != ST_OK) {
        rpc_health_free(health);
        return st;
    }
    *out = health;
    return ST_OK;
}

void rpc_health_free(struct rpc_health *health)
{
    if (health == NULL)
        return;
    pthread_mutex_destroy(&health->mutex);
    free(health);
}

enum status rpc_health_set(struct rpc_health *health, const char *service, bool serving)
{
    enum status st = ST_OK;
    pthread_mutex_lock(&health->mutex);
    struct health_row *row = find_row(health, service);
    bool is_new = row == NULL;
    if (is_new && (health->row_count == SERVICES_MAX || strlen(service) >= sizeof(row->name))) {
        st = ST_FULL;
    } else if (is_new) {
        row = &health->rows[health->row_count++];
        (void)snprintf(row->name, sizeof(row->name), "%s", service);
    }
    if (st == ST_OK && (is_new || row->serving != serving) && !health->draining) {
        row->serving = serving;
        for (struct watcher *w = health->watchers; w != NULL; w = w->next) {
            if (strcmp(w->name, service) == 0)
                send_row(w->call, row);
        }
    }
    pthread_mutex_unlock(&health->mutex);
    return st;
}

void rpc_health_drain(struct rpc_health *health)
{
    pthread_mutex_lock(&health->mutex);
    health->draining = true;
    for (size_t i = 0; i < health->row_count; i++)
        health->rows[i].serving = false;
    for (struct watcher *w = health->watchers; w != NULL; w = w->next) {
        send_row(w->call, find_row(health, w->name));
        rpc_call_finish(w->call, RPC_UNAVAILABLE, "the server ends");
    }
    pthread_mutex_unlock(&health->mutex);
}
