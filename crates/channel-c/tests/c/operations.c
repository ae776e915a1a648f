/* The start forms: they end at once or stay pending, wake_fn is called once, and the operation is
 * finished or abandoned. */
#include "check.h"

#include <stdatomic.h>

static void count_wake(void *user) {
    atomic_fetch_add((atomic_int *)user, 1);
}

static marline_op_t new_op(void) {
    marline_op_t op;
    OK(marline_op_create(&op));
    return op;
}

static int start_recv(marline_op_t op, marline_channel_t channel, int *value, atomic_int *wakes) {
    return marline_recv_start(op, channel, value, sizeof *value, -1, 0, count_wake, wakes);
}

static int start_send(marline_op_t op, marline_channel_t channel, int value, atomic_int *wakes) {
    return marline_send_start(op, channel, &value, sizeof value, -1, 0, count_wake, wakes);
}

static void done_at_once_means_no_call(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_BOUNDED, 1);
    marline_op_t op = new_op();
    atomic_int wakes = 0;
    int value = 0;
    OK(start_send(op, channel, 1, &wakes));
    CODE(EINVAL, marline_op_finish(op)); /* the operation is over */
    OK(start_recv(op, channel, &value, &wakes));
    CHECK(value == 1);
    OK(marline_close(channel));
    CODE(EPIPE, start_send(op, channel, 1, &wakes));
    CODE(EPIPE, start_recv(op, channel, &value, &wakes));
    CHECK(wakes == 0);
    OK(marline_op_destroy(op));
    OK(marline_destroy(channel));
}

static void pending_is_told_once_and_finished(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_op_t op = new_op();
    atomic_int wakes = 0;
    for (int n = 0; n < 100; n++) { /* reused many times */
        int value = -1;
        CODE(EINPROGRESS, start_recv(op, channel, &value, &wakes));
        CODE(EINPROGRESS, marline_op_finish(op));
        CHECK(wakes == 2 * n);
        OK(send_int(channel, n, 0));
        CHECK(wakes == 2 * n + 1 && value == -1);
        OK(marline_op_finish(op));
        CHECK(value == n);

        CODE(EINPROGRESS, start_send(op, channel, n, &wakes));
        CHECK(recv_int(channel) == n);
        CHECK(wakes == 2 * n + 2);
        OK(marline_op_finish(op));
    }
    OK(marline_op_destroy(op));
    OK(marline_destroy(channel));
}

static void an_abandoned_operation_loses_nothing(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_op_t op = new_op(), other = new_op();
    atomic_int wakes = 0;
    int value = 0, second = 0;

    CODE(EINPROGRESS, start_send(op, channel, 1, &wakes));
    CODE(ECANCELED, marline_op_abandon(op));
    CODE(EAGAIN, marline_recv(channel, &value, sizeof value, 0)); /* never seen */

    CODE(EINPROGRESS, start_send(op, channel, 2, &wakes));
    CHECK(recv_int(channel) == 2);
    OK(marline_op_abandon(op)); /* too late: the element was sent */

    CODE(EINPROGRESS, start_recv(op, channel, &value, &wakes));
    CODE(ECANCELED, marline_op_abandon(op));
    CODE(EAGAIN, send_int(channel, 3, 0)); /* no receive waits any more */

    /* A receive that is given an element and abandoned: the element goes to the next, in order. */
    CODE(EINPROGRESS, start_recv(op, channel, &value, &wakes));
    CODE(EINPROGRESS, start_recv(other, channel, &second, &wakes));
    OK(send_int(channel, 4, 0));
    CODE(ECANCELED, marline_op_abandon(op));
    CHECK(value == 0);
    OK(marline_op_finish(other));
    CHECK(second == 4);
    CODE(EINPROGRESS, start_recv(op, channel, &value, &wakes));
    OK(send_int(channel, 5, 0));
    OK(marline_op_destroy(op)); /* abandons the operation */
    CHECK(recv_int(channel) == 5);
    OK(marline_op_destroy(other));
    OK(marline_destroy(channel));
}

static void time_and_tokens_end_operations(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_op_t op = new_op();
    marline_token_t token;
    atomic_int wakes = 0;
    int value = 0;
    CODE(EAGAIN, marline_recv_start(op, channel, &value, sizeof value, 0, 0, count_wake, &wakes));
    CODE(EAGAIN, marline_send_start(op, channel, &value, sizeof value, 0, 0, count_wake, &wakes));
    /* On a slow machine the time may run out before the start form returns: then try longer. */
    int code;
    for (int64_t time = 5; (code = marline_recv_start(op, channel, &value, sizeof value, time, 0,
                                                      count_wake, &wakes)) == -ETIME;
         time *= 2)
        CHECK(wakes == 0 && time < BOUND_MS);
    CODE(EINPROGRESS, code);
    UNTIL(wakes == 1);
    CODE(ETIME, marline_op_finish(op));
    for (int64_t time = 5; (code = marline_send_start(op, channel, &value, sizeof value, time, 0,
                                                      count_wake, &wakes)) == -ETIME;
         time *= 2)
        CHECK(wakes == 1 && time < BOUND_MS);
    CODE(EINPROGRESS, code);
    UNTIL(wakes == 2);
    CODE(ETIME, marline_op_finish(op));

    OK(marline_token_create(&token));
    CODE(EINPROGRESS,
         marline_recv_start(op, channel, &value, sizeof value, -1, token, count_wake, &wakes));
    OK(marline_token_trigger(token));
    CHECK(wakes == 3);
    CODE(ECANCELED, marline_op_finish(op));
    CODE(ECANCELED,
         marline_send_start(op, channel, &value, sizeof value, -1, token, count_wake, &wakes));
    CODE(ECANCELED,
         marline_send_start(op, channel, &value, sizeof value, 0, token, count_wake, &wakes));
    CHECK(wakes == 3);
    OK(marline_token_destroy(token));

    /* The token outlives its handle inside the operation. */
    OK(marline_token_create(&token));
    CODE(EINPROGRESS,
         marline_recv_start(op, channel, &value, sizeof value, BOUND_MS, token, count_wake, &wakes));
    OK(marline_token_destroy(token));
    OK(send_int(channel, 8, 0));
    OK(marline_op_finish(op));
    CHECK(value == 8 && wakes == 4);
    OK(marline_op_destroy(op));
    OK(marline_destroy(channel));
}

static int dropped;

static void count_drop(const struct marline_dropped *what, void *user) {
    (void)what, (void)user;
    dropped++;
}

static void a_destroyed_channel_ends_pending_operations(void) {
    marline_channel_t channel = make((struct marline_options){
        .kind = MARLINE_KIND_RENDEZVOUS, .element_size = sizeof(int), .on_drop = count_drop});
    marline_op_t waiting = new_op(), filled = new_op(), abandoned = new_op();
    atomic_int wakes = 0;
    int value = 0, kept = 0, given_up = 0;
    CODE(EINPROGRESS, start_recv(filled, channel, &kept, &wakes));
    CODE(EINPROGRESS, start_recv(abandoned, channel, &given_up, &wakes));
    CODE(EINPROGRESS, start_recv(waiting, channel, &value, &wakes));
    OK(send_int(channel, 1, 0));
    OK(send_int(channel, 2, 0));
    OK(marline_destroy(channel));
    CHECK(wakes == 3 && dropped == 0);
    CODE(EPIPE, marline_op_finish(waiting));
    OK(marline_op_finish(filled)); /* the operation was given its element before */
    CHECK(kept == 1);
    CODE(ECANCELED, marline_op_abandon(abandoned));
    CHECK(dropped == 1 && given_up == 0);
    OK(marline_op_destroy(waiting));
    OK(marline_op_destroy(filled));
    OK(marline_op_destroy(abandoned));
}

static void pointers_and_buffers_have_start_forms(void) {
    static char memory[128];
    marline_region_t region;
    struct marline_region_options options = {.addr = memory, .len = sizeof memory, .min_len = 8};
    OK(marline_region_register(&options, &region));
    marline_op_t op = new_op(), other = new_op();
    atomic_int wakes = 0;
    marline_channel_t channel = make_mode(MARLINE_KIND_RENDEZVOUS, 0, MARLINE_MODE_POINTER);
    void *ptr = NULL;
    size_t len = 0;
    CODE(EINPROGRESS,
         marline_recv_ptr_start(op, channel, &ptr, &len, -1, 0, count_wake, &wakes));
    OK(marline_send_ptr_start(other, channel, memory, 9, -1, 0, count_wake, &wakes));
    OK(marline_op_finish(op));
    CHECK(ptr == memory && len == 9 && wakes == 1);
    CODE(EINPROGRESS,
         marline_send_ptr_start(op, channel, memory, 9, -1, 0, count_wake, &wakes));
    CODE(ECANCELED, marline_op_abandon(op));
    OK(marline_destroy(channel));

    channel = make_mode(MARLINE_KIND_RENDEZVOUS, 0, MARLINE_MODE_DESCRIPTOR);
    struct marline_descriptor descriptor;
    bool copied = true;
    uint64_t count;
    CODE(EINPROGRESS, marline_send_zc_start(op, channel, region, memory, 16, &copied, -1, 0,
                                            count_wake, &wakes));
    CHECK(!copied);
    OK(marline_region_in_flight(region, &count));
    CHECK(count == 1);
    OK(marline_recv_zc_start(other, channel, &descriptor, -1, 0, count_wake, &wakes));
    OK(marline_op_finish(op));
    CHECK(descriptor.addr == memory);
    OK(marline_zc_release(&descriptor));

    CODE(EINPROGRESS, marline_recv_zc_start(other, channel, &descriptor, -1, 0, NULL, NULL));
    OK(marline_send_zc_start(op, channel, region, memory, 4, &copied, -1, 0, NULL, NULL));
    CHECK(copied);
    OK(marline_op_finish(other));
    CHECK(descriptor.flags == MARLINE_ZC_FLAG_COPIED);
    OK(marline_zc_release(&descriptor));

    CODE(EINPROGRESS, marline_send_zc_start(op, channel, region, memory, 16, NULL, -1, 0, NULL, NULL));
    CODE(ECANCELED, marline_op_abandon(op));
    struct marline_zc_counters counters;
    OK(marline_zc_counters(channel, &counters));
    CHECK(counters.sent == 1 && counters.fallback_small == 1 && counters.cancelled == 1);
    OK(marline_op_destroy(op));
    OK(marline_op_destroy(other));
    OK(marline_destroy(channel));
    OK(marline_region_deregister(region, 0));
}

/* ---- a wake_fn that does more than it has to ---- */

struct driver {
    marline_op_t op;
    marline_channel_t channel;
    int value;
    int finished;
};

static void finish_and_start_again(void *user) {
    struct driver *driver = user;
    OK(marline_op_finish(driver->op));
    CHECK(driver->value == driver->finished);
    driver->finished++;
    CODE(EINPROGRESS, marline_recv_start(driver->op, driver->channel, &driver->value,
                                         sizeof driver->value, -1, 0, finish_and_start_again,
                                         driver));
}

static void wake_fn_may_finish_and_start_again(void) {
    struct driver driver = {.op = new_op(), .channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0)};
    CODE(EINPROGRESS, marline_recv_start(driver.op, driver.channel, &driver.value,
                                         sizeof driver.value, -1, 0, finish_and_start_again,
                                         &driver));
    for (int n = 0; n < 100; n++)
        OK(send_int(driver.channel, n, 0));
    CHECK(driver.finished == 100);
    CODE(ECANCELED, marline_op_abandon(driver.op));
    OK(marline_op_destroy(driver.op));
    OK(marline_destroy(driver.channel));
}

static void destroy_itself(void *user) {
    struct driver *driver = user;
    OK(marline_op_finish(driver->op));
    OK(marline_op_destroy(driver->op));
    OK(marline_destroy(driver->channel));
}

static void wake_fn_may_destroy_everything(void) {
    struct driver driver = {.op = new_op(), .channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0)};
    CODE(EINPROGRESS, marline_recv_start(driver.op, driver.channel, &driver.value,
                                         sizeof driver.value, -1, 0, destroy_itself, &driver));
    OK(send_int(driver.channel, 5, 0));
    CHECK(driver.value == 5);
    CODE(EINVAL, marline_destroy(driver.channel));
}

/* on_drop, called from inside a start, uses the operation that is being started. */
static marline_op_t entered;

static void reenter(const struct marline_dropped *what, void *user) {
    (void)what, (void)user;
    int value = 0;
    CODE(EINVAL, marline_op_finish(entered));
    CODE(EINVAL, marline_op_abandon(entered));
    marline_channel_t *channel = user;
    CODE(EINVAL, marline_recv_start(entered, *channel, &value, sizeof value, -1, 0, NULL, NULL));
    OK(marline_op_destroy(entered));
}

static void an_operation_used_inside_itself_is_refused(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_CONFLATED, 0);
    OK(marline_set_on_drop(channel, reenter, &channel));
    entered = new_op();
    int value = 1;
    OK(marline_send_start(entered, channel, &value, sizeof value, -1, 0, NULL, NULL));
    OK(marline_send_start(entered, channel, &value, sizeof value, -1, 0, NULL, NULL));
    CODE(EINVAL, marline_op_destroy(entered));
    OK(marline_set_on_drop(channel, NULL, NULL));
    OK(marline_destroy(channel));
}

int main(void) {
    begin();
    done_at_once_means_no_call();
    pending_is_told_once_and_finished();
    an_abandoned_operation_loses_nothing();
    time_and_tokens_end_operations();
    a_destroyed_channel_ends_pending_operations();
    pointers_and_buffers_have_start_forms();
    wake_fn_may_finish_and_start_again();
    wake_fn_may_destroy_everything();
    an_operation_used_inside_itself_is_refused();
    return 0;
}
