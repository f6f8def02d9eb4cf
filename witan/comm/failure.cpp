#include "witan/comm/failure.h"

#include <new>
#include <string>
#include <type_traits>

#include "witan/base/error.h"

namespace witan {
namespace {

template <class E>
void throw_if_a(const Error& error, const std::string& message) {
  if (dynamic_cast<const E*>(&error) == nullptr) return;
  if constexpr (std::is_constructible_v<E, std::string, ExitCode>) {
    throw E(message, error.code());
  } else {
    throw E(message);
  }
}

template <class... Classes>
[[noreturn]] void throw_as_one_of(const Error& error, const std::string& message) {
  (throw_if_a<Classes>(error, message), ...);
  throw Error(error.code(), message);
}

}  // namespace

void Failure::raise() {
  {
    const MutexLock lock(mutex_);
    if (raised_.exchange(true)) return;
    for (const auto& watched : words_)
      if (const auto word = watched.lock()) word->store(1);
  }
  if (on_raise_) on_raise_();
}

void Failure::watch(const std::shared_ptr<std::atomic<uint32_t>>& word) {
  const MutexLock lock(mutex_);
  std::erase_if(words_, [](const auto& watched) { return watched.expired(); });
  words_.push_back(word);
  if (raised_.load()) word->store(1);
}

Suspicion suspicion_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const AbortedError&) {
    return Suspicion::aborted;
  } catch (const CommError&) {
    return Suspicion::communication;
  } catch (...) {
    return Suspicion::own_error;
  }
}

void rethrow_named(int rank, const std::exception_ptr& error_of_rank) {
  const std::string prefix = cat("rank ", rank, ": ");
  try {
    std::rethrow_exception(error_of_rank);
  } catch (const Error& error) {
    throw_as_one_of<UsageError, ConfigError, ShapeError, DataError, CheckpointError, DivergedError, CommError,
                    OutOfMemoryError, DiskFullError, DeviceError, IoError, CorruptionError>(error,
                                                                                            prefix + error.what());
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError(prefix + "the host has no memory left");
  } catch (const std::exception& error) {
    throw Error(ExitCode::internal, prefix + error.what());
  } catch (...) {
    throw Error(ExitCode::internal, prefix + "threw something that is not a std::exception");
  }
}

}  // namespace witan
