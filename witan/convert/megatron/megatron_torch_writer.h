// Files as torch.save() writes them, into a file of one or several: each a zip without compression.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/convert/elements/elements.h"
#include "witan/tensor/shape.h"

namespace witan {

class TorchWriter {
 public:
  explicit TorchWriter(AtomicFile& to) : to_(to) {}

  using Put = std::function<void(const std::byte* bytes, size_t count)>;
  // A file of one tensor, whose bytes `fill` puts one after the other: at most kMostTensorBytes. Returns its length.
  uint64_t tensor(Element type, const Shape& shape, const std::function<void(const Put&)>& fill);
  // A file of this pickle, without tensors.
  uint64_t pickle(std::string_view pickle);

  static constexpr uint64_t kMostTensorBytes = uint64_t{1} << 31;  // so that no size needs 64 bits

 private:
  struct Member {
    std::string name;
    uint64_t at = 0, size = 0;
    uint32_t crc = 0;
  };
  void begin();
  void member(const std::string& name, uint64_t size, const std::function<void(const Put&)>& fill);
  void member(const std::string& name, std::string_view bytes);
  uint64_t end();
  void put(std::string_view bytes) { to_.write(bytes); }

  AtomicFile& to_;
  uint64_t start_ = 0;  // of the zip
  std::vector<Member> members_;
};

}  // namespace witan
