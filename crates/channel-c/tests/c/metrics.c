/* Snapshots, rates, subscriptions and dumps. */
#include "check.h"

#include <stdatomic.h>

static void a_snapshot_counts_what_happened(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_BOUNDED, 4);
    struct marline_snapshot before = snapshot_of(channel);
    CHECK(before.version == 1 && before.kind == MARLINE_KIND_BOUNDED && before.capacity == 4);
    CHECK(before.senders == 1 && before.receivers == 1 && !before.closed && before.sends == 0);
    for (int n = 0; n < 4; n++)
        OK(send_int(channel, n, 0));
    CODE(EAGAIN, send_int(channel, 4, 0));
    CHECK(recv_int(channel) == 0);
    OK(marline_close(channel));
    CODE(EPIPE, send_int(channel, 4, 0));
    struct marline_snapshot after = snapshot_of(channel);
    CHECK(after.len == 3 && after.high_water == 4 && after.closed);
    CHECK(after.sends == 4 && after.recvs == 1 && after.bytes_sent == 16);
    CHECK(after.bytes_received == 4 && after.send_full == 1 && after.send_closed == 1);
    CHECK(after.recv_empty == 0 && after.recv_closed == 0 && after.undelivered == 0);
    CHECK(after.first_operation_ns > 0 && after.last_operation_ns >= after.first_operation_ns);
    CHECK(after.at_ns >= after.last_operation_ns && after.at_ns >= before.at_ns);

    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    CHECK(after.at_ns / 1000000000 <= (uint64_t)time.tv_sec);
    CHECK((uint64_t)time.tv_sec - after.at_ns / 1000000000 <= BOUND_MS / 1000);

    struct marline_rate rate;
    OK(marline_rate(&before, &after, &rate));
    CHECK(rate.sends > 0 && rate.recvs > 0 && rate.bytes_sent > rate.bytes_received);
    CHECK(rate.sends > 3.9 * rate.recvs && rate.sends < 4.1 * rate.recvs);
    OK(marline_rate(&after, &after, &rate));
    CHECK(rate.sends == 0.0);
    after.version = 2;
    CODE(EINVAL, marline_rate(&before, &after, &rate));
    CODE(EINVAL, marline_rate(&before, NULL, &rate));
    OK(marline_destroy(channel));

    channel = make_ints(MARLINE_KIND_UNBOUNDED, 0);
    CHECK(snapshot_of(channel).capacity == UINT64_MAX);
    OK(marline_destroy(channel));
}

struct seen {
    atomic_int calls;
    atomic_uint_fast64_t sends;
    atomic_bool closed;
    marline_subscription_t subscription;
};

static void see(const struct marline_snapshot *snapshot, void *user) {
    struct seen *seen = user;
    CHECK(snapshot->version == 1);
    seen->calls++;
    seen->sends = snapshot->sends;
    seen->closed = snapshot->closed;
}

static void see_once(const struct marline_snapshot *snapshot, void *user) {
    struct seen *seen = user;
    see(snapshot, user);
    OK(marline_metrics_unsubscribe(seen->subscription)); /* from inside the callback itself */
}

static void snapshots_are_pushed(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_UNBOUNDED, 0);
    struct seen every = {.calls = 0}, rarely = {.calls = 0}, once = {.calls = 0};
    OK(marline_metrics_subscribe(channel, 1, 0, see, &every, &every.subscription));
    OK(marline_metrics_subscribe(channel, 1, 3600000, see, &rarely, &rarely.subscription));
    OK(marline_metrics_subscribe(channel, 1, 0, see_once, &once, &once.subscription));
    for (int n = 0; n < 200; n++)
        OK(send_int(channel, n, 0));
    CHECK(every.calls >= 3 && every.sends > 0);
    CHECK(rarely.calls == 1);
    CHECK(once.calls == 1);
    CODE(EINVAL, marline_metrics_unsubscribe(once.subscription));
    int calls = every.calls;
    OK(marline_metrics_unsubscribe(every.subscription));
    CODE(EINVAL, marline_metrics_unsubscribe(every.subscription));
    for (int n = 0; n < 200; n++)
        OK(send_int(channel, n, 0));
    CHECK(every.calls == calls);
    OK(marline_close(channel)); /* pushes a last snapshot */
    CHECK(rarely.calls == 2 && rarely.closed && rarely.sends == 400);
    OK(marline_destroy(channel));
    OK(marline_metrics_unsubscribe(rarely.subscription)); /* outlives its channel */
}

/* Unsubscribes while other threads push: after that no call comes. */
struct busy {
    marline_channel_t channel;
    atomic_bool stop;
};

static void *use(void *user) {
    struct busy *busy = user;
    for (int n = 0; !busy->stop; n++) {
        OK(send_int(busy->channel, n, -1));
        recv_int(busy->channel);
    }
    return NULL;
}

static void see_alive(const struct marline_snapshot *snapshot, void *user) {
    (void)snapshot;
    CHECK(atomic_load((atomic_int *)user) == 42);
}

static void no_call_comes_after_unsubscribe(void) {
    struct busy busy = {.channel = make_ints(MARLINE_KIND_BOUNDED, 64)};
    pthread_t threads[] = {spawn(use, &busy), spawn(use, &busy)};
    for (int round = 0; round < 50; round++) {
        atomic_int *alive = malloc(sizeof *alive);
        atomic_init(alive, 42);
        marline_subscription_t subscription;
        OK(marline_metrics_subscribe(busy.channel, 1, 0, see_alive, alive, &subscription));
        uint64_t sends = snapshot_of(busy.channel).sends;
        UNTIL(snapshot_of(busy.channel).sends > sends + 20);
        OK(marline_metrics_unsubscribe(subscription));
        atomic_store(alive, 0);
        free(alive);
    }
    busy.stop = true;
    join(threads[0]);
    join(threads[1]);
    OK(marline_destroy(busy.channel));
}

static void a_dump_is_one_line(void) {
    marline_channel_t channel = make((struct marline_options){.kind = MARLINE_KIND_BOUNDED,
                                                              .capacity = 8,
                                                              .element_size = 16,
                                                              .name = "two\nlines"});
    char text[512] = "x", element[16] = {0};
    size_t len = 0;
    OK(marline_send(channel, element, sizeof element, 0));
    OK(marline_dump(channel, text, sizeof text, &len));
    CHECK(len == strlen(text) && len > 40 && strchr(text, '\n') == NULL);
    CHECK(strstr(text, "bounded") && strstr(text, "capacity=8") && strstr(text, "len=1"));
    CHECK(strstr(text, "copy(16)") && strstr(text, "two") && strstr(text, "closed=false"));

    char short_text[10];
    size_t full = 0;
    CODE(EMSGSIZE, marline_dump(channel, short_text, sizeof short_text, &full));
    CHECK(full == len && strlen(short_text) == 9 && strncmp(text, short_text, 9) == 0);
    CODE(EMSGSIZE, marline_dump(channel, NULL, 0, &full));
    CHECK(full == len);
    CODE(EMSGSIZE, marline_dump(channel, text, len, NULL));
    OK(marline_dump(channel, text, len + 1, NULL));
    OK(marline_destroy(channel));

    channel = make_mode(MARLINE_KIND_UNBOUNDED, 0, MARLINE_MODE_POINTER);
    OK(marline_dump(channel, text, sizeof text, NULL));
    CHECK(strstr(text, "pointer") && strstr(text, "capacity=none"));
    OK(marline_destroy(channel));
}

int main(void) {
    begin();
    a_snapshot_counts_what_happened();
    snapshots_are_pushed();
    no_call_comes_after_unsubscribe();
    a_dump_is_one_line();
    return 0;
}
