/*
 * The cost of a rendezvous through C, in nanoseconds per element: between two threads, and between
 * two coroutines on one thread (switched by a few instructions, and by ucontext, whose switch makes
 * a system call). Not run by the tests. Build and run: tests/c/bench/run.sh
 */
#define _GNU_SOURCE
#include "../../../include/marline_channel.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void require(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static marline_channel_t make(uint32_t kind, uint64_t capacity) {
    struct marline_options options = {.kind = kind, .capacity = capacity, .element_size = 8};
    marline_channel_t channel;
    require(marline_make(&options, &channel) == 0, "make");
    return channel;
}

/* ---- threads ---- */

struct stream {
    marline_channel_t channel;
    uint64_t count;
};

static void *send_all(void *user) {
    struct stream *stream = user;
    for (uint64_t n = 0; n < stream->count; n++)
        require(marline_send(stream->channel, &n, sizeof n, -1) == 0, "send");
    return NULL;
}

static double threads(uint32_t kind, uint64_t capacity, uint64_t count) {
    struct stream stream = {make(kind, capacity), count};
    pthread_t sender;
    double start = now_ns();
    require(pthread_create(&sender, NULL, send_all, &stream) == 0, "pthread_create");
    for (uint64_t n = 0, got; n < count; n++) {
        require(marline_recv(stream.channel, &got, sizeof got, -1) == 0, "recv");
        require(got == n, "order");
    }
    double elapsed = now_ns() - start;
    pthread_join(sender, NULL);
    marline_destroy(stream.channel);
    return elapsed / (double)count;
}

/* One thread and always room: the cost of the C ABI itself. */
static double alone(uint64_t count) {
    marline_channel_t channel = make(MARLINE_KIND_BOUNDED, 8);
    double start = now_ns();
    for (uint64_t n = 0, got; n < count; n++) {
        require(marline_send(channel, &n, sizeof n, 0) == 0, "send");
        require(marline_recv(channel, &got, sizeof got, 0) == 0 && got == n, "recv");
    }
    double elapsed = now_ns() - start;
    marline_destroy(channel);
    return elapsed / (double)count;
}

/* ---- coroutines ---- */

#define STACK (64 * 1024)

struct coroutine {
    void *stack_pointer; /* for the quick switch */
    ucontext_t context;  /* for ucontext */
    marline_op_t op;
    int runnable;
};

static struct coroutine scheduler, sender, receiver;
static struct coroutine *running;
static void (*switch_to)(struct coroutine *from, struct coroutine *to);
static marline_channel_t channel;
static uint64_t messages;
static int live;

#if defined(__x86_64__)
/* Saves what a call preserves, swaps stacks, restores. */
void quick_switch(void **from, void *to);
__asm__(".text\n"
        ".globl quick_switch\n"
        "quick_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n");

static void quick(struct coroutine *from, struct coroutine *to) {
    running = to;
    quick_switch(&from->stack_pointer, to->stack_pointer);
}
#endif

static void by_ucontext(struct coroutine *from, struct coroutine *to) {
    running = to;
    swapcontext(&from->context, &to->context);
}

static void wake(void *user) {
    ((struct coroutine *)user)->runnable = 1;
}

/* Runs other coroutines until this one was woken. */
static int wait_for(struct coroutine *self, int code) {
    while (code == -EINPROGRESS) {
        struct coroutine *other = self == &sender ? &receiver : &sender;
        while (!self->runnable)
            switch_to(self, other);
        self->runnable = 0;
        code = marline_op_finish(self->op);
    }
    return code;
}

static void sender_main(void) {
    for (uint64_t n = 0; n < messages; n++) {
        int code = marline_send_start(sender.op, channel, &n, sizeof n, -1, 0, wake, &sender);
        require(wait_for(&sender, code) == 0, "send");
    }
    live--;
    for (;;)
        switch_to(&sender, live ? &receiver : &scheduler);
}

static void receiver_main(void) {
    for (uint64_t n = 0, got; n < messages; n++) {
        int code = marline_recv_start(receiver.op, channel, &got, sizeof got, -1, 0, wake, &receiver);
        require(wait_for(&receiver, code) == 0 && got == n, "recv");
    }
    live--;
    for (;;)
        switch_to(&receiver, live ? &sender : &scheduler);
}

static void prepare(struct coroutine *coroutine, void (*entry)(void)) {
    memset(coroutine, 0, sizeof *coroutine);
    require(marline_op_create(&coroutine->op) == 0, "op_create");
    char *stack = malloc(STACK);
    require(stack != NULL, "malloc");
    getcontext(&coroutine->context);
    coroutine->context.uc_stack.ss_sp = stack;
    coroutine->context.uc_stack.ss_size = STACK;
    makecontext(&coroutine->context, entry, 0);
    /* The quick switch pops six registers and returns to the entry, with the stack aligned as
     * after a call. */
    void **top = (void **)(((uintptr_t)stack + STACK) & ~(uintptr_t)15);
    *--top = NULL;
    *--top = (void *)entry;
    for (int n = 0; n < 6; n++)
        *--top = NULL;
    coroutine->stack_pointer = top;
}

static double coroutines(void (*by)(struct coroutine *, struct coroutine *), uint64_t count) {
    switch_to = by;
    messages = count;
    live = 2;
    channel = make(MARLINE_KIND_RENDEZVOUS, 0);
    prepare(&sender, sender_main);
    prepare(&receiver, receiver_main);
    char *stacks[] = {sender.context.uc_stack.ss_sp, receiver.context.uc_stack.ss_sp};
    double start = now_ns();
    switch_to(&scheduler, &receiver);
    double elapsed = now_ns() - start;
    marline_op_destroy(sender.op);
    marline_op_destroy(receiver.op);
    marline_destroy(channel);
    free(stacks[0]);
    free(stacks[1]);
    return elapsed / (double)count;
}

/* The cost of the switches alone: there and back for every two messages, as in a rendezvous. */
static void bounce_main(void) {
    for (;;)
        switch_to(&receiver, &scheduler);
}

static double switches(void (*by)(struct coroutine *, struct coroutine *), uint64_t count) {
    switch_to = by;
    prepare(&receiver, bounce_main);
    double start = now_ns();
    for (uint64_t n = 0; n < count / 2; n++)
        switch_to(&scheduler, &receiver);
    double elapsed = now_ns() - start;
    marline_op_destroy(receiver.op);
    free(receiver.context.uc_stack.ss_sp);
    return elapsed / (double)count;
}

/* Two operations on one stack: the cost of the start forms without any switch. */
static double operations(uint64_t count) {
    channel = make(MARLINE_KIND_RENDEZVOUS, 0);
    struct coroutine waiter = {0};
    marline_op_t sends, recvs;
    require(marline_op_create(&sends) == 0 && marline_op_create(&recvs) == 0, "op_create");
    double start = now_ns();
    for (uint64_t n = 0, got; n < count; n++) {
        require(marline_recv_start(recvs, channel, &got, 8, -1, 0, wake, &waiter) == -EINPROGRESS,
                "recv_start");
        require(marline_send_start(sends, channel, &n, 8, -1, 0, wake, &waiter) == 0, "send_start");
        require(marline_op_finish(recvs) == 0 && got == n, "finish");
    }
    double elapsed = now_ns() - start;
    marline_op_destroy(sends);
    marline_op_destroy(recvs);
    marline_destroy(channel);
    return elapsed / (double)count;
}

static int compare(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

#define ROUNDS 9
#define REPORT(name, expression)                                                                  \
    do {                                                                                          \
        double rounds[ROUNDS];                                                                    \
        for (int round = 0; round < ROUNDS; round++)                                              \
            rounds[round] = (expression);                                                         \
        qsort(rounds, ROUNDS, sizeof rounds[0], compare);                                         \
        printf("%-44s %8.1f ns  (%.1f .. %.1f)\n", name, rounds[ROUNDS / 2], rounds[0],           \
               rounds[ROUNDS - 1]);                                                               \
    } while (0)

int main(int argc, char **argv) {
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 500000;
    REPORT("one thread, bounded(8), try send + try recv", alone(count));
    REPORT("two threads, rendezvous", threads(MARLINE_KIND_RENDEZVOUS, 0, count));
    REPORT("two threads, bounded(128)", threads(MARLINE_KIND_BOUNDED, 128, count));
    REPORT("start forms, rendezvous, no switch", operations(count));
#if defined(__x86_64__)
    REPORT("(floor: one quick switch)", switches(quick, count));
    REPORT("two coroutines, rendezvous, quick switch", coroutines(quick, count));
#endif
    REPORT("(floor: one ucontext switch)", switches(by_ucontext, count / 4));
    REPORT("two coroutines, rendezvous, ucontext", coroutines(by_ucontext, count / 4));
    return 0;
}
