// Changes the state of the process for the lifetime of an object.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/process.h"

namespace witan::test {

// Sets an environment variable.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace witan::test

namespace witan::testing {

// Limits the process to opening `left` more files.
class NoFreeDescriptors {
 public:
  explicit NoFreeDescriptors(int left = 0) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int first_free = ::dup(STDERR_FILENO);
    EXPECT_GE(first_free, 0);
    ::close(first_free);
    const rlimit limit{static_cast<rlim_t>(first_free + left), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~NoFreeDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoFreeDescriptors(const NoFreeDescriptors&) = delete;
  NoFreeDescriptors& operator=(const NoFreeDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace witan::testing

namespace witan::test {

// Freed memory that the C allocator keeps because a block above it is still in use.
class FreedMemory {
 public:
  FreedMemory() : before_(read_resident()->now) {
    std::vector<std::unique_ptr<char[]>> blocks;
    for (size_t bytes = 0; bytes < kBytes; bytes += kBlock) {
      blocks.push_back(std::make_unique<char[]>(kBlock));
      std::memset(blocks.back().get(), 1, kBlock);
    }
    last_ = std::move(blocks.back());  // otherwise the end of the heap would be released at once
  }
  // Whether most of it is resident. Allocators of sanitizers may release it at once.
  bool is_kept() const { return read_resident()->now > before_ + kBytes / 2; }

  static constexpr size_t kBytes = 64 << 20;

 private:
  static constexpr size_t kBlock = 64 << 10;  // small enough for malloc to use the heap instead of mmap
  uint64_t before_;
  std::unique_ptr<char[]> last_;
};

}  // namespace witan::test
