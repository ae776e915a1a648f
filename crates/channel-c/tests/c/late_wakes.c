/* Wake-ups from other threads against finish, abandon and destroy: after those have returned,
 * wake_fn neither runs nor is called. The memory that wake_fn would get is gone by then. */
#include "check.h"

#include <stdatomic.h>

#define ROUNDS 300
#define MAGIC 0x5eed

struct listener {
    atomic_int magic;
    atomic_int wakes;
};

static void wake(void *user) {
    struct listener *listener = user;
    CHECK(atomic_load(&listener->magic) == MAGIC);
    sched_yield(); /* give an abandon the time to return too early */
    CHECK(atomic_load(&listener->magic) == MAGIC);
    atomic_fetch_add(&listener->wakes, 1);
}

static struct listener *new_listener(void) {
    struct listener *listener = malloc(sizeof *listener);
    CHECK(listener != NULL);
    atomic_init(&listener->magic, MAGIC);
    atomic_init(&listener->wakes, 0);
    return listener;
}

static void free_listener(struct listener *listener) {
    CHECK(listener->wakes <= 1);
    atomic_store(&listener->magic, 0);
    free(listener);
}

/* Sends or receives as fast as it can, on another thread. */
struct peer {
    marline_channel_t channel;
    atomic_bool stop;
    atomic_int moved;
    int next;
};

static void *push(void *user) {
    struct peer *peer = user;
    while (!peer->stop) {
        int code = send_int(peer->channel, peer->next, 1);
        if (code == 0) {
            peer->next++;
            peer->moved++;
        } else {
            CODE(ETIME, code);
        }
    }
    return NULL;
}

static void *pull(void *user) {
    struct peer *peer = user;
    while (!peer->stop) {
        int value;
        if (marline_recv(peer->channel, &value, sizeof value, 1) == 0)
            peer->moved++;
    }
    return NULL;
}

static void receives_against_a_sender(void) {
    struct peer peer = {.channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0)};
    pthread_t thread = spawn(push, &peer);
    marline_op_t op;
    OK(marline_op_create(&op));
    int expected = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct listener *listener = new_listener();
        int value = -1;
        int code = marline_recv_start(op, peer.channel, &value, sizeof value, -1, 0, wake, listener);
        if (code == -EINPROGRESS && round % 3 == 0) {
            code = marline_op_abandon(op); /* at whatever moment this is */
            CODE(ECANCELED, code);
        } else if (code == -EINPROGRESS && round % 3 == 1) {
            OK(marline_op_destroy(op));
            OK(marline_op_create(&op));
        } else {
            int64_t end = now_ms() + BOUND_MS;
            while (code == -EINPROGRESS) {
                CHECK(now_ms() < end);
                sched_yield();
                code = marline_op_finish(op);
            }
            OK(code);
        }
        if (code == 0) {
            CHECK(value == expected); /* no element was lost, none came twice */
            expected++;
        }
        free_listener(listener);
    }
    peer.stop = true;
    join(thread);
    /* An element that an abandoned receive was given is still there. */
    int value;
    while (marline_recv(peer.channel, &value, sizeof value, 0) == 0) {
        CHECK(value == expected);
        expected++;
    }
    CHECK(expected == peer.next);
    OK(marline_op_destroy(op));
    OK(marline_destroy(peer.channel));
}

static void sends_against_a_receiver(void) {
    struct peer peer = {.channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0)};
    pthread_t thread = spawn(pull, &peer);
    marline_op_t op;
    OK(marline_op_create(&op));
    int sent = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct listener *listener = new_listener();
        int code = marline_send_start(op, peer.channel, &round, sizeof round, -1, 0, wake, listener);
        if (code == -EINPROGRESS && round % 2 == 0) {
            code = marline_op_abandon(op);
            CHECK(code == -ECANCELED || code == 0);
        }
        int64_t end = now_ms() + BOUND_MS;
        while (code == -EINPROGRESS) {
            CHECK(now_ms() < end);
            sched_yield();
            code = marline_op_finish(op);
        }
        sent += code == 0;
        free_listener(listener);
    }
    UNTIL(peer.moved == sent); /* exactly the sends that returned 0 */
    peer.stop = true;
    join(thread);
    CHECK(peer.moved == sent);
    OK(marline_op_destroy(op));
    OK(marline_destroy(peer.channel));
}

static void selects_against_a_sender(void) {
    struct peer peer = {.channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0)};
    marline_channel_t idle = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    pthread_t thread = spawn(push, &peer);
    int expected = 0, value = -1, result;
    size_t index;
    marline_select_t select;
    OK(marline_select_create(0, &select));
    OK(marline_select_add_recv(select, idle, &value, sizeof value, NULL));
    OK(marline_select_add_recv(select, peer.channel, &value, sizeof value, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        struct listener *listener = new_listener();
        int code = marline_select_start(select, &index, &result, -1, 0, wake, listener);
        if (code == -EINPROGRESS && round % 2 == 0) {
            code = marline_select_abandon(select, &index, &result);
            CODE(ECANCELED, code);
        }
        int64_t end = now_ms() + BOUND_MS;
        while (code == -EINPROGRESS) {
            CHECK(now_ms() < end);
            sched_yield();
            code = marline_select_finish(select, &index, &result);
        }
        if (code == 0) {
            CHECK(index == 1 && result == 0 && value == expected);
            expected++;
        }
        free_listener(listener);
    }
    OK(marline_select_destroy(select));
    peer.stop = true;
    join(thread);
    while (marline_recv(peer.channel, &value, sizeof value, 0) == 0)
        CHECK(value == expected++);
    CHECK(expected == peer.next);
    OK(marline_destroy(idle));
    OK(marline_destroy(peer.channel));
}

/* An abandon while wake_fn runs on another thread waits for the end of the call. */
static atomic_bool inside, let_go, returned;

static void slow_wake(void *user) {
    (void)user;
    inside = true;
    UNTIL(let_go);
    CHECK(!returned);
}

static void *send_one(void *user) {
    OK(send_int(*(marline_channel_t *)user, 9, BOUND_MS));
    return NULL;
}

static void *abandon_it(void *user) {
    CODE(ECANCELED, marline_op_abandon(*(marline_op_t *)user));
    returned = true;
    return NULL;
}

static void an_abandon_waits_for_a_running_call(void) {
    marline_channel_t channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    marline_op_t op;
    int value = 0;
    OK(marline_op_create(&op));
    CODE(EINPROGRESS,
         marline_recv_start(op, channel, &value, sizeof value, -1, 0, slow_wake, NULL));
    pthread_t sender = spawn(send_one, &channel);
    UNTIL(inside);
    pthread_t abandoner = spawn(abandon_it, &op);
    /* The element is back as soon as the abandon has begun to wait. */
    size_t len = 0;
    UNTIL(marline_len(channel, &len) == 0 && len == 1);
    CHECK(!returned);
    let_go = true;
    join(sender);
    join(abandoner);
    CHECK(returned && recv_int(channel) == 9);
    OK(marline_op_destroy(op));
    OK(marline_destroy(channel));
}

/* A wake_fn that finishes the operation on its thread, against an abandon on another thread: one of
 * them ends the operation. */
struct contested {
    marline_op_t op;
    atomic_int finished;
};

static void finish_inside(void *user) {
    struct contested *contested = user;
    int code = marline_op_finish(contested->op);
    CHECK(code == 0 || code == -EINVAL);
    contested->finished += code == 0;
}

static void finish_inside_against_abandon(void) {
    struct peer peer = {.channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0)};
    pthread_t thread = spawn(push, &peer);
    struct contested contested;
    OK(marline_op_create(&contested.op));
    int taken = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int value;
        contested.finished = 0;
        int code = marline_recv_start(contested.op, peer.channel, &value, sizeof value, -1, 0,
                                      finish_inside, &contested);
        if (code == -EINPROGRESS) {
            code = marline_op_abandon(contested.op);
            CHECK(code == -ECANCELED || code == -EINVAL);
            UNTIL(code == -ECANCELED || contested.finished == 1);
            CHECK(contested.finished == (code == -EINVAL));
        }
        taken += code != -ECANCELED;
    }
    peer.stop = true;
    join(thread);
    int value;
    while (marline_recv(peer.channel, &value, sizeof value, 0) == 0)
        taken++;
    CHECK(taken == peer.next);
    OK(marline_op_destroy(contested.op));
    OK(marline_destroy(peer.channel));
}

int main(void) {
    begin();
    receives_against_a_sender();
    sends_against_a_receiver();
    selects_against_a_sender();
    an_abandon_waits_for_a_running_call();
    finish_inside_against_abandon();
    return 0;
}
