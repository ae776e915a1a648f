/* Several threads create, use and destroy handles at once, with numbers that may be stale: every
 * call returns one of the documented codes, and nothing crashes. */
#include "check.h"

#include <stdatomic.h>

#define THREADS 4
#define STEPS 1500
#define SHARED 8

static atomic_uint_fast64_t channels[SHARED], ops[SHARED], selects[SHARED], tokens[SHARED];
static atomic_int drops;

static unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void count_drop(const struct marline_dropped *dropped, void *user) {
    (void)dropped, (void)user;
    drops++;
}

static void expect(int code) {
    switch (-code) {
    case 0:
    case EAGAIN:
    case ETIME:
    case ECANCELED:
    case EPIPE:
    case EINPROGRESS:
    case EINVAL:
        return;
    default:
        fprintf(stderr, "unexpected: %d (%s)\n", code, marline_strerror(code));
        abort();
    }
}

/* Replaces an old handle, which is destroyed while other threads may use it. */
static void replace(atomic_uint_fast64_t *place, uint64_t id, int (*destroy)(uint64_t)) {
    uint64_t old = atomic_exchange(place, id);
    if (old != 0)
        OK(destroy(old)); /* only its replacer destroys it */
}

static marline_channel_t new_channel(unsigned random) {
    uint32_t kind = 1 + random % 4;
    return make((struct marline_options){.kind = kind,
                                         .capacity = kind == MARLINE_KIND_BOUNDED ? 2 : 0,
                                         .element_size = sizeof(int),
                                         .on_drop = count_drop});
}

/* The destinations of receives outlive everything: a stale operation may still get an element. */
static int places[THREADS][SHARED];

static void *churn(void *user) {
    int me = *(int *)user;
    unsigned random = 7919u * (unsigned)(me + 1);
    for (int step = 0; step < STEPS; step++) {
        unsigned n = next_random(&random) % SHARED, m = next_random(&random) % SHARED;
        uint64_t channel = channels[n], op = ops[m], select = selects[m], token = tokens[m];
        int value = step, result;
        size_t index;
        uint64_t id;
        switch (next_random(&random) % 16) {
        case 0:
            replace(&channels[n], new_channel(next_random(&random)), marline_destroy);
            break;
        case 1:
            OK(marline_op_create(&id));
            replace(&ops[m], id, marline_op_destroy);
            break;
        case 2:
            OK(marline_select_create(next_random(&random) % 4, &id));
            replace(&selects[m], id, marline_select_destroy);
            break;
        case 3:
            OK(marline_token_create(&id));
            replace(&tokens[m], id, marline_token_destroy);
            break;
        case 4:
            expect(marline_token_trigger(token));
            break;
        case 5:
            expect(marline_send(channel, &value, sizeof value, step % 2));
            break;
        case 6:
            expect(marline_recv(channel, &value, sizeof value, step % 2));
            break;
        case 7:
            expect(marline_send_c(channel, &value, sizeof value, 1, token));
            break;
        case 8:
            expect(marline_send_start(op, channel, &value, sizeof value, -1, token, NULL, NULL));
            break;
        case 9:
            expect(marline_recv_start(op, channel, &places[me][n], sizeof(int), -1, 0, NULL, NULL));
            break;
        case 10:
            expect(marline_op_finish(op));
            break;
        case 11:
            expect(marline_op_abandon(op));
            break;
        case 12:
            expect(marline_select_add_recv(select, channel, &places[me][n], sizeof(int), NULL));
            expect(marline_select_add_send(select, channels[m], &value, sizeof value, NULL));
            break;
        case 13:
            expect(marline_select_wait_c(select, &index, &result, step % 2, token));
            break;
        case 14:
            expect(marline_select_start(select, &index, &result, -1, token, NULL, NULL));
            expect(marline_select_finish(select, &index, &result));
            break;
        case 15:
            expect(marline_select_abandon(select, &index, &result));
            expect(marline_select_reset(select));
            break;
        }
    }
    return NULL;
}

int main(void) {
    begin();
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int n = 0; n < THREADS; n++) {
        numbers[n] = n;
        threads[n] = spawn(churn, &numbers[n]);
    }
    for (int n = 0; n < THREADS; n++)
        join(threads[n]);
    for (int n = 0; n < SHARED; n++) {
        replace(&ops[n], 0, marline_op_destroy);
        replace(&selects[n], 0, marline_select_destroy);
        replace(&channels[n], 0, marline_destroy);
        replace(&tokens[n], 0, marline_token_destroy);
    }
    return 0;
}
