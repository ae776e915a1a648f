/* Regions, descriptors, backends, fallbacks and their counters. */
#include "check.h"

#include <stdatomic.h>

#define REGION 4096

static struct marline_zc_counters counters_of(marline_channel_t channel) {
    struct marline_zc_counters counters;
    OK(marline_zc_counters(channel, &counters));
    return counters;
}

static uint64_t in_flight(marline_region_t region) {
    uint64_t count;
    OK(marline_region_in_flight(region, &count));
    return count;
}

static void a_buffer_travels_without_a_copy_and_comes_back(void) {
    char *memory = malloc(REGION);
    memset(memory, 'm', REGION);
    marline_region_t region;
    struct marline_region_options options = {.addr = memory, .len = REGION};
    OK(marline_region_register(&options, &region));
    marline_channel_t channel = make_mode(MARLINE_KIND_BOUNDED, 4, MARLINE_MODE_DESCRIPTOR);
    bool copied = true;
    OK(marline_send_zc(channel, region, memory + 100, 1000, &copied, 0));
    CHECK(!copied && in_flight(region) == 1);
    OK(marline_send_zc_c(channel, region, memory + 2000, 96, NULL, BOUND_MS, 0));

    struct marline_descriptor first, second;
    OK(marline_recv_zc(channel, &first, 0));
    CHECK(first.addr == memory + 100 && first.len == 1000 && first.offset == 100);
    CHECK(first.region_id == region && first.flags == 0 && first.reserved == 0);
    OK(marline_recv_zc_c(channel, &second, BOUND_MS, 0));
    CHECK(second.addr == memory + 2000 && in_flight(region) == 2);

    CODE(EAGAIN, marline_region_deregister(region, 0));
    CODE(ETIME, marline_region_deregister(region, 10));
    OK(marline_zc_release(&first));
    CODE(EINVAL, marline_zc_release(&first)); /* only once */
    CHECK(in_flight(region) == 1);
    /* A deregister that ran out of time has changed nothing. */
    OK(marline_send_zc(channel, region, memory, 8, NULL, 0));
    OK(marline_recv_zc(channel, &first, 0));
    OK(marline_zc_release(&first));
    OK(marline_zc_release(&second));
    OK(marline_region_deregister(region, 0));
    CODE(EINVAL, marline_region_deregister(region, 0));
    CODE(EINVAL, marline_send_zc(channel, region, memory, 8, NULL, 0));

    struct marline_zc_counters counters = counters_of(channel);
    CHECK(counters.sent == 3 && counters.received == 3);
    CHECK(counters.fallback_small == 0 && counters.fallback_capacity == 0);
    struct marline_snapshot snapshot = snapshot_of(channel);
    CHECK(snapshot.bytes_sent == 1000 + 96 + 8 && snapshot.bytes_received == snapshot.bytes_sent);
    OK(marline_destroy(channel));
    free(memory);
}

static void small_or_too_many_buffers_are_copied(void) {
    static char memory[REGION];
    memset(memory, 's', sizeof memory);
    marline_region_t region;
    struct marline_region_options options = {
        .addr = memory, .len = sizeof memory, .min_len = 64, .max_in_flight = 1};
    OK(marline_region_register(&options, &region));
    marline_channel_t channel = make_mode(MARLINE_KIND_UNBOUNDED, 0, MARLINE_MODE_DESCRIPTOR);
    bool copied = false;
    OK(marline_send_zc(channel, region, memory, 63, &copied, 0));
    CHECK(copied && in_flight(region) == 0);
    memory[0] = 'x'; /* the buffer is ours again: the receiver has its copy */
    OK(marline_send_zc(channel, region, memory, 64, &copied, 0));
    CHECK(!copied && in_flight(region) == 1);
    OK(marline_send_zc(channel, region, memory + 64, 64, &copied, 0));
    CHECK(copied && in_flight(region) == 1);

    struct marline_descriptor descriptor;
    OK(marline_recv_zc(channel, &descriptor, 0));
    CHECK(descriptor.flags == MARLINE_ZC_FLAG_COPIED && descriptor.region_id == 0);
    CHECK(descriptor.len == 63 && *(char *)descriptor.addr == 's');
    OK(marline_zc_release(&descriptor));
    CODE(EINVAL, marline_zc_release(&descriptor));
    OK(marline_recv_zc(channel, &descriptor, 0));
    CHECK(descriptor.addr == memory);
    OK(marline_zc_release(&descriptor));
    OK(marline_recv_zc(channel, &descriptor, 0));
    CHECK(descriptor.flags == MARLINE_ZC_FLAG_COPIED);
    OK(marline_zc_release(&descriptor));

    struct marline_zc_counters counters = counters_of(channel);
    CHECK(counters.sent == 1 && counters.received == 1);
    CHECK(counters.fallback_small == 1 && counters.fallback_capacity == 1);
    OK(marline_destroy(channel));

    /* A channel that cannot carry descriptors gets its element. */
    channel = make_ints(MARLINE_KIND_BOUNDED, 1);
    memory[0] = 1, memory[1] = memory[2] = memory[3] = 0;
    OK(marline_send_zc(channel, region, memory, sizeof(int), &copied, 0));
    CHECK(copied && counters_of(channel).fallback_capacity == 1);
    CHECK(recv_int(channel) == *(int *)memory);
    OK(marline_destroy(channel));
    OK(marline_region_deregister(region, 0));
}

static void failed_sends_are_counted_and_leave_the_buffer(void) {
    static char memory[REGION];
    marline_region_t region;
    marline_token_t token;
    struct marline_region_options options = {.addr = memory, .len = sizeof memory};
    OK(marline_region_register(&options, &region));
    OK(marline_token_create(&token));
    OK(marline_token_trigger(token));
    marline_channel_t channel = make_mode(MARLINE_KIND_RENDEZVOUS, 0, MARLINE_MODE_DESCRIPTOR);
    CODE(EAGAIN, marline_send_zc(channel, region, memory, 8, NULL, 0));
    CODE(ETIME, marline_send_zc(channel, region, memory, 8, NULL, 5));
    CODE(ECANCELED, marline_send_zc_c(channel, region, memory, 8, NULL, -1, token));
    struct marline_descriptor descriptor;
    CODE(ECANCELED, marline_recv_zc_c(channel, &descriptor, -1, token));
    OK(marline_close(channel));
    CODE(EPIPE, marline_send_zc(channel, region, memory, 8, NULL, -1));
    struct marline_zc_counters counters = counters_of(channel);
    CHECK(counters.cancelled == 2 && counters.aborted_close == 1 && counters.sent == 0);
    CHECK(in_flight(region) == 0);
    OK(marline_destroy(channel));
    OK(marline_token_destroy(token));
    OK(marline_region_deregister(region, 0));
}

/* ---- deregister against traffic ---- */

struct hand {
    marline_region_t region;
    struct marline_descriptor descriptor;
    atomic_bool waiting;
    int code;
};

static void *deregister_body(void *user) {
    struct hand *hand = user;
    hand->waiting = true;
    hand->code = marline_region_deregister(hand->region, -1);
    return NULL;
}

static void deregister_waits_for_the_last_buffer(void) {
    char *memory = malloc(REGION);
    marline_region_t region;
    struct marline_region_options options = {.addr = memory, .len = REGION};
    OK(marline_region_register(&options, &region));
    marline_channel_t channel = make_mode(MARLINE_KIND_BOUNDED, 2, MARLINE_MODE_DESCRIPTOR);
    OK(marline_send_zc(channel, region, memory, 8, NULL, 0));
    struct hand hand = {.region = region, .code = 1};
    pthread_t thread = spawn(deregister_body, &hand);
    /* The deregister waits as soon as no buffer may be sent any more. */
    UNTIL(hand.waiting);
    for (;;) {
        int code = marline_send_zc(channel, region, memory, 8, NULL, 0);
        if (code == -EINVAL)
            break;
        CHECK(code == 0 || code == -EAGAIN);
        sched_yield();
    }
    struct marline_descriptor descriptor;
    while (marline_recv_zc(channel, &descriptor, 0) == 0) {
        CHECK(hand.code == 1);
        OK(marline_zc_release(&descriptor));
    }
    join(thread);
    OK(hand.code);
    free(memory); /* which is no longer in use */
    OK(marline_destroy(channel));
}

/* ---- a backend ---- */

struct device {
    int registered, mapped, released, deregistered;
    int map_code;
    uint64_t last_offset;
    void *last_addr;
    char shadow[REGION];
};

static int device_register(void *addr, size_t len, uint64_t *cookie, void *user) {
    struct device *device = user;
    CHECK(addr != NULL && len == REGION);
    device->registered++;
    *cookie = 4711;
    return 0;
}

static int device_refuse(void *addr, size_t len, uint64_t *cookie, void *user) {
    (void)addr, (void)len, (void)cookie, (void)user;
    return -EACCES;
}

static int device_map(uint64_t cookie, uint64_t offset, size_t len, void **addr, void *user) {
    struct device *device = user;
    CHECK(cookie == 4711 && offset + len <= REGION);
    if (device->map_code != 0)
        return device->map_code;
    device->mapped++;
    *addr = device->shadow + offset;
    return 0;
}

static void device_release(uint64_t cookie, uint64_t offset, size_t len, void *addr, void *user) {
    struct device *device = user;
    CHECK(cookie == 4711 && len > 0);
    device->released++;
    device->last_offset = offset;
    device->last_addr = addr;
}

static void device_deregister(uint64_t cookie, void *user) {
    CHECK(cookie == 4711);
    ((struct device *)user)->deregistered++;
}

static void count_drop(const struct marline_dropped *dropped, void *user) {
    CHECK(dropped->mode == MARLINE_MODE_DESCRIPTOR && dropped->ptr == dropped->descriptor.addr);
    CHECK(dropped->len == dropped->descriptor.len);
    ++*(int *)user;
}

/* An on_drop that releases the buffer itself does no harm. */
static void release_drop(const struct marline_dropped *dropped, void *user) {
    OK(marline_zc_release(&dropped->descriptor));
    ++*(int *)user;
}

static void other_memory_plugs_in(void) {
    static char memory[REGION];
    static struct device device;
    struct marline_zc_backend backend = {.register_fn = device_refuse, .user = &device};
    struct marline_region_options options = {
        .addr = memory, .len = sizeof memory, .backend = &backend};
    marline_region_t region;
    CODE(EACCES, marline_region_register(&options, &region));
    backend = (struct marline_zc_backend){.register_fn = device_register,
                                          .map_fn = device_map,
                                          .release_fn = device_release,
                                          .deregister_fn = device_deregister,
                                          .user = &device};
    OK(marline_region_register(&options, &region));
    CHECK(device.registered == 1);
    memset(&backend, 0, sizeof backend); /* the structure was copied */

    int drops = 0;
    marline_channel_t channel = make((struct marline_options){.kind = MARLINE_KIND_BOUNDED,
                                                              .capacity = 8,
                                                              .mode = MARLINE_MODE_DESCRIPTOR,
                                                              .on_drop = count_drop,
                                                              .on_drop_user = &drops});
    struct marline_descriptor descriptor;
    OK(marline_send_zc(channel, region, memory + 10, 20, NULL, 0));
    OK(marline_recv_zc(channel, &descriptor, 0));
    CHECK(descriptor.addr == device.shadow + 10 && descriptor.flags == MARLINE_ZC_FLAG_MAPPED);
    CHECK(device.mapped == 1 && device.released == 0);
    OK(marline_zc_release(&descriptor));
    CHECK(device.released == 1 && device.last_offset == 10);
    CHECK(device.last_addr == device.shadow + 10);

    /* A buffer that cannot be mapped is dropped, goes to on_drop, and is no longer in flight. */
    OK(marline_send_zc(channel, region, memory + 30, 20, NULL, 0));
    device.map_code = -ENOMEM;
    CODE(ENOMEM, marline_recv_zc(channel, &descriptor, 0));
    device.map_code = 1; /* not a valid code: a bug in the backend */
    OK(marline_send_zc(channel, region, memory + 30, 20, NULL, 0));
    CODE(EIO, marline_recv_zc(channel, &descriptor, 0));
    device.map_code = 0;
    CHECK(drops == 2 && device.released == 3 && device.last_addr == NULL && in_flight(region) == 0);

    /* release_fn does not get failed sends. It gets buffers that are inside at the end. */
    OK(marline_send_zc(channel, region, memory, 1, NULL, 0));
    OK(marline_send_zc(channel, region, memory, 2, NULL, 0));
    OK(marline_set_on_drop(channel, release_drop, &drops));
    OK(marline_destroy(channel));
    CHECK(drops == 4 && device.released == 5 && in_flight(region) == 0);
    OK(marline_region_deregister(region, 0));
    CHECK(device.deregistered == 1);
}

static void what_a_destroy_aborts_is_counted(void) {
    static char memory[REGION];
    marline_region_t region;
    struct marline_region_options options = {.addr = memory, .len = sizeof memory, .min_len = 4};
    OK(marline_region_register(&options, &region));
    marline_channel_t channel = make_mode(MARLINE_KIND_CONFLATED, 0, MARLINE_MODE_DESCRIPTOR);
    OK(marline_send_zc(channel, region, memory, 8, NULL, 0));
    OK(marline_send_zc(channel, region, memory, 8, NULL, 0)); /* overflow is not a close */
    CHECK(counters_of(channel).aborted_close == 0 && in_flight(region) == 1);
    OK(marline_send_zc(channel, region, memory, 1, NULL, 0)); /* a copy, which stays inside */
    CHECK(in_flight(region) == 0);
    OK(marline_destroy(channel));
    OK(marline_region_deregister(region, 0));
}

int main(void) {
    begin();
    a_buffer_travels_without_a_copy_and_comes_back();
    small_or_too_many_buffers_are_copied();
    failed_sends_are_counted_and_leave_the_buffer();
    deregister_waits_for_the_last_buffer();
    other_memory_plugs_in();
    what_a_destroy_aborts_is_counted();
    return 0;
}
