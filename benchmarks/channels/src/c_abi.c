/* The benchmark of the C library, with entry points for this program. */
#define main rendezvous_main
#include "../../../crates/channel-c/tests/c/bench/rendezvous.c"

double marline_bench_threads(uint64_t capacity, uint64_t count) {
    return threads(capacity ? MARLINE_KIND_BOUNDED : MARLINE_KIND_RENDEZVOUS, capacity, count);
}

/* On x86-64 a few instructions switch coroutines. Elsewhere ucontext does, with a system call. */
double marline_bench_coroutines(uint64_t count) {
#if defined(__x86_64__)
    return coroutines(quick, count);
#else
    return coroutines(by_ucontext, count);
#endif
}
