/* Every misuse returns EINVAL (or ENOTSUP) and harms nothing. */
#include "check.h"

static void ignore_drop(const struct marline_dropped *dropped, void *user) {
    (void)dropped;
    (void)user;
}

static void ignore_metrics(const struct marline_snapshot *snapshot, void *user) {
    (void)snapshot;
    (void)user;
}

static void ignore_wake(void *user) {
    (void)user;
}

/* Calls every function that takes a channel with a number that names none. */
static void no_channel(marline_channel_t channel, marline_op_t op, marline_select_t select,
                       marline_region_t region, void *inside_region) {
    int value = 0;
    size_t len;
    bool flag;
    uint32_t bits;
    void *ptr;
    char text[64];
    struct marline_descriptor descriptor;
    struct marline_snapshot snapshot;
    struct marline_zc_counters counters;
    marline_subscription_t subscription;
    CODE(EINVAL, marline_destroy(channel));
    CODE(EINVAL, marline_close(channel));
    CODE(EINVAL, marline_len(channel, &len));
    CODE(EINVAL, marline_is_closed(channel, &flag));
    CODE(EINVAL, marline_capabilities(channel, &bits));
    CODE(EINVAL, marline_set_overflow(channel, MARLINE_OVERFLOW_BLOCK));
    CODE(EINVAL, marline_set_on_drop(channel, ignore_drop, NULL));
    CODE(EINVAL, marline_snapshot(channel, &snapshot));
    CODE(EINVAL, marline_metrics_subscribe(channel, 1, 1, ignore_metrics, NULL, &subscription));
    CODE(EINVAL, marline_dump(channel, text, sizeof text, &len));
    CODE(EINVAL, marline_zc_counters(channel, &counters));
    CODE(EINVAL, marline_send(channel, &value, sizeof value, -1));
    CODE(EINVAL, marline_recv(channel, &value, sizeof value, -1));
    CODE(EINVAL, marline_send_ptr(channel, &value, sizeof value, -1));
    CODE(EINVAL, marline_recv_ptr(channel, &ptr, &len, -1));
    CODE(EINVAL, marline_send_zc(channel, region, inside_region, 1, NULL, -1));
    CODE(EINVAL, marline_recv_zc(channel, &descriptor, -1));
    CODE(EINVAL, marline_send_start(op, channel, &value, sizeof value, -1, 0, ignore_wake, NULL));
    CODE(EINVAL, marline_recv_start(op, channel, &value, sizeof value, -1, 0, ignore_wake, NULL));
    CODE(EINVAL, marline_send_ptr_start(op, channel, &value, 1, -1, 0, ignore_wake, NULL));
    CODE(EINVAL, marline_recv_ptr_start(op, channel, &ptr, &len, -1, 0, ignore_wake, NULL));
    CODE(EINVAL, marline_send_zc_start(op, channel, region, inside_region, 1, NULL, -1, 0,
                                       ignore_wake, NULL));
    CODE(EINVAL, marline_recv_zc_start(op, channel, &descriptor, -1, 0, ignore_wake, NULL));
    CODE(EINVAL, marline_select_add_recv(select, channel, &value, sizeof value, NULL));
    CODE(EINVAL, marline_select_add_send(select, channel, &value, sizeof value, NULL));
    CODE(EINVAL, marline_select_add_recv_ptr(select, channel, &ptr, &len, NULL));
    CODE(EINVAL, marline_select_add_send_ptr(select, channel, &value, 1, NULL));
    CODE(EINVAL, marline_select_add_recv_zc(select, channel, &descriptor, NULL));
    CODE(EINVAL,
         marline_select_add_send_zc(select, channel, region, inside_region, 1, NULL, NULL));
}

static void handles_that_name_nothing(void) {
    static char memory[64];
    marline_op_t op;
    marline_select_t select;
    marline_region_t region;
    marline_token_t token;
    marline_subscription_t subscription;
    struct marline_region_options options = {.addr = memory, .len = sizeof memory};
    OK(marline_op_create(&op));
    OK(marline_select_create(0, &select));
    OK(marline_region_register(&options, &region));
    OK(marline_token_create(&token));
    marline_channel_t channel = make_ints(MARLINE_KIND_BOUNDED, 1);
    OK(marline_metrics_subscribe(channel, 1, 1, ignore_metrics, NULL, &subscription));
    OK(marline_destroy(channel));

    /* Null, made up, destroyed, and of another sort. */
    marline_channel_t wrong[] = {0, 1, UINT64_MAX, channel, op, select, region, token, subscription};
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++)
        no_channel(wrong[n], op, select, region, memory);

    /* The slot of a destroyed channel is used again, but its number is not. */
    marline_channel_t next = make_ints(MARLINE_KIND_BOUNDED, 1);
    CHECK(next != channel);
    no_channel(channel, op, select, region, memory);

    int value = 0, result;
    size_t index;
    bool flag;
    uint64_t count;
    OK(marline_op_destroy(op));
    OK(marline_select_destroy(select));
    OK(marline_region_deregister(region, 0));
    OK(marline_token_destroy(token));
    OK(marline_metrics_unsubscribe(subscription));
    uint64_t gone[] = {0, UINT64_MAX, next, op, select, region, token, subscription};
    for (size_t n = 0; n < sizeof gone / sizeof gone[0]; n++) {
        uint64_t id = gone[n];
        CODE(EINVAL, marline_op_destroy(id));
        CODE(EINVAL, marline_op_finish(id));
        CODE(EINVAL, marline_op_abandon(id));
        CODE(EINVAL, marline_send_start(id, next, &value, sizeof value, -1, 0, ignore_wake, NULL));
        CODE(EINVAL, marline_recv_start(id, next, &value, sizeof value, 0, 0, ignore_wake, NULL));
        CODE(EINVAL, marline_select_destroy(id));
        CODE(EINVAL, marline_select_reset(id));
        CODE(EINVAL, marline_select_wait(id, &index, &result, 0));
        CODE(EINVAL, marline_select_start(id, &index, &result, -1, 0, ignore_wake, NULL));
        CODE(EINVAL, marline_select_finish(id, &index, &result));
        CODE(EINVAL, marline_select_abandon(id, &index, &result));
        CODE(EINVAL, marline_select_add_recv(id, next, &value, sizeof value, NULL));
        CODE(EINVAL, marline_select_add_send(id, next, &value, sizeof value, NULL));
        CODE(EINVAL, marline_select_refill(id, 0, &value, sizeof value));
        CODE(EINVAL, marline_select_refill_ptr(id, 0, &value, 1));
        CODE(EINVAL, marline_select_refill_zc(id, 0, region, memory, 1, NULL));
        CODE(EINVAL, marline_region_deregister(id, 0));
        CODE(EINVAL, marline_region_in_flight(id, &count));
        CODE(EINVAL, marline_send_zc(next, id, memory, 4, NULL, 0));
        CODE(EINVAL, marline_token_trigger(id));
        CODE(EINVAL, marline_token_is_set(id, &flag));
        CODE(EINVAL, marline_token_child(id, &token));
        CODE(EINVAL, marline_token_destroy(id));
        CODE(EINVAL, marline_metrics_unsubscribe(id));
        if (id != 0) { /* 0 means no token, which is allowed */
            CODE(EINVAL, marline_send_c(next, &value, sizeof value, -1, id));
            CODE(EINVAL, marline_recv_c(next, &value, sizeof value, 0, id));
        }
    }
    OK(marline_destroy(next));
}

static void null_pointers(void) {
    int value = 0, result;
    size_t len, index;
    void *ptr;
    marline_channel_t channel;
    struct marline_options options = {.kind = MARLINE_KIND_BOUNDED, .capacity = 1,
                                      .element_size = sizeof value};
    CODE(EINVAL, marline_make(NULL, &channel));
    CODE(EINVAL, marline_make(&options, NULL));
    channel = make(options);
    CODE(EINVAL, marline_len(channel, NULL));
    CODE(EINVAL, marline_is_closed(channel, NULL));
    CODE(EINVAL, marline_capabilities(channel, NULL));
    CODE(EINVAL, marline_snapshot(channel, NULL));
    CODE(EINVAL, marline_zc_counters(channel, NULL));
    CODE(EINVAL, marline_dump(channel, NULL, 8, &len));
    CODE(EINVAL, marline_metrics_subscribe(channel, 1, 1, NULL, NULL, &channel));
    CODE(EINVAL, marline_metrics_subscribe(channel, 1, 1, ignore_metrics, NULL, NULL));
    CODE(EINVAL, marline_send(channel, NULL, sizeof value, 0));
    CODE(EINVAL, marline_recv(channel, NULL, sizeof value, 0));
    CODE(EINVAL, marline_token_create(NULL));
    CODE(EINVAL, marline_op_create(NULL));
    CODE(EINVAL, marline_select_create(0, NULL));
    CODE(EINVAL, marline_rate(NULL, NULL, NULL));
    CODE(EINVAL, marline_zc_release(NULL));

    marline_select_t select;
    OK(marline_select_create(0, &select));
    CODE(EINVAL, marline_select_add_recv(select, channel, NULL, sizeof value, &index));
    CODE(EINVAL, marline_select_add_send(select, channel, NULL, sizeof value, &index));
    OK(marline_select_add_recv(select, channel, &value, sizeof value, NULL));
    CODE(EINVAL, marline_select_wait(select, NULL, &result, 0));
    CODE(EINVAL, marline_select_wait(select, &index, NULL, 0));
    OK(marline_select_destroy(select));
    OK(marline_destroy(channel));

    channel = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_POINTER);
    CODE(EINVAL, marline_send_ptr(channel, NULL, 1, 0));
    OK(marline_send_ptr(channel, &value, 1, 0));
    CODE(EINVAL, marline_recv_ptr(channel, NULL, &len, 0));
    CODE(EINVAL, marline_recv_ptr(channel, &ptr, NULL, 0));
    OK(marline_recv_ptr(channel, &ptr, &len, 0)); /* the element was not lost */
    OK(marline_destroy(channel));

    channel = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_DESCRIPTOR);
    CODE(EINVAL, marline_recv_zc(channel, NULL, 0));
    OK(marline_destroy(channel));

    marline_region_t region;
    struct marline_region_options memory = {.addr = &value, .len = sizeof value};
    CODE(EINVAL, marline_region_register(NULL, &region));
    CODE(EINVAL, marline_region_register(&memory, NULL));
    memory.len = 0;
    CODE(EINVAL, marline_region_register(&memory, &region));
    memory = (struct marline_region_options){.addr = NULL, .len = 8};
    CODE(EINVAL, marline_region_register(&memory, &region));
    memory = (struct marline_region_options){.addr = &value, .len = SIZE_MAX};
    CODE(EINVAL, marline_region_register(&memory, &region));
    memory = (struct marline_region_options){.addr = &value, .len = 4, .reserved = {0, 1}};
    CODE(EINVAL, marline_region_register(&memory, &region));
}

static void wrong_modes_and_sizes(void) {
    long long large = 0;
    int value = 0;
    size_t len;
    void *ptr;
    struct marline_descriptor descriptor;
    static char memory[64];
    marline_region_t region;
    marline_op_t op;
    marline_select_t select;
    struct marline_region_options options = {.addr = memory, .len = sizeof memory};
    OK(marline_region_register(&options, &region));
    OK(marline_op_create(&op));
    OK(marline_select_create(0, &select));

    marline_channel_t ints = make_ints(MARLINE_KIND_BOUNDED, 1);
    CODE(EINVAL, marline_send(ints, &large, sizeof large, 0));
    CODE(EINVAL, marline_recv(ints, &large, sizeof large, 0));
    CODE(EINVAL, marline_send(ints, &value, 0, 0));
    CODE(EINVAL, marline_send_ptr(ints, &value, 1, 0));
    CODE(EINVAL, marline_recv_ptr(ints, &ptr, &len, 0));
    CODE(EINVAL, marline_recv_zc(ints, &descriptor, 0));
    CODE(EINVAL, marline_send_zc(ints, region, memory, 5, NULL, 0)); /* not an element */
    CODE(EINVAL, marline_recv_start(op, ints, &large, sizeof large, -1, 0, ignore_wake, NULL));
    CODE(EINVAL, marline_select_add_recv(select, ints, &large, sizeof large, NULL));
    CODE(EINVAL, marline_select_add_recv_ptr(select, ints, &ptr, &len, NULL));
    CODE(EINVAL, marline_select_add_send_ptr(select, ints, &value, 1, NULL));
    CODE(EINVAL, marline_select_add_recv_zc(select, ints, &descriptor, NULL));

    marline_channel_t pointers = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_POINTER);
    CODE(EINVAL, marline_send(pointers, &value, sizeof value, 0));
    CODE(EINVAL, marline_recv(pointers, &value, sizeof value, 0));
    CODE(EINVAL, marline_send_zc(pointers, region, memory, 8, NULL, 0));
    CODE(EINVAL, marline_recv_zc(pointers, &descriptor, 0));
    CODE(EINVAL, marline_select_add_send(select, pointers, &value, sizeof value, NULL));

    marline_channel_t buffers = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_DESCRIPTOR);
    CODE(EINVAL, marline_send(buffers, &value, sizeof value, 0));
    CODE(EINVAL, marline_send_ptr(buffers, &value, 1, 0));
    CODE(EINVAL, marline_recv_ptr(buffers, &ptr, &len, 0));
    /* Not inside the region. */
    CODE(EINVAL, marline_send_zc(buffers, region, memory + 60, 5, NULL, 0));
    CODE(EINVAL, marline_send_zc(buffers, region, memory + 64, 1, NULL, 0));
    CODE(EINVAL, marline_send_zc(buffers, region, memory, 0, NULL, 0));
    CODE(EINVAL, marline_send_zc(buffers, region, memory, SIZE_MAX, NULL, 0));
    CODE(EINVAL, marline_send_zc(buffers, region, NULL, 1, NULL, 0));
    CODE(EINVAL, marline_send_zc(buffers, region, &value, 1, NULL, 0));

    /* A refill must fit its clause. */
    size_t index;
    OK(marline_select_add_send_ptr(select, pointers, &value, 1, &index));
    CODE(EINVAL, marline_select_refill(select, index, &value, sizeof value));
    CODE(EINVAL, marline_select_refill_zc(select, index, region, memory, 8, NULL));
    CODE(EINVAL, marline_select_refill_ptr(select, index + 1, &value, 1));
    CODE(EINVAL, marline_select_refill_ptr(select, index, NULL, 1));
    OK(marline_select_refill_ptr(select, index, &large, 1));

    struct marline_descriptor made_up = {.addr = memory, .len = 4, .region_id = region, .lease = 7};
    CODE(EINVAL, marline_zc_release(&made_up));

    OK(marline_select_destroy(select));
    OK(marline_op_destroy(op));
    OK(marline_destroy(ints));
    OK(marline_destroy(pointers));
    OK(marline_destroy(buffers));
    OK(marline_region_deregister(region, 0)); /* nothing was left in flight */
}

static void options_that_make_no_sense(void) {
    static char long_name[300];
    memset(long_name, 'n', sizeof long_name - 1);
    struct marline_options wrong[] = {
        {.kind = 0, .element_size = 4},
        {.kind = 99, .element_size = 4},
        {.kind = MARLINE_KIND_RENDEZVOUS, .mode = 3},
        {.kind = MARLINE_KIND_RENDEZVOUS, .element_size = 0},
        {.kind = MARLINE_KIND_RENDEZVOUS, .element_size = SIZE_MAX},
        {.kind = MARLINE_KIND_RENDEZVOUS, .element_size = 4, .capacity = 1},
        {.kind = MARLINE_KIND_RENDEZVOUS, .mode = MARLINE_MODE_POINTER, .element_size = 8},
        {.kind = MARLINE_KIND_BOUNDED, .element_size = 4, .capacity = 0},
        {.kind = MARLINE_KIND_BOUNDED, .element_size = 4, .capacity = UINT64_MAX},
        {.kind = MARLINE_KIND_BOUNDED, .element_size = 4, .capacity = 1, .overflow = 3},
        {.kind = MARLINE_KIND_BOUNDED, .element_size = 4, .capacity = 1, .flags = 2},
        {.kind = MARLINE_KIND_BOUNDED, .element_size = 4, .capacity = 1, .reserved = {1, 0}},
        {.kind = MARLINE_KIND_BOUNDED, .element_size = 4, .capacity = 1, .name = long_name},
        {.kind = MARLINE_KIND_BOUNDED, .element_size = 4, .capacity = 1, .name = "\xff\xfe"},
    };
    marline_channel_t channel = 42;
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++)
        CODE(EINVAL, marline_make(&wrong[n], &channel));
    struct marline_options unsupported[] = {
        {.kind = MARLINE_KIND_RENDEZVOUS, .element_size = 4, .overflow = MARLINE_OVERFLOW_DROP_OLDEST},
        {.kind = MARLINE_KIND_UNBOUNDED, .element_size = 4, .overflow = MARLINE_OVERFLOW_DROP_NEWEST},
        {.kind = MARLINE_KIND_CONFLATED, .element_size = 4, .overflow = MARLINE_OVERFLOW_DROP_NEWEST},
    };
    for (size_t n = 0; n < sizeof unsupported / sizeof unsupported[0]; n++)
        CODE(ENOTSUP, marline_make(&unsupported[n], &channel));
    CHECK(channel == 42);

    channel = make_ints(MARLINE_KIND_BOUNDED, 1);
    CODE(EINVAL, marline_set_overflow(channel, 3));
    OK(marline_destroy(channel));
    marline_select_t select;
    CODE(EINVAL, marline_select_create(8, &select));
}

static void operations_and_selects_at_the_wrong_moment(void) {
    int value = 0, result;
    size_t index;
    marline_op_t op;
    marline_select_t select;
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    OK(marline_op_create(&op));
    CODE(EINVAL, marline_op_finish(op));
    CODE(EINVAL, marline_op_abandon(op));
    CODE(EINPROGRESS, marline_recv_start(op, channel, &value, sizeof value, -1, 0, NULL, NULL));
    CODE(EINVAL, marline_recv_start(op, channel, &value, sizeof value, -1, 0, NULL, NULL));
    CODE(EINVAL, marline_send_start(op, channel, &value, sizeof value, 0, 0, NULL, NULL));
    CODE(ECANCELED, marline_op_abandon(op));
    CODE(EINVAL, marline_op_abandon(op));
    OK(marline_op_destroy(op));

    OK(marline_select_create(0, &select));
    CODE(EINVAL, marline_select_wait(select, &index, &result, -1)); /* no clauses */
    CODE(EINVAL, marline_select_finish(select, &index, &result));
    CODE(EINVAL, marline_select_abandon(select, &index, &result));
    OK(marline_select_add_recv(select, channel, &value, sizeof value, NULL));
    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, 0, NULL, NULL));
    CODE(EINVAL, marline_select_start(select, &index, &result, -1, 0, NULL, NULL));
    CODE(EINVAL, marline_select_wait(select, &index, &result, 0));
    CODE(EINVAL, marline_select_add_recv(select, channel, &value, sizeof value, NULL));
    CODE(EINVAL, marline_select_refill(select, 0, &value, sizeof value));
    CODE(EINVAL, marline_select_reset(select));
    CODE(ECANCELED, marline_select_abandon(select, &index, &result));
    OK(marline_select_reset(select));
    OK(marline_select_destroy(select));
    OK(marline_destroy(channel));
}

int main(void) {
    begin();
    handles_that_name_nothing();
    null_pointers();
    wrong_modes_and_sizes();
    options_that_make_no_sense();
    operations_and_selects_at_the_wrong_moment();
    return 0;
}
