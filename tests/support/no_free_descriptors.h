// This process as it is when it has as many files open as the system allows it.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace witan::testing {

// As long as it lives, no more than `left` can be opened.
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
