// Turns the exception of a rank into the error that its process reports.
#pragma once

#include <cstdint>
#include <exception>

namespace witan {

// How likely an error is to be the root of the others; smaller is likelier.
enum class Suspicion : uint8_t { own_error, communication, aborted };
Suspicion suspicion_of(const std::exception_ptr& error);

// The same error, of the same class, with "rank 2: " before its message; what is no witan::Error becomes one, of
// ExitCode::internal.
[[noreturn]] void rethrow_named(int rank, const std::exception_ptr& error);

}  // namespace witan
