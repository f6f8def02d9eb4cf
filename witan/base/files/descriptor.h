// A file descriptor that closes itself, also when the constructor of its owner throws.
#pragma once

#include <unistd.h>

#include <utility>

namespace witan {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}  // as open() returned it: negative where there is none
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

}  // namespace witan
