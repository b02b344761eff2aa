/* Counts the branches that code built with gcc's -fsanitize-coverage=trace-pc takes, for libFuzzer to read.
 *
 * Preloaded, since the code calls it by name. libFuzzer is told of the two arrays by fuzz.py; places of code share a
 * counter where their addresses end alike, which costs it little. */

#include <stdint.h>

#define COUNTERS (1 << 16)

uint8_t fuzz_counters[COUNTERS];
struct {
    uintptr_t address, flags;
} fuzz_places[COUNTERS]; /* it wants as many as counters; only for messages */

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    uintptr_t place = (uintptr_t)__builtin_return_address(0);
    uint8_t *counter = &fuzz_counters[(place ^ place >> 16) & (COUNTERS - 1)];
    *counter += *counter < 255;
}
