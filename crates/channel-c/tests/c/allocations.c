/* Once warm, no operation allocates: this program replaces malloc and counts its calls. */
#include "check.h"

#include <stdatomic.h>

static atomic_long allocations;

/* A sanitizer replaces malloc itself. Then the program only runs the operations. */
#if defined(__SANITIZE_ADDRESS__)
#define COUNTED 0
#else
#define COUNTED 1
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    allocations++;
    return __libc_realloc(old, size);
}

int posix_memalign(void **place, size_t alignment, size_t size) {
    allocations++;
    *place = __libc_memalign(alignment, size);
    return *place == NULL ? ENOMEM : 0;
}
#endif

#define WARM 100
#define ROUNDS 500
/* A step that comes once in a thread's life (its first sleep, the timer's start) may come late. */
#define ONCE 4

/* Runs a step until it is warm, then counts. */
#define NO_ALLOCATION(step)                                                                       \
    do {                                                                                          \
        for (int round_ = 0; round_ < WARM; round_++)                                             \
            step;                                                                                 \
        long before_ = allocations;                                                               \
        for (int round_ = 0; round_ < ROUNDS; round_++)                                           \
            step;                                                                                 \
        if (allocations - before_ > ONCE) {                                                       \
            fprintf(stderr, "%s:%d: %ld allocations in %d rounds of: %s\n", __FILE__, __LINE__,   \
                    allocations - before_, ROUNDS, #step);                                        \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

static void ignore(void *user) {
    (void)user;
}

static marline_channel_t ints, larges, rendezvous, pointers, buffers;
static marline_op_t sends, recvs;
static marline_select_t choice;
static marline_token_t token;
static marline_region_t region;
static char memory[4096], large[1000];
static int value;
static size_t index_, len;
static void *ptr;
static int result;

static void copies(void) {
    OK(send_int(ints, 1, 0));
    OK(marline_recv(ints, &value, sizeof value, 0));
    OK(marline_send_c(ints, &value, sizeof value, 1000, token));
    OK(marline_recv_c(ints, &value, sizeof value, -1, token));
    CODE(EAGAIN, marline_recv(ints, &value, sizeof value, 0));
}

static void large_copies(void) {
    OK(marline_send(larges, large, sizeof large, 0));
    OK(marline_send(larges, large, sizeof large, 0));
    CODE(EAGAIN, marline_send(larges, large, sizeof large, 0));
    OK(marline_recv(larges, large, sizeof large, 0));
    OK(marline_recv(larges, large, sizeof large, 0));
}

static void pointers_and_buffers(void) {
    OK(marline_send_ptr(pointers, memory, 1, 0));
    OK(marline_recv_ptr(pointers, &ptr, &len, 0));
    struct marline_descriptor descriptor;
    OK(marline_send_zc(buffers, region, memory, sizeof memory, NULL, 0));
    OK(marline_recv_zc(buffers, &descriptor, 0));
    OK(marline_zc_release(&descriptor));
}

static void operations(void) {
    CODE(EINPROGRESS,
         marline_recv_start(recvs, rendezvous, &value, sizeof value, -1, 0, ignore, NULL));
    OK(marline_send_start(sends, rendezvous, &value, sizeof value, -1, 0, ignore, NULL));
    OK(marline_op_finish(recvs));
    CODE(EINPROGRESS, marline_send_start(sends, rendezvous, &value, sizeof value, 60000, token,
                                         ignore, NULL));
    CODE(ECANCELED, marline_op_abandon(sends));
}

static void selects(void) {
    OK(marline_select_wait_c(choice, &index_, &result, -1, token));
    CHECK(index_ == 1 && result == 0);
    OK(marline_select_refill(choice, 1, &value, sizeof value));
    OK(marline_recv(ints, &value, sizeof value, 0));
}

static void started_selects(void) {
    int code = marline_select_start(choice, &index_, &result, -1, token, ignore, NULL);
    CODE(EINPROGRESS, code);
    OK(send_int(rendezvous, 1, 0));
    OK(marline_select_finish(choice, &index_, &result));
    CHECK(index_ == 0 && result == 0);
}

static void *echo(void *user) {
    (void)user;
    int got;
    while (marline_recv(rendezvous, &got, sizeof got, -1) == 0 && got >= 0)
        OK(send_int(ints, got, -1));
    return NULL;
}

static void between_threads(void) {
    OK(send_int(rendezvous, 5, -1));
    CHECK(recv_int(ints) == 5);
}

int main(void) {
    begin();
    if (!COUNTED)
        printf("not counted: a sanitizer has replaced malloc\n");
    struct marline_region_options options = {.addr = memory, .len = sizeof memory};
    OK(marline_region_register(&options, &region));
    OK(marline_token_create(&token));
    OK(marline_op_create(&sends));
    OK(marline_op_create(&recvs));
    ints = make_ints(MARLINE_KIND_BOUNDED, 1);
    rendezvous = make_ints(MARLINE_KIND_RENDEZVOUS, 0);
    larges = make((struct marline_options){
        .kind = MARLINE_KIND_BOUNDED, .capacity = 2, .element_size = sizeof large});
    pointers = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_POINTER);
    buffers = make_mode(MARLINE_KIND_BOUNDED, 1, MARLINE_MODE_DESCRIPTOR);

    NO_ALLOCATION(copies());
    NO_ALLOCATION(large_copies());
    NO_ALLOCATION(pointers_and_buffers());
    NO_ALLOCATION(operations());

    OK(marline_select_create(0, &choice));
    OK(marline_select_add_recv(choice, rendezvous, &value, sizeof value, NULL));
    OK(marline_select_add_send(choice, ints, &value, sizeof value, NULL));
    NO_ALLOCATION(selects());
    OK(send_int(ints, 1, 0)); /* full: only the receive clause can happen */
    NO_ALLOCATION(started_selects());
    CHECK(recv_int(ints) == 1);
    OK(marline_select_destroy(choice));

    pthread_t thread = spawn(echo, NULL);
    NO_ALLOCATION(between_threads());
    OK(send_int(rendezvous, -1, -1));
    join(thread);

    OK(marline_op_destroy(sends));
    OK(marline_op_destroy(recvs));
    OK(marline_token_destroy(token));
    OK(marline_destroy(ints));
    OK(marline_destroy(larges));
    OK(marline_destroy(rendezvous));
    OK(marline_destroy(pointers));
    OK(marline_destroy(buffers));
    OK(marline_region_deregister(region, 0));
    return 0;
}
