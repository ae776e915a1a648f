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
