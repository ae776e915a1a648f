/* Selects: one clause happens, the others change nothing, and the select is used again. */
#include "check.h"

static marline_select_t new_select(uint32_t flags) {
    marline_select_t select;
    OK(marline_select_create(flags, &select));
    return select;
}

static void one_clause_happens_and_the_select_is_reused(void) {
    marline_channel_t a = make_ints(MARLINE_KIND_BOUNDED, 1);
    marline_channel_t b = make_ints(MARLINE_KIND_BOUNDED, 1);
    marline_select_t select = new_select(0);
    int from_a = 0, from_b = 0, result = 1;
    size_t index = 99, index_a, index_b;
    OK(marline_select_add_recv(select, a, &from_a, sizeof from_a, &index_a));
    OK(marline_select_add_recv(select, b, &from_b, sizeof from_b, &index_b));
    CHECK(index_a == 0 && index_b == 1);
    CODE(EAGAIN, marline_select_wait(select, &index, &result, 0));
    CODE(ETIME, marline_select_wait(select, &index, &result, 5));
    CHECK(index == 99 && result == 1); /* no clause happened */
    for (int n = 1; n <= 100; n++) {
        OK(send_int(n % 2 ? a : b, n, 0));
        OK(marline_select_wait(select, &index, &result, -1));
        CHECK(result == 0 && index == (n % 2 ? index_a : index_b));
        CHECK((n % 2 ? from_a : from_b) == n);
    }
    CHECK(snapshot_of(a).waiting_recv == 0); /* nothing is left behind between waits */
    OK(marline_select_destroy(select));
    OK(marline_destroy(a));
    OK(marline_destroy(b));
}

static void turns_are_fair_unless_biased(void) {
    marline_channel_t a = make_ints(MARLINE_KIND_UNBOUNDED, 0);
    marline_channel_t b = make_ints(MARLINE_KIND_UNBOUNDED, 0);
    for (int n = 0; n < 100; n++) {
        OK(send_int(a, n, 0));
        OK(send_int(b, n, 0));
    }
    for (int biased = 0; biased <= 1; biased++) {
        marline_select_t select = new_select(biased ? MARLINE_SELECT_FLAG_BIASED : 0);
        int value, result, times[2] = {0, 0};
        size_t index;
        OK(marline_select_add_recv(select, a, &value, sizeof value, NULL));
        OK(marline_select_add_recv(select, b, &value, sizeof value, NULL));
        for (int n = 0; n < 40; n++) {
            OK(marline_select_wait(select, &index, &result, 0));
            OK(result);
            times[index]++;
        }
        if (biased)
            CHECK(times[0] == 40);
        else
            CHECK(times[0] >= 10 && times[1] >= 10);
        OK(marline_select_destroy(select));
    }
    OK(marline_destroy(a));
    OK(marline_destroy(b));
}

static void a_send_clause_sends_once_until_it_is_refilled(void) {
    marline_channel_t out = make_ints(MARLINE_KIND_BOUNDED, 1);
    marline_channel_t in = make_ints(MARLINE_KIND_BOUNDED, 1);
    marline_select_t select = new_select(MARLINE_SELECT_FLAG_BIASED);
    int value = 1, received, result;
    size_t index, sends, recvs;
    OK(marline_select_add_send(select, out, &value, sizeof value, &sends));
    value = 0; /* the value was copied */
    OK(marline_select_add_recv(select, in, &received, sizeof received, &recvs));
    OK(marline_select_wait(select, &index, &result, 0));
    CHECK(index == sends && result == 0 && recv_int(out) == 1);
    CODE(EAGAIN, marline_select_wait(select, &index, &result, 0)); /* nothing left to send */
    value = 2;
    OK(marline_select_refill(select, sends, &value, sizeof value));
    value = 3;
    OK(marline_select_refill(select, sends, &value, sizeof value)); /* instead of the 2 */
    CODE(EINVAL, marline_select_refill(select, recvs, &value, sizeof value));
    OK(marline_select_wait(select, &index, &result, 0));
    CHECK(index == sends && result == 0);
    OK(send_int(in, 9, 0));
    OK(marline_select_wait(select, &index, &result, 0));
    CHECK(index == recvs && result == 0 && received == 9);
    CHECK(recv_int(out) == 3);

    /* Only spent clauses: a wait would never end. */
    OK(marline_select_reset(select));
    OK(marline_select_add_send(select, out, &value, sizeof value, NULL));
    OK(marline_select_wait(select, &index, &result, -1));
    CODE(EINVAL, marline_select_wait(select, &index, &result, -1));
    OK(marline_select_destroy(select));
    OK(marline_destroy(out));
    OK(marline_destroy(in));
}

static void closed_channels_are_results_or_skipped(void) {
    marline_channel_t closed = make_ints(MARLINE_KIND_BOUNDED, 1);
    marline_channel_t open = make_ints(MARLINE_KIND_BOUNDED, 1);
    OK(marline_close(closed));
    int value = 0, result;
    size_t index;
    marline_select_t select = new_select(0);
    OK(marline_select_add_recv(select, closed, &value, sizeof value, NULL));
    OK(marline_select_wait(select, &index, &result, -1)); /* the wait succeeded … */
    CODE(EPIPE, result);                                  /* … its clause did not */
    OK(marline_select_reset(select));
    OK(marline_select_add_send(select, closed, &value, sizeof value, NULL));
    OK(marline_select_wait(select, &index, &result, -1));
    CODE(EPIPE, result);
    OK(marline_select_destroy(select));

    select = new_select(MARLINE_SELECT_FLAG_SKIP_CLOSED);
    OK(marline_select_add_recv(select, closed, &value, sizeof value, NULL));
    OK(marline_select_add_recv(select, open, &value, sizeof value, NULL));
    CODE(EAGAIN, marline_select_wait(select, &index, &result, 0));
    OK(send_int(open, 4, 0));
    OK(marline_select_wait(select, &index, &result, -1));
    CHECK(index == 1 && result == 0 && value == 4);
    OK(marline_close(open));
    CODE(EPIPE, marline_select_wait(select, &index, &result, -1)); /* all channels are closed */
    OK(marline_select_destroy(select));
    OK(marline_destroy(closed));
    OK(marline_destroy(open));
}

static void pointers_and_buffers_are_clauses_too(void) {
    static char memory[256];
    marline_region_t region;
    struct marline_region_options options = {.addr = memory, .len = sizeof memory, .min_len = 16};
    OK(marline_region_register(&options, &region));
    marline_channel_t pointers = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_POINTER);
    marline_channel_t buffers = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_DESCRIPTOR);
    marline_select_t select = new_select(MARLINE_SELECT_FLAG_BIASED);
    int one = 1, two = 2, result;
    void *ptr = NULL;
    size_t len = 0, index, send_ptr, send_zc;
    struct marline_descriptor descriptor;
    bool copied = true;
    OK(marline_select_add_send_ptr(select, pointers, &one, 11, &send_ptr));
    OK(marline_select_add_send_zc(select, buffers, region, memory, 32, &copied, &send_zc));
    CHECK(!copied);
    OK(marline_select_wait(select, &index, &result, 0));
    CHECK(index == send_ptr && result == 0);
    OK(marline_select_wait(select, &index, &result, 0));
    CHECK(index == send_zc && result == 0);
    OK(marline_select_refill_ptr(select, send_ptr, &two, 22));
    OK(marline_select_refill_zc(select, send_zc, region, memory, 8, &copied));
    CHECK(copied);
    CODE(EAGAIN, marline_select_wait(select, &index, &result, 0)); /* both channels are full */

    marline_select_t receiving = new_select(MARLINE_SELECT_FLAG_BIASED);
    OK(marline_select_add_recv_ptr(receiving, pointers, &ptr, &len, NULL));
    OK(marline_select_add_recv_zc(receiving, buffers, &descriptor, NULL));
    OK(marline_select_wait(receiving, &index, &result, 0));
    CHECK(index == 0 && result == 0 && ptr == &one && len == 11);
    OK(marline_select_wait(receiving, &index, &result, 0));
    CHECK(index == 1 && result == 0 && descriptor.addr == memory && descriptor.len == 32);
    OK(marline_zc_release(&descriptor));
    OK(marline_select_destroy(receiving));

    /* An element that a clause has not sent is given back with the clause. */
    OK(marline_select_refill_zc(select, send_zc, region, memory, 64, &copied));
    uint64_t count;
    OK(marline_region_in_flight(region, &count));
    CHECK(!copied && count == 1);
    OK(marline_select_destroy(select));
    OK(marline_region_deregister(region, 0));
    OK(marline_destroy(pointers));
    OK(marline_destroy(buffers));
}

/* ---- waits that other threads end ---- */

struct waiter {
    marline_select_t select;
    marline_token_t token;
    int code, result;
    size_t index;
};

static void *wait_body(void *user) {
    struct waiter *waiter = user;
    waiter->code = marline_select_wait_c(waiter->select, &waiter->index, &waiter->result, -1,
                                         waiter->token);
    return NULL;
}

static void a_parked_select_is_ended_by_peers_tokens_and_ends(void) {
    marline_channel_t in = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_channel_t out = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_token_t token;
    OK(marline_token_create(&token));
    marline_select_t select = new_select(0);
    int received = 0, sent = 6;
    OK(marline_select_add_recv(select, in, &received, sizeof received, NULL));
    OK(marline_select_add_send(select, out, &sent, sizeof sent, NULL));
#define PARK(waiter)                                                                              \
    pthread_t thread = spawn(wait_body, &waiter);                                                 \
    UNTIL(snapshot_of(in).waiting_recv == 1 && snapshot_of(out).waiting_send == 1)
    {
        struct waiter waiter = {.select = select, .code = 1};
        PARK(waiter);
        size_t index;
        int result;
        CODE(EINVAL, marline_select_wait(select, &index, &result, 0)); /* one thread at a time */
        CODE(EINVAL, marline_select_reset(select));
        OK(send_int(in, 5, BOUND_MS));
        join(thread);
        OK(waiter.code);
        OK(waiter.result);
        CHECK(waiter.index == 0 && received == 5);
    }
    {
        struct waiter waiter = {.select = select, .token = token, .code = 1};
        PARK(waiter);
        CHECK(recv_int(out) == 6);
        join(thread);
        OK(waiter.code);
        OK(waiter.result);
        CHECK(waiter.index == 1);
    }
    OK(marline_select_refill(select, 1, &sent, sizeof sent));
    {
        struct waiter waiter = {.select = select, .token = token, .code = 1};
        PARK(waiter);
        OK(marline_token_trigger(token));
        join(thread);
        CODE(ECANCELED, waiter.code);
    }
    {
        struct waiter waiter = {.select = select, .code = 1}; /* without the token it waits */
        PARK(waiter);
        OK(marline_destroy(out)); /* a clause's channel: the clause's result */
        join(thread);
        OK(waiter.code);
        CODE(EPIPE, waiter.result);
        CHECK(waiter.index == 1);
    }
    {
        struct waiter waiter = {.select = select, .code = 1};
        pthread_t thread = spawn(wait_body, &waiter);
        UNTIL(snapshot_of(in).waiting_recv == 1);
        OK(marline_select_destroy(select)); /* the select itself: the wait's result */
        join(thread);
        CODE(EPIPE, waiter.code);
        CODE(EINVAL, marline_select_destroy(select));
    }
    CHECK(snapshot_of(in).waiting_recv == 0);
    OK(marline_token_destroy(token));
    OK(marline_destroy(in));
}

/* Two selects hand numbers to each other, each number once. */
struct player {
    marline_channel_t in, out;
    int sum;
};

#define HANDS 500

static void *play(void *user) {
    struct player *player = user;
    marline_select_t select = new_select(0);
    int received, sent = 0, left_in = HANDS, left_out = HANDS, result;
    size_t index;
    OK(marline_select_add_recv(select, player->in, &received, sizeof received, NULL));
    OK(marline_select_add_send(select, player->out, &sent, sizeof sent, NULL));
    while (left_in > 0 || left_out > 0) {
        OK(marline_select_wait(select, &index, &result, BOUND_MS));
        OK(result);
        if (index == 0) {
            player->sum += received;
            left_in--;
        } else if (--left_out > 0) {
            sent++;
            OK(marline_select_refill(select, 1, &sent, sizeof sent));
        }
    }
    OK(marline_select_destroy(select));
    return NULL;
}

static void two_selects_meet(void) {
    marline_channel_t there = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_channel_t back = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    struct player players[] = {{.in = there, .out = back}, {.in = back, .out = there}};
    pthread_t threads[] = {spawn(play, &players[0]), spawn(play, &players[1])};
    join(threads[0]);
    join(threads[1]);
    CHECK(players[0].sum == HANDS * (HANDS - 1) / 2 && players[1].sum == players[0].sum);
    OK(marline_destroy(there));
    OK(marline_destroy(back));
}

/* ---- start forms ---- */

static void count_wake(void *user) {
    ++*(int *)user;
}

static void a_select_can_be_started_finished_and_abandoned(void) {
    marline_channel_t in = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_channel_t out = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_select_t select = new_select(0);
    int received = 0, sent = 6, result = 1, wakes = 0;
    size_t index = 99;
    OK(marline_select_add_recv(select, in, &received, sizeof received, NULL));
    OK(marline_select_add_send(select, out, &sent, sizeof sent, NULL));
    CODE(EAGAIN, marline_select_start(select, &index, &result, 0, 0, count_wake, &wakes));

    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, 0, count_wake, &wakes));
    CODE(EINPROGRESS, marline_select_finish(select, &index, &result));
    CHECK(wakes == 0);
    OK(send_int(in, 5, 0)); /* into the waiting clause */
    CHECK(wakes == 1);
    OK(marline_select_finish(select, &index, &result));
    CHECK(index == 0 && result == 0 && received == 5);

    /* A select that is given up before a clause happens. */
    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, 0, count_wake, &wakes));
    CODE(ECANCELED, marline_select_abandon(select, &index, &result));
    CODE(EAGAIN, send_int(in, 7, 0));
    CHECK(wakes == 1);

    /* A receive clause that was given an element puts it back. */
    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, 0, count_wake, &wakes));
    OK(send_int(in, 8, 0));
    received = 0;
    CODE(ECANCELED, marline_select_abandon(select, &index, &result));
    CHECK(received == 0 && wakes == 2);
    CHECK(recv_int(in) == 8);

    /* A send clause whose element was taken has happened. */
    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, 0, count_wake, &wakes));
    CHECK(recv_int(out) == 6);
    OK(marline_select_abandon(select, &index, &result));
    CHECK(index == 1 && result == 0 && wakes == 3);

    /* A wait that ends at once. */
    int value;
    marline_op_t op;
    OK(marline_op_create(&op));
    CODE(EINPROGRESS, marline_recv_start(op, out, &value, sizeof value, -1, 0, NULL, NULL));
    OK(marline_select_refill(select, 1, &sent, sizeof sent));
    OK(marline_select_start(select, &index, &result, -1, 0, count_wake, &wakes));
    CHECK(index == 1 && result == 0 && wakes == 3);
    OK(marline_op_finish(op));
    OK(marline_op_destroy(op));

    /* Timeouts and tokens. */
    marline_token_t token;
    OK(marline_token_create(&token));
    wakes = 0;
    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, token, count_wake, &wakes));
    OK(marline_token_trigger(token));
    CHECK(wakes == 1);
    CODE(ECANCELED, marline_select_finish(select, &index, &result));
    CODE(ECANCELED, marline_select_start(select, &index, &result, -1, token, count_wake, &wakes));
    int code = marline_select_start(select, &index, &result, 5, 0, NULL, NULL);
    for (int64_t end = now_ms() + BOUND_MS; code == -EINPROGRESS;) {
        CHECK(now_ms() < end);
        code = marline_select_finish(select, &index, &result);
    }
    CODE(ETIME, code);

    /* Destroyed while it is pending. */
    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, 0, count_wake, &wakes));
    OK(marline_select_destroy(select));
    CODE(EINVAL, marline_select_finish(select, &index, &result));
    CODE(EAGAIN, send_int(in, 9, 0));
    CHECK(wakes == 1);
    OK(marline_token_destroy(token));
    OK(marline_destroy(in));
    OK(marline_destroy(out));
}

static void a_started_select_that_skips_closed_channels_waits_on(void) {
    marline_channel_t a = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_channel_t b = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_select_t select = new_select(MARLINE_SELECT_FLAG_SKIP_CLOSED);
    int value, result, wakes = 0;
    size_t index;
    OK(marline_select_add_recv(select, a, &value, sizeof value, NULL));
    OK(marline_select_add_recv(select, b, &value, sizeof value, NULL));
    CODE(EINPROGRESS, marline_select_start(select, &index, &result, -1, 0, count_wake, &wakes));
    OK(marline_close(a));
    CODE(EINPROGRESS, marline_select_finish(select, &index, &result));
    int before = wakes;
    OK(send_int(b, 3, 0));
    CHECK(wakes == before + 1); /* wake_fn is called again */
    OK(marline_select_finish(select, &index, &result));
    CHECK(index == 1 && result == 0 && value == 3);
    OK(marline_select_destroy(select));
    OK(marline_destroy(a));
    OK(marline_destroy(b));
}

static void many_clauses(void) {
    enum { COUNT = 40 };
    marline_channel_t channels[COUNT];
    marline_select_t select = new_select(0);
    int value, result;
    size_t index;
    for (int n = 0; n < COUNT; n++) {
        channels[n] = make_ints(MARLINE_KIND_BOUNDED, 1);
        OK(marline_select_add_recv(select, channels[n], &value, sizeof value, &index));
        CHECK(index == (size_t)n);
    }
    for (int n = 0; n < COUNT; n++) {
        OK(send_int(channels[n], n, 0));
        OK(marline_select_wait(select, &index, &result, -1));
        CHECK(index == (size_t)n && result == 0 && value == n);
    }
    for (int n = 0; n < COUNT; n++)
        OK(marline_destroy(channels[n]));
    OK(marline_select_wait(select, &index, &result, -1)); /* the select keeps the closed channel */
    CODE(EPIPE, result);
    OK(marline_select_destroy(select));
}

int main(void) {
    begin();
    one_clause_happens_and_the_select_is_reused();
    turns_are_fair_unless_biased();
    a_send_clause_sends_once_until_it_is_refilled();
    closed_channels_are_results_or_skipped();
    pointers_and_buffers_are_clauses_too();
    a_parked_select_is_ended_by_peers_tokens_and_ends();
    two_selects_meet();
    a_select_can_be_started_finished_and_abandoned();
    a_started_select_that_skips_closed_channels_waits_on();
    many_clauses();
    return 0;
}
