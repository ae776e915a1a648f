/* Pointer elements, overflow policies, and on_drop: each undelivered element exactly once. */
#include "check.h"

#include <stdatomic.h>

#define MOST 4096

/* How often each number was dropped. */
struct ledger {
    atomic_int times[MOST];
    atomic_int total;
    uint32_t mode;
};

static void book(const struct marline_dropped *dropped, void *user) {
    struct ledger *ledger = user;
    CHECK(dropped->mode == ledger->mode && dropped->reserved == 0);
    int number;
    if (dropped->mode == MARLINE_MODE_COPY) {
        CHECK(dropped->len == sizeof number);
        memcpy(&number, dropped->ptr, sizeof number);
    } else {
        CHECK(dropped->len == 77);
        number = *(int *)dropped->ptr;
        free(dropped->ptr);
    }
    CHECK(number >= 0 && number < MOST);
    CHECK(atomic_fetch_add(&ledger->times[number], 1) == 0);
    atomic_fetch_add(&ledger->total, 1);
}

static struct ledger *new_ledger(uint32_t mode) {
    struct ledger *ledger = calloc(1, sizeof *ledger);
    CHECK(ledger != NULL);
    ledger->mode = mode;
    return ledger;
}

static int *number(int n) {
    int *pointer = malloc(sizeof *pointer);
    CHECK(pointer != NULL);
    *pointer = n;
    return pointer;
}

static void overflow_drops_go_to_on_drop(void) {
    struct ledger *ledger = new_ledger(MARLINE_MODE_COPY);
    marline_channel_t channel = make((struct marline_options){
        .kind = MARLINE_KIND_BOUNDED,
        .capacity = 2,
        .element_size = sizeof(int),
        .overflow = MARLINE_OVERFLOW_DROP_OLDEST,
        .on_drop = book,
        .on_drop_user = ledger});
    for (int n = 0; n < 5; n++)
        OK(send_int(channel, n, 0));
    CHECK(ledger->total == 3 && ledger->times[0] && ledger->times[1] && ledger->times[2]);
    OK(marline_set_overflow(channel, MARLINE_OVERFLOW_DROP_NEWEST));
    OK(send_int(channel, 5, -1)); /* calls on_drop before it returns */
    CHECK(ledger->times[5] == 1);
    OK(marline_set_overflow(channel, MARLINE_OVERFLOW_BLOCK));
    CODE(EAGAIN, send_int(channel, 6, 0));
    CHECK(recv_int(channel) == 3 && recv_int(channel) == 4);
    struct marline_snapshot snapshot = snapshot_of(channel);
    CHECK(snapshot.dropped_oldest == 3 && snapshot.dropped_newest == 1);
    CHECK(ledger->total == 4);
    OK(marline_destroy(channel));
    CHECK(ledger->total == 4);
    free(ledger);
}

static void destroy_gives_what_is_inside_to_on_drop(void) {
    struct ledger *ledger = new_ledger(MARLINE_MODE_POINTER);
    marline_channel_t channel = make_mode(MARLINE_KIND_UNBOUNDED, 0, MARLINE_MODE_POINTER);
    for (int n = 0; n < 100; n++)
        OK(marline_send_ptr(channel, number(n), 77, 0));
    OK(marline_set_on_drop(channel, book, ledger)); /* at any time */
    void *ptr;
    size_t len;
    OK(marline_recv_ptr(channel, &ptr, &len, 0));
    CHECK(*(int *)ptr == 0 && len == 77);
    free(ptr);
    OK(marline_close(channel)); /* drops nothing: receivers may still come */
    CHECK(ledger->total == 0);
    OK(marline_destroy(channel));
    CHECK(ledger->total == 99 && ledger->times[0] == 0);
    free(ledger);
}

static void nobody_is_told_when_nobody_is_set(void) {
    struct ledger *ledger = new_ledger(MARLINE_MODE_COPY);
    marline_channel_t channel = make_ints(MARLINE_KIND_CONFLATED, 0);
    OK(marline_set_on_drop(channel, book, ledger));
    OK(send_int(channel, 0, 0));
    OK(send_int(channel, 1, 0));
    CHECK(ledger->total == 1);
    OK(marline_set_on_drop(channel, NULL, NULL));
    OK(send_int(channel, 2, 0));
    OK(marline_destroy(channel));
    CHECK(ledger->total == 1);
    free(ledger);
}

static void a_failed_send_leaves_the_pointer_with_its_sender(void) {
    struct ledger *ledger = new_ledger(MARLINE_MODE_POINTER);
    marline_channel_t channel = make((struct marline_options){
        .kind = MARLINE_KIND_BOUNDED,
        .capacity = 1,
        .mode = MARLINE_MODE_POINTER,
        .on_drop = book,
        .on_drop_user = ledger});
    marline_token_t token;
    OK(marline_token_create(&token));
    OK(marline_token_trigger(token));
    int *mine = number(7);
    OK(marline_send_ptr_c(channel, number(1), 77, BOUND_MS, 0));
    CODE(EAGAIN, marline_send_ptr(channel, mine, 77, 0));
    CODE(ETIME, marline_send_ptr(channel, mine, 77, 5));
    CODE(ECANCELED, marline_send_ptr_c(channel, mine, 77, -1, token));
    OK(marline_close(channel));
    CODE(EPIPE, marline_send_ptr(channel, mine, 77, -1));
    CHECK(*mine == 7);
    free(mine);
    void *ptr;
    size_t len;
    CODE(ECANCELED, marline_recv_ptr_c(channel, &ptr, &len, -1, token));
    OK(marline_recv_ptr_c(channel, &ptr, &len, -1, 0));
    free(ptr);
    OK(marline_token_destroy(token));
    OK(marline_destroy(channel));
    CHECK(ledger->total == 0);
    free(ledger);
}

/* Threads send and receive while the channel is destroyed: every pointer is received, dropped, or
 * still its sender's, and exactly one of the three. */
struct traffic {
    marline_channel_t channel;
    struct ledger *ledger;
    atomic_int next;
    atomic_int received;
    atomic_int kept;
    atomic_bool ended;
};

static void *push(void *user) {
    struct traffic *traffic = user;
    for (;;) {
        int n = atomic_fetch_add(&traffic->next, 1);
        if (n >= MOST)
            return NULL;
        int *mine = number(n);
        int code = marline_send_ptr(traffic->channel, mine, 77, n % 3 == 0 ? 1 : -1);
        if (code != 0) {
            CHECK(code == -EPIPE || code == -EINVAL || code == -ETIME);
            CHECK(*mine == n);
            atomic_fetch_add(&traffic->kept, 1);
            free(mine);
        }
    }
}

static void *pull(void *user) {
    struct traffic *traffic = user;
    for (;;) {
        void *ptr;
        size_t len;
        int code = marline_recv_ptr(traffic->channel, &ptr, &len, -1);
        if (code != 0) {
            CHECK(code == -EPIPE || code == -EINVAL);
            return NULL;
        }
        CHECK(atomic_fetch_add(&traffic->ledger->times[*(int *)ptr], 1) == 0);
        free(ptr);
        atomic_fetch_add(&traffic->received, 1);
    }
}

static void nothing_is_lost_or_seen_twice_when_destroyed_in_traffic(uint32_t kind, uint64_t capacity,
                                                                     uint32_t overflow) {
    struct traffic traffic = {.ledger = new_ledger(MARLINE_MODE_POINTER)};
    traffic.channel = make((struct marline_options){.kind = kind,
                                                    .capacity = capacity,
                                                    .mode = MARLINE_MODE_POINTER,
                                                    .overflow = overflow,
                                                    .on_drop = book,
                                                    .on_drop_user = traffic.ledger});
    pthread_t threads[] = {spawn(push, &traffic), spawn(push, &traffic), spawn(pull, &traffic),
                           spawn(pull, &traffic)};
    UNTIL(traffic.next >= MOST / 4);
    OK(marline_destroy(traffic.channel));
    for (int n = 0; n < 4; n++)
        join(threads[n]);
    CHECK(traffic.received + traffic.kept + traffic.ledger->total == MOST);
    free(traffic.ledger);
}

/* Callbacks may use the channel they are called for. */
static void resend(const struct marline_dropped *dropped, void *user) {
    marline_channel_t *channels = user;
    int value;
    memcpy(&value, dropped->ptr, sizeof value);
    OK(send_int(channels[1], value, 0));
    size_t len;
    if (marline_len(channels[0], &len) == 0)
        OK(marline_set_on_drop(channels[0], NULL, NULL)); /* revokes itself */
    CODE(EINVAL, marline_destroy(0));
}

static void on_drop_may_use_channels_and_take_itself_back(void) {
    marline_channel_t channels[] = {make_ints(MARLINE_KIND_CONFLATED, 0),
                                    make_ints(MARLINE_KIND_BOUNDED, 4)};
    OK(marline_set_on_drop(channels[0], resend, channels));
    for (int n = 0; n < 3; n++)
        OK(send_int(channels[0], n, 0));
    CHECK(recv_int(channels[1]) == 0);
    size_t len;
    OK(marline_len(channels[1], &len));
    CHECK(len == 0); /* the second drop called no on_drop */
    OK(marline_set_on_drop(channels[0], resend, channels));
    OK(marline_destroy(channels[0])); /* the handle is gone by the time on_drop is called */
    CHECK(recv_int(channels[1]) == 2);
    OK(marline_destroy(channels[1]));
}

int main(void) {
    begin();
    overflow_drops_go_to_on_drop();
    destroy_gives_what_is_inside_to_on_drop();
    nobody_is_told_when_nobody_is_set();
    a_failed_send_leaves_the_pointer_with_its_sender();
    nothing_is_lost_or_seen_twice_when_destroyed_in_traffic(MARLINE_KIND_RENDEZVOUS, 0, 0);
    nothing_is_lost_or_seen_twice_when_destroyed_in_traffic(MARLINE_KIND_BOUNDED, 8, 0);
    nothing_is_lost_or_seen_twice_when_destroyed_in_traffic(MARLINE_KIND_BOUNDED, 4,
                                                             MARLINE_OVERFLOW_DROP_NEWEST);
    nothing_is_lost_or_seen_twice_when_destroyed_in_traffic(MARLINE_KIND_CONFLATED, 0, 0);
    on_drop_may_use_channels_and_take_itself_back();
    return 0;
}
