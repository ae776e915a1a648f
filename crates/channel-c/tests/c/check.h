/*
 * The tools of the C test programs: checks that print where they failed, waits on a condition with
 * a bound, and an alarm that ends a program that hangs.
 */
#ifndef MARLINE_CHECK_H
#define MARLINE_CHECK_H

#include <marline_channel.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Far longer than any step takes, also under valgrind on a busy machine. */
#define BOUND_MS 60000

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: is false: %s\n", __FILE__, __LINE__, #condition);             \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

/* Checks that the expression returns 0, or the negative of an errno. */
#define CODE(expected, expression)                                                                \
    do {                                                                                          \
        int code_ = (expression);                                                                 \
        if (code_ != -(expected)) {                                                               \
            fprintf(stderr, "%s:%d: %s is %d (%s), not %d (%s)\n", __FILE__, __LINE__,            \
                    #expression, code_, marline_strerror(code_), -(expected),                     \
                    marline_strerror(expected));                                                  \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

#define OK(expression) CODE(0, expression)

static inline int64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Waits until a condition that another thread brings about holds. */
#define UNTIL(condition)                                                                          \
    do {                                                                                          \
        int64_t end_ = now_ms() + BOUND_MS;                                                       \
        while (!(condition)) {                                                                    \
            if (now_ms() > end_) {                                                                \
                fprintf(stderr, "%s:%d: waited in vain: %s\n", __FILE__, __LINE__, #condition);   \
                abort();                                                                          \
            }                                                                                     \
            sched_yield();                                                                        \
        }                                                                                         \
    } while (0)

static inline marline_channel_t make(struct marline_options options) {
    marline_channel_t channel = 0;
    OK(marline_make(&options, &channel));
    CHECK(channel != 0);
    return channel;
}

static inline marline_channel_t make_ints(uint32_t kind, uint64_t capacity) {
    return make((struct marline_options){
        .kind = kind, .capacity = capacity, .element_size = sizeof(int)});
}

static inline marline_channel_t make_mode(uint32_t kind, uint64_t capacity, uint32_t mode) {
    return make((struct marline_options){.kind = kind, .capacity = capacity, .mode = mode});
}

static inline struct marline_snapshot snapshot_of(marline_channel_t channel) {
    struct marline_snapshot snapshot;
    OK(marline_snapshot(channel, &snapshot));
    return snapshot;
}

static inline int send_int(marline_channel_t channel, int value, int64_t timeout_ms) {
    return marline_send(channel, &value, sizeof value, timeout_ms);
}

/* Receives an int that must be there. */
static inline int recv_int(marline_channel_t channel) {
    int value;
    OK(marline_recv(channel, &value, sizeof value, BOUND_MS));
    return value;
}

static inline pthread_t spawn(void *(*body)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    return thread;
}

static inline void join(pthread_t thread) {
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Ends a program that hangs. */
static inline void begin(void) {
    alarm(5 * BOUND_MS / 1000);
}

#endif
