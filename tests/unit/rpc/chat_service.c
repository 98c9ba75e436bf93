#include "chat_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__asm__(".section .rodata\n"
        ".global chat_descriptors_begin\n"
        ".global chat_descriptors_end\n"
        "chat_descriptors_begin:\n"
        ".incbin \"" DESCRIPTORS_FILE "\"\n"
        "chat_descriptors_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const uint8_t chat_descriptors_begin[];
extern const uint8_t chat_descriptors_end[];

const uint8_t *chat_descriptors(size_t *out_size)
{
    *out_size = (size_t)(chat_descriptors_end - chat_descriptors_begin);
    return chat_descriptors_begin;
}

static struct chat *chat_of(Cairn__Test__Chat_Service *service)
{
    return (struct chat *)(void *)service; /* its first member */
}

static void held_done(struct rpc_call *call, void *data, bool cancelled)
{
    (void)call;
    struct chat *chat = data;
    if (cancelled)
        atomic_fetch_add(&chat->cancelled, 1);
    atomic_fetch_sub(&chat->open, 1);
}

static void hold(struct chat *chat, struct rpc_call *call)
{
    atomic_fetch_add(&chat->open, 1);
    rpc_call_set_data(call, chat, held_done);
}

static void echo(Cairn__Test__Chat_Service *service, const Cairn__Test__EchoRequest *in,
                 Cairn__Test__EchoReply_Closure reply, void *call)
{
    struct chat *chat = chat_of(service);
    if (in->fail_code != 0) {
        char text[8192] = "asked to fail";
        if (in->hold)
            (void)snprintf(text, sizeof(text), "%.*s", (int)in->payload.len, in->payload.data);
        rpc_call_finish(call, (enum rpc_code)in->fail_code, text);
        return;
    }
    if (in->hold) {
        hold(chat, call);
        return;
    }
    Cairn__Test__EchoReply out = CAIRN__TEST__ECHO_REPLY__INIT;
    struct ucred cred;
    out.payload = in->payload;
    out.peer_pid = rpc_call_peer_cred(call, &cred) ? (uint32_t)cred.pid : 0;
    out.open = atomic_load(&chat->open);
    out.cancelled = atomic_load(&chat->cancelled);
    reply(&out, call);
}

static void count(Cairn__Test__Chat_Service *service, const Cairn__Test__CountRequest *in,
                  Cairn__Test__Number_Closure reply, void *call)
{
    struct chat *chat = chat_of(service);
    hold(chat, call);
    uint8_t *padding = calloc(1, in->size + 1);
    for (uint32_t i = 0; i < in->count && padding != NULL; i++) {
        Cairn__Test__Number number = CAIRN__TEST__NUMBER__INIT;
        number.value = i;
        number.padding = (ProtobufCBinaryData){ .len = in->size, .data = padding };
        reply(&number, call);
    }
    free(padding);
    if (!in->hold)
        rpc_call_finish(call, RPC_OK, NULL);
}

static void free_sum(struct rpc_call *call, void *data, bool cancelled)
{
    (void)call;
    (void)cancelled;
    free(data);
}

static void sum(Cairn__Test__Chat_Service *service, const Cairn__Test__Number *in,
                Cairn__Test__Number_Closure reply, void *call)
{
    (void)service;
    uint64_t *total = rpc_call_data(call);
    if (total == NULL) {
        total = calloc(1, sizeof(*total));
        if (total == NULL)
            abort();
        rpc_call_set_data(call, total, free_sum);
    }
    if (in != NULL) {
        *total += in->value;
        return;
    }
    Cairn__Test__Number out = CAIRN__TEST__NUMBER__INIT;
    out.value = *total;
    reply(&out, call);
}

static void talk(Cairn__Test__Chat_Service *service, const Cairn__Test__TalkMessage *in,
                 Cairn__Test__TalkMessage_Closure reply, void *call)
{
    struct chat *chat = chat_of(service);
    if (rpc_call_data(call) == NULL)
        hold(chat, call);
    if (in == NULL) {
        rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    atomic_fetch_add(&chat->talked, 1);
    if (strcmp(in->text, "quit") == 0)
        rpc_call_finish(call, RPC_ABORTED, "as you wish");
    else
        reply(in, call);
}

void chat_init(struct chat *chat)
{
    memset(chat, 0, sizeof(*chat));
    chat->service = (Cairn__Test__Chat_Service){
        .base = CAIRN__TEST__CHAT__BASE_INIT,
        .echo = echo,
        .count = count,
        .sum = sum,
        .talk = talk,
    };
}
