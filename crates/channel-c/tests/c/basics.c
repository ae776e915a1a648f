/* The four kinds with copied elements: made, used, closed, destroyed. */
#include "check.h"

static void versions_and_codes_have_words(void) {
    CHECK(strlen(marline_version()) >= 5);
    CHECK(strcmp(marline_strerror(0), "success") == 0);
    int codes[] = {EAGAIN, ETIME, ECANCELED, EPIPE, EINPROGRESS, EINTR,
                   EINVAL, ENOTSUP, EMSGSIZE, ENOMEM, EIO};
    for (size_t n = 0; n < sizeof codes / sizeof codes[0]; n++) {
        CHECK(strlen(marline_strerror(-codes[n])) > 5);
        CHECK(strcmp(marline_strerror(-codes[n]), marline_strerror(codes[n])) == 0);
        CHECK(strcmp(marline_strerror(-codes[n]), marline_strerror(-9999)) != 0);
    }
    CHECK(marline_strerror(INT32_MIN) != NULL);
}

static void a_bounded_channel_holds_its_capacity_in_order(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_BOUNDED, 3);
    size_t len;
    for (int n = 1; n <= 3; n++)
        OK(send_int(channel, n, 0));
    CODE(EAGAIN, send_int(channel, 4, 0));
    OK(marline_len(channel, &len));
    CHECK(len == 3);
    for (int n = 1; n <= 3; n++)
        CHECK(recv_int(channel) == n);
    int untouched = 77;
    CODE(EAGAIN, marline_recv(channel, &untouched, sizeof untouched, 0));
    CHECK(untouched == 77);
    OK(marline_destroy(channel));
}

static void close_drains_and_then_is_epipe_also_when_trying(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_UNBOUNDED, 0);
    bool closed = true;
    for (int n = 0; n < 1000; n++)
        OK(send_int(channel, n, 0));
    OK(marline_is_closed(channel, &closed));
    CHECK(!closed);
    OK(marline_close(channel));
    OK(marline_close(channel));
    OK(marline_is_closed(channel, &closed));
    CHECK(closed);
    CODE(EPIPE, send_int(channel, 1, 0));
    CODE(EPIPE, send_int(channel, 1, -1));
    for (int n = 0; n < 1000; n++)
        CHECK(recv_int(channel) == n);
    int value;
    CODE(EPIPE, marline_recv(channel, &value, sizeof value, 0));
    CODE(EPIPE, marline_recv(channel, &value, sizeof value, -1));
    CODE(EPIPE, marline_recv(channel, &value, sizeof value, 5));
    OK(marline_destroy(channel));
}

static void a_conflated_channel_keeps_the_latest(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_CONFLATED, 0);
    for (int n = 0; n < 10; n++)
        OK(send_int(channel, n, 0));
    CHECK(recv_int(channel) == 9);
    int value;
    CODE(EAGAIN, marline_recv(channel, &value, sizeof value, 0));
    OK(marline_destroy(channel));
}

static void *send_ten(void *user) {
    for (int n = 0; n < 10; n++)
        OK(send_int(*(marline_channel_t *)user, n, -1));
    return NULL;
}

static void a_rendezvous_hands_over_between_threads(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    CODE(EAGAIN, send_int(channel, 1, 0)); /* no receive waits for it */
    pthread_t sender = spawn(send_ten, &channel);
    for (int n = 0; n < 10; n++)
        CHECK(recv_int(channel) == n);
    join(sender);
    OK(marline_destroy(channel));
}

/* Elements that are inline, at the limit, and in blocks. */
static void elements_of_all_sizes_arrive_whole(void) {
    size_t sizes[] = {1, 3, 8, 63, 64, 65, 1000, 100000};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        size_t size = sizes[n];
        unsigned char *sent = malloc(size), *received = malloc(size);
        marline_channel_t channel = make((struct marline_options){
            .kind = MARLINE_KIND_BOUNDED, .capacity = 2, .element_size = size});
        for (int round = 0; round < 5; round++) {
            memset(sent, 'a' + round, size);
            sent[size - 1] = 'z';
            OK(marline_send(channel, sent, size, 0));
            OK(marline_send(channel, sent, size, 0));
            CODE(EAGAIN, marline_send(channel, sent, size, 0));
            for (int twice = 0; twice < 2; twice++) {
                memset(received, 0, size);
                OK(marline_recv(channel, received, size, 0));
                CHECK(memcmp(sent, received, size) == 0);
            }
        }
        OK(marline_send(channel, sent, size, 0)); /* the channel is destroyed with it inside */
        OK(marline_destroy(channel));
        free(sent);
        free(received);
    }
}

static void capabilities_say_what_a_channel_can_do(void) {
    uint32_t can;
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    OK(marline_capabilities(channel, &can));
    CHECK(can == MARLINE_CAPABILITY_COPY);
    CODE(ENOTSUP, marline_set_overflow(channel, MARLINE_OVERFLOW_DROP_OLDEST));
    OK(marline_destroy(channel));

    channel = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_POINTER);
    OK(marline_capabilities(channel, &can));
    CHECK(can == (MARLINE_CAPABILITY_POINTER | MARLINE_CAPABILITY_BUFFER |
                  MARLINE_CAPABILITY_OVERFLOW));
    OK(marline_set_overflow(channel, MARLINE_OVERFLOW_DROP_OLDEST));
    OK(marline_destroy(channel));

    channel = make_mode(MARLINE_KIND_UNBOUNDED, 0, MARLINE_MODE_DESCRIPTOR);
    OK(marline_capabilities(channel, &can));
    CHECK(can == (MARLINE_CAPABILITY_ZERO_COPY | MARLINE_CAPABILITY_BUFFER));
    CODE(ENOTSUP, marline_set_overflow(channel, MARLINE_OVERFLOW_BLOCK));
    OK(marline_destroy(channel));
}

int main(void) {
    begin();
    versions_and_codes_have_words();
    a_bounded_channel_holds_its_capacity_in_order();
    close_drains_and_then_is_epipe_also_when_trying();
    a_conflated_channel_keeps_the_latest();
    a_rendezvous_hands_over_between_threads();
    elements_of_all_sizes_arrive_whole();
    capabilities_say_what_a_channel_can_do();
    return 0;
}
