// Reports a processor that lacks instructions which this program was compiled to use. This must happen before one of
// them ends the program as illegal, so before main() and before the static initialisers of other sources.
#include <unistd.h>

#include <cstring>

#include "witan/base/error.h"

namespace witan::cli {
namespace {

#if defined(__x86_64__) && defined(__AVX2__)
// Compiled without these instructions, and so are the functions of the C library that it calls.
[[gnu::constructor(101), gnu::target("no-avx")]] void check_processor() {
  __builtin_cpu_init();
  const char* missing = nullptr;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
    missing = "AVX2, FMA and BMI2";
#if defined(__AVX512F__)
  if (!__builtin_cpu_supports("avx512f")) missing = "AVX-512";
#endif
  if (missing == nullptr) return;
  const char* const parts[] = {"error: this program was compiled for processors with ", missing,
                               ", which this one lacks. Build it on this machine (make build), or for any processor: "
                               "cmake --preset release -DWITAN_NATIVE=OFF\n"};
  for (const char* part : parts)
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  _exit(static_cast<int>(ExitCode::device));
}
#endif

}  // namespace
}  // namespace witan::cli
