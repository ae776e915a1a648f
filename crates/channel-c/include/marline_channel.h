/*
 * Marline channels for C: rendezvous, bounded, unbounded and conflated channels between threads
 * and coroutines, with select, cancel tokens, timeouts, zero-copy buffers and metrics.
 *
 * EXAMPLE (build: cc example.c -lmarline_channel_c -lpthread -ldl -lm)
 *
 *     #include <marline_channel.h>
 *     #include <pthread.h>
 *     #include <stdio.h>
 *
 *     static marline_channel_t numbers;
 *
 *     static void *produce(void *unused) {
 *         for (int n = 1; n <= 10; n++)
 *             if (marline_send(numbers, &n, sizeof n, -1) != 0)
 *                 break;
 *         marline_close(numbers);
 *         return unused;
 *     }
 *
 *     int main(void) {
 *         struct marline_options options = {
 *             .kind = MARLINE_KIND_BOUNDED, .capacity = 4, .element_size = sizeof(int)};
 *         int code = marline_make(&options, &numbers);
 *         if (code != 0) {
 *             fprintf(stderr, "cannot make a channel: %s\n", marline_strerror(code));
 *             return 1;
 *         }
 *         pthread_t producer;
 *         pthread_create(&producer, NULL, produce, NULL);
 *         int n, sum = 0;
 *         while ((code = marline_recv(numbers, &n, sizeof n, -1)) == 0)
 *             sum += n;
 *         pthread_join(producer, NULL);
 *         marline_destroy(numbers);
 *         printf("sum %d, then: %s\n", sum, marline_strerror(code));
 *         return sum == 55 ? 0 : 1;
 *     }
 *
 * RETURN CODES. Every function that can fail returns 0 or a negative errno from <errno.h>. Below,
 * "EAGAIN" means that the function returns -EAGAIN. marline_strerror returns their meaning as text.
 *
 *     EAGAIN       would block, and timeout_ms was 0
 *     ETIME        the time ran out
 *     ECANCELED    the cancel token was triggered, or the operation was abandoned
 *     EPIPE        closed; for receives: closed and empty (also with timeout_ms 0)
 *     EINPROGRESS  started and not finished yet
 *     EINTR        a signal handler ran (only with an INTERRUPTIBLE flag); nothing happened, call
 *                  again
 *     EINVAL       no such handle (destroyed, made up, or of another sort), wrong mode or size, a
 *                  null pointer, a number out of range
 *     ENOTSUP      this kind of channel cannot do that
 *     EMSGSIZE     too large for the space given
 *     ENOMEM       out of memory or handles
 *     EIO          a bug in the library, which has printed the place on stderr, or in a function
 *                  that the program passed
 *
 * HANDLES (marline_channel_t and the like) are numbers. No handle is 0, and none is given out
 * twice. Using a handle after its destroy, destroying it twice, or using it as another sort of
 * handle is EINVAL. Destroying a channel or a select ends all waits on it with EPIPE. Any number of
 * threads may use a channel, token, region or subscription at once. Only one thread at a time may
 * use an operation or a select: a second call at the same time may fail with EINVAL.
 *
 * TIME. timeout_ms: 0 tries without waiting, < 0 waits without a limit, > 0 waits that many
 * milliseconds. The forms ending in _c also take a cancel token (0: none). The forms ending in
 * _start never wait: see marline_op_create.
 *
 * OWNERSHIP. A send that returns 0 has passed its element on. After any other result the element
 * was not sent, no receiver has seen it, and it stays with the sender. A receive that does not
 * return 0 has taken nothing. An element that was sent but can never be received goes to the
 * channel's on_drop, exactly once.
 *     COPY elements are copied both ways.
 *     POINTER elements: the memory behind the pointer belongs to the receiver of the pointer.
 *     DESCRIPTOR elements: a buffer inside a registered region is lent to its receiver until
 *     marline_zc_release.
 *
 * ORDER. Elements arrive in the order in which they were sent. Operations that wait are served in
 * the order in which they came, and a try cannot overtake them.
 */


#ifndef MARLINE_CHANNEL_H
#define MARLINE_CHANNEL_H

/* Written by cbindgen from crates/channel-c/src: change it there. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The kinds of channel.
enum marline_kind {
    // No buffer: a send completes when its element is handed to a receive.
    MARLINE_KIND_RENDEZVOUS = 1,
    // Holds up to capacity elements. Further sends wait, or do as the overflow policy says.
    MARLINE_KIND_BOUNDED = 2,
    // Holds any number of elements. Sends never wait.
    MARLINE_KIND_UNBOUNDED = 3,
    // Holds the latest element: a new element replaces one that was not received yet.
    MARLINE_KIND_CONFLATED = 4,
};

// The form in which a channel carries its elements.
enum marline_mode {
    // element_size bytes, copied in and out: marline_send, marline_recv.
    MARLINE_MODE_COPY = 0,
    // A pointer with a length. The receiver then owns the memory behind it: marline_send_ptr,
    // marline_recv_ptr.
    MARLINE_MODE_POINTER = 1,
    // A buffer in a registered region: marline_send_zc, marline_recv_zc.
    MARLINE_MODE_DESCRIPTOR = 2,
};

// How a bounded channel treats an element that it has no room for.
enum marline_overflow {
    // The send waits.
    MARLINE_OVERFLOW_BLOCK = 0,
    // The oldest element inside goes to on_drop to make room.
    MARLINE_OVERFLOW_DROP_OLDEST = 1,
    // The new element goes to on_drop, before the send returns 0.
    MARLINE_OVERFLOW_DROP_NEWEST = 2,
};

// Bits of struct marline_options.flags.
enum marline_channel_flag {
    // Blocking calls on this channel return EINTR when a signal handler ran on their thread.
    // Nothing has happened then: call again. Without this flag they keep waiting.
    MARLINE_CHANNEL_FLAG_INTERRUPTIBLE = 1,
};

// The abilities of a channel.
enum marline_capability {
    // marline_send and marline_recv.
    MARLINE_CAPABILITY_COPY = 1,
    // marline_send_ptr and marline_recv_ptr.
    MARLINE_CAPABILITY_POINTER = 2,
    // marline_send_zc without a copy, and marline_recv_zc.
    MARLINE_CAPABILITY_ZERO_COPY = 4,
    // Holding elements that no receive waits for.
    MARLINE_CAPABILITY_BUFFER = 8,
    // marline_set_overflow.
    MARLINE_CAPABILITY_OVERFLOW = 16,
};

// Bits for marline_select_create.
enum marline_select_flag {
    // Attempts the clauses in the order in which they were added, instead of in fair turns.
    MARLINE_SELECT_FLAG_BIASED = 1,
    // Skips clauses whose channel is closed (and drained), instead of choosing them with EPIPE. If
    // all are, the wait returns EPIPE.
    MARLINE_SELECT_FLAG_SKIP_CLOSED = 2,
    // A blocking wait returns EINTR when a signal handler ran on its thread.
    MARLINE_SELECT_FLAG_INTERRUPTIBLE = 4,
};

// Bits of struct marline_descriptor.flags.
enum marline_zc_flag {
    // The buffer is a private copy that the library made. marline_zc_release frees it.
    MARLINE_ZC_FLAG_COPIED = 1,
    // The address comes from the region's map_fn.
    MARLINE_ZC_FLAG_MAPPED = 2,
};

// The handle of a registered region of memory. Never 0.
typedef uint64_t marline_region_t;

// A received buffer: read it, then release it with marline_zc_release.
struct marline_descriptor {
    // The address of the buffer for the receiver.
    void *addr;
    // Its length in bytes.
    size_t len;
    // The region that contains the buffer; 0 if the buffer was copied.
    marline_region_t region_id;
    // The offset of the buffer in the region, in bytes.
    uint64_t offset;
    // Bits of enum marline_zc_flag.
    uint32_t flags;
    // Always 0.
    uint32_t reserved;
    // Names this one use of the buffer, for marline_zc_release.
    uint64_t lease;
};

// An element that will never be received, as `on_drop` sees it. Valid during the call only.
struct marline_dropped {
    // The mode of its channel (enum marline_mode). It says which of the fields below are used.
    uint32_t mode;
    // Always 0.
    uint32_t reserved;
    // COPY: the element's bytes, which are gone after the call. POINTER: the pointer that was
    // sent, which is yours again. DESCRIPTOR: the sender's address of the buffer.
    void *ptr;
    // COPY: the element size. POINTER: the length that was sent. DESCRIPTOR: the buffer's length.
    size_t len;
    // DESCRIPTOR: the descriptor. It is released when the call returns.
    struct marline_descriptor descriptor;
};

// Called once with each element that was sent and will never be received, on the thread that
// caused it and outside all locks. It may use any channel. It must return, and not by longjmp or
// an exception.
typedef void (*marline_on_drop_fn)(const struct marline_dropped *dropped,
                                   void *user);

// The options of a channel. Set the fields that you need, and the others to zero:
// struct marline_options options = {.kind = MARLINE_KIND_BOUNDED, .capacity = 8,
// .element_size = sizeof(struct job)};
struct marline_options {
    // One of enum marline_kind.
    uint32_t kind;
    // One of enum marline_mode; 0 is COPY.
    uint32_t mode;
    // BOUNDED: how many elements the channel holds, 1 to 2^30. Otherwise 0.
    uint64_t capacity;
    // COPY: the size of every element in bytes, 1 to 2^30. Otherwise 0.
    size_t element_size;
    // One of enum marline_overflow; 0 is BLOCK. Only a BOUNDED channel can have another policy
    // (a CONFLATED channel always drops the oldest).
    uint32_t overflow;
    // Bits of enum marline_channel_flag.
    uint32_t flags;
    // A name for marline_dump, at most 255 bytes of UTF-8, or NULL. The call copies it.
    const char *name;
    // The function of marline_set_on_drop, or NULL.
    marline_on_drop_fn on_drop;
    // Passed to on_drop.
    void *on_drop_user;
    // Always 0.
    uint64_t reserved[2];
};

// The handle of a channel. Never 0.
typedef uint64_t marline_channel_t;

// The handle of a cancel token. Never 0. Where a function takes a token, 0 means none.
typedef uint64_t marline_token_t;

// The handle of an operation object. Never 0.
typedef uint64_t marline_op_t;

// Called when an operation can be finished: make its waiter run again, and return. The call comes
// on any thread, also on one that is inside another marline function, and maybe before the start
// form has returned. It may itself finish or abandon the operation. It must return, and not by
// longjmp, an exception or a switch to another stack.
typedef void (*marline_wake_fn)(void *user);

// Adds memory to a backend. Returns 0 and sets *cookie, which later calls get, or returns a
// negative errno, which marline_region_register passes on.
typedef int (*marline_register_fn)(void *addr,
                                   size_t len,
                                   uint64_t *cookie,
                                   void *user);

// Makes a buffer of the region reachable for its receiver, on the receiver's thread. Returns 0
// and sets *addr, or returns a negative errno: then the receive fails with it and the buffer goes
// to on_drop.
typedef int (*marline_map_fn)(uint64_t cookie,
                              uint64_t offset,
                              size_t len,
                              void **addr,
                              void *user);

// Called once for each buffer that was sent, when it is no longer in use: its receiver released
// it, or it was dropped. addr is the address from map_fn, or NULL.
typedef void (*marline_release_fn)(uint64_t cookie,
                                   uint64_t offset,
                                   size_t len,
                                   void *addr,
                                   void *user);

// Called once, when the region is deregistered.
typedef void (*marline_deregister_fn)(uint64_t cookie,
                                      void *user);

// The functions with which memory that is not plain memory of this process plugs in. Each may be
// NULL: then that step does what plain memory needs, which is nothing. A backend with only
// release_fn tells the owner of plain memory when a buffer may be used again.
struct marline_zc_backend {
    // Called by marline_region_register.
    marline_register_fn register_fn;
    // Called by a receive.
    marline_map_fn map_fn;
    // Called by marline_zc_release.
    marline_release_fn release_fn;
    // Called by marline_region_deregister.
    marline_deregister_fn deregister_fn;
    // Passed to each of the functions.
    void *user;
};

// The memory to register. Set the fields that you do not need to zero.
struct marline_region_options {
    // Where the memory begins.
    void *addr;
    // Its length in bytes.
    size_t len;
    // Buffers of fewer bytes than this are copied instead: a copy of a small buffer is cheaper.
    size_t min_len;
    // With this many buffers in flight, further ones are copied instead. 0: no limit.
    uint64_t max_in_flight;
    // Whose memory it is; NULL for plain memory of this process. The call copies the structure.
    const struct marline_zc_backend *backend;
    // Always 0.
    uint64_t reserved[2];
};

// The zero-copy counters of a channel. Ordinary metrics are in struct marline_snapshot.
struct marline_zc_counters {
    // Buffers sent as a descriptor.
    uint64_t sent;
    // Descriptors received without a copy.
    uint64_t received;
    // Sends that copied because the buffer was smaller than its region's min_len.
    uint64_t fallback_small;
    // Sends that copied because the region had max_in_flight buffers in flight, or because the
    // channel cannot carry descriptors (a COPY channel).
    uint64_t fallback_capacity;
    // Calls of marline_send_zc* that a token, a timeout, a signal or an abandon ended.
    uint64_t cancelled;
    // Calls of marline_send_zc* that met a closed channel, and buffers sent without a copy that
    // were still inside when the channel was destroyed.
    uint64_t aborted_close;
};

// The handle of a select. Never 0.
typedef uint64_t marline_select_t;

// A channel at one moment. Totals survive its close. Times are CLOCK_MONOTONIC in nanoseconds.
struct marline_snapshot {
    // The version of these fields: 1.
    uint32_t version;
    // One of enum marline_kind.
    uint32_t kind;
    // Whether the channel is closed.
    bool closed;
    // The most elements that it can hold; UINT64_MAX for UNBOUNDED.
    uint64_t capacity;
    // Elements inside.
    uint64_t len;
    // The most elements that were ever inside.
    uint64_t high_water;
    // Sending ends: 1, and 0 once destroyed.
    uint64_t senders;
    // Receiving ends: 1, and 0 once destroyed.
    uint64_t receivers;
    // Sends that wait, on a thread or started.
    uint64_t waiting_send;
    // Receives that wait, on a thread or started.
    uint64_t waiting_recv;
    // Elements accepted. An element that the overflow policy dropped later counts; one that it
    // dropped at once does not.
    uint64_t sends;
    // Elements received.
    uint64_t recvs;
    // Bytes of the elements accepted: element sizes, or the lengths that were sent.
    uint64_t bytes_sent;
    // Bytes of the elements received.
    uint64_t bytes_received;
    // Tries to send that found no room.
    uint64_t send_full;
    // Sends that ran out of time.
    uint64_t send_timeout;
    // Sends that were cancelled or abandoned.
    uint64_t send_cancelled;
    // Sends that found, or met, a closed channel.
    uint64_t send_closed;
    // Tries to receive that found no element.
    uint64_t recv_empty;
    // Receives that ran out of time.
    uint64_t recv_timeout;
    // Receives that were cancelled or abandoned.
    uint64_t recv_cancelled;
    // Receives that found, or met, a closed and drained channel.
    uint64_t recv_closed;
    // Elements dropped to make room for newer ones.
    uint64_t dropped_oldest;
    // Elements dropped for lack of room.
    uint64_t dropped_newest;
    // Elements still inside when the channel was destroyed.
    uint64_t undelivered;
    // About when the first operation was (sampled). 0: none was sampled yet.
    uint64_t first_operation_ns;
    // About when the last operation was (sampled). 0: none was sampled yet.
    uint64_t last_operation_ns;
    // When this snapshot was taken.
    uint64_t at_ns;
};

// Operations and bytes per second between two snapshots.
struct marline_rate {
    // Elements accepted per second.
    double sends;
    // Elements received per second.
    double recvs;
    // Bytes accepted per second.
    double bytes_sent;
    // Bytes received per second.
    double bytes_received;
};

// Called with a snapshot, which is valid during the call. Runs on a thread that uses the channel,
// outside all locks. It must return, and not by longjmp or an exception.
typedef void (*marline_metrics_fn)(const struct marline_snapshot *snapshot,
                                   void *user);

// The handle of a subscription. Never 0.
typedef uint64_t marline_subscription_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the meaning of a return code, as one line of text. Takes codes as functions return them
// (negative or 0) and plain errno values alike. Never NULL. The text lives for ever.
const char *marline_strerror(int code);

// Returns the library's version, such as "0.1.0". Never NULL. The text lives for ever.
const char *marline_version(void);

// Creates a channel.
//
// EINVAL: invalid options, or a null pointer. ENOTSUP: an overflow policy for a kind that cannot
// overflow. ENOMEM.
int marline_make(const struct marline_options *options,
                 marline_channel_t *channel);

// Destroys a channel: closes it, ends every wait on it with EPIPE, and gives the elements still
// inside to on_drop before it returns. The handle is invalid from then on.
//
// Operations that were started on the channel stay valid until they are finished or abandoned.
// If an abandoned receive had an element already, that element goes to on_drop, too.
//
// EINVAL: no such channel (also: destroyed before).
int marline_destroy(marline_channel_t channel);

// Closes a channel: sends fail with EPIPE from now on, also sends that wait already. Receives get
// the elements inside, and then EPIPE. Closing a closed channel does nothing.
//
// EINVAL: no such channel.
int marline_close(marline_channel_t channel);

// Stores the number of elements inside in *len.
//
// EINVAL: no such channel, or a null pointer.
int marline_len(marline_channel_t channel,
                size_t *len);

// Stores in *is_closed whether a channel is closed. It may still hold elements.
//
// EINVAL: no such channel, or a null pointer.
int marline_is_closed(marline_channel_t channel,
                      bool *is_closed);

// Stores in *capabilities what a channel can do: bits of enum marline_capability.
//
// EINVAL: no such channel, or a null pointer.
int marline_capabilities(marline_channel_t channel,
                         uint32_t *capabilities);

// Changes what a BOUNDED channel does when it is full, for sends that begin later: one of enum
// marline_overflow.
//
// EINVAL: no such channel or policy. ENOTSUP: another kind of channel.
int marline_set_overflow(marline_channel_t channel,
                         uint32_t policy);

// Replaces the function that gets the elements that were sent and will never be received; NULL for
// none. When this returns, the function that was set before is not called any more and does not
// run on another thread. Without on_drop, you lose such POINTER elements.
//
// EINVAL: no such channel.
int marline_set_on_drop(marline_channel_t channel,
                        marline_on_drop_fn on_drop,
                        void *user);

// Creates a cancel token. Pass it to any number of operations. Trigger it once, and the operations
// that wait end with ECANCELED.
//
// EINVAL: a null pointer. ENOMEM.
int marline_token_create(marline_token_t *token);

// Creates a token that is triggered with its parent, and can be triggered without it. It outlives
// its parent's handle.
//
// EINVAL: no such parent, or a null pointer. ENOMEM.
int marline_token_child(marline_token_t parent,
                        marline_token_t *child);

// Triggers a token and its children, for ever. A second call does nothing.
//
// EINVAL: no such token.
int marline_token_trigger(marline_token_t token);

// Stores in *is_set whether a token was triggered.
//
// EINVAL: no such token, or a null pointer.
int marline_token_is_set(marline_token_t token,
                         bool *is_set);

// Destroys a token's handle without triggering the token. Operations that have the token keep it.
//
// EINVAL: no such token.
int marline_token_destroy(marline_token_t token);

// Sends a copy of *element, whose size must be the channel's element size. timeout_ms: 0 tries
// without waiting, < 0 waits without a limit, > 0 waits that many milliseconds. Unless this
// returns 0, nothing was sent.
//
// EAGAIN: no room (timeout_ms 0). ETIME. EPIPE: closed. EINTR (on an INTERRUPTIBLE channel).
// EINVAL: no such channel, not a COPY channel, another size, or a null pointer. ENOMEM.
int marline_send(marline_channel_t channel,
                 const void *element,
                 size_t size,
                 int64_t timeout_ms);

// Like marline_send, but also ends with ECANCELED when the token is triggered. A token that was
// triggered before the call ends it without an attempt. A token of 0 means none.
int marline_send_c(marline_channel_t channel,
                   const void *element,
                   size_t size,
                   int64_t timeout_ms,
                   marline_token_t token);

// The start form of marline_send: returns at once, with EINPROGRESS if the send has to wait. See
// marline_op_create. This call copies the element.
int marline_send_start(marline_op_t op,
                       marline_channel_t channel,
                       const void *element,
                       size_t size,
                       int64_t timeout_ms,
                       marline_token_t token,
                       marline_wake_fn wake_fn,
                       void *user);

// Receives into *element, whose size must be the channel's element size. timeout_ms: 0 tries
// without waiting, < 0 waits without a limit, > 0 waits that many milliseconds. Unless this
// returns 0, nothing was taken and *element is untouched.
//
// EAGAIN: no element (timeout_ms 0). ETIME. EPIPE: closed and drained (also with timeout_ms 0).
// EINTR (on an INTERRUPTIBLE channel). EINVAL: no such channel, not a COPY channel, another size,
// or a null pointer.
int marline_recv(marline_channel_t channel,
                 void *element,
                 size_t size,
                 int64_t timeout_ms);

// Like marline_recv, but also ends with ECANCELED when the token is triggered. A token that was
// triggered before the call ends it without an attempt. A token of 0 means none.
int marline_recv_c(marline_channel_t channel,
                   void *element,
                   size_t size,
                   int64_t timeout_ms,
                   marline_token_t token);

// The start form of marline_recv: returns at once, with EINPROGRESS if the receive has to wait.
// See marline_op_create. *element must stay valid until the operation is finished or abandoned.
int marline_recv_start(marline_op_t op,
                       marline_channel_t channel,
                       void *element,
                       size_t size,
                       int64_t timeout_ms,
                       marline_token_t token,
                       marline_wake_fn wake_fn,
                       void *user);

// Sends a pointer and a length. When this returns 0, the memory behind the pointer is the
// receiver's. Otherwise it stays yours. The library never reads it. Waits like marline_send.
//
// EAGAIN, ETIME, EPIPE, EINTR as for marline_send. EINVAL: no such channel, not a POINTER channel,
// or a null pointer.
int marline_send_ptr(marline_channel_t channel,
                     void *ptr,
                     size_t len,
                     int64_t timeout_ms);

// Like marline_send_ptr, with a cancel token; see marline_send_c.
int marline_send_ptr_c(marline_channel_t channel,
                       void *ptr,
                       size_t len,
                       int64_t timeout_ms,
                       marline_token_t token);

// The start form of marline_send_ptr; see marline_op_create. The memory behind ptr stays yours
// until the operation has ended with 0.
int marline_send_ptr_start(marline_op_t op,
                           marline_channel_t channel,
                           void *ptr,
                           size_t len,
                           int64_t timeout_ms,
                           marline_token_t token,
                           marline_wake_fn wake_fn,
                           void *user);

// Receives a pointer and its length. When this returns 0, the memory behind the pointer is yours.
// Waits like marline_recv.
//
// EAGAIN, ETIME, EPIPE, EINTR as for marline_recv. EINVAL: no such channel, not a POINTER channel,
// or a null pointer.
int marline_recv_ptr(marline_channel_t channel,
                     void **ptr,
                     size_t *len,
                     int64_t timeout_ms);

// Like marline_recv_ptr, with a cancel token; see marline_recv_c.
int marline_recv_ptr_c(marline_channel_t channel,
                       void **ptr,
                       size_t *len,
                       int64_t timeout_ms,
                       marline_token_t token);

// The start form of marline_recv_ptr; see marline_op_create. *ptr and *len must stay valid until
// the operation is finished or abandoned.
int marline_recv_ptr_start(marline_op_t op,
                           marline_channel_t channel,
                           void **ptr,
                           size_t *len,
                           int64_t timeout_ms,
                           marline_token_t token,
                           marline_wake_fn wake_fn,
                           void *user);

// Registers memory whose buffers can then be sent with marline_send_zc. The memory stays yours. It
// must stay valid until marline_region_deregister has returned 0.
//
// EINVAL: a null pointer, no length, or reserved fields set. ENOMEM. Or the code that register_fn
// returned.
int marline_region_register(const struct marline_region_options *options,
                            marline_region_t *region);

// Ends a region once none of its buffers is in flight: neither in a channel, nor with a receiver
// that has not released it. Waits for that as timeout_ms says (0: not at all, < 0: without a
// limit). Meanwhile sends from the region fail with EINVAL. If the time runs out, the region is as
// it was.
//
// EAGAIN (timeout_ms 0) or ETIME: buffers are still in flight. EINVAL: no such region.
int marline_region_deregister(marline_region_t region,
                              int64_t timeout_ms);

// Stores in *count how many buffers of a region are in flight.
//
// EINVAL: no such region, or a null pointer.
int marline_region_in_flight(marline_region_t region,
                             uint64_t *count);

// Sends a buffer inside a region without copying it. When this returns 0, the buffer is the
// receiver's until the receiver releases it. Unless this returns 0, the buffer stays yours. Copies
// the buffer instead if a copy is better, or the only way (see struct marline_zc_counters). Then
// *copied (which may be NULL) becomes true, and the buffer is yours again at once. Waits like
// marline_send.
//
// EAGAIN, ETIME, EPIPE, EINTR as for marline_send. EINVAL: no such channel or region, a region
// that is being deregistered, a buffer that is empty or not inside the region, a POINTER channel,
// or a COPY channel whose element size is not len. ENOMEM.
int marline_send_zc(marline_channel_t channel,
                    marline_region_t region,
                    void *buffer,
                    size_t len,
                    bool *copied,
                    int64_t timeout_ms);

// Like marline_send_zc, with a cancel token; see marline_send_c.
int marline_send_zc_c(marline_channel_t channel,
                      marline_region_t region,
                      void *buffer,
                      size_t len,
                      bool *copied,
                      int64_t timeout_ms,
                      marline_token_t token);

// The start form of marline_send_zc; see marline_op_create. This call sets *copied. A buffer that
// is not copied is lent until the operation has ended. If it ended with 0, the buffer is the
// receiver's, otherwise yours.
int marline_send_zc_start(marline_op_t op,
                          marline_channel_t channel,
                          marline_region_t region,
                          void *buffer,
                          size_t len,
                          bool *copied,
                          int64_t timeout_ms,
                          marline_token_t token,
                          marline_wake_fn wake_fn,
                          void *user);

// Receives a buffer. You may read it until you release it with marline_zc_release. Waits like
// marline_recv.
//
// EAGAIN, ETIME, EPIPE, EINTR as for marline_recv. EINVAL: no such channel, not a DESCRIPTOR
// channel, or a null pointer. Or the code that the region's map_fn returned: then the buffer went
// to on_drop.
int marline_recv_zc(marline_channel_t channel,
                    struct marline_descriptor *descriptor,
                    int64_t timeout_ms);

// Like marline_recv_zc, with a cancel token; see marline_recv_c.
int marline_recv_zc_c(marline_channel_t channel,
                      struct marline_descriptor *descriptor,
                      int64_t timeout_ms,
                      marline_token_t token);

// The start form of marline_recv_zc; see marline_op_create. *descriptor must stay valid until the
// operation is finished or abandoned.
int marline_recv_zc_start(marline_op_t op,
                          marline_channel_t channel,
                          struct marline_descriptor *descriptor,
                          int64_t timeout_ms,
                          marline_token_t token,
                          marline_wake_fn wake_fn,
                          void *user);

// Releases a received buffer, and calls the release_fn of its region. Release every received
// descriptor exactly once.
//
// EINVAL: a null pointer, or a descriptor that was released before or never received.
int marline_zc_release(const struct marline_descriptor *descriptor);

// Stores the zero-copy counters of a channel in *counters.
//
// EINVAL: no such channel, or a null pointer.
int marline_zc_counters(marline_channel_t channel,
                        struct marline_zc_counters *counters);

// Creates an operation object, for coroutine libraries and event loops, which cannot block a
// thread. It serves one operation at a time, any number of times, without allocating.
//
// A start form (such as marline_send_start) returns
// - 0 or an error: the operation is over, exactly as with the blocking form, and wake_fn is not
//   called;
// - EINPROGRESS: the operation waits. wake_fn(user) is called once when it can be finished. Then
//   marline_op_finish returns its result. (wake_fn may be NULL: then call marline_op_finish now
//   and then.)
//
// With timeout_ms 0 the operation is only tried, and never left pending. A thread of the library
// watches a timeout_ms > 0. The operation keeps its channel and token, also if they are destroyed
// meanwhile. One thread at a time may use an operation object.
//
// EINVAL: a null pointer. ENOMEM.
int marline_op_create(marline_op_t *op);

// Ends a pending operation and returns its result, as the blocking form would. Then the object can
// be used again, and wake_fn is not called any more and does not run on another thread.
//
// EINPROGRESS: the operation cannot end yet. wake_fn will be called, also if it was called before.
// EINVAL: no such object, or nothing is pending.
int marline_op_finish(marline_op_t op);

// Gives up a pending operation. Then the object can be used again, and wake_fn is not called any
// more and does not run on another thread.
//
// ECANCELED: given up. The element of a send stays with its sender. A receive has taken nothing:
// an element that it was given is the next element of the channel.
// 0: a receiver took the element of the send first, so the send has happened.
// EINVAL: no such object, or nothing is pending.
int marline_op_abandon(marline_op_t op);

// Destroys an operation object. A pending operation is abandoned.
//
// EINVAL: no such object.
int marline_op_destroy(marline_op_t op);

// Creates a select: a set of send and receive clauses, of which a wait chooses one. Flags are bits
// of enum marline_select_flag.
//
// Add clauses, wait, see which clause was chosen, wait again. A clause keeps its number (from 0,
// in the order in which clauses were added) until marline_select_reset. One thread at a time may
// use a select. A select keeps its channels, also if they are destroyed meanwhile: then they are
// closed.
//
// EINVAL: unknown flags, or a null pointer. ENOMEM.
int marline_select_create(uint32_t flags,
                          marline_select_t *select);

// Adds a clause that receives from a COPY channel into *element, which must stay valid during
// waits. *index (which may be NULL) becomes the clause's number.
//
// EINVAL: no such select or channel, a select with a wait in progress, another mode or size, or a
// null pointer. EMSGSIZE: over 65536 clauses. ENOMEM.
int marline_select_add_recv(marline_select_t select,
                            marline_channel_t channel,
                            void *element,
                            size_t size,
                            size_t *index);

// Adds a clause that receives from a POINTER channel into *ptr and *len. Otherwise like
// marline_select_add_recv.
int marline_select_add_recv_ptr(marline_select_t select,
                                marline_channel_t channel,
                                void **ptr,
                                size_t *len,
                                size_t *index);

// Adds a clause that receives from a DESCRIPTOR channel into *descriptor. Otherwise like
// marline_select_add_recv.
int marline_select_add_recv_zc(marline_select_t select,
                               marline_channel_t channel,
                               struct marline_descriptor *descriptor,
                               size_t *index);

// Adds a clause that sends a copy of *element to a COPY channel. This call makes the copy. The
// clause sends once: after it was chosen, waits skip it until marline_select_refill.
//
// Errors as for marline_select_add_recv.
int marline_select_add_send(marline_select_t select,
                            marline_channel_t channel,
                            const void *element,
                            size_t size,
                            size_t *index);

// Adds a clause that sends a pointer to a POINTER channel. The memory behind the pointer stays
// yours until the clause was chosen with result 0, also if the select is reset or destroyed.
// Otherwise like marline_select_add_send.
int marline_select_add_send_ptr(marline_select_t select,
                                marline_channel_t channel,
                                void *ptr,
                                size_t len,
                                size_t *index);

// Adds a clause that sends a buffer inside a region, as marline_send_zc does. This call sets
// *copied (which may be NULL). A buffer that is not copied is lent, and in flight, until the
// clause was chosen, refilled, reset or destroyed. Otherwise like marline_select_add_send.
int marline_select_add_send_zc(marline_select_t select,
                               marline_channel_t channel,
                               marline_region_t region,
                               void *buffer,
                               size_t len,
                               bool *copied,
                               size_t *index);

// Gives send clause number index a copy of *element to send next. It replaces an element that the
// clause has not sent.
//
// EINVAL: no such select or send clause, a select with a wait in progress, another mode or size,
// or a null pointer. ENOMEM.
int marline_select_refill(marline_select_t select,
                          size_t index,
                          const void *element,
                          size_t size);

// Gives send clause number index a pointer to send next. A pointer that the clause has not sent
// stays yours. Otherwise like marline_select_refill.
int marline_select_refill_ptr(marline_select_t select,
                              size_t index,
                              void *ptr,
                              size_t len);

// Gives send clause number index a buffer inside a region to send next. A buffer that the clause
// has not sent is yours again. Otherwise like marline_select_refill and
// marline_select_add_send_zc.
int marline_select_refill_zc(marline_select_t select,
                             size_t index,
                             marline_region_t region,
                             void *buffer,
                             size_t len,
                             bool *copied);

// Waits until exactly one clause has happened. Then returns 0, with the clause's number in *index
// and its result in *result: 0, or the code that the send or receive would have returned, such as
// EPIPE. The other clauses have changed nothing. timeout_ms: 0 tries without waiting, < 0 waits
// without a limit, > 0 waits that many milliseconds.
//
// Otherwise no clause has happened. EAGAIN: none could (timeout_ms 0). ETIME. EPIPE: all channels
// are closed (with SKIP_CLOSED), or the select was destroyed. EINTR (with INTERRUPTIBLE). EINVAL:
// no such select, a select with a wait in progress, a null pointer, no clauses, or only send
// clauses that were not refilled.
int marline_select_wait(marline_select_t select,
                        size_t *index,
                        int *result,
                        int64_t timeout_ms);

// Like marline_select_wait, but also ends with ECANCELED when the token is triggered. A token of 0
// means none.
int marline_select_wait_c(marline_select_t select,
                          size_t *index,
                          int *result,
                          int64_t timeout_ms,
                          marline_token_t token);

// The start form of marline_select_wait; see marline_op_create. Here the select itself is the
// operation object: this returns EINPROGRESS, then wake_fn is called, then marline_select_finish
// ends the wait. The destinations of receive clauses must stay valid until then.
int marline_select_start(marline_select_t select,
                         size_t *index,
                         int *result,
                         int64_t timeout_ms,
                         marline_token_t token,
                         marline_wake_fn wake_fn,
                         void *user);

// Ends a started select, with the results of marline_select_wait.
//
// EINPROGRESS: no clause has happened yet. wake_fn will be called, also if it was called before.
// EINVAL: no such select, nothing was started, or a null pointer.
int marline_select_finish(marline_select_t select,
                          size_t *index,
                          int *result);

// Gives up a started select. When this returns, wake_fn is not called any more and does not run on
// another thread.
//
// ECANCELED: no clause has happened. An element that a receive clause was given is the next
// element of its channel. 0: a receiver took the element of a send clause first. That clause has
// happened, see *index and *result. EINVAL: no such select, nothing was started, or a null
// pointer.
int marline_select_abandon(marline_select_t select,
                           size_t *index,
                           int *result);

// Removes all clauses, so that others can be added. Elements that they have not sent stay yours.
//
// EINVAL: no such select, or a select with a wait in progress.
int marline_select_reset(marline_select_t select);

// Destroys a select. The wait of a thread ends with EPIPE. A started wait is abandoned.
//
// EINVAL: no such select.
int marline_select_destroy(marline_select_t select);

// Stores the state and the counters of a channel in *snapshot, in constant time.
//
// EINVAL: no such channel, or a null pointer.
int marline_snapshot(marline_channel_t channel,
                     struct marline_snapshot *snapshot);

// Stores in *rate the rates from an earlier snapshot of a channel to a later one. They are zero if
// no time has passed.
//
// EINVAL: a null pointer, or a snapshot of another version.
int marline_rate(const struct marline_snapshot *earlier,
                 const struct marline_snapshot *later,
                 struct marline_rate *rate);

// Pushes snapshots of a channel to metrics_fn: at most one per min_operations and per
// min_interval_ms, and a last one when the channel closes. marline_metrics_unsubscribe ends this.
//
// EINVAL: no such channel, or a null pointer. ENOMEM.
int marline_metrics_subscribe(marline_channel_t channel,
                              uint64_t min_operations,
                              uint64_t min_interval_ms,
                              marline_metrics_fn metrics_fn,
                              void *user,
                              marline_subscription_t *subscription);

// Ends a subscription. When it returns, its metrics_fn is not called any more and does not run on
// another thread.
//
// EINVAL: no such subscription.
int marline_metrics_unsubscribe(marline_subscription_t subscription);

// Writes one line about a channel into text, with a NUL at the end and no newline. *len (which may
// be NULL) becomes the length of the line without the NUL, also if the line did not fit. With size
// 0, text may be NULL.
//
// EMSGSIZE: the line did not fit and was cut off. EINVAL: no such channel, or a null pointer.
int marline_dump(marline_channel_t channel,
                 char *text,
                 size_t size,
                 size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MARLINE_CHANNEL_H */
