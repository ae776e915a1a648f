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
 * RETURN CODES. Every function that can fail returns 0 or a negative errno from <errno.h>; below,
 * "EAGAIN" means that -EAGAIN is returned. marline_strerror puts them in words.
 *
 *     EAGAIN       would block, and timeout_ms was 0
 *     ETIME        the time ran out
 *     ECANCELED    the cancel token was triggered, or the operation was abandoned
 *     EPIPE        closed; for receives: closed and empty (also when only trying)
 *     EINPROGRESS  started and not finished yet
 *     EINTR        a signal handler ran (only where asked for); nothing happened, call again
 *     EINVAL       no such handle (destroyed, made up, or another sort of thing), wrong mode or
 *                  size, a null pointer, a number that means nothing
 *     ENOTSUP      this kind of channel cannot do that
 *     EMSGSIZE     too large for the space given
 *     ENOMEM       out of memory or handles
 *     EIO          a bug in the library; it has printed where on stderr
 *
 * HANDLES (marline_channel_t and its like) are numbers, never 0, and never given out twice. Using
 * one after its destroy, destroying it twice, or using it as another sort of thing is EINVAL.
 * Destroying something others wait for wakes them with EPIPE. Channels, tokens, regions and
 * subscriptions may be used by any number of threads at once; operations and selects by one at a
 * time, or they return EINVAL.
 *
 * TIME. timeout_ms: 0 tries without waiting, < 0 waits for as long as it takes, > 0 waits that many
 * milliseconds. The forms ending in _c also take a cancel token (0: none). The forms ending in
 * _start never wait: see marline_op_create.
 *
 * OWNERSHIP. A send that returns 0 has passed its element on; after any other result it was not
 * sent, nobody has seen it, and it stays with the sender. A receive that does not return 0 has
 * taken nothing. An element that was sent but can never be received is given to the channel's
 * on_drop, exactly once.
 *     COPY elements are copied both ways.
 *     POINTER elements: what they point at belongs to whoever received the pointer.
 *     DESCRIPTOR elements: a buffer inside a registered region is lent to its receiver until
 *     marline_zc_release.
 *
 * ORDER. Elements arrive in the order they were sent; operations that wait are served in the order
 * they came, and a try cannot overtake them.
 */
