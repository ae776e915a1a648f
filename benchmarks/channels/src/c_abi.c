/* The C library's own benchmark, with entries for the measuring program. */
#define main rendezvous_main
#include "../../../crates/channel-c/tests/c/bench/rendezvous.c"

double marline_bench_threads(uint64_t capacity, uint64_t count) {
    return threads(capacity ? MARLINE_KIND_BOUNDED : MARLINE_KIND_RENDEZVOUS, capacity, count);
}

/* Switched by a few instructions where we have them; ucontext makes a system call per switch. */
double marline_bench_coroutines(uint64_t count) {
#if defined(__x86_64__)
    return coroutines(quick, count);
#else
    return coroutines(by_ucontext, count);
#endif
}
