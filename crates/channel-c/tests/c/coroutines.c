/* Two ucontext coroutines meet on one thread: park and unpark built on the start forms. */
#include "check.h"

#include <ucontext.h>

#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(start, end) 0
#define VALGRIND_STACK_DEREGISTER(id) (void)(id)
#endif

#define STACK (256 * 1024)
#define MEETINGS 1000
#define MOST 4

struct coroutine {
    ucontext_t context;
    marline_op_t op;
    void (*body)(struct coroutine *self);
    void *stack;
    unsigned stack_id;
    bool runnable, ended;
};

static ucontext_t scheduler;
static struct coroutine coroutines[MOST], *current;
static int count, switches;
static marline_channel_t channel, answers;

/* Leaves the coroutine until it is runnable. */
static void park(struct coroutine *self) {
    while (!self->runnable)
        CHECK(swapcontext(&self->context, &scheduler) == 0);
    self->runnable = false;
}

static void unpark(void *user) {
    ((struct coroutine *)user)->runnable = true;
}

static int ended(struct coroutine *self, int code) {
    while (code == -EINPROGRESS) {
        park(self);
        code = marline_op_finish(self->op);
    }
    return code;
}

static int co_send(struct coroutine *self, marline_channel_t to, int value) {
    return ended(self,
                 marline_send_start(self->op, to, &value, sizeof value, -1, 0, unpark, self));
}

static int co_recv(struct coroutine *self, marline_channel_t from, int *value) {
    return ended(self,
                 marline_recv_start(self->op, from, value, sizeof *value, -1, 0, unpark, self));
}

static void enter(void) {
    struct coroutine *self = current;
    self->body(self);
    self->ended = true;
    CHECK(swapcontext(&self->context, &scheduler) == 0);
    abort();
}

static void add(void (*body)(struct coroutine *)) {
    struct coroutine *coroutine = &coroutines[count++];
    memset(coroutine, 0, sizeof *coroutine);
    coroutine->body = body;
    coroutine->runnable = true;
    coroutine->stack = malloc(STACK);
    CHECK(coroutine->stack != NULL);
    coroutine->stack_id =
        VALGRIND_STACK_REGISTER(coroutine->stack, (char *)coroutine->stack + STACK);
    OK(marline_op_create(&coroutine->op));
    CHECK(getcontext(&coroutine->context) == 0);
    coroutine->context.uc_stack.ss_sp = coroutine->stack;
    coroutine->context.uc_stack.ss_size = STACK;
    makecontext(&coroutine->context, enter, 0);
}

/* Runs all coroutines in turn until they have ended. If none is runnable, they wait for ever, which
 * is a bug. */
static void run(void) {
    for (int left = count; left > 0;) {
        bool ran = false;
        for (int n = 0; n < count; n++) {
            if (coroutines[n].ended || !coroutines[n].runnable)
                continue;
            ran = true;
            switches++;
            current = &coroutines[n];
            CHECK(swapcontext(&scheduler, &current->context) == 0);
            if (current->ended)
                left--;
        }
        CHECK(ran || left == 0);
    }
    for (int n = 0; n < count; n++) {
        OK(marline_op_destroy(coroutines[n].op));
        VALGRIND_STACK_DEREGISTER(coroutines[n].stack_id);
        free(coroutines[n].stack);
    }
    count = 0;
}

static int sum;

static void sender(struct coroutine *self) {
    for (int n = 1; n <= MEETINGS; n++)
        OK(co_send(self, channel, n));
    OK(marline_close(channel));
}

static void receiver(struct coroutine *self) {
    int value, code, last = 0;
    while ((code = co_recv(self, channel, &value)) == 0) {
        CHECK(value > last);
        last = value;
        sum += value;
    }
    CODE(EPIPE, code);
}

static void asking(struct coroutine *self) {
    for (int n = 1; n <= MEETINGS; n++) {
        int answer;
        OK(co_send(self, channel, n));
        OK(co_recv(self, answers, &answer));
        CHECK(answer == 2 * n);
    }
    OK(marline_close(channel));
}

static void answering(struct coroutine *self) {
    int value;
    while (co_recv(self, channel, &value) == 0)
        OK(co_send(self, answers, 2 * value));
}

static void *thread_sender(void *user) {
    for (int n = 1; n <= MEETINGS; n++)
        OK(send_int(*(marline_channel_t *)user, n, -1));
    OK(marline_close(*(marline_channel_t *)user));
    return NULL;
}

int main(void) {
    begin();
    channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    add(sender);
    add(receiver);
    run();
    CHECK(sum == MEETINGS * (MEETINGS + 1) / 2);
    CHECK(switches > MEETINGS / 2);
    struct marline_snapshot snapshot = snapshot_of(channel);
    CHECK(snapshot.sends == MEETINGS && snapshot.recvs == MEETINGS && snapshot.high_water == 0);
    OK(marline_destroy(channel));

    /* There and back, whichever coroutine starts first. */
    for (int order = 0; order < 2; order++) {
        channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
        answers = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
        add(order ? asking : answering);
        add(order ? answering : asking);
        run();
        OK(marline_destroy(channel));
        OK(marline_destroy(answers));
    }

    /* Two coroutines share the elements that they receive. */
    sum = 0;
    channel = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    add(receiver);
    add(sender);
    add(receiver);
    run();
    CHECK(sum == MEETINGS * (MEETINGS + 1) / 2);
    OK(marline_destroy(channel));

    /* A thread on one side: this thread has only one coroutine to run, which polls. So the
     * scheduler waits for its wake-up on a flag that the other thread sets. */
    channel = make_ints(MARLINE_KIND_BOUNDED, 2);
    pthread_t thread = spawn(thread_sender, &channel);
    marline_op_t op;
    OK(marline_op_create(&op));
    int value, total = 0;
    for (;;) {
        int code = marline_recv_start(op, channel, &value, sizeof value, -1, 0, NULL, NULL);
        while (code == -EINPROGRESS) {
            sched_yield();
            code = marline_op_finish(op);
        }
        if (code != 0) {
            CODE(EPIPE, code);
            break;
        }
        total += value;
    }
    CHECK(total == MEETINGS * (MEETINGS + 1) / 2);
    join(thread);
    OK(marline_op_destroy(op));
    OK(marline_destroy(channel));
    return 0;
}
