// Small messages between the ranks of a group on the host.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/comm/host_group.h"
#include "witan/tensor/trace_context.h"

namespace witan::cuda {

class HostLink {
 public:
  // `on` is the rank's main stream, whose trace context errors tell.
  HostLink(std::unique_ptr<HostGroup> group, Stream& on)
      : group_(std::move(group)), on_(on), pool_(1), stream_({Device::Kind::cpu}, Arena::reserve(kBytes), pool_) {}

  HostGroup& group() { return *group_; }
  Stream& main() const { return on_; }
  Tensor integers(const std::vector<int64_t>& values) {
    Tensor out = stream_.empty({static_cast<int64_t>(values.size())}, DType::i64, MemoryTag::communication);
    std::ranges::copy(values, out.data<int64_t>());
    return out;
  }
  // The integers of every rank, in rank order: [n * mine.size()].
  std::vector<int64_t> all_gather(const std::vector<int64_t>& mine) {
    const Tensor own = integers(mine);
    const Tensor all = stream_.empty({own.elements() * group_->size()}, DType::i64, MemoryTag::communication);
    stream_.trace_context() = on_.trace_context();
    group_->all_gather(stream_, all, own);
    return all.to_vector<int64_t>();
  }
  std::vector<int64_t> broadcast(const std::vector<int64_t>& mine, int root) {
    const Tensor words = integers(mine);
    stream_.trace_context() = on_.trace_context();
    group_->broadcast(stream_, words, root);
    return words.to_vector<int64_t>();
  }

 private:
  static constexpr int64_t kBytes = int64_t{1} << 20;

  std::unique_ptr<HostGroup> group_;
  Stream& on_;
  ThreadPool pool_;
  Stream stream_;
};

}  // namespace witan::cuda
