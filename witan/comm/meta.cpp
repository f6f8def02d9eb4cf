#include "witan/comm/meta.h"

#include "witan/base/error.h"

namespace witan {
namespace {

[[noreturn]] void refuse(const Stream& stream, const Group& group, std::string_view what) {
  throw CommError(cat("axis ", group.name(), ": ", what, " on ", stream.device(), " among ", group.size(),
                      " ranks that are only counted; a meta group serves meta streams"));
}

class MetaPeers : public PeerMemory {
 public:
  using PeerMemory::PeerMemory;

 private:
  void place(Stream& stream, const RowGroups&, const Tensor&, const Tensor&, int64_t) override {
    refuse(stream, group(), "place_rows");
  }
  void push(Stream& stream, const Rows&, const Rows&, const Tensor&, int64_t, const Tensor&) override {
    refuse(stream, group(), "push_rows");
  }
  void pull(Stream& stream, const Rows&, const Rows&, const Tensor&, const Tensor&) override {
    refuse(stream, group(), "pull_rows");
  }
  void gather(Stream& stream, const Tensor&, const Tensor&) override { refuse(stream, group(), "gather_parts"); }
  void sum(Stream& stream, const Tensor&, const Tensor&) override { refuse(stream, group(), "sum_parts"); }
  void exchange(Stream& stream, const std::vector<kernels::PieceCopy>&) override {
    refuse(stream, group(), "exchange_pieces");
  }
};

}  // namespace

MetaGroup::MetaGroup(int size, int rank, std::string name, PeerAccess peers) : Group(size, rank, std::move(name)) {
  if (peers != PeerAccess::none && peers != PeerAccess::host) peers_ = std::make_unique<MetaPeers>(*this);
}

void MetaGroup::perform(Stream& stream, const Collective& call) {
  refuse(stream, *this, name_of(call.kind));
}

}  // namespace witan
