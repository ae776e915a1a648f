/* How waits end: by a peer, by time, by a token, by a close, by a destroy, by a signal. */
#include "check.h"

#include <signal.h>
#include <stdatomic.h>

struct waiter {
    marline_channel_t channel;
    marline_token_t token;
    int64_t timeout_ms;
    int code;
    int value;
};

static void *recv_body(void *user) {
    struct waiter *waiter = user;
    waiter->code = marline_recv_c(waiter->channel, &waiter->value, sizeof waiter->value,
                                  waiter->timeout_ms, waiter->token);
    return NULL;
}

static void *send_body(void *user) {
    struct waiter *waiter = user;
    waiter->code = marline_send_c(waiter->channel, &waiter->value, sizeof waiter->value,
                                  waiter->timeout_ms, waiter->token);
    return NULL;
}

#define PARKED 4

static void destroy_wakes_parked_receivers_with_epipe(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_BOUNDED, 2);
    struct waiter waiters[PARKED];
    pthread_t threads[PARKED];
    for (int n = 0; n < PARKED; n++) {
        waiters[n] = (struct waiter){.channel = channel, .timeout_ms = -1, .code = 1};
        threads[n] = spawn(recv_body, &waiters[n]);
    }
    UNTIL(snapshot_of(channel).waiting_recv == PARKED);
    OK(marline_destroy(channel));
    for (int n = 0; n < PARKED; n++) {
        join(threads[n]);
        CODE(EPIPE, waiters[n].code);
    }
    CODE(EINVAL, marline_destroy(channel));
}

static void destroy_wakes_parked_senders_with_epipe(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    struct waiter waiters[PARKED];
    pthread_t threads[PARKED];
    for (int n = 0; n < PARKED; n++) {
        waiters[n] = (struct waiter){.channel = channel, .timeout_ms = BOUND_MS, .code = 1};
        threads[n] = spawn(send_body, &waiters[n]);
    }
    UNTIL(snapshot_of(channel).waiting_send == PARKED);
    OK(marline_destroy(channel));
    for (int n = 0; n < PARKED; n++) {
        join(threads[n]);
        CODE(EPIPE, waiters[n].code);
    }
}

static void close_wakes_both_sides_with_epipe(void) {
    marline_channel_t empty = make_ints(MARLINE_KIND_BOUNDED, 1);
    marline_channel_t full = make_ints(MARLINE_KIND_BOUNDED, 1);
    OK(send_int(full, 1, 0));
    struct waiter receiver = {.channel = empty, .timeout_ms = -1, .code = 1};
    struct waiter sender = {.channel = full, .timeout_ms = -1, .code = 1};
    pthread_t threads[] = {spawn(recv_body, &receiver), spawn(send_body, &sender)};
    UNTIL(snapshot_of(empty).waiting_recv == 1 && snapshot_of(full).waiting_send == 1);
    OK(marline_close(empty));
    OK(marline_close(full));
    join(threads[0]);
    join(threads[1]);
    CODE(EPIPE, receiver.code);
    CODE(EPIPE, sender.code);
    CHECK(recv_int(full) == 1);
    OK(marline_destroy(empty));
    OK(marline_destroy(full));
}

static void time_runs_out(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_BOUNDED, 1);
    int value = 5;
    int64_t before = now_ms();
    CODE(ETIME, marline_recv(channel, &value, sizeof value, 20));
    CHECK(now_ms() - before >= 19);
    CHECK(value == 5);
    OK(send_int(channel, 1, 20)); /* room: no wait */
    CODE(ETIME, send_int(channel, 2, 20));
    CHECK(recv_int(channel) == 1);
    CODE(EAGAIN, marline_recv(channel, &value, sizeof value, 0)); /* the late send never happened */
    struct marline_snapshot snapshot = snapshot_of(channel);
    CHECK(snapshot.recv_timeout == 1 && snapshot.send_timeout == 1 && snapshot.recv_empty == 1);
    OK(marline_destroy(channel));
}

static void a_token_ends_waits_and_beats_everything(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_token_t parent, child;
    bool is_set = true;
    OK(marline_token_create(&parent));
    OK(marline_token_child(parent, &child));
    OK(marline_token_is_set(child, &is_set));
    CHECK(!is_set);
    struct waiter receiver = {.channel = channel, .token = child, .timeout_ms = -1, .code = 1};
    pthread_t thread = spawn(recv_body, &receiver);
    UNTIL(snapshot_of(channel).waiting_recv == 1);
    OK(marline_token_trigger(parent));
    join(thread);
    CODE(ECANCELED, receiver.code);
    OK(marline_token_is_set(child, &is_set));
    CHECK(is_set);
    OK(marline_token_trigger(parent));

    /* A token that was triggered before: no attempt, whatever the timeout. */
    int value = 0;
    int64_t times[] = {0, -1, 10};
    for (int n = 0; n < 3; n++) {
        CODE(ECANCELED, marline_send_c(channel, &value, sizeof value, times[n], child));
        CODE(ECANCELED, marline_recv_c(channel, &value, sizeof value, times[n], child));
    }
    OK(marline_token_destroy(parent));
    OK(marline_token_is_set(child, &is_set)); /* outlives its parent's handle */
    CHECK(is_set);
    OK(marline_token_destroy(child));

    /* A child by itself. A destroyed token stays untriggered, and operations that have it keep it. */
    OK(marline_token_create(&parent));
    OK(marline_token_child(parent, &child));
    OK(marline_token_trigger(child));
    OK(marline_token_is_set(parent, &is_set));
    CHECK(!is_set);
    receiver = (struct waiter){.channel = channel, .token = parent, .timeout_ms = -1, .code = 1};
    thread = spawn(recv_body, &receiver);
    UNTIL(snapshot_of(channel).waiting_recv == 1);
    OK(marline_token_destroy(parent));
    OK(send_int(channel, 7, BOUND_MS));
    join(thread);
    OK(receiver.code);
    CHECK(receiver.value == 7);
    OK(marline_token_destroy(child));
    OK(marline_destroy(channel));
}

static atomic_int signals;

static void on_signal(int number) {
    (void)number;
    signals++;
}

struct interrupted {
    struct waiter waiter;
    pthread_t thread;
    atomic_bool done;
};

static void *interrupted_recv(void *user) {
    struct interrupted *self = user;
    recv_body(&self->waiter);
    self->done = true;
    return NULL;
}

static void *interrupted_send(void *user) {
    struct interrupted *self = user;
    send_body(&self->waiter);
    self->done = true;
    return NULL;
}

static void an_interruptible_wait_ends_with_a_signal(void) {
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    marline_channel_t channel = make((struct marline_options){
        .kind = MARLINE_KIND_RENDEZVOUS,
        .element_size = sizeof(int),
        .flags = MARLINE_CHANNEL_FLAG_INTERRUPTIBLE});
    void *(*bodies[])(void *) = {interrupted_recv, interrupted_send};
    for (int n = 0; n < 2; n++) {
        struct interrupted self = {.waiter = {.channel = channel, .timeout_ms = BOUND_MS}};
        self.thread = spawn(bodies[n], &self);
        UNTIL(snapshot_of(channel).waiting_recv + snapshot_of(channel).waiting_send == 1);
        /* Until the thread sleeps, a signal may come too early to be seen. */
        UNTIL(self.done || (pthread_kill(self.thread, SIGUSR1), sched_yield(), self.done));
        join(self.thread);
        CODE(EINTR, self.waiter.code);
    }
    CHECK(signals > 0);
    struct marline_snapshot snapshot = snapshot_of(channel);
    CHECK(snapshot.sends == 0 && snapshot.waiting_recv == 0 && snapshot.waiting_send == 0);
    /* Without a signal it is a channel like any other. */
    struct waiter sender = {.channel = channel, .timeout_ms = -1, .value = 3};
    pthread_t thread = spawn(send_body, &sender);
    CHECK(recv_int(channel) == 3);
    join(thread);
    OK(sender.code);
    OK(marline_destroy(channel));
}

struct interrupted_select {
    marline_select_t select;
    int code, result;
    size_t index;
    atomic_bool done;
};

static void *interrupted_wait(void *user) {
    struct interrupted_select *self = user;
    self->code = marline_select_wait(self->select, &self->index, &self->result, BOUND_MS);
    self->done = true;
    return NULL;
}

static void an_interruptible_select_ends_with_a_signal(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    int received = 0;
    struct interrupted_select self = {.code = 1};
    OK(marline_select_create(MARLINE_SELECT_FLAG_INTERRUPTIBLE, &self.select));
    OK(marline_select_add_recv(self.select, channel, &received, sizeof received, NULL));
    pthread_t thread = spawn(interrupted_wait, &self);
    UNTIL(snapshot_of(channel).waiting_recv == 1);
    UNTIL(self.done || (pthread_kill(thread, SIGUSR1), sched_yield(), self.done));
    join(thread);
    CODE(EINTR, self.code);
    CHECK(snapshot_of(channel).waiting_recv == 0);
    /* The channel works as before. */
    self.done = false;
    thread = spawn(interrupted_wait, &self);
    OK(send_int(channel, 6, BOUND_MS));
    join(thread);
    OK(self.code);
    OK(self.result);
    CHECK(received == 6);
    OK(marline_select_destroy(self.select));
    OK(marline_destroy(channel));
}

int main(void) {
    begin();
    destroy_wakes_parked_receivers_with_epipe();
    destroy_wakes_parked_senders_with_epipe();
    close_wakes_both_sides_with_epipe();
    time_runs_out();
    a_token_ends_waits_and_beats_everything();
    an_interruptible_wait_ends_with_a_signal();
    an_interruptible_select_ends_with_a_signal();
    return 0;
}
